package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The filters for lists.

// copied returns the items of a value as a slice of its own.
func (r *run) copied(v Value) ([]Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	return slices.Clone(items), r.alloc(valueCost * len(items))
}

// path returns what an attribute such as "function.name" or "0" is of a value. nil is the value itself.
func (r *run) path(v, attribute Value) (Value, error) {
	switch a := attribute.(type) {
	case nil, None:
		return v, nil
	case Int:
		return r.index(v, a)
	case Text:
		for part := range strings.SplitSeq(a.s, ".") {
			if err := r.step(); err != nil {
				return nil, err
			}
			var key Value = Trusted(part)
			if n, err := strconv.Atoi(part); err == nil {
				key = Int(n)
			} else if strings.HasPrefix(part, "_") {
				return nil, fmt.Errorf("the attribute '%.40s' begins with an underscore", part)
			}
			var err error
			if v, err = r.index(v, key); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
	return nil, fmt.Errorf("an attribute is a string, not a %s", attribute.typeName())
}

// A keyed is an item with what it is compared by.
type keyed struct{ key, item Value }

// keys returns items with what they are compared by: an attribute of them, in lower case unless case matters.
func (r *run) keys(v, attribute Value, caseSensitive bool) ([]keyed, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if err := r.alloc(2 * valueCost * len(items)); err != nil {
		return nil, err
	}
	out := make([]keyed, len(items))
	for i, item := range items {
		key, err := r.path(item, attribute)
		if err != nil {
			return nil, err
		}
		if t, ok := key.(Text); ok && !caseSensitive {
			if key, err = r.lower(t); err != nil {
				return nil, err
			}
		}
		out[i] = keyed{key, item}
	}
	return out, nil
}

// sortStable sorts items stably by a comparison that can fail. Comparisons are steps.
func sortStable[T any](items []T, compare func(a, b T) (int, error)) error {
	var failed error
	slices.SortStableFunc(items, func(a, b T) int {
		if failed != nil {
			return 0
		}
		c, err := compare(a, b)
		failed = err
		return c
	})
	return failed
}

func listOf(all []keyed) *List {
	l := &List{items: make([]Value, len(all))}
	for i, k := range all {
		l.items[i] = k.item
	}
	return l
}

func sortFilter(r *run, v Value, a []Value) (Value, error) {
	all, err := r.keys(v, a[2], boolArg(a[1], false))
	if err != nil {
		return nil, err
	}
	direction := 1
	if boolArg(a[0], false) {
		direction = -1
	}
	err = sortStable(all, func(a, b keyed) (int, error) {
		c, err := r.order(a.key, b.key, 0)
		return direction * c % unordered, err
	})
	return listOf(all), err
}

func dictSort(r *run, v Value, a []Value) (Value, error) {
	m, ok := v.(*Map)
	if !ok {
		return nil, fmt.Errorf("dictsort wants a dict, not a %s", v.typeName())
	}
	by, err := textArg(a[1], Trusted("key"))
	if err != nil {
		return nil, err
	}
	column, ok := map[string]Value{"key": Int(0), "value": Int(1)}[by.s]
	if !ok {
		return nil, errors.New("dictsort is by key or by value")
	}
	pairs, err := r.pairs(m.entries)
	if err != nil {
		return nil, err
	}
	return sortFilter(r, pairs, []Value{Bool(boolArg(a[2], false)), Bool(boolArg(a[0], false)), column})
}

// extreme makes max and min.
func extreme(direction int) func(*run, Value, []Value) (Value, error) {
	return func(r *run, v Value, a []Value) (Value, error) {
		all, err := r.keys(v, a[1], boolArg(a[0], false))
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return undefined{"the list is empty"}, nil
		}
		best := all[0]
		for _, k := range all[1:] {
			c, err := r.order(k.key, best.key, 0)
			if err != nil {
				return nil, err
			}
			if c == direction {
				best = k
			}
		}
		return best.item, nil
	}
}

// unique keeps the first of equal items.
func unique(r *run, v Value, a []Value) (Value, error) {
	all, err := r.keys(v, a[1], boolArg(a[0], false))
	if err != nil {
		return nil, err
	}
	seen := make(map[mapKey]bool)
	out := collector{r: r}
	for _, k := range all {
		key, ok := keyOf(k.key)
		if !ok {
			return nil, fmt.Errorf("unique does not work on a %s", k.key.typeName())
		}
		if !seen[key] {
			seen[key] = true
			if err := out.add(k.item); err != nil {
				return nil, err
			}
		}
	}
	return out.list()
}

func groupBy(r *run, v Value, a []Value) (Value, error) {
	all, err := r.keys(v, a[0], boolArg(a[2], false))
	if err != nil {
		return nil, err
	}
	for i, k := range all {
		if _, missing := k.key.(undefined); missing && a[1] != nil {
			all[i].key = a[1]
		}
	}
	err = sortStable(all, func(a, b keyed) (int, error) { return r.order(a.key, b.key, 0) })
	if err != nil {
		return nil, err
	}
	groups := collector{r: r}
	for from := 0; from < len(all); {
		to := from + 1
		for to < len(all) {
			same, err := r.equal(all[from].key, all[to].key, 0)
			if err != nil {
				return nil, err
			}
			if !same {
				break
			}
			to++
		}
		// The group is named as its first item spells it.
		name, err := r.path(all[from].item, a[0])
		if err != nil {
			return nil, err
		}
		if _, missing := name.(undefined); missing {
			name = all[from].key
		}
		group := &List{items: []Value{name, listOf(all[from:to])}, tuple: true, fields: []string{"grouper", "list"}}
		if err := groups.add(group); err != nil {
			return nil, err
		}
		from = to
	}
	return groups.list()
}

func sum(r *run, v Value, a []Value) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	var total Value = Int(0)
	if a[1] != nil {
		total = a[1]
	}
	for _, item := range items {
		x, err := r.path(item, a[0])
		if err == nil {
			err = r.step()
		}
		if err == nil {
			total, err = r.binary("+", total, x)
		}
		if err != nil {
			return nil, err
		}
	}
	return total, nil
}

