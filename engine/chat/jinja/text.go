package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A Text is a string that knows which of its bytes came with the request: what a client typed stays marked through
// slices, concatenation, filters and JSON encoding, so that the tokenizer can treat it as text only. It is valid UTF-8 and no
// mark changes inside a character.
type Text struct {
	s     string
	first bool  // whether it begins with request text
	flips []int // ascending offsets in (0, len(s)) where the mark changes; never written to once set
}

// Trusted returns template text.
func Trusted(s string) Text { return Text{s: valid(s)} }

// Request returns text that came with the request.
func Request(s string) Text { return Text{s: valid(s), first: true} }

// valid puts U+FFFD in place of bytes that are not UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// String returns the text without its marks.
func (t Text) String() string { return t.s }

// slice returns the bytes from i to j, both at the start of a character.
func (t Text) slice(i, j int) Text {
	if i >= j {
		return Text{}
	}
	if len(t.flips) == 0 {
		return Text{s: t.s[i:j], first: t.first}
	}
	before, at := slices.BinarySearch(t.flips, i)
	if at {
		before++ // the flip at i is behind us
	}
	after, _ := slices.BinarySearch(t.flips, j)
	out := Text{s: t.s[i:j], first: t.first != (before%2 == 1)}
	if before < after {
		out.flips = make([]int, after-before)
		for k, f := range t.flips[before:after] {
			out.flips[k] = f - i
		}
	}
	return out
}

// stretches calls f with each stretch of one mark, in order, until it returns an error.
func (t Text) stretches(f func(s string, request bool) error) error {
	from, request := 0, t.first
	for i := range len(t.flips) + 1 {
		to := len(t.s)
		if i < len(t.flips) {
			to = t.flips[i]
		}
		if from < to {
			if err := f(t.s[from:to], request); err != nil {
				return err
			}
		}
		from, request = to, !request
	}
	return nil
}

// A builder makes a Text of pieces. All that it holds is paid for from the run's budgets.
type builder struct {
	r       *run
	s       strings.Builder
	first   bool
	request bool // the mark of the last byte
	flips   []int
	output  bool // what is written is the output of the template
}

// add appends text of one mark.
func (b *builder) add(s string, request bool) error {
	if s == "" {
		return nil
	}
	if err := b.r.alloc(len(s)); err != nil {
		return err
	}
	if b.output && len(s) > b.r.limits.Output-b.s.Len() {
		return &LimitError{"bytes of output", b.r.limits.Output}
	}
	if b.s.Len() == 0 {
		b.first = request
	} else if request != b.request {
		if err := b.r.alloc(8); err != nil {
			return err
		}
		b.flips = append(b.flips, b.s.Len())
	}
	b.request = request
	b.s.WriteString(s)
	return nil
}

// own appends text that the template or the interpreter wrote.
func (b *builder) own(s string) error { return b.add(s, false) }

// text appends a Text.
func (b *builder) text(t Text) error {
	if len(t.flips) == 0 {
		return b.add(t.s, t.first)
	}
	return t.stretches(b.add)
}

// done returns what was written. The builder must not be used again.
func (b *builder) done() Text { return Text{b.s.String(), b.first, b.flips} }

// concat joins texts.
func (r *run) concat(texts ...Text) (Text, error) {
	b := builder{r: r}
	for _, t := range texts {
		if err := b.text(t); err != nil {
			return Text{}, err
		}
	}
	return b.done(), nil
}

// mapStretches replaces each stretch of one mark by what f makes of it.
func (r *run) mapStretches(t Text, f func(string) string) (Text, error) {
	b := builder{r: r}
	err := t.stretches(func(s string, request bool) error { return b.add(f(s), request) })
	return b.done(), err
}

// mapRunes replaces each character by what f makes of it.
func (r *run) mapRunes(t Text, f func(c rune) string) (Text, error) {
	if err := r.looked(slowly * len(t.s)); err != nil {
		return Text{}, err
	}
	return r.mapStretches(t, func(s string) string {
		var b strings.Builder
		for _, c := range s {
			b.WriteString(f(c))
		}
		return b.String()
	})
}

