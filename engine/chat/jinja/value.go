package jinja

import (
	"iter"
	"math/big"
	"slices"
	"strconv"
)

// A Value is what a template works with: a [Text], [Bool], [Int], [Float], [Big] or [None], a [*List] or a [*Map], or something
// that only a template makes (undefined, namespace, macro, loop). Values do not change once made, except for namespaces,
// and for maps before they are handed to Render.
type Value interface {
	// typeName is the type as Python's error messages name it.
	typeName() string
}

type (
	// None is Python's None and JSON's null.
	None struct{}
	Bool bool
	Int  int64
	// Float follows Python's: 2.0 prints as "2.0", 1e21 as "1e+21".
	Float float64
	// Big is a whole number outside of Int. It can be printed and compared but not calculated with.
	Big struct{ n *big.Int }

	// undefined is the value of a name or attribute that does not exist.
	undefined struct{ what string }
)

// A List is a list or a tuple.
type List struct {
	items  []Value
	tuple  bool
	fields []string // names of a tuple's items, if they have any
}

// NewList returns a list of values.
func NewList(items ...Value) *List { return &List{items: items} }

// Len returns the number of items.
func (l *List) Len() int { return len(l.items) }

// At returns an item.
func (l *List) At(i int) Value { return l.items[i] }

// All iterates over the items.
func (l *List) All() iter.Seq2[int, Value] { return slices.All(l.items) }

// A Map is a dictionary that keeps the order in which its keys were set.
type Map struct {
	entries []entry
	index   map[mapKey]int // nil while there are few
}

type entry struct{ key, value Value }

// A mapKey is what makes two keys the same: 1, 1.0 and True are, as in Python.
type mapKey struct {
	kind byte
	text string
	num  float64
}

// smallMap is up to how many entries a map is searched through without an index.
const smallMap = 8

// NewMap returns an empty map.
func NewMap() *Map { return &Map{} }

// Len returns the number of entries.
func (m *Map) Len() int { return len(m.entries) }

// Get returns the value of a text key.
func (m *Map) Get(key string) (Value, bool) { return m.get(mapKey{kind: 's', text: key}) }

// Set sets the value of a key, in the place of an earlier one.
func (m *Map) Set(key Text, v Value) { m.set(mapKey{kind: 's', text: key.s}, key, v) }

// All iterates over the entries whose keys are text.
func (m *Map) All() iter.Seq2[Text, Value] {
	return func(yield func(Text, Value) bool) {
		for _, e := range m.entries {
			if k, ok := e.key.(Text); ok && !yield(k, e.value) {
				return
			}
		}
	}
}

func (m *Map) find(k mapKey) (int, bool) {
	if m.index != nil {
		i, ok := m.index[k]
		return i, ok
	}
	for i, e := range m.entries {
		if t, ok := e.key.(Text); ok {
			if k.kind == 's' && k.text == t.s {
				return i, true
			}
		} else if other, _ := keyOf(e.key); other == k {
			return i, true
		}
	}
	return 0, false
}

func (m *Map) get(k mapKey) (Value, bool) {
	if i, ok := m.find(k); ok {
		return m.entries[i].value, true
	}
	return nil, false
}

func (m *Map) set(k mapKey, key, v Value) {
	if i, ok := m.find(k); ok {
		m.entries[i].value = v
		return
	}
	m.entries = append(m.entries, entry{key, v})
	if m.index != nil {
		m.index[k] = len(m.entries) - 1
	} else if len(m.entries) > smallMap {
		m.index = make(map[mapKey]int, 2*len(m.entries))
		for i, e := range m.entries {
			k, _ := keyOf(e.key)
			m.index[k] = i
		}
	}
}

// keyOf returns the key that a value stands for in a map; not every value can be one.
func keyOf(v Value) (mapKey, bool) {
	switch v := v.(type) {
	case Text:
		return mapKey{kind: 's', text: v.s}, true
	case None:
		return mapKey{kind: 'n'}, true
	case Bool:
		if v {
			return mapKey{kind: 'f', num: 1}, true
		}
		return mapKey{kind: 'f'}, true
	case Int:
		if f := float64(v); v > -1<<53 && v < 1<<53 {
			return mapKey{kind: 'f', num: f}, true
		}
		return mapKey{kind: 'i', text: strconv.FormatInt(int64(v), 10)}, true
	case Float:
		return mapKey{kind: 'f', num: float64(v)}, true
	case Big:
		return mapKey{kind: 'b', text: v.n.Text(16)}, true // base 16 takes linear time
	}
	return mapKey{}, false
}

// A namespace is the one value whose attributes a template can set.
type namespace struct{ attrs *Map }

// A function is a global function, a method bound to its value, or a macro's caller.
type function struct {
	name string
	call func(r *run, a args) (Value, error)
}

// An object is a value with state and methods of its own: a cycler, a joiner.
type object struct {
	name    string
	methods map[string]func(r *run, a args) (Value, error)
	attr    func(name string) (Value, bool) // may be nil
	call    func(r *run, a args) (Value, error)
}

func (None) typeName() string       { return "NoneType" }
func (Bool) typeName() string       { return "bool" }
func (Int) typeName() string        { return "int" }
func (Big) typeName() string        { return "int" }
func (Float) typeName() string      { return "float" }
func (Text) typeName() string       { return "str" }
func (undefined) typeName() string  { return "Undefined" }
func (*Map) typeName() string       { return "dict" }
func (*namespace) typeName() string { return "Namespace" }
func (*function) typeName() string  { return "function" }
func (*macro) typeName() string     { return "Macro" }
func (*loop) typeName() string      { return "LoopContext" }
func (o *object) typeName() string  { return o.name }

func (l *List) typeName() string {
	if l.tuple {
		return "tuple"
	}
	return "list"
}

// Size returns about how many bytes a value is as JSON, for [LimitsFor]. It must not contain itself.
func Size(v Value) int {
	const each = 16
	switch v := v.(type) {
	case Text:
		return each + len(v.s)
	case *List:
		n := each
		for _, item := range v.items {
			n += Size(item)
		}
		return n
	case *Map:
		n := each
		for _, e := range v.entries {
			n += Size(e.key) + Size(e.value)
		}
		return n
	}
	return each
}

// truth is what a value counts for in a condition.
func truth(v Value) bool {
	switch v := v.(type) {
	case undefined, None:
		return false
	case Bool:
		return bool(v)
	case Int:
		return v != 0
	case Float:
		return v != 0
	case Text:
		return v.s != ""
	case *List:
		return len(v.items) > 0
	case *Map:
		return len(v.entries) > 0
	case *loop:
		return len(v.items) > 0
	}
	return true
}
