package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// How often a profiled step is run: as often as asked for, and on while it is quick.
const (
	profileEnough = time.Second
	profileMost   = 100
)

// ProfileOptions say which step to profile. Its tokens are random ones.
type ProfileOptions struct {
	Sequences   int // 0 is one
	Rows        int // tokens of each sequence in the step; 0 is one; fewer where a page of a quantised cache ends
	Depth       int // tokens in each sequence's context before the step
	Repetitions int // at least; quick steps are run more often
	Seed        uint64
}

// OpTime is an op of a step with the time it took.
type OpTime struct {
	Layer  int // -1 before the first, the number of layers after the last
	Name   string
	Kernel string
	Detail string // block type and shape, see [shaders.Detail]
	Cost   shaders.Cost
	Time   time.Duration // median
}

// A Profile is what each op of a step takes on the device. All times are medians.
type Profile struct {
	Counts
	Sequences, Rows, Depth int
	Repetitions            int
	Ops                    []OpTime
	Device                 time.Duration // from the begin of the first dispatch to the end of the last, by the device's clock
	Wait                   time.Duration // of such a step on the host, from handing it to the driver to its end
	Plain                  time.Duration // the same of the ordinary plan, which notes no times; run in turns with the other
	// Carry is the part of Device, which is summed up over the devices, that copies rows at boundaries, and HostCarry what the host takes to
	// carry them; both 0 on one device.
	Carry, HostCarry time.Duration
}

// Profile measures the ops of one step: greedy decoding of Sequences tokens, or a part of a prompt. For that it makes
// another plan of the step, which differs from the ordinary one in nothing but timestamps. The step is run again and
// again at the same place with other tokens, so that the context it needs does not grow. Others wait meanwhile.
func (e *Engine) Profile(ctx context.Context, o ProfileOptions) (*Profile, error) {
	o.Sequences, o.Rows, o.Repetitions = max(1, o.Sequences), max(1, o.Rows), max(1, o.Repetitions)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	if e.plans == nil {
		return nil, ErrClosed
	}
	if rows := o.Sequences * o.Rows; o.Depth < 0 || o.Depth+o.Rows > e.cfg.Context || rows > e.cfg.Batch {
		return nil, fmt.Errorf("a step of %d rows after %d tokens does not fit a batch of %d and a context of %d", rows, o.Depth, e.cfg.Batch, e.cfg.Context)
	}
	o.Rows = min(o.Rows, e.pool.Policy().Cut(o.Depth))
	x := &profiling{e: e, ctx: ctx, random: rand.New(rand.NewPCG(o.Seed, uint64(o.Depth)))}
	defer x.close()
	if err := x.seat(o); err != nil {
		return nil, err
	}
	return x.measure(o)
}

// profiling is a profile on its way. e.mu is held as long as it lasts.
type profiling struct {
	e      *Engine
	ctx    context.Context
	random *rand.Rand
	parts  []part // of the step
}

func (x *profiling) close() {
	for _, p := range x.parts {
		x.e.unseat(p.seq)
	}
	x.e.batcher.poke() // somebody may wait for the seats
}

// fill makes tokens random.
func (x *profiling) fill(tokens []int32) {
	for i := range tokens {
		tokens[i] = int32(x.random.IntN(x.e.model.Vocab))
	}
}

// seat brings the sequences to the depth.
func (x *profiling) seat(o ProfileOptions) error {
	e := x.e
	for range o.Sequences {
		seq, err := e.seat(o.Depth + o.Rows)
		if err != nil {
			return busy(err)
		}
		x.parts = append(x.parts, part{seq: seq, tokens: make([]int32, o.Rows), outs: []int{o.Rows - 1}})
		for len(seq.tokens) < o.Depth {
			if err := x.ctx.Err(); err != nil {
				return err
			}
			n := min(e.cfg.Batch, e.pool.Policy().Cut(len(seq.tokens)), o.Depth-len(seq.tokens))
			tokens := make([]int32, n)
			x.fill(tokens)
			p := []part{{seq: seq, tokens: tokens}}
			if _, _, err := e.step(p, e.outs(bucket(n)), model.GraphOptions{TopK: 1}); err != nil {
				return err
			}
		}
	}
	_, err := e.encodePages(x.parts)
	return err
}

