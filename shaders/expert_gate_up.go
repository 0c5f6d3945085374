package shaders

import (
	"fmt"
	"math"
)

// ExpertGateUp computes H[row][s] = silu(G X) * (U X), with G and U the matrices of expert Ids[row][s], for
// all K experts of all tokens in one dispatch (model-qwen35.md 5.3, the inner part of step 5). Without ids it
// is the first half of a dense or shared FFN: expert 0 and K = 1. An id that names no expert gives zeros.
//
// With Tiles (see [ExpertGroup]) it decodes the weights of an expert once for up to four pairs of a row and a slot
// instead of for each. The results are the same, bit for bit.
//
// Gate and Up may be views of one stack that holds both (see [Matrix.Rows]). Where they differ in block type
// or layout the op becomes two passes, the second of which takes G X from H.
type ExpertGateUp struct {
	Step     View
	Gate, Up Matrix // F x In, or a stack
	X        Mat    // rows x In
	Ids      View   // [Rows][K] uint32; zero when absent
	Tiles    View   // of the Ids, instead of them; zero when absent
	H        Mat    // rows x K*F
	Rows     int
	K        int
}

const (
	gateUpBoth = iota
	gateUpGate
	gateUpUp
)

func expertGateUpModules() []Module {
	return weightModules("expert_gate_up", 2, Module{Source: "expert_gate_up.comp", Buffers: 6, Params: 13})
}

func (o *ExpertGateUp) Kernel() string { return "expert_gate_up" }

func (o *ExpertGateUp) Operands() []Operand {
	ops := []Operand{R(o.Step), R(o.Gate.View), R(o.Up.View), R(o.X.View), W(o.H.View)}
	switch {
	case o.tiled():
		ops = append(ops, R(o.Tiles))
	case o.routed():
		ops = append(ops, R(o.Ids))
	}
	return append(append(ops, o.Gate.operands()...), o.Up.operands()...)
}

func (o *ExpertGateUp) routed() bool { return o.Ids.Buf != nil || o.tiled() }
func (o *ExpertGateUp) tiled() bool  { return o.Tiles.Buf != nil }
func (o *ExpertGateUp) layout() expertTiles {
	return tilesOf(o.Rows, o.K, o.Gate.stack())
}

func (o *ExpertGateUp) Cost() Cost {
	r, k, in, f := int64(o.Rows), int64(o.K), int64(o.Gate.In), int64(o.Gate.Out)
	used := min(r*k, int64(o.Gate.stack()))
	bytes := in + k*f
	if o.routed() {
		bytes += k
	} else {
		used = 1
	}
	return Cost{Weights: used * (o.Gate.used() + o.Up.used()), Bytes: 4 * r * bytes, Flops: 4 * r * k * in * f}
}

// stack is the number of experts; a plain matrix is a stack of one.
func (m Matrix) stack() int { return max(m.Experts, 1) }

// checkStack refuses what no kernel can read, experts beyond the view included.
func (m Matrix) checkStack() error {
	if err := m.check(); err != nil {
		return err
	}
	if need := int64(m.stack()-1)*m.expertBytes() + m.used(); need > m.Len {
		return fmt.Errorf("tensor %s: %d experts take %d bytes, the tensor has %d", m.Name, m.stack(), need, m.Len)
	}
	return nil
}

// only returns the first expert as a plain matrix.
func (m Matrix) only() Matrix {
	m.View = m.Slice(0, m.used())
	m.Experts, m.ExpertRows = 0, 0
	return m
}

func (o *ExpertGateUp) check() error {
	for _, m := range []Matrix{o.Gate, o.Up} {
		if err := m.checkStack(); err != nil {
			return err
		}
	}
	g, u := o.Gate, o.Up
	switch {
	case g.In != u.In || g.Out != u.Out || g.stack() != u.stack():
		return fmt.Errorf("expert_gate_up: %s is %d of %d x %d, %s is %d of %d x %d", g.Name, g.stack(), g.Out, g.In, u.Name, u.stack(), u.Out, u.In)
	case o.K < 1 || o.X.Width != g.In || o.H.Width != o.K*g.Out:
		return fmt.Errorf("expert_gate_up %s: %d x %d weights of %d experts between widths %d and %d", g.Name, g.Out, g.In, o.K, o.X.Width, o.H.Width)
	case !o.X.holds(o.Rows) || !o.H.holds(o.Rows):
		return fmt.Errorf("expert_gate_up %s: matrices of %d and %d bytes do not hold %d rows", g.Name, o.X.Len, o.H.Len, o.Rows)
	case o.tiled() && o.Tiles.Len < TilesBytes(o.Rows, o.K, g.stack()):
		return fmt.Errorf("expert_gate_up %s: tiles of %d bytes for %d rows of %d of %d experts", g.Name, o.Tiles.Len, o.Rows, o.K, g.stack())
	case o.routed() && !o.tiled() && o.Ids.Len < int64(o.Rows)*int64(o.K)*4:
		return fmt.Errorf("expert_gate_up %s: ids of %d bytes for %d rows of %d experts", g.Name, o.Ids.Len, o.Rows, o.K)
	case !o.routed() && o.K != 1:
		return fmt.Errorf("expert_gate_up %s: %d experts without ids", g.Name, o.K)
	}
	return nil
}

