package jinja

import (
	"slices"
	"strconv"
)

// The grammar of expressions, from the loosest to the tightest:
//
//	expr:    or ["if" or ["else" expr]]
//	or:      and {"or" and}
//	and:     not {"and" not}
//	not:     "not" not | compare
//	compare: sum {("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not" "in") sum}
//	sum:     join {("+" | "-") join}
//	join:    product {"~" product}
//	product: power {("*" | "/" | "//" | "%") power}
//	power:   unary {"**" unary}
//	unary:   ("-" | "+") unary | primary {postfix}, then {"|" filter | "is" test}

// expr parses an expression without a comma.
func (p *parser) expr() (expr, error) {
	at := p.peek().at
	if err := p.deeper(at); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	value, err := p.or()
	if err != nil {
		return nil, err
	}
	for n := 0; p.skipName("if"); n++ {
		if err := p.chain(n); err != nil {
			return nil, err
		}
		cond, err := p.or()
		if err != nil {
			return nil, err
		}
		var otherwise expr
		if p.skipName("else") {
			if otherwise, err = p.expr(); err != nil {
				return nil, err
			}
		}
		value = &condExpr{node{at}, cond, value, otherwise}
	}
	return value, nil
}

// chain bounds how many operators may follow each other.
func (p *parser) chain(n int) error {
	if n >= maxChain {
		return located(p.name, p.peek().at, &LimitError{"operators in a row", maxChain})
	}
	return nil
}

// tuple parses expressions with commas between them, or one alone.
func (p *parser) tuple() (expr, error) { return p.tupleOf(p.expr) }

func (p *parser) tupleOf(item func() (expr, error)) (expr, error) {
	at := p.peek().at
	first, err := item()
	if err != nil || !p.isOp(",") {
		return first, err
	}
	items := []expr{first}
	for p.skipOp(",") {
		if p.peek().kind == tokenClose || p.isOp(")", "]", "}", "=") {
			break
		}
		e, err := item()
		if err != nil {
			return nil, err
		}
		items = append(items, e)
	}
	return &listExpr{node{at}, items, true}, nil
}

// logic parses operands with the same word between them.
func (p *parser) logic(word string, operand func() (expr, error)) (expr, error) {
	at := p.peek().at
	first, err := operand()
	if err != nil || !p.isName(word) {
		return first, err
	}
	e := &logicExpr{node{at}, []expr{first}, word == "or"}
	for p.skipName(word) {
		if err := p.chain(len(e.operands)); err != nil {
			return nil, err
		}
		next, err := operand()
		if err != nil {
			return nil, err
		}
		e.operands = append(e.operands, next)
	}
	return e, nil
}

func (p *parser) or() (expr, error)  { return p.logic("or", p.and) }
func (p *parser) and() (expr, error) { return p.logic("and", p.not) }

func (p *parser) not() (expr, error) {
	at := p.peek().at
	if !p.skipName("not") {
		return p.compare()
	}
	if err := p.deeper(at); err != nil {
		return nil, err
	}
	e, err := p.not()
	p.depth--
	return &notExpr{node{at}, e}, err
}

// comparison takes a comparison operator if one is next.
func (p *parser) comparison() string {
	switch {
	case p.isOp("==", "!=", "<", "<=", ">", ">="):
		return p.next().text
	case p.skipName("in"):
		return "in"
	case p.isName("not") && p.tokens[p.i+1].kind == tokenName && p.tokens[p.i+1].text == "in":
		p.i += 2
		return "not in"
	}
	return ""
}

func (p *parser) compare() (expr, error) {
	at := p.peek().at
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	e := &compareExpr{node: node{at}, first: first}
	for {
		op := p.comparison()
		if op == "" {
			break
		}
		if err := p.chain(len(e.rest)); err != nil {
			return nil, err
		}
		next, err := p.sum()
		if err != nil {
			return nil, err
		}
		e.rest = append(e.rest, operand{op, next})
	}
	if len(e.rest) == 0 {
		return first, nil
	}
	return e, nil
}

// binary parses operands with operators of one level between them, which group from the left.
func (p *parser) binary(next func() (expr, error), ops ...string) (expr, error) {
	at := p.peek().at
	first, err := next()
	if err != nil || !p.isOp(ops...) {
		return first, err
	}
	e := &binaryExpr{node: node{at}, first: first}
	for p.isOp(ops...) {
		if err := p.chain(len(e.rest)); err != nil {
			return nil, err
		}
		op := p.next().text
		operand_, err := next()
		if err != nil {
			return nil, err
		}
		e.rest = append(e.rest, operand{op, operand_})
	}
	return e, nil
}

