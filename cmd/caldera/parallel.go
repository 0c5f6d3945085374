package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/vk"
)

// parallelResult is a line that run --parallel prints for a request. One that failed after it had begun has an error and
// what there is of the answer; one that did not begin is a [parallelFailure].
type parallelResult struct {
	Schema    string          `json:"schema"` // "caldera.parallel/1"
	Index     int             `json:"index"`  // which request of the file, from 0; blank lines do not count
	ID        json.RawMessage `json:"id"`     // as in the request, null for none
	Text      string          `json:"text"`   // what the model wrote
	IDs       []int32         `json:"ids"`    // its tokens, without the one that ended it
	Reason    string          `json:"finish_reason"`
	Seed      uint64          `json:"seed"`
	Usage     parallelUsage   `json:"usage"`
	Timings   parallelTimings `json:"timings"`
	Reuse     string          `json:"reuse"`        // how much of the prompt was in the prefix cache and, if little, why
	ReuseWord string          `json:"reuse_reason"` // the reason in one word
	Error     *parallelError  `json:"error,omitempty"`
	cause     error
}

// parallelUsage counts tokens.
type parallelUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Cached     int `json:"cached_tokens"` // of the prompt, from the prefix cache
}

// parallelTimings is run's with what a request waited for.
type parallelTimings struct {
	QueuedMS     float64 `json:"queued_ms"` // until it had a slot
	LongestGapMS float64 `json:"longest_gap_ms"`
	runTimings
}

// parallelFailure is the line for a request that did not begin.
type parallelFailure struct {
	Schema string          `json:"schema"` // "caldera.parallel/1"
	Index  int             `json:"index"`
	ID     json.RawMessage `json:"id"`
	Error  *parallelError  `json:"error"`
}

// parallelError is why a request failed.
type parallelError struct {
	Message string `json:"message"`
	// Type is "invalid_request_error", "exceed_context_size_error", "timeout_error" (its deadline) or "server_error".
	Type string `json:"type"`
}

const (
	parallelSchema = "caldera.parallel/1"
	invalidRequest = "invalid_request_error"
)

// parallelSlots is how many sequences run at a time unless told.
const parallelSlots = 16

// maxPromptTokens is where the tokens of a prompt are no longer counted; no model has such a context.
const maxPromptTokens = 1 << 20

// A parallelRun is a run of many requests. Its methods are called by one goroutine but for collect.
type parallelRun struct {
	a        *app
	e        *engine.Engine
	form     *chatForm // nil where the model has none
	defaults engine.Request
	limit    int // requests in the engine at once

	ctx     context.Context
	cancel  context.CancelFunc
	results chan *parallelResult
	flight  int   // requests in the engine
	fault   error // why the run ends early
	stats   parallelStats
}

// parallelStats are a run's totals.
type parallelStats struct {
	start                    time.Time
	requests, done, failed   int
	prompt, reused, answered int          // tokens of requests that are done
	tokens                   atomic.Int64 // generated so far by all
	gaps                     gaps
	longest                  time.Duration
}

