package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/sample"
)

// A task is some prompts, of most APIs one, and the answers to them that a client asks for.
type task struct {
	id      int64
	prompts [][]int32
	n       int            // answers to each; those to the first prompt come first
	request engine.Request // of each answer, without the prompt
	// parse takes answers apart; nil for text that is taken as it is.
	parse *chat.ParserOptions
	// single ends an answer after its first tool call.
	single   bool
	stream   bool
	ping     time.Duration // of a stream, 0 or less for none
	progress bool          // tell how far the first prompt is
}

// An update is something that came of a task.
type update struct {
	index    int
	events   []chat.Event // what goes on an answer
	token    *engine.Token
	thinking bool                   // the token is reasoning
	progress *engine.PromptProgress // of the prompt
	ping     bool                   // nothing happened for a while
	answer   *answer                // the answer has ended
}

// An answer is how one ended.
type answer struct {
	chat.Answer
	engine.Result
	reasoning int // tokens of Result.Tokens
}

// finish is why an answer ended, in OpenAI's words.
func (a *answer) finish() string {
	switch {
	case len(a.Calls) > 0:
		return "tool_calls"
	case a.Reason == engine.ReasonStop:
		return "stop"
	}
	return "length"
}

// progressEvery is how often the progress of a prompt is looked at.
const progressEvery = 200 * time.Millisecond

// run runs a task and tells sink what comes of it, in order and one at a time. The task ends when sink fails, and with the
// first answer that fails. The answers come by index.
func (s *Server) run(r *http.Request, m *served, t *task, sink func(update) error) ([]answer, error) {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	answers, err := s.runTask(r, m, t, sink)
	return answers, s.used(m, err)
}

func (s *Server) runTask(r *http.Request, m *served, t *task, sink func(update) error) ([]answer, error) {
	ctx, cancel := context.WithCancel(r.Context())
	t.id = s.last.Add(1)
	x := &running{s: s, m: m, t: t, ctx: ctx, items: make(chan item)}
	defer x.close(infoOf(r), cancel)
	// A grammar says where an answer ends.
	if t.request.IgnoreEOG = t.request.IgnoreEOG && t.request.Grammar == nil; t.request.IgnoreEOG {
		p := &t.request.Sample
		p.LogitBias = slices.Clone(p.LogitBias)
		for _, id := range m.tok.EOG() { // going on after an end would only repeat it
			p.LogitBias = append(p.LogitBias, sample.Bias{ID: id, Value: float32(math.Inf(-1))})
		}
	}
	answers := make([]answer, len(t.prompts)*t.n)
	if err := x.launch(len(answers)); err != nil {
		return nil, err
	}
	wait := newWaiting(t, x.streams[0])
	defer wait.stop()
	for left := len(answers); left > 0; {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-x.retry:
			if err := x.launch(len(answers)); err != nil {
				return nil, err
			}
		case <-wait.pings:
			if err := sink(update{ping: true}); err != nil {
				return nil, err
			}
		case <-wait.looks:
			if err := wait.look(sink); err != nil {
				return nil, err
			}
		case it := <-x.items:
			if it.err != nil {
				if cause := context.Cause(r.Context()); cause != nil {
					return nil, cause
				}
				return nil, it.err
			}
			if err := wait.over(sink); err != nil {
				return nil, err
			}
			u := update{index: it.index}
			if p := x.parsings[it.index]; it.ended {
				a := &answers[it.index]
				a.Result, _ = x.streams[it.index].Result()
				u.events = p.finish(&a.Result)
				a.Answer, a.reasoning, u.answer = p.answer, p.reasoning, a
				left--
				x.flying--
				if err := x.launch(len(answers)); err != nil {
					return nil, err
				}
			} else if p.cut {
				continue // what was on its way when the answer was ended
			} else {
				u.events, u.thinking = p.write(&it.token, t.single)
				if it.token.ID >= 0 {
					u.token = &it.token
				}
				if p.cut {
					x.streams[it.index].Cancel()
				}
			}
			if err := sink(u); err != nil {
				return nil, err
			}
		}
	}
	return answers, nil
}

// running is a task on its way.
type running struct {
	s        *Server
	m        *served
	t        *task
	ctx      context.Context
	items    chan item
	streams  []stream
	parsings []*parsing
	flying   int              // streams that have not ended
	retry    <-chan time.Time // when to launch more, after the engine had no room
}

// retryAfter is the time between two attempts to find room for more of a task's prompts.
const retryAfter = 50 * time.Millisecond

