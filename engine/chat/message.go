package chat

import (
	"fmt"

	"github.com/calderaml/caldera/engine/chat/jinja"
)

// The roles that there are once messages are read; developer becomes system.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// A Message is one of a conversation.
type Message struct {
	Role string
	// Text is the content; nil when it was null or came in Parts.
	Text *string
	// Parts are the texts of a content that came in parts; nil otherwise.
	Parts []string
	// Reasoning is what the assistant thought, if the client sent it.
	Reasoning  *string
	ToolCalls  []ToolCall
	ToolCallID string // of the call that a tool's message answers
	Name       string
}

// NewMessage returns a message of plain text.
func NewMessage(role, text string) Message { return Message{Role: role, Text: &text} }

// A ToolCall is a call that an assistant made.
type ToolCall struct {
	ID, Name  string
	Arguments *jinja.Map // in the order that they were sent in
}

// A Tool is a function that the model may call.
type Tool struct {
	Name string
	// Definition is the tool as the client sent it, which is what templates print.
	Definition *jinja.Map
	// Parameters is the JSON schema of its arguments, nil without one.
	Parameters *jinja.Map
}

// Bounds of a request, far above what is used.
const (
	maxMessages = 100_000
	maxTools    = 1024
	maxName     = 256 // bytes of the name of a tool
)

// decode reads JSON and calls the result the value of a field.
func decode(field, data string) (jinja.Value, error) {
	v, err := jinja.DecodeJSON(data)
	if err != nil {
		return nil, &RequestError{Invalid, field, err.Error(), err}
	}
	return v, nil
}

