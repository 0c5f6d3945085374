// Package toolcall builds the grammar of tool calls in the form that Qwen models write them:
//
//	<tool_call>
//	<function=NAME>
//	<parameter=KEY>
//	VALUE
//	</parameter>
//	</function>
//	</tool_call>
//
// A value of type string is free text up to the first "\n</parameter>"; others are JSON under their schema.
// Parameters come in schema order. Required ones are present, others can be left out. One newline stands between two
// calls.
//
// Templates of Qwen3 ask for another form ([Options.JSON]), in which a call is JSON with the arguments under their schema:
//
//	<tool_call>
//	{"name": "NAME", "arguments": {...}}
//	</tool_call>
package toolcall

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/schema"
)

// Trigger is what every call begins with, for [grammar.Builder.Lazy].
const Trigger = "<tool_call>"

const end = "\n</parameter>"

// maxTools bounds the tools of one grammar.
const maxTools = 256

// A Tool is one that may be called.
type Tool struct {
	Name string
	// Parameters is the JSON Schema of its arguments. Without one it takes none.
	Parameters []byte
	// Strict makes a schema that cannot be enforced an error. Otherwise such a tool may have any arguments.
	Strict bool
}

// Options changes what calls are generated.
type Options struct {
	Schema schema.Options
	// Single ends the text after the first call; otherwise there can be more.
	Single bool
	// JSON writes calls as JSON.
	JSON bool
}

// Calls is a grammar of one or more calls.
type Calls struct {
	// Text is the calls, Rest what follows the first Trigger.
	Text, Rest grammar.Expr
	// Loose holds the error of each tool whose schema could not be enforced, by name.
	Loose map[string]error
}

// A ToolError names the tool whose name or schema cannot be used. Err can be an *schema.Error.
type ToolError struct {
	Tool string
	Err  error
}

func (e *ToolError) Error() string { return fmt.Sprintf("tool %.80q: %v", e.Tool, e.Err) }

func (e *ToolError) Unwrap() error { return e.Err }

// Build adds calls of any of some tools to a builder: of all tools of a request where one must be called, of one
// where it is named. The error is a *ToolError, a *grammar.LimitError or that of the context.
func Build(ctx context.Context, b *grammar.Builder, tools []Tool, opts Options) (*Calls, error) {
	switch {
	case len(tools) == 0:
		return nil, fmt.Errorf("grammar of tool calls: there is no tool")
	case len(tools) > maxTools:
		return nil, &grammar.LimitError{What: "tools", Limit: maxTools}
	}
	calls := &Calls{Loose: map[string]error{}}
	var alts []grammar.Expr
	names := map[string]bool{}
	for _, t := range tools {
		if names[t.Name] {
			return nil, &ToolError{t.Name, fmt.Errorf("the name occurs twice")}
		}
		names[t.Name] = true
		if !isName(t.Name) {
			return nil, &ToolError{t.Name, fmt.Errorf("the name is empty or has space, control characters, <, = or >")}
		}
		var params grammar.Expr
		err := b.Try(func() error {
			var err error
			params, err = arguments(ctx, b, t, opts)
			return err
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			if t.Strict {
				return nil, &ToolError{t.Name, err}
			}
			calls.Loose[t.Name] = err
			if params, err = free(ctx, b, opts); err != nil {
				return nil, &ToolError{t.Name, err}
			}
		}
		if err := b.Err(); err != nil {
			return nil, err
		}
		name := t.Name + ">\n"
		if opts.JSON {
			name = quoted(t.Name) + `, "arguments": `
		}
		alts = append(alts, grammar.Seq(grammar.Lit(name), params))
	}
	begin, end := "\n<function=", "</function>\n</tool_call>"
	if opts.JSON {
		begin, end = "\n{\"name\": ", "}\n</tool_call>"
	}
	body := b.New("tool call", grammar.Seq(grammar.Lit(begin), grammar.Alt(alts...), grammar.Lit(end)))
	calls.Rest = body
	if !opts.Single {
		calls.Rest = grammar.Seq(body, grammar.Repeat(grammar.Seq(grammar.Lit("\n"+Trigger), body), 0, grammar.Unbounded))
	}
	calls.Text = grammar.Seq(grammar.Lit(Trigger), calls.Rest)
	return calls, nil
}

// isName reports whether a name can stand in a tag.
func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '<' || r == '=' || r == '>' })
}

// quoted is a name as JSON.
func quoted(name string) string {
	q, _ := json.Marshal(name) // strings have a form always
	return string(q)
}

// arguments are those of one call.
func arguments(ctx context.Context, b *grammar.Builder, t Tool, opts Options) (grammar.Expr, error) {
	if !opts.JSON {
		return parameters(ctx, b, t, opts.Schema)
	}
	if len(t.Parameters) == 0 {
		return grammar.Lit("{}"), nil
	}
	e, err := schema.Build(ctx, b, t.Parameters, opts.Schema)
	if err != nil {
		return e, err
	}
	return e, check(ctx, b, e)
}

// check finds a schema that nothing satisfies, or that is only found to be too large when all is put together. That must
// not spoil the other tools.
func check(ctx context.Context, b *grammar.Builder, e grammar.Expr) error {
	_, err := b.Compile(ctx, e)
	return schema.Wrap(err)
}

func parameters(ctx context.Context, b *grammar.Builder, t Tool, opts schema.Options) (grammar.Expr, error) {
	if len(t.Parameters) == 0 {
		return grammar.Expr{}, nil
	}
	p, err := schema.BuildParameters(ctx, b, t.Parameters, opts, end)
	if err != nil {
		return grammar.Expr{}, err
	}
	var list []grammar.Expr
	for _, param := range p.List {
		if !isName(param.Name) {
			return grammar.Expr{}, fmt.Errorf("the parameter %.80q has a name that no tag can hold", param.Name)
		}
		e := parameter(grammar.Lit(param.Name), param.Value)
		if !param.Required {
			e = grammar.Opt(e)
		}
		list = append(list, e)
	}
	if p.Open {
		list = append(list, grammar.Repeat(parameter(p.OtherName, p.OtherValue), 0, grammar.Unbounded))
	}
	e := b.New("parameters", grammar.Seq(list...))
	return e, check(ctx, b, e)
}

func parameter(name, value grammar.Expr) grammar.Expr {
	return grammar.Seq(grammar.Lit("<parameter="), name, grammar.Lit(">\n"), value, grammar.Lit("\n"))
}

// free are arguments of any names and values.
func free(ctx context.Context, b *grammar.Builder, opts Options) (grammar.Expr, error) {
	opts.Schema = schema.Options{}
	return arguments(ctx, b, Tool{Parameters: []byte(`{"type":"object"}`)}, opts)
}
