package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/calderaml/caldera/shaders"
)

// Options change how a plan is made.
type Options struct {
	// Check turns on the debug mode: what was recorded is searched for a missing barrier.
	Check bool
	// PerOp records every op by itself and gives scratch buffers memory of their own, so that RunOps can
	// stop after each op and intermediate values stay readable.
	PerOp bool
	// Workspace is memory that the plan shares with others that never run at the same time. Without one, and
	// with PerOp, the plan has memory of its own.
	Workspace *Workspace
	// Machine carries the plan's steps on from die to die. Plans whose steps may be under way together have the same. Without one
	// the plan has its own.
	Machine *Machine
	// Budget is how long a submission should take at most. A step is divided into as many submissions as that takes by
	// what its command buffers took before; one is the least that can be submitted. 0 makes a step one submission on each die.
	Budget time.Duration
	// Stamp records the time at which each dispatch has ended, for Plan.Times. Everything else is as without.
	Stamp bool
}

// Stats are the counts of one step of a plan.
type Stats struct {
	Ops, Dispatches, Barriers, CommandBuffers, Submits int
	Scratch                                            int64 // bytes, of all dies
	// Carried is how many bytes of a row the host carries from die to die, summed over the boundaries.
	Carried int64
}

// A Plan is a graph compiled for dies: memory assigned, barriers placed, command buffers recorded. It is
// replayed for every step; nothing is recorded again.
type Plan struct {
	Graph *Graph

	stages  []*stage // by die
	work    *Workspace
	own     bool // the workspace is the plan's own
	machine *Machine
	stats   Stats
	flight  Flight // the last step
}

