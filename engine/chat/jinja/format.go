package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// How values look as text, after Python's str and repr.

// print appends a value as {{ }} prints it.
func (r *run) print(b *builder, v Value) error {
	switch v := v.(type) {
	case undefined:
		return nil
	case Text:
		return b.text(v)
	}
	return r.repr(b, v, 0)
}

// text returns a value as a string.
func (r *run) text(v Value) (Text, error) {
	if t, ok := v.(Text); ok {
		return t, nil
	}
	b := builder{r: r}
	err := r.print(&b, v)
	return b.done(), err
}

// repr appends a value as it looks inside a list.
func (r *run) repr(b *builder, v Value, depth int) error {
	if err := r.inside(depth); err != nil {
		return err
	}
	switch v := v.(type) {
	case undefined:
		return b.own("Undefined")
	case None:
		return b.own("None")
	case Bool:
		if v {
			return b.own("True")
		}
		return b.own("False")
	case Int:
		return b.own(strconv.FormatInt(int64(v), 10))
	case Big:
		return b.own(v.n.String())
	case Float:
		return b.own(formatFloat(float64(v), "inf", "nan"))
	case Text:
		return r.quote(b, v)
	case *List:
		return r.reprList(b, v, depth)
	case *Map:
		return r.reprMap(b, v, depth)
	case *namespace:
		if err := b.own("<Namespace "); err != nil {
			return err
		}
		if err := r.reprMap(b, v.attrs, depth); err != nil {
			return err
		}
		return b.own(">")
	case *macro:
		return b.own("<Macro '" + v.name + "'>")
	case *function:
		return b.own("<function " + v.name + ">")
	}
	return b.own("<" + v.typeName() + ">")
}

func (r *run) reprList(b *builder, l *List, depth int) error {
	open, end := "[", "]"
	if l.tuple {
		open, end = "(", ")"
		if len(l.items) == 1 {
			end = ",)"
		}
	}
	if err := b.own(open); err != nil {
		return err
	}
	for i, item := range l.items {
		if i > 0 {
			if err := b.own(", "); err != nil {
				return err
			}
		}
		if err := r.repr(b, item, depth+1); err != nil {
			return err
		}
	}
	return b.own(end)
}

func (r *run) reprMap(b *builder, m *Map, depth int) error {
	if err := b.own("{"); err != nil {
		return err
	}
	for i, e := range m.entries {
		if i > 0 {
			if err := b.own(", "); err != nil {
				return err
			}
		}
		if err := r.repr(b, e.key, depth+1); err != nil {
			return err
		}
		if err := b.own(": "); err != nil {
			return err
		}
		if err := r.repr(b, e.value, depth+1); err != nil {
			return err
		}
	}
	return b.own("}")
}

