package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/grammar/toolcall"
)

// A chatRequest is a conversation to be answered, of any API.
type chatRequest struct {
	common
	messages []chat.Message
	options  chat.Options
	choice   toolChoice
	specs    []toolcall.Tool // the tools of options, for grammars
	parallel bool            // there may be several calls
	format   format
	keepTags bool
}

// refused are fields of OpenAI's that ask for what is not built.
var refused = []string{"audio", "modalities", "prediction", "web_search_options", "functions", "function_call"}

// readChat reads a request for a chat completion.
func (s *Server) readChat(b *body) (*chatRequest, error) {
	q := &chatRequest{common: s.readCommon(b), keepTags: s.cfg.KeepTags}
	for _, name := range refused {
		if v := b.raw(name); v != nil && !(name == "modalities" && string(v) == `["text"]`) {
			return nil, notSupported(http.StatusBadRequest, name, "is not supported; leave it out")
		}
	}
	q.readLimit(b, false, "max_tokens", "max_completion_tokens")
	q.readLimit(b, true, "n_predict")
	q.logprobs = b.truth("logprobs", false)
	if n, ok := b.whole("top_logprobs", 0, 20); ok {
		if !q.logprobs && n > 0 {
			b.fail("top_logprobs", "needs logprobs to be true")
		}
		q.top = int(n)
	}
	if n, ok := b.whole("n_probs", 0, 20); ok && n > 0 { // llama-server
		q.logprobs, q.top = true, int(n)
	}
	if f, ok := b.text("reasoning_format"); ok {
		switch f {
		case "none":
			q.keepTags = true
		case "auto", "deepseek":
			q.keepTags = false
		default:
			b.fail("reasoning_format", "%.40q is not possible; use auto or none", f)
		}
	}
	q.format = readFormat(b)
	if err := q.readConversation(b, s.cfg.NoThink); err != nil {
		return nil, err
	}
	return q, b.Err()
}

// readConversation reads messages, tools and what the template shall make of them.
func (q *chatRequest) readConversation(b *body, noThink bool) (err error) {
	if b.Err() != nil {
		return b.Err()
	}
	list := b.raw("messages")
	if list == nil {
		return invalid("messages", "is missing; send at least one message")
	}
	if q.messages, err = chat.ParseMessages(string(list)); err != nil {
		return err
	}
	if err := q.readTools(b); err != nil {
		return err
	}
	if v := b.raw("chat_template_kwargs"); v != nil {
		if q.options.Kwargs, err = chat.ParseKwargs(string(v)); err != nil {
			return err
		}
	}
	if noThink && !kwarg(b, "enable_thinking") {
		q.options.Thinking = new(false)
	}
	if b.has("enable_thinking") {
		q.options.Thinking = new(b.truth("enable_thinking", true))
	}
	q.options.ReasoningEffort, _ = b.text("reasoning_effort")
	if b.has("add_generation_prompt") {
		q.options.GenerationPrompt = new(b.truth("add_generation_prompt", true))
	}
	q.options.MergeSystem = true
	return b.Err()
}

// kwarg reports whether a variable of the template is set.
func kwarg(b *body, name string) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal(b.raw("chat_template_kwargs"), &m) == nil && m[name] != nil
}

// readTools reads tools in OpenAI's form, and which of them must be called.
func (q *chatRequest) readTools(b *body) (err error) {
	q.choice.kind, q.parallel = "auto", b.truth("parallel_tool_calls", true)
	if v := b.raw("tools"); v != nil {
		if q.options.Tools, err = chat.ParseTools(string(v)); err != nil {
			return err
		}
		list, _ := b.items("tools", len(q.options.Tools))
		for _, t := range list {
			if f, ok := t.object("function"); ok {
				spec := toolcall.Tool{Parameters: f.raw("parameters"), Strict: f.truth("strict", false)}
				spec.Name, _ = f.text("name")
				q.specs = append(q.specs, spec)
				t.join(f)
			}
			b.join(t)
		}
		if b.Err() != nil {
			return b.Err()
		}
	}
	v := b.raw("tool_choice")
	switch {
	case v == nil:
	case v[0] == '"':
		q.choice.kind, _ = b.text("tool_choice")
		switch q.choice.kind {
		case "auto", "none", "required":
		default:
			return invalid("tool_choice", "%.40q is not possible; use auto, none, required or a function", q.choice.kind)
		}
	default:
		o, _ := b.object("tool_choice")
		if b.Err() != nil {
			return b.Err()
		}
		o.text("type")
		if f, ok := o.object("function"); ok {
			o = f
		}
		name, ok := o.text("name")
		if !ok {
			return invalid("tool_choice", "names no function")
		}
		q.choice = toolChoice{"named", name}
	}
	return q.checkChoice()
}