func (p *parser) sum() (expr, error)     { return p.binary(p.join, "+", "-") }
func (p *parser) join() (expr, error)    { return p.binary(p.product, "~") }
func (p *parser) product() (expr, error) { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() (expr, error)   { return p.binary(p.unary, "**") }

func (p *parser) unary() (expr, error) {
	e, err := p.signed()
	if err != nil {
		return nil, err
	}
	return p.filtered(e)
}

// signed parses an operand with its signs. Filters are applied after the sign: -1|abs is 1.
func (p *parser) signed() (expr, error) {
	at := p.peek().at
	if p.isOp("-", "+") {
		op := p.next().text
		if err := p.deeper(at); err != nil {
			return nil, err
		}
		e, err := p.signed()
		p.depth--
		return &signExpr{node{at}, op, e}, err
	}
	e, err := p.primary()
	if err != nil {
		return nil, err
	}
	return p.postfix(e)
}

// constants are the names that are values.
var constants = map[string]Value{
	"true": Bool(true), "True": Bool(true), "false": Bool(false), "False": Bool(false), "none": None{}, "None": None{},
}

func (p *parser) primary() (expr, error) {
	t := p.peek()
	n := node{t.at}
	switch {
	case t.kind == tokenName:
		p.i++
		if v, ok := constants[t.text]; ok {
			return &literal{n, v}, nil
		}
		return &nameExpr{n, t.text}, nil
	case t.kind == tokenString:
		s := ""
		for p.peek().kind == tokenString {
			s += p.next().text
		}
		return &literal{n, Trusted(s)}, nil
	case t.kind == tokenNumber:
		p.i++
		return &literal{n, t.value}, nil
	case p.skipOp("("):
		if p.skipOp(")") {
			return &listExpr{n, nil, true}, nil
		}
		e, err := p.tuple()
		if err != nil {
			return nil, err
		}
		return e, p.expectOp(")")
	case p.skipOp("["):
		items, err := p.items("]")
		return &listExpr{n, items, false}, err
	case p.skipOp("{"):
		return p.dict(n)
	}
	return nil, p.unexpected("an expression")
}

// items parses expressions with commas between them up to a closing bracket.
func (p *parser) items(end string) ([]expr, error) {
	var items []expr
	for !p.skipOp(end) {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp(end) {
				break
			}
		}
		e, err := p.expr()
		if err != nil {
			return nil, err
		}
		items = append(items, e)
	}
	return items, nil
}

func (p *parser) dict(n node) (expr, error) {
	e := &mapExpr{node: n}
	for !p.skipOp("}") {
		if len(e.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp("}") {
				break
			}
		}
		key, err := p.expr()
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		value, err := p.expr()
		if err != nil {
			return nil, err
		}
		e.keys, e.values = append(e.keys, key), append(e.values, value)
	}
	return e, nil
}

// attribute parses the name after a dot.
func (p *parser) attribute() (string, error) {
	t, err := p.expectName("the name of an attribute")
	if err == nil && t.text[0] == '_' {
		err = p.fail(t.at, "the attribute %.40q begins with an underscore", t.text)
	}
	return t.text, err
}

// postfix parses attributes, subscripts and calls after an operand.
func (p *parser) postfix(e expr) (expr, error) {
	for k := 0; p.isOp(".", "[", "("); k++ {
		if err := p.chain(k); err != nil {
			return nil, err
		}
		n := node{p.peek().at}
		switch op := p.next().text; {
		case op == "." && p.peek().kind == tokenNumber:
			i, err := strconv.Atoi(p.peek().text)
			if err != nil {
				return nil, p.unexpected("the name of an attribute")
			}
			p.i++
			e = &indexExpr{n, e, &literal{n, Int(i)}}
		case op == ".":
			name, err := p.attribute()
			if err != nil {
				return nil, err
			}
			e = &attrExpr{n, e, name}
		case op == "[":
			sub, err := p.subscript(n, e)
			if err != nil {
				return nil, err
			}
			e = sub
		default:
			args, err := p.arguments()
			if err != nil {
				return nil, err
			}
			e = &callExpr{n, e, args}
		}
	}
	return e, nil
}