// ParseMessages reads the messages of a request, a JSON list. Errors are [*RequestError].
func ParseMessages(data string) ([]Message, error) {
	const field = "messages"
	v, err := decode(field, data)
	if err != nil {
		return nil, err
	}
	list, ok := v.(*jinja.List)
	switch {
	case !ok:
		return nil, invalid(field, "must be a list of messages")
	case list.Len() == 0:
		return nil, invalid(field, "is empty; send at least one message")
	case list.Len() > maxMessages:
		return nil, invalid(field, "has %d messages; at most %d are possible", list.Len(), maxMessages)
	}
	messages := make([]Message, list.Len())
	for i, item := range list.All() {
		if err := messages[i].read(object{field: fmt.Sprintf("%s[%d]", field, i)}, item); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// An object is a JSON object of the request that is being read, with where it is.
type object struct {
	field string
	*jinja.Map
}

// in makes an object of a value.
func (o *object) in(v jinja.Value) error {
	m, ok := v.(*jinja.Map)
	if !ok {
		return invalid(o.field, "must be an object")
	}
	o.Map = m
	return nil
}

// get returns an entry, and nil for one that is null or not there.
func (o *object) get(name string) jinja.Value {
	v, ok := o.Get(name)
	if _, null := v.(jinja.None); null || !ok {
		return nil
	}
	return v
}

// at is where an entry is.
func (o *object) at(name string) string { return o.field + "." + name }

// text returns an entry that is a string, and nil for one that is null or not there.
func (o *object) text(name string) (*string, error) {
	switch v := o.get(name).(type) {
	case nil:
		return nil, nil
	case jinja.Text:
		s := v.String()
		return &s, nil
	}
	return nil, invalid(o.at(name), "must be a string")
}

// read takes over a message.
func (m *Message) read(o object, v jinja.Value) error {
	if err := o.in(v); err != nil {
		return err
	}
	role, err := o.text("role")
	if err != nil {
		return err
	}
	if role == nil {
		return invalid(o.at("role"), "is missing; it must be system, developer, user, assistant or tool")
	}
	switch m.Role = *role; m.Role {
	case RoleSystem, RoleUser, RoleAssistant, RoleTool:
	case "developer":
		m.Role = RoleSystem
	default:
		return invalid(o.at("role"), "is %.40q; it must be system, developer, user, assistant or tool", *role)
	}
	for _, name := range []string{"function_call", "audio"} {
		if o.get(name) != nil {
			return notSupported(o.at(name), "is not supported; leave it out")
		}
	}
	if err := m.readContent(o); err != nil {
		return err
	}
	if m.Reasoning, err = o.text("reasoning_content"); err != nil {
		return err
	}
	if m.Reasoning == nil {
		if m.Reasoning, err = o.text("reasoning"); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{"name", &m.Name}, {"tool_call_id", &m.ToolCallID}} {
		s, err := o.text(f.name)
		if err != nil {
			return err
		}
		if s != nil {
			*f.to = *s
		}
	}
	return m.readCalls(o)
}

// readContent reads a content of null, a string or parts.
func (m *Message) readContent(o object) error {
	switch v := o.get("content").(type) {
	case nil:
		switch m.Role {
		case RoleAssistant:
		case RoleTool: // a tool that returned nothing
			m.Text = new(string)
		default:
			return invalid(o.at("content"), "is missing; a message with the role %s needs one", m.Role)
		}
	case jinja.Text:
		s := v.String()
		m.Text = &s
	case *jinja.List:
		m.Parts = []string{}
		for i, item := range v.All() {
			part := object{field: fmt.Sprintf("%s[%d]", o.at("content"), i)}
			if err := part.in(item); err != nil {
				return err
			}
			kind, err := part.text("type")
			if err != nil {
				return err
			}
			if kind == nil {
				return invalid(part.at("type"), "is missing; it must be text")
			}
			if *kind != "text" {
				return notSupported(part.at("type"), "is %.40q; this model only reads parts of the type text", *kind)
			}
			text, err := part.text("text")
			if err != nil {
				return err
			}
			if text == nil {
				return invalid(part.at("text"), "is missing")
			}
			m.Parts = append(m.Parts, *text)
		}
	default:
		return invalid(o.at("content"), "must be a string, a list of parts or null")
	}
	return nil
}

func (m *Message) readCalls(o object) error {
	v := o.get("tool_calls")
	if v == nil {
		return nil
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return invalid(o.at("tool_calls"), "must be a list of tool calls")
	}
	if list.Len() > 0 && m.Role != RoleAssistant {
		return invalid(o.at("tool_calls"), "is only possible in a message with the role assistant, not %s", m.Role)
	}
	m.ToolCalls = make([]ToolCall, list.Len())
	for i, item := range list.All() {
		if err := m.ToolCalls[i].read(object{field: fmt.Sprintf("%s[%d]", o.at("tool_calls"), i)}, item); err != nil {
			return err
		}
	}
	return nil
}

// read takes over a call: an object with "function", or, as some clients store it, the function's fields alone.
func (c *ToolCall) read(o object, v jinja.Value) error {
	if err := o.in(v); err != nil {
		return err
	}
	if err := onlyFunction(o); err != nil {
		return err
	}
	id, err := o.text("id")
	if err != nil {
		return err
	}
	if id != nil {
		c.ID = *id
	}
	f := o
	if v := o.get("function"); v != nil {
		f = object{field: o.at("function")}
		if err := f.in(v); err != nil {
			return err
		}
	}
	if c.Name, err = f.name(); err != nil {
		return err
	}
	return c.readArguments(f)
}

// readArguments reads an object, or a string that holds one as JSON, which is what OpenAI's clients send; templates want to walk
// through it. No arguments are an empty object.
func (c *ToolCall) readArguments(f object) error {
	field := f.at("arguments")
	v := f.get("arguments")
	if t, ok := v.(jinja.Text); ok {
		v = nil
		if t.String() != "" {
			var err error
			if v, err = decode(field, t.String()); err != nil {
				return err
			}
		}
	}
	switch v := v.(type) {
	case nil, jinja.None:
		c.Arguments = jinja.NewMap()
	case *jinja.Map:
		c.Arguments = v
	default:
		return invalid(field, "must be a JSON object, or a string that holds one")
	}
	return nil
}

// onlyFunction refuses tools and calls of another type than function.
func onlyFunction(o object) error {
	kind, err := o.text("type")
	if err != nil {
		return err
	}
	if kind != nil && *kind != "function" {
		return notSupported(o.at("type"), "is %.40q; only function is supported", *kind)
	}
	return nil
}

// name returns the name of a function.
func (o *object) name() (string, error) {
	name, err := o.text("name")
	switch {
	case err != nil:
		return "", err
	case name == nil || *name == "":
		return "", invalid(o.at("name"), "is missing; a function needs one")
	case len(*name) > maxName:
		return "", invalid(o.at("name"), "has %d bytes; at most %d are possible", len(*name), maxName)
	}
	return *name, nil
}

// ParseTools reads the tools of a request, a JSON list or null. Errors are [*RequestError].
func ParseTools(data string) ([]Tool, error) {
	const field = "tools"
	v, err := decode(field, data)
	if err != nil {
		return nil, err
	}
	if _, null := v.(jinja.None); null {
		return nil, nil
	}
	list, ok := v.(*jinja.List)
	switch {
	case !ok:
		return nil, invalid(field, "must be a list of tools")
	case list.Len() > maxTools:
		return nil, invalid(field, "has %d tools; at most %d are possible", list.Len(), maxTools)
	}
	tools := make([]Tool, list.Len())
	seen := make(map[string]bool)
	for i, item := range list.All() {
		o := object{field: fmt.Sprintf("%s[%d]", field, i)}
		if err := tools[i].read(o, item); err != nil {
			return nil, err
		}
		if name := tools[i].Name; seen[name] {
			return nil, invalid(o.at("function.name"), "is %.40q, which another tool has too", name)
		}
		seen[tools[i].Name] = true
	}
	return tools, nil
}

func (t *Tool) read(o object, v jinja.Value) error {
	if err := o.in(v); err != nil {
		return err
	}
	if err := onlyFunction(o); err != nil {
		return err
	}
	f := object{field: o.at("function")}
	if o.get("function") == nil {
		return invalid(f.field, "is missing; a tool is {\"type\": \"function\", \"function\": {\"name\": …}}")
	}
	if err := f.in(o.get("function")); err != nil {
		return err
	}
	var err error
	if t.Name, err = f.name(); err != nil {
		return err
	}
	t.Definition = o.Map
	switch v := f.get("parameters").(type) {
	case nil:
	case *jinja.Map:
		t.Parameters = v
	default:
		return invalid(f.at("parameters"), "must be an object, a JSON schema")
	}
	return nil
}

// ParseKwargs reads chat_template_kwargs, a JSON object or null. Errors are [*RequestError].
func ParseKwargs(data string) (*jinja.Map, error) {
	const field = "chat_template_kwargs"
	v, err := decode(field, data)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case jinja.None:
		return nil, nil
	case *jinja.Map:
		return v, nil
	}
	return nil, invalid(field, "must be an object")
}
