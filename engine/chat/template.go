package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine/chat/jinja"
)

// ChatML is a template for models that come without one: the plain form of the Qwen models, without thinking or tools.
const ChatML = `{%- for message in messages %}
    {%- if tools or message.tool_calls %}
        {{- raise_exception('The built-in ChatML template has no tools. Leave them out, or start with the template of the model.') }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ (message.content or '') ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
`

// What the templates of Qwen models write around a message and around thinking.
const (
	turnStart  = "<|im_start|>"
	turnEnd    = "<|im_end|>"
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// A Template is a compiled chat template. It is safe for concurrent use.
type Template struct {
	source   string
	compiled *jinja.Template
	fixed    map[string]jinja.Value

	// What a few short renderings showed of it.

	// thinks is whether enable_thinking makes a difference.
	thinks bool
	// quiet is whether it does not think when enable_thinking is not said.
	quiet bool
	// tools is whether a tool makes a difference.
	tools bool
	// joinParts is whether it cannot read a content in parts, which then becomes one string.
	joinParts bool
	// noNull is whether it cannot read a content of null beside tool calls, which then becomes an empty string.
	noNull bool
}

// A TemplateOption changes how a template works.
type TemplateOption func(*templateOptions)

type templateOptions struct {
	fixed map[string]jinja.Value
	now   func() time.Time
}

// WithToken gives the template the text of a token of the model, by a name such as bos_token.
func WithToken(name, text string) TemplateOption {
	return func(o *templateOptions) { o.fixed[name] = jinja.Trusted(text) }
}

// WithClock sets what the template's strftime_now reads; the default is time.Now.
func WithClock(now func() time.Time) TemplateOption {
	return func(o *templateOptions) { o.now = now }
}

// Compile reads a template, such as a model's tokenizer.chat_template. The name is for error messages, which say where in
// the template something is not supported: they are [*jinja.Error].
func Compile(name, source string, opts ...TemplateOption) (*Template, error) {
	o := templateOptions{fixed: make(map[string]jinja.Value), now: time.Now}
	for _, f := range opts {
		f(&o)
	}
	compiled, err := jinja.Compile(name, source, jinja.WithClock(o.now))
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	t := &Template{source: source, compiled: compiled, fixed: o.fixed}
	t.probe()
	return t, nil
}

// probe finds out what the template makes of a few messages.
func (t *Template) probe() {
	render := func(thinking *bool, messages ...Message) (string, bool) {
		vars := map[string]jinja.Value{"add_generation_prompt": jinja.Bool(true)}
		if thinking != nil {
			vars["enable_thinking"] = jinja.Bool(*thinking)
		}
		stretches, err := t.execute(context.Background(), vars, messages, nil)
		return plain(stretches), err == nil
	}
	// same is whether both are rendered, and equally.
	same := func(a, b string, aok, bok bool) bool { return aok && bok && a == b }

	const text = "What is the weather?"
	user := NewMessage(RoleUser, text)
	yes, no := true, false
	on, onOK := render(&yes, user)
	off, offOK := render(&no, user)
	t.thinks = onOK && offOK && on != off
	said, saidOK := render(nil, user)
	t.quiet = t.thinks && saidOK && said == off

	tool := jinja.NewMap()
	function := jinja.NewMap()
	function.Set(jinja.Request("name"), jinja.Request("f"))
	tool.Set(jinja.Request("type"), jinja.Request("function"))
	tool.Set(jinja.Request("function"), function)
	vars := map[string]jinja.Value{"add_generation_prompt": jinja.Bool(true)}
	told, err := t.execute(context.Background(), vars, []Message{user}, []Tool{{Name: "f", Definition: tool}})
	t.tools = err == nil && saidOK && plain(told) != said

	a, aok := render(nil, user)
	b, bok := render(nil, Message{Role: RoleUser, Parts: []string{text}})
	t.joinParts = !same(a, b, aok, bok)

	call := Message{Role: RoleAssistant, ToolCalls: []ToolCall{{ID: "call_1", Name: "f", Arguments: jinja.NewMap()}}}
	empty := call
	empty.Text = new(string)
	a, aok = render(nil, user, empty, NewMessage(RoleTool, "r"))
	b, bok = render(nil, user, call, NewMessage(RoleTool, "r"))
	t.noNull = !same(a, b, aok, bok)
}

// Source returns what was compiled.
func (t *Template) Source() string { return t.source }

// JSONCalls reports whether the template asks for tool calls as JSON objects, as those of Qwen3 do, and not for functions with
// parameters in tags.
func (t *Template) JSONCalls() bool {
	return strings.Contains(t.source, "<tool_call>") && !strings.Contains(t.source, "<function=")
}

// Thinks reports whether the template can switch thinking on and off.
func (t *Template) Thinks() bool { return t.thinks }

// ThinksUnasked reports whether it thinks where nobody says whether to.
func (t *Template) ThinksUnasked() bool { return t.thinks && !t.quiet }

// Tools reports whether the template puts tools into the prompt.
func (t *Template) Tools() bool { return t.tools }

// Options are what a request says beside its messages.
type Options struct {
	Tools []Tool
	// Thinking is enable_thinking; nil leaves it to the template, see [Template.ThinksUnasked].
	Thinking *bool
	// ReasoningEffort is none, minimal, low, medium, high, xhigh, max, or empty.
	ReasoningEffort string
	// GenerationPrompt is add_generation_prompt. nil is true, unless the last message is the assistant's: that one is then
	// continued.
	GenerationPrompt *bool
	// MergeSystem takes system messages that are not at the start as part of the first one, instead of refusing them.
	MergeSystem bool
	// Kwargs are more variables for the template (chat_template_kwargs), such as preserve_thinking or add_vision_id.
	Kwargs *jinja.Map
}

// A Think is where an answer starts.
type Think uint8

const (
	// ThinkFree is a prompt that says nothing of thinking: an answer that begins with <think> thinks.
	ThinkFree Think = iota
	// ThinkOpen is a prompt that ends inside of <think>: the answer begins with reasoning.
	ThinkOpen
	// ThinkClosed is a prompt after which no reasoning comes.
	ThinkClosed
)

// A Prompt is a rendered conversation.
type Prompt struct {
	Stretches []Stretch
	Think     Think
	// Thinking is whether the model was asked to think, which the default sampling depends on.
	Thinking bool
	// Continues is whether the prompt ends inside of the assistant's last message.
	Continues bool
}

// Text returns the prompt without its marks.
func (p *Prompt) Text() string { return plain(p.Stretches) }

func plain(stretches []Stretch) string {
	var b strings.Builder
	for _, s := range stretches {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Render makes a prompt of a conversation. Errors are [*RequestError], or the context's.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) (*Prompt, error) {
	vars, thinking, err := t.variables(&o)
	if err != nil {
		return nil, err
	}
	messages, err = mergeSystem(messages, o.MergeSystem)
	if err != nil {
		return nil, err
	}
	p := &Prompt{Thinking: thinking}
	generate := true
	if o.GenerationPrompt != nil {
		generate = *o.GenerationPrompt
	} else if n := len(messages); n > 0 && messages[n-1].Role == RoleAssistant {
		if err := t.canContinue(messages, thinking); err != nil {
			return nil, err
		}
		generate, p.Continues = false, true
	}
	vars["add_generation_prompt"] = jinja.Bool(generate)
	if p.Stretches, err = t.execute(ctx, vars, messages, o.Tools); err != nil {
		return nil, renderError(err)
	}
	if p.Continues {
		if p.Stretches, err = reopen(p.Stretches); err != nil {
			return nil, err
		}
		p.Think = ThinkClosed
	} else {
		p.Think = thinkAtEnd(p.Stretches)
	}
	return p, nil
}

// lastField names the last message in errors.
func lastField(messages []Message) string { return fmt.Sprintf("messages[%d]", len(messages)-1) }

// canContinue checks that the last message, the assistant's, can be continued.
func (t *Template) canContinue(messages []Message, thinking bool) error {
	switch last := &messages[len(messages)-1]; {
	case thinking:
		return invalid(lastField(messages), "has the role assistant, so it would be continued, which is not possible with thinking on; "+
			"set enable_thinking to false, or end with another message")
	case len(last.ToolCalls) > 0:
		return invalid(lastField(messages), "ends with tool calls; send a message with the role tool for each of them")
	}
	return nil
}

// reopen takes the end of the last turn off a prompt.
func reopen(stretches []Stretch) ([]Stretch, error) {
	if n := len(stretches); n > 0 && stretches[n-1].Trusted {
		last := strings.TrimRight(stretches[n-1].Text, "\n")
		if body, ok := strings.CutSuffix(last, turnEnd); ok {
			out := append([]Stretch(nil), stretches[:n-1]...)
			if body != "" {
				out = append(out, Stretch{Text: body, Trusted: true})
			}
			return out, nil
		}
	}
	return nil, notSupported("messages", "end with the assistant's, and with this model's template that message cannot be continued; end with another one")
}

// thinkAtEnd looks for thinking in what the template wrote after the last thing that came from the client.
func thinkAtEnd(stretches []Stretch) Think {
	n := len(stretches)
	if n == 0 || !stretches[n-1].Trusted {
		return ThinkFree
	}
	tail := stretches[n-1].Text
	if i := strings.LastIndex(tail, turnStart); i >= 0 {
		tail = tail[i:]
	}
	open, closed := strings.LastIndex(tail, thinkOpen), strings.LastIndex(tail, thinkClose)
	switch {
	case open > closed:
		return ThinkOpen
	case closed >= 0:
		return ThinkClosed
	}
	return ThinkFree
}

// renderError makes an error of the template one of the request, which most are: a template refuses messages with
// raise_exception, or fails on something that it did not expect.
func renderError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if raised, ok := errors.AsType[*jinja.RaisedError](err); ok {
		return &RequestError{Invalid, "messages", raised.Message, err}
	}
	return &RequestError{Invalid, "messages", "the chat template of the model cannot render them: " + err.Error(), err}
}

// variables returns the variables of the request's options, and whether the model is to think.
func (t *Template) variables(o *Options) (vars map[string]jinja.Value, thinking bool, err error) {
	vars = make(map[string]jinja.Value)
	effort, effortField := o.ReasoningEffort, "reasoning_effort"
	enable := o.Thinking
	if o.Kwargs != nil {
		for key, v := range o.Kwargs.All() {
			name := key.String()
			field := "chat_template_kwargs." + name
			switch name {
			case "messages", "tools", "add_generation_prompt":
				return nil, false, invalid(field, "cannot be set there; it is a field of the request")
			case "enable_thinking":
				b, ok := v.(jinja.Bool)
				if !ok {
					return nil, false, invalid(field, "must be true or false")
				}
				if enable == nil {
					enable = new(bool(b))
				}
			case "reasoning_effort":
				s, ok := v.(jinja.Text)
				if !ok {
					return nil, false, invalid(field, "must be a string")
				}
				if effort == "" {
					effort, effortField = s.String(), field
				}
			default:
				if jinja.IsGlobal(name) || t.fixed[name] != nil {
					return nil, false, invalid(field, "cannot be set; the template has something else by that name")
				}
				vars[name] = v
			}
		}
	}
	if effort != "" {
		level, ok := efforts[effort]
		switch {
		case !ok:
			return nil, false, invalid(effortField, "is %.40q; it must be none, minimal, low, medium, high, xhigh or max", effort)
		case level != "":
			vars["reasoning_effort"] = jinja.Trusted(level)
		case enable != nil && *enable:
			return nil, false, invalid(effortField, "is none although enable_thinking is true; leave one of them out")
		default:
			enable = new(bool)
		}
	}
	thinking = t.thinks && !t.quiet
	if enable != nil {
		vars["enable_thinking"] = jinja.Bool(*enable)
		thinking = t.thinks && *enable
	}
	return vars, thinking, nil
}

// efforts are the values of reasoning_effort and what Qwen's templates call them. They know three and refuse others; no effort
// means no thinking (specification, 3.4).
var efforts = map[string]string{
	"none": "", "minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh", "max": "xhigh",
}

// mergeSystem makes one of the system messages at the start, and of all of them if later ones are allowed.
func mergeSystem(messages []Message, all bool) ([]Message, error) {
	leading := 0
	for leading < len(messages) && messages[leading].Role == RoleSystem {
		leading++
	}
	system := messages[:leading:leading]
	var rest []Message
	for i, m := range messages[leading:] {
		switch {
		case m.Role != RoleSystem:
			rest = append(rest, m)
		case all:
			system = append(system, m)
		default:
			return nil, invalid(fmt.Sprintf("messages[%d].role", leading+i), "is system after another role; put system messages first")
		}
	}
	if len(system) > 1 {
		texts := make([]string, len(system))
		for i, m := range system {
			texts[i] = m.joined()
		}
		system = []Message{NewMessage(RoleSystem, strings.Join(texts, "\n"))}
	}
	return append(system[:len(system):len(system)], rest...), nil
}

// joined returns the content as one string.
func (m *Message) joined() string {
	if m.Text != nil {
		return *m.Text
	}
	return strings.Join(m.Parts, "")
}

// execute runs the template.
func (t *Template) execute(ctx context.Context, vars map[string]jinja.Value, messages []Message, tools []Tool) ([]Stretch, error) {
	list := make([]jinja.Value, len(messages))
	size := 0
	for i := range messages {
		list[i] = t.message(&messages[i])
		size += jinja.Size(list[i])
	}
	vars["messages"] = jinja.NewList(list...)
	if len(tools) > 0 {
		list := make([]jinja.Value, len(tools))
		for i, tool := range tools {
			definition := tool.Definition
			if definition == nil {
				definition = jinja.NewMap()
			}
			list[i] = definition
			size += jinja.Size(definition)
		}
		vars["tools"] = jinja.NewList(list...)
	}
	for name, v := range t.fixed {
		vars[name] = v
	}
	return t.compiled.Render(ctx, vars, jinja.LimitsFor(size))
}

// message makes a message what templates expect. All of its text is marked as the client's.
func (t *Template) message(m *Message) jinja.Value {
	v := jinja.NewMap()
	set := func(name string, x jinja.Value) { v.Set(jinja.Trusted(name), x) }
	set("role", jinja.Request(m.Role))
	switch {
	case m.Text != nil:
		set("content", jinja.Request(*m.Text))
	case m.Parts != nil && !t.joinParts:
		parts := make([]jinja.Value, len(m.Parts))
		for i, text := range m.Parts {
			part := jinja.NewMap()
			part.Set(jinja.Trusted("type"), jinja.Trusted("text"))
			part.Set(jinja.Trusted("text"), jinja.Request(text))
			parts[i] = part
		}
		set("content", jinja.NewList(parts...))
	case m.Parts != nil || t.noNull:
		set("content", jinja.Request(m.joined()))
	default:
		set("content", jinja.None{})
	}
	if m.Reasoning != nil {
		set("reasoning_content", jinja.Request(*m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			calls[i] = c.value()
		}
		set("tool_calls", jinja.NewList(calls...))
	}
	if m.ToolCallID != "" {
		set("tool_call_id", jinja.Request(m.ToolCallID))
	}
	if m.Name != "" {
		set("name", jinja.Request(m.Name))
	}
	return v
}

func (c *ToolCall) value() jinja.Value {
	f := jinja.NewMap()
	f.Set(jinja.Trusted("name"), jinja.Request(c.Name))
	arguments := c.Arguments
	if arguments == nil {
		arguments = jinja.NewMap()
	}
	f.Set(jinja.Trusted("arguments"), arguments)
	v := jinja.NewMap()
	if c.ID != "" {
		v.Set(jinja.Trusted("id"), jinja.Request(c.ID))
	}
	v.Set(jinja.Trusted("type"), jinja.Trusted("function"))
	v.Set(jinja.Trusted("function"), f)
	return v
}
