package scheduler

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A stage is what one die does of a plan's step.
type stage struct {
	leg
	graph *Graph
	index int // among the stages
	die   *Die
	name  string // of the device
	// submit gives the die command buffers [first, last).
	submit func(first, last int) (ticket, error)

	mem     *workPart
	needs   Needs
	offsets map[*shaders.Buffer]int64 // of scratch and results in mem
	sets    *vk.SetPool
	units   []unit
	cbs     []*vk.CommandBuffer // of the units
	stamps  stamps
	pace    pace
}

// unit is a command buffer and the nodes it holds.
type unit struct {
	first, last int // nodes [first, last)
	cb          *vk.CommandBuffer
}

func newStage(g *Graph, index int, die *Die, l leg, opt Options) *stage {
	s := &stage{leg: l, graph: g, index: index, die: die, name: die.Device.Info().Name, pace: pace{budget: opt.Budget}}
	s.submit = func(first, last int) (ticket, error) {
		t, err := die.Device.Submit(s.cbs[first:last])
		if err != nil {
			return nil, err // and not a ticket that is a nil pointer
		}
		return t, nil
	}
	s.offsets, s.needs = layOut(g, l, !opt.PerOp)
	return s
}

// placed refuses a stage whose weights and state have no memory.
func (s *stage) placed() error {
	for _, n := range s.graph.Nodes[s.first:s.last] {
		for _, o := range n.Op.Operands() {
			if b := o.Buf; (b.Kind == shaders.Weight || b.Kind == shaders.State) && s.die.places[b] == nil {
				return fmt.Errorf("%s %s has no memory on the device", b.Kind, b.Name)
			}
		}
	}
	return nil
}

// has reports whether a view has memory on the stage's die.
func (s *stage) has(v shaders.View) bool {
	switch v.Buf.Kind {
	case shaders.Scratch, shaders.Result:
		_, there := s.offsets[v.Buf]
		return there
	case shaders.StepInput:
		return s.mem.step != nil
	}
	buf, _ := s.die.place(v)
	return buf != nil
}

// place returns the device memory of a view.
func (s *stage) place(v shaders.View) (*vk.Buffer, int64) {
	switch v.Buf.Kind {
	case shaders.Scratch:
		return s.mem.scratch, s.offsets[v.Buf] + v.Off
	case shaders.StepInput:
		return s.mem.step, v.Off
	case shaders.Result:
		return s.mem.results, s.offsets[v.Buf] + v.Off
	}
	return s.die.place(v)
}

// read copies bytes of a buffer that the stage's die has.
func (s *stage) read(v shaders.View, dst []byte) error {
	buf, off := s.place(v)
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
	return s.die.Device.Download(buf, off, dst)
}

// recorded is a command on its way into a command buffer: a dispatch, or a copy at the stage's ends, which counts to the node
// beside it.
type recorded struct {
	node    int
	carry   bool // a copy
	use     shaders.Use
	cmd     vk.Command
	touches []touch
}

// commands lowers the stage's nodes, between the copies of what comes in and of what goes out.
func (s *stage) commands() (all []recorded, err error) {
	if s.first == s.last {
		return nil, nil
	}
	all = s.copies(all, s.in, s.mem.in, s.first, false)
	for i := s.first; i < s.last; i++ {
		n := s.graph.Nodes[i]
		ds, err := n.Op.Lower(&s.die.Kernels)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Label(), err)
		}
		for _, d := range ds {
			r, err := s.lower(d)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", n.Label(), err)
			}
			r.node = i
			all = append(all, r)
		}
	}
	return s.copies(all, s.out, s.mem.out, s.last-1, true), nil
}

// copies adds the commands that copy buffers between scratch and the rows at a boundary.
func (s *stage) copies(all []recorded, bs []*shaders.Buffer, rows *vk.Buffer, node int, out bool) []recorded {
	at := int64(0)
	for _, b := range bs {
		buf, off := s.place(b.View())
		r := recorded{node: node, carry: true}
		if out {
			r.cmd = vk.CopyBuffer(rows, at, buf, off, b.Size)
			r.touches = []touch{{shaders.R(b.View()), buf, off}}
		} else {
			r.cmd = vk.CopyBuffer(buf, off, rows, at, b.Size)
			r.touches = []touch{{shaders.W(b.View()), buf, off}}
		}
		all, at = append(all, r), at+b.Size
	}
	return all
}

