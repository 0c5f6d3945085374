package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine/chat"
)

// The responses API of OpenAI (specification, 6.5): its requests become conversations in the form of chat completions, which
// are then read as all others are. Nothing of an answer is kept, so a request carries the whole conversation.

// A responseRequest is a request for a response.
type responseRequest struct {
	*chatRequest
	echo response // what the answer repeats of the request
	from []origin // of each message of the conversation
}

// An origin is where in the request a message came from, which is what errors about the message name.
type origin struct {
	item, content, reasoning string
	calls                    []string
	thought                  *strings.Builder // all reasoning of the message, which may come in many items
}

// Bounds of a request, far above what is used.
const (
	maxItems = 100_000
	maxParts = 10_000 // of an item
	maxFlat  = 1024   // tools
)

// kept are fields that build on what an earlier request left.
var kept = []struct{ name, instead string }{
	{"previous_response_id", "responses are not kept; send the whole conversation as input"},
	{"conversation", "conversations are not kept; send the whole conversation as input"},
	{"prompt", "prompts are not kept; send instructions and input"},
}

// refuse notes that what a field asks for is not built.
func (b *body) refuse(name, format string, args ...any) {
	if b.err == nil {
		b.err = notSupported(http.StatusBadRequest, b.path+name, format, args...)
	}
}

// read reads a request.
func (x *responseRequest) read(s *Server, b *body) (*chatRequest, error) {
	q := &chatRequest{common: s.readCommon(b), keepTags: s.cfg.KeepTags}
	x.chatRequest = q
	q.progress = false // there is no event for it
	if q.n > 1 {
		b.fail("n", "%d is not possible; a response is one answer", q.n)
	}
	for _, f := range kept {
		if b.has(f.name) {
			b.refuse(f.name, "%s", f.instead)
		}
	}
	if b.truth("background", false) {
		b.refuse("background", "responses are not kept to be asked for later; use stream for a long answer")
	}
	b.truth("store", false)
	q.readLimit(b, false, "max_output_tokens")
	readMore(b)
	x.echo = readEcho(b)
	q.format = readTextFormat(b)
	// In a body of its own, as the fields have other forms under the same names.
	open := &body{fields: map[string]json.RawMessage{}, read: map[string]bool{}}
	for _, name := range []string{"parallel_tool_calls", "chat_template_kwargs", "enable_thinking"} {
		if v := b.raw(name); v != nil {
			open.fields[name] = v
		}
	}
	if o, ok := b.object("reasoning"); ok {
		if e, ok := o.text("effort"); ok {
			open.setField("reasoning_effort", e)
			x.echo.Reasoning.Effort = &e
		}
		for _, name := range []string{"summary", "generate_summary"} { // reasoning is given as it is
			o.text(name)
		}
		b.join(o)
	}
	readFlatTools(b, open)
	readFlatChoice(b, open)
	open.setField("messages", x.readInput(b))
	b.join(open)
	if b.Err() != nil {
		return nil, b.Err()
	}
	return q, q.readConversation(open, s.cfg.NoThink)
}

// readMore reads fields that change nothing, and refuses values of them that would have to.
func readMore(b *body) {
	b.whole("max_tool_calls", 0, maxSeed) // of tools that run in the server
	if n, ok := b.whole("top_logprobs", 0, 20); ok && n > 0 {
		b.refuse("top_logprobs", "is not supported here; use /v1/chat/completions")
	}
	list, _ := b.texts("include", maxBiases)
	for _, what := range list {
		if what == "message.output_text.logprobs" {
			b.refuse("include", "%s is not supported here; use /v1/chat/completions", what)
		}
	}
	switch how, ok := b.text("truncation"); {
	case !ok, how == "disabled":
	case how == "auto":
		b.refuse("truncation", "auto is not supported; leave it out, and out of input what does not fit")
	default:
		b.fail("truncation", "%.40q is not possible; use disabled", how)
	}
	for _, name := range []string{"prompt_cache_retention", "prompt_cache_options"} {
		b.raw(name)
	}
}

// readEcho reads what an answer repeats.
func readEcho(b *body) response {
	x := response{Metadata: readMetadata(b), Parallel: b.truth("parallel_tool_calls", true)}
	if s, ok := b.text("instructions"); ok {
		x.Instructions = &s
	}
	x.Text.Format = repeat(nil, `{"type":"text"}`)
	if o, ok := b.object("text"); ok {
		x.Text.Format = repeat(o.raw("format"), `{"type":"text"}`)
	}
	x.Tools, x.ToolChoice = repeat(b.raw("tools"), "[]"), repeat(b.raw("tool_choice"), `"auto"`)
	return x
}

// repeat is a value of the request for an answer. JSON's reader lets bytes pass that are no UTF-8.
func repeat(v json.RawMessage, none string) json.RawMessage {
	if v == nil {
		return json.RawMessage(none)
	}
	return bytes.ToValidUTF8(v, []byte("\uFFFD"))
}

// readMetadata reads what a client wants to find again in the answer, within OpenAI's bounds.
func readMetadata(b *body) map[string]string {
	const name = "metadata"
	m := map[string]string{}
	v := b.raw(name)
	if v == nil {
		return m
	}
	if json.Unmarshal(v, &m) != nil {
		b.fail(name, "must be an object of strings")
	}
	if len(m) > 16 {
		b.fail(name, "has %d entries; at most 16 are possible", len(m))
	}
	for k, s := range m {
		if utf8.RuneCountInString(k) > 64 || utf8.RuneCountInString(s) > 512 {
			b.fail(name, "%s is too long; keys have at most 64 characters and values 512", quote(k))
		}
	}
	return m
}

