package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/gbnf"
	"github.com/calderaml/caldera/engine/grammar/pattern"
	"github.com/calderaml/caldera/engine/grammar/schema"
	"github.com/calderaml/caldera/engine/grammar/toolcall"
)

// Kinds of formats.
const (
	formatNone = iota
	formatObject
	formatSchema
	formatGBNF
	formatPattern
	formatChoice
)

// A format is the form that a client wants an answer to have.
type format struct {
	kind    int
	source  string   // a schema, grammar or pattern
	choices []string // of formatChoice
	strict  bool     // of a schema: without any space
	field   string   // of the request, for errors
}

// maxFormat is the most bytes of a format.
const maxFormat = 1 << 20

// readFormat reads the fields that ask for a form: OpenAI's response_format, llama-server's json_schema and grammar, and
// vLLM's structured_outputs.
func readFormat(b *body) format {
	var f format
	set := func(x format) {
		switch {
		case f.kind != formatNone && b.err == nil:
			b.fail(x.field, "the request asks for a form with %s too; leave one out", f.field)
		case len(x.source) > maxFormat:
			b.fail(x.field, "has %d bytes; at most %d are possible", len(x.source), maxFormat)
		default:
			f = x
		}
	}
	if o, ok := b.object("response_format"); ok {
		const field = "response_format"
		kind, _ := o.text("type")
		switch kind {
		case "text":
		case "json_object":
			if v := o.raw("schema"); v != nil { // llama-server
				set(format{kind: formatSchema, source: string(v), field: field + ".schema"})
			} else {
				set(format{kind: formatObject, field: field})
			}
		case "json_schema":
			from, at := o, field
			if in, ok := o.object("json_schema"); ok {
				from, at = in, field+".json_schema"
			}
			from.text("name")
			from.text("description")
			strict := from.truth("strict", false)
			if v := from.raw("schema"); v != nil {
				set(format{kind: formatSchema, source: string(v), strict: strict, field: at + ".schema"})
			} else {
				from.fail("schema", "is missing")
			}
			o.join(from)
		default:
			o.fail("type", "%.40q is not possible; use text, json_object or json_schema", kind)
		}
		b.join(o)
	}
	if v := b.raw("json_schema"); v != nil {
		set(format{kind: formatSchema, source: string(v), field: "json_schema"})
	}
	if g, ok := b.text("grammar"); ok && g != "" {
		set(format{kind: formatGBNF, source: g, field: "grammar"})
	}
	if o, ok := b.object("structured_outputs"); ok {
		const field = "structured_outputs."
		if v := o.raw("json"); v != nil {
			set(format{kind: formatSchema, source: string(v), field: field + "json"})
		}
		if p, ok := o.text("regex"); ok {
			set(format{kind: formatPattern, source: p, field: field + "regex"})
		}
		if list, ok := o.texts("choice", maxBiases); ok {
			set(format{kind: formatChoice, choices: list, field: field + "choice"})
		}
		if g, ok := o.text("grammar"); ok {
			set(format{kind: formatGBNF, source: g, field: field + "grammar"})
		}
		for _, name := range o.unknown() {
			o.fail(name, "is not supported")
		}
		b.join(o)
	}
	return f
}

// A toolChoice is which tools an answer must call.
type toolChoice struct {
	kind string // auto, none, required, or named
	name string
}

// compileTimeout is the most time that compiling a format may take.
const compileTimeout = 5 * time.Second

// constraint is all that constrains an answer.
type constraint struct {
	format format
	tools  []toolcall.Tool
	choice toolChoice
	single bool // one call at most
	json   bool // calls are JSON
	think  chat.Think
}

// compile makes the grammar of an answer, nil for one that is free. It runs in the request's own goroutine.
func (m *served) compile(ctx context.Context, c constraint) (*grammar.Grammar, error) {
	must := c.choice.kind == "required" || c.choice.kind == "named"
	strict := false
	for _, t := range c.tools {
		strict = strict || t.Strict
	}
	free := c.format.kind == formatNone
	if free && !must && (!strict || c.choice.kind == "none") {
		return nil, nil
	}
	desc, err := json.Marshal([]any{c.format.kind, c.format.source, c.format.choices, c.format.strict, c.tools, c.choice.kind, c.choice.name, c.single, c.json, c.think})
	if err != nil {
		return nil, err
	}
	return m.grammars.get(sha256.Sum256(desc), func() (*grammar.Grammar, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, compileTimeout, errSlow)
		defer cancel()
		b := grammar.NewBuilder(grammar.Limits{})
		x, err := c.build(ctx, b, must)
		if err != nil {
			return nil, c.explain(ctx, err)
		}
		g, err := b.Compile(ctx, x)
		return g, c.explain(ctx, err)
	})
}

var errSlow = errors.New("compiling the grammar took too long")

// explain says which field an error is about.
func (c *constraint) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	field := c.format.field
	if field == "" {
		field = "tools"
	}
	if errors.Is(context.Cause(ctx), errSlow) {
		return invalid(field, "compiling it took more than %s; make it simpler", compileTimeout)
	}
	var tool *toolcall.ToolError
	if errors.As(err, &tool) {
		return invalid("tools", "%s", err)
	}
	if e := asError(err); e.Status == 400 {
		return invalid(field, "%s", e.Message)
	}
	return err
}

// build makes the expression of an answer.
func (c *constraint) build(ctx context.Context, b *grammar.Builder, must bool) (grammar.Expr, error) {
	var x grammar.Expr
	var err error
	if len(c.tools) > 0 && c.choice.kind != "none" {
		tools := c.tools
		if c.choice.kind == "named" {
			tools = nil
			for _, t := range c.tools {
				if t.Name == c.choice.name {
					tools = append(tools, t)
				}
			}
		}
		calls, err := toolcall.Build(ctx, b, tools, toolcall.Options{Single: c.single || c.choice.kind == "named", JSON: c.json})
		if err != nil {
			return x, err
		}
		switch {
		case must:
			x = calls.Text
		case c.format.kind == formatNone:
			// The answer is free until a call begins, also in thinking.
			return b.Lazy(toolcall.Trigger, calls.Rest), nil
		default:
			if x, err = c.format.build(ctx, b); err != nil {
				return x, err
			}
			x = grammar.Alt(x, calls.Text)
		}
	} else if x, err = c.format.build(ctx, b); err != nil {
		return x, err
	}
	switch c.think {
	case chat.ThinkOpen:
		x = b.After("</think>", x)
	case chat.ThinkFree:
		x = grammar.Alt(x, grammar.Seq(grammar.Lit("<think>"), b.After("</think>", x)))
	}
	return x, nil
}

// build makes the expression of a format.
func (f *format) build(ctx context.Context, b *grammar.Builder) (grammar.Expr, error) {
	opts := schema.Options{Whitespace: !f.strict}
	switch f.kind {
	case formatObject:
		return schema.BuildObject(ctx, b, opts)
	case formatSchema:
		return schema.Build(ctx, b, []byte(f.source), opts)
	case formatGBNF:
		return gbnf.Build(ctx, b, f.source)
	case formatPattern:
		return pattern.Whole(ctx, b, f.source)
	case formatChoice:
		return grammar.Choice(f.choices...), nil
	}
	return grammar.Expr{}, fmt.Errorf("format %d", f.kind)
}