// quote appends a string literal: in single quotes unless only double ones save an escape.
func (r *run) quote(b *builder, t Text) error {
	q := "'"
	if strings.Contains(t.s, "'") && !strings.Contains(t.s, `"`) {
		q = `"`
	}
	if err := b.own(q); err != nil {
		return err
	}
	quoted, err := r.mapRunes(t, func(c rune) string {
		switch {
		case c == rune(q[0]):
			return `\` + q
		case c == '\\':
			return `\\`
		case c == '\n':
			return `\n`
		case c == '\r':
			return `\r`
		case c == '\t':
			return `\t`
		case unicode.IsPrint(c):
			return string(c)
		case c < 0x100:
			return fmt.Sprintf(`\x%02x`, c)
		case c < 0x10000:
			return fmt.Sprintf(`\u%04x`, c)
		}
		return fmt.Sprintf(`\U%08x`, c)
	})
	if err != nil {
		return err
	}
	if err := b.text(quoted); err != nil {
		return err
	}
	return b.own(q)
}

// formatFloat writes a number as Python's repr: the shortest digits that mean it, with an exponent below 1e-4 and from 1e16 on.
func formatFloat(f float64, inf, nan string) string {
	switch {
	case math.IsNaN(f):
		return nan
	case math.IsInf(f, 1):
		return inf
	case math.IsInf(f, -1):
		return "-" + inf
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// percent applies the operator % to a format: %s, %r, %d, %i, %f, %x and the like, with flags, width and precision.
func (r *run) percent(format Text, v Value) (Value, error) {
	values := []Value{v}
	if l, ok := v.(*List); ok && l.tuple {
		values = l.items
	}
	named, _ := v.(*Map)
	used := 0
	b := builder{r: r}
	for at := 0; ; {
		i := strings.IndexByte(format.s[at:], '%')
		if i < 0 {
			if named == nil && used < len(values) {
				return nil, errors.New("more values than the format takes")
			}
			err := b.text(format.slice(at, len(format.s)))
			return b.done(), err
		}
		if err := b.text(format.slice(at, at+i)); err != nil {
			return nil, err
		}
		d, n, err := readDirective(format.s[at+i+1:])
		if err != nil {
			return nil, err
		}
		at += i + 1 + n
		if d.verb == '%' {
			if err := b.own("%"); err != nil {
				return nil, err
			}
			continue
		}
		var arg Value
		switch {
		case d.key != "":
			ok := false
			if named != nil {
				arg, ok = named.Get(d.key)
			}
			if !ok {
				return nil, fmt.Errorf("the format wants a key %.40q", d.key)
			}
		case used == len(values):
			return nil, errors.New("fewer values than the format takes")
		default:
			arg = values[used]
			used++
		}
		if err := r.directive(&b, d, arg); err != nil {
			return nil, err
		}
	}
}

// A directive is what follows a % in a format.
type directive struct {
	key, flags       string
	width, precision int // -1 for none
	verb             byte
}

// maxWidth bounds what a format can pad to.
const maxWidth = 1000

func readDirective(s string) (d directive, n int, err error) {
	bad := errors.New("the format is not supported or not complete")
	d.precision = -1
	if strings.HasPrefix(s, "(") {
		end := strings.IndexByte(s, ')')
		if end < 0 {
			return d, 0, bad
		}
		d.key, n = s[1:end], end+1
	}
	for n < len(s) && strings.IndexByte("-+ 0#", s[n]) >= 0 {
		d.flags += s[n : n+1]
		if n++; len(d.flags) > 8 {
			return d, 0, bad
		}
	}
	number := func() int {
		k := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' && k <= maxWidth {
			k = k*10 + int(s[n]-'0')
			n++
		}
		return k
	}
	d.width = number()
	if n < len(s) && s[n] == '.' {
		n++
		d.precision = number()
	}
	if n == len(s) || d.width > maxWidth || d.precision > maxWidth || strings.IndexByte("srdifFeEgGxXoc%", s[n]) < 0 {
		return d, 0, bad
	}
	d.verb = s[n]
	return d, n + 1, nil
}

// directive appends a value as a directive says.
func (r *run) directive(b *builder, d directive, v Value) error {
	var t Text
	var err error
	switch d.verb {
	case 's':
		t, err = r.text(v)
	case 'r':
		q := builder{r: r}
		err = r.repr(&q, v, 0)
		t = q.done()
	default:
		var s string
		s, err = d.number(v)
		t = Text{s: s}
	}
	if err != nil {
		return err
	}
	length, err := r.length(t)
	if err != nil {
		return err
	}
	if (d.verb == 's' || d.verb == 'r') && d.precision >= 0 && d.precision < length {
		t, length = t.slice(0, offset(t.s, d.precision)), d.precision
	}
	pad := strings.Repeat(" ", max(d.width-length, 0))
	left := strings.Contains(d.flags, "-")
	if !left {
		if err := b.own(pad); err != nil {
			return err
		}
	}
	if err := b.text(t); err != nil {
		return err
	}
	if left {
		return b.own(pad)
	}
	return nil
}

// number formats a number through package fmt, whose directives for numbers are those of Python.
func (d *directive) number(v Value) (string, error) {
	format := "%" + d.flags
	if d.width > 0 {
		format += strconv.Itoa(d.width)
	}
	switch d.verb {
	case 'd', 'i', 'x', 'X', 'o', 'c':
		i, ok := whole(v)
		if f, isFloat := v.(Float); isFloat && d.verb != 'c' && math.Abs(float64(f)) < 1<<62 {
			i, ok = int64(f), true
		}
		if !ok {
			return "", fmt.Errorf("the format %%%c wants a whole number, not a %s", d.verb, v.typeName())
		}
		verb := d.verb
		if verb == 'i' {
			verb = 'd'
		}
		return fmt.Sprintf(format+string(verb), i), nil
	}
	f, ok := float(v)
	if !ok {
		return "", fmt.Errorf("the format %%%c wants a number, not a %s", d.verb, v.typeName())
	}
	if d.precision < 0 {
		d.precision = 6
	}
	return fmt.Sprintf(format+"."+strconv.Itoa(d.precision)+string(d.verb), f), nil
}

// braces is the method "format" of a string: {}, {0} and {name}.
func (r *run) braces(format Text, a args) (Value, error) {
	b := builder{r: r}
	used := 0
	for at := 0; at < len(format.s); {
		i := strings.IndexAny(format.s[at:], "{}")
		if i < 0 {
			i = len(format.s) - at
		}
		if err := b.text(format.slice(at, at+i)); err != nil {
			return nil, err
		}
		if at += i; at == len(format.s) {
			break
		}
		if two := format.s[at:min(at+2, len(format.s))]; two == "{{" || two == "}}" {
			if err := b.text(format.slice(at, at+1)); err != nil {
				return nil, err
			}
			at += 2
			continue
		}
		end := strings.IndexByte(format.s[at:], '}')
		if format.s[at] == '}' || end < 0 {
			return nil, errors.New("a brace in the format stands alone")
		}
		field := format.s[at+1 : at+end]
		at += end + 1
		var v Value
		if n, err := strconv.Atoi(field); field == "" || err == nil {
			if field == "" {
				n, used = used, used+1
			}
			if n >= 0 && n < len(a.list) {
				v = a.list[n]
			}
		} else {
			for _, arg := range a.named {
				if arg.name == field {
					v = arg.value
				}
			}
		}
		if v == nil {
			return nil, fmt.Errorf("the format field {%.40s} has no value or is not supported", field)
		}
		if err := r.print(&b, v); err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}
