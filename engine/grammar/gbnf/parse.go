package gbnf

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine/grammar"
)

type rule struct {
	id      grammar.Rule
	defined bool
	used    int // offset of the first use
}

type parser struct {
	ctx   context.Context
	b     *grammar.Builder
	src   string
	pos   int
	rules map[string]*rule
	order []string // of first mention, so that errors do not depend on the order of a map
}

// fail returns an error at an offset.
func (p *parser) fail(at int, format string, args ...any) error {
	before := p.src[:min(at, len(p.src))]
	line := before[strings.LastIndexByte(before, '\n')+1:]
	return &Error{strings.Count(before, "\n") + 1, utf8.RuneCountInString(line) + 1, fmt.Sprintf(format, args...)}
}

// peek returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) take(s string) bool {
	if strings.HasPrefix(p.src[p.pos:], s) {
		p.pos += len(s)
		return true
	}
	return false
}

// space skips blanks and comments, and with lines set also ends of lines.
func (p *parser) space(lines bool) {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == ' ' || c == '\t':
			p.pos++
		case c == '#':
			n := strings.IndexAny(p.src[p.pos:], "\r\n")
			if n < 0 {
				n = len(p.src) - p.pos
			}
			p.pos += n
		case (c == '\n' || c == '\r') && lines:
			p.pos++
		default:
			return
		}
	}
}

// continued reports whether the next line that is not blank begins with `|`, and then goes there.
func (p *parser) continued() bool {
	at := p.pos
	p.space(true)
	if p.peek() == '|' {
		return true
	}
	p.pos = at
	return false
}

func (p *parser) grammar() error {
	if i := strings.IndexByte(p.src, 0); i >= 0 {
		return p.fail(i, "a zero byte; write \\x00 inside a literal or a class")
	}
	for p.space(true); p.pos < len(p.src); p.space(true) {
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		if err := p.rule(); err != nil {
			return err
		}
		if err := p.b.Err(); err != nil {
			return err
		}
	}
	if r := p.rules[root]; r == nil || !r.defined {
		return p.fail(len(p.src), "there is no rule named root, with which the text begins")
	}
	for _, name := range p.order {
		if r := p.rules[name]; !r.defined {
			return p.fail(r.used, "rule %q is not defined", name)
		}
	}
	return nil
}

// mention returns the rule of a name.
func (p *parser) mention(name string, at int) *rule {
	r := p.rules[name]
	if r == nil {
		r = &rule{id: p.b.Rule(name), used: at}
		p.rules[name] = r
		p.order = append(p.order, name)
	}
	return r
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *parser) name() (string, error) {
	from := p.pos
	for isWord(p.peek()) {
		p.pos++
	}
	if p.pos == from {
		return "", p.fail(from, "expected the name of a rule, found %s", p.found())
	}
	return p.src[from:p.pos], nil
}

// found describes the next character for an error.
func (p *parser) found() string {
	if p.pos >= len(p.src) {
		return "the end"
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.pos:])
	return strconv.QuoteRune(r)
}

func (p *parser) rule() error {
	at := p.pos
	name, err := p.name()
	if err != nil {
		return err
	}
	p.space(false)
	if !p.take("::=") {
		return p.fail(p.pos, "expected ::= after the name of a rule, found %s", p.found())
	}
	p.space(true)
	r := p.mention(name, at)
	if r.defined {
		return p.fail(at, "rule %q is defined twice", name)
	}
	r.defined = true
	e, err := p.alternatives(0)
	if err != nil {
		return err
	}
	if c := p.peek(); p.pos < len(p.src) && c != '\n' && c != '\r' {
		return p.fail(p.pos, "expected the end of the rule, found %s", p.found())
	}
	p.b.Define(r.id, e)
	return nil
}

// alternatives reads what stands in a rule or, with level above 0, in a group.
func (p *parser) alternatives(level int) (grammar.Expr, error) {
	var alts []grammar.Expr
	for {
		e, err := p.sequence(level)
		if err != nil {
			return grammar.Expr{}, err
		}
		alts = append(alts, e)
		if p.peek() != '|' && (level > 0 || !p.continued()) {
			break
		}
		p.pos++
		p.space(true)
	}
	return grammar.Alt(alts...), nil
}

func (p *parser) sequence(level int) (grammar.Expr, error) {
	var items []grammar.Expr
	for {
		at := p.pos
		var e grammar.Expr
		var err error
		switch c := p.peek(); {
		case c == '"':
			e, err = p.literal()
		case c == '[':
			e, err = p.class()
		case c == '.':
			p.pos++
			e = grammar.Runes(grammar.AnyRune...)
		case c == '(':
			if level >= maxGroups {
				return e, p.fail(at, "groups lie in each other deeper than the limit of %d levels", maxGroups)
			}
			p.pos++
			p.space(true)
			if e, err = p.alternatives(level + 1); err == nil && !p.take(")") {
				err = p.fail(p.pos, "expected ) for the group of line %d, found %s", strings.Count(p.src[:at], "\n")+1, p.found())
			}
		case isWord(c):
			if isDefinition(p.src[p.pos:]) && level == 0 {
				return e, p.fail(at, "a rule must begin on its own line")
			}
			var name string
			if name, err = p.name(); err == nil {
				e = grammar.Ref(p.mention(name, at).id)
			}
		case c == '<' || c == '!':
			return e, p.fail(at, "references to tokens are not supported; write the token's text as a literal")
		case c == '*' || c == '+' || c == '?' || c == '{':
			return e, p.fail(at, "the quantifier %c has nothing to repeat", c)
		default:
			return grammar.Seq(items...), nil
		}
		if err != nil {
			return e, err
		}
		p.space(level > 0)
		for strings.IndexByte("*+?{", p.peek()) >= 0 && p.pos < len(p.src) {
			if e, err = p.quantifier(e); err != nil {
				return e, err
			}
			p.space(level > 0)
		}
		items = append(items, e)
	}
}

