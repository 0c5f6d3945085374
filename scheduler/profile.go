package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Timing is where the host's time of one step went.
type Timing struct {
	Write  time.Duration // writing the step buffer
	Submit time.Duration // handing the command buffers to the driver
	Wait   time.Duration // until the device was done
	Carry  time.Duration // of Wait, carrying rows from device to device
}

// Add is the sum of two timings.
func (t Timing) Add(u Timing) Timing {
	return Timing{t.Write + u.Write, t.Submit + u.Submit, t.Wait + u.Wait, t.Carry + u.Carry}
}

// Total is all of it.
func (t Timing) Total() time.Duration { return t.Write + t.Submit + t.Wait }

// StepTimes are the times of one step on the device.
type StepTimes struct {
	Nodes []time.Duration // of the graph's nodes: from the end of the dispatch before a node's first to the end of its last
	Total time.Duration   // from the begin of the first dispatch to the end of the last, on each die, summed up
	Carry time.Duration   // of Total, copying rows to and from what the host carries from die to die
	// Uses are the times of weight kernels by what they are used for; nil from a Reference.
	Uses map[shaders.Use]time.Duration
}

// A Stamper is a Runner that knows the times of its last step.
type Stamper interface {
	Runner
	// Times fills t. It fails when the runner was not made to note times, and before the first step.
	Times(t *StepTimes) error
}

// ErrNotStamped reports that there are no times: the plan was made without Options.Stamp, or has not run.
var ErrNotStamped = errors.New("no times were noted: make the plan with Options.Stamp and run a step")

// stamps are the timestamps of a plan: one before the first dispatch, and one after each. Zero for none.
type stamps struct {
	queries *vk.Queries
	nodes   []int         // of the dispatches; -1 for copies at the ends
	uses    []shaders.Use // likewise
	ns      []int64
	ran     bool // a step was submitted
}

// open makes room for the timestamps of so many dispatches. The error wraps vk.ErrUnsupported where the device
// has none.
func (s *stamps) open(d *vk.Device, all []recorded) (err error) {
	if s.queries, err = d.NewQueries(len(all) + 1); err != nil {
		return fmt.Errorf("timestamps of %d dispatches: %w", len(all), err)
	}
	s.ns = make([]int64, len(all)+1)
	for _, r := range all {
		node := r.node
		if r.carry {
			node = -1
		}
		s.nodes, s.uses = append(s.nodes, node), append(s.uses, r.use)
	}
	return nil
}

// add appends the command of dispatch k to those of its command buffer, stamped if there are timestamps.
func (s *stamps) add(cmds []vk.Command, c vk.Command, k int) []vk.Command {
	if s.queries == nil {
		return append(cmds, c)
	}
	before := -1
	if k == 0 {
		before = 0
		cmds = append(cmds, vk.ResetQueries(s.queries))
	}
	return append(cmds, c.Stamped(s.queries, before, k+1))
}

func (s *stamps) close() {
	s.queries.Free()
	s.queries = nil
}

// Times reads the times of the last step. Dispatches that no barrier keeps apart may run together on a device; such
// a one then has only what it takes longer than the one before it.
func (p *Plan) Times(t *StepTimes) error {
	t.Nodes, t.Total, t.Carry = append(t.Nodes[:0], make([]time.Duration, len(p.Graph.Nodes))...), 0, 0
	t.Uses = map[shaders.Use]time.Duration{}
	for _, s := range p.stages {
		if len(s.cbs) == 0 {
			continue
		}
		st := &s.stamps
		if st.queries == nil || !st.ran {
			return ErrNotStamped
		}
		if err := st.queries.Read(st.ns); err != nil {
			return err
		}
		if err := t.add(st.ns, st.nodes, p.Graph); err != nil {
			return err
		}
		for k, u := range st.uses {
			if u != (shaders.Use{}) {
				t.Uses[u] += time.Duration(max(0, st.ns[k+1]-st.ns[k]))
			}
		}
	}
	return nil
}