// checkChoice refuses a choice that the tools do not have.
func (q *chatRequest) checkChoice() error {
	switch q.choice.kind {
	case "required":
		if len(q.specs) == 0 {
			return invalid("tool_choice", "a tool is required, but the request has none")
		}
	case "named":
		for _, t := range q.specs {
			if t.Name == q.choice.name {
				return nil
			}
		}
		return invalid("tool_choice", "there is no tool %.80q among the request's tools", q.choice.name)
	}
	return nil
}

// render makes the prompt of a conversation.
func (s *Server) render(r *http.Request, m *served, q *chatRequest) (*chat.Prompt, []int32, error) {
	t, err := m.Template()
	if err != nil {
		return nil, nil, invalid("messages", "%s; use /v1/completions, or start the server with --chat-template-file", err)
	}
	o := q.options
	if q.choice.kind == "none" {
		o.Tools = nil
	}
	if len(o.Tools) > 0 && !t.Tools() {
		m.noTools.Do(func() {
			s.cfg.Log.Warn().Msg("a request has tools, but the chat template has none: the model is not told of them")
		})
	}
	p, err := t.Render(r.Context(), q.messages, o)
	if err != nil {
		return nil, nil, err
	}
	ids, err := engine.EncodePrompt(r.Context(), m.tok, p, s.cfg.TrustSpecial, m.countLimit())
	if err != nil {
		return nil, nil, err
	}
	if s.cfg.LogPrompts {
		infoOf(r).text = p.Text()
	}
	return p, ids, m.fits("messages", len(ids))
}

// countLimit is where the tokens of a prompt are no longer counted: far enough beyond the context that people learn by how
// much theirs is too long, and near enough that a text of megabytes costs little.
func (m *served) countLimit() int { return 4*m.Context() + 1<<16 }

// fits refuses a prompt that leaves no room for an answer.
func (m *served) fits(field string, n int) error {
	switch {
	case n == 0:
		return invalid(field, "is empty")
	case n > m.Context():
		return &apiError{
			Status: http.StatusBadRequest, Type: typeContext, Tokens: n, Context: m.Context(),
			Message: "the prompt has " + m.count(n) + ", more than the context of " + plural(m.Context(), "token") + "; make it shorter" + m.largerContext(),
		}
	}
	return nil
}

// largerContext is advice, where there is any to give.
func (m *served) largerContext() string {
	if most := m.Model().Context; m.Context() < most {
		return fmt.Sprintf(", or start the server with a larger --ctx (up to %d)", most)
	}
	return "; the model has no larger one"
}

// count is a number of tokens, of which there may be more than were counted.
func (m *served) count(n int) string {
	if n > m.countLimit() {
		return "more than " + plural(m.countLimit(), "token")
	}
	return plural(n, "token")
}

// task makes a conversation a task.
func (s *Server) task(r *http.Request, m *served, q *chatRequest) (*task, error) {
	p, ids, err := s.render(r, m, q)
	if err != nil {
		return nil, err
	}
	params, err := q.params(m, s.cfg.Sampling(p.Thinking))
	if err != nil {
		return nil, err
	}
	t := &task{prompts: [][]int32{ids}, n: q.n, request: q.request(params), single: !q.parallel, stream: q.stream, ping: q.pings(), progress: q.progress && q.stream}
	if t.request.MaxTokens == 0 {
		t.request.MaxTokens = s.cfg.MaxTokens
	}
	t.parse = &chat.ParserOptions{
		Tools: q.options.Tools, NoCalls: q.choice.kind == "none", Think: p.Think, KeepTags: q.keepTags, NoCallInThink: s.cfg.NoCallInThink,
	}
	c := constraint{format: q.format, tools: q.specs, choice: q.choice, single: !q.parallel, think: p.Think}
	if x, err := m.Template(); err == nil {
		c.json = x.JSONCalls()
	}
	t.request.Grammar, err = m.compile(r.Context(), c)
	return t, err
}

// pings is the time between pings of a stream, and 0 without any.
func (c *common) pings() time.Duration {
	if !c.stream {
		return 0
	}
	return c.ping
}

// openChat takes a conversation in and makes it a task.
func (s *Server) openChat(r *http.Request, read func(*body) (*chatRequest, error)) (m *served, q *chatRequest, t *task, err error) {
	b, err := readBody(r)
	if err != nil {
		return nil, nil, nil, err
	}
	// What is wrong with a request does not depend on there being a model.
	if q, err = read(b); err != nil {
		return nil, nil, nil, err
	}
	if q.model, err = s.name(q.model); err != nil {
		return nil, nil, nil, err
	}
	s.tellUnknown(r, b)
	if m, err = s.ready(); err != nil {
		return nil, nil, nil, err
	}
	t, err = s.task(r, m, q)
	return m, q, t, err
}

