package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of the JSON that DecodeJSON takes.
const (
	MaxJSONDepth  = 128       // of lists and objects inside each other
	MaxJSONValues = 1_000_000 // altogether; each costs up to some hundred bytes of memory
)

// A JSONError is JSON that cannot be read.
type JSONError struct {
	Offset int // in bytes
	What   string
}

func (e *JSONError) Error() string { return fmt.Sprintf("JSON at byte %d: %s", e.Offset, e.What) }

// DecodeJSON reads JSON from a client. Unlike package encoding/json it keeps the order of keys and tells whole numbers from
// others (2.0 stays a [Float]). All strings, keys too, are marked as request text. Of a key that is there twice the last
// value counts. Numbers that are too large become infinite, as in Python; half a surrogate pair and invalid UTF-8 become U+FFFD.
func DecodeJSON(data string) (Value, error) {
	d := decoder{s: data}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if d.space(); d.i < len(d.s) {
		return nil, d.fail("there is something after the value")
	}
	return v, nil
}

type decoder struct {
	s      string
	i      int
	values int
}

func (d *decoder) fail(format string, args ...any) error {
	return &JSONError{d.i, fmt.Sprintf(format, args...)}
}

func (d *decoder) space() {
	for d.i < len(d.s) && (d.s[d.i] == ' ' || d.s[d.i] == '\n' || d.s[d.i] == '\t' || d.s[d.i] == '\r') {
		d.i++
	}
}

// take moves over a byte if it is next.
func (d *decoder) take(c byte) bool {
	if d.i < len(d.s) && d.s[d.i] == c {
		d.i++
		return true
	}
	return false
}

// words are the values that are written as a word.
var words = []struct {
	text  string
	value Value
}{{"true", Bool(true)}, {"false", Bool(false)}, {"null", None{}}}

func (d *decoder) value(depth int) (Value, error) {
	d.space()
	if d.values++; d.values > MaxJSONValues {
		return nil, d.fail("more than %d values", MaxJSONValues)
	}
	if depth > MaxJSONDepth {
		return nil, d.fail("more than %d levels of lists and objects", MaxJSONDepth)
	}
	if d.i == len(d.s) {
		return nil, d.fail("the value is missing")
	}
	switch c := d.s[d.i]; {
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.list(depth)
	case c == '"':
		return d.string()
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	}
	for _, w := range words {
		if strings.HasPrefix(d.s[d.i:], w.text) {
			d.i += len(w.text)
			return w.value, nil
		}
	}
	return nil, d.fail("a value is wanted")
}

func (d *decoder) list(depth int) (Value, error) {
	d.i++
	l := &List{}
	if d.space(); d.take(']') {
		return l, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, v)
		d.space()
		if d.take(']') {
			return l, nil
		}
		if !d.take(',') {
			return nil, d.fail("a comma or ] is wanted")
		}
	}
}

func (d *decoder) object(depth int) (Value, error) {
	d.i++
	m := NewMap()
	if d.space(); d.take('}') {
		return m, nil
	}
	for {
		if d.space(); d.i == len(d.s) || d.s[d.i] != '"' {
			return nil, d.fail("a key is wanted")
		}
		key, err := d.string()
		if err != nil {
			return nil, err
		}
		if d.space(); !d.take(':') {
			return nil, d.fail("a colon is wanted")
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		m.Set(key, v)
		d.space()
		if d.take('}') {
			return m, nil
		}
		if !d.take(',') {
			return nil, d.fail("a comma or } is wanted")
		}
	}
}

func (d *decoder) number() (Value, error) {
	start := d.i
	digits := func() int {
		from := d.i
		for d.i < len(d.s) && d.s[d.i] >= '0' && d.s[d.i] <= '9' {
			d.i++
		}
		return d.i - from
	}
	d.take('-')
	zero := d.i < len(d.s) && d.s[d.i] == '0'
	n := digits()
	bad := n == 0 || zero && n > 1
	whole := true
	if d.take('.') {
		whole = false
		bad = digits() == 0 || bad
	}
	if d.take('e') || d.take('E') {
		whole = false
		_ = d.take('+') || d.take('-')
		bad = digits() == 0 || bad
	}
	text := d.s[start:d.i]
	if bad {
		d.i = start
		return nil, d.fail("a number is not written as JSON wants it")
	}
	if whole {
		v, ok := parseInt(text, 10)
		if !ok {
			d.i = start
			return nil, d.fail("a number has more than %d digits", maxDigits)
		}
		return v, nil
	}
	f, _ := strconv.ParseFloat(text, 64) // the only error is that of the range, with an infinity
	return Float(f), nil
}

// string reads a string, whose opening quote is next.
func (d *decoder) string() (Text, error) {
	d.i++
	start := d.i
	for d.i < len(d.s) && d.s[d.i] != '"' && d.s[d.i] != '\\' && d.s[d.i] >= ' ' {
		d.i++
	}
	if d.i < len(d.s) && d.s[d.i] == '"' { // the usual case needs no copy
		d.i++
		return Request(d.s[start : d.i-1]), nil
	}
	var b strings.Builder
	b.WriteString(d.s[start:d.i])
	for d.i < len(d.s) {
		switch c := d.s[d.i]; {
		case c == '"':
			d.i++
			return Request(b.String()), nil
		case c < ' ':
			return Text{}, d.fail("a control character in a string must be escaped")
		case c == '\\':
			if err := d.escape(&b); err != nil {
				return Text{}, err
			}
		default:
			b.WriteByte(c)
			d.i++
		}
	}
	return Text{}, d.fail("the string is not closed")
}

// jsonEscapes are the characters of the escapes with one letter.
var jsonEscapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads an escape, whose backslash is next.
func (d *decoder) escape(b *strings.Builder) error {
	if d.i+1 < len(d.s) {
		if c, ok := jsonEscapes[d.s[d.i+1]]; ok {
			b.WriteByte(c)
			d.i += 2
			return nil
		}
	}
	c, ok := d.unit()
	if !ok {
		return d.fail("an escape is not one of JSON's")
	}
	if utf16.IsSurrogate(c) {
		from := d.i
		second, _ := d.unit()
		if c = utf16.DecodeRune(c, second); c == utf8.RuneError {
			d.i = from // the second one stands for itself
		}
	}
	b.WriteRune(c)
	return nil
}

// unit reads an escape of four digits.
func (d *decoder) unit() (rune, bool) {
	if !strings.HasPrefix(d.s[d.i:], `\u`) || d.i+6 > len(d.s) {
		return 0, false
	}
	n, err := strconv.ParseUint(d.s[d.i+2:d.i+6], 16, 16)
	if err != nil {
		return 0, false
	}
	d.i += 6
	return rune(n), true
}
