package shaders

import (
	"fmt"
	"strings"
)

// Detail is the block type and shape of an op in a few words, for profiles: "q4_k 2048x512 x8" for products of
// eight matrices that take 2048 values to 512. It is empty for ops without a method Detail() string.
func Detail(op Op) string {
	if d, ok := op.(interface{ Detail() string }); ok {
		return d.Detail()
	}
	return ""
}

// detail is the type of a matrix and its dimensions in ggml's order, which is from x to.
func (m Matrix) detail() string { return fmt.Sprintf("%s %dx%d", typeName(m.Type), m.In, m.Out) }

// Detail is the matrix.
func (o *MatMul) Detail() string { return o.W.detail() }

// Detail is the matrices, those of one type as one.
func (o *Project) Detail() string {
	var parts []string
	for i := 0; i < len(o.W); {
		m := o.W[i]
		for i++; i < len(o.W) && o.W[i].Type == m.Type && o.W[i].In == m.In; i++ {
			m.Out += o.W[i].Out
		}
		parts = append(parts, m.detail())
	}
	return strings.Join(parts, ", ")
}

// Detail is the table.
func (o *Embed) Detail() string { return o.W.detail() }

// Detail is the gate of one expert, the type of its other half where that differs, and the experts of a row.
func (o *ExpertGateUp) Detail() string {
	s := o.Gate.detail()
	if o.Up.Type != o.Gate.Type {
		s = typeName(o.Gate.Type) + "+" + o.Up.detail()
	}
	if o.routed() {
		s += fmt.Sprintf(" x%d", o.K)
	}
	return s
}

// Detail is the matrix of one expert and the experts of a row.
func (o *ExpertDown) Detail() string { return fmt.Sprintf("%s x%d", o.W.detail(), o.K) }

// Detail is how many experts are chosen of how many.
func (o *Router) Detail() string { return fmt.Sprintf("%d of %d", o.K, o.Experts) }

// Detail is the width of a row.
func (o *RMSNorm) Detail() string { return fmt.Sprint(o.X.Width) }

// Detail is the heads, value heads first, and their dimension.
func (o *DeltaRule) Detail() string {
	return fmt.Sprintf("%d/%d heads of %d", o.VHeads, o.KHeads, o.Dim)
}

// Detail is the heads, query heads first, and their dimension.
func (o *Attention) Detail() string {
	return fmt.Sprintf("%d/%d heads of %d", o.Heads, o.KVHeads, o.Dim)
}

// Detail is how many candidates are chosen of how many.
func (o *TopK) Detail() string { return fmt.Sprintf("%d of %d", o.K, o.Logits.Width) }
