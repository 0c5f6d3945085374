package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A jsonStyle is how JSON is written.
type jsonStyle struct {
	ascii      bool    // everything else as \u escapes
	indent     *string // nil for everything on one line
	item, pair Text    // between items, and between a key and its value
	sortKeys   bool
}

// toJSON appends a value as Python's json.dumps writes it.
func (r *run) toJSON(b *builder, v Value, style *jsonStyle, depth int) error {
	if err := r.inside(depth); err != nil {
		return err
	}
	switch v := v.(type) {
	case None:
		return b.own("null")
	case Bool:
		return b.own(strconv.FormatBool(bool(v)))
	case Int, Big:
		return r.repr(b, v, depth)
	case Float:
		return b.own(formatFloat(float64(v), "Infinity", "NaN"))
	case Text:
		return r.jsonString(b, v, style)
	case *List:
		return r.jsonItems(b, "[", "]", len(v.items), style, depth, func(i int) error {
			return r.toJSON(b, v.items[i], style, depth+1)
		})
	case *Map:
		entries := v.entries
		if style.sortKeys {
			var err error
			if entries, err = r.sortedEntries(v); err != nil {
				return err
			}
		}
		return r.jsonItems(b, "{", "}", len(entries), style, depth, func(i int) error {
			if err := r.jsonKey(b, entries[i].key, style); err != nil {
				return err
			}
			if err := b.text(style.pair); err != nil {
				return err
			}
			return r.toJSON(b, entries[i].value, style, depth+1)
		})
	case undefined:
		return errors.New(v.what)
	}
	return fmt.Errorf("a %s cannot be written as JSON", v.typeName())
}

// jsonItems appends n items between brackets.
func (r *run) jsonItems(b *builder, open, end string, n int, style *jsonStyle, depth int, item func(i int) error) error {
	if n == 0 {
		return b.own(open + end)
	}
	newline := func(depth int) error {
		if style.indent == nil {
			return nil
		}
		if err := b.own("\n"); err != nil {
			return err
		}
		for range depth {
			if err := b.own(*style.indent); err != nil {
				return err
			}
		}
		return nil
	}
	if err := b.own(open); err != nil {
		return err
	}
	for i := range n {
		if i > 0 {
			if err := b.text(style.item); err != nil {
				return err
			}
		}
		if err := newline(depth + 1); err != nil {
			return err
		}
		if err := item(i); err != nil {
			return err
		}
	}
	if err := newline(depth); err != nil {
		return err
	}
	return b.own(end)
}

// jsonKey appends a key, which becomes a string whatever it was.
func (r *run) jsonKey(b *builder, key Value, style *jsonStyle) error {
	if t, ok := key.(Text); ok {
		return r.jsonString(b, t, style)
	}
	if err := b.own(`"`); err != nil {
		return err
	}
	if err := r.toJSON(b, key, style, 0); err != nil {
		return err
	}
	return b.own(`"`)
}

// jsonString appends a string; what came with the request stays marked inside of the quotes.
func (r *run) jsonString(b *builder, t Text, style *jsonStyle) error {
	if err := b.own(`"`); err != nil {
		return err
	}
	err := t.stretches(func(s string, request bool) error {
		for s != "" {
			n := strings.IndexFunc(s, func(c rune) bool { return c == '"' || c == '\\' || c < ' ' || style.ascii && c >= 0x7f })
			if n < 0 {
				return b.add(s, request)
			}
			if err := b.add(s[:n], request); err != nil {
				return err
			}
			c, size := utf8.DecodeRuneInString(s[n:])
			if err := b.add(jsonEscape(c), request); err != nil {
				return err
			}
			s = s[n+size:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.own(`"`)
}

func jsonEscape(c rune) string {
	switch c {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	}
	if c >= 0x10000 {
		high, low := utf16.EncodeRune(c)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, c)
}

// sortedEntries returns the entries of a map by key.
func (r *run) sortedEntries(m *Map) ([]entry, error) {
	if err := r.alloc(valueCost * len(m.entries)); err != nil {
		return nil, err
	}
	entries := slices.Clone(m.entries)
	err := sortStable(entries, func(a, b entry) (int, error) { return r.order(a.key, b.key, 0) })
	return entries, err
}
