package jinja

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// items returns what a loop over a value sees: items, keys, characters. They must not be changed.
func (r *run) items(v Value) ([]Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.items, nil
	case *Map:
		keys := collector{r: r}
		for _, e := range v.entries {
			if err := keys.add(e.key); err != nil {
				return nil, err
			}
		}
		return keys.items, nil
	case Text:
		chars := collector{r: r}
		for i, c := range v.s {
			if err := chars.add(v.slice(i, i+utf8.RuneLen(c))); err != nil {
				return nil, err
			}
		}
		return chars.items, nil
	}
	return nil, fmt.Errorf("a %s is not a list", v.typeName())
}

// length returns the number of characters, items or entries.
func (r *run) length(v Value) (int, error) {
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case Text:
		return utf8.RuneCountInString(v.s), r.looked(len(v.s))
	case *List:
		return len(v.items), nil
	case *Map:
		return len(v.entries), nil
	case *loop:
		return len(v.items), nil
	}
	return 0, fmt.Errorf("a %s has no length", v.typeName())
}

// offset returns where the character n of a text begins.
func offset(s string, n int) int {
	if n >= len(s) {
		return len(s)
	}
	i := 0
	for ; i < len(s); i++ {
		if utf8.RuneStart(s[i]) {
			if n == 0 {
				break
			}
			n--
		}
	}
	return i
}

// index returns v[i]. What is not there is undefined.
func (r *run) index(v, i Value) (Value, error) {
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	n, isNumber := whole(i)
	switch v := v.(type) {
	case *Map:
		if k, ok := keyOf(i); ok {
			if item, ok := v.get(k); ok {
				return item, nil
			}
		}
	case *List:
		if isNumber {
			if n < 0 {
				n += int64(len(v.items))
			}
			if n >= 0 && n < int64(len(v.items)) {
				return v.items[n], nil
			}
			return undefined{fmt.Sprintf("the list has no item %d", n)}, nil
		}
	case Text:
		if isNumber {
			length, err := r.length(v)
			if err != nil {
				return nil, err
			}
			if n < 0 {
				n += int64(length)
			}
			if n < 0 || n >= int64(length) {
				return undefined{fmt.Sprintf("the string has no character %d", n)}, nil
			}
			if err := r.looked(len(v.s)); err != nil {
				return nil, err
			}
			from := offset(v.s, int(n))
			return v.slice(from, from+offset(v.s[from:], 1)), nil
		}
	}
	if name, ok := i.(Text); ok {
		return r.attribute(v, name.s), nil
	}
	return undefined{fmt.Sprintf("a %s has nothing at a %s", v.typeName(), i.typeName())}, nil
}

// slice returns v[start:stop:step].
func (r *run) slice(v Value, bounds [3]*int) (Value, error) {
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	n, err := 0, error(nil)
	switch v := v.(type) {
	case Text, *List:
		n, err = r.length(v)
	default:
		return nil, fmt.Errorf("a %s cannot be sliced", v.typeName())
	}
	if err != nil {
		return nil, err
	}
	step := 1
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, errors.New("the step of a slice is zero")
	}
	step = max(min(step, n+1), -n-1)
	lowest, highest := 0, n // of a bound
	if step < 0 {
		lowest, highest = -1, n-1
	}
	bound := func(b *int, otherwise int) int {
		if b == nil {
			return otherwise
		}
		i := *b
		if i < 0 {
			i += n
		}
		return max(min(i, highest), lowest)
	}
	start, stop := bound(bounds[0], lowest), bound(bounds[1], highest)
	if step < 0 {
		start, stop = bound(bounds[0], highest), bound(bounds[1], lowest)
	}
	if t, ok := v.(Text); ok {
		return r.sliceText(t, start, stop, step)
	}
	out := collector{r: r}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if err := out.add(v.(*List).items[i]); err != nil {
			return nil, err
		}
	}
	return &List{items: out.items, tuple: v.(*List).tuple}, nil
}

func (r *run) sliceText(t Text, start, stop, step int) (Value, error) {
	if step == 1 {
		if start >= stop {
			return Text{}, nil
		}
		if err := r.looked(len(t.s)); err != nil {
			return nil, err
		}
		from := offset(t.s, start)
		return t.slice(from, from+offset(t.s[from:], stop-start)), nil
	}
	chars, err := r.items(t)
	if err != nil {
		return nil, err
	}
	b := builder{r: r}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if err := b.text(chars[i].(Text)); err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}
