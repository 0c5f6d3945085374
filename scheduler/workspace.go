package scheduler

import (
	"bytes"
	"fmt"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Needs is the memory that steps of a graph use besides weights and state, in bytes.
type Needs struct {
	Scratch int64 // intermediate values, on the device
	Step    int64 // what the host writes before a step
	Results int64 // what the host reads after it
}

// Max is what serves both of two graphs, one at a time.
func (n Needs) Max(m Needs) Needs {
	return Needs{max(n.Scratch, m.Scratch), max(n.Step, m.Step), max(n.Results, m.Results)}
}

// Add is what serves two graphs at the same time.
func (n Needs) Add(m Needs) Needs {
	return Needs{n.Scratch + m.Scratch, n.Step + m.Step, n.Results + m.Results}
}

// Total is the sum in bytes.
func (n Needs) Total() int64 { return n.Scratch + n.Step + n.Results }

// NeedsOf computes what a graph needs. It needs no device.
func NeedsOf(g *Graph) Needs {
	_, n := layOut(g, true)
	return n
}

// layOut gives every scratch and result buffer of a graph its offset in the memory of that kind. Results do not
// share bytes: the host reads all of them after the step.
func layOut(g *Graph, alias bool) (offsets map[*shaders.Buffer]int64, n Needs) {
	offsets, n.Scratch = planScratch(g, alias)
	n.Step = g.Step.Size
	for _, b := range g.Buffers() {
		if b.Kind == shaders.Result {
			offsets[b] = n.Results
			n.Results = roundUp(n.Results+b.Size, scratchAlign)
		}
	}
	return offsets, n
}

// A Workspace is the memory of one step in flight: scratch, step buffer and results. The plans that are compiled
// into it take turns: while a step of one is in flight, another does not begin, and a step's results last
// until the next step of any of them. Nothing in it outlives a step. Two workspaces on a die allow two steps at a
// time.
type Workspace struct {
	die                    *Die
	needs                  Needs
	scratch, step, results *vk.Buffer
	flight                 *Flight // the last step, until it is known to have ended
}

// NewWorkspace allocates memory for steps of graphs that need at most n.
func (d *Die) NewWorkspace(n Needs) (_ *Workspace, err error) {
	w := &Workspace{die: d, needs: n}
	defer func() {
		if err != nil {
			w.Free()
		}
	}()
	for _, m := range []struct {
		what string
		size int64
		use  vk.MemoryUse
		dst  **vk.Buffer
	}{
		{"scratch", n.Scratch, vk.DeviceLocal, &w.scratch},
		{"the step buffer", n.Step, vk.HostVisible, &w.step},
		{"results", n.Results, vk.Readback, &w.results},
	} {
		if m.size == 0 {
			continue
		}
		if *m.dst, err = d.Device.NewBuffer(roundUp(m.size, 4), m.use); err != nil {
			return nil, fmt.Errorf("memory for %s (%d bytes): %w", m.what, m.size, err)
		}
	}
	return w, nil
}

// Needs returns what the workspace was made for.
func (w *Workspace) Needs() Needs { return w.needs }

// Poison fills scratch and results with bytes, so that a test can show that no step reads what another left. No
// step may be in flight.
func (w *Workspace) Poison(b byte) error {
	for _, m := range []*vk.Buffer{w.scratch, w.results} {
		if m == nil {
			continue
		}
		fill := bytes.Repeat([]byte{b}, int(min(m.Size(), 1<<20)))
		for off := int64(0); off < m.Size(); off += int64(len(fill)) {
			if err := w.die.Device.Upload(m, off, fill[:min(int64(len(fill)), m.Size()-off)]); err != nil {
				return err
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
	done, err := w.flight.Done()
	if err == nil && !done {
		err = fmt.Errorf("the last step has not ended: %w", vk.ErrBusy)
	}
	return err
}

// Free returns the memory. The plans compiled into it must be closed.
func (w *Workspace) Free() {
	w.scratch.Free()
	w.step.Free()
	w.results.Free()
	w.scratch, w.step, w.results = nil, nil, nil
}

// LoadStaging is the host memory in bytes that streaming n bytes of weights to a device with memory of its own
// takes while it lasts.
func LoadStaging(n int64) int64 { return min(stagePieces, (n+stagePiece-1)/stagePiece) * stagePiece }
