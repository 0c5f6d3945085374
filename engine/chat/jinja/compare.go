package jinja

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// compare applies a comparison.
func (r *run) compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==", "!=":
		same, err := r.equal(a, b, 0)
		return same == (op == "=="), err
	case "in", "not in":
		in, err := r.contains(b, a)
		return in == (op == "in"), err
	}
	c, err := r.order(a, b, 0)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0 && c != unordered, nil
	case ">":
		return c > 0 && c != unordered, nil
	}
	return c >= 0 && c != unordered, nil
}

// inside checks how deep a walk through values has come, and counts it as a step.
func (r *run) inside(depth int) error {
	if depth > maxDepth {
		return &LimitError{"levels of values inside each other", maxDepth}
	}
	return r.step()
}

// equal reports whether two values are the same.
func (r *run) equal(a, b Value, depth int) (bool, error) {
	if err := r.inside(depth); err != nil {
		return false, err
	}
	if x, ok := a.(Big); ok {
		y, ok := b.(Big)
		return ok && x.n.Cmp(y.n) == 0, nil
	}
	if x, ok := whole(a); ok {
		if y, ok := whole(b); ok {
			return x == y, nil
		}
	}
	if f, ok := float(a); ok {
		g, ok := float(b)
		return ok && f == g, nil
	}
	switch a := a.(type) {
	case None:
		_, ok := b.(None)
		return ok, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case Text:
		b, ok := b.(Text)
		if !ok {
			return false, nil
		}
		return a.s == b.s, r.looked(min(len(a.s), len(b.s)))
	case *List:
		b, ok := b.(*List)
		if !ok || a.tuple != b.tuple || len(a.items) != len(b.items) {
			return false, nil
		}
		for i := range a.items {
			if same, err := r.equal(a.items[i], b.items[i], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case *Map:
		b, ok := b.(*Map)
		if !ok || len(a.entries) != len(b.entries) {
			return false, nil
		}
		for _, e := range a.entries {
			k, _ := keyOf(e.key)
			other, ok := b.get(k)
			if !ok {
				return false, nil
			}
			if same, err := r.equal(e.value, other, depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	return a == b, nil // namespaces, macros and the like are only equal to themselves
}

// unordered is what order returns for numbers that are not a number.
const unordered = 2

// order compares two values: -1, 0, 1 or unordered.
func (r *run) order(a, b Value, depth int) (int, error) {
	if err := r.inside(depth); err != nil {
		return 0, err
	}
	if err := isUndefined(a, b); err != nil {
		return 0, err
	}
	if x, ok := whole(a); ok {
		if y, ok := whole(b); ok {
			return cmp.Compare(x, y), nil
		}
	}
	if x, ok := a.(Big); ok {
		if y, ok := b.(Big); ok {
			return x.n.Cmp(y.n), nil
		}
	}
	if f, ok := float(a); ok {
		if g, ok := float(b); ok {
			if math.IsNaN(f) || math.IsNaN(g) {
				return unordered, nil
			}
			return cmp.Compare(f, g), nil
		}
	}
	if x, ok := a.(Text); ok {
		if y, ok := b.(Text); ok {
			return strings.Compare(x.s, y.s), r.looked(min(len(x.s), len(y.s)))
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			for i := range min(len(x.items), len(y.items)) {
				same, err := r.equal(x.items[i], y.items[i], depth+1)
				if err != nil {
					return 0, err
				}
				if !same {
					return r.order(x.items[i], y.items[i], depth+1)
				}
			}
			return cmp.Compare(len(x.items), len(y.items)), nil
		}
	}
	return 0, fmt.Errorf("%s and %s have no order", a.typeName(), b.typeName())
}

// contains reports whether a value is in another: a part of a string, an item of a list, a key of a map.
func (r *run) contains(in, v Value) (bool, error) {
	switch in := in.(type) {
	case Text:
		t, ok := v.(Text)
		if !ok {
			return false, fmt.Errorf("only a str can be in a str, not a %s", v.typeName())
		}
		return strings.Contains(in.s, t.s), r.looked(len(in.s))
	case *Map:
		k, ok := keyOf(v)
		if !ok {
			if err := isUndefined(v); err != nil {
				return false, nil
			}
			return false, fmt.Errorf("a %s cannot be a key", v.typeName())
		}
		_, ok = in.get(k)
		return ok, nil
	}
	items, err := r.items(in)
	if err != nil {
		return false, err
	}
	for _, item := range items {
		if same, err := r.equal(item, v, 0); same || err != nil {
			return same, err
		}
	}
	return false, nil
}
