package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

// The basics of Ollama's API (specification, 6.8): lines of JSON in place of events, and options in an object of their own.

// ollamaVersion is the version of the API that is answered to clients which ask.
const ollamaVersion = "0.12.0"

// ollamaForm is the form of the API's errors.
func ollamaForm(e *apiError) any { return map[string]string{"error": e.Message} }

// ollamaVersions is GET /api/version.
func (s *Server) ollamaVersions(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]string{"version": ollamaVersion})
	return nil
}

type ollamaModel struct {
	Name     string        `json:"name"`
	Model    string        `json:"model"`
	Modified time.Time     `json:"modified_at"`
	Size     int64         `json:"size"`
	Digest   string        `json:"digest"`
	Details  ollamaDetails `json:"details"`
	// Of a model that is loaded.
	Expires *time.Time `json:"expires_at,omitempty"`
	VRAM    *int64     `json:"size_vram,omitempty"`
	Context int        `json:"context_length,omitempty"`
}

type ollamaDetails struct {
	Parent    string   `json:"parent_model"`
	Format    string   `json:"format"`
	Family    string   `json:"family"`
	Families  []string `json:"families"`
	Parameter string   `json:"parameter_size"`
	Quant     string   `json:"quantization_level"`
}

// ollamaModel describes the model by its first name.
func (s *Server) ollamaModel(m *served) ollamaModel {
	name := s.cfg.Models[0]
	if !strings.Contains(name, ":") {
		name += ":latest"
	}
	a := m.about
	d := ollamaDetails{Format: "gguf", Family: a.Arch, Families: []string{a.Arch}, Parameter: billions(a.Params), Quant: a.FileType}
	return ollamaModel{Name: name, Model: name, Modified: s.began.UTC(), Size: a.Bytes, Digest: "sha256:" + m.digest, Details: d}
}

// billions is a number of parameters for people.
func billions(n int64) string {
	switch {
	case n >= 1e9:
		return trimmed(float64(n)/1e9) + "B"
	case n >= 1e6:
		return trimmed(float64(n)/1e6) + "M"
	}
	return trimmed(float64(n)/1e3) + "K"
}

// ollamaTags is GET /api/tags.
func (s *Server) ollamaTags(w http.ResponseWriter, _ *http.Request) error {
	m, err := s.ready()
	if err == nil {
		writeJSON(w, http.StatusOK, map[string]any{"models": []ollamaModel{s.ollamaModel(m)}})
	}
	return err
}

// ollamaRunning is GET /api/ps.
func (s *Server) ollamaRunning(w http.ResponseWriter, _ *http.Request) error {
	m, err := s.ready()
	if err != nil {
		return err
	}
	x := s.ollamaModel(m)
	never := time.Date(2318, 1, 1, 0, 0, 0, 0, time.UTC) // the model stays as long as the server does
	x.Expires, x.VRAM, x.Context = &never, new(x.Size), m.Context()
	if m.Software() {
		x.VRAM = new(int64) // as for a model that Ollama runs on processors
	}
	writeJSON(w, http.StatusOK, map[string]any{"models": []ollamaModel{x}})
	return nil
}