// tellUnknown notes fields that mean nothing here.
func (s *Server) tellUnknown(r *http.Request, b *body) {
	if names := b.unknown(); len(names) > 0 {
		s.metrics.unknown.Add(float64(len(names)))
		s.cfg.Log.Debug().Str("id", infoOf(r).id).Strs("fields", names[:min(len(names), 20)]).Msg("fields without a meaning here")
	}
}

// chatCompletions is POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) error {
	m, q, t, err := s.openChat(r, s.readChat)
	if err != nil {
		return err
	}
	c := &chatWriter{
		head: header{ID: newID("chatcmpl-"), Object: "chat.completion", Created: time.Now().Unix(), Model: q.model, Fingerprint: s.fingerprint(m)},
		q:    q, m: m, t: t,
	}
	if q.stream {
		return c.stream(s, w, r)
	}
	probs := make([][]tokenLogprob, t.n)
	answers, err := s.run(r, m, t, func(u update) error {
		if u.token != nil && q.logprobs {
			probs[u.index] = append(probs[u.index], m.logprob(u.token))
		}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, c.whole(answers, probs))
	return nil
}

// header begins every object of a completion.
type header struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // Unix time
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"`
}

func (s *Server) fingerprint(m *served) string { return "caldera-" + s.cfg.Version + "-" + m.digest }

// usage is what a request took.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	PromptMore struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionMore struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// usageOf adds up answers. A prompt counts once, however many answers it got.
func usageOf(t *task, answers []answer) usage {
	var u usage
	for i := range answers {
		a := &answers[i]
		if i%t.n == 0 {
			u.Prompt += a.PromptTokens
			u.PromptMore.Cached += a.Reused
		}
		u.Completion += a.Tokens
		u.CompletionMore.Reasoning += a.reasoning
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// timings has the names of llama-server's object, and why no more of a prompt was in the cache.
type timings struct {
	CacheN              int     `json:"cache_n"`
	PromptN             int     `json:"prompt_n"`
	PromptMS            float64 `json:"prompt_ms"`
	PromptPerTokenMS    float64 `json:"prompt_per_token_ms"`
	PromptPerSecond     float64 `json:"prompt_per_second"`
	PredictedN          int     `json:"predicted_n"`
	PredictedMS         float64 `json:"predicted_ms"`
	PredictedPerTokenMS float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond  float64 `json:"predicted_per_second"`
	QueuedMS            float64 `json:"queued_ms"`
	Reuse               string  `json:"reuse,omitempty"`
	ReuseReason         string  `json:"reuse_reason,omitempty"`
}

func timingsOf(r *engine.Result) timings {
	// The first token comes out of the prompt's step, and the token that ends an answer has one of its own.
	steps := r.Tokens
	if r.Reason != engine.ReasonStop {
		steps = max(steps-1, 0)
	}
	t := timings{
		CacheN: r.Reused, PromptN: r.Processed, PromptMS: ms(r.PromptTime), PredictedN: r.Tokens, PredictedMS: ms(r.Time),
		QueuedMS: ms(r.Queued), Reuse: r.Reuse, ReuseReason: r.ReuseReason,
	}
	t.PromptPerTokenMS, t.PromptPerSecond = rates(r.Processed, r.PromptTime)
	t.PredictedPerTokenMS, t.PredictedPerSecond = rates(steps, r.Time)
	return t
}

// ms is a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// rates are milliseconds for each of n and how many there were in a second, 0 where nothing was measured.
func rates(n int, d time.Duration) (each, perSecond float64) {
	if n == 0 || d <= 0 {
		return 0, 0
	}
	return ms(d) / float64(n), float64(n) / d.Seconds()
}

// tokenLogprob is a token and what else was likely in its place.
type tokenLogprob struct {
	likelyToken
	Top []likelyToken `json:"top_logprobs"`
}

type likelyToken struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// least stands for minus infinity, which JSON has no form for.
const least = -9999

func (m *served) likely(id int32, value float64) likelyToken {
	p := likelyToken{Token: m.tok.Decode([]int32{id}), Logprob: max(value, least), Bytes: []int{}}
	for _, b := range m.tok.Piece(id) {
		p.Bytes = append(p.Bytes, int(b))
	}
	return p
}

func (m *served) logprob(t *engine.Token) tokenLogprob {
	p := tokenLogprob{m.likely(t.ID, t.Logprob), []likelyToken{}}
	for _, x := range t.Top {
		p.Top = append(p.Top, m.likely(x.ID, x.Value))
	}
	return p
}
