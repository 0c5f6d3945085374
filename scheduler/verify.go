package scheduler

import (
	"fmt"
	"math"

	"github.com/calderaml/caldera/shaders"
)

// An OpError is how far one op on the device is from its twin, given the same inputs.
type OpError struct {
	Node  int
	Err   float64 // largest difference of an element it wrote
	Scale float64 // largest magnitude the twin wrote
	What  string  // buffer with the largest difference
	Words bool    // the op wrote something other than floats, and differs in it
	// Got and Want are the values at the largest difference.
	Got, Want float32
}

// Rel is the error relative to the scale.
func (e OpError) Rel() float64 {
	if e.Err == 0 {
		return 0
	}
	return e.Err / max(e.Scale, math.SmallestNonzeroFloat32)
}

// integers is implemented by ops that write words which are not floats, such as indices, into some of
// their operands. Those are compared bit for bit.
type integers interface {
	Integers(operand int) bool
}

// Verify performs one step on a die op by op. Each op's twin runs on the inputs that the device had, so
// that an error is the op's own and not inherited; after the comparison the twin's memory takes the
// device's values. It calls report for every node. Memory must hold the graph's weights.
func Verify(g *Graph, die *Die, memory shaders.HostMemory, runs []shaders.Run, rope shaders.RopeTable, report func(OpError) error) error {
	p, err := Compile(g, Placement{Dies: []*Die{die}}, Options{PerOp: true, Check: true})
	if err != nil {
		return err
	}
	defer p.Close()
	ref, err := NewReference(g, memory)
	if err != nil {
		return err
	}
	if err := g.Shape.Write(shaders.U32(memory, g.Step.View()), runs, rope); err != nil {
		return err
	}
	// Both begin with the same state and the same scratch.
	for _, b := range g.Buffers() {
		if b.Kind == shaders.Weight || b.Kind == shaders.StepInput {
			continue
		}
		if err := p.Write(b.View(), memory.Bytes(b.View())); err != nil {
			return err
		}
	}
	return p.RunOps(runs, rope, ref.runNode, func(node int) error {
		e, err := p.compare(node, memory)
		if err != nil {
			return err
		}
		return report(e)
	})
}

// compare reads what a node wrote on the device, compares it with the twin's, and leaves the device's in
// the twin's memory.
func (p *Plan) compare(node int, memory shaders.HostMemory) (OpError, error) {
	n := p.Graph.Nodes[node]
	e := OpError{Node: node}
	for i, o := range n.Op.Operands() {
		if o.Access&shaders.Write == 0 {
			continue
		}
		got := shaders.AlignedBytes(o.Len)
		if err := p.Read(o.View, got); err != nil {
			return e, fmt.Errorf("%s: %w", n.Label(), err)
		}
		want := memory.Bytes(o.View)
		if k, ok := n.Op.(integers); ok && k.Integers(i) {
			e.words(o.Buf.Name, shaders.Words(got), shaders.Words(want))
		} else {
			e.floats(o.Buf.Name, shaders.Floats(got), shaders.Floats(want))
		}
		copy(want, got)
	}
	return e, nil
}

func (e *OpError) words(name string, got, want []uint32) {
	for i := range want {
		if got[i] != want[i] {
			e.Words, e.What, e.Err, e.Scale = true, name, math.Inf(1), 1
			return
		}
	}
}

func (e *OpError) floats(name string, got, want []float32) {
	for i := range want {
		a, b := float64(got[i]), float64(want[i])
		d := math.Abs(a - b)
		if a == b || (math.IsNaN(a) && math.IsNaN(b)) {
			d = 0
		} else if math.IsNaN(d) {
			d = math.Inf(1)
		}
		if !math.IsNaN(b) && !math.IsInf(b, 0) {
			e.Scale = max(e.Scale, math.Abs(b))
		}
		if d > e.Err {
			e.Err, e.What, e.Got, e.Want = d, name, got[i], want[i]
		}
	}
}
