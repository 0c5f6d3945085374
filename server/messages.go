package server

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"

	"github.com/calderaml/caldera/engine/chat"
)

// The Anthropic messages API (specification, 6.6): its requests become conversations in OpenAI's form, which are then read
// as all others are.

// messagesForm is the form of the API's errors.
func messagesForm(e *apiError) any {
	kind := e.Type
	switch kind {
	case typeContext, typeNotSupported:
		kind = typeInvalid
	case typeServer:
		kind = "api_error"
	case typeUnavailable:
		kind = "overloaded_error"
	}
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": e.Message}}
}

// openMessage is a message in OpenAI's form.
type openMessage struct {
	Role      string     `json:"role"`
	Content   any        `json:"content"`
	Reasoning *string    `json:"reasoning_content,omitempty"`
	Calls     []openCall `json:"tool_calls,omitempty"`
	CallID    string     `json:"tool_call_id,omitempty"`
}

type openCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"` // an object
	} `json:"function"`
}

type openTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
		Strict      bool            `json:"strict,omitempty"`
	} `json:"function"`
}

type openPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// setField puts a value into a body, as if the client had sent it.
func (b *body) setField(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		b.fail(name, "%s", err)
		return
	}
	b.fields[name] = data
}

// readMessages reads a request of the messages API.
func (s *Server) readMessages(b *body) (*chatRequest, error) { return s.messagesRequest(b, true) }