// readTextFormat reads text, which says what form an answer has.
func readTextFormat(b *body) (x format) {
	o, ok := b.object("text")
	if !ok {
		return x
	}
	o.text("verbosity")
	if f, ok := o.object("format"); ok {
		switch kind, _ := f.text("type"); kind {
		case "text":
		case "json_object":
			x = format{kind: formatObject, field: "text.format"}
		case "json_schema":
			f.text("name")
			f.text("description")
			x = format{kind: formatSchema, strict: f.truth("strict", false), source: string(f.raw("schema")), field: "text.format.schema"}
			switch n := len(x.source); {
			case n == 0:
				f.fail("schema", "is missing")
			case n > maxFormat:
				f.fail("schema", "has %d bytes; at most %d are possible", n, maxFormat)
			}
		default:
			f.fail("type", "%.40q is not possible; use text, json_object or json_schema", kind)
		}
		o.join(f)
	}
	b.join(o)
	return x
}

// readFlatTools reads tools, which are those of chat completions without an object for the function.
func readFlatTools(b, open *body) {
	list, ok := b.items("tools", maxFlat)
	if !ok {
		return
	}
	tools := []openTool{}
	for _, o := range list {
		t := openTool{}
		switch t.Type, _ = o.text("type"); t.Type {
		case "function":
		case "":
			o.fail("type", "is missing; it must be function")
		default:
			o.refuse("type", "%.40q is not supported; only function is", t.Type)
		}
		f := &t.Function
		f.Name, _ = o.text("name")
		f.Description, _ = o.text("description")
		f.Parameters, f.Strict = o.raw("parameters"), o.truth("strict", false)
		tools = append(tools, t)
		b.join(o)
	}
	open.setField("tools", tools)
}

// readFlatChoice reads tool_choice.
func readFlatChoice(b, open *body) {
	v := b.raw("tool_choice")
	if v == nil {
		return
	}
	if v[0] != '"' {
		o, ok := b.object("tool_choice")
		if !ok {
			return
		}
		if kind, _ := o.text("type"); kind != "function" {
			o.refuse("type", "%.40q is not supported; use auto, none, required or a function", kind)
		}
		b.join(o)
	}
	open.fields["tool_choice"] = v
}

// field says where in the request a field of the conversation came from.
func (x *responseRequest) field(name string) string {
	switch {
	case name == "reasoning_effort":
		return "reasoning.effort"
	case strings.HasPrefix(name, "tools["):
		return strings.Replace(name, ".function", "", 1)
	case !strings.HasPrefix(name, "messages"):
		return name
	}
	var i int
	if _, err := fmt.Sscanf(name, "messages[%d]", &i); err != nil || i < 0 || i >= len(x.from) {
		return "input"
	}
	_, rest, _ := strings.Cut(name, "]")
	from := x.from[i]
	var call int
	switch {
	case rest == "": // about the last message, by its number among those that are left once system messages are one
		return x.from[len(x.from)-1].item
	case strings.HasPrefix(rest, ".content") && from.content != "":
		return from.content
	case strings.HasPrefix(rest, ".reasoning") && from.reasoning != "":
		return from.reasoning
	}
	if _, err := fmt.Sscanf(rest, ".tool_calls[%d]", &call); err == nil && call >= 0 && call < len(from.calls) {
		_, rest, _ = strings.Cut(rest, "]")
		return from.calls[call] + strings.TrimPrefix(rest, ".function")
	}
	return from.item
}

// explain makes an error about the conversation one about the request.
func (x *responseRequest) explain(err error) error {
	if req, ok := errors.AsType[*chat.RequestError](err); ok {
		e := *req
		e.Field = x.field(e.Field)
		return &e
	}
	if api, ok := errors.AsType[*apiError](err); ok && strings.HasPrefix(api.Param, "messages") {
		e := *api
		e.Param = x.field(e.Param)
		e.Message = e.Param + strings.TrimPrefix(e.Message, api.Param)
		return &e
	}
	return err
}

// responses is POST /v1/responses.
func (s *Server) responses(w http.ResponseWriter, r *http.Request) error {
	x := &responseRequest{}
	m, q, t, err := s.openChat(r, func(b *body) (*chatRequest, error) { return x.read(s, b) })
	if err != nil {
		return x.explain(err)
	}
	c := &responseWriter{response: x.echo}
	c.response.start(q, t, time.Now())
	if q.stream {
		return c.stream(s, w, r, m, t)
	}
	answers, err := s.run(r, m, t, func(u update) error { return c.write(u.events) })
	if err != nil {
		return err
	}
	c.finish(t, &answers[0])
	writeJSON(w, http.StatusOK, c.response)
	return nil
}

// responseTokens is POST /v1/responses/input_tokens.
func (s *Server) responseTokens(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	x := &responseRequest{}
	q, err := x.read(s, b)
	if err != nil {
		return x.explain(err)
	}
	if _, err := s.name(q.model); err != nil {
		return err
	}
	s.tellUnknown(r, b)
	m, err := s.ready()
	if err != nil {
		return err
	}
	_, ids, err := s.render(r, m, q)
	if err != nil {
		return x.explain(err)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "response.input_tokens", "input_tokens": len(ids)})
	return nil
}