// isSpace reports whether Python's str.isspace does: Unicode's white space and the four separators of ASCII.
func isSpace(c rune) bool {
	switch {
	case c >= '\t' && c <= '\r', c >= 0x1c && c <= ' ', c == 0x85, c == 0xa0, c == 0x1680, c >= 0x2000 && c <= 0x200a,
		c == 0x2028, c == 0x2029, c == 0x202f, c == 0x205f, c == 0x3000:
		return true
	}
	return false
}

// strip takes the characters of a set off the ends; a nil set is white space.
func (t Text) strip(set *string, left, right bool) Text {
	in := isSpace
	if set != nil {
		in = func(c rune) bool { return strings.ContainsRune(*set, c) }
	}
	i, j := 0, len(t.s)
	if left {
		i = j - len(strings.TrimLeftFunc(t.s, in))
	}
	if right {
		j = i + len(strings.TrimRightFunc(t.s[i:], in))
	}
	return t.slice(i, j)
}

// split cuts at each separator, at most limit times when limit is not negative.
func (r *run) split(t Text, sep string, limit int) (*List, error) {
	out := collector{r: r}
	from := 0
	for limit != 0 {
		i := strings.Index(t.s[from:], sep)
		if i < 0 {
			break
		}
		if err := out.add(t.slice(from, from+i)); err != nil {
			return nil, err
		}
		from += i + len(sep)
		limit--
	}
	return out.list(t.slice(from, len(t.s)))
}

// rsplit is split from the right.
func (r *run) rsplit(t Text, sep string, limit int) (*List, error) {
	out := collector{r: r}
	to := len(t.s)
	for limit != 0 {
		i := strings.LastIndex(t.s[:to], sep)
		if i < 0 {
			break
		}
		if err := out.add(t.slice(i+len(sep), to)); err != nil {
			return nil, err
		}
		to = i
		limit--
	}
	l, err := out.list(t.slice(0, to))
	if err != nil {
		return nil, err
	}
	slices.Reverse(l.items)
	return l, nil
}

// fields cuts at runs of white space, at most limit times when limit is not negative.
func (r *run) fields(t Text, limit int) (*List, error) {
	out := collector{r: r}
	rest := t.strip(nil, true, false)
	for rest.s != "" {
		i := strings.IndexFunc(rest.s, isSpace)
		if i < 0 || limit == 0 {
			return out.list(rest)
		}
		if err := out.add(rest.slice(0, i)); err != nil {
			return nil, err
		}
		rest = rest.slice(i, len(rest.s)).strip(nil, true, false)
		limit--
	}
	return out.list()
}

// lines cuts at line ends, as Python's str.splitlines.
func (r *run) lines(t Text, keep bool) (*List, error) {
	out := collector{r: r}
	from := 0
	for i := 0; i < len(t.s); {
		c, n := utf8.DecodeRuneInString(t.s[i:])
		end := i + n
		switch c {
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		case '\r':
			if end < len(t.s) && t.s[end] == '\n' {
				end++
			}
		default:
			i = end
			continue
		}
		if keep {
			i = end
		}
		if err := out.add(t.slice(from, i)); err != nil {
			return nil, err
		}
		from, i = end, end
	}
	if from < len(t.s) {
		return out.list(t.slice(from, len(t.s)))
	}
	return out.list()
}

// replace puts with in place of each old, at most limit times when limit is not negative.
func (r *run) replace(t Text, old string, with Text, limit int) (Text, error) {
	b := builder{r: r}
	from, at := 0, 0
	for limit != 0 && at <= len(t.s) {
		i := strings.Index(t.s[at:], old)
		if i < 0 {
			break
		}
		i += at
		if err := b.text(t.slice(from, i)); err != nil {
			return Text{}, err
		}
		if err := b.text(with); err != nil {
			return Text{}, err
		}
		from, at = i+len(old), i+len(old)
		if old == "" { // between all characters
			_, n := utf8.DecodeRuneInString(t.s[i:])
			at = i + max(n, 1)
		}
		limit--
	}
	err := b.text(t.slice(min(from, len(t.s)), len(t.s)))
	return b.done(), err
}
