package shaders

import "fmt"

// ExpertDown adds the weighted outputs of the experts to the residual: Y[row] += sum over s < K of
// Weights[row][s] * (W H[row][s]), with W the matrix of expert Ids[row][s] (model-qwen35.md 5.3, step 5: the
// weight applies after the down projection). An id that names no expert adds nothing.
type ExpertDown struct {
	Step    View
	W       Matrix // a stack of Out x F
	H       Mat    // rows x K*F
	Ids     View   // [Rows][K] uint32
	Weights View   // [Rows][K] float32
	Y       Mat    // rows x Out, read and written
	Rows    int
	K       int
}

func expertDownModules() []Module {
	return weightModules("expert_down", 1, Module{Source: "expert_down.comp", Buffers: 6, Params: 9})
}

func (o *ExpertDown) Kernel() string { return "expert_down" }

func (o *ExpertDown) Operands() []Operand {
	return append([]Operand{R(o.Step), R(o.W.View), R(o.H.View), R(o.Ids), R(o.Weights), RW(o.Y.View)}, o.W.operands()...)
}

func (o *ExpertDown) Cost() Cost {
	r, k, f, e := int64(o.Rows), int64(o.K), int64(o.W.In), int64(o.W.Out)
	used := min(r*k, int64(o.W.stack()))
	return Cost{Weights: used * o.W.used(), Bytes: 4 * r * (k*f + 2*k + 2*e), Flops: 2 * r * k * f * e}
}

func (o *ExpertDown) Lower(p *Profile) ([]Dispatch, error) {
	if err := o.W.checkStack(); err != nil {
		return nil, err
	}
	switch need := int64(o.Rows) * int64(o.K) * 4; {
	case o.K < 1 || o.H.Width != o.K*o.W.In || o.Y.Width != o.W.Out:
		return nil, fmt.Errorf("expert_down %s: %d x %d weights of %d experts between widths %d and %d", o.W.Name, o.W.Out, o.W.In, o.K, o.H.Width, o.Y.Width)
	case !o.H.holds(o.Rows) || !o.Y.holds(o.Rows):
		return nil, fmt.Errorf("expert_down %s: matrices of %d and %d bytes do not hold %d rows", o.W.Name, o.H.Len, o.Y.Len, o.Rows)
	case o.Ids.Len < need || o.Weights.Len < need:
		return nil, fmt.Errorf("expert_down %s: ids of %d and weights of %d bytes, %d rows of %d experts need %d", o.W.Name, o.Ids.Len, o.Weights.Len, o.Rows, o.K, need)
	}
	if err := p.loops("expert_down "+o.W.Name, o.K*(o.W.In/32+1)); err != nil {
		return nil, err
	}
	windows, err := o.W.expertWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	spec, gx := p.weightSpec(o.W.Out, 1)
	groups, err := p.grid("expert_down", gx, o.Rows, 1)
	if err != nil {
		return nil, err
	}
	var ds []Dispatch
	for _, w := range windows {
		ds = append(ds, Dispatch{
			Module: weightModule("expert_down", o.W.Type, p.LanesPerRow),
			Spec:   spec[:len(spec)-1], // a token's experts differ from the next one's: no tokens at once
			Bind:   append([]Operand{R(o.Step), R(w.view), R(o.H.View), R(o.Ids), R(o.Weights), RW(o.Y.View)}, extras(w.first, o.W)...),
			Push: []uint32{uint32(o.W.Out), uint32(o.W.In), uint32(o.W.RowBytes()), uint32(o.W.expertBytes()),
				uint32(o.H.Stride), uint32(o.Y.Stride), uint32(o.K), uint32(w.first), uint32(w.rows)},
			Groups: groups,
		})
	}
	return ds, nil
}

func (o *ExpertDown) Twin(m Memory) error {
	tokens := ViewStep(m, o.Step).Rows()
	pairs, _ := pairsByExpert(U32(m, o.Ids)[:tokens*o.K], o.W.stack())
	w, h, y, weights := o.W.contents(m), F32(m, o.H.View), F32(m, o.Y.View), F32(m, o.Weights)
	return parallel(o.W.Out, func(from, to int) error {
		row, sum := make([]float32, o.W.In), make([]float64, tokens)
		for r := from; r < to; r++ {
			clear(sum)
			for e, of := range pairs {
				if err := w.row(row, e, r); err != nil {
					return err
				}
				for _, i := range of {
					slot := o.H.row(h, i/o.K)[i%o.K*o.W.In:][:o.W.In]
					sum[i/o.K] += float64(weights[i]) * dot(row, slot)
				}
			}
			for t, s := range sum {
				y[t*o.Y.Stride+r] = float32(float64(y[t*o.Y.Stride+r]) + s)
			}
		}
		return nil
	})
}
