package scheduler

import (
	"bytes"
	"fmt"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Needs is the memory that steps use on a die besides weights and state, in bytes.
type Needs struct {
	Scratch int64 // intermediate values, on the device
	Step    int64 // what the host writes before a step
	Results int64 // what the host reads after it
	In, Out int64 // rows that the host carries on from the die before, and to the one after
}

// Max is what serves both of two graphs, one at a time.
func (n Needs) Max(m Needs) Needs {
	return Needs{max(n.Scratch, m.Scratch), max(n.Step, m.Step), max(n.Results, m.Results), max(n.In, m.In), max(n.Out, m.Out)}
}

// Add is what serves two graphs at the same time.
func (n Needs) Add(m Needs) Needs {
	return Needs{n.Scratch + m.Scratch, n.Step + m.Step, n.Results + m.Results, n.In + m.In, n.Out + m.Out}
}

// Beside is what another workspace takes that shares the scratch of one of these needs.
func (n Needs) Beside() Needs {
	n.Scratch = 0
	return n
}

// Total is the sum in bytes.
func (n Needs) Total() int64 { return n.Scratch + n.Step + n.Results + n.In + n.Out }

// NeedsOf computes what a graph needs on each die. It needs no device. A graph that cannot be divided so is refused by Compile, and
// takes nothing.
func NeedsOf(g *Graph, s Split) []Needs {
	ns := make([]Needs, s.Dies())
	ls, err := legs(g, s)
	if err != nil {
		return ns
	}
	for i, l := range ls {
		_, ns[i] = layOut(g, l, true)
	}
	return ns
}

// layOut gives every scratch and result buffer of a leg its offset in the memory of that kind. Results do not
// share bytes: the host reads all of them after the step.
func layOut(g *Graph, l leg, alias bool) (offsets map[*shaders.Buffer]int64, n Needs) {
	offsets, n.Scratch = planScratch(l.lifetimes(g), alias)
	if l.first < l.last {
		n.Step = g.Step.Size
	}
	for _, node := range g.Nodes[l.first:l.last] {
		for _, o := range node.Op.Operands() {
			if _, there := offsets[o.Buf]; o.Buf.Kind == shaders.Result && !there {
				offsets[o.Buf] = n.Results
				n.Results = roundUp(n.Results+o.Buf.Size, scratchAlign)
			}
		}
	}
	n.In, n.Out = crossing(l.in), crossing(l.out)
	return offsets, n
}

// A Workspace is the memory of one step in flight: on each die scratch, step buffer, results and the rows at its ends. The plans
// that are compiled into it take turns: while a step of one is in flight, another does not begin, and a step's results last
// until the next step of any of them. Nothing in it outlives a step. Two workspaces allow two steps at a
// time, one behind the other.
type Workspace struct {
	parts  []workPart
	shares bool    // the scratch is another's
	flight *Flight // the last step, until it is known to have ended
}

// workPart is a workspace's memory on one die.
type workPart struct {
	die                             *Die
	needs                           Needs
	scratch, step, results, in, out *vk.Buffer
}

// NewWorkspace allocates memory for steps of graphs that need at most so much on each die. With beside it shares the scratch of
// another workspace of these dies and needs, and must be freed before that one: a die runs one step after the other,
// and a step reads no scratch that it has not written.
func NewWorkspace(dies []*Die, needs []Needs, beside *Workspace) (_ *Workspace, err error) {
	if len(dies) != len(needs) {
		return nil, fmt.Errorf("a workspace on %d devices for the needs of %d", len(dies), len(needs))
	}
	w := &Workspace{parts: make([]workPart, len(dies)), shares: beside != nil}
	defer func() {
		if err != nil {
			w.Free()
		}
	}()
	for i, d := range dies {
		n, p := needs[i], &w.parts[i]
		p.die, p.needs = d, n
		if beside != nil {
			if b := &beside.parts[i]; b.die != d || b.needs.Scratch < n.Scratch {
				return nil, fmt.Errorf("a workspace shares scratch with one that is made for something else")
			}
			p.scratch = beside.parts[i].scratch
			n.Scratch = 0
		}
		for _, m := range []struct {
			what string
			size int64
			use  vk.MemoryUse
			dst  **vk.Buffer
		}{
			{"scratch", n.Scratch, vk.DeviceLocal, &p.scratch},
			{"the step buffer", n.Step, vk.HostVisible, &p.step},
			{"results", n.Results, vk.Readback, &p.results},
			{"rows from the device before", n.In, vk.HostVisible, &p.in},
			{"rows for the next device", n.Out, vk.Readback, &p.out},
		} {
			if m.size == 0 {
				continue
			}
			if *m.dst, err = d.Device.NewBuffer(roundUp(m.size, 4), m.use); err != nil {
				return nil, fmt.Errorf("memory for %s on %s (%d bytes): %w", m.what, d.Device.Info().Name, m.size, err)
			}
		}
	}
	return w, nil
}

// holds reports whether a leg of a plan on a die, with such needs, finds its memory in part i.
func (w *Workspace) holds(i int, d *Die, n Needs) bool {
	return i < len(w.parts) && w.parts[i].die == d && n.Max(w.parts[i].needs) == w.parts[i].needs
}

// Needs returns what the workspace was made for, by die.
func (w *Workspace) Needs() (ns []Needs) {
	for _, p := range w.parts {
		ns = append(ns, p.needs)
	}
	return ns
}

// Poison fills scratch, results and rows under way with bytes, so that a test can show that no step reads what another left. No
// step may be in flight.
func (w *Workspace) Poison(b byte) error {
	for _, p := range w.parts {
		for _, m := range []*vk.Buffer{p.scratch, p.results, p.in, p.out} {
			if m == nil {
				continue
			}
			fill := bytes.Repeat([]byte{b}, int(min(m.Size(), 1<<20)))
			for off := int64(0); off < m.Size(); off += int64(len(fill)) {
				if err := p.die.Device.Upload(m, off, fill[:min(int64(len(fill)), m.Size()-off)]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// idle fails with vk.ErrBusy while a step is in flight: the step buffer is still being read.
func (w *Workspace) idle() error {
	if w.flight == nil {
		return nil
	}
	done, err := w.flight.settled()
	if err == nil && !done {
		err = fmt.Errorf("the last step has not ended: %w", vk.ErrBusy)
	}
	return err
}

// Free returns the memory. The plans compiled into it must be closed.
func (w *Workspace) Free() {
	for i := range w.parts {
		p := &w.parts[i]
		if !w.shares {
			p.scratch.Free()
		}
		for _, m := range []*vk.Buffer{p.step, p.results, p.in, p.out} {
			m.Free()
		}
		p.scratch, p.step, p.results, p.in, p.out = nil, nil, nil, nil, nil
	}
}

// LoadStaging is the host memory in bytes that streaming n bytes of weights to a device with memory of its own
// takes while it lasts.
func LoadStaging(n int64) int64 { return min(stagePieces, (n+stagePiece-1)/stagePiece) * stagePiece }