// record makes the stage's command buffers and adds what they hold to the counts of the plan.
func (s *stage) record(opt Options, stats *Stats) error {
	s.sets = s.die.Device.NewSetPool()
	all, err := s.commands()
	if err != nil || len(all) == 0 {
		return err
	}
	touches := make([][]touch, len(all))
	for i, r := range all {
		touches[i] = r.touches
	}
	need := barriers(touches)
	if opt.Check {
		if err := checkBarriers(touches, need, func(i int) string { return s.graph.Nodes[all[i].node].Label() }); err != nil {
			return err
		}
	}
	if opt.Stamp {
		if err := s.stamps.open(s.die.Device, all); err != nil {
			return err
		}
	}
	stats.Submits++
	stats.Carried += crossing(s.out) / int64(max(1, s.graph.Shape.Rows))
	for i, r := range all {
		if !r.carry {
			stats.Dispatches++
		}
		if need[i] {
			stats.Barriers++
		}
	}
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && s.sameUnit(all[i].node, all[j].node, opt) {
			j++
		}
		var cmds []vk.Command
		for k := i; k < j; k++ {
			c := all[k].cmd
			if need[k] {
				c = c.After()
			}
			cmds = s.stamps.add(cmds, c, k)
		}
		if j == len(all) || opt.PerOp {
			cmds = append(cmds, vk.HostBarrier())
		}
		cb, err := s.die.Device.NewCommandBuffer()
		if err != nil {
			return err
		}
		s.units, s.cbs = append(s.units, unit{all[i].node, all[j-1].node + 1, cb}), append(s.cbs, cb)
		if err := cb.Record(cmds); err != nil {
			return fmt.Errorf("recording %s: %w", s.graph.Nodes[all[i].node].Label(), err)
		}
		i = j
	}
	stats.CommandBuffers += len(s.units)
	s.pace.took = make([]cost, len(s.units))
	return nil
}

// sameUnit reports whether two nodes share a command buffer.
func (s *stage) sameUnit(a, b int, opt Options) bool {
	if opt.PerOp {
		return a == b
	}
	return s.graph.Nodes[a].Layer == s.graph.Nodes[b].Layer
}

// lower makes a dispatch's pipeline and descriptor set and fills in the operands' word offsets.
func (s *stage) lower(d shaders.Dispatch) (recorded, error) {
	pipe, err := s.die.pipeline(d)
	if err != nil {
		return recorded{}, err
	}
	m, err := shaders.Describe(d.Module)
	if err != nil {
		return recorded{}, err
	}
	align := s.die.Device.Profile().OffsetAlign
	push := make([]byte, 0, vk.MaxPush)
	binds := make([]vk.Binding, len(d.Bind))
	var touches []touch
	for i, o := range d.Bind {
		if !o.Valid() {
			return recorded{}, fmt.Errorf("%s: operand %d lies outside its buffer", d.Module, i)
		}
		if o.Buf.Kind == shaders.Table {
			if err := s.die.holdTable(o.Buf); err != nil {
				return recorded{}, fmt.Errorf("%s: %w", d.Module, err)
			}
		}
		buf, off := s.place(o.View)
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
		if size > s.die.Kernels.MaxBinding {
			return recorded{}, fmt.Errorf("%s: operand %d (%s) needs a binding of %d bytes, the device has %d", d.Module, i, o.Buf.Name, size, s.die.Kernels.MaxBinding)
		}
		binds[i] = vk.Binding{Buffer: buf, Offset: begin, Size: size}
		push = binary.LittleEndian.AppendUint32(push, uint32((off-begin)/4))
		touches = append(touches, touch{o, buf, off})
	}
	for _, w := range d.Push {
		push = binary.LittleEndian.AppendUint32(push, w)
	}
	for _, i := range m.Addresses {
		buf, off := s.place(d.Bind[i].View)
		push = binary.LittleEndian.AppendUint64(push, buf.Address()+uint64(off))
	}
	set, err := s.sets.NewSet(pipe, binds)
	if err != nil {
		return recorded{}, fmt.Errorf("%s: %w", d.Module, err)
	}
	return recorded{use: d.Use, cmd: vk.Dispatch(pipe, set, d.Groups, push), touches: touches}, nil
}

// runUnit runs one command buffer to its end.
func (s *stage) runUnit(i int) error {
	t, err := s.die.Device.Submit(s.cbs[i : i+1])
	if err != nil {
		return err
	}
	if err := t.Await(); err != nil {
		return err
	}
	t.Release()
	return nil
}

func (s *stage) close() {
	for _, u := range s.units {
		u.cb.Free()
	}
	s.units, s.cbs = nil, nil
	s.stamps.close()
	if s.sets != nil {
		s.sets.Free()
		s.sets = nil
	}
}
