package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/shaders"
)

// maxLogitBytes bounds the logits that one step delivers to the host.
const maxLogitBytes = 64 << 20

// A Session is one sequence: the tokens fed so far live in its state on the device. This version holds one
// session at a time.
type Session struct {
	e      *Engine
	pos    int
	pages  []int32
	failed error // why the state is unknown, nil while it is known
	row    []float32
	top    []byte
	// cand, ids and logits are the candidates of the token being drawn, kept to be reused.
	cand   []Candidate
	ids    []int32
	logits []float32
	// Steps counts the steps of the session, and Waited the time spent waiting for the device.
	Steps  int
	Waited time.Duration
}

// NewSession returns an empty sequence.
func (e *Engine) NewSession() (*Session, error) {
	if e.plans == nil {
		return nil, errors.New("the engine is closed")
	}
	if e.session != nil {
		return nil, errors.New("a session is open already; this version holds one sequence at a time")
	}
	e.session = &Session{e: e}
	return e.session, nil
}

// Close ends the sequence.
func (s *Session) Close() {
	if s.e.session == s {
		s.e.session = nil
	}
}

// Reset forgets every token.
func (s *Session) Reset() { s.pos, s.pages, s.failed = 0, s.pages[:0], nil }

// Len is the number of tokens fed.
func (s *Session) Len() int { return s.pos }

// A Candidate is a token and its logit.
type Candidate struct {
	ID    int32
	Logit float32
}

// Prefill feeds tokens without looking at logits.
func (s *Session) Prefill(ctx context.Context, tokens []int32) error {
	return s.feed(ctx, tokens, wantNone, model.GraphOptions{}, nil)
}

// Logits feeds tokens and calls f with the logits after each, in order. The slice is reused.
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
	err := s.feed(ctx, tokens, wantLast, opt, func(p *planned, _, n int) error {
		if n == 0 {
			return nil
		}
		if len(s.top) != 8*k {
			s.top = shaders.AlignedBytes(int64(8 * k))
		}
		if err := p.runner.Read(p.out.Top.Slice(0, int64(8*k)), s.top); err != nil {
			return err
		}
		w := shaders.Words(s.top)
		for i := range k {
			if int(w[2*i]) < s.e.model.Vocab {
				dst = append(dst, Candidate{int32(w[2*i]), math.Float32frombits(w[2*i+1])})
			}
		}
		return nil
	})
	return dst, err
}

// readRow reads one row of logits into s.row.
func (s *Session) readRow(p *planned, i int) error {
	width := p.out.Logits.Width
	if len(s.row) != width {
		s.row = make([]float32, width)
	}
	v := p.out.Logits.Slice(int64(i)*int64(width)*4, int64(width)*4)
	return p.runner.Read(v, asBytes(s.row))
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
	switch {
	case e.plans == nil:
		return errors.New("the engine is closed")
	case e.session != s:
		return errors.New("the session is closed")
	}
	if err := e.intact(); err != nil {
		return err
	}
	if s.failed != nil {
		return fmt.Errorf("an earlier step failed and left the sequence in an unknown state; reset it: %w", s.failed)
	}
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	if s.pos+len(tokens) > e.cfg.Context {
		return fmt.Errorf("%w: %d tokens are in it and %d more do not fit %d; open the model with a larger context (up to %d)",
			ErrContextFull, s.pos, len(tokens), e.cfg.Context, e.model.Context)
	}
	for i, t := range tokens {
		if t < 0 || int(t) >= e.model.Vocab {
			return fmt.Errorf("token %d is %d, outside the vocabulary of %d", i, t, e.model.Vocab)
		}
	}
	batch, outs := e.cfg.Batch, 1
	if w == wantAll {
		batch = logitRows(e.model, batch)
	}
	for first := 0; first < len(tokens); first += batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := tokens[first:min(first+batch, len(tokens))]
		rows := bucket(len(chunk))
		run := shaders.Run{Pos: s.pos, Tokens: chunk, Fresh: s.pos == 0}
		wantFirst := first
		switch last := first+len(chunk) == len(tokens); {
		case w == wantAll:
			outs = rows
			for i := range chunk {
				run.Outs = append(run.Outs, i)
			}
		case w == wantLast && last:
			wantFirst = len(tokens) - 1
			run.Outs = []int{len(chunk) - 1}
		}
		p, err := e.plan(planKey{rows, outs, opt})
		if err != nil {
			return err
		}
		for len(s.pages)*shaders.PageTokens < s.pos+len(chunk) {
			s.pages = append(s.pages, int32(len(s.pages)))
		}
		run.Pages = s.pages
		waited, err := p.runner.Run([]shaders.Run{run}, e.rope)
		s.Waited += waited
		if ierr := e.intact(); ierr != nil {
			err = ierr // whatever else came of it
		}
		if err != nil {
			// The step may have run, in whole or in part: its state cannot be gone on from.
			s.failed = err
			return err
		}
		s.Steps++
		s.pos += len(chunk)
		if err := ctx.Err(); err != nil {
			return err
		}
		if done != nil {
			if err := done(p, wantFirst, len(run.Outs)); err != nil {
				return err
			}
		}
	}
	return nil
}
