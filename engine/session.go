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
	e     *Engine
	seq   *sequence
	row   []float32
	top   []byte
	one   [1]Candidate
	trips []trip // steps under way
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
	return &Session{e: e, seq: seq, trips: make([]trip, e.cfg.lanes(e.where.Split))}, nil
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

// Decode feeds each of several sessions of an engine a token, as many times as rounds: the one that next returns for the session, given
// its best candidate after the one before; before the first that is a zero Candidate. All go in one step, or with several devices in
// as many groups as keep them busy, which go round one behind the other. The times of steps count in the first session of each group.
func (e *Engine) Decode(ctx context.Context, sessions []*Session, rounds int, next func(session int, best Candidate) int32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	for i, s := range sessions {
		if s.e != e || slices.Contains(sessions[:i], s) {
			return errors.New("a session is of another engine, or given twice")
		}
	}
	groups := e.Groups(len(sessions))
	if groups == 0 || (len(sessions)+groups-1)/groups > e.cfg.Batch {
		return fmt.Errorf("%d sessions in steps of at most %d rows", len(sessions), e.cfg.Batch)
	}
	gs := make([]group, groups)
	for i := range gs {
		first, end := i*len(sessions)/groups, (i+1)*len(sessions)/groups
		gs[i] = group{e: e, lane: i, first: first, sessions: sessions[first:end], best: make([]Candidate, end-first), tokens: make([]int32, end-first), parts: make([]part, end-first)}
	}
	begun, err := 0, error(nil)
	for ended := 0; ended < begun || begun < rounds*groups && err == nil; {
		for err == nil && begun < rounds*groups && begun-ended < groups {
			if err = ctx.Err(); err == nil {
				err = gs[begun%groups].begin(next)
			}
			if err == nil {
				begun++
			}
		}
		if ended < begun {
			if ferr := gs[ended%groups].finish(); err == nil {
				err = ferr
			}
			ended++
		}
	}
	return err
}

// Groups is in how many groups so many sequences decode, each in steps of its own.
func (e *Engine) Groups(sequences int) int { return min(e.cfg.lanes(e.where.Split), sequences) }

// A group is sessions that decode in one step.
type group struct {
	e        *Engine
	lane     int
	first    int // the number of its first session
	sessions []*Session
	best     []Candidate
	tokens   []int32
	parts    []part
	u        underway
	form     time.Duration // that it took to begin, but for what u.timing has
}

func (g *group) begin(next func(session int, best Candidate) int32) error {
	e, start := g.e, time.Now()
	for i, s := range g.sessions {
		g.tokens[i] = next(g.first+i, g.best[i])
		g.parts[i] = part{s.seq, g.tokens[i : i+1], firstRow}
		if err := e.accepts(s.seq, g.parts[i].tokens); err != nil {
			return err
		}
	}
	err := e.begin(&g.u, g.lane, g.parts, e.outs(bucket(len(g.parts))), model.GraphOptions{TopK: 1})
	g.form = time.Since(start) - g.u.timing.Total()
	return err
}

func (g *group) finish() error {
	start, begun := time.Now(), g.u.timing.Total()
	if err := g.e.finish(&g.u); err != nil {
		return err
	}
	end := time.Now()
	for i, s := range g.sessions {
		best, err := g.u.plan.readTop(i, 1, s.one[:0], &s.top, g.e.model.Vocab)
		if err != nil {
			return err
		}
		if len(best) > 0 {
			g.best[i] = best[0]
		}
	}
	t := stepTimes(g.u.timing, start, end, time.Now())
	t.Form += g.form + begun
	g.sessions[0].count(t)
	return nil
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

// A trip is a step of a session that is under way.
type trip struct {
	u     underway
	part  [1]part // its one part, and the rows of it that want logits, used again for the next
	outs  []int
	first int           // index of the first token that wants logits
	form  time.Duration // that it took to begin, but for what u.timing has
}

// feed runs tokens through the model in steps of at most the batch, calling done after each with the index
// of its first wanted token and how many it wanted. With several devices more than one step is under way, except where
// all logits are wanted; others wait until all of them have ended then.
func (s *Session) feed(ctx context.Context, tokens []int32, w want, opt model.GraphOptions, done func(p *planned, first, n int) error) (err error) {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.accepts(s.seq, tokens); err != nil {
		return err
	}
	lanes := e.cfg.lanes(e.where.Split)
	if w == wantAll {
		lanes = 1
	}
	for begun, ended, at := 0, 0, 0; at < len(tokens) || ended < begun; {
		if begun == ended {
			// None is under way: others may go first.
			e.mu.Unlock()
			err := ctx.Err()
			e.mu.Lock()
			if err != nil {
				return err
			}
			e.alone()
		}
		for err == nil && ctx.Err() == nil && at < len(tokens) && begun-ended < lanes {
			var n int
			if n, err = s.beginSome(begun%lanes, tokens, at, w, opt); err == nil {
				begun, at = begun+1, at+n
			}
		}
		if ended < begun {
			// A step that began is brought to its end, whatever became of another.
			if ferr := s.finishSome(ended%lanes, done); err == nil {
				err = ferr
			}
			ended++
		}
		if err == nil && ended == begun {
			err = ctx.Err()
		}
		if err != nil && ended == begun {
			return err
		}
	}
	return err
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

// beginSome begins one step of the tokens from first on, and returns how many it takes.
func (s *Session) beginSome(lane int, tokens []int32, first int, w want, opt model.GraphOptions) (int, error) {
	e, x := s.e, &s.trips[lane]
	start := time.Now()
	if e.plans == nil {
		return 0, ErrClosed
	}
	batch := min(e.maxStep(), e.pool.Policy().Cut(s.seq.fed()))
	if w == wantAll {
		batch = min(batch, logitRows(e.model, batch))
	}
	p := &x.part[0]
	*p = part{seq: s.seq, tokens: tokens[first:min(first+batch, len(tokens))], outs: x.outs[:0]}
	n := len(p.tokens)
	rows := bucket(n)
	outs := e.outs(rows)
	x.first = first
	switch last := first+n == len(tokens); {
	case w == wantAll:
		outs = rows
		for i := range n {
			p.outs = append(p.outs, i)
		}
	case w == wantLast && last:
		x.first = len(tokens) - 1
		p.outs = append(p.outs, n-1)
	}
	x.outs = p.outs
	err := e.begin(&x.u, lane, x.part[:], outs, opt)
	if err != nil {
		s.Waited += x.u.timing.Wait
		return 0, err
	}
	x.form = time.Since(start) - x.u.timing.Total()
	return n, nil
}

// finishSome waits for the end of a step that began.
func (s *Session) finishSome(lane int, done func(p *planned, first, n int) error) error {
	x, start := &s.trips[lane], time.Now()
	begun := x.u.timing.Total()
	err := s.e.finish(&x.u)
	x.part[0].tokens = nil // the caller's
	end := time.Now()
	if err != nil {
		s.Waited += x.u.timing.Wait
		return err
	}
	if done != nil {
		err = done(x.u.plan, x.first, len(x.outs))
	}
	// What was over when it had begun is not part of this time.
	t := stepTimes(x.u.timing, start, end, time.Now())
	t.Form += x.form + begun
	s.count(t)
	return err
}
