package shaders

import (
	"fmt"
	"math"
)

// GatedNorm normalises the delta rule's output and gates it: Y = rms(O; Weight) silu(Z) over each head's Dim
// values (model-qwen35.md 5.2 step 6), where rms(o; w) = o w / sqrt(mean(o^2) + Eps). Y must not share
// memory with O or Z.
type GatedNorm struct {
	Step   View
	O, Z   Mat  // rows x Heads Dim
	Y      Mat  // rows x Heads Dim
	Weight View // [Dim], the same for every head
	Rows   int  // capacity
	Heads  int
	Dim    int
	Eps    float32
}

func gatedNormModules() []Module {
	return []Module{{Name: "gated_norm", Source: "gated_norm.comp", Buffers: 5, Params: 5}}
}

func (o *GatedNorm) Kernel() string { return "gated_norm" }

func (o *GatedNorm) Operands() []Operand {
	return []Operand{R(o.Step), R(o.O.View), R(o.Z.View), R(o.Weight), W(o.Y.View)}
}

func (o *GatedNorm) Cost() Cost {
	n := int64(o.Rows) * int64(o.Heads) * int64(o.Dim)
	return Cost{Weights: 4 * int64(o.Dim), Bytes: 4 * 3 * n, Flops: 9 * n}
}

func (o *GatedNorm) Lower(p *Profile) ([]Dispatch, error) {
	w := o.Heads * o.Dim
	switch {
	case o.Heads <= 0 || o.Dim <= 0 || o.O.Width != w || o.Z.Width != w || o.Y.Width != w:
		return nil, fmt.Errorf("gated_norm: widths %d, %d and %d for %d heads of %d", o.O.Width, o.Z.Width, o.Y.Width, o.Heads, o.Dim)
	case o.Weight.Len < 4*int64(o.Dim):
		return nil, fmt.Errorf("gated_norm: a weight of %d bytes for %d values", o.Weight.Len, o.Dim)
	case o.Y.Overlaps(o.O.View) || o.Y.Overlaps(o.Z.View):
		return nil, fmt.Errorf("gated_norm: the result shares memory with an input")
	}
	groups, err := p.grid("gated_norm", o.Heads, o.Rows, 1)
	if err != nil {
		return nil, err
	}
	return []Dispatch{{
		Module: "gated_norm",
		Spec:   p.ReduceSpec(),
		Bind:   []Operand{R(o.Step), R(o.O.View), R(o.Z.View), R(o.Weight), W(o.Y.View)},
		Push:   []uint32{uint32(o.O.Stride), uint32(o.Z.Stride), uint32(o.Y.Stride), uint32(o.Dim), math.Float32bits(o.Eps)},
		Groups: groups,
	}}, nil
}

func (o *GatedNorm) Twin(m Memory) error {
	x, z, y, w := F32(m, o.O.View), F32(m, o.Z.View), F32(m, o.Y.View), F32(m, o.Weight)
	for r := range ViewStep(m, o.Step).Rows() {
		for h := range o.Heads {
			from, to := h*o.Dim, (h+1)*o.Dim
			head, gate, out := o.O.row(x, r)[from:to], o.Z.row(z, r)[from:to], o.Y.row(y, r)[from:to]
			scale := 1 / math.Sqrt(dot(head, head)/float64(o.Dim)+float64(o.Eps))
			for i := range head {
				g := float64(gate[i])
				out[i] = float32(float64(head[i]) * scale * float64(w[i]) * g * sigmoid(g))
			}
		}
	}
	return nil
}
