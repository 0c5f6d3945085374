package schema

import (
	"slices"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/pattern"
)

// maxProperties bounds the properties of one object. Each that can be left out is a way to go on.
const maxProperties = 400

// A property is one of an object, with the schemas that its value must fulfil.
type property struct {
	name     string
	items    []item
	required bool
}

// An objectShape is what schemas say together about an object.
type objectShape struct {
	properties []property
	// open tells whether there may be others, which must fulfil extra.
	open  bool
	extra []item
	names []string // that others may not have
}

// shape joins what schemas say about an object. A schema that names a property rules its value; one that does not
// does so by its additionalProperties.
func (c *compiler) shape(schemas []*value) objectShape {
	var s objectShape
	index := map[string]int{}
	add := func(name string) int {
		i, ok := index[name]
		if !ok {
			i = len(s.properties)
			index[name] = i
			s.properties = append(s.properties, property{name: name})
			s.names = append(s.names, name)
		}
		return i
	}
	ruled, named := false, false // by an additionalProperties, a properties
	for _, v := range schemas {
		if p := v.get("properties"); p != nil {
			named = true
			for _, f := range p.fields {
				add(f.name)
			}
		}
		if extra := v.get("additionalProperties"); extra != nil {
			ruled = true
			s.extra = append(s.extra, item{v: extra})
		}
	}
	for _, v := range schemas {
		if list := v.get("required"); list != nil {
			for _, name := range list.items {
				s.properties[add(name.text)].required = true
			}
		}
	}
	for i := range s.properties {
		p := &s.properties[i]
		for _, v := range schemas {
			if all := v.get("properties"); all != nil && all.get(p.name) != nil {
				p.items = append(p.items, item{v: all.get(p.name)})
			} else if extra := v.get("additionalProperties"); extra != nil {
				p.items = append(p.items, item{v: extra})
			}
		}
	}
	s.open = ruled || !named || c.opts.Open
	if len(s.properties) > maxProperties {
		c.err = &Error{Pointer: schemas[0].pointer(), Keyword: "properties",
			Err: &grammar.LimitError{What: "properties of an object", Limit: maxProperties}}
	}
	return s
}

// value returns the expression of a set of schemas, any value when there is none.
func (c *compiler) value(items []item) grammar.Expr {
	if len(items) == 0 {
		return c.any()
	}
	return c.set(items, false)
}

// object returns the objects that schemas allow. Once a property has been written, each of the rules "rest" goes on
// with those from one on; before, the first to be written is chosen.
func (c *compiler) object(schemas []*value) grammar.Expr {
	if len(schemas) == 0 {
		if e, ok := c.shared["any object"]; ok {
			return e
		}
	}
	r := c.b.Rule("object")
	c.b.Nested(r)
	if len(schemas) == 0 {
		c.shared["any object"] = grammar.Ref(r)
	}
	s := c.shape(schemas)
	if c.err != nil {
		return grammar.Never()
	}
	end := grammar.Lit("}")
	var extra grammar.Expr
	if s.open {
		extra = grammar.Seq(c.key(s.names), c.colon, c.value(s.extra))
		end = grammar.Seq(grammar.Repeat(grammar.Seq(c.separator, extra), 0, grammar.Unbounded), c.ws, end)
	} else {
		end = grammar.Seq(c.ws, end)
	}
	rest := c.b.New("end of object", end)
	first := grammar.Lit("}")
	if s.open {
		first = grammar.Alt(grammar.Seq(extra, rest), first)
	}
	for _, p := range slices.Backward(s.properties) {
		pair := grammar.Seq(grammar.Lit(quote(p.name)), c.colon, c.value(p.items))
		begin := grammar.Seq(pair, rest)
		more := grammar.Seq(c.separator, pair)
		if p.required {
			first = begin
		} else {
			first = c.b.New("first property", grammar.Alt(begin, first))
			more = grammar.Opt(more)
		}
		rest = c.b.New("properties", grammar.Seq(more, rest))
	}
	c.b.Define(r, grammar.Seq(grammar.Lit("{"), c.ws, first))
	return grammar.Ref(r)
}

