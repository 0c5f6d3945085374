package scheduler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// stepTimeout is the longest a step may take before it counts as a hang.
const stepTimeout = 10 * time.Minute

// A Placement says which dies run a graph. Layers are contiguous ranges; only one die is supported so far.
type Placement struct {
	Dies []*Die
}

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
	// Budget is how long a submission should take at most. A step is divided into as many submissions as that takes by
	// what its command buffers took before; one is the least that can be submitted. 0 makes every step one submission.
	Budget time.Duration
	// Stamp records the time at which each dispatch has ended, for Plan.Times. Everything else is as without.
	Stamp bool
}

// Stats are the counts of one step of a plan.
type Stats struct {
	Ops, Dispatches, Barriers, CommandBuffers, Submits int
	Scratch                                            int64 // bytes
}

// A Plan is a graph compiled for dies: memory assigned, barriers placed, command buffers recorded. It is
// replayed for every step; nothing is recorded again.
type Plan struct {
	Graph *Graph
	die   *Die

	work    *Workspace
	own     bool                      // the workspace is the plan's own
	offsets map[*shaders.Buffer]int64 // of scratch and results in it
	sets    *vk.SetPool
	units   []unit
	cbs     []*vk.CommandBuffer // of the units
	stats   Stats
	stamps  stamps
	pace    pace
	run     Flight // the last of Run and Replay, which nobody else holds
}

// unit is a command buffer and the nodes it holds.
type unit struct {
	first, last int // nodes [first, last)
	cb          *vk.CommandBuffer
}

// Compile makes a plan. Weights and state that the graph names must have memory on the die already.
func Compile(g *Graph, where Placement, opt Options) (_ *Plan, err error) {
	if len(where.Dies) != 1 {
		return nil, fmt.Errorf("a graph is placed on %d devices; this version runs a model on one", len(where.Dies))
	}
	if err := g.Check(); err != nil {
		return nil, err
	}
	p := &Plan{Graph: g, die: where.Dies[0], pace: pace{budget: opt.Budget}}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := p.allocate(opt); err != nil {
		return nil, err
	}
	if err := p.record(opt); err != nil {
		return nil, err
	}
	return p, nil
}

// allocate gives the graph's own buffers memory.
func (p *Plan) allocate(opt Options) (err error) {
	var n Needs
	p.offsets, n = layOut(p.Graph, !opt.PerOp)
	p.stats.Scratch = n.Scratch
	for _, b := range p.Graph.Buffers() {
		if (b.Kind == shaders.Weight || b.Kind == shaders.State) && p.die.places[b] == nil {
			return fmt.Errorf("%s %s has no memory on the device", b.Kind, b.Name)
		}
	}
	if w := opt.Workspace; w != nil && !opt.PerOp {
		if w.die != p.die || n.Max(w.needs) != w.needs {
			return fmt.Errorf("a step needs %+v bytes, the workspace has %+v", n, w.needs)
		}
		p.work = w
		return nil
	}
	p.work, err = p.die.NewWorkspace(n)
	p.own = err == nil
	return err
}

// place returns the device memory of a view.
func (p *Plan) place(v shaders.View) (*vk.Buffer, int64) {
	switch v.Buf.Kind {
	case shaders.Scratch:
		return p.work.scratch, p.offsets[v.Buf] + v.Off
	case shaders.StepInput:
		return p.work.step, v.Off
	case shaders.Result:
		return p.work.results, p.offsets[v.Buf] + v.Off
	}
	return p.die.place(v)
}

// recorded is a dispatch on its way into a command buffer.
type recorded struct {
	node    int
	use     shaders.Use
	cmd     vk.Command
	touches []touch
}

func (p *Plan) record(opt Options) error {
	p.sets = p.die.Device.NewSetPool()
	var all []recorded
	for i, n := range p.Graph.Nodes {
		ds, err := n.Op.Lower(&p.die.Kernels)
		if err != nil {
			return fmt.Errorf("%s: %w", n.Label(), err)
		}
		for _, d := range ds {
			r, err := p.lower(d)
			if err != nil {
				return fmt.Errorf("%s: %w", n.Label(), err)
			}
			r.node = i
			all = append(all, r)
		}
	}
	touches := make([][]touch, len(all))
	for i, r := range all {
		touches[i] = r.touches
	}
	need := barriers(touches)
	if opt.Check {
		if err := checkBarriers(touches, need, func(i int) string { return p.Graph.Nodes[all[i].node].Label() }); err != nil {
			return err
		}
	}
	if opt.Stamp {
		if err := p.stamps.open(p.die.Device, all); err != nil {
			return err
		}
	}
	p.stats.Ops, p.stats.Dispatches, p.stats.Submits = len(p.Graph.Nodes), len(all), 1
	for _, b := range need {
		if b {
			p.stats.Barriers++
		}
	}
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && p.sameUnit(all[i].node, all[j].node, opt) {
			j++
		}
		var cmds []vk.Command
		for k := i; k < j; k++ {
			c := all[k].cmd
			if need[k] {
				c = c.After()
			}
			cmds = p.stamps.add(cmds, c, k)
		}
		if j == len(all) || opt.PerOp {
			cmds = append(cmds, vk.HostBarrier())
		}
		cb, err := p.die.Device.NewCommandBuffer()
		if err != nil {
			return err
		}
		p.units, p.cbs = append(p.units, unit{all[i].node, all[j-1].node + 1, cb}), append(p.cbs, cb)
		if err := cb.Record(cmds); err != nil {
			return fmt.Errorf("recording %s: %w", p.Graph.Nodes[all[i].node].Label(), err)
		}
		i = j
	}
	p.stats.CommandBuffers = len(p.units)
	p.pace.took = make([]cost, len(p.units))
	return nil
}

