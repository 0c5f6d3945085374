// Package gbnf reads grammars in llama.cpp's notation, GBNF.
//
//	# a comment
//	root  ::= "say " word ("," ws word){0,3} [.!?]
//	word  ::= [a-zA-Z\u00e0-\u00ff]+ | "\"" [^"\x00-\x1f]* "\""
//	ws    ::= [ \t\n]?
//
// A rule ends at the end of its line, except inside a group and after `::=` or `|`; a line that begins with `|` goes on
// with the rule before. Literals and classes are characters of UTF-8, know the escapes \n \r \t \\ \" \[ \] \- \^ \xXX
// \uXXXX and \UXXXXXXXX, and `.` is any character. Items are repeated by * + ? {m} {m,} {m,n} and {,n}. The text is
// the rule root. References to tokens (<name>, <[id]>) are refused, as a grammar here is one of bytes.
package gbnf

import (
	"context"
	"fmt"

	"github.com/calderaml/caldera/engine/grammar"
)

const (
	maxSource = 256 << 10 // bytes
	maxGroups = 64        // levels
	root      = "root"
)

// An Error is a fault in a grammar and where it is. Line and Col count from 1, Col in characters.
type Error struct {
	Line, Col int
	Msg       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("grammar, line %d, column %d: %s", e.Line, e.Col, e.Msg)
}

// Build adds the rules of a source to a builder and returns its text. The error is an *Error, a *grammar.LimitError or
// that of the context.
func Build(ctx context.Context, b *grammar.Builder, source string) (grammar.Expr, error) {
	if len(source) > maxSource {
		return grammar.Expr{}, &grammar.LimitError{What: "bytes of source", Limit: maxSource}
	}
	p := &parser{ctx: ctx, b: b, src: source, rules: map[string]*rule{}}
	if err := p.grammar(); err != nil {
		return grammar.Expr{}, err
	}
	return grammar.Ref(p.rules[root].id), nil
}

// Compile compiles a grammar.
func Compile(ctx context.Context, source string, limits grammar.Limits) (*grammar.Grammar, error) {
	b := grammar.NewBuilder(limits)
	e, err := Build(ctx, b, source)
	if err != nil {
		return nil, err
	}
	return b.Compile(ctx, e)
}