// add takes in the stamps of a die's dispatches, of which there is one more than dispatches.
func (t *StepTimes) add(ns []int64, nodes []int, g *Graph) error {
	for i, v := range ns {
		if v < 0 {
			return fmt.Errorf("the device has written %d of %d timestamps, then none for %s", i, len(ns), stampLabel(g, nodes[max(0, i-1)]))
		}
	}
	for k, node := range nodes {
		d := time.Duration(max(0, ns[k+1]-ns[k]))
		if node < 0 {
			t.Carry += d
		} else {
			t.Nodes[node] += d
		}
	}
	t.Total += time.Duration(ns[len(ns)-1] - ns[0])
	return nil
}

// stampLabel names the node of a stamp.
func stampLabel(g *Graph, node int) string {
	if node < 0 {
		return "the rows between devices"
	}
	return g.Nodes[node].Label()
}

// Times returns the times of the twins of the last step.
func (r *Reference) Times(t *StepTimes) error {
	if len(r.times) == 0 {
		return ErrNotStamped
	}
	t.Nodes, t.Total = append(t.Nodes[:0], r.times...), 0
	for _, d := range r.times {
		t.Total += d
	}
	return nil
}

// What CopyRate copies, in bytes: more than caches hold, or as much of it as there is memory for.
const (
	copyMost     = 256 << 20
	copySoftware = 64 << 20 // where the memory is the host's and caches are small
	copyLeast    = 1 << 20
	copyRuns     = 8
)

// CopyRate measures the memory bandwidth of a die by copies from one buffer to another, in bytes read and written
// per second: the best of some runs.
func (d *Die) CopyRate() (float64, error) {
	n := int64(copyMost)
	if d.Device.Profile().Software {
		n = copySoftware
	}
	n = min(n, largest(d.Device.Info().Limits))
	for {
		rate, err := d.copyRate(n)
		if err == nil || n/2 < copyLeast || !errors.Is(err, vk.ErrOutOfDeviceMemory) {
			return rate, err
		}
		n = n / 8 * 4
	}
}

// copyRate measures copies of n bytes.
func (d *Die) copyRate(n int64) (rate float64, err error) {
	dev := d.Device
	var bufs [2]*vk.Buffer
	for i := range bufs {
		if bufs[i], err = dev.NewBuffer(n, vk.DeviceLocal); err != nil {
			return 0, fmt.Errorf("memory to measure copies in (%d bytes): %w", n, err)
		}
		defer bufs[i].Free()
	}
	q, err := dev.NewQueries(2)
	if err != nil {
		return 0, err
	}
	defer q.Free()
	// Memory that was never written may be one page of zeros over and over.
	fill := []vk.Command{vk.FillBuffer(bufs[0], 0, n, 1), vk.FillBuffer(bufs[1], 0, n, 2), vk.MemoryBarrier()}
	if err := d.once(fill); err != nil {
		return 0, err
	}
	var ns [2]int64
	for range copyRuns {
		c := vk.CopyBuffer(bufs[1], 0, bufs[0], 0, n).After().Stamped(q, 0, 1)
		if err := d.once([]vk.Command{vk.ResetQueries(q), c}); err != nil {
			return 0, err
		}
		if err := q.Read(ns[:]); err != nil {
			return 0, err
		}
		if ns[1] > 0 {
			rate = max(rate, float64(2*n)/(float64(ns[1])*1e-9))
		}
	}
	if rate == 0 {
		return 0, errors.New("the device's timestamps show no time passing")
	}
	return rate, nil
}

// once runs commands to their end.
func (d *Die) once(cmds []vk.Command) error {
	cb, err := d.Device.NewCommandBuffer()
	if err != nil {
		return err
	}
	defer cb.Free()
	if err := cb.Record(cmds); err != nil {
		return err
	}
	t, err := d.Device.Submit([]*vk.CommandBuffer{cb})
	if err != nil {
		return err
	}
	defer t.Release()
	return t.Await()
}

// HostCopyRate is CopyRate for the memory of the host, by one thread.
func HostCopyRate() float64 {
	src, dst := shaders.AlignedBytes(copySoftware), shaders.AlignedBytes(copySoftware)
	for i := range src {
		src[i], dst[i] = 1, 2
	}
	rate := 0.0
	for range copyRuns {
		start := time.Now()
		copy(dst, src)
		rate = max(rate, 2*copySoftware/time.Since(start).Seconds())
	}
	return rate
}