// ollamaShow is POST /api/show.
func (s *Server) ollamaShow(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	name, ok := b.text("model")
	if !ok {
		name, _ = b.text("name")
	}
	if err := b.Err(); err != nil {
		return err
	}
	if _, err := s.name(name); err != nil {
		return err
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	source, can := "", []string{"completion"}
	if t, err := m.Template(); err == nil {
		source = t.Source()
		if t.Tools() {
			can = append(can, "tools")
		}
		if t.Thinks() {
			can = append(can, "thinking")
		}
	}
	c, x := m.Model(), s.ollamaModel(m)
	writeJSON(w, http.StatusOK, map[string]any{
		"details": x.Details, "template": source, "capabilities": can, "modified_at": x.Modified, "parameters": "",
		"model_info": map[string]any{
			"general.architecture": c.Arch, "general.parameter_count": m.about.Params,
			c.Arch + ".context_length": c.Context, c.Arch + ".embedding_length": c.Embed, c.Arch + ".block_count": c.Layers,
		},
	})
	return nil
}

// readOllama reads what requests of the API share.
func (s *Server) readOllama(b *body) (common, format) {
	c := common{n: 1, ping: -1} // its readers know no sign of life
	c.model, _ = b.text("model")
	c.stream = b.truth("stream", true)
	if o, ok := b.object("options"); ok {
		c.readSampling(o)
		c.readLimit(o, true, "num_predict")
		c.stop = readStop(o, "stop")
		b.join(o)
	}
	var f format
	switch v := b.raw("format"); {
	case v == nil, string(v) == `""`:
	case string(v) == `"json"`:
		f = format{kind: formatObject, field: "format"}
	case len(v) <= maxFormat && v[0] == '{':
		f = format{kind: formatSchema, source: string(v), field: "format"}
	default:
		b.fail("format", "must be \"json\" or a JSON schema")
	}
	b.raw("keep_alive")
	return c, f
}

// thinkOf reads think: true, false, or an effort.
func thinkOf(b, open *body) {
	v := b.raw("think")
	switch {
	case v == nil:
	case v[0] == '"':
		s, _ := b.text("think")
		open.setField("reasoning_effort", s)
	default:
		open.setField("enable_thinking", b.truth("think", true))
	}
}

// readOllamaChat reads a request of POST /api/chat. Its messages have the arguments of calls as objects, and otherwise
// OpenAI's form.
func (s *Server) readOllamaChat(b *body) (*chatRequest, error) {
	q := &chatRequest{}
	q.common, q.format = s.readOllama(b)
	open := &body{fields: map[string]json.RawMessage{}, read: map[string]bool{}}
	for _, name := range []string{"messages", "tools"} {
		if v := b.raw(name); v != nil {
			open.fields[name] = v
		}
	}
	if list, ok := b.items("messages", 100_000); ok {
		for _, m := range list {
			if v, ok := m.list("images", 64); ok && len(v) > 0 {
				m.fail("images", "are not supported; leave them out")
			}
			// What the model thought goes by another name here.
			if v := m.raw("thinking"); v != nil {
				m.fields["reasoning_content"] = v
				delete(m.fields, "thinking")
			}
			b.join(m)
		}
		fields := make([]map[string]json.RawMessage, len(list))
		for i, m := range list {
			fields[i] = m.fields
		}
		open.setField("messages", fields)
	}
	thinkOf(b, open)
	if err := b.Err(); err != nil {
		return nil, err
	}
	return q, q.readConversation(open, s.cfg.NoThink)
}

type ollamaMessage struct {
	Role     string       `json:"role"`
	Content  string       `json:"content"`
	Thinking string       `json:"thinking,omitempty"`
	Calls    []ollamaCall `json:"tool_calls,omitempty"`
}

type ollamaCall struct {
	ID       string `json:"id"`
	Function struct {
		Index     int             `json:"index"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// ollamaLine is an answer, or a line of one.
type ollamaLine struct {
	Model    string         `json:"model"`
	Created  time.Time      `json:"created_at"`
	Message  *ollamaMessage `json:"message,omitempty"`  // of /api/chat
	Response *string        `json:"response,omitempty"` // of /api/generate
	Thinking string         `json:"thinking,omitempty"` // likewise
	Done     bool           `json:"done"`
	*ollamaEnd
}

// ollamaEnd is what the last line has. Times are nanoseconds.
type ollamaEnd struct {
	Reason     string        `json:"done_reason"`
	Total      time.Duration `json:"total_duration"`
	Load       time.Duration `json:"load_duration"`
	Prompt     int           `json:"prompt_eval_count"`
	PromptTime time.Duration `json:"prompt_eval_duration"`
	Tokens     int           `json:"eval_count"`
	Time       time.Duration `json:"eval_duration"`
}

func ollamaEndOf(a *answer) *ollamaEnd {
	reason := "stop"
	if a.finish() == "length" {
		reason = "length"
	}
	return &ollamaEnd{
		Reason: reason, Total: a.Queued + a.PromptTime + a.Time, Prompt: a.PromptTokens, PromptTime: a.PromptTime, Tokens: a.Tokens, Time: a.Time,
	}
}

// ollamaWriter makes lines of what comes.
type ollamaWriter struct {
	model string
	chat  bool
	calls map[int]*ollamaCall // that have begun
}

// line is what some events are in a line, nil for nothing.
func (o *ollamaWriter) line(events []chat.Event) *ollamaLine {
	msg := ollamaMessage{Role: chat.RoleAssistant}
	for _, ev := range events {
		switch ev.Kind {
		case chat.EventReasoning:
			msg.Thinking += ev.Text
		case chat.EventContent:
			msg.Content += ev.Text
		case chat.EventCallStart:
			c := &ollamaCall{ID: ev.ID}
			c.Function.Index, c.Function.Name = ev.Index, ev.Name
			o.calls[ev.Index] = c
		case chat.EventCallArguments:
			o.calls[ev.Index].Function.Arguments = append(o.calls[ev.Index].Function.Arguments, ev.Text...)
		case chat.EventCallEnd:
			msg.Calls = append(msg.Calls, *o.calls[ev.Index])
		}
	}
	if msg.Content == "" && msg.Thinking == "" && msg.Calls == nil {
		return nil
	}
	return o.of(msg)
}

// of is a line with a message.
func (o *ollamaWriter) of(msg ollamaMessage) *ollamaLine {
	l := &ollamaLine{Model: o.model, Created: time.Now().UTC()}
	if o.chat {
		l.Message = &msg
	} else {
		l.Response, l.Thinking = &msg.Content, msg.Thinking
	}
	return l
}

// run answers with lines, or with one.
func (o *ollamaWriter) run(s *Server, w http.ResponseWriter, r *http.Request, m *served, t *task, stream bool) error {
	e := s.events(w)
	e.kind = "application/x-ndjson"
	var all []chat.Event
	answers, err := s.run(r, m, t, func(u update) error {
		if !stream {
			all = append(all, u.events...)
			return nil
		}
		if l := o.line(u.events); l != nil {
			return e.line(l)
		}
		return nil
	})
	if err != nil {
		return e.end(s, r, err, e.line)
	}
	last := o.line(all)
	if last == nil {
		last = o.of(ollamaMessage{Role: chat.RoleAssistant})
	}
	last.Done, last.ollamaEnd = true, ollamaEndOf(&answers[0])
	if stream {
		return e.end(s, r, e.line(last), e.line)
	}
	writeJSON(w, http.StatusOK, last)
	return nil
}

// ollamaChat is POST /api/chat.
func (s *Server) ollamaChat(w http.ResponseWriter, r *http.Request) error {
	m, q, t, err := s.openChat(r, s.readOllamaChat)
	if err != nil {
		return err
	}
	o := &ollamaWriter{model: q.model, chat: true, calls: map[int]*ollamaCall{}}
	return o.run(s, w, r, m, t, q.stream)
}

// ollamaGenerate is POST /api/generate.
func (s *Server) ollamaGenerate(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	c, f := s.readOllama(b)
	prompt, _ := b.text("prompt")
	system, _ := b.text("system")
	raw := b.truth("raw", false)
	for _, name := range []string{"suffix", "images", "context", "template"} {
		if v := b.raw(name); v != nil && string(v) != `""` && string(v) != "[]" {
			return notSupported(http.StatusBadRequest, name, "is not supported; leave it out")
		}
	}
	open := &body{fields: map[string]json.RawMessage{}, read: map[string]bool{}}
	thinkOf(b, open)
	if err := b.Err(); err != nil {
		return err
	}
	if c.model, err = s.name(c.model); err != nil {
		return err
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	o := &ollamaWriter{model: c.model}
	if prompt == "" { // how clients have a model loaded
		l := o.of(ollamaMessage{})
		l.Done, l.ollamaEnd = true, ollamaEndOf(&answer{Result: engine.Result{Reason: engine.ReasonStop}})
		l.Reason = "load"
		writeJSON(w, http.StatusOK, l)
		return nil
	}
	var t *task
	if raw {
		ids, err := m.encode(r.Context(), prompt)
		if err == nil {
			err = m.fits("prompt", len(ids))
		}
		if err != nil {
			return err
		}
		if t, err = s.plainTask(r, m, &c, [][]int32{ids}, f); err != nil {
			return err
		}
	} else {
		var list []openMessage
		if system != "" {
			list = append(list, openMessage{Role: chat.RoleSystem, Content: system})
		}
		open.setField("messages", append(list, openMessage{Role: chat.RoleUser, Content: prompt}))
		q := &chatRequest{common: c, format: f}
		if err := q.readConversation(open, s.cfg.NoThink); err != nil {
			return err
		}
		if t, err = s.task(r, m, q); err != nil {
			return err
		}
	}
	return o.run(s, w, r, m, t, c.stream)
}
