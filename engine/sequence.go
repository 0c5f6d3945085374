package engine

import (
	"errors"
	"fmt"
	"weak"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A sequence is tokens that have been fed and where their state is. Its state is for exactly these tokens, or failed
// says why it is unknown.
type sequence struct {
	seat   *kv.Seat
	tokens []int32
	ahead  int // tokens after those that are in steps under way
	failed error
	closed bool // the seat has been given up
	// last is the snapshot whose pages the next one may share, as long as somebody keeps it: what has been evicted from the
	// cache shall not go on taking memory.
	last weak.Pointer[state.Snapshot]
}

var errClosedSession = errors.New("the session is closed")

// seat makes a sequence of at most n tokens. It fails with kv.ErrFull or kv.ErrNever.
func (e *Engine) seat(n int) (*sequence, error) {
	if e.plans == nil {
		return nil, ErrClosed
	}
	s, err := e.pool.Seat(n)
	if err != nil {
		return nil, err
	}
	seq := &sequence{seat: s}
	e.seqs[seq] = struct{}{}
	return seq, nil
}

// unseat gives back what a sequence holds.
func (e *Engine) unseat(seq *sequence) {
	seq.closed = true
	seq.seat.Close()
	delete(e.seqs, seq)
}

// reset forgets every token.
func (s *sequence) reset() {
	s.seat.Clear()
	s.tokens, s.failed, s.last = s.tokens[:0], nil, weak.Pointer[state.Snapshot]{}
}

// A part is a sequence's share of a step: tokens that follow those it has, at most as many as its seat's policy allows
// in one run, and which of them want logits.
type part struct {
	seq    *sequence
	tokens []int32
	outs   []int
}

// step runs parts as one step: all of it or, with an error, an unknown share, after which the sequences are failed.
// Rows of results are those of the parts' outs in order; they last until the next step. The timing is that of the
// step and of re-encoding pages before it. e.mu is held.
func (e *Engine) step(parts []part, outs int, opt model.GraphOptions) (*planned, scheduler.Timing, error) {
	u := &e.under
	if err := e.begin(u, 0, parts, outs, opt); err != nil {
		return nil, u.timing, err
	}
	err := e.finish(u)
	return u.plan, u.timing, err
}

// An underway is a step that has begun.
type underway struct {
	parts  []part
	rows   int
	plan   *planned
	flight *scheduler.Flight // nil if it could not begin
	failed error             // why
	timing scheduler.Timing
}

// begin begins a step of parts in a lane in which none is under way, see step. Sequences may be in steps under way already, which
// began before. Finish must be called once for each step that has begun, in the order in which they did. e.mu is held.
func (e *Engine) begin(u *underway, lane int, parts []part, outs int, opt model.GraphOptions) (err error) {
	*u = underway{parts: parts}
	defer func() { u.failed = err }()
	for _, x := range parts {
		if x.seq.closed {
			return errClosedSession
		}
		if x.seq.failed != nil {
			return fmt.Errorf("an earlier step failed and left the sequence in an unknown state; reset it: %w", x.seq.failed)
		}
		u.rows += len(x.tokens)
	}
	if u.plan, err = e.plan(planKey{rows: bucket(u.rows), outs: outs, opt: opt, lane: lane}); err != nil {
		e.noteLoss(err)
		return err
	}
	defer func() {
		for _, x := range parts {
			if err != nil {
				// The step may have run, in whole or in part: its state cannot be gone on from.
				x.seq.failed = err
			} else {
				x.seq.ahead += len(x.tokens)
			}
		}
	}()
	if u.timing, err = e.encodePages(parts); err == nil {
		e.runs = appendRuns(e.runs[:0], parts)
		u.flight, err = u.plan.runner.Begin(e.runs, e.rope)
	}
	if err != nil {
		e.failed(err)
		if ierr := e.intact(); ierr != nil {
			err = ierr // whatever else came of it
		}
	}
	return err
}

// finish waits for the end of a step and moves its sequences on. A step that could not begin ends with the error of that. e.mu is
// held.
func (e *Engine) finish(u *underway) (err error) {
	if u.failed != nil {
		u.parts = nil
		return u.failed
	}
	t, err := u.flight.Wait()
	u.timing = u.timing.Add(t)
	if err == nil {
		e.watch(u.plan, u.rows)
	} else {
		e.failed(err)
	}
	if ierr := e.intact(); ierr != nil {
		err = ierr
	}
	for _, x := range u.parts {
		x.seq.ahead -= len(x.tokens)
		if err != nil {
			x.seq.failed = err
		}
		if x.seq.failed == nil { // as a step before it may have
			x.seq.tokens = append(x.seq.tokens, x.tokens...)
		}
	}
	u.parts, u.flight = nil, nil
	return err
}

// fed is how many tokens the sequence has, those that are under way among them.
func (s *sequence) fed() int { return len(s.tokens) + s.ahead }

// appendRuns appends the runs of a step of parts.
func appendRuns(runs []shaders.Run, parts []part) []shaders.Run {
	for _, x := range parts {
		pos := x.seq.fed()
		runs = append(runs, shaders.Run{
			Slot: x.seq.seat.Slot(), Pos: pos, Tokens: x.tokens, Pages: x.seq.seat.Pages(), Fresh: pos == 0, Outs: x.outs,
		})
	}
	return runs
}

// encodePages gives parts the pages they need, after pages that have turned cold have been re-encoded.
func (e *Engine) encodePages(parts []part) (t scheduler.Timing, err error) {
	var moving []*kv.Seat
	var runs []shaders.Run
	for again := true; again; {
		again, moving, runs = false, moving[:0], runs[:0]
		for _, x := range parts {
			pos := x.seq.fed()
			m, move, err := x.seq.seat.Grow(pos, pos+len(x.tokens))
			if err != nil {
				return t, err
			}
			if move {
				moving = append(moving, x.seq.seat)
				runs = append(runs, shaders.Run{Moves: []shaders.PageMove{{Hot: m.Hot, Cold: m.Cold}}})
			}
		}
		if len(moving) == 0 {
			return t, nil
		}
		p, err := e.plan(planKey{encode: true})
		if err != nil {
			return t, err
		}
		took, err := p.runner.Run(runs, e.rope)
		t = t.Add(took)
		if err != nil {
			return t, fmt.Errorf("re-encoding pages of the KV cache: %w", err)
		}
		for _, s := range moving {
			s.Moved()
		}
		again = true
	}
	return t, nil
}
