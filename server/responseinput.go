package server

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/chat"
)

// readInput reads instructions and input.
func (x *responseRequest) readInput(b *body) []openMessage {
	t := &transcript{}
	if x.echo.Instructions != nil && *x.echo.Instructions != "" {
		t.add(chat.RoleSystem, *x.echo.Instructions, origin{item: "instructions", content: "instructions"})
	}
	const name = "input"
	switch v := b.raw(name); {
	case v == nil:
		b.fail(name, "is missing; send a text or a list of items")
	case v[0] == '"':
		text, _ := b.text(name)
		t.add(chat.RoleUser, text, origin{item: name, content: name})
	case v[0] != '[':
		b.fail(name, "must be a string or a list of items")
	default:
		items, ok := b.items(name, maxItems)
		if ok && len(items) == 0 {
			b.fail(name, "is empty; send at least one item")
		}
		for _, o := range items {
			t.item(o)
			b.join(o)
		}
	}
	if n := len(t.messages); n > 0 && len(t.messages[n-1].Calls) > 0 {
		from := t.from[n-1].calls
		b.fail(from[len(from)-1], "ends the input with a function_call; send a function_call_output for each of them")
	}
	x.from = t.from
	return t.messages
}

// A transcript puts the messages of a conversation together out of the items of an input.
type transcript struct {
	messages []openMessage
	from     []origin
}

// add adds a message.
func (t *transcript) add(role, text string, from origin) {
	t.messages, t.from = append(t.messages, openMessage{Role: role, Content: text}), append(t.from, from)
}

// assistant returns the assistant's message that the next item is part of. What the model gave in one answer comes as several
// items: reasoning, text and calls. Once there is text, and no call after it, reasoning or text are those of another answer.
func (t *transcript) assistant(o *body, call bool) (*openMessage, *origin) {
	n := len(t.messages)
	if n == 0 || t.messages[n-1].Role != chat.RoleAssistant ||
		!call && t.messages[n-1].Content != nil && len(t.messages[n-1].Calls) == 0 {
		t.messages, t.from = append(t.messages, openMessage{Role: chat.RoleAssistant}), append(t.from, origin{item: o.place()})
		n++
	}
	return &t.messages[n-1], &t.from[n-1]
}

// place is where an object is in the request.
func (b *body) place() string { return strings.TrimSuffix(b.path, ".") }

// item takes in an item.
func (t *transcript) item(o *body) {
	kind, _ := o.text("type")
	if kind == "" && o.has("role") {
		kind = "message" // as clients may write it
	}
	switch kind {
	case "message":
		t.message(o)
	case "reasoning":
		t.reasoning(o)
	case "function_call":
		t.call(o)
	case "function_call_output":
		text := contentOf(o, "output", "input_text", "output_text", "text")
		id, ok := o.text("call_id")
		if !ok {
			o.fail("call_id", "is missing; it says which function_call this is the output of")
		}
		t.add(chat.RoleTool, text, origin{item: o.place(), content: o.path + "output"})
		t.messages[len(t.messages)-1].CallID = id
	case "":
		o.fail("type", "is missing; use message, reasoning, function_call or function_call_output")
	default:
		o.refuse("type", "%.40q is not supported; use message, reasoning, function_call or function_call_output", kind)
	}
}

// message takes in a message, also one of the assistant.
func (t *transcript) message(o *body) {
	text := contentOf(o, "content", "input_text", "output_text", "text")
	switch role, _ := o.text("role"); role {
	case chat.RoleUser, chat.RoleSystem, "developer":
		t.add(role, text, origin{item: o.place(), content: o.path + "content"})
	case chat.RoleAssistant:
		m, from := t.assistant(o, false)
		if before, ok := m.Content.(string); ok {
			text = before + text
		}
		m.Content, from.content = text, o.path+"content"
	default:
		o.fail("role", "is %.40q; it must be user, assistant, system or developer", role)
	}
}

// reasoning takes in what the model thought. Others' may be there as a summary alone, or not at all.
func (t *transcript) reasoning(o *body) {
	text := ""
	if o.has("content") {
		text = contentOf(o, "content", "reasoning_text", "text")
	}
	if text == "" && o.has("summary") {
		text = contentOf(o, "summary", "summary_text")
	}
	if text == "" {
		return
	}
	m, from := t.assistant(o, false)
	if from.thought == nil {
		from.thought = new(strings.Builder)
	}
	from.thought.WriteString(text)
	m.Reasoning, from.reasoning = new(from.thought.String()), o.place()
}

// call takes in a call of a function.
func (t *transcript) call(o *body) {
	c := openCall{Type: "function"}
	var ok bool
	if c.ID, ok = o.text("call_id"); !ok {
		o.fail("call_id", "is missing")
	}
	c.Function.Name, _ = o.text("name")
	arguments, _ := o.text("arguments")
	c.Function.Arguments, _ = json.Marshal(arguments) // a string always has a form
	m, from := t.assistant(o, true)
	m.Calls, from.calls = append(m.Calls, c), append(from.calls, o.place())
}

// contentOf returns a field that is a string or a list of parts, of which all are text of some kinds. Not every template
// reads parts.
func contentOf(o *body, name string, kinds ...string) string {
	v := o.raw(name)
	switch {
	case v == nil:
		o.fail(name, "is missing")
		return ""
	case v[0] == '"':
		s, _ := o.text(name)
		return s
	case v[0] != '[':
		o.fail(name, "must be a string or a list of parts")
		return ""
	}
	parts, _ := o.items(name, maxParts)
	var text strings.Builder
	for _, p := range parts {
		field := "text"
		switch kind, _ := p.text("type"); {
		case slices.Contains(kinds, kind):
		case kind == "refusal":
			field = kind
		default:
			p.refuse("type", "%.40q is not supported; this model only reads parts of the type %s", kind, kinds[0])
		}
		s, ok := p.text(field)
		if !ok {
			p.fail(field, "is missing")
		}
		text.WriteString(s)
		o.join(p)
	}
	return text.String()
}
