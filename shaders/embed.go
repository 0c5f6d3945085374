package shaders

import (
	"fmt"

	"github.com/calderaml/caldera/gguf/quant"
)

// Embed looks up embeddings: row r of Y becomes the dequantised row of W that belongs to the token of row r
// (model-qwen35.md 5; no scaling, no norm). A token beyond the table reads nothing and gives zeros: the
// engine refuses such tokens before.
type Embed struct {
	Step View
	W    Matrix // Out tokens of In weights
	Y    Mat    // rows x In
	Rows int
}

func embedModules() []Module {
	var ms []Module
	for _, t := range kernelTypes {
		// No lane shares a row's sum here, so one module serves both schemes.
		ms = append(ms, blockModule(Module{Name: embedModule(t), Source: "embed.comp", Buffers: 3, Params: 6}, t, 1))
	}
	return ms
}

func embedModule(t quant.Type) string { return "embed." + typeName(t) }

func (o *Embed) Kernel() string { return "embed" }

func (o *Embed) Operands() []Operand {
	return append([]Operand{R(o.Step), R(o.W.View), W(o.Y.View)}, o.W.operands()...)
}

func (o *Embed) Cost() Cost {
	return Cost{Weights: int64(o.Rows) * o.W.RowBytes(), Bytes: 4 * int64(o.Rows) * int64(o.W.In)}
}

func (o *Embed) Lower(p *Profile) ([]Dispatch, error) {
	if err := o.W.check(); err != nil {
		return nil, err
	}
	if o.W.Experts > 0 || o.Y.Width != o.W.In || !o.Y.holds(o.Rows) {
		return nil, fmt.Errorf("embed %s: %d rows of %d floats from %d matrices of %d x %d weights", o.W.Name, o.Rows, o.Y.Width, max(o.W.Experts, 1), o.W.Out, o.W.In)
	}
	windows, err := o.W.rowWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	groups, err := p.grid("embed", min(ceilDiv(o.W.In/32, rowGroup), int(p.MaxGroups[0])), o.Rows, 1)
	if err != nil {
		return nil, err
	}
	var ds []Dispatch
	for _, w := range windows {
		ds = append(ds, Dispatch{
			Module: embedModule(o.W.Type),
			Spec:   []uint32{rowGroup},
			Bind:   append([]Operand{R(o.Step), R(w.view), W(o.Y.View)}, extras(0, o.W)...),
			Push: []uint32{uint32(w.first), uint32(w.rows), uint32(o.W.Out), uint32(o.W.In),
				uint32(o.W.RowBytes()), uint32(o.Y.Stride)},
			Groups: groups,
		})
	}
	return ds, nil
}

func (o *Embed) Twin(m Memory) error {
	s := ViewStep(m, o.Step)
	w, y := o.W.contents(m), F32(m, o.Y.View)
	for r := range s.Rows() {
		out := o.Y.row(y, r)
		t := s.Token(r)
		if t >= o.W.Out {
			clear(out)
			continue
		}
		if err := w.row(out, 0, t); err != nil {
			return err
		}
	}
	return nil
}
