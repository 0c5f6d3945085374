package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// A parser turns tokens into statements. Its methods return errors with a place.
type parser struct {
	name   string
	tokens []token
	i      int
	lang   *names
	depth  int // of statements and expressions inside each other
	loops  int // around the current statement, inside its macro
}

func (p *parser) peek() token { return p.tokens[p.i] }

func (p *parser) next() token {
	t := p.tokens[p.i]
	if t.kind != tokenEOF {
		p.i++
	}
	return t
}

func (p *parser) fail(at pos, format string, args ...any) error {
	return located(p.name, at, fmt.Errorf(format, args...))
}

// unexpected is the error of a token that does not fit.
func (p *parser) unexpected(want string) error {
	t := p.peek()
	got := fmt.Sprintf("%.40q", t.text)
	if t.kind == tokenEOF || t.kind == tokenText {
		got = "the end of the template"
	}
	return p.fail(t.at, "expected %s, found %s", want, got)
}

// isOp reports whether the next token is one of the operators.
func (p *parser) isOp(ops ...string) bool {
	t := p.peek()
	return t.kind == tokenOp && slices.Contains(ops, t.text)
}

func (p *parser) isName(names ...string) bool {
	t := p.peek()
	return t.kind == tokenName && slices.Contains(names, t.text)
}

// skipOp takes an operator if it is next.
func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.i++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.i++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return p.unexpected(fmt.Sprintf("%q", op))
	}
	return nil
}

func (p *parser) expectName(what string) (token, error) {
	if p.peek().kind != tokenName {
		return token{}, p.unexpected(what)
	}
	return p.next(), nil
}

func (p *parser) expectClose() error {
	if p.peek().kind != tokenClose {
		return p.unexpected("the end of the tag")
	}
	p.i++
	return nil
}

// deeper parses something inside something else.
func (p *parser) deeper(at pos) error {
	p.depth++
	if p.depth > maxNesting {
		return located(p.name, at, &LimitError{"levels of nesting", maxNesting})
	}
	return nil
}

// template parses everything.
func (p *parser) template() ([]stmt, error) {
	body, _, err := p.body()
	return body, err
}

// body parses statements up to a tag whose name is one of ends, which it takes, without the rest of that tag. Without ends it
// parses to the end of the template.
func (p *parser) body(ends ...string) ([]stmt, token, error) {
	var body []stmt
	start := p.peek().at
	if err := p.deeper(start); err != nil {
		return nil, token{}, err
	}
	defer func() { p.depth-- }()
	for {
		t := p.next()
		switch {
		case t.kind == tokenText:
			body = append(body, &textStmt{node{t.at}, t.text})
		case t.kind == tokenEOF:
			if len(ends) > 0 {
				return nil, t, p.fail(t.at, "expected the tag %s, found the end of the template", strings.Join(ends, " or "))
			}
			return body, t, nil
		case t.text == "{{":
			e, err := p.tuple()
			if err != nil {
				return nil, t, err
			}
			if err := p.expectClose(); err != nil {
				return nil, t, err
			}
			body = append(body, &printStmt{node{t.at}, e})
		default: // {%
			name, err := p.expectName("the name of a statement")
			if err != nil {
				return nil, t, err
			}
			if slices.Contains(ends, name.text) {
				return body, name, nil
			}
			s, err := p.statement(name)
			if err != nil {
				return nil, t, err
			}
			if s != nil {
				body = append(body, s)
			}
		}
	}
}

// block is body followed by the end of the closing tag.
func (p *parser) block(end string) ([]stmt, error) {
	body, _, err := p.body(end)
	if err != nil {
		return nil, err
	}
	return body, p.expectClose()
}

// statement parses what begins with a tag of that name.
func (p *parser) statement(name token) (stmt, error) {
	n := node{name.at}
	switch name.text {
	case "if":
		return p.ifStatement(n)
	case "for":
		return p.forStatement(n)
	case "set":
		return p.setStatement(n)
	case "macro":
		return p.macroStatement(n)
	case "call":
		return p.callStatement(n)
	case "filter":
		return p.filterStatement(n)
	case "with":
		return p.withStatement(n)
	case "generation":
		// Hugging Face's mark around what an assistant wrote; it prints as if it were not there.
		if err := p.expectClose(); err != nil {
			return nil, err
		}
		body, err := p.block("endgeneration")
		return &withStmt{node: n, body: body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail(name.at, "%s outside of a loop", name.text)
		}
		return &leaveStmt{n, map[string]flow{"break": flowBreak, "continue": flowContinue}[name.text]}, p.expectClose()
	}
	return nil, p.fail(name.at, "the tag %.40q is unknown, not supported, or not expected here", name.text)
}

