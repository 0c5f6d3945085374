package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/model"
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
	// Steps counts the steps of the session, and Waited the time spent waiting for the device.
	Steps  int
	Waited time.Duration
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
// after each to dst.
func (e *Engine) TopEach(ctx context.Context, sessions []*Session, tokens []int32, dst []Candidate) ([]Candidate, error) {
	if len(sessions) != len(tokens) || len(tokens) == 0 {
		return dst, fmt.Errorf("%d tokens for %d sessions", len(tokens), len(sessions))
	}
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(sessions) > e.cfg.Batch {
		return dst, fmt.Errorf("%d sessions in a step of at most %d rows", len(sessions), e.cfg.Batch)
	}
	parts := make([]part, len(sessions))
	for i, s := range sessions {
		if s.e != e || slices.Contains(sessions[:i], s) {
			return dst, errors.New("a session is of another engine, or given twice")
		}
		parts[i] = part{s.seq, tokens[i : i+1], []int{0}}
		if err := e.accepts(s.seq, parts[i].tokens); err != nil {
			return dst, err
		}
	}
	p, waited, err := e.step(parts, e.outs(bucket(len(parts))), model.GraphOptions{TopK: 1})
	if err != nil {
		return dst, err
	}
	for i, s := range sessions {
		s.Waited += waited
		s.Steps++
		if dst, err = p.readTop(i, 1, dst, &s.top, e.model.Vocab); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

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
		return fmt.Errorf("%w: %d tokens are in it and %d more do not fit %d; open the model with a larger context (up to %d)",
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
	if e.plans == nil {
		return 0, ErrClosed
	}
	batch := min(e.cfg.Batch, e.pool.Policy().Cut(len(s.seq.tokens)))
	if w == wantAll {
		batch = min(batch, logitRows(e.model, batch))
	}
	x := part{seq: s.seq, tokens: tokens[first:min(first+batch, len(tokens))]}
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
		x.outs = []int{n - 1}
	}
	p, waited, err := e.step([]part{x}, outs, opt)
	s.Waited += waited
	if err != nil {
		return 0, err
	}
	s.Steps++
	if done != nil {
		return n, done(p, wantFirst, len(x.outs))
	}
	return n, nil
}
