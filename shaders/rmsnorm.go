package shaders

import (
	"fmt"
	"math"
)

// RMSNorm computes y = x / sqrt(mean(x²) + eps) * weight for each row, the mean over the row's width
// (model-qwen35.md 5, rms). Y may be X unless rows are gathered.
type RMSNorm struct {
	Step   View
	X, Y   Mat
	Weight View // width float32
	Rows   int
	Count  Count
	// Gather makes output row i the norm of the i-th input row whose logits are wanted, so that the LM head
	// sees only those; Count is then CountOuts.
	Gather bool
	Eps    float32
	// Folds says that all who read Y can form it themselves ([Normed]). Then the op may become no dispatch at all.
	Folds bool
}

func rmsnormModules() []Module {
	return []Module{{Name: "rmsnorm", Source: "rmsnorm.comp", Buffers: 4, Params: 6}}
}

func (o *RMSNorm) Kernel() string { return "rmsnorm" }

func (o *RMSNorm) Operands() []Operand {
	return []Operand{R(o.Step), R(o.X.View), R(o.Weight), W(o.Y.View)}
}

func (o *RMSNorm) Cost() Cost {
	n := int64(o.Rows) * int64(o.X.Width)
	return Cost{Weights: o.Weight.Len, Bytes: 8 * n, Flops: 4 * n}
}

func (o *RMSNorm) Lower(p *Profile) ([]Dispatch, error) {
	switch {
	case o.X.Width <= 0 || o.X.Width != o.Y.Width || o.Weight.Len != 4*int64(o.X.Width):
		return nil, fmt.Errorf("rmsnorm: rows of %d to rows of %d floats with %d bytes of weights", o.X.Width, o.Y.Width, o.Weight.Len)
	case !o.Y.holds(o.Rows) || !o.Gather && !o.X.holds(o.Rows):
		return nil, fmt.Errorf("rmsnorm: matrices of %d and %d bytes do not hold %d rows", o.X.Len, o.Y.Len, o.Rows)
	case o.Gather && o.Count != CountOuts:
		return nil, fmt.Errorf("rmsnorm: rows are gathered but not counted by those wanted")
	case o.Gather && o.X.Overlaps(o.Y.View):
		return nil, fmt.Errorf("rmsnorm: rows cannot be gathered in place")
	}
	if o.Folds && p.folds(o.Rows) {
		return nil, nil
	}
	if err := p.loops("rmsnorm", 2*ceilDiv(o.X.Width, int(p.Subgroup))); err != nil {
		return nil, err
	}
	groups, err := p.grid("rmsnorm", o.Rows, 1, 1)
	if err != nil {
		return nil, err
	}
	return []Dispatch{{
		Module: "rmsnorm",
		Spec:   p.ReduceSpec(),
		Bind:   o.Operands(),
		Push: []uint32{uint32(o.Count), flag(o.Gather), uint32(o.X.Width),
			uint32(o.X.Stride), uint32(o.Y.Stride), math.Float32bits(o.Eps)},
		Groups: groups,
	}}, nil
}

func (o *RMSNorm) Twin(m Memory) error {
	s := ViewStep(m, o.Step)
	x, w, y := F32(m, o.X.View), F32(m, o.Weight), F32(m, o.Y.View)
	for r := range s.Count(o.Count) {
		from := r
		if o.Gather {
			from = s.Out(r)
		}
		in, out := o.X.row(x, from), o.Y.row(y, r)
		scale := rmsScale(in, o.Eps)
		for i, v := range in {
			out[i] = float32(float64(v) * scale * float64(w[i]))
		}
	}
	return nil
}

// rmsScale returns 1/sqrt(mean(x²) + eps).
func rmsScale(x []float32, eps float32) float64 {
	return 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(eps))
}

// holds reports whether the matrix's memory has room for this many rows.
func (m Mat) holds(rows int) bool {
	return rows >= 1 && m.Width <= m.Stride && 4*(int64(rows-1)*int64(m.Stride)+int64(m.Width)) <= m.Len
}

// flag is a bool as kernels take it.
func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
