package scheduler

import (
	"fmt"
	"time"

	"github.com/calderaml/caldera/shaders"
)

// A Reference runs a graph on the twins, one op after the other, in host memory. It is the specification
// that devices are held to, and the fallback where there is none.
type Reference struct {
	Graph  *Graph
	Memory shaders.HostMemory
	// Stamp makes Run note the time of each op, for Times.
	Stamp  bool
	times  []time.Duration
	flight Flight
}

// NewReference prepares a graph. Memory must hold the graph's weights and may hold state of earlier steps;
// what is missing comes into being as zeros.
func NewReference(g *Graph, memory shaders.HostMemory) (*Reference, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	for _, b := range g.Buffers() {
		if m, ok := memory[b]; b.Kind == shaders.Weight && (!ok || int64(len(m)) < b.Size) {
			return nil, fmt.Errorf("reference: weights %s are not in memory", b.Name)
		}
	}
	return &Reference{Graph: g, Memory: memory}, nil
}

// Run performs one step. All of it but writing the step counts as waiting for the device.
func (r *Reference) Run(runs []shaders.Run, rope shaders.RopeTable) (Timing, error) {
	return run(r, runs, rope)
}

// Begin performs one step, which has ended when it returns.
func (r *Reference) Begin(runs []shaders.Run, rope shaders.RopeTable) (*Flight, error) {
	start := time.Now()
	r.times = r.times[:0]
	if err := r.Graph.Shape.Write(shaders.U32(r.Memory, r.Graph.Step.View()), runs, rope); err != nil {
		return nil, err
	}
	written := time.Now()
	r.flight = Flight{ended: true, timing: Timing{Write: written.Sub(start)}}
	last := written
	for i := range r.Graph.Nodes {
		if r.flight.err = r.runNode(i); r.flight.err != nil {
			break
		}
		if r.Stamp {
			now := time.Now()
			r.times = append(r.times, now.Sub(last))
			last = now
		}
	}
	r.flight.timing.Wait = time.Since(written)
	return &r.flight, nil
}

func (r *Reference) runNode(i int) (err error) {
	n := r.Graph.Nodes[i]
	if err := n.Op.Twin(r.Memory); err != nil {
		return fmt.Errorf("%s: %w", n.Label(), err)
	}
	return nil
}

// Read copies a range of a result or of any other buffer.
func (r *Reference) Read(v shaders.View, dst []byte) error {
	copy(dst, r.Memory.Bytes(v))
	return nil
}

// Close does nothing; it makes a Reference a Runner.
func (r *Reference) Close() {}

// A Runner performs steps of one graph: a recorded plan on devices, or the reference.
type Runner interface {
	// Begin begins one step, of which the flight tells when it has ended.
	Begin(runs []shaders.Run, rope shaders.RopeTable) (*Flight, error)
	// Run performs one step to its end and returns where its time went.
	Run(runs []shaders.Run, rope shaders.RopeTable) (Timing, error)
	// Read copies bytes of a buffer after a step. Only results are sure to still hold their values.
	Read(v shaders.View, dst []byte) error
	Close()
}
