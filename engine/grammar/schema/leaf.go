package schema

import (
	"math/big"
	"strconv"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/pattern"
)

// Types as bits. An integer is also a number; the other numbers have a bit of their own.
const (
	typeObject = 1 << iota
	typeArray
	typeString
	typeInteger
	typeFraction
	typeBoolean
	typeNull

	typeNumber = typeInteger | typeFraction
	typeAny    = 1<<iota - 1
)

var types = map[string]int{
	"object": typeObject, "array": typeArray, "string": typeString, "integer": typeInteger, "number": typeNumber,
	"boolean": typeBoolean, "null": typeNull,
}

// implied are the types that a keyword speaks about.
var implied = map[string]int{
	"properties": typeObject, "required": typeObject, "additionalProperties": typeObject,
	"items": typeArray, "prefixItems": typeArray, "minItems": typeArray, "maxItems": typeArray,
	"minLength": typeString, "maxLength": typeString, "pattern": typeString, "format": typeString,
	"minimum": typeNumber, "maximum": typeNumber,
}

// A leaf is what the schemas of a set say together, without those keywords that combine schemas.
type leaf struct {
	types  int
	values []*value // of enum and const; nil without
	closed bool     // values is meant, even if empty

	// Strings.
	minLength, maxLength int
	patterns             []pattern.Pattern
	pattern              *value // a schema with one, for errors
	patternKey           string
	// Integers; nil is no bound.
	least, most *big.Int
	bound       *value // a schema with a bound
	boundKey    string
	// Arrays.
	minItems, maxItems int
	arrays, objects    []*value // schemas with keywords about them
}

// leaf returns the expression of a set of schemas that nothing is left of to take apart.
func (c *compiler) leaf(items []item, raw bool) grammar.Expr {
	l := leaf{types: typeAny, maxLength: grammar.Unbounded, maxItems: grammar.Unbounded}
	inferred, explicit := 0, false
	for _, it := range items {
		for _, f := range it.v.fields {
			inferred |= implied[f.name]
			if implied[f.name] == typeObject && !contains(l.objects, it.v) {
				l.objects = append(l.objects, it.v)
			}
			if implied[f.name] == typeArray && !contains(l.arrays, it.v) {
				l.arrays = append(l.arrays, it.v)
			}
			switch f.name {
			case "type":
				explicit = true
				l.types &= c.typeSet(it.v, f.v)
			case "enum":
				explicit = true
				l.restrict(f.v.items)
			case "const":
				explicit = true
				l.restrict([]*value{f.v})
			default:
				c.bounds(&l, it.v, f)
			}
		}
	}
	if c.err != nil {
		return grammar.Never()
	}
	if !explicit && inferred != 0 {
		l.types = inferred
	}
	switch {
	case l.closed:
		return c.enum(&l, raw)
	case raw:
		return c.raw(&l)
	}
	return c.json(&l, l.types)
}

// json returns the JSON texts of a leaf that have one of some types.
func (c *compiler) json(l *leaf, types int) grammar.Expr {
	if l.bound != nil && types&typeFraction != 0 {
		return c.fail(l.bound, l.boundKey, "the keyword is supported for the type integer only")
	}
	if types == typeAny && l.objects == nil && l.arrays == nil && !l.limitsStrings() {
		return c.any()
	}
	var alts []grammar.Expr
	add := func(bits int, make func() grammar.Expr) {
		if types&bits != 0 {
			alts = append(alts, make())
		}
	}
	add(typeObject, func() grammar.Expr { return c.object(l.objects) })
	add(typeArray, func() grammar.Expr { return c.array(l) })
	add(typeString, func() grammar.Expr { return c.string(l) })
	if types&typeFraction != 0 {
		alts = append(alts, c.number())
	} else {
		add(typeInteger, func() grammar.Expr { return c.integer(l.least, l.most) })
	}
	add(typeBoolean, func() grammar.Expr { return grammar.Choice("true", "false") })
	add(typeNull, func() grammar.Expr { return grammar.Lit("null") })
	return grammar.Alt(alts...)
}