// subscript parses an index or a slice, of which the opening bracket is behind.
func (p *parser) subscript(n node, of expr) (expr, error) {
	if p.isOp("]") {
		return nil, p.unexpected("an index")
	}
	var parts [3]expr
	colons := 0
	for !p.isOp("]") {
		if p.skipOp(":") {
			if colons++; colons > 2 {
				return nil, p.unexpected(`"]"`)
			}
			continue
		}
		if parts[colons] != nil {
			return nil, p.unexpected(`"]"`)
		}
		var err error
		if parts[colons], err = p.expr(); err != nil {
			return nil, err
		}
		if colons == 0 && p.isOp(",") {
			return nil, p.fail(p.peek().at, "tuples as an index are not supported")
		}
	}
	p.i++
	if colons == 0 {
		return &indexExpr{n, of, parts[0]}, nil
	}
	return &sliceExpr{n, of, parts}, nil
}

// arguments parses the arguments of a call, of which the opening bracket is behind.
func (p *parser) arguments() (argExprs, error) {
	var a argExprs
	for first := true; !p.skipOp(")"); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.skipOp(")") {
				break
			}
		}
		if p.isOp("*", "**") {
			return a, p.fail(p.peek().at, "arguments taken from a list or dictionary are not supported")
		}
		if t := p.peek(); t.kind == tokenName && p.tokens[p.i+1].kind == tokenOp && p.tokens[p.i+1].text == "=" {
			p.i += 2
			if slices.ContainsFunc(a.named, func(q parameter) bool { return q.name == t.text }) {
				return a, p.fail(t.at, "the argument %.40q is there twice", t.text)
			}
			e, err := p.expr()
			if err != nil {
				return a, err
			}
			a.named = append(a.named, parameter{t.text, e})
			continue
		}
		if len(a.named) > 0 {
			return a, p.fail(p.peek().at, "an argument without a name after one with a name")
		}
		e, err := p.expr()
		if err != nil {
			return a, err
		}
		a.list = append(a.list, e)
	}
	return a, nil
}

// filtered parses the filters and tests after an operand.
func (p *parser) filtered(e expr) (expr, error) {
	for k := 0; ; k++ {
		if err := p.chain(k); err != nil {
			return nil, err
		}
		switch {
		case p.skipOp("|"):
			f, err := p.filter()
			if err != nil {
				return nil, err
			}
			e = &filterExpr{node{f.at}, e, f}
		case p.isName("is"):
			t, err := p.test(e)
			if err != nil {
				return nil, err
			}
			e = t
		default:
			return e, nil
		}
	}
}

// filters parses filters with | between them.
func (p *parser) filters() ([]filterCall, error) {
	var all []filterCall
	for {
		f, err := p.filter()
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		if err := p.chain(len(all)); err != nil {
			return nil, err
		}
		if !p.skipOp("|") {
			return all, nil
		}
	}
}

func (p *parser) filter() (filterCall, error) {
	name, err := p.expectName("the name of a filter")
	if err != nil {
		return filterCall{}, err
	}
	f := filterCall{at: name.at, name: name.text}
	if _, ok := p.lang.filters[name.text]; !ok {
		return f, p.fail(name.at, "there is no filter %.40q", name.text)
	}
	if p.skipOp("(") {
		f.args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(of expr) (expr, error) {
	at := p.next().at // is
	not := p.skipName("not")
	name, err := p.expectName("the name of a test")
	if err != nil {
		return nil, err
	}
	e := &testExpr{node: node{at}, of: of, name: name.text, not: not}
	if _, ok := p.lang.tests[name.text]; !ok {
		return nil, p.fail(name.at, "there is no test %.40q", name.text)
	}
	t := p.peek()
	switch {
	case p.skipOp("("):
		e.args, err = p.arguments()
	case p.isName("is"):
		return nil, p.fail(t.at, "tests cannot follow each other")
	case t.kind == tokenString, t.kind == tokenNumber, p.isOp("[", "{"), t.kind == tokenName && !p.isName("else", "or", "and", "if", "not", "in"):
		if err := p.deeper(t.at); err != nil {
			return nil, err
		}
		arg, err := p.primary()
		if err != nil {
			return nil, err
		}
		if arg, err = p.postfix(arg); err != nil {
			return nil, err
		}
		p.depth--
		e.args.list = []expr{arg}
	}
	return e, err
}
