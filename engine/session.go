package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// maxLogitBytes bounds the logits that one step delivers to the host.
const maxLogitBytes = 64 << 20

// A Session is one sequence that is fed by hand: the tokens fed so far live in its state on the device. It has a seat
// for a whole context beside those of [Engine.Generate]. Its methods must not be called concurrently.
type Session struct {
	e   *Engine
	seq *sequence
	row []float32
	top []byte
	// The one part of a step, and its rows that want logits, used again for the next.
	part [1]part
	outs []int
	// Steps counts the steps of the session, Waited is the time spent waiting for the device, and Times says where all
	// of the time of steps went.
	Steps  int
	Waited time.Duration
	Times  StepTimes
}

// StepTimes is where the time of steps went: of the host, but for Wait.
type StepTimes struct {
	Form   time.Duration // choosing tokens, pages and plan, and what follows the step
	Write  time.Duration // writing the step buffer
	Submit time.Duration // handing the recorded commands to the driver
	Wait   time.Duration // until the device was done
	Read   time.Duration // taking results
}

// Plus is the sum of two.
func (t StepTimes) Plus(u StepTimes) StepTimes {
	return StepTimes{t.Form + u.Form, t.Write + u.Write, t.Submit + u.Submit, t.Wait + u.Wait, t.Read + u.Read}
}

// Minus is what u is short of t.
func (t StepTimes) Minus(u StepTimes) StepTimes {
	return StepTimes{t.Form - u.Form, t.Write - u.Write, t.Submit - u.Submit, t.Wait - u.Wait, t.Read - u.Read}
}

// Host is all but waiting.
func (t StepTimes) Host() time.Duration { return t.Form + t.Write + t.Submit + t.Read }

// stepTimes divides the time of a step that began at start, ended at end, and whose results were read until read.
func stepTimes(t scheduler.Timing, start, end, read time.Time) StepTimes {
	return StepTimes{Form: end.Sub(start) - t.Total(), Write: t.Write, Submit: t.Submit, Wait: t.Wait, Read: read.Sub(end)}
}

// count takes in the times of a step.
func (s *Session) count(t StepTimes) {
	s.Steps++
	s.Waited += t.Wait
	s.Times = s.Times.Plus(t)
}

// NewSession returns an empty sequence. It fails with [ErrBusy] while others hold what it needs.
func (e *Engine) NewSession() (*Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seq, err := e.seat(e.cfg.Context)
	if err != nil {
		return nil, busy(err)
	}
	return &Session{e: e, seq: seq}, nil
}

// Close ends the sequence.
func (s *Session) Close() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.e.unseat(s.seq)
	s.e.batcher.poke() // somebody may wait for the seat
}

// Reset forgets every token.
func (s *Session) Reset() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.seq.reset()
}

// Len is the number of tokens fed.
func (s *Session) Len() int { return len(s.seq.tokens) }

// A Candidate is a token and its logit.
type Candidate struct {
	ID    int32
	Logit float32
}

// Prefill feeds tokens without looking at logits.
func (s *Session) Prefill(ctx context.Context, tokens []int32) error {
	return s.feed(ctx, tokens, wantNone, model.GraphOptions{}, nil)
}

// Logits feeds tokens and calls f with the logits after each, in order. The slice is reused. F must not call the engine.
func (s *Session) Logits(ctx context.Context, tokens []int32, f func(i int, logits []float32) error) error {
	opt := model.GraphOptions{Logits: true}
	return s.feed(ctx, tokens, wantAll, opt, func(p *planned, first, n int) error {
		for i := range n {
			if err := s.readRow(p, i); err != nil {
				return err
			}
			if err := f(first+i, s.row); err != nil {
				return err
			}
		}
		return nil
	})
}

// Last feeds tokens and returns the logits after the last. The slice is reused.
func (s *Session) Last(ctx context.Context, tokens []int32) ([]float32, error) {
	opt := model.GraphOptions{Logits: true}
	err := s.feed(ctx, tokens, wantLast, opt, func(p *planned, _, n int) error {
		if n == 0 {
			return nil
		}
		return s.readRow(p, 0)
	})
	return s.row, err
}

// Hidden feeds tokens and returns what the model's head would read after the last: a row of the embedding's width, after the
// final norm. The slice is the caller's.
func (s *Session) Hidden(ctx context.Context, tokens []int32) (row []float32, err error) {
	err = s.feed(ctx, tokens, wantLast, model.GraphOptions{Hidden: true}, func(p *planned, _, n int) error {
		if n == 0 {
			return nil
		}
		row = make([]float32, p.out.Hidden.Width)
		return p.runner.Read(p.out.Hidden.Slice(0, int64(len(row))*4), asBytes(row))
	})
	return row, err
}

// Top feeds tokens and appends the k best candidates after the last to dst, best first; the device selects
// them and only they are read back.
func (s *Session) Top(ctx context.Context, tokens []int32, k int, dst []Candidate) ([]Candidate, error) {
	if k < 1 || k > shaders.TopKMax {
		return dst, fmt.Errorf("%d candidates; 1 to %d can be selected", k, shaders.TopKMax)
	}
	opt := model.GraphOptions{TopK: k}
	err := s.feed(ctx, tokens, wantLast, opt, func(p *planned, _, n int) (err error) {
		if n > 0 {
			dst, err = p.readTop(0, k, dst, &s.top, s.e.model.Vocab)
		}
		return err
	})
	return dst, err
}