// messagesRequest reads a request, of which one that only counts tokens needs no limit.
func (s *Server) messagesRequest(b *body, limit bool) (*chatRequest, error) {
	q := &chatRequest{common: common{n: 1, ping: s.cfg.Ping}, keepTags: s.cfg.KeepTags}
	q.model, _ = b.text("model")
	q.stream = b.truth("stream", false)
	if n, ok := b.whole("max_tokens", 1, math.MaxInt64); ok {
		q.maxTokens = int(min(n, math.MaxInt32))
	} else if limit && b.Err() == nil {
		return nil, invalid("max_tokens", "is missing; say how long the answer may be")
	}
	q.readSampling(b)
	q.stop = readStop(b, "stop_sequences")
	for _, name := range []string{"metadata", "service_tier", "container", "mcp_servers", "context_management", "betas", "output_config"} {
		b.raw(name)
	}
	// In a body of its own, as the fields have other meanings under the same names.
	open := &body{fields: map[string]json.RawMessage{}, read: map[string]bool{}}
	open.setField("messages", readTurns(b))
	readMessageTools(b, open)
	noThink := s.cfg.NoThink
	if o, ok := b.object("thinking"); ok {
		kind, _ := o.text("type")
		o.whole("budget_tokens", 0, math.MaxInt64)
		switch kind {
		case "enabled", "adaptive":
			open.setField("enable_thinking", true)
		case "disabled":
			open.setField("enable_thinking", false)
		default:
			o.fail("type", "%.40q is not possible; use enabled or disabled", kind)
		}
		b.join(o)
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	return q, q.readConversation(open, noThink)
}

// readTurns turns system and messages into messages of OpenAI's form.
func readTurns(b *body) []openMessage {
	var list []openMessage
	if v := b.raw("system"); v != nil {
		if text, ok := blocksText(b, "system"); ok && text != "" {
			list = append(list, openMessage{Role: chat.RoleSystem, Content: text})
		}
	}
	items, ok := b.items("messages", 100_000)
	if !ok {
		if b.Err() == nil {
			b.fail("messages", "is missing; send at least one message")
		}
		return nil
	}
	if len(items) == 0 {
		b.fail("messages", "is empty; send at least one message")
	}
	for _, m := range items {
		role, _ := m.text("role")
		switch role {
		case chat.RoleUser, chat.RoleAssistant, chat.RoleSystem:
			list = append(list, turn(m, role)...)
		default:
			m.fail("role", "%.40q is not possible; use user or assistant", role)
		}
		b.join(m)
	}
	return list
}

// blocksText reads a string, or blocks of which all are text.
func blocksText(b *body, name string) (string, bool) {
	if v := b.raw(name); v != nil && v[0] == '"' {
		return b.text(name)
	}
	blocks, ok := b.items(name, 10_000)
	var text strings.Builder
	for _, x := range blocks {
		if kind, _ := x.text("type"); kind != "text" {
			x.fail("type", "%.40q is not supported here; use text", kind)
		}
		s, _ := x.text("text")
		text.WriteString(s)
		b.join(x)
	}
	return text.String(), ok
}

// turn turns a message into those of OpenAI's form: results of tools are messages of their own there.
func turn(m *body, role string) []openMessage {
	v := m.raw("content")
	if v == nil {
		m.fail("content", "is missing")
		return nil
	}
	if v[0] == '"' {
		text, _ := m.text("content")
		return []openMessage{{Role: role, Content: text}}
	}
	blocks, _ := m.items("content", 10_000)
	var results []openMessage
	msg := openMessage{Role: role}
	var parts []openPart
	var thinking strings.Builder
	thought := false
	for _, x := range blocks {
		kind, _ := x.text("type")
		switch {
		case kind == "text":
			s, ok := x.text("text")
			if !ok && x.Err() == nil {
				x.fail("text", "is missing")
			}
			parts = append(parts, openPart{"text", s})
		case kind == "thinking" && role == chat.RoleAssistant:
			s, _ := x.text("thinking")
			thinking.WriteString(s)
			thought = true
		case kind == "redacted_thinking":
		case kind == "tool_use" && role == chat.RoleAssistant:
			c := openCall{Type: "function"}
			c.ID, _ = x.text("id")
			c.Function.Name, _ = x.text("name")
			if c.Function.Arguments = x.raw("input"); c.Function.Arguments == nil {
				c.Function.Arguments = json.RawMessage("{}")
			}
			msg.Calls = append(msg.Calls, c)
		case kind == "tool_result" && role == chat.RoleUser:
			r := openMessage{Role: chat.RoleTool, Content: ""}
			r.CallID, _ = x.text("tool_use_id")
			if x.has("content") {
				s, _ := blocksText(x, "content")
				r.Content = s
			}
			results = append(results, r)
		default:
			x.fail("type", "%.40q is not supported in a message of the %s", kind, role)
		}
		m.join(x)
	}
	if thought {
		msg.Reasoning = new(thinking.String())
	}
	if parts != nil {
		msg.Content = parts
	} else if len(results) > 0 {
		return results
	}
	if msg.Content == nil && msg.Calls == nil {
		msg.Content = "" // thinking alone, or no block at all
	}
	return append(results, msg)
}

// readMessageTools turns tools and tool_choice into OpenAI's form.
func readMessageTools(b, open *body) {
	list, _ := b.items("tools", 1024)
	var tools []openTool
	for _, x := range list {
		t := openTool{Type: "function"}
		if kind, ok := x.text("type"); ok && kind != "custom" {
			x.fail("type", "%.40q is not supported; only tools of the client's own are", kind)
		}
		t.Function.Name, _ = x.text("name")
		t.Function.Description, _ = x.text("description")
		t.Function.Parameters = x.raw("input_schema")
		t.Function.Strict = x.truth("strict", false)
		tools = append(tools, t)
		b.join(x)
	}
	if tools != nil {
		open.setField("tools", tools)
	}
	o, ok := b.object("tool_choice")
	if !ok {
		return
	}
	kind, _ := o.text("type")
	switch kind {
	case "auto", "none":
		open.setField("tool_choice", kind)
	case "any":
		open.setField("tool_choice", "required")
	case "tool":
		name, _ := o.text("name")
		open.setField("tool_choice", map[string]any{"type": "function", "function": map[string]string{"name": name}})
	default:
		o.fail("type", "%.40q is not possible; use auto, any, tool or none", kind)
	}
	if o.truth("disable_parallel_tool_use", false) {
		open.setField("parallel_tool_calls", false)
	}
	b.join(o)
}

// A block is a part of an answer's content.
type block struct {
	Type      string           `json:"type"`
	Text      *string          `json:"text,omitempty"`
	Thinking  *string          `json:"thinking,omitempty"`
	Signature *string          `json:"signature,omitempty"` // nothing is signed
	ID        string           `json:"id,omitempty"`
	Name      string           `json:"name,omitempty"`
	Input     *json.RawMessage `json:"input,omitempty"`
}

type messagesUsage struct {
	Input   int `json:"input_tokens"` // without those of the cache
	Created int `json:"cache_creation_input_tokens"`
	Cached  int `json:"cache_read_input_tokens"`
	Output  int `json:"output_tokens"`
}

type messagesAnswer struct {
	ID      string        `json:"id"`
	Type    string        `json:"type"`
	Role    string        `json:"role"`
	Model   string        `json:"model"`
	Content []block       `json:"content"`
	Reason  *string       `json:"stop_reason"`
	Stop    *string       `json:"stop_sequence"`
	Usage   messagesUsage `json:"usage"`
	Timings *timings      `json:"timings,omitempty"`
}

// reason is why an answer ended, in the API's words, and the stop string that was found.
func (a *answer) reason() (reason string, stop *string) {
	switch {
	case len(a.Calls) > 0:
		return "tool_use", nil
	case a.Result.Stop != "":
		return "stop_sequence", &a.Result.Stop
	case a.finish() == "stop":
		return "end_turn", nil
	}
	return "max_tokens", nil
}

func messagesUsageOf(a *answer) messagesUsage {
	return messagesUsage{Input: a.PromptTokens - a.Reused, Cached: a.Reused, Output: a.Tokens}
}

// messages is POST /v1/messages.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) error {
	m, q, t, err := s.openChat(r, s.readMessages)
	if err != nil {
		return err
	}
	x := messagesAnswer{ID: newID("msg_"), Type: "message", Role: chat.RoleAssistant, Model: q.model, Content: []block{}}
	if q.stream {
		return (&messagesWriter{s: s, e: s.events(w), answer: x, index: -1}).stream(r, m, t)
	}
	answers, err := s.run(r, m, t, func(update) error { return nil })
	if err != nil {
		return err
	}
	a := &answers[0]
	if a.Reasoning != nil {
		x.Content = append(x.Content, block{Type: "thinking", Thinking: a.Reasoning, Signature: new("")})
	}
	if a.Content != nil {
		x.Content = append(x.Content, block{Type: "text", Text: a.Content})
	}
	for _, c := range a.Calls {
		x.Content = append(x.Content, block{Type: "tool_use", ID: c.ID, Name: c.Name, Input: new(json.RawMessage(c.Arguments))})
	}
	reason, stop := a.reason()
	x.Reason, x.Stop, x.Usage = &reason, stop, messagesUsageOf(a)
	x.Timings = new(timingsOf(&a.Result))
	writeJSON(w, http.StatusOK, x)
	return nil
}

