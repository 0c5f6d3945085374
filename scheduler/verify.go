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

// contents is implemented by ops that write something other than floats into some of their operands:
// words, such as indices, which are compared bit for bit, or notes between their own dispatches, which the
// twin does not have.
type contents interface {
	Contents(operand int) shaders.Content
}

// Verify performs one step on dies op by op. Each op's twin runs on the inputs that the device had, so
// that an error is the op's own and not inherited; after the comparison the twin's memory takes the
// device's values. It calls report for every node. Memory must hold the graph's weights.
func Verify(g *Graph, where Placement, memory shaders.HostMemory, runs []shaders.Run, rope shaders.RopeTable, report func(OpError) error) error {
	return VerifySome(g, where, memory, runs, rope, func(int) bool { return true }, math.Inf(1), report)
}

// VerifySome is Verify of some nodes: the twins of others do not run, but for those of nodes that the device has no dispatch
// for, whose results the twins of others read. Where an op is further off than tol, relative to its scale, the device goes on
// with the twin's values: zeros, say, would hide what is wrong with the ops that follow.
func VerifySome(g *Graph, where Placement, memory shaders.HostMemory, runs []shaders.Run, rope shaders.RopeTable, want func(node int) bool, tol float64, report func(OpError) error) error {
	p, err := Compile(g, where, Options{PerOp: true, Check: true})
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
	dispatched := map[int]bool{}
	for _, s := range p.stages {
		for _, u := range s.units {
			dispatched[u.first] = true
		}
	}
	before := func(node int) error {
		if dispatched[node] && !want(node) {
			return nil
		}
		return ref.runNode(node)
	}
	return p.RunOps(runs, rope, before, func(node int) error {
		if !want(node) {
			return p.adopt(node, memory)
		}
		e, err := p.compare(node, memory, tol)
		if err != nil {
			return err
		}
		return report(e)
	})
}

// adopt puts what a node wrote on the device into the twin's memory.
func (p *Plan) adopt(node int, memory shaders.HostMemory) error {
	n := p.Graph.Nodes[node]
	for _, o := range n.Op.Operands() {
		if o.Access&shaders.Write == 0 {
			continue
		}
		got := shaders.AlignedBytes(o.Len)
		if err := p.readAt(node, o.View, got); err != nil {
			return fmt.Errorf("%s: %w", n.Label(), err)
		}
		copy(memory.Bytes(o.View), got)
	}
	return nil
}

// compare reads what a node wrote on the device, compares it with the twin's, and leaves the device's in
// the twin's memory, or where it is further off than tol the twin's in the device's.
func (p *Plan) compare(node int, memory shaders.HostMemory, tol float64) (OpError, error) {
	n := p.Graph.Nodes[node]
	e := OpError{Node: node}
	written := map[shaders.View][]byte{} // by the device
	for i, o := range n.Op.Operands() {
		if o.Access&shaders.Write == 0 {
			continue
		}
		got := shaders.AlignedBytes(o.Len)
		if err := p.readAt(node, o.View, got); err != nil {
			return e, fmt.Errorf("%s: %w", n.Label(), err)
		}
		want := memory.Bytes(o.View)
		content := shaders.Values
		if k, ok := n.Op.(contents); ok {
			content = k.Contents(i)
		}
		switch content {
		case shaders.Values:
			e.floats(o.Buf.Name, shaders.Floats(got), shaders.Floats(want))
		case shaders.Indices:
			e.words(o.Buf.Name, shaders.Words(got), shaders.Words(want))
		case shaders.Halves:
			e.halves(o.Buf.Name, shaders.Words(got), shaders.Words(want))
		}
		if content == shaders.Notes {
			copy(want, got) // the twin has none
			continue
		}
		written[o.View] = got
	}
	for v, got := range written {
		want := memory.Bytes(v)
		if e.Rel() <= tol {
			copy(want, got)
		} else if err := p.Write(v, want); err != nil {
			return e, fmt.Errorf("%s: %w", n.Label(), err)
		}
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

// halves compares pairs of halves. Values that round to neighbouring halves are one step apart, 2^-10 of
// their size; only what goes beyond that counts.
func (e *OpError) halves(name string, got, want []uint32) {
	const step, least = 1.0 / (1 << 10), 1.0 / (1 << 24)
	for i := range want {
		if got[i] == want[i] {
			continue
		}
		var g, w [2]float32
		g[0], g[1] = shaders.HalfPair(got[i])
		w[0], w[1] = shaders.HalfPair(want[i])
		for j := range w {
			b := math.Abs(float64(w[j]))
			e.Scale = max(e.Scale, b)
			d := math.Abs(float64(g[j])-float64(w[j])) - b*step - least
			if math.IsNaN(d) {
				d = math.Inf(1)
			}
			if d > e.Err {
				e.Err, e.What, e.Got, e.Want = d, name, g[j], w[j]
			}
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
