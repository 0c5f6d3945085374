package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/grammar"
)

// maxSets bounds the sets of schemas that are compiled. anyOf inside allOf multiplies.
const maxSets = 5000

// Keywords that only describe or hold definitions.
var annotations = map[string]bool{
	"title": true, "description": true, "default": true, "example": true, "examples": true, "deprecated": true,
	"readOnly": true, "writeOnly": true, "$schema": true, "$comment": true, "$defs": true, "definitions": true,
}

// Keywords that are enforced and the kind of value that each takes.
var keywords = map[string]string{
	"type": "\"[", "enum": "[", "const": "{[\"0tfn", "$ref": "\"", "allOf": "[", "anyOf": "[", "oneOf": "[",
	"properties": "{", "required": "[", "additionalProperties": "{tf",
	"items": "{tf", "prefixItems": "[", "minItems": "0", "maxItems": "0",
	"minLength": "0", "maxLength": "0", "pattern": "\"", "format": "\"", "minimum": "0", "maximum": "0",
}

// An item is a schema in a set of schemas that must all hold. The flags say which of its keywords the set has
// already taken apart.
type item struct {
	v                  *value
	refs, anyOf, oneOf bool
}

// A job is a set whose rule is still to be defined.
type job struct {
	rule  grammar.Rule
	items []item
	raw   bool
}

type compiler struct {
	ctx  context.Context
	b    *grammar.Builder
	root *value
	opts Options
	// end is what ends a raw value, see params.go.
	end string

	sets    map[string]grammar.Expr
	queue   []job
	checked map[*value]bool
	err     error

	// Expressions that are used again and again; see once.
	ws, separator, colon grammar.Expr
	shared               map[string]grammar.Expr
}

func newCompiler(ctx context.Context, b *grammar.Builder, root *value, opts Options) *compiler {
	c := &compiler{ctx: ctx, b: b, root: root, opts: opts, sets: map[string]grammar.Expr{}, checked: map[*value]bool{},
		shared: map[string]grammar.Expr{}}
	if opts.Whitespace {
		blanks := grammar.ByteSet{}
		blanks.Add(' ', ' ')
		blanks.Add('\t', '\t')
		c.ws = b.New("space", grammar.Opt(grammar.Alt(
			grammar.Lit(" "), grammar.Seq(grammar.Lit("\n"), grammar.Repeat(grammar.Byte(blanks), 0, 128)))))
	}
	c.separator, c.colon = grammar.Seq(grammar.Lit(","), c.ws), grammar.Seq(grammar.Lit(":"), c.ws)
	return c
}

// fail remembers the first error.
func (c *compiler) fail(at *value, keyword, format string, args ...any) grammar.Expr {
	if c.err == nil {
		c.err = &Error{Pointer: at.pointer(), Keyword: keyword, Msg: fmt.Sprintf(format, args...)}
	}
	return grammar.Never()
}

// set returns the expression of a set of schemas, to be defined by finish. With raw set it is that of a raw value.
func (c *compiler) set(items []item, raw bool) grammar.Expr {
	key := fmt.Sprint(raw)
	for _, it := range items {
		key += fmt.Sprint(";", it.v.id, it.refs, it.anyOf, it.oneOf)
	}
	if e, ok := c.sets[key]; ok {
		return e
	}
	if len(c.sets) >= maxSets && c.err == nil {
		c.err = &Error{Err: &grammar.LimitError{What: "combinations of schemas", Limit: maxSets}}
	}
	name := "any value"
	if len(items) > 0 {
		name = "#" + items[0].v.pointer()
	}
	r := c.b.Rule(name)
	e := grammar.Ref(r)
	c.sets[key] = e
	c.queue = append(c.queue, job{r, items, raw})
	return e
}

// finish defines the rules of all sets. Sets that come up on the way wait in the queue, so that neither long chains
// of references nor deep schemas deepen a recursion.
func (c *compiler) finish() error {
	for len(c.queue) > 0 && c.err == nil {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.b.Err(); err != nil {
			return &Error{Err: err}
		}
		j := c.queue[0]
		c.queue = c.queue[1:]
		c.b.Define(j.rule, c.body(j.items, j.raw))
	}
	if c.err == nil && c.b.Err() != nil {
		c.err = &Error{Err: c.b.Err()}
	}
	return c.err
}