// openFile opens a file for reading. That of a pipe waits for somebody who writes, so it gives up when ctx ends.
func openFile(ctx context.Context, path string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	c := make(chan opened, 1)
	go func() {
		f, err := os.Open(path)
		c <- opened{f, err}
	}()
	select {
	case o := <-c:
		return o.f, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// parallel runs the requests of a file side by side.
func (a *app) parallel(ctx context.Context, path string) (err error) {
	defaults, err := a.request()
	if err != nil {
		return err
	}
	in := a.in
	if path != "-" {
		f, err := openFile(ctx, path)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, nerr := strconv.Atoi(path); err != nil && nerr == nil {
			return usagef("--parallel takes a file of requests, and there is none named %s; use --slots for how many run at a time", path)
		} else if err != nil {
			return usageError{err}
		}
		defer f.Close()
		in = f
	}
	e, err := a.openEngine(a.parallelConfig())
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	a.noteDevice(e)
	var form *chatForm
	if e.Tokenizer() != nil {
		if form, err = a.openForm(e); err != nil && !a.cfg.Run.Raw {
			return err
		}
	}
	p := &parallelRun{a: a, e: e, form: form, defaults: defaults, limit: e.Memory().Slots + a.cfg.Queue, results: make(chan *parallelResult)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	defer p.cancel()
	return p.run(ctx, in)
}

// parallelConfig turns settings into the engine's for many requests.
func (a *app) parallelConfig() engine.Config {
	c := a.engineConfig(0)
	if c.Slots = a.cfg.Slots; c.Slots == 0 {
		c.Slots = parallelSlots
	}
	c.MaxLatency, _ = parseLatency(a.cfg.MaxLatency) // checked with the configuration
	c.Queue = c.Slots + a.cfg.Queue                  // never full: no more than these are handed in
	a.addCache(&c, true)
	return c
}

// run hands in requests as there is room for them and writes results as they come.
func (p *parallelRun) run(ctx context.Context, in io.Reader) error {
	source := make(chan inputLine)
	broken := make(chan error, 1)
	go func() {
		broken <- readLines(p.ctx, in, source)
		close(source)
	}()
	lines := (<-chan inputLine)(source) // nil when no more are wanted
	show := p.a.newProgress()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	p.stats.start = time.Now()
	for lines != nil || p.flight > 0 {
		next := lines
		if p.flight >= p.limit {
			next = nil
		}
		select {
		case l, ok := <-next:
			if !ok || p.ctx.Err() != nil {
				lines = nil
				continue
			}
			p.begin(l)
		case r := <-p.results:
			p.flight--
			p.finish(r)
		case <-tick.C:
			n := p.stats.tokens.Load()
			show.update("%d requests done, %d under way, %d tokens, %s", p.stats.done, p.flight, n, speed(perSecond(int(n), time.Since(p.stats.start))))
		case <-cancelled(p.ctx, lines):
			lines = nil
		}
	}
	show.done()
	p.summary()
	var rerr error
	if p.fault == nil && ctx.Err() == nil {
		if rerr = <-broken; rerr != nil {
			rerr = fmt.Errorf("reading requests: %w", rerr)
		}
	}
	if err := cmp.Or(p.fault, ctx.Err(), rerr); err != nil {
		return err
	}
	if n := p.stats.failed; n > 0 {
		return fmt.Errorf("%d of %d requests failed; their lines of the output say why", n, p.stats.requests)
	}
	return nil
}

// cancelled is closed when ctx ends, as long as there are lines to read.
func cancelled(ctx context.Context, lines <-chan inputLine) <-chan struct{} {
	if lines == nil {
		return nil
	}
	return ctx.Done()
}

// begin hands a line's request to the engine.
func (p *parallelRun) begin(l inputLine) {
	r := &parallelResult{Schema: parallelSchema, Index: p.stats.requests, IDs: []int32{}}
	p.stats.requests++
	err := l.err
	kind := invalidRequest
	var x parallelLine
	if err == nil {
		if x, err = parseLine(l.data, p.defaults); x.id != nil {
			r.ID = x.id
		}
	}
	if err == nil {
		err = p.prepare(&x)
	}
	var stream *engine.Stream
	if err == nil {
		ctx, cancel := p.ctx, context.CancelFunc(func() {})
		if x.deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, x.deadline)
		}
		r.Seed = x.req.Sample.Seed
		if stream, err = p.e.Generate(ctx, x.req); err == nil {
			p.flight++
			go p.collect(r, stream, x.deadline, cancel)
			return
		}
		cancel()
		kind = errorType(err, invalidRequest)
	}
	if p.ctx.Err() != nil {
		return
	}
	p.stats.failed++
	p.stats.done++
	p.write(parallelFailure{parallelSchema, r.Index, r.ID, &parallelError{fmt.Sprintf("line %d: %v", l.number, err), kind}})
}

// prepare makes the prompt of a request and fills in what depends on the model.
func (p *parallelRun) prepare(x *parallelLine) (err error) {
	tok := p.e.Tokenizer()
	if !x.seeded && p.a.cfg.Seed < 0 {
		x.req.Sample.Seed = rand.Uint64() >> 11
	}
	if x.req.IgnoreEOG && tok != nil {
		neverEnd(tok, &x.req.Sample)
	}
	if x.ids != nil {
		x.req.Prompt = x.ids
		return nil
	}
	if x.req.Prompt, err = p.prompt(tok, x); err != nil {
		return err
	}
	if len(x.req.Prompt) > maxPromptTokens {
		return fmt.Errorf("the prompt has more than %d tokens, and the context is %d", maxPromptTokens, p.e.Context())
	}
	return nil
}

// prompt is a request's prompt as the model gets it.
func (p *parallelRun) prompt(tok *tokenizer.Tokenizer, x *parallelLine) (ids []int32, err error) {
	messages := []chat.Message{}
	for _, m := range x.messages {
		messages = append(messages, chat.NewMessage(m.role, m.text))
	}
	switch {
	case tok == nil:
		return nil, errors.New("the model has no vocabulary; give prompt_ids")
	case x.messages != nil && p.form == nil:
		return nil, errors.New("messages: the model has no chat template; give a prompt")
	case x.messages == nil && (p.a.cfg.Run.Raw || p.form == nil):
		return encodePrompt(p.ctx, tok, *x.text, maxPromptTokens)
	case x.messages == nil:
		messages = append(messages, chat.NewMessage(chat.RoleUser, *x.text))
	}
	_, ids, err = p.form.prompt(p.ctx, messages, maxPromptTokens)
	return ids, err
}

// collect gathers a request's tokens and delivers its result.
func (p *parallelRun) collect(r *parallelResult, s *engine.Stream, deadline time.Duration, cancel context.CancelFunc) {
	defer cancel()
	var text strings.Builder
	var last time.Time
	for t, err := range s.Tokens() {
		if err != nil {
			break // Result tells
		}
		text.WriteString(t.Text)
		if t.ID < 0 {
			continue
		}
		r.IDs = append(r.IDs, t.ID)
		p.stats.tokens.Add(1)
		now := time.Now()
		if !last.IsZero() {
			p.stats.gaps.add(now.Sub(last))
		}
		last = now
	}
	g, err := s.Result()
	r.Text, r.Reason, r.Reuse, r.ReuseWord = text.String(), g.Reason, g.Reuse, g.ReuseReason
	r.Usage = parallelUsage{Prompt: g.PromptTokens, Completion: g.Tokens, Cached: g.Reused}
	r.Timings = parallelTimings{QueuedMS: ms(g.Queued), LongestGapMS: ms(g.LongestGap), runTimings: newTimings(g)}
	if err != nil {
		r.Error = &parallelError{err.Error(), errorType(err, "server_error")}
		if deadline > 0 && errors.Is(err, context.DeadlineExceeded) {
			r.Error.Message = fmt.Sprintf("the deadline of %v has passed", deadline)
		}
		r.cause = err
	}
	p.results <- r
}

// finish writes a result. One that was cut off by the end of the run is none.
func (p *parallelRun) finish(r *parallelResult) {
	if r.cause != nil && (errors.Is(r.cause, context.Canceled) || p.ctx.Err() != nil) {
		return
	}
	s := &p.stats
	s.done++
	if r.Error != nil {
		s.failed++
	}
	s.prompt += r.Usage.Prompt
	s.reused += r.Usage.Cached
	s.answered += r.Usage.Completion
	s.longest = max(s.longest, time.Duration(r.Timings.LongestGapMS*1e6))
	p.write(r)
	if errors.Is(r.cause, vk.ErrDeviceLost) {
		p.stop(r.cause) // all that follow would fail
	}
}

// write prints a line of output. If that fails the run ends.
func (p *parallelRun) write(v any) {
	if p.fault != nil {
		return
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	if err == nil {
		_, err = p.a.out.Write(b.Bytes())
	}
	if err != nil {
		p.stop(fmt.Errorf("writing results: %w", err))
	}
}

// stop ends the run.
func (p *parallelRun) stop(err error) {
	p.fault = cmp.Or(p.fault, err)
	p.cancel()
}

// summary tells how it went.
func (p *parallelRun) summary() {
	s, a := &p.stats, p.a
	took := time.Since(s.start)
	failed := ""
	if s.failed > 0 {
		failed = fmt.Sprintf(", %d failed", s.failed)
	}
	of := ""
	if n := s.requests - s.done; n > 0 {
		failed += fmt.Sprintf(", %d not finished", n)
		of = " of finished requests"
	}
	a.note("requests:   %d in %.3f s%s", s.requests, took.Seconds(), failed)
	a.note("prompts:    %d tokens, %d of them reused from the prefix cache", s.prompt, s.reused)
	a.note("generation: %d tokens%s, %s in all", s.answered, of, speed(perSecond(s.answered, took)))
	if s.gaps.total > 0 {
		a.note("between tokens: half within %.1f ms, 99 %% within %.1f ms, longest %.1f ms",
			ms(min(s.gaps.quantile(0.5), s.longest)), ms(min(s.gaps.quantile(0.99), s.longest)), ms(s.longest))
	}
}

// errorType is the type of an error for the output, or other.
func errorType(err error, other string) string {
	switch {
	case errors.Is(err, engine.ErrContextFull):
		return "exceed_context_size_error"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout_error"
	case errors.Is(err, engine.ErrBusy), errors.Is(err, engine.ErrClosed):
		return "server_error"
	}
	return other
}
