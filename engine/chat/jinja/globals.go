package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// globals are the functions that every template sees.
var globals = map[string]Value{
	"cycler": global("cycler", cycler),
	"dict": global("dict", func(r *run, a args) (Value, error) {
		return r.entries("dict", a)
	}),
	"joiner": global("joiner", joiner),
	"namespace": global("namespace", func(r *run, a args) (Value, error) {
		m, err := r.entries("namespace", a)
		return &namespace{m}, err
	}),
	"raise_exception": global("raise_exception", func(r *run, a args) (Value, error) {
		values, err := a.bind("raise_exception", "message!")
		if err != nil {
			return nil, err
		}
		t, err := r.text(values[0])
		if err != nil {
			return nil, err
		}
		return nil, &RaisedError{t.s}
	}),
	"range": global("range", rangeOf),
	"strftime_now": global("strftime_now", func(r *run, a args) (Value, error) {
		values, err := a.bind("strftime_now", "format!")
		if err != nil {
			return nil, err
		}
		format, err := textArg(values[0], Text{})
		if err != nil {
			return nil, err
		}
		if len(format.s) > maxWidth {
			return nil, &LimitError{"bytes of a date format", maxWidth}
		}
		b := builder{r: r}
		err = b.add(strftime(format.s, r.template.now()), format.first || len(format.flips) > 0)
		return b.done(), err
	}),
}

func global(name string, call func(r *run, a args) (Value, error)) Value {
	return &function{name, call}
}

// entries makes a map of named arguments, after those of a dictionary or a list of pairs.
func (r *run) entries(of string, a args) (*Map, error) {
	m := NewMap()
	if len(a.list) > 1 {
		return nil, fmt.Errorf("%s takes one dictionary and named values", of)
	}
	if len(a.list) == 1 {
		source := a.list[0]
		if from, ok := source.(*Map); ok {
			pairs, err := r.pairs(from.entries)
			if err != nil {
				return nil, err
			}
			source = pairs
		}
		items, err := r.items(source)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			pair, err := r.items(item)
			if err != nil {
				return nil, err
			}
			if len(pair) != 2 {
				return nil, fmt.Errorf("%s wants pairs, not %d values", of, len(pair))
			}
			if err := r.set(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for _, n := range a.named {
		if err := r.set(m, Trusted(n.name), n.value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func rangeOf(r *run, a args) (Value, error) {
	var n [3]int
	if len(a.list) < 1 || len(a.list) > 3 || len(a.named) > 0 {
		return nil, errors.New("range takes one to three whole numbers")
	}
	for i, v := range a.list {
		var err error
		if n[i], err = intArg(v, 0); err != nil {
			return nil, err
		}
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(a.list) {
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return nil, errors.New("the step of a range is zero")
	}
	out := collector{r: r}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; {
		if len(out.items) == maxRange {
			return nil, &LimitError{"items of a range", maxRange}
		}
		if err := out.add(Int(i)); err != nil {
			return nil, err
		}
		next := i + step
		if (next > i) != (step > 0) {
			break // past the largest or smallest number
		}
		i = next
	}
	return out.list()
}

// cycler gives its arguments in turn, over and over.
func cycler(_ *run, a args) (Value, error) {
	if len(a.list) == 0 || len(a.named) > 0 {
		return nil, errors.New("nothing to cycle through")
	}
	i := 0
	current := func() Value { return a.list[i] }
	return &object{
		name: "Cycler",
		attr: func(name string) (Value, bool) { return current(), name == "current" },
		methods: map[string]func(*run, args) (Value, error){
			"next": func(*run, args) (Value, error) {
				v := current()
				i = (i + 1) % len(a.list)
				return v, nil
			},
			"reset": func(*run, args) (Value, error) {
				i = 0
				return None{}, nil
			},
		},
	}, nil
}

// joiner gives nothing the first time and a separator from then on.
func joiner(_ *run, a args) (Value, error) {
	values, err := a.bind("joiner", "sep")
	if err != nil {
		return nil, err
	}
	sep, err := textArg(values[0], Trusted(", "))
	used := false
	return &object{name: "Joiner", call: func(*run, args) (Value, error) {
		if !used {
			used = true
			return Text{}, nil
		}
		return sep, nil
	}}, err
}

// strftimeForms are the directives of strftime as layouts of package time.
var strftimeForms = map[byte]string{
	'A': "Monday", 'a': "Mon", 'B': "January", 'b': "Jan", 'c': "Mon Jan _2 15:04:05 2006", 'D': "01/02/06", 'd': "02", 'e': "_2", 'F': "2006-01-02",
	'H': "15", 'h': "Jan", 'I': "03", 'M': "04", 'm': "01", 'p': "PM", 'R': "15:04", 'r': "03:04:05 PM", 'S': "05", 'T': "15:04:05", 'X': "15:04:05",
	'x': "01/02/06", 'Y': "2006", 'y': "06", 'Z': "MST", 'z': "-0700",
}

// strftime formats a time as C's function does in the locale "C". A directive that is not known stays as it is.
func strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format) // without leading zeros
		if bare {
			i++
		}
		s := "%" + format[i:i+1]
		switch c := format[i]; c {
		case '%':
			s = "%"
		case 'j':
			s = fmt.Sprintf("%03d", t.YearDay())
		case 'f':
			s = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case 's':
			s = fmt.Sprint(t.Unix())
		case 'u':
			s = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case 'w':
			s = fmt.Sprint(int(t.Weekday()))
		default:
			if layout, ok := strftimeForms[c]; ok {
				s = t.Format(layout)
			}
		}
		if bare {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

// IsGlobal reports whether there is a global function of that name, which a variable would hide.
func IsGlobal(name string) bool { return globals[name] != nil }
