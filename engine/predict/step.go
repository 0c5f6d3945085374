package predict

import (
	"fmt"
	"math"
	"strings"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A Test is what is predicted, of one sequence: so many tokens of a prompt, or of generation, after so many in the context.
type Test struct{ Prompt, Gen, Depth int }

// Name is the test's name as llama-bench prints it.
func (t Test) Name() string {
	s := fmt.Sprintf("tg%d", t.Gen)
	if t.Prompt > 0 {
		s = fmt.Sprintf("pp%d", t.Prompt)
	}
	if t.Depth > 0 {
		s += fmt.Sprintf(" @ d%d", t.Depth)
	}
	return s
}

// Context is how many tokens the sequence has at the end.
func (t Test) Context() int { return t.Depth + t.Prompt + t.Gen }

// Check refuses a test of both kinds or of none, and one that the model has no context for.
func (t Test) Check(m *model.Model) error {
	switch {
	case t.Prompt < 0 || t.Gen < 0 || t.Depth < 0 || (t.Prompt > 0) == (t.Gen > 0):
		return fmt.Errorf("a test of %d tokens of prompt and %d of generation at a depth of %d", t.Prompt, t.Gen, t.Depth)
	case t.Context() > m.Context:
		return fmt.Errorf("%s takes a context of %d tokens: the model is made for 1 to %d", t.Name(), t.Context(), m.Context)
	}
	return nil
}

// plan is how a test is cut into steps.
type plan struct {
	rows     int     // of a step, in use
	steps    int     // of the whole test
	attended float64 // tokens that a row attends to, mean
	head     float64 // steps that compute logits, of all
}

// plan cuts the test into steps of at most batch rows.
func (t Test) plan(batch int) plan {
	if t.Gen > 0 {
		return plan{1, t.Gen, float64(t.Depth) + float64(t.Gen+1)/2, 1}
	}
	steps := (t.Prompt + batch - 1) / batch
	return plan{(t.Prompt + steps - 1) / steps, steps, float64(t.Depth) + float64(t.Prompt+1)/2, 1 / float64(steps)}
}

// A node is an op of a step with what it moves and computes, as far as that can be said without running it.
type node struct {
	scheduler.Node
	lowered     []scheduler.Lowered
	weights     float64 // bytes read once
	bytes       float64 // of everything else
	flops       float64
	decodes     float64 // weights decoded, each as often as it is
	decodeCost  float64 // operations of decoding one
	invocations float64 // of a dispatch, mean
	serial      float64 // rows that wait for one another
	share       float64 // of the steps in which it has work
}

// step is the nodes of a test's step on a device.
type step struct {
	plan
	graph *scheduler.Graph
	nodes []node
	tally scheduler.Tally
}

// newStep builds and lowers the graph of a step.
func newStep(b *engine.Blueprint, t Test, batch int, k *shaders.Profile) (*step, error) {
	if err := t.Check(b.Model()); err != nil {
		return nil, err
	}
	s := &step{plan: t.plan(batch)}
	m := b.Model()
	var err error
	if s.graph, err = b.Graph(m, k, s.rows, t.Context()); err != nil {
		return nil, err
	}
	all, err := scheduler.Lower(s.graph, k)
	if err != nil {
		return nil, err
	}
	s.tally = scheduler.Count(s.graph, all, nil)
	s.nodes = make([]node, len(s.graph.Nodes))
	for i, n := range s.graph.Nodes {
		s.nodes[i].Node = n
	}
	for _, l := range all {
		s.nodes[l.Node].lowered = append(s.nodes[l.Node].lowered, l)
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		if len(n.lowered) == 0 { // others do its work as they read, its weights included
			n.weights, n.share = float64(n.Op.Cost().Weights), 1
			continue
		}
		s.measure(n, b.File(), m)
	}
	return s, nil
}

// measure fills in what a node does when the step's rows are in use.
func (s *step) measure(n *node, f *gguf.File, m *model.Model) {
	// Ops count all rows of the capacity, and all tokens of the context's pages.
	c := n.Op.Cost()
	used := float64(s.rows) / float64(s.graph.Shape.Rows)
	n.weights, n.bytes, n.flops, n.share = float64(c.Weights), float64(c.Bytes)*used, float64(c.Flops)*used, 1
	rows := float64(s.rows)
	if n.Layer >= m.Layers {
		rows, n.share = 1, s.head
		n.bytes, n.flops = float64(c.Bytes), float64(c.Flops)
	}
	for _, l := range n.lowered {
		d := l.Dispatch
		local := 1.0
		if len(d.Spec) > 0 {
			local = float64(d.Spec[0]) // the workgroup's size
		}
		n.invocations += float64(d.Groups[0]) * float64(d.Groups[1]) * float64(d.Groups[2]) * local / float64(len(n.lowered))
	}
	switch n.Op.Kernel() {
	case "attention":
		capacity := float64(s.graph.Shape.Pages * shaders.PageTokens)
		n.bytes, n.flops = n.bytes*s.attended/capacity, n.flops*s.attended/capacity
	case "delta_rule":
		n.serial = rows
	}
	t, ok := blockType(n.lowered)
	if !ok {
		return
	}
	n.decodeCost = decodeCost(t)
	// Rows that a kernel takes together decode a weight once: as many times as its grid has rows of groups.
	times := min(rows, float64(n.lowered[0].Dispatch.Groups[1]))
	if k, experts := float64(m.ExpertsUsed), float64(m.Experts); routed(n.Node, f) && c.Weights > 0 {
		distinct := Distinct(rows, k, experts)
		n.weights *= distinct / min(float64(s.graph.Shape.Rows)*k, experts)
		// In tiles of up to four pairs an expert with n of them is decoded about (n+3)/4 times.
		times = 1
		if rows > 1 {
			times = (rows*k + 3*distinct) / 4 / distinct
		}
	}
	n.decodes = n.weights / float64(t.BlockBytes()) * float64(t.BlockSize()) * max(1, times)
	switch o := n.Op.(type) {
	case *shaders.Embed:
		n.weights *= used
		n.decodes = n.weights / float64(t.BlockBytes()) * float64(t.BlockSize())
	case *shaders.Project:
		// Of several types.
		weights, work := 0.0, 0.0
		for _, w := range o.W {
			n := float64(w.In) * float64(w.Out)
			weights, work = weights+n, work+n*decodeCost(w.Type)
		}
		n.decodes, n.decodeCost = weights*max(1, times), work/weights
	}
}

// Distinct is the expected number of experts that rows choose, k each of so many: E (1 - (1 - k/E)^rows), as if each
// row chose at random.
func Distinct(rows, k, experts float64) float64 {
	return experts * (1 - math.Pow(1-k/experts, rows))
}

// routed reports whether an op reads a stack of experts: a tensor of three dimensions.
func routed(n scheduler.Node, f *gguf.File) bool {
	for _, o := range n.Op.Operands() {
		if o.Buf.Kind != shaders.Weight {
			continue
		}
		// A buffer that is made of parts of a tensor has its name and, in brackets, which part.
		name, _, _ := strings.Cut(o.Buf.Name, "[")
		if t, ok := f.Tensor(name); ok && t.Ne(2) > 1 {
			return true
		}
	}
	return false
}

// blockType is the block type of the weights that a node's kernel reads, which its module is named for.
func blockType(ls []scheduler.Lowered) (quant.Type, bool) {
	for _, l := range ls {
		for _, part := range strings.Split(l.Dispatch.Module, ".") {
			if t, err := quant.ParseType(strings.ToUpper(part)); err == nil {
				return t, true
			}
		}
	}
	return 0, false
}

// decodeCost is about how many operations take a weight of a type out of its block: shifts, masks and conversions a
// weight, and those of a block's scales spread over its weights.
func decodeCost(t quant.Type) float64 {
	switch t {
	case quant.F32:
		return 0
	case quant.F16, quant.BF16:
		return 1
	case quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q4_K, quant.TQ2_0, quant.Q2_0, quant.Q1_0:
		return 3
	case quant.Q2_K, quant.Q5_0, quant.Q5_1, quant.Q5_K, quant.Q6_K, quant.MXFP4, quant.NVFP4, quant.IQ4_NL, quant.IQ4_XS:
		return 4
	}
	return 6
}