// isDefinition reports whether a source begins with a name and `::=`.
func isDefinition(s string) bool {
	n := 0
	for n < len(s) && isWord(s[n]) {
		n++
	}
	return strings.HasPrefix(strings.TrimLeft(s[n:], " \t"), "::=")
}

func (p *parser) quantifier(e grammar.Expr) (grammar.Expr, error) {
	at := p.pos
	least, most := 0, grammar.Unbounded
	switch p.src[p.pos] {
	case '*':
	case '+':
		least = 1
	case '?':
		most = 1
	case '{':
		p.pos++
		p.space(false)
		var n int
		var err error
		open := p.peek() == ','
		if !open {
			if least, err = p.number(); err != nil {
				return e, err
			}
			most = least
			p.space(false)
		}
		if p.take(",") {
			most = grammar.Unbounded
			p.space(false)
			if p.peek() != '}' {
				if n, err = p.number(); err != nil {
					return e, err
				}
				most = n
				p.space(false)
			} else if open {
				return e, p.fail(p.pos, "expected a number, found %s", p.found())
			}
		}
		if p.peek() != '}' {
			return e, p.fail(p.pos, "expected } or a number, found %s", p.found())
		}
	}
	p.pos++
	switch limit := p.b.Limits().Repeat; {
	case least > limit || most > limit:
		return e, p.fail(at, "the repetition exceeds the limit of %d", limit)
	case most != grammar.Unbounded && most < least:
		return e, p.fail(at, "the repetition {%d,%d} has its bounds the wrong way round", least, most)
	}
	return grammar.Repeat(e, least, most), nil
}

// number reads a number, which stops at a value beyond every limit.
func (p *parser) number() (int, error) {
	from, n := p.pos, 0
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		n = min(n*10+int(c-'0'), 1<<31)
		p.pos++
	}
	if p.pos == from {
		return 0, p.fail(from, "expected a number, found %s", p.found())
	}
	return n, nil
}

func (p *parser) literal() (grammar.Expr, error) {
	at := p.pos
	p.pos++
	var text []byte
	for p.peek() != '"' {
		r, err := p.char(at, "literal")
		if err != nil {
			return grammar.Expr{}, err
		}
		text = utf8.AppendRune(text, r)
	}
	p.pos++
	return grammar.Lit(string(text)), nil
}

func (p *parser) class() (grammar.Expr, error) {
	at := p.pos
	p.pos++
	negated := p.take("^")
	var ranges []grammar.RuneRange
	for p.peek() != ']' {
		from := p.pos
		lo, err := p.char(at, "character class")
		if err != nil {
			return grammar.Expr{}, err
		}
		hi := lo
		// A minus before the end of the class is itself.
		if strings.HasPrefix(p.src[p.pos:], "-") && !strings.HasPrefix(p.src[p.pos:], "-]") {
			p.pos++
			if hi, err = p.char(at, "character class"); err != nil {
				return grammar.Expr{}, err
			}
		}
		if hi < lo {
			return grammar.Expr{}, p.fail(from, "the range %q-%q has its ends the wrong way round", lo, hi)
		}
		ranges = append(ranges, grammar.RuneRange{Lo: lo, Hi: hi})
	}
	p.pos++
	if negated {
		ranges = grammar.Complement(ranges)
	}
	if len(ranges) == 0 {
		return grammar.Expr{}, p.fail(at, "the character class is empty")
	}
	return grammar.Runes(ranges...), nil
}

// char reads a character of what began at an offset, or an escape.
func (p *parser) char(at int, what string) (rune, error) {
	if p.pos >= len(p.src) {
		return 0, p.fail(at, "the %s does not end", what)
	}
	from := p.pos
	r, n := utf8.DecodeRuneInString(p.src[p.pos:])
	p.pos += n
	switch {
	case r == utf8.RuneError && n == 1:
		return 0, p.fail(from, "the grammar is not valid UTF-8")
	case r == '\n' || r == '\r':
		return 0, p.fail(at, "the %s does not end on its line", what)
	case r != '\\':
		return r, nil
	}
	c := p.peek()
	p.pos++
	switch c {
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case '\\', '"', '[', ']', '-', '^':
		return rune(c), nil
	case 'x':
		return p.hex(from, 2)
	case 'u':
		return p.hex(from, 4)
	case 'U':
		return p.hex(from, 8)
	}
	p.pos = from + 1
	return 0, p.fail(from, "unknown escape: \\ before %s", p.found())
}

func (p *parser) hex(at, digits int) (rune, error) {
	end := p.pos + digits
	if end > len(p.src) {
		return 0, p.fail(at, "the escape needs %d hexadecimal digits", digits)
	}
	v, err := strconv.ParseUint(p.src[p.pos:end], 16, 32)
	if err != nil {
		return 0, p.fail(at, "the escape needs %d hexadecimal digits", digits)
	}
	if v > utf8.MaxRune || !utf8.ValidRune(rune(v)) {
		return 0, p.fail(at, "the escape is no character")
	}
	p.pos = end
	return rune(v), nil
}
