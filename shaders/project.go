package shaders

import (
	"fmt"
	"math"
	"slices"
)

// Project computes the products of several matrices with the same input, side by side: Y[row] = W[0] X | W[1] X | ...
// It is a [MatMul] each, of which the fused scheme does two of the same block type at once.
type Project struct {
	Step  View
	W     []Matrix
	X     Normed
	Y     Mat // as wide as the matrices have rows
	Rows  int
	Count Count
	// Packed is the op's own, for its inputs in whole numbers (see [NewPacked]); zero without.
	Packed Mat
}

func (o *Project) Kernel() string { return "matmul" }

func (o *Project) Operands() []Operand {
	ops := append([]Operand{R(o.Step), W(o.Y.View)}, o.X.operands()...)
	for _, w := range o.W {
		ops = append(append(ops, R(w.View)), w.operands()...)
	}
	if o.packs() {
		ops = append(ops, W(o.Packed.View))
	}
	return ops
}

// packs reports whether a matrix takes inputs in whole numbers.
func (o *Project) packs() bool {
	return slices.ContainsFunc(o.W, func(w Matrix) bool { return w.packs(o.Packed) })
}

// Contents says that what is Packed is the dispatches' own.
func (o *Project) Contents(operand int) Content { return packedLast(o, o.packs(), operand) }

func (o *Project) Cost() (c Cost) {
	for _, m := range o.each() {
		c = c.Plus(m.Cost())
	}
	return c
}

// each is the op as one product after the other.
func (o *Project) each() []*MatMul {
	var ms []*MatMul
	at, packed := 0, false
	for _, w := range o.W {
		ms = append(ms, &MatMul{Step: o.Step, W: w, X: o.X.Mat, Y: o.Y.Cols(at, w.Out), Rows: o.Rows, Count: o.Count, Packed: o.Packed, isPacked: packed})
		at, packed = at+w.Out, packed || w.packs(o.Packed)
	}
	return ms
}

func (o *Project) Lower(p *Profile) ([]Dispatch, error) {
	at := 0
	for _, w := range o.W {
		at += w.Out
	}
	if at != o.Y.Width || len(o.W) == 0 {
		return nil, fmt.Errorf("projections of %d outputs to rows of %d", at, o.Y.Width)
	}
	ms := o.each()
	var ds []Dispatch
	for i := 0; i < len(ms); {
		n, lower := 1, ms[i].Lower
		if o.X.folds(p, o.Rows) {
			if i+1 < len(ms) && ms[i].W.pairs(ms[i+1].W, p) {
				n = 2
			}
			pair := ms[i : i+n]
			lower = func(p *Profile) ([]Dispatch, error) { return o.fused(p, pair) }
		}
		d, err := lower(p)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d...)
		i += n
	}
	return ds, nil
}

// pairs reports whether a kernel can take both matrices in one dispatch.
func (m Matrix) pairs(n Matrix, p *Profile) bool {
	if m.Type != n.Type || m.In != n.In {
		return false
	}
	for _, w := range []Matrix{m, n} {
		if ws, err := w.rowWindows(p.MaxBinding); err != nil || len(ws) != 1 {
			return false
		}
	}
	return true
}

// fused lowers one product, or two of matrices that are a pair, to kernels that form the norm of their input.
func (o *Project) fused(p *Profile, ms []*MatMul) ([]Dispatch, error) {
	w, second := ms[0].W, ms[len(ms)-1].W
	for _, m := range ms {
		if err := m.W.check(); err != nil {
			return nil, err
		}
	}
	x := o.X.Of
	if x.Width != w.In || o.X.Weight.Len != 4*int64(w.In) {
		return nil, fmt.Errorf("matmul %s: rows of %d weights for inputs of %d, the norm has %d bytes", w.Name, w.In, x.Width, o.X.Weight.Len)
	}
	if err := p.loops("matmul "+w.Name, w.In/32+1+w.In/int(p.Subgroup)+1); err != nil {
		return nil, err
	}
	windows, err := w.rowWindows(p.MaxBinding)
	if err != nil {
		return nil, err
	}
	way := p.way(ms[0].use())
	way.Scheme = fusedScheme
	at := way.TokensAt(o.Rows)
	var ds []Dispatch
	for _, win := range windows {
		rows, other := win.rows, win.view
		if len(ms) == 2 {
			rows, other = rows+second.Out, second.View
		}
		spec, gx := p.spec(way, rows, at)
		groups, err := p.grid("matmul", gx, ceilDiv(o.Rows, at), 1)
		if err != nil {
			return nil, err
		}
		y := ms[0].Y.Cols(win.first, rows)
		ds = append(ds, Dispatch{
			Module: weightModule("matmul", w.Type, fusedScheme),
			Spec:   spec,
			Bind:   append([]Operand{R(o.Step), R(win.view), R(x.View), W(y.View), R(x.View), R(o.X.Weight), R(other)}, extras(0, w, second)...),
			Push: []uint32{uint32(o.Count), uint32(rows), uint32(w.In), uint32(w.RowBytes()),
				uint32(x.Stride), uint32(y.Stride), 0, 0, uint32(win.rows), math.Float32bits(o.X.Eps)},
			Groups: groups,
			Use:    ms[0].use(),
		})
	}
	return ds, nil
}

func (o *Project) Twin(m Memory) error {
	for _, each := range o.each() {
		if err := each.Twin(m); err != nil {
			return err
		}
	}
	return nil
}