// TopEach feeds one token to each of several sessions of an engine, all in one step, and appends the best candidate
// after each to dst. The times of the step count in each session.
func (e *Engine) TopEach(ctx context.Context, sessions []*Session, tokens []int32, dst []Candidate) ([]Candidate, error) {
	if len(sessions) != len(tokens) || len(tokens) == 0 {
		return dst, fmt.Errorf("%d tokens for %d sessions", len(tokens), len(sessions))
	}
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	start := time.Now()
	if len(sessions) > e.cfg.Batch {
		return dst, fmt.Errorf("%d sessions in a step of at most %d rows", len(sessions), e.cfg.Batch)
	}
	parts := e.parts[:0]
	for i, s := range sessions {
		if s.e != e || slices.Contains(sessions[:i], s) {
			return dst, errors.New("a session is of another engine, or given twice")
		}
		parts = append(parts, part{s.seq, tokens[i : i+1], firstRow})
		if err := e.accepts(s.seq, parts[i].tokens); err != nil {
			return dst, err
		}
	}
	e.parts = parts
	p, t, err := e.step(parts, e.outs(bucket(len(parts))), model.GraphOptions{TopK: 1}, planKey{})
	if err != nil {
		return dst, err
	}
	end := time.Now()
	for i, s := range sessions {
		if dst, err = p.readTop(i, 1, dst, &s.top, e.model.Vocab); err != nil {
			return dst, err
		}
	}
	took := stepTimes(t, start, end, time.Now())
	for _, s := range sessions {
		s.count(took)
	}
	return dst, nil
}

// firstRow wants the logits of a run's only row.
var firstRow = []int{0}

// readRow reads one row of logits into s.row.
func (s *Session) readRow(p *planned, i int) (err error) {
	s.row, err = p.readLogits(i, s.row)
	return err
}

// want says which rows of the fed tokens need logits.
type want int

const (
	wantNone want = iota
	wantLast
	wantAll
)

// feed runs tokens through the model in steps of at most the batch, calling done after each with the index
// of its first wanted token and how many it wanted.
func (s *Session) feed(ctx context.Context, tokens []int32, w want, opt model.GraphOptions, done func(p *planned, first, n int) error) error {
	e := s.e
	e.mu.Lock()
	err := e.accepts(s.seq, tokens)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	for first := 0; first < len(tokens); {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.feedSome(tokens, first, w, opt, done)
		if err != nil {
			return err
		}
		first += n
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// accepts checks that tokens can be fed to a sequence.
func (e *Engine) accepts(seq *sequence, tokens []int32) error {
	if e.plans == nil {
		return ErrClosed
	}
	if err := e.intact(); err != nil {
		return err
	}
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	if n := len(seq.tokens); n+len(tokens) > e.cfg.Context {
		return fmt.Errorf("%w: %d tokens are in it and %d more do not fit %d; open the model with a larger context (--ctx, up to %d)",
			ErrContextFull, n, len(tokens), e.cfg.Context, e.model.Context)
	}
	return e.checkTokens(tokens)
}

// checkTokens refuses ids that the model does not have.
func (e *Engine) checkTokens(tokens []int32) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= e.model.Vocab {
			return fmt.Errorf("token %d is %d, outside the vocabulary of %d", i, t, e.model.Vocab)
		}
	}
	return nil
}

// feedSome runs one step of the tokens from first on, and returns how many it took.
func (s *Session) feedSome(tokens []int32, first int, w want, opt model.GraphOptions, done func(p *planned, first, n int) error) (int, error) {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	start := time.Now()
	if e.plans == nil {
		return 0, ErrClosed
	}
	batch := min(e.maxStep(), e.pool.Policy().Cut(len(s.seq.tokens)))
	if w == wantAll {
		batch = min(batch, logitRows(e.model, batch))
	}
	x := &s.part[0]
	*x = part{seq: s.seq, tokens: tokens[first:min(first+batch, len(tokens))], outs: s.outs[:0]}
	n := len(x.tokens)
	rows := bucket(n)
	outs, wantFirst := e.outs(rows), first
	switch last := first+n == len(tokens); {
	case w == wantAll:
		outs = rows
		for i := range n {
			x.outs = append(x.outs, i)
		}
	case w == wantLast && last:
		wantFirst = len(tokens) - 1
		x.outs = append(x.outs, n-1)
	}
	s.outs = x.outs
	p, t, err := e.step(s.part[:], outs, opt, planKey{})
	x.tokens = nil // the caller's
	end := time.Now()
	if err != nil {
		s.Waited += t.Wait
		return 0, err
	}
	if done != nil {
		err = done(p, wantFirst, len(x.outs))
	}
	s.count(stepTimes(t, start, end, time.Now()))
	return n, err
}
