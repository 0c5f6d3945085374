// Package schema compiles JSON Schemas to grammars of the JSON texts that are valid under them.
//
// # Keywords
//
// These are enforced: type (also a list), properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, enum, const, anyOf, oneOf, allOf, $ref to a place in the same document (also recursive), minLength,
// maxLength, pattern, minimum and maximum of integers, and format with date-time, date, time, uuid or email.
// $defs and definitions hold what references name. These only describe, and are passed over: title, description,
// default, example, examples, deprecated, readOnly, writeOnly, $schema, $comment, and $id at the root. Every other
// keyword is an *Error that names it and where it stands. So is a supported one in a form that cannot be enforced.
//
// # What is generated
//
// The texts are a subset of the valid ones, in one form: properties come in the order in which the schema names them,
// and optional ones can be left out. What a schema leaves open is settled so:
//
//   - Without additionalProperties an object that has properties is closed, as OpenAI's strict mode and llama.cpp have
//     it, though JSON Schema says otherwise; [Options].Open follows JSON Schema. An object without properties is
//     open. Additional properties come last, have names other than the declared ones, and may repeat each other.
//   - Without type the type follows from the keywords: properties make an object, minLength a string. Without any, and
//     for the schema true, it is any JSON value.
//   - oneOf is taken as anyOf: that exactly one matches is not checked.
//   - Integers are written without point and exponent, and have at most 24 digits. So do the integer and fraction
//     parts of numbers; exponents are below 300.
//   - Strings may use every escape of JSON, but surrogates only in pairs. Strings with a pattern or a format, enum,
//     const and names of properties are written with the fewest escapes (see package pattern).
//   - A pattern is searched in the string unless it is anchored.
//   - Objects and arrays lie in each other at most 64 deep. A branch that would need more is not taken.
//
// There is no space outside strings, except with [Options].Whitespace.
package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/calderaml/caldera/engine/grammar"
)

// An Error says what in a schema cannot be used. All errors of this package about a schema are of this type.
type Error struct {
	// Pointer is the JSON pointer (RFC 6901) to the schema that holds the keyword, empty for the root.
	Pointer string
	// Keyword is the one at fault, empty when it is none.
	Keyword string
	Msg     string
	// Err is the reason that another package gives, or nil.
	Err error
}

func (e *Error) Error() string {
	msg := e.Msg
	if e.Err != nil {
		msg = e.Err.Error()
	}
	if e.Keyword == "" && e.Pointer == "" {
		return "schema: " + msg
	}
	at := e.Pointer
	if e.Keyword != "" {
		at += "/" + escapePointer.Replace(e.Keyword)
	}
	return fmt.Sprintf("schema: %s: %s", at, msg)
}

func (e *Error) Unwrap() error { return e.Err }

// Options changes what texts are generated.
type Options struct {
	// Whitespace allows, after each of { [ , : and before } and ], a space, or a newline and up to 128 spaces or tabs.
	Whitespace bool
	// Open lets an object that has properties but no additionalProperties hold others.
	Open bool
}

// Build adds a schema to a builder and returns the expression of its texts. The error is an *Error or that of the
// context. The context is looked at throughout.
func Build(ctx context.Context, b *grammar.Builder, src []byte, opts Options) (grammar.Expr, error) {
	root, err := parse(src)
	if err != nil {
		return grammar.Expr{}, err
	}
	c := newCompiler(ctx, b, root, opts)
	e := c.set([]item{{v: root}}, false)
	return e, c.finish()
}

// BuildObject adds the texts that are any JSON object.
func BuildObject(ctx context.Context, b *grammar.Builder, opts Options) (grammar.Expr, error) {
	return Build(ctx, b, []byte(`{"type":"object"}`), opts)
}

// Compile compiles a schema. The error is as that of Build.
func Compile(ctx context.Context, src []byte, opts Options, limits grammar.Limits) (*grammar.Grammar, error) {
	b := grammar.NewBuilder(limits)
	e, err := Build(ctx, b, src, opts)
	if err != nil {
		return nil, err
	}
	g, err := b.Compile(ctx, e)
	return g, Wrap(err)
}

// Wrap turns an error of compiling a grammar that was made of a schema into an *Error.
func Wrap(err error) error {
	var limit *grammar.LimitError
	var recursion *grammar.RecursionError
	switch {
	case errors.As(err, &limit):
		return &Error{Err: limit}
	case errors.As(err, &recursion):
		return &Error{Keyword: "$ref", Msg: "a reference leads back to itself without an object or array between", Err: nil}
	case errors.Is(err, grammar.ErrUnsatisfiable):
		return &Error{Err: errUnsatisfiable}
	}
	return err
}

var errUnsatisfiable = fmt.Errorf("no value satisfies the schema: %w", grammar.ErrUnsatisfiable)