func (p *parser) ifStatement(n node) (stmt, error) {
	s := &ifStmt{node: n}
	for {
		cond, err := p.tuple()
		if err != nil {
			return nil, err
		}
		if err := p.expectClose(); err != nil {
			return nil, err
		}
		body, end, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.branches = append(s.branches, branch{cond, body})
		if end.text == "elif" {
			continue
		}
		if err := p.expectClose(); err != nil {
			return nil, err
		}
		if end.text == "else" {
			if s.otherwise, err = p.block("endif"); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
}

func (p *parser) forStatement(n node) (stmt, error) {
	s := &forStmt{node: n}
	var err error
	if s.target, err = p.targets(); err != nil {
		return nil, err
	}
	for _, t := range s.target.names {
		if t.attr != "" {
			return nil, p.fail(n.at, "a loop cannot set an attribute")
		}
	}
	if !p.skipName("in") {
		return nil, p.unexpected(`"in"`)
	}
	if s.over, err = p.tupleOf(p.or); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if s.filter, err = p.expr(); err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, p.fail(p.peek().at, "recursive loops are not supported")
	}
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	p.loops++
	body, end, err := p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	s.body = body
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	if end.text == "else" {
		s.otherwise, err = p.block("endfor")
	}
	return s, err
}

// targets parses what a loop or set assigns to: names, or attributes of a namespace.
func (p *parser) targets() (target, error) {
	var t target
	paren := p.skipOp("(")
	for {
		name, err := p.expectName("a name to set")
		if err != nil {
			return t, err
		}
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None", "loop"}, name.text) {
			return t, p.fail(name.at, "%s cannot be set", name.text)
		}
		one := targetName{name: name.text}
		if p.skipOp(".") {
			attr, err := p.attribute()
			if err != nil {
				return t, err
			}
			one.attr = attr
		}
		t.names = append(t.names, one)
		if !p.skipOp(",") {
			break
		}
		t.tuple = true
		if p.isName("in") || p.isOp("=", ")") {
			break
		}
	}
	if paren {
		return t, p.expectOp(")")
	}
	return t, nil
}

func (p *parser) setStatement(n node) (stmt, error) {
	to, err := p.targets()
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		value, err := p.tuple()
		if err != nil {
			return nil, err
		}
		return &setStmt{n, to, value}, p.expectClose()
	}
	if to.tuple {
		return nil, p.unexpected(`"="`)
	}
	var filters []filterCall
	if p.skipOp("|") {
		if filters, err = p.filters(); err != nil {
			return nil, err
		}
	}
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	body, err := p.block("endset")
	return &setBlockStmt{n, to, filters, body}, err
}

// signature parses the parameters of a macro or call block, with their defaults.
func (p *parser) signature() ([]parameter, error) {
	if err := p.expectOp("("); err != nil {
		return nil, err
	}
	var params []parameter
	for !p.skipOp(")") {
		if len(params) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp(")") {
				break
			}
		}
		name, err := p.expectName("a parameter")
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(params, func(q parameter) bool { return q.name == name.text }) {
			return nil, p.fail(name.at, "the parameter %.40q is there twice", name.text)
		}
		q := parameter{name: name.text}
		if p.skipOp("=") {
			if q.value, err = p.expr(); err != nil {
				return nil, err
			}
		} else if len(params) > 0 && params[len(params)-1].value != nil {
			return nil, p.fail(name.at, "a parameter without a default after one with")
		}
		params = append(params, q)
	}
	return params, nil
}

// macroBody parses the body of a macro up to its closing tag. Loops around it do not count inside.
func (p *parser) macroBody(end string) ([]stmt, error) {
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	loops := p.loops
	p.loops = 0
	body, err := p.block(end)
	p.loops = loops
	return body, err
}

func (p *parser) macroStatement(n node) (stmt, error) {
	name, err := p.expectName("the name of the macro")
	if err != nil {
		return nil, err
	}
	params, err := p.signature()
	if err != nil {
		return nil, err
	}
	body, err := p.macroBody("endmacro")
	return &macroStmt{n, name.text, params, body}, err
}

func (p *parser) callStatement(n node) (stmt, error) {
	var params []parameter
	var err error
	if p.isOp("(") {
		if params, err = p.signature(); err != nil {
			return nil, err
		}
	}
	e, err := p.expr()
	if err != nil {
		return nil, err
	}
	call, ok := e.(*callExpr)
	if !ok {
		return nil, p.fail(n.at, "a call block needs a call")
	}
	body, err := p.macroBody("endcall")
	return &callStmt{n, params, call, body}, err
}

func (p *parser) filterStatement(n node) (stmt, error) {
	filters, err := p.filters()
	if err != nil {
		return nil, err
	}
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	body, err := p.block("endfilter")
	return &filterStmt{n, filters, body}, err
}

func (p *parser) withStatement(n node) (stmt, error) {
	s := &withStmt{node: n}
	for p.peek().kind != tokenClose {
		if len(s.values) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		name, err := p.expectName("a name to set")
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		value, err := p.expr()
		if err != nil {
			return nil, err
		}
		s.values = append(s.values, parameter{name.text, value})
	}
	if err := p.expectClose(); err != nil {
		return nil, err
	}
	var err error
	s.body, err = p.block("endwith")
	return s, err
}
