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
	live   []*job // of the goroutine alone, as is all below
	jobs   []batch.Job
	parts  []part
	top    []byte
	cand   []Candidate
	row    []float32
	masked []float32 // a row of which the tokens that a grammar refuses are struck out
	ids    []int32
	logit  []float32
	wants  []int // what the parts' outs are slices of
	// Of the jobs of a step: each, how it failed, and whether it has ended.
	jobsOf []*job
	errs   []error
	ended  []bool
}

func newBatcher(e *Engine) (*batcher, error) {
	b := &batcher{
		e: e, wake: make(chan struct{}, 1),
		former: batch.Former{MaxRows: e.cfg.Batch, MaxSeqs: e.state.Slots, MaxLatency: e.cfg.MaxLatency},
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
		if j.ctx.Err() != nil {
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
		if n > at && n > len(l.seq.tokens) {
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
func (b *batcher) form() []part {
	b.jobs = b.jobs[:0]
	for _, j := range b.live {
		if j.found != nil || j.leader != nil {
			continue
		}
		n := len(j.seq.tokens)
		x := batch.Job{ID: j.id, Prompt: j.prompt(), Cut: b.e.pool.Policy().Cut(n)}
		x.Decoding = x.Prompt == 0
		if len(j.points) > 0 {
			x.Cut = min(x.Cut, j.points[0]-n)
		}
		b.jobs = append(b.jobs, x)
	}
	b.former.MaxRows, b.former.MaxSeqs = b.e.maxStep(), b.e.state.Slots
	b.parts, b.wants = b.parts[:0], b.wants[:0]
	for _, x := range b.former.Next(b.jobs) {
		j := b.job(x.ID)
		p := part{seq: j.seq, tokens: j.pending()[:x.Tokens]}
		if x.Tokens == len(j.pending()) {
			b.wants = append(b.wants, x.Tokens-1)
			p.outs = b.wants[len(b.wants)-1:]
		}
		b.parts = append(b.parts, p)
	}
	return b.parts
}

// job returns the live job of an id, or of a sequence.
func (b *batcher) job(id int) *job {
	return b.live[slices.IndexFunc(b.live, func(j *job) bool { return j.id == id })]
}

// step runs one step and does what comes of it. It returns false if there is nothing to run.
func (b *batcher) step() bool {
	e := b.e
	e.mu.Lock()
	parts := b.form()
	if len(parts) == 0 {
		e.mu.Unlock()
		return false
	}
	b.jobsOf = slices.Grow(b.jobsOf[:0], len(parts))[:len(parts)]
	jobs := b.jobsOf
	defer clear(jobs) // they are not to be kept from the collector
	rows, opt, later := 0, model.GraphOptions{}, model.GraphOptions{}
	for i, p := range parts {
		jobs[i] = b.live[slices.IndexFunc(b.live, func(j *job) bool { return j.seq == p.seq })]
		rows += len(p.tokens)
		jobs[i].wants(&later)
		if len(p.outs) > 0 {
			jobs[i].wants(&opt)
		}
	}
	if opt == (model.GraphOptions{}) {
		opt.TopK = 1 // nobody wants logits; the plan of greedy steps serves
	}
	start, plans := time.Now(), len(e.plans)
	// When these have their prompts, each decodes.
	n := bucket(len(parts))
	p, _, err := e.step(parts, e.outs(bucket(rows)), opt, planKey{rows: n, outs: e.outs(n), opt: later})
	if err != nil {
		e.mu.Unlock()
		for _, j := range jobs {
			b.end(j, err)
		}
		return true
	}
	now := time.Now()
	if len(e.plans) == plans { // else a plan was made, which says nothing of the next step
		b.former.Done(rows, now.Sub(start))
	}
	b.errs = slices.Grow(b.errs[:0], len(jobs))[:len(jobs)]
	b.ended = slices.Grow(b.ended[:0], len(jobs))[:len(jobs)]
	errs, ended := b.errs, b.ended
	clear(errs)
	clear(ended)
	out := 0
	for i, j := range jobs {
		if len(parts[i].tokens) > 1 || len(parts[i].outs) == 0 {
			j.report()
		}
		j.result.Processed += min(len(parts[i].tokens), max(0, len(j.req.Prompt)-(len(j.seq.tokens)-len(parts[i].tokens))))
		if len(parts[i].outs) == 0 {
			continue
		}
		var t Token
		if t, errs[i] = b.draw(j, p, out); errs[i] == nil {
			ended[i] = j.drawn(e, t, now)
		}
		out++
	}
	for i, j := range jobs {
		if errs[i] == nil {
			e.keep(j, ended[i])
		}
	}
	e.mu.Unlock()
	for i, j := range jobs {
		if ended[i] || errs[i] != nil {
			b.end(j, errs[i])
		}
	}
	return true
}
