package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/calderaml/caldera/engine/batch"
	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/model"
)

// A batcher runs requests side by side. One goroutine forms steps of all that are live, feeds prompts in chunks beside
// decoding, draws tokens and takes snapshots between steps. Sequences join and leave between steps.
type batcher struct {
	e      *Engine
	former batch.Former
	wake   chan struct{} // something has changed

	mu     sync.Mutex
	queue  []*job // waiting for a seat, the first come first
	closed bool
	stats  Stats         // but for what the next two say
	slots  []SlotStats   // of the live jobs
	refuse bool          // there is no memory for more
	last   int           // id
	done   chan struct{} // closed when the goroutine has ended; nil before it runs

	relief *relief
	live   []*job    // of the goroutine alone, as is all below
	air    []*flown  // steps under way, the first that began first
	idle   []*flown  // as many as may begin
	lanes  int       // how many may be under way together
	over   time.Time // when the last step ended
	jobs   []batch.Job
	top    []byte
	cand   []Candidate
	row    []float32
	masked []float32 // a row of which the tokens that a grammar refuses are struck out
	ids    []int32
	logit  []float32
	// Of the jobs of a step that has ended: how each failed, and whether it has ended.
	errs  []error
	ended []bool
}

// A flown is a step of the batcher's.
type flown struct {
	u     underway
	lane  int
	parts []part
	wants []int // what the parts' outs are slices of
	jobs  []*job
	start time.Time
	plans int // how many there were when it was formed
}

func newBatcher(e *Engine) (*batcher, error) {
	b := &batcher{
		e: e, wake: make(chan struct{}, 1),
		former: batch.Former{MaxRows: e.cfg.Batch, MaxSeqs: e.state.Slots, MaxLatency: e.cfg.MaxLatency},
	}
	b.lanes = e.cfg.lanes(e.where.Split)
	for lane := range b.lanes {
		b.idle = append(b.idle, &flown{lane: lane})
	}
	b.publish()
	var err error
	b.relief, err = e.newRelief()
	return b, err
}

// poke makes the goroutine look around.
func (b *batcher) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// submit puts a job into the queue. One for which a slot is free passes through it and does not count as waiting.
func (b *batcher) submit(j *job) error {
	b.e.mu.Lock()
	free := max(0, b.e.pool.Live()-b.e.pool.Reserved().Slots)
	b.e.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	if b.refuse {
		return fmt.Errorf("%w: there is not enough memory for more requests", ErrBusy)
	}
	if n := len(b.queue); n >= b.e.cfg.Queue+free {
		return fmt.Errorf("%w: %d requests are waiting already", ErrBusy, n)
	}
	b.last++
	j.id = b.last
	b.queue = append(b.queue, j)
	context.AfterFunc(j.ctx, b.poke)
	if b.done == nil {
		b.done = make(chan struct{})
		go b.run()
	}
	b.poke()
	return nil
}

// close ends all requests with ErrClosed and waits for the goroutine.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	done := b.done
	b.mu.Unlock()
	if done != nil {
		b.poke()
		<-done
	}
}

func (b *batcher) run() {
	defer close(b.done)
	for {
		b.mu.Lock()
		closed := b.closed
		b.mu.Unlock()
		if closed {
			break
		}
		b.drop()
		b.relieve()
		b.admit()
		b.restore()
		b.publish()
		if !b.step() {
			b.wait()
		}
	}
	b.settle()
	b.mu.Lock()
	all := append(slices.Clone(b.live), b.queue...)
	b.queue = nil
	b.mu.Unlock()
	for _, j := range all {
		b.end(j, ErrClosed)
	}
}

// wait waits until something has changed, or until it is time to look at memory again: snapshots are held, and what was
// given up is taken back, also while nothing runs.
func (b *batcher) wait() {
	t := time.NewTimer(idleEvery)
	defer t.Stop()
	select {
	case <-b.wake:
	case <-t.C:
	}
}

// end ends a job and gives back what it holds.
func (b *batcher) end(j *job, err error) {
	b.e.noteLoss(err)
	if i := slices.Index(b.live, j); i >= 0 {
		b.live = slices.Delete(b.live, i, i+1)
	}
	if j.seq != nil {
		j.forget()
		b.e.mu.Lock()
		b.e.unseat(j.seq)
		b.e.mu.Unlock()
	}
	j.end(err)
}

// drop ends the jobs whose context has ended.
func (b *batcher) drop() {
	b.mu.Lock()
	var gone []*job
	b.queue = slices.DeleteFunc(b.queue, func(j *job) bool {
		if j.ctx.Err() != nil {
			gone = append(gone, j)
			return true
		}
		return false
	})
	b.mu.Unlock()
	for _, j := range b.live {
		if j.ctx.Err() != nil && j.under == 0 {
			gone = append(gone, j)
		}
	}
	for _, j := range gone {
		b.end(j, j.cause())
	}
}