// launch asks the engine for answers, as many at a time as it has slots: a long list of prompts shall not fill the queue.
func (x *running) launch(total int) error {
	x.retry = nil
	for len(x.streams) < total && x.flying < max(1, x.m.slots) {
		k := len(x.streams)
		req := x.t.request
		req.Prompt, req.Tag = x.t.prompts[k/x.t.n], x.t
		req.Sample.Seed += uint64(k % x.t.n)
		st, err := x.m.generate(x.ctx, req)
		if errors.Is(err, engine.ErrBusy) && k > 0 {
			x.retry = time.After(retryAfter)
			return nil
		}
		if err != nil {
			return err
		}
		x.streams, x.parsings = append(x.streams, st), append(x.parsings, newParsing(x.t.parse))
		x.flying++
		go forward(x.ctx, k, st, x.items)
	}
	return nil
}

// close ends what still runs and counts what there was. The slots are free afterwards.
func (x *running) close(i *info, cancel func()) {
	cancel()
	for _, st := range x.streams {
		res, _ := st.Result()
		x.s.metrics.ended(&res)
		i.prompt += res.PromptTokens
		i.cached += res.Reused
		i.tokens += res.Tokens
	}
}

// An item is what a stream gives.
type item struct {
	index int
	token engine.Token
	ended bool
	err   error
}

// forward passes on what a stream gives, until the context ends.
func forward(ctx context.Context, index int, st stream, items chan<- item) {
	send := func(x item) bool {
		select {
		case items <- x:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for tok, err := range st.Tokens() {
		if err != nil {
			break // Result tells
		}
		if !send(item{index: index, token: tok}) {
			return
		}
	}
	// One that was cancelled although its context lives is one that the reader has cut off.
	_, err := st.Result()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = nil
	}
	send(item{index: index, ended: true, err: err})
}

// parsing is one answer on its way.
type parsing struct {
	parser    *chat.Parser // nil for text as it is
	answer    chat.Answer
	reasoning int  // tokens
	cut       bool // the answer is complete, whatever may follow
}

func newParsing(o *chat.ParserOptions) *parsing {
	if o == nil {
		return &parsing{}
	}
	return &parsing{parser: chat.NewParser(*o)}
}

// write takes a token.
func (p *parsing) write(t *engine.Token, single bool) (events []chat.Event, thinking bool) {
	if p.parser == nil {
		if t.Text != "" {
			events = []chat.Event{{Kind: chat.EventContent, Text: t.Text}}
		}
		p.answer.Add(events)
		return events, false
	}
	thinking = p.parser.Reasoning()
	events = p.parser.Write(t.Text)
	if single {
		for i, e := range events {
			if e.Kind == chat.EventCallEnd {
				events, p.cut = events[:i+1], true
				break
			}
		}
	}
	if t.ID >= 0 && thinking {
		p.reasoning++
	}
	p.answer.Add(events)
	return events, thinking
}

// finish ends the answer.
func (p *parsing) finish(res *engine.Result) (events []chat.Event) {
	if p.cut {
		res.Reason = engine.ReasonStop
		return nil
	}
	if p.parser != nil {
		events = p.parser.Finish(res.Reason != engine.ReasonStop)
		p.answer.Add(events)
	}
	return events
}

// waiting gives signs of life while nothing comes.
type waiting struct {
	first        stream
	told         engine.PromptProgress
	every        time.Duration // between pings
	pinger       *time.Ticker
	looker       *time.Ticker
	pings, looks <-chan time.Time
}

func newWaiting(t *task, first stream) *waiting {
	w := &waiting{first: first, every: t.ping}
	if t.ping > 0 {
		w.pinger = time.NewTicker(t.ping)
		w.pings = w.pinger.C
	}
	if t.progress {
		w.looker = time.NewTicker(progressEvery)
		w.looks = w.looker.C
	}
	return w
}

// look tells of progress, if there is any.
func (w *waiting) look(sink func(update) error) error {
	p := w.first.Progress()
	if p.Done <= w.told.Done || p.Total == 0 {
		return nil
	}
	w.told = p
	return sink(update{progress: &p})
}

// over is called with everything that comes: the prompt's end is told before the first of it.
func (w *waiting) over(sink func(update) error) error {
	if w.pinger != nil {
		w.pinger.Reset(w.every)
	}
	if w.looks == nil {
		return nil
	}
	w.looks = nil
	return w.look(sink)
}

func (w *waiting) stop() {
	for _, t := range []*time.Ticker{w.pinger, w.looker} {
		if t != nil {
			t.Stop()
		}
	}
}