// countTokens is POST /v1/messages/count_tokens.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	q, err := s.messagesRequest(b, false)
	if err != nil {
		return err
	}
	if _, err = s.name(q.model); err != nil {
		return err
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	_, ids, err := s.render(r, m, q)
	if err == nil {
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(ids)})
	}
	return err
}

// messagesWriter writes an answer as a stream of events.
type messagesWriter struct {
	s      *Server
	e      *events
	answer messagesAnswer
	begun  bool
	open   bool           // a block is
	kind   chat.EventKind // of the open block
	index  int            // of the last block
}

// start sends the message before its content.
func (w *messagesWriter) start(t *task) error {
	if w.begun {
		return nil
	}
	w.begun = true
	w.answer.Usage.Input = len(t.prompts[0])
	return w.e.data("message_start", map[string]any{"type": "message_start", "message": w.answer})
}

// stop closes the open block.
func (w *messagesWriter) stop() error {
	if !w.open {
		return nil
	}
	w.open = false
	return w.e.data("content_block_stop", map[string]any{"type": "content_block_stop", "index": w.index})
}

// begin opens a block.
func (w *messagesWriter) begin(kind chat.EventKind, x block) error {
	if err := w.stop(); err != nil {
		return err
	}
	w.open, w.kind = true, kind
	w.index++
	return w.e.data("content_block_start", map[string]any{"type": "content_block_start", "index": w.index, "content_block": x})
}

// delta goes on with the open block.
func (w *messagesWriter) delta(kind, field, text string) error {
	return w.e.data("content_block_delta", map[string]any{
		"type": "content_block_delta", "index": w.index, "delta": map[string]string{"type": kind, field: text},
	})
}

// event writes an event of the answer.
func (w *messagesWriter) event(ev chat.Event) error {
	same := w.open && w.kind == ev.Kind
	switch ev.Kind {
	case chat.EventReasoning:
		if !same {
			if err := w.begin(ev.Kind, block{Type: "thinking", Thinking: new(""), Signature: new("")}); err != nil {
				return err
			}
		}
		return w.delta("thinking_delta", "thinking", ev.Text)
	case chat.EventContent:
		if !same {
			if err := w.begin(ev.Kind, block{Type: "text", Text: new("")}); err != nil {
				return err
			}
		}
		return w.delta("text_delta", "text", ev.Text)
	case chat.EventCallStart:
		return w.begin(ev.Kind, block{Type: "tool_use", ID: ev.ID, Name: ev.Name, Input: new(json.RawMessage("{}"))})
	case chat.EventCallArguments:
		return w.delta("input_json_delta", "partial_json", ev.Text)
	case chat.EventCallEnd:
		return w.stop()
	}
	return nil
}

// stream runs the task and writes what comes of it.
func (w *messagesWriter) stream(r *http.Request, m *served, t *task) error {
	answers, err := w.s.run(r, m, t, func(u update) error {
		if err := w.start(t); err != nil {
			return err
		}
		if u.ping {
			return w.e.data("ping", map[string]string{"type": "ping"})
		}
		for _, ev := range u.events {
			if err := w.event(ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = w.end(&answers[0])
	}
	return w.e.end(w.s, r, err, func(form any) error { return w.e.data("error", form) })
}

// end writes the end of the message.
func (w *messagesWriter) end(a *answer) error {
	if err := w.stop(); err != nil {
		return err
	}
	reason, stop := a.reason()
	err := w.e.data("message_delta", map[string]any{
		"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": stop}, "usage": messagesUsageOf(a),
		"timings": timingsOf(&a.Result),
	})
	if err != nil {
		return err
	}
	return w.e.data("message_stop", map[string]string{"type": "message_stop"})
}