// admit seats jobs in the order in which they came. None overtakes another, or a large one might wait for ever. However
// little memory there is, one sequence runs: waiting alone frees nothing.
func (b *batcher) admit() {
	for !b.relief.limits.Queue || len(b.live) == 0 {
		b.mu.Lock()
		if len(b.queue) == 0 {
			b.mu.Unlock()
			return
		}
		j := b.queue[0]
		b.mu.Unlock()
		b.e.mu.Lock()
		seq, err := b.e.seat(j.most)
		b.e.mu.Unlock()
		if errors.Is(err, kv.ErrFull) {
			return
		}
		b.mu.Lock()
		b.queue = slices.Delete(b.queue, 0, 1)
		b.mu.Unlock()
		if err != nil {
			b.end(j, err)
			continue
		}
		j.seq, j.seated = seq, time.Now()
		j.result.Queued = j.seated.Sub(j.accepted)
		b.live = append(b.live, j)
		b.e.lookUp(j)
	}
}

// restore puts what the cache has found for jobs into their sequences. A job whose prompt begins as that of another on
// its way does not compute the same beside it: it waits until the other has left a snapshot where the two part.
func (b *batcher) restore() {
	for i := 0; i < len(b.live); i++ {
		j := b.live[i]
		if l := j.leader; l != nil {
			ended := !slices.Contains(b.live, l)
			if ended {
				j.part = 0 // it may not have come that far: another may take its place
			}
			if ended || len(l.seq.tokens) >= j.part {
				j.leader = nil
				b.e.lookUp(j)
			}
		}
		if j.found == nil {
			continue
		}
		select {
		case m := <-j.found:
			j.found = nil
			if l, at := b.ahead(j, m.Pos); l != nil {
				m.Release()
				l.stop(at)
				j.leader, j.part = l, at
				continue
			}
			if err := b.e.resume(j, m); err != nil {
				b.end(j, err)
				i-- // it is not live any more
				continue
			}
			j.report()
		default:
		}
	}
}

// ahead finds the job that is computing most of what a job's prompt begins with beyond pos, and where the prompts part.
// Those that wait themselves lead nobody, and a job waits for more each time unless the other has ended, so that no two
// wait for each other and nobody waits for ever.
func (b *batcher) ahead(j *job, pos int) (leader *job, at int) {
	at = max(pos+followLeast-1, j.part)
	for _, l := range b.live {
		if l == j || l.found != nil || l.leader != nil || l.req.NoCache {
			continue
		}
		n := min(common(j.req.Prompt, l.req.Prompt), len(j.req.Prompt)-1)
		if n > at && n > l.seq.fed() {
			leader, at = l, n
		}
	}
	return leader, at
}

// common is how many tokens two prompts share at their beginnings.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// form chooses what to run next.
func (b *batcher) form(f *flown) []part {
	b.jobs = b.jobs[:0]
	// With several steps under way each takes a share of those that decode, so that there is something to do for all.
	decoding, share := 0, 0
	for _, j := range b.live {
		if j.found == nil && j.leader == nil && len(j.seq.tokens) >= len(j.req.Prompt) {
			share++
		}
	}
	share = (share + b.lanes - 1) / b.lanes
	for _, j := range b.live {
		if j.found != nil || j.leader != nil {
			continue
		}
		n := j.seq.fed()
		x := batch.Job{ID: j.id, Prompt: j.prompt(), Cut: b.e.pool.Policy().Cut(n)}
		x.Decoding = x.Prompt == 0 && !j.idle() && decoding < share
		switch {
		case x.Decoding:
			decoding++
		case j.idle():
			x.Prompt = 0 // it has its place in the order
		}
		if len(j.points) > 0 {
			x.Cut = min(x.Cut, j.points[0]-n)
		}
		b.jobs = append(b.jobs, x)
	}
	b.former.MaxRows, b.former.MaxSeqs = b.e.maxStep(), b.e.state.Slots
	f.parts, f.wants = f.parts[:0], f.wants[:0]
	for _, x := range b.former.Next(b.jobs) {
		j := b.job(x.ID)
		p := part{seq: j.seq, tokens: j.pending()[:x.Tokens]}
		if x.Tokens == len(j.pending()) {
			f.wants = append(f.wants, x.Tokens-1)
			p.outs = f.wants[len(f.wants)-1:]
		}
		f.parts = append(f.parts, p)
	}
	return f.parts
}

