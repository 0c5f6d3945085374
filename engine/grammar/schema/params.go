package schema

import (
	"context"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/pattern"
)

// A Parameter is a property of an object that is not written as JSON, but each value by itself and raw: a string as it
// is, without quotes and escapes, and everything else as JSON.
type Parameter struct {
	Name     string
	Required bool
	// Value is the raw value and the string that ends it.
	Value grammar.Expr
}

// Parameters are the properties of an object in raw form.
type Parameters struct {
	List []Parameter // in schema order
	// Open tells whether there may be others. Then OtherName is the name of one, without its brackets, and OtherValue
	// its value and the string that ends it.
	Open       bool
	OtherName  grammar.Expr
	OtherValue grammar.Expr
}

// BuildParameters adds the properties of an object schema in raw form, such as the parameters of a tool. End is the
// ASCII string that ends each value; a value goes up to the first. A text beside other types leaves the reader to
// tell them apart. The error is as that of Build.
func BuildParameters(ctx context.Context, b *grammar.Builder, src []byte, opts Options, end string) (*Parameters, error) {
	root, err := parse(src)
	if err != nil {
		return nil, err
	}
	c := newCompiler(ctx, b, root, opts)
	c.end = end
	var flat []item
	if !c.flatten(&flat, item{v: root}, map[*value]bool{}, map[*value]bool{}) && c.err == nil {
		return nil, &Error{Err: errUnsatisfiable}
	}
	var list []*value
	for _, it := range flat {
		for _, f := range it.v.fields {
			switch {
			case implied[f.name] == typeObject:
				if !contains(list, it.v) {
					list = append(list, it.v)
				}
			case f.name == "type":
				if c.typeSet(it.v, f.v)&typeObject == 0 {
					c.fail(it.v, f.name, "parameters must be an object")
				}
			case f.name == "anyOf", f.name == "oneOf", f.name == "enum", f.name == "const":
				c.fail(it.v, f.name, "the keyword is not supported for the parameters as a whole")
			}
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	s := c.shape(list)
	p := &Parameters{Open: s.open}
	for _, prop := range s.properties {
		p.List = append(p.List, Parameter{prop.name, prop.required, c.set(prop.items, true)})
	}
	if s.open {
		// What brackets and lines would end is no name.
		p.OtherName = c.otherThan(append(s.names, ""), pattern.Raw,
			grammar.Complement([]grammar.RuneRange{{Lo: 0, Hi: ' '}, {Lo: '<', Hi: '>'}}))
		p.OtherValue = c.set(s.extra, true)
	}
	return p, c.finish()
}

// raw returns the raw values of a leaf.
func (c *compiler) raw(l *leaf) grammar.Expr {
	end := grammar.Lit(c.end)
	var alts []grammar.Expr
	if l.types&typeString != 0 {
		if !l.limitsStrings() {
			// Everything else is also such a text.
			return c.once("raw text", func() grammar.Expr { return c.b.Until(c.end, true) })
		}
		e, err := pattern.Compile(c.ctx, c.b, pattern.Constraint{
			Patterns: l.patterns, Min: l.minLength, Max: l.maxLength, Avoid: c.end}, pattern.Raw)
		if err != nil && l.pattern == nil {
			c.err = &Error{Keyword: "maxLength", Err: err}
			return grammar.Never()
		} else if err != nil {
			return c.errPattern(l.pattern, l.patternKey, err)
		}
		alts = append(alts, grammar.Seq(e, end))
	}
	if rest := l.types &^ typeString; rest != 0 {
		alts = append(alts, grammar.Seq(c.json(l, rest), end))
	}
	return grammar.Alt(alts...)
}

// rawText returns a string as it is, never when it cannot be told from its end.
func (c *compiler) rawText(v *value) grammar.Expr {
	if holds(v.text+c.end, c.end) {
		return c.fail(v.parent, "", "the string %.40q cannot be a raw value", v.text)
	}
	return grammar.Lit(v.text + c.end)
}

// holds reports whether a text that ends with end holds it before, too.
func holds(text, end string) bool {
	for i := range len(text) - len(end) {
		if text[i:i+len(end)] == end {
			return true
		}
	}
	return false
}