// sameUnit reports whether two nodes share a command buffer.
func (p *Plan) sameUnit(a, b int, opt Options) bool {
	if opt.PerOp {
		return a == b
	}
	return p.Graph.Nodes[a].Layer == p.Graph.Nodes[b].Layer
}

// lower makes a dispatch's pipeline and descriptor set and fills in the operands' word offsets.
func (p *Plan) lower(d shaders.Dispatch) (recorded, error) {
	pipe, err := p.die.pipeline(d)
	if err != nil {
		return recorded{}, err
	}
	m, err := shaders.Describe(d.Module)
	if err != nil {
		return recorded{}, err
	}
	align := p.die.Device.Profile().OffsetAlign
	push := make([]byte, 0, vk.MaxPush)
	binds := make([]vk.Binding, len(d.Bind))
	var touches []touch
	for i, o := range d.Bind {
		if !o.Valid() {
			return recorded{}, fmt.Errorf("%s: operand %d lies outside its buffer", d.Module, i)
		}
		if o.Buf.Kind == shaders.Table {
			if err := p.die.holdTable(o.Buf); err != nil {
				return recorded{}, fmt.Errorf("%s: %w", d.Module, err)
			}
		}
		buf, off := p.place(o.View)
		if buf == nil {
			return recorded{}, fmt.Errorf("%s: operand %d (%s) has no memory that holds bytes %d..%d of it together", d.Module, i, o.Buf.Name, o.Off, o.Off+o.Len)
		}
		if off%4 != 0 {
			return recorded{}, fmt.Errorf("%s: operand %d (%s) lies at byte %d of its memory, between words", d.Module, i, o.Buf.Name, off)
		}
		// A descriptor begins where the device allows; the kernel gets the rest of the way in words.
		begin := off / align * align
		whole := int64(4)
		if slices.Contains(m.Texels, i) {
			whole = vk.TexelBytes
		}
		size := roundUp(off-begin+max(o.Len, 4), whole)
		size = min(size, buf.Size()-begin)
		if size > p.die.Kernels.MaxBinding {
			return recorded{}, fmt.Errorf("%s: operand %d (%s) needs a binding of %d bytes, the device has %d", d.Module, i, o.Buf.Name, size, p.die.Kernels.MaxBinding)
		}
		binds[i] = vk.Binding{Buffer: buf, Offset: begin, Size: size}
		push = binary.LittleEndian.AppendUint32(push, uint32((off-begin)/4))
		touches = append(touches, touch{o, buf, off})
	}
	for _, w := range d.Push {
		push = binary.LittleEndian.AppendUint32(push, w)
	}
	for _, i := range m.Addresses {
		buf, off := p.place(d.Bind[i].View)
		push = binary.LittleEndian.AppendUint64(push, buf.Address()+uint64(off))
	}
	set, err := p.sets.NewSet(pipe, binds)
	if err != nil {
		return recorded{}, fmt.Errorf("%s: %w", d.Module, err)
	}
	return recorded{use: d.Use, cmd: vk.Dispatch(pipe, set, d.Groups, push), touches: touches}, nil
}

// Stats returns the counts of one step, as one submission.
func (p *Plan) Stats() Stats { return p.stats }

// A Flight is a step that has been submitted.
type Flight struct {
	parts []part // the submissions, in order
	done  bool
}

// part is a submission of a step.
type part struct {
	ticket *vk.Ticket
	last   int // command buffers before this one
	begun  time.Time
}

// Begin writes the step buffer and submits. It does not wait. While a flight of the workspace lasts it refuses,
// as the step buffer is still being read.
func (p *Plan) Begin(runs []shaders.Run, rope shaders.RopeTable) (*Flight, error) {
	f := &Flight{}
	if err := p.prepare(runs, rope); err != nil {
		return nil, err
	}
	if err := p.submit(f, rowsOf(runs)); err != nil {
		return nil, err
	}
	return f, nil
}

// rowsOf is the number of rows that runs have together.
func rowsOf(runs []shaders.Run) (n int) {
	for _, r := range runs {
		n += len(r.Tokens)
	}
	return n
}

// prepare writes the step buffer, once it is not being read any more.
func (p *Plan) prepare(runs []shaders.Run, rope shaders.RopeTable) error {
	if err := p.work.idle(); err != nil {
		return err
	}
	return p.writeStep(runs, rope)
}