func (l *leaf) limitsStrings() bool {
	return l.minLength > 0 || l.maxLength != grammar.Unbounded || len(l.patterns) > 0
}

// any is any JSON value.
func (c *compiler) any() grammar.Expr {
	if e, ok := c.shared["any value"]; ok {
		return e
	}
	r := c.b.Rule("any value")
	c.shared["any value"] = grammar.Ref(r) // refers to itself
	l := leaf{maxLength: grammar.Unbounded, maxItems: grammar.Unbounded}
	c.b.Define(r, grammar.Alt(c.object(nil), c.array(&l), c.string(&l), c.number(),
		grammar.Choice("true", "false", "null")))
	return grammar.Ref(r)
}

func (c *compiler) typeSet(at, v *value) int {
	names := v.items
	if v.kind == '"' {
		names = []*value{v}
	}
	set := 0
	for _, n := range names {
		bits := types[n.text]
		if n.kind != '"' || bits == 0 {
			c.fail(at, "type", "there is no such type as %.40q", n.text)
			return 0
		}
		set |= bits
	}
	return set
}

// restrict keeps the values that are also in a list.
func (l *leaf) restrict(list []*value) {
	if !l.closed {
		l.closed, l.values = true, list
		return
	}
	var both []*value
	for _, v := range l.values {
		for _, o := range list {
			if equal(v, o) {
				both = append(both, v)
				break
			}
		}
	}
	l.values = both
}

// bounds takes in a keyword that bounds a string, an integer or the length of an array.
func (c *compiler) bounds(l *leaf, at *value, f field) {
	raise := func(p *int, what string) {
		if n, ok := c.count(at, f, what); ok {
			*p = max(*p, n)
		}
	}
	lower := func(p *int, what string) {
		if n, ok := c.count(at, f, what); ok && (*p == grammar.Unbounded || n < *p) {
			*p = n
		}
	}
	switch f.name {
	case "minLength":
		raise(&l.minLength, "characters")
	case "maxLength":
		lower(&l.maxLength, "characters")
	case "minItems":
		raise(&l.minItems, "items")
	case "maxItems":
		lower(&l.maxItems, "items")
	case "pattern":
		l.patterns = append(l.patterns, pattern.Pattern{Source: f.v.text})
		l.pattern, l.patternKey = at, f.name
	case "format":
		source, ok := formats[f.v.text]
		if !ok {
			c.fail(at, f.name, "the format %.40q is not supported; these are: date-time, date, time, uuid, email", f.v.text)
			return
		}
		l.patterns = append(l.patterns, pattern.Pattern{Source: source, Whole: true})
		l.pattern, l.patternKey = at, f.name
	case "minimum", "maximum":
		l.bound, l.boundKey = at, f.name
		r, ok := rat(f.v.text)
		if !ok {
			c.fail(at, f.name, "the number has more than %d digits", maxExponent)
			return
		}
		n := new(big.Int)
		if f.name == "minimum" {
			// The next integer, upwards: minus the quotient of minus the numerator, which Div rounds down.
			n.Neg(n.Div(n.Neg(r.Num()), r.Denom()))
			if l.least == nil || n.Cmp(l.least) > 0 {
				l.least = n
			}
		} else {
			n.Div(r.Num(), r.Denom())
			if l.most == nil || n.Cmp(l.most) < 0 {
				l.most = n
			}
		}
	}
}

// count returns the value of a keyword that counts something.
func (c *compiler) count(at *value, f field, what string) (int, bool) {
	r, ok := rat(f.v.text)
	if !ok || !r.IsInt() || r.Sign() < 0 {
		c.fail(at, f.name, "the value must be an integer from 0")
		return 0, false
	}
	limit := c.b.Limits().Repeat
	if !r.Num().IsInt64() || r.Num().Int64() > int64(limit) {
		c.err = &Error{Pointer: at.pointer(), Keyword: f.name, Err: &grammar.LimitError{What: what, Limit: limit}}
		return 0, false
	}
	return int(r.Num().Int64()), true
}