// body returns the expression of a set.
func (c *compiler) body(items []item, raw bool) grammar.Expr {
	var flat []item
	open, seen := map[*value]bool{}, map[*value]bool{}
	for _, it := range items {
		if !c.flatten(&flat, it, open, seen) {
			return grammar.Never()
		}
	}
	for i, it := range flat {
		for _, keyword := range []string{"anyOf", "oneOf"} {
			done := &it.anyOf
			if keyword == "oneOf" {
				done = &it.oneOf
			}
			list := it.v.get(keyword)
			if *done || list == nil {
				continue
			}
			*done = true
			rest := slices.Concat(flat[:i], []item{it}, flat[i+1:])
			rest = slices.DeleteFunc(rest, item.trivial)
			var alts []grammar.Expr
			for _, branch := range list.items {
				alts = append(alts, c.set(append(slices.Clip(rest), item{v: branch}), raw))
			}
			return grammar.Alt(alts...)
		}
	}
	return c.leaf(flat, raw)
}

// trivial reports whether nothing is left of an item to hold.
func (it item) trivial() bool {
	for _, f := range it.v.fields {
		switch {
		case annotations[f.name], f.name == "$id",
			it.refs && (f.name == "$ref" || f.name == "allOf"),
			it.anyOf && f.name == "anyOf", it.oneOf && f.name == "oneOf":
		default:
			return false
		}
	}
	return it.v.kind == '{'
}

// flatten appends an item and what its $ref and allOf add. It returns false when nothing can satisfy the set, or
// after an error.
func (c *compiler) flatten(dst *[]item, it item, open, seen map[*value]bool) bool {
	v := it.v
	switch {
	case c.err != nil || v.kind == 'f':
		return false
	case v.kind == 't':
		return true
	case v.kind != '{':
		c.fail(v, "", "a schema must be an object or a boolean, not %s", v.what())
		return false
	case open[v]:
		c.fail(v, "$ref", "the reference leads back to itself")
		return false
	}
	if !c.check(v) {
		return false
	}
	if it.refs {
		*dst = append(*dst, it)
		seen[v] = true
		return true
	}
	if seen[v] {
		return true
	}
	seen[v], open[v] = true, true
	defer delete(open, v)
	if ref := v.get("$ref"); ref != nil {
		to, ok := resolve(c.root, ref.text)
		if !ok {
			c.fail(v, "$ref", "%.80q is not a place in this schema", ref.text)
			return false
		}
		if !c.flatten(dst, item{v: to}, open, seen) {
			return false
		}
	}
	it.refs = true
	if !it.trivial() || v.get("anyOf") != nil || v.get("oneOf") != nil {
		*dst = append(*dst, it)
	}
	if all := v.get("allOf"); all != nil {
		for _, sub := range all.items {
			if !c.flatten(dst, item{v: sub}, open, seen) {
				return false
			}
		}
	}
	return true
}

// check looks at the keywords of a schema once.
func (c *compiler) check(v *value) bool {
	if c.checked[v] {
		return true
	}
	c.checked[v] = true
	for _, f := range v.fields {
		kinds, ok := keywords[f.name]
		switch {
		case annotations[f.name], f.name == "$id" && v == c.root:
			continue
		case !ok:
			c.fail(v, f.name, "the keyword %q is not supported", f.name)
			return false
		case strings.IndexByte(kinds, f.v.kind) < 0:
			c.fail(v, f.name, "the keyword cannot be %s", f.v.what())
			return false
		}
		switch f.name {
		case "allOf", "anyOf", "oneOf", "enum":
			if len(f.v.items) == 0 {
				c.fail(v, f.name, "the list is empty")
				return false
			}
		case "required":
			for _, name := range f.v.items {
				if name.kind != '"' {
					c.fail(v, f.name, "the names must be strings")
					return false
				}
			}
		}
	}
	return true
}

// errPattern reports an error of package pattern at the keyword that it comes from.
func (c *compiler) errPattern(at *value, keyword string, err error) grammar.Expr {
	if c.err == nil {
		c.err = &Error{Pointer: at.pointer(), Keyword: keyword, Err: err}
		if c.ctx.Err() != nil {
			c.err = c.ctx.Err()
		}
	}
	return grammar.Never()
}

// once returns a rule that is made at its first use.
func (c *compiler) once(name string, make func() grammar.Expr) grammar.Expr {
	e, ok := c.shared[name]
	if !ok {
		e = c.b.New(name, make())
		c.shared[name] = e
	}
	return e
}