func (p *Plan) writeStep(runs []shaders.Run, rope shaders.RopeTable) error {
	step := p.work.step
	if step == nil {
		return errors.New("the plan's memory has been freed")
	}
	if err := p.Graph.Shape.Write(shaders.Words(step.Mapped()), runs, rope); err != nil {
		return err
	}
	return step.Flush(0, p.Graph.Step.Size)
}

// submit makes f the flight of a step of so many rows, in as many submissions as its pace says.
func (p *Plan) submit(f *Flight, rows int) error {
	f.parts, f.done = f.parts[:0], false
	for i := 0; i < len(p.cbs); {
		n := p.pace.next(i, rows)
		if err := p.part(f, i, n); err != nil {
			return err
		}
		i = n
	}
	return nil
}

// part submits command buffers [first, last) as the next part of f.
func (p *Plan) part(f *Flight, first, last int) error {
	t, err := p.die.Device.Submit(p.cbs[first:last])
	if err != nil {
		return err
	}
	f.parts = append(f.parts, part{t, last, time.Now()})
	p.work.flight, p.stamps.ran = f, true
	return nil
}

// Done reports whether the flight has ended, without waiting.
func (f *Flight) Done() (bool, error) {
	if f.done || len(f.parts) == 0 {
		return true, nil
	}
	return f.parts[len(f.parts)-1].ticket.Done()
}

// Wait waits for the end of the flight.
func (f *Flight) Wait() error { return f.wait(nil) }

// wait waits for the parts one after the other and calls note, if there is one, with the time that each took.
func (f *Flight) wait(note func(first, last int, took time.Duration)) error {
	if f.done {
		return nil
	}
	var before time.Time
	first := 0
	for _, s := range f.parts {
		if err := s.ticket.Wait(stepTimeout); err != nil {
			return err
		}
		if note != nil {
			// The device begins with a part when it has it and the one before has ended.
			now := time.Now()
			if s.begun.After(before) {
				before = s.begun
			}
			note(first, s.last, now.Sub(before))
			first, before = s.last, now
		}
	}
	f.done = true
	for _, s := range f.parts {
		s.ticket.Release()
	}
	return nil
}

// Run performs one step to its end and returns where its time went. It allocates nothing.
func (p *Plan) Run(runs []shaders.Run, rope shaders.RopeTable) (t Timing, err error) {
	return p.RunWhile(runs, rope, func() {})
}

// RunWhile is Run, and calls meanwhile between submitting and waiting.
func (p *Plan) RunWhile(runs []shaders.Run, rope shaders.RopeTable, meanwhile func()) (t Timing, err error) {
	start := time.Now()
	if err := p.prepare(runs, rope); err != nil {
		return t, err
	}
	written := time.Now()
	t.Write = written.Sub(start)
	rows := rowsOf(runs)
	if err := p.submit(&p.run, rows); err != nil {
		return t, err
	}
	submitted := time.Now()
	t.Submit = submitted.Sub(written)
	meanwhile()
	if p.pace.budget > 0 {
		err = p.run.wait(func(first, last int, took time.Duration) { p.pace.note(first, last, rows, took) })
	} else {
		err = p.run.Wait()
	}
	t.Wait = time.Since(submitted)
	return t, err
}

// Longest is what the slowest part of a step of so many rows that cannot be divided will take, as far as steps have run
// with a budget; 0 before.
func (p *Plan) Longest(rows int) time.Duration { return p.pace.longest(rows) }

// Replay performs the step that the step buffer already describes, to its end.
func (p *Plan) Replay() error {
	if err := p.submit(&p.run, p.Graph.Shape.Rows); err != nil {
		return err
	}
	return p.run.Wait()
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
	for i, u := range p.units {
		for ; next <= u.first; next++ {
			if err := before(next); err != nil {
				return err
			}
		}
		p.run.parts, p.run.done = p.run.parts[:0], false
		err := p.part(&p.run, i, i+1)
		if err == nil {
			err = p.run.Wait()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Graph.Nodes[u.first].Label(), err)
		}
		if err := after(u.first); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Read copies bytes of a buffer after a step. Scratch keeps its values only in a plan made with PerOp.
func (p *Plan) Read(v shaders.View, dst []byte) error {
	buf, off := p.place(v)
	if buf == nil {
		return fmt.Errorf("read of %s, which has no memory", v.Buf.Name)
	}
	if m := buf.Mapped(); m != nil {
		if err := buf.Invalidate(off, int64(len(dst))); err != nil {
			return err
		}
		copy(dst, m[off:])
		return nil
	}
	return p.die.Device.Download(buf, off, dst)
}

// Write sets bytes of a scratch, state or weight buffer between steps; tests and verification use it.
func (p *Plan) Write(v shaders.View, data []byte) error {
	buf, off := p.place(v)
	if buf == nil {
		return fmt.Errorf("write of %s, which has no memory", v.Buf.Name)
	}
	return p.die.Device.Upload(buf, off, data)
}

// Close frees the plan's memory and recorded work.
func (p *Plan) Close() {
	for _, u := range p.units {
		u.cb.Free()
	}
	p.units, p.cbs = nil, nil
	p.stamps.close()
	if p.sets != nil {
		p.sets.Free()
		p.sets = nil
	}
	if p.own {
		p.work.Free()
		p.own = false
	}
}