// stamped makes the plan that notes times.
func (e *Engine) stamped(k planKey) (*scheduler.Graph, scheduler.Stamper, error) {
	g, _ := e.graph(k)
	if e.die == nil {
		r, err := scheduler.NewReference(g, e.memory)
		if err == nil {
			r.Stamp = true
		}
		return g, r, err
	}
	w, err := e.workspace(generation)
	if err != nil {
		return nil, nil, err
	}
	p, err := scheduler.Compile(g, e.where, scheduler.Options{Check: e.cfg.Check, Workspace: w, Machine: &e.machine, Stamp: true})
	return g, p, err
}

// measure runs the step with and without timestamps in turn.
func (x *profiling) measure(o ProfileOptions) (*Profile, error) {
	e := x.e
	rows := bucket(o.Sequences * o.Rows)
	k := planKey{rows: rows, outs: e.outs(rows), opt: model.GraphOptions{TopK: 1}}
	plain, err := e.plan(k)
	if err != nil {
		return nil, err
	}
	g, timed, err := e.stamped(k)
	if err != nil {
		return nil, fmt.Errorf("a plan of %d rows with timestamps: %w", rows, err)
	}
	defer timed.Close()
	p := &Profile{Counts: Counts{plain.stats, plain.cost}, Sequences: o.Sequences, Rows: o.Rows, Depth: o.Depth}
	nodes := make([][]time.Duration, len(g.Nodes))
	var device, wait, ordinary, copied, carried []time.Duration
	runs := appendRuns(nil, x.parts)
	var t scheduler.StepTimes
	start := time.Now()
	for i := -1; i < o.Repetitions || i < profileMost && time.Since(start) < profileEnough; i++ {
		if err := x.ctx.Err(); err != nil {
			return nil, err
		}
		a, err := x.run(timed, runs)
		if err != nil {
			return nil, err
		}
		if err := timed.Times(&t); err != nil {
			return nil, err
		}
		b, err := x.run(plain.runner, runs)
		if err != nil {
			return nil, err
		}
		if i < 0 {
			start = time.Now()
			continue // the first of each only warms up
		}
		p.Repetitions++
		for n, d := range t.Nodes {
			nodes[n] = append(nodes[n], d)
		}
		copied, carried = append(copied, t.Carry), append(carried, b.Carry)
		device, wait, ordinary = append(device, t.Total), append(wait, a.Submit+a.Wait), append(ordinary, b.Submit+b.Wait)
	}
	p.Device, p.Wait, p.Plain = median(device), median(wait), median(ordinary)
	p.Carry, p.HostCarry = median(copied), median(carried)
	for i, n := range g.Nodes {
		p.Ops = append(p.Ops, OpTime{n.Layer, n.Name, n.Op.Kernel(), shaders.Detail(n.Op), n.Op.Cost(), median(nodes[i])})
	}
	return p, e.intact()
}

// run runs the step with new tokens.
func (x *profiling) run(r scheduler.Runner, runs []shaders.Run) (scheduler.Timing, error) {
	for i := range runs {
		x.fill(runs[i].Tokens)
	}
	return r.Run(runs, x.e.rope)
}

// median is the middle one, or the mean of the two in the middle; it sorts.
func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return (d[(len(d)-1)/2] + d[len(d)/2]) / 2
}

// CopyRate measures the memory bandwidth of the device, in bytes read and written per second by a copy of a buffer.
func (e *Engine) CopyRate() (float64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	switch {
	case e.plans == nil:
		return 0, ErrClosed
	case e.die == nil:
		return scheduler.HostCopyRate(), nil
	}
	rate, err := e.die.CopyRate()
	if err != nil {
		err = fmt.Errorf("measuring the device's memory: %w", err)
	}
	return rate, err
}