func contains(list []*value, v *value) bool { return len(list) > 0 && list[len(list)-1] == v }

// enum returns the values of enum and const that the other keywords allow.
func (c *compiler) enum(l *leaf, raw bool) grammar.Expr {
	var alts []grammar.Expr
	for _, v := range l.values {
		ok, err := c.allows(l, v)
		if err != nil {
			return c.errPattern(l.pattern, l.patternKey, err)
		}
		if !ok {
			continue
		}
		switch {
		case raw && v.kind == '"':
			alts = append(alts, c.rawText(v))
		case raw:
			alts = append(alts, grammar.Seq(c.literal(v), grammar.Lit(c.end)))
		default:
			alts = append(alts, c.literal(v))
		}
	}
	return grammar.Alt(alts...)
}

// literal returns a JSON value, its properties in the order in which they are written.
func (c *compiler) literal(v *value) grammar.Expr {
	switch v.kind {
	case '"':
		return grammar.Lit(quote(v.text))
	case '0':
		return grammar.Lit(v.text)
	case 't':
		return grammar.Lit("true")
	case 'f':
		return grammar.Lit("false")
	case 'n':
		return grammar.Lit("null")
	}
	open, end := "[", "]"
	var parts []grammar.Expr
	for i, kid := range v.items {
		if i > 0 {
			parts = append(parts, c.separator)
		}
		parts = append(parts, c.literal(kid))
	}
	if v.kind == '{' {
		open, end = "{", "}"
		for i, f := range v.fields {
			if i > 0 {
				parts = append(parts, c.separator)
			}
			parts = append(parts, grammar.Lit(quote(f.name)), c.colon, c.literal(f.v))
		}
	}
	if len(parts) > 0 {
		parts = append(parts, c.ws)
	}
	return grammar.Seq(grammar.Lit(open), c.ws, grammar.Seq(parts...), grammar.Lit(end))
}

// allows reports whether a value of enum or const fulfils the other keywords of its set.
func (c *compiler) allows(l *leaf, v *value) (bool, error) {
	switch v.kind {
	case '{', '[':
		bit, list := typeObject, l.objects
		if v.kind == '[' {
			bit, list = typeArray, l.arrays
		}
		if l.types&bit != 0 && len(list) > 0 {
			for _, f := range list[0].fields {
				if implied[f.name] == bit {
					c.fail(list[0], f.name, "the keyword is not supported beside an enum or const with %s", v.what())
				}
			}
			return false, nil
		}
		return l.types&bit != 0, nil
	case '"':
		if l.types&typeString == 0 {
			return false, nil
		}
		if n := len([]rune(v.text)); n < l.minLength || l.maxLength != grammar.Unbounded && n > l.maxLength {
			return false, nil
		}
		return pattern.Matches(l.patterns, v.text)
	case '0':
		r, ok := rat(v.text)
		switch {
		case !ok:
			c.fail(v.parent, "", "the number %.20s… has more than %s digits", v.text, strconv.Itoa(maxExponent))
			return false, nil
		case !r.IsInt():
			return l.types&typeFraction != 0 && l.inBounds(r), nil
		}
		return l.types&typeInteger != 0 && l.inBounds(r), nil
	case 'n':
		return l.types&typeNull != 0, nil
	}
	return l.types&typeBoolean != 0, nil
}

// inBounds reports whether a number lies within minimum and maximum. A bound is rounded to an integer; the number is
// one, or is no integer and then on the same side of both.
func (l *leaf) inBounds(r *big.Rat) bool {
	if l.least != nil && r.Cmp(new(big.Rat).SetInt(l.least)) < 0 {
		return false
	}
	return l.most == nil || r.Cmp(new(big.Rat).SetInt(l.most)) <= 0
}