// Compile makes a plan. Weights and state that the graph names must have memory already on the dies that use them.
func Compile(g *Graph, where Placement, opt Options) (_ *Plan, err error) {
	if err := where.Check(); err != nil {
		return nil, err
	}
	if err := g.Check(); err != nil {
		return nil, err
	}
	ls, err := legs(g, where.Split)
	if err != nil {
		return nil, err
	}
	p := &Plan{Graph: g, machine: opt.Machine}
	p.flight.plan = p
	if p.machine == nil {
		p.machine = &Machine{}
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	for i, l := range ls {
		p.stages = append(p.stages, newStage(g, i, where.Dies[i], l, opt))
	}
	if err := p.allocate(opt); err != nil {
		return nil, err
	}
	p.stats.Ops = len(g.Nodes)
	for _, s := range p.stages {
		if err := s.record(opt, &p.stats); err != nil {
			if len(p.stages) > 1 {
				err = fmt.Errorf("device %d, %s: %w", s.index, s.name, err)
			}
			return nil, err
		}
	}
	return p, nil
}

// allocate gives the graph's own buffers memory.
func (p *Plan) allocate(opt Options) (err error) {
	var dies []*Die
	var needs []Needs
	fits := opt.Workspace != nil && !opt.PerOp
	for i, s := range p.stages {
		if err := s.placed(); err != nil {
			return err
		}
		if fits && !opt.Workspace.holds(i, s.die, s.needs) {
			return fmt.Errorf("a step needs %+v bytes on device %d, which the workspace has not", s.needs, i)
		}
		p.stats.Scratch += s.needs.Scratch
		dies, needs = append(dies, s.die), append(needs, s.needs)
	}
	if fits {
		p.work = opt.Workspace
	} else {
		if p.work, err = NewWorkspace(dies, needs, nil); err != nil {
			return err
		}
		p.own = true
	}
	for i, s := range p.stages {
		s.mem = &p.work.parts[i]
	}
	return nil
}

// Stats returns the counts of one step, as one submission on each die.
func (p *Plan) Stats() Stats { return p.stats }

// rowsOf is the number of rows that runs have together.
func rowsOf(runs []shaders.Run) (n int) {
	for _, r := range runs {
		n += len(r.Tokens)
	}
	return n
}

// Begin writes the step and submits what the first die does of it. It does not wait. While a step of the workspace lasts it refuses,
// as the step buffer is still being read. The flight is the plan's, and is good until its next step.
func (p *Plan) Begin(runs []shaders.Run, rope shaders.RopeTable) (*Flight, error) {
	start := time.Now()
	if err := p.work.idle(); err != nil {
		return nil, err
	}
	if err := p.writeStep(runs, rope); err != nil {
		return nil, err
	}
	written := time.Now()
	err := p.launch(rowsOf(runs))
	f := &p.flight
	f.timing.Write, f.timing.Submit = written.Sub(start), time.Since(written)
	return f, err
}

// launch makes the step that the step buffers describe the plan's flight.
func (p *Plan) launch(rows int) error {
	p.flight.reset(rows)
	p.work.flight = &p.flight
	return p.machine.begin(&p.flight)
}

// writeStep writes the step buffers of all dies.
func (p *Plan) writeStep(runs []shaders.Run, rope shaders.RopeTable) error {
	for _, s := range p.stages {
		if len(s.cbs) == 0 {
			continue
		}
		step := s.mem.step
		if step == nil {
			return errors.New("the plan's memory has been freed")
		}
		if err := p.Graph.Shape.Write(shaders.Words(step.Mapped()), runs, rope); err != nil {
			return err
		}
		if err := step.Flush(0, p.Graph.Step.Size); err != nil {
			return err
		}
	}
	return nil
}

// Run performs one step to its end and returns where its time went. It allocates nothing.
func (p *Plan) Run(runs []shaders.Run, rope shaders.RopeTable) (Timing, error) {
	return run(p, runs, rope)
}

// run is a step of a runner to its end.
func run(r Runner, runs []shaders.Run, rope shaders.RopeTable) (Timing, error) {
	f, err := r.Begin(runs, rope)
	if err != nil {
		return Timing{}, err
	}
	return f.Wait()
}

// Longest is what the slowest part of a step of so many rows that cannot be divided will take, as far as steps have run
// with a budget; 0 before.
func (p *Plan) Longest(rows int) (most time.Duration) {
	for _, s := range p.stages {
		most = max(most, s.pace.longest(rows))
	}
	return most
}

// Pace says how the plan's submissions kept to Options.Budget.
func (p *Plan) Pace() (sum PaceStats) {
	for _, s := range p.stages {
		sum = sum.Plus(s.pace.stats)
	}
	return sum
}

// Replay performs the step that the step buffer already describes, to its end.
func (p *Plan) Replay() error {
	if err := p.launch(p.Graph.Shape.Rows); err != nil {
		return err
	}
	return p.machine.wait(&p.flight)
}

// errStop ends RunOps early without an error.
var errStop = errors.New("stop")

// RunOps performs one step op by op, calling before and after with each node's index. Nodes that were lowered to no dispatch,
// because others do their work, have only the first call. The plan must have been made with Options.PerOp.
func (p *Plan) RunOps(runs []shaders.Run, rope shaders.RopeTable, before, after func(node int) error) error {
	if err := p.writeStep(runs, rope); err != nil {
		return err
	}
	next := 0
	for _, s := range p.stages {
		if s.index > 0 {
			if _, err := p.carry(s.index, p.Graph.Shape.Rows); err != nil {
				return err
			}
		}
		for i, u := range s.units {
			for ; next <= u.first; next++ {
				if err := before(next); err != nil {
					return err
				}
			}
			if err := s.runUnit(i); err != nil {
				return fmt.Errorf("%s: %w", p.Graph.Nodes[u.first].Label(), err)
			}
			if err := after(u.first); errors.Is(err, errStop) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// carry copies rows from the die before die i to die i.
func (p *Plan) carry(i, rows int) (n int64, err error) {
	from, to := p.stages[i-1], p.stages[i]
	if len(to.in) == 0 {
		return 0, nil
	}
	src, dst := from.mem.out, to.mem.in
	if src == nil || dst == nil {
		return 0, errors.New("the plan's memory has been freed")
	}
	off := int64(0)
	for _, b := range to.in {
		size := b.Size / int64(p.Graph.Shape.Rows) * int64(rows)
		if err := src.Invalidate(off, size); err != nil {
			return n, err
		}
		copy(dst.Mapped()[off:off+size], src.Mapped()[off:off+size])
		if err := dst.Flush(off, size); err != nil {
			return n, err
		}
		off, n = off+b.Size, n+size
	}
	return n, nil
}

// Read copies bytes of a buffer after a step. Scratch keeps its values only in a plan made with PerOp.
func (p *Plan) Read(v shaders.View, dst []byte) error {
	// What several dies have is as the last of them left it.
	for i := len(p.stages) - 1; i >= 0; i-- {
		if s := p.stages[i]; s.has(v) {
			return s.read(v, dst)
		}
	}
	return fmt.Errorf("read of %s, which has no memory", v.Buf.Name)
}

// Write sets bytes of a scratch, state or weight buffer between steps; tests and verification use it.
func (p *Plan) Write(v shaders.View, data []byte) error {
	written := false
	for _, s := range p.stages {
		if !s.has(v) {
			continue
		}
		buf, off := s.place(v)
		if err := s.die.Device.Upload(buf, off, data); err != nil {
			return err
		}
		written = true
	}
	if !written {
		return fmt.Errorf("write of %s, which has no memory", v.Buf.Name)
	}
	return nil
}

// Close frees the plan's memory and recorded work.
func (p *Plan) Close() {
	for _, s := range p.stages {
		s.close()
	}
	p.stages = nil
	if p.own {
		p.work.Free()
		p.own = false
	}
}

// readAt is Read on the die that runs a node.
func (p *Plan) readAt(node int, v shaders.View, dst []byte) error {
	for _, s := range p.stages {
		if node >= s.first && node < s.last {
			return s.read(v, dst)
		}
	}
	return fmt.Errorf("read of %s at node %d, which no device runs", v.Buf.Name, node)
}
