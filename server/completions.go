package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/sample"
)

// maxPrompts is the most prompts of a request.
const maxPrompts = 256

// A completionRequest is text to be continued.
type completionRequest struct {
	common
	prompts [][]int32
	texts   []string // of the prompts
	echo    bool
	none    bool // no token is to be generated
	format  format
}

// completionLogprobs is the older form of log-probabilities, which evaluation harnesses read.
type completionLogprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []*float64           `json:"token_logprobs"` // null for a first token, which nothing comes before
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // in characters
	at       int                  // where the next token begins
}

type completionChoice struct {
	Text     string              `json:"text"`
	Index    int                 `json:"index"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Finish   *string             `json:"finish_reason"`
}

type completion struct {
	header
	Choices  []completionChoice `json:"choices"`
	Usage    *usage             `json:"usage,omitempty"`
	Timings  *timings           `json:"timings,omitempty"`
	Progress *promptProgress    `json:"prompt_progress,omitempty"`
	Seed     *uint64            `json:"seed,omitempty"`
}

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	q := &completionRequest{common: s.readCommon(b)}
	q.echo = b.truth("echo", false)
	if v := b.raw("suffix"); v != nil && string(v) != `""` {
		return notSupported(http.StatusBadRequest, "suffix", "is not supported; leave it out")
	}
	if n, ok := b.whole("max_tokens", 0, 1<<53); ok {
		q.none = n == 0
		q.maxTokens = int(min(n, 1<<31-1))
	} else {
		q.maxTokens = 16
	}
	if n, ok := b.whole("logprobs", 0, 20); ok {
		q.logprobs, q.top = true, int(n)
	}
	q.format = readFormat(b)
	if err := b.Err(); err != nil {
		return err
	}
	if q.model, err = s.name(q.model); err != nil {
		return err
	}
	v := b.raw("prompt")
	if v == nil {
		return invalid("prompt", "is missing")
	}
	s.tellUnknown(r, b)
	m, err := s.ready()
	if err != nil {
		return err
	}
	if q.none && !q.echo {
		return invalid("max_tokens", "0 makes sense with echo alone; use 1 or more")
	}
	if err := q.readPrompts(r.Context(), m, "prompt", v); err != nil {
		return err
	}
	t, err := s.plainTask(r, m, &q.common, q.prompts, q.format)
	if err != nil {
		return err
	}
	x := &completionWriter{
		q: q, m: m, t: t,
		head: header{ID: newID("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: q.model, Fingerprint: s.fingerprint(m)},
	}
	if q.stream {
		return x.stream(s, w, r)
	}
	return x.whole(s, w, r)
}

// readPrompts reads a string, a list of strings, a list of token ids, or a list of such lists.
func (q *completionRequest) readPrompts(ctx context.Context, m *served, field string, v json.RawMessage) error {
	var one string
	var ids []*int32
	var texts []string
	var lists [][]*int32
	switch {
	case json.Unmarshal(v, &one) == nil:
		texts = []string{one}
	case json.Unmarshal(v, &ids) == nil:
		lists = [][]*int32{ids}
	case json.Unmarshal(v, &texts) == nil:
	case json.Unmarshal(v, &lists) == nil:
		texts = nil
	default:
		return invalid(field, "must be a string, a list of strings, a list of token ids, or a list of such lists")
	}
	if n := max(len(texts), len(lists)); n == 0 || n > maxPrompts {
		return invalid(field, "has %d prompts; use 1 to %d", n, maxPrompts)
	}
	for i, text := range texts {
		ids, err := m.encode(ctx, text)
		if err != nil {
			return err
		}
		if err := m.fits(field, len(ids)); err != nil {
			return err
		}
		q.prompts, q.texts = append(q.prompts, ids), append(q.texts, texts[i])
	}
	for _, list := range lists {
		ids, err := m.tokens(field, list)
		if err == nil {
			err = m.fits(field, len(ids))
		}
		if err != nil {
			return err
		}
		q.prompts, q.texts = append(q.prompts, ids), append(q.texts, m.tok.Decode(ids))
	}
	return nil
}

// tokens checks ids that come from outside.
func (m *served) tokens(field string, list []*int32) ([]int32, error) {
	ids := make([]int32, len(list))
	for i, id := range list {
		if id == nil {
			return nil, invalid(field, "null is no token id")
		}
		if *id < 0 || int(*id) >= m.tok.Len() {
			return nil, invalid(field, "%d is no token id; they go from 0 to %d", *id, m.tok.Len()-1)
		}
		ids[i] = *id
	}
	return ids, nil
}

// encode returns the tokens of a raw prompt. As everywhere where there is no template, it may spell control tokens.
func (m *served) encode(ctx context.Context, text string) ([]int32, error) {
	ids, err := m.tok.EncodeLimit(ctx, text, true, m.countLimit())
	if err == nil && m.tok.AddBOS() {
		ids = append([]int32{m.tok.BOS()}, ids...)
	}
	return ids, err
}

// plainTask makes prompts without a conversation a task.
func (s *Server) plainTask(r *http.Request, m *served, c *common, prompts [][]int32, f format) (*task, error) {
	params, err := c.params(m, s.cfg.Sampling(false))
	if err != nil {
		return nil, err
	}
	t := &task{prompts: prompts, n: c.n, request: c.request(params), stream: c.stream, ping: c.pings(), progress: c.progress && c.stream}
	if t.request.MaxTokens == 0 {
		t.request.MaxTokens = s.cfg.MaxTokens
	}
	if s.cfg.LogPrompts {
		infoOf(r).text = m.tok.Decode(prompts[0])
	}
	t.request.Grammar, err = m.compile(r.Context(), constraint{format: f, think: chat.ThinkClosed})
	return t, err
}

// completionWriter writes completions.
type completionWriter struct {
	head header
	q    *completionRequest
	m    *served
	t    *task
	echo []*completionLogprobs // of the prompts, where they are wanted
}

// whole answers at once.
func (c *completionWriter) whole(s *Server, w http.ResponseWriter, r *http.Request) error {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	if err := c.score(r.Context()); err != nil {
		return err
	}
	probs := make([]*completionLogprobs, len(c.q.prompts)*c.q.n)
	for i := range probs {
		probs[i] = c.start(i)
	}
	x := completion{header: c.head, Seed: &c.t.request.Sample.Seed}
	var answers []answer
	if c.q.none {
		answers = make([]answer, len(probs))
		for i := range answers {
			answers[i] = answer{Result: engine.Result{PromptTokens: len(c.q.prompts[i/c.q.n]), Reason: engine.ReasonLength}}
		}
		infoOf(r).prompt = usageOf(c.t, answers).Prompt
	} else {
		var err error
		answers, err = s.run(r, c.m, c.t, func(u update) error {
			if u.token != nil && c.q.logprobs {
				c.m.add(probs[u.index], u.token)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i := range answers {
		a := &answers[i]
		ch := completionChoice{Text: c.prefix(i), Index: i, Finish: new(a.finish())}
		if a.Content != nil {
			ch.Text += *a.Content
		}
		if c.q.logprobs {
			ch.Logprobs = probs[i]
		}
		x.Choices = append(x.Choices, ch)
	}
	u, t := usageOf(c.t, answers), timingsOf(&answers[0].Result)
	x.Usage, x.Timings = &u, &t
	writeJSON(w, http.StatusOK, x)
	return nil
}

// prefix is what comes before an answer's text.
func (c *completionWriter) prefix(i int) string {
	if c.q.echo {
		return c.q.texts[i/c.q.n]
	}
	return ""
}

// start is the log-probabilities before the answer's.
func (c *completionWriter) start(i int) *completionLogprobs {
	if c.echo == nil {
		return (&completionLogprobs{}).next()
	}
	e := c.echo[i/c.q.n]
	n := len(e.Tokens)
	return &completionLogprobs{e.Tokens[:n:n], e.Logprobs[:n:n], e.Top[:n:n], e.Offsets[:n:n], e.at}
}

// stream answers as it comes.
func (c *completionWriter) stream(s *Server, w http.ResponseWriter, r *http.Request) error {
	if c.q.none {
		return invalid("max_tokens", "a stream of no tokens; use 1 or more")
	}
	if err := c.score(r.Context()); err != nil {
		return err
	}
	e := s.events(w)
	send := func(x completion) error {
		x.header = c.head
		if x.Choices == nil {
			x.Choices = []completionChoice{}
		}
		return e.data("", x)
	}
	n := len(c.q.prompts) * c.q.n
	begun, held := make([]bool, n), make([]*completionLogprobs, n)
	answers, err := s.run(r, c.m, c.t, func(u update) error {
		switch {
		case u.ping:
			return e.ping()
		case u.progress != nil:
			return send(completion{Choices: []completionChoice{{}}, Progress: progressOf(u.progress)})
		}
		text := ""
		if !begun[u.index] {
			begun[u.index], held[u.index] = true, c.start(u.index)
			text = c.prefix(u.index)
		}
		if u.token != nil && c.q.logprobs {
			c.m.add(held[u.index], u.token)
		}
		for _, ev := range u.events {
			text += ev.Text
		}
		if text == "" && u.answer == nil {
			return nil
		}
		ch := completionChoice{Text: text, Index: u.index}
		if c.q.logprobs {
			ch.Logprobs = held[u.index]
			held[u.index] = held[u.index].next()
		}
		if u.answer != nil {
			ch.Finish = new(u.answer.finish())
		}
		return send(completion{Choices: []completionChoice{ch}})
	})
	if err == nil && c.q.usage {
		u, t := usageOf(c.t, answers), timingsOf(&answers[0].Result)
		err = send(completion{Usage: &u, Timings: &t})
	}
	if err == nil {
		err = e.done()
	}
	return e.end(s, r, err, func(form any) error { return e.data("", form) })
}

// add takes in a token of the answer.
func (m *served) add(p *completionLogprobs, t *engine.Token) {
	m.addOne(p, t.ID, &t.Logprob, t.Top)
}

func (m *served) addOne(p *completionLogprobs, id int32, value *float64, list []sample.Logprob) {
	text := m.tok.Decode([]int32{id})
	p.Tokens, p.Offsets, p.Logprobs = append(p.Tokens, text), append(p.Offsets, p.at), append(p.Logprobs, value)
	p.at += utf8.RuneCountInString(text)
	var top map[string]float64
	if value != nil {
		*value = max(*value, least)
		top = map[string]float64{}
		for _, x := range list {
			top[m.tok.Decode([]int32{x.ID})] = max(x.Value, least)
		}
	}
	p.Top = append(p.Top, top)
}

// next is empty and goes on where p ends.
func (p *completionLogprobs) next() *completionLogprobs {
	return &completionLogprobs{Tokens: []string{}, Logprobs: []*float64{}, Top: []map[string]float64{}, Offsets: []int{}, at: p.at}
}

// scoreTimeout is how long scoring waits for a slot.
const scoreTimeout = 30 * time.Second

// score computes the log-probabilities of the prompts where they are echoed.
func (c *completionWriter) score(ctx context.Context) error {
	if !c.q.echo || !c.q.logprobs {
		return nil
	}
	for _, ids := range c.q.prompts {
		p, err := c.m.score(ctx, ids, c.q.top)
		if err != nil {
			return err
		}
		c.echo = append(c.echo, p)
	}
	return nil
}

// session waits for a sequence of its own.
func (m *served) session(ctx context.Context) (*engine.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scoreTimeout, busy("all slots have been busy for "+scoreTimeout.String()))
	defer cancel()
	for {
		x, err := m.NewSession()
		if err == nil || !errors.Is(err, engine.ErrBusy) {
			return x, err
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// score computes the log-probability of every token of a prompt but the first.
func (m *served) score(ctx context.Context, ids []int32, top int) (*completionLogprobs, error) {
	x, err := m.session(ctx)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	p := &completionLogprobs{}
	m.addOne(p, ids[0], nil, nil)
	if len(ids) == 1 {
		return p, nil
	}
	err = x.Logits(ctx, ids[:len(ids)-1], func(i int, logits []float32) error {
		v, list, err := sample.Logprobs(nil, logits, ids[i+1], top)
		if err != nil {
			return err
		}
		m.addOne(p, ids[i+1], &v, list)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scoring the prompt: %w", err)
	}
	return p, nil
}