// join puts a string between items, which may be anything.
func join(r *run, v Value, a []Value) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	sep := Text{}
	if a[0] != nil {
		if sep, err = r.text(a[0]); err != nil {
			return nil, err
		}
	}
	b := builder{r: r}
	for i, item := range items {
		if item, err = r.path(item, a[1]); err == nil {
			err = r.step()
		}
		if err == nil && i > 0 {
			err = b.text(sep)
		}
		if err == nil {
			err = r.print(&b, item)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}

// batch cuts a list into lists of so many items.
func batch(r *run, v Value, a []Value) (Value, error) {
	n, err := intArg(a[0], 1)
	if err != nil {
		return nil, err
	}
	if n < 1 || n > maxRange {
		return nil, fmt.Errorf("batch wants a size of 1 to %d", maxRange)
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	out := collector{r: r}
	for from := 0; from < len(items); from += n {
		part := collector{r: r}
		for i := from; i < from+n; i++ {
			item := a[1]
			if i < len(items) {
				item = items[i]
			} else if item == nil || item == Value(None{}) {
				break
			}
			if err := part.add(item); err != nil {
				return nil, err
			}
		}
		if err := out.add(&List{items: part.items}); err != nil {
			return nil, err
		}
	}
	return out.list()
}

// sliceFilter cuts a list into so many lists of nearly equal length.
func sliceFilter(r *run, v Value, a []Value) (Value, error) {
	n, err := intArg(a[0], 1)
	if err != nil {
		return nil, err
	}
	if n < 1 || n > maxRange {
		return nil, fmt.Errorf("slice wants a number of 1 to %d", maxRange)
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	out := collector{r: r}
	each, extra := len(items)/n, len(items)%n
	from := 0
	for i := range n {
		to := from + each
		if i < extra {
			to++
		}
		part := collector{r: r}
		for _, item := range items[from:to] {
			if err := part.add(item); err != nil {
				return nil, err
			}
		}
		if a[1] != nil && i >= extra && extra > 0 {
			if err := part.add(a[1]); err != nil {
				return nil, err
			}
		}
		if err := out.add(&List{items: part.items}); err != nil {
			return nil, err
		}
		from = to
	}
	return out.list()
}

// mapFilter applies a filter to all items, or takes an attribute of them.
func mapFilter(r *run, v Value, a args) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	var f func(item Value) (Value, error)
	if len(a.list) == 0 {
		values, err := a.bind("map", "attribute! default")
		if err != nil {
			return nil, err
		}
		f = func(item Value) (Value, error) {
			x, err := r.path(item, values[0])
			if _, missing := x.(undefined); missing && values[1] != nil {
				x = values[1]
			}
			return x, err
		}
	} else {
		name, err := textArg(a.list[0], Text{})
		if err != nil {
			return nil, err
		}
		rest := args{list: a.list[1:], named: a.named}
		f = func(item Value) (Value, error) { return r.filter(name.s, item, rest) }
	}
	out := collector{r: r}
	for _, item := range items {
		x, err := f(item)
		if err == nil {
			err = r.step()
		}
		if err == nil {
			err = out.add(x)
		}
		if err != nil {
			return nil, err
		}
	}
	return out.list()
}

// selectItems makes select, reject, selectattr and rejectattr: the items of which a test is true, or not.
func selectItems(keep, attribute bool) func(*run, Value, args) (Value, error) {
	return func(r *run, v Value, a args) (Value, error) {
		items, err := r.items(v)
		if err != nil {
			return nil, err
		}
		var attr Value
		if attribute {
			if len(a.list) == 0 {
				return nil, errors.New("the attribute is missing")
			}
			attr, a.list = a.list[0], a.list[1:]
		}
		is := func(x Value) (bool, error) { return truth(x), nil }
		if len(a.list) > 0 {
			name, err := textArg(a.list[0], Text{})
			if err != nil {
				return nil, err
			}
			rest := args{list: a.list[1:], named: a.named}
			is = func(x Value) (bool, error) { return r.test(name.s, x, rest) }
		}
		out := collector{r: r}
		for _, item := range items {
			x, err := r.path(item, attr)
			if err == nil {
				err = r.step()
			}
			if err != nil {
				return nil, err
			}
			ok, err := is(x)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				if err := out.add(item); err != nil {
					return nil, err
				}
			}
		}
		return out.list()
	}
}
