package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/prefix"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/engine/stop"
)

// A job is a request while it is in the engine. The batcher's goroutine owns it once it has a seat.
type job struct {
	id     int
	req    Request
	most   int // tokens of the sequence at most
	ctx    context.Context
	cause  func() error
	stream *Stream
	smp    *sample.Sampler
	text   decoder
	stops  *stop.Matcher
	state  grammar.State // of the request's grammar

	seq    *sequence
	found  chan *prefix.Match // what the cache has, once it has been looked up
	points []int              // where to capture, ascending, those passed removed
	leader *job               // computes what the prompts share up to part, where it is waited for
	part   int
	next   []int32 // the last token drawn, which is to be fed
	under  int     // steps that it is in
	broken error   // how one of them failed, while others are under way

	result                      Result
	accepted, seated, first, at time.Time // of acceptance, of the seat, of the first and of the last token
}

// decoder turns tokens into text.
type decoder interface {
	Push(id int32) string
	Flush() string
}

// newJob checks a request.
func (e *Engine) newJob(ctx context.Context, r Request) (*job, error) {
	r.Prompt = slices.Clone(r.Prompt) // the caller's may change while the request runs
	switch n := len(r.Prompt); {
	case r.MaxTokens < 0:
		return nil, fmt.Errorf("a limit of %d tokens", r.MaxTokens)
	case n == 0:
		return nil, errors.New("the prompt has no tokens")
	case r.TopLogprobs < 0 || r.TopLogprobs > MaxTopLogprobs:
		return nil, fmt.Errorf("the %d most likely tokens; 0 to %d are possible", r.TopLogprobs, MaxTopLogprobs)
	case n > e.cfg.Context:
		return nil, fmt.Errorf("%w: the prompt has %d tokens, %d more than the context of %d; open the model with a larger context (--ctx, up to %d)",
			ErrContextFull, n, n-e.cfg.Context, e.cfg.Context, e.model.Context)
	}
	if err := e.checkTokens(r.Prompt); err != nil {
		return nil, err
	}
	smp, err := sample.New(r.Sample)
	if err != nil {
		return nil, err
	}
	if len(r.Stop) > 0 && e.tok == nil {
		return nil, errors.New("stop strings for a model without a vocabulary")
	}
	stops, err := stop.New(r.Stop)
	if err != nil {
		return nil, err
	}
	for _, t := range r.Prompt {
		smp.Accept(t)
	}
	if r.Grammar != nil {
		if _, err := e.GrammarVocabulary(); err != nil {
			return nil, err
		}
	}
	j := &job{req: r, smp: smp, text: noText{}, stops: stops, most: e.cfg.Context, accepted: time.Now(), next: make([]int32, 0, 1)}
	if r.MaxTokens > 0 {
		// The last token is drawn and not fed.
		j.most = len(r.Prompt) + min(j.most-len(r.Prompt), r.MaxTokens-1)
	}
	e.mu.Lock()
	err = e.pool.Check(j.most)
	e.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w; ask for fewer tokens or open the model with more memory", ErrContextFull, err)
	}
	if r.Grammar != nil {
		j.state = r.Grammar.Start()
	}
	if e.tok != nil {
		j.text = e.tok.NewStreamDecoder()
	}
	own, cancel := context.WithCancelCause(ctx)
	j.ctx, j.cause = own, func() error { return context.Cause(own) }
	j.stream = newStream(cancel)
	j.result.PromptTokens = len(r.Prompt)
	j.stream.at.Total = len(r.Prompt)
	return j, nil
}

// prompt is how many tokens of the prompt have not been fed.
func (j *job) prompt() int { return max(0, len(j.req.Prompt)-j.seq.fed()) }

// stop makes a job capture its sequence at a position that it has not passed.
func (j *job) stop(at int) {
	if i, there := slices.BinarySearch(j.points, at); !there {
		j.points = slices.Insert(j.points, i, at)
	}
}

// idle reports whether the job has nothing that can be fed before a step of it has ended: its next token is not drawn yet, it
// is to be captured where that step ends, or it will end.
func (j *job) idle() bool {
	return j.under > 0 && (j.prompt() == 0 || len(j.points) > 0 && j.points[0] <= j.seq.fed() || j.ctx.Err() != nil || j.broken != nil)
}

// pending are the tokens that can be fed.
func (j *job) pending() []int32 {
	if n := j.seq.fed(); n < len(j.req.Prompt) {
		return j.req.Prompt[n:]
	}
	return j.next
}

// drawn takes in a token and reports whether the job has ended.
func (j *job) drawn(e *Engine, t Token, now time.Time) bool {
	id := t.ID
	r := &j.result
	if r.Tokens == 0 && j.first.IsZero() {
		j.first = now
		r.PromptTime = now.Sub(j.seated)
	} else {
		r.LongestGap = max(r.LongestGap, now.Sub(j.at))
	}
	j.at = now
	if id == noToken || !j.req.IgnoreEOG && e.tok != nil && e.tok.IsEOG(id) {
		r.Reason = ReasonStop
		return true
	}
	j.smp.Accept(id)
	r.Tokens++
	var stopped bool
	t.Text, stopped = j.stops.Push(j.text.Push(id))
	j.stream.push(t)
	switch {
	case stopped:
		r.Reason, r.Stop = ReasonStop, j.stops.Found()
		return true
	case j.req.MaxTokens > 0 && r.Tokens == j.req.MaxTokens:
		r.Reason = ReasonLength
		return true
	case len(j.seq.tokens) >= e.cfg.Context:
		r.Reason = ReasonContext
		return true
	}
	j.next = append(j.next[:0], id)
	return false
}

// end delivers the job's result.
func (j *job) end(err error) {
	r := &j.result
	now := time.Now()
	switch {
	case j.seated.IsZero():
		r.Queued = now.Sub(j.accepted)
	case !j.first.IsZero():
		r.Time = now.Sub(j.first)
	default:
		r.PromptTime = now.Sub(j.seated)
	}
	if err != nil {
		r.Reason = ReasonError
		if j.ctx.Err() != nil && errors.Is(err, j.cause()) {
			r.Reason = ReasonCancelled
		}
	}
	if r.Stop == "" {
		tail, stopped := j.stops.Push(j.text.Flush())
		if tail += j.stops.Flush(); tail != "" {
			j.stream.push(Token{ID: -1, Text: tail})
		}
		if stopped && err == nil {
			r.Reason, r.Stop = ReasonStop, j.stops.Found()
		}
	}
	j.stream.end(*r, err)
	j.stream.cancel(nil)
}

// report tells the reader how far the prompt is.
func (j *job) report() {
	p := PromptProgress{Total: len(j.req.Prompt), Cached: j.result.Reused, Time: time.Since(j.seated)}
	p.Done = min(p.Total, len(j.seq.tokens))
	j.stream.progress(p)
}

// noText stands in for a decoder where a model has no vocabulary.
type noText struct{}

func (noText) Push(int32) string { return "" }
func (noText) Flush() string     { return "" }
