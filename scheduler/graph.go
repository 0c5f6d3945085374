// Package scheduler turns a graph of ops into recorded work: it checks the graph, gives scratch buffers
// memory by their lifetimes, lowers ops to dispatches for each die, places the barriers that the operands
// demand and no others, records command buffers per layer once, and replays them for every step.
//
// It knows ops and devices and no model: what the ops compute is the graph builder's business.
package scheduler

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
)

// A Node is an op at its place in a graph.
type Node struct {
	Op    shaders.Op
	Name  string // what it computes, e.g. "attn_qkv"
	Layer int    // decoder layer; -1 before the first, the number of layers after the last
}

// Label names a node for people: "layer 3 attn_qkv (matmul)".
func (n Node) Label() string {
	return fmt.Sprintf("layer %d %s (%s)", n.Layer, n.Name, n.Op.Kernel())
}

// A Graph is the ops of one step, in an order in which they may run one after the other. Shape is the
// capacity the ops were built for and Step the buffer they read it from.
type Graph struct {
	Shape shaders.StepShape
	Step  *shaders.Buffer
	Nodes []Node

	layer int
}

// NewGraph returns an empty graph for steps of at most this shape.
func NewGraph(shape shaders.StepShape) *Graph {
	return &Graph{Shape: shape, Step: shape.NewBuffer(), layer: -1}
}

// Layer says that the ops added from here on belong to layer n. Command buffers are recorded per layer.
func (g *Graph) Layer(n int) { g.layer = n }

// Add appends an op.
func (g *Graph) Add(name string, op shaders.Op) {
	g.Nodes = append(g.Nodes, Node{Op: op, Name: name, Layer: g.layer})
}

// Cost is the sum of the ops' costs.
func (g *Graph) Cost() shaders.Cost {
	var c shaders.Cost
	for _, n := range g.Nodes {
		c = c.Plus(n.Op.Cost())
	}
	return c
}

// Buffers lists every buffer the graph names, in order of first use.
func (g *Graph) Buffers() []*shaders.Buffer {
	var bs []*shaders.Buffer
	seen := map[*shaders.Buffer]bool{}
	for _, n := range g.Nodes {
		for _, o := range n.Op.Operands() {
			if !seen[o.Buf] {
				seen[o.Buf] = true
				bs = append(bs, o.Buf)
			}
		}
	}
	return bs
}

// Check refuses a graph that cannot be right whatever the device: a view outside its buffer, a write to
// weights or to the step, a step buffer that is not the graph's own, scratch read before anything wrote it.
func (g *Graph) Check() error {
	written := map[*shaders.Buffer]bool{}
	for _, n := range g.Nodes {
		for _, o := range n.Op.Operands() {
			if !o.Valid() {
				name := "no buffer"
				if o.Buf != nil {
					name = fmt.Sprintf("buffer %s of %d bytes", o.Buf.Name, o.Buf.Size)
				}
				return fmt.Errorf("%s: operand at %d of %d bytes does not lie in %s", n.Label(), o.Off, o.Len, name)
			}
			b := o.Buf
			switch {
			case b.Kind == shaders.StepInput && b != g.Step:
				return fmt.Errorf("%s reads a step buffer that is not the graph's", n.Label())
			case o.Access&shaders.Write != 0 && (b.Kind == shaders.Weight || b.Kind == shaders.StepInput):
				return fmt.Errorf("%s writes %s buffer %s", n.Label(), b.Kind, b.Name)
			case o.Access&shaders.Read != 0 && (b.Kind == shaders.Scratch || b.Kind == shaders.Result) && !written[b]:
				return fmt.Errorf("%s reads %s, which nothing has written", n.Label(), b.Name)
			}
		}
		for _, o := range n.Op.Operands() {
			if o.Access&shaders.Write != 0 {
				written[o.Buf] = true
			}
		}
	}
	return nil
}