// key returns the JSON strings that are none of some names. With names they are written with the fewest escapes, so
// that no name can be written in another way.
func (c *compiler) key(names []string) grammar.Expr {
	if len(names) == 0 {
		return c.string(&leaf{maxLength: grammar.Unbounded})
	}
	quote := grammar.Lit(`"`)
	return grammar.Seq(quote, c.otherThan(names, pattern.JSON, grammar.AnyRune), quote)
}

// otherThan returns the strings of some characters that are none of some names.
func (c *compiler) otherThan(names []string, encode pattern.Encoder, of []grammar.RuneRange) grammar.Expr {
	tail := c.b.New("any characters", grammar.Repeat(encode(of), 0, grammar.Unbounded))
	lists := make([][]rune, len(names))
	for i, n := range names {
		lists[i] = []rune(n)
	}
	return c.differ(lists, encode, of, tail)
}

// differ returns the strings that are none of a list. It follows the names as far as they go: a string differs at a
// character that none of them has there, or ends where none does.
func (c *compiler) differ(names [][]rune, encode pattern.Encoder, of []grammar.RuneRange, tail grammar.Expr) grammar.Expr {
	next := map[rune][][]rune{}
	var order []rune
	ends := false
	for _, n := range names {
		if len(n) == 0 {
			ends = true
			continue
		}
		if next[n[0]] == nil {
			order = append(order, n[0])
		}
		next[n[0]] = append(next[n[0]], n[1:])
	}
	var alts []grammar.Expr
	var taken []grammar.RuneRange
	for _, r := range order {
		one := []grammar.RuneRange{{Lo: r, Hi: r}}
		taken = append(taken, one...)
		alts = append(alts, grammar.Seq(encode(one), c.differ(next[r], encode, of, tail)))
	}
	alts = append(alts, grammar.Seq(encode(grammar.Intersect(of, grammar.Complement(taken))), tail))
	if !ends {
		alts = append(alts, grammar.Expr{})
	}
	return c.b.New("another name", grammar.Alt(alts...))
}

// array returns the arrays of a leaf.
func (c *compiler) array(l *leaf) grammar.Expr {
	plain := len(l.arrays) == 0
	if plain {
		if e, ok := c.shared["any array"]; ok {
			return e
		}
	}
	r := c.b.Rule("array")
	c.b.Nested(r)
	if plain {
		c.shared["any array"] = grammar.Ref(r)
	}
	if l.maxItems != grammar.Unbounded && l.maxItems < l.minItems {
		return grammar.Never()
	}
	// The schemas of the places that are named, and of all after them.
	named := 0
	var others []item
	for _, v := range l.arrays {
		if p := v.get("prefixItems"); p != nil {
			named = max(named, len(p.items))
		}
		if i := v.get("items"); i != nil {
			others = append(others, item{v: i})
		}
	}
	if named > maxProperties {
		c.err = &Error{Pointer: l.arrays[0].pointer(), Keyword: "prefixItems",
			Err: &grammar.LimitError{What: "named items of an array", Limit: maxProperties}}
		return grammar.Never()
	}
	place := func(i int) grammar.Expr {
		var items []item
		for _, v := range l.arrays {
			if p := v.get("prefixItems"); p != nil && i < len(p.items) {
				items = append(items, item{v: p.items[i]})
			} else if rest := v.get("items"); rest != nil {
				items = append(items, item{v: rest})
			}
		}
		return c.value(items)
	}
	// optional makes what begins with item i one that can be left out where the array may end before it.
	optional := func(i int, e grammar.Expr) grammar.Expr {
		switch {
		case l.maxItems != grammar.Unbounded && i >= l.maxItems:
			return grammar.Expr{}
		case i >= l.minItems:
			return grammar.Opt(e)
		}
		return e
	}
	first := max(named, 1) // the first item is written without a comma
	most := grammar.Unbounded
	if l.maxItems != grammar.Unbounded {
		most = max(l.maxItems-first, 0)
	}
	body := grammar.Repeat(grammar.Seq(c.separator, c.value(others)), max(l.minItems-first, 0), most)
	for i := first - 1; i > 0; i-- {
		body = optional(i, grammar.Seq(c.separator, place(i), body))
	}
	body = optional(0, grammar.Seq(place(0), body, c.ws))
	c.b.Define(r, grammar.Seq(grammar.Lit("["), c.ws, body, grammar.Lit("]")))
	return grammar.Ref(r)
}