func (o *ExpertGateUp) Lower(p *Profile) ([]Dispatch, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	gate, up := o.Gate, o.Up
	if !o.routed() {
		gate, up = gate.only(), up.only()
	}
	if gate.Type == up.Type && gate.expertBytes() == up.expertBytes() {
		return o.pass(p, gateUpBoth, gate, up)
	}
	ds, err := o.pass(p, gateUpGate, gate, gate)
	if err != nil {
		return nil, err
	}
	second, err := o.pass(p, gateUpUp, up, up)
	return append(ds, second...), err
}

// pass lowers one pass over matrices of the same type and layout: windows of experts, or of rows without ids.
func (o *ExpertGateUp) pass(p *Profile, mode uint32, gate, up Matrix) ([]Dispatch, error) {
	cut := Matrix.rowWindows
	if o.routed() {
		cut = Matrix.expertWindows
	}
	if err := p.loops("expert_gate_up "+gate.Name, 2*(gate.In/32+1)); err != nil {
		return nil, err
	}
	gates, err := cut(gate, p.MaxBinding)
	if err != nil {
		return nil, err
	}
	ups, err := cut(up, p.MaxBinding)
	if err != nil {
		return nil, err
	}
	access := Write
	if mode == gateUpUp {
		access = ReadWrite
	}
	scheme := p.weightScheme(gate.Type)
	var ds []Dispatch
	for i, w := range gates {
		// add appends the dispatch over ny groups of so many tokens, or pairs, at once.
		add := func(h Mat, rows, tokens, ny int, ids Operand, first, bound int, routed, tiles uint32) error {
			spec, gx := p.pairSpec(scheme, rows, tokens, mode)
			groups, err := p.grid("expert_gate_up", gx, ny, 1)
			if err != nil {
				return err
			}
			ds = append(ds, Dispatch{
				Module: weightModule("expert_gate_up", gate.Type, scheme),
				Spec:   spec,
				Bind:   append([]Operand{R(o.Step), R(w.view), R(ups[i].view), R(o.X.View), ids, {h.View, access}}, extras(first, gate, up)...),
				Push: []uint32{uint32(rows), uint32(gate.In), uint32(gate.RowBytes()), uint32(gate.expertBytes()),
					uint32(o.X.Stride), uint32(o.H.Stride), uint32(o.K), uint32(gate.Out),
					uint32(first), uint32(bound), uint32(gate.stack()), routed, tiles},
				Groups: groups,
			})
			return nil
		}
		switch {
		case o.tiled():
			t := o.layout()
			for kind, width := range tileWidths {
				if t.most(kind) > 0 && err == nil {
					err = add(o.H, gate.Out, width, t.most(kind), R(o.Tiles), w.first, w.rows, 2, uint32(t.at(kind)))
				}
			}
		case o.routed():
			err = add(o.H, gate.Out, 1, o.Rows*o.K, R(o.Ids), w.first, w.rows, 1, 0)
		default:
			tokens := 1
			if o.Rows > 1 {
				tokens = matmulTokens
			}
			err = add(o.H.Cols(w.first, w.rows), w.rows, tokens, ceilDiv(o.Rows, tokens), R(o.X.View), 0, 1, 0, 0)
		}
		if err != nil {
			return nil, err
		}
	}
	return ds, nil
}

// pairSpec is weightSpec for kernels whose tokens at once are chosen by the op, and whose mode follows.
func (p *Profile) pairSpec(s scheme, rows, tokens int, mode uint32) (spec []uint32, groups int) {
	spec, groups = p.weightSpec(s, rows, tokens)
	spec[len(spec)-1] = uint32(tokens)
	return append(spec, mode), groups
}

func (o *ExpertGateUp) Twin(m Memory) error {
	n := ViewStep(m, o.Step).Rows() * o.K
	var pairs map[int][]int
	var none []int
	switch {
	case o.tiled():
		pairs, none = o.layout().byExpert(U32(m, o.Tiles), n)
	case o.routed():
		pairs, none = pairsByExpert(U32(m, o.Ids)[:n], o.Gate.stack())
	default:
		pairs, none = pairsByExpert(make([]uint32, n), 1)
	}
	gw, uw, x, h := o.Gate.contents(m), o.Up.contents(m), F32(m, o.X.View), F32(m, o.H.View)
	return parallel(o.Gate.Out, func(from, to int) error {
		g, u := make([]float32, o.Gate.In), make([]float32, o.Gate.In)
		for f := from; f < to; f++ {
			out := func(pair int) *float32 { return &h[pair/o.K*o.H.Stride+pair%o.K*o.Gate.Out+f] }
			for _, i := range none {
				*out(i) = 0
			}
			for e, of := range pairs {
				if err := gw.row(g, e, f); err != nil {
					return err
				}
				if err := uw.row(u, e, f); err != nil {
					return err
				}
				for _, i := range of {
					xr := o.X.row(x, i/o.K)
					a := dot(g, xr)
					*out(i) = float32(a / (1 + math.Exp(-a)) * dot(u, xr))
				}
			}
		}
		return nil
	})
}

// pairsByExpert groups the indices of ids by expert, so that a twin dequantises each used row once; none are
// those whose id names no expert.
func pairsByExpert(ids []uint32, experts int) (pairs map[int][]int, none []int) {
	pairs = map[int][]int{}
	for i, e := range ids {
		if uint64(e) >= uint64(experts) {
			none = append(none, i)
			continue
		}
		pairs[int(e)] = append(pairs[int(e)], i)
	}
	return pairs, none
}