// job returns the live job of an id, or of a sequence.
func (b *batcher) job(id int) *job {
	return b.live[slices.IndexFunc(b.live, func(j *job) bool { return j.id == id })]
}

// step begins what can be begun, waits for the end of the first step under way and does what comes of it. It returns false if
// there is nothing to run.
func (b *batcher) step() bool {
	e := b.e
	e.mu.Lock()
	e.giveWay()
	for len(b.idle) > 0 && e.turns.wanting == 0 && b.begin(b.idle[0]) {
	}
	if len(b.air) == 0 {
		e.mu.Unlock()
		return false
	}
	b.finish(b.air[0])
	return true
}

// settle brings all steps under way to their end.
func (b *batcher) settle() {
	for len(b.air) > 0 {
		b.e.mu.Lock()
		b.finish(b.air[0])
	}
}

// begin forms a step and begins it. It returns false if there is nothing to run. e.mu is held.
func (b *batcher) begin(f *flown) bool {
	e := b.e
	parts := b.form(f)
	if len(parts) == 0 {
		return false
	}
	f.jobs = slices.Grow(f.jobs[:0], len(parts))[:len(parts)]
	rows, opt, later := 0, model.GraphOptions{}, model.GraphOptions{}
	for i, p := range parts {
		j := b.live[slices.IndexFunc(b.live, func(j *job) bool { return j.seq == p.seq })]
		f.jobs[i] = j
		j.under++
		rows += len(p.tokens)
		j.wants(&later)
		if len(p.outs) > 0 {
			j.wants(&opt)
		}
	}
	if opt == (model.GraphOptions{}) {
		opt.TopK = 1 // nobody wants logits; the plan of greedy steps serves
	}
	f.start, f.plans = time.Now(), len(e.plans)
	err := e.begin(&f.u, f.lane, parts, e.outs(bucket(rows)), opt)
	b.idle, b.air = slices.Delete(b.idle, 0, 1), append(b.air, f)
	e.moreUnder(1)
	if err != nil {
		return false // its jobs are told when it is its turn
	}
	// When these have their prompts, each decodes. While the device runs this step there is time to make the plan for that; what
	// keeps it from being made is told when it is needed.
	n := bucket((len(parts) + b.lanes - 1) / b.lanes)
	_, _ = e.plan(planKey{rows: n, outs: e.outs(n), opt: later, lane: f.lane})
	return true
}

// finish waits for the end of the first step under way and does what comes of it. e.mu is held, and is not when it returns.
func (b *batcher) finish(f *flown) {
	e := b.e
	err := e.finish(&f.u)
	b.air, b.idle = slices.Delete(b.air, 0, 1), append(b.idle, f)
	e.moreUnder(-1)
	jobs, parts := f.jobs, f.parts
	defer clear(jobs) // they are not to be kept from the collector
	for _, j := range jobs {
		if j.under--; err != nil {
			j.broken = err
		}
	}
	if err != nil {
		e.mu.Unlock()
		b.endBroken(jobs)
		return
	}
	now := time.Now()
	if len(e.plans) == f.plans { // else a plan was made, which says nothing of the next step
		// With several under way a step takes as long as the last one had ended before it.
		b.former.Done(f.u.rows, now.Sub(later(f.start, b.over)))
	}
	b.over = now
	b.errs = slices.Grow(b.errs[:0], len(jobs))[:len(jobs)]
	b.ended = slices.Grow(b.ended[:0], len(jobs))[:len(jobs)]
	errs, ended := b.errs, b.ended
	clear(errs)
	clear(ended)
	out := 0
	for i, j := range jobs {
		at := out
		out += len(parts[i].outs)
		if j.broken != nil {
			continue // by a step before this one
		}
		if len(parts[i].tokens) > 1 || len(parts[i].outs) == 0 {
			j.report()
		}
		j.result.Processed += min(len(parts[i].tokens), max(0, len(j.req.Prompt)-(len(j.seq.tokens)-len(parts[i].tokens))))
		if len(parts[i].outs) == 0 {
			continue
		}
		var t Token
		if t, errs[i] = b.draw(j, f.u.plan, at); errs[i] == nil {
			ended[i] = j.drawn(e, t, now)
		}
	}
	for i, j := range jobs {
		if errs[i] == nil && j.broken == nil {
			e.keep(j, ended[i])
		}
	}
	e.mu.Unlock()
	for i, j := range jobs {
		if ended[i] || errs[i] != nil {
			b.end(j, errs[i])
		}
	}
	b.endBroken(jobs)
}

// endBroken ends the jobs of which a step has failed and none is under way.
func (b *batcher) endBroken(jobs []*job) {
	for _, j := range jobs {
		if j.broken != nil && j.under == 0 {
			b.end(j, j.broken)
		}
	}
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
