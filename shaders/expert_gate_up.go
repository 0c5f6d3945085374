package shaders

import (
	"fmt"
	"math"
	"slices"
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
//
// The shared expert's part of H, which has no id, lies behind the slots (step 6).
type ExpertGateUp struct {
	Step     View
	Gate, Up Matrix // F x In, or a stack
	// SharedGate and SharedUp are the matrices of the shared expert, of FS rows; zero when absent.
	SharedGate, SharedUp Matrix
	X                    Normed // rows x In
	Ids                  View   // [Rows][K] uint32; zero when absent
	Tiles                View   // of the Ids, instead of them; zero when absent
	H                    Mat    // rows x (K*F + FS)
	Rows                 int
	K                    int
	Packed               Mat  // the op's own, for its inputs in whole numbers (see [NewPacked]); zero without
	isPacked             bool // they are there already
}

const (
	gateUpBoth = iota
	gateUpGate
	gateUpUp
)

func expertGateUpModules() []Module {
	return weightModules("expert_gate_up", 2, Module{Source: "expert_gate_up.comp", Buffers: 6, Params: 13}, fusion{matrices: 2, buffers: 9, params: 15})
}

func (o *ExpertGateUp) Kernel() string { return "expert_gate_up" }

func (o *ExpertGateUp) Operands() []Operand {
	ops := append([]Operand{R(o.Step), R(o.Gate.View), R(o.Up.View), W(o.H.View)}, o.X.operands()...)
	switch {
	case o.tiled():
		ops = append(ops, R(o.Tiles))
	case o.routed():
		ops = append(ops, R(o.Ids))
	}
	ops = append(append(ops, o.Gate.operands()...), o.Up.operands()...)
	if o.hasShared() {
		shared := o.shared().Operands()
		ops = append(append(ops, shared[1:3]...), append(o.SharedGate.operands(), o.SharedUp.operands()...)...)
	}
	if o.packs() {
		ops = append(ops, W(o.Packed.View))
	}
	return ops
}

// packs reports whether a matrix takes inputs in whole numbers.
func (o *ExpertGateUp) packs() bool {
	return slices.ContainsFunc([]Matrix{o.Gate, o.Up, o.SharedGate, o.SharedUp}, func(w Matrix) bool { return w.packs(o.Packed) })
}

// Contents says that what is Packed is the dispatches' own.
func (o *ExpertGateUp) Contents(operand int) Content { return packedLast(o, o.packs(), operand) }

func (o *ExpertGateUp) hasShared() bool { return o.SharedGate.Buf != nil }

// shared is the shared expert's part as an op of its own.
func (o *ExpertGateUp) shared() *ExpertGateUp {
	return &ExpertGateUp{Step: o.Step, Gate: o.SharedGate, Up: o.SharedUp, X: o.X, H: o.H.Cols(o.K*o.Gate.Out, o.SharedGate.Out), Rows: o.Rows, K: 1, Packed: o.Packed}
}

// slots is the op without the shared expert.
func (o *ExpertGateUp) slots() *ExpertGateUp {
	s := *o
	s.SharedGate, s.SharedUp, s.H = Matrix{}, Matrix{}, o.H.Cols(0, o.K*o.Gate.Out)
	return &s
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
	c := Cost{Weights: used * (o.Gate.used() + o.Up.used()), Bytes: 4 * r * bytes, Flops: 4 * r * k * in * f}
	if o.hasShared() {
		c = c.Plus(o.shared().Cost())
	}
	return c
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
	case o.X.Of.Buf != nil && (o.X.Of.Width != g.In || o.X.Weight.Len != 4*int64(g.In)):
		return fmt.Errorf("expert_gate_up %s: inputs of %d are the norm of rows of %d, with a weight of %d bytes", g.Name, g.In, o.X.Of.Width, o.X.Weight.Len)
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
	if o.hasShared() {
		slots, shared := o.slots(), o.shared()
		for _, part := range []*ExpertGateUp{slots, shared} {
			if err := part.check(); err != nil {
				return nil, err
			}
		}
		if o.H.Width != slots.H.Width+shared.H.Width {
			return nil, fmt.Errorf("expert_gate_up %s: %d experts of %d and a shared one of %d in rows of %d", o.Gate.Name, o.K, o.Gate.Out, o.SharedGate.Out, o.H.Width)
		}
		if slots.takes(p, shared) {
			return slots.pass(p, gateUpBoth, o.Gate, o.Up, shared)
		}
		ds, err := slots.Lower(p)
		if err != nil {
			return nil, err
		}
		shared.isPacked = slots.packs()
		rest, err := shared.Lower(p)
		return append(ds, rest...), err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.packs() && !o.isPacked {
		d, err := p.pack(o.Step, o.X.Mat, o.Packed, o.Rows, CountRows)
		if err != nil {
			return nil, err
		}
		after := *o
		after.isPacked = true
		ds, err := after.Lower(p)
		return append([]Dispatch{d}, ds...), err
	}
	gate, up := o.Gate, o.Up
	if !o.routed() {
		gate, up = gate.only(), up.only()
	}
	if gate.alike(up) {
		return o.pass(p, gateUpBoth, gate, up, nil)
	}
	ds, err := o.pass(p, gateUpGate, gate, gate, nil)
	if err != nil {
		return nil, err
	}
	second, err := o.pass(p, gateUpUp, up, up, nil)
	return append(ds, second...), err
}

// alike reports whether one pass can read both matrices.
func (m Matrix) alike(n Matrix) bool { return m.Type == n.Type && m.expertBytes() == n.expertBytes() }

// takes reports whether a kernel over the slots' experts can take the shared one with them.
func (o *ExpertGateUp) takes(p *Profile, shared *ExpertGateUp) bool {
	if !o.X.folds(p, o.Rows) || !o.routed() || o.tiled() || HasScale(o.Gate.Type) || !o.Gate.alike(o.Up) {
		return false
	}
	if w, err := o.Gate.expertWindows(p.MaxBinding); err != nil || len(w) != 1 {
		return false
	}
	if w, err := o.Up.expertWindows(p.MaxBinding); err != nil || len(w) != 1 {
		return false
	}
	return o.Gate.pairs(shared.Gate, p) && o.Gate.pairs(shared.Up, p)
}

// pass lowers one pass over matrices of the same type and layout: windows of experts, or of rows without ids. The shared
// expert is nil unless the slots take it with them.
func (o *ExpertGateUp) pass(p *Profile, mode uint32, gate, up Matrix, shared *ExpertGateUp) ([]Dispatch, error) {
	cut := Matrix.rowWindows
	if o.routed() {
		cut = Matrix.expertWindows
	}
	loops := 2 * (gate.In/32 + 1)
	if o.X.folds(p, o.Rows) {
		loops += gate.In/int(p.Subgroup) + 1
	}
	if err := p.loops("expert_gate_up "+gate.Name, loops); err != nil {
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
	way, x := p.way(o.use(gate)).reading(o.X.Mat), o.X.Mat
	if gate.packs(o.Packed) {
		x = o.Packed
	}
	if o.X.folds(p, o.Rows) {
		way.Scheme, x = fusedScheme, o.X.Of
	}
	var ds []Dispatch
	for i, w := range gates {
		// add appends the dispatch over ny groups of so many tokens, or pairs, at once.
		add := func(h Mat, rows, tokens, ny int, ids Operand, first, bound int, routed, tiles uint32) error {
			d := Dispatch{
				Module: weightModule("expert_gate_up", gate.Type, way.Scheme),
				Use:    o.use(gate),
				Bind:   []Operand{R(o.Step), R(w.view), R(ups[i].view), R(x.View), ids, {h.View, access}},
				Push: []uint32{uint32(rows), uint32(gate.In), uint32(gate.RowBytes()), uint32(gate.expertBytes()),
					uint32(x.Stride), uint32(o.H.Stride), uint32(o.K), uint32(gate.Out),
					uint32(first), uint32(bound), uint32(gate.stack()), routed, tiles},
			}
			third, fourth, sharedRows := w.view, w.view, 0
			if shared != nil {
				third, fourth, sharedRows = shared.Gate.only().View, shared.Up.only().View, shared.Gate.Out
				d.Bind[5] = Operand{o.H.Cols(0, o.H.Width+sharedRows).View, access}
				rows, ny = max(rows, sharedRows), ny+o.Rows
			}
			var gx int
			d.Spec, gx = p.spec(way, rows, tokens)
			d.Spec = append(d.Spec, mode)
			if n := p.blocksAtOnce(way, gate, tokens); n > 0 {
				d.Spec = append(d.Spec, n)
			}
			if way.Scheme == fusedScheme {
				d.Bind = append(d.Bind, R(o.X.Weight), R(third), R(fourth))
				d.Push = append(d.Push, uint32(sharedRows), math.Float32bits(o.X.Eps))
			}
			d.Bind = append(d.Bind, extras(first, gate, up)...)
			d.Groups, err = p.grid("expert_gate_up", gx, ny, 1)
			ds = append(ds, d)
			return err
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
			tokens := way.TokensAt(o.Rows)
			err = add(o.H.Cols(w.first, w.rows), w.rows, tokens, ceilDiv(o.Rows, tokens), R(o.X.View), 0, 1, 0, 0)
		}
		if err != nil {
			return nil, err
		}
	}
	return ds, nil
}

func (o *ExpertGateUp) Twin(m Memory) error {
	if o.hasShared() {
		if err := o.slots().Twin(m); err != nil {
			return err
		}
		return o.shared().Twin(m)
	}
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
	gate, up := o.Gate.products(m, o.X.Mat, o.Packed, n/o.K), o.Up.products(m, o.X.Mat, o.Packed, n/o.K)
	h := F32(m, o.H.View)
	return parallel(o.Gate.Out, func(from, to int) error {
		g, u := gate.weightRow(), up.weightRow()
		for f := from; f < to; f++ {
			out := func(pair int) *float32 { return &h[pair/o.K*o.H.Stride+pair%o.K*o.Gate.Out+f] }
			for _, i := range none {
				*out(i) = 0
			}
			for e, of := range pairs {
				if err := g.load(e, f); err != nil {
					return err
				}
				if err := u.load(e, f); err != nil {
					return err
				}
				for _, i := range of {
					a := g.dot(i/o.K, 0)
					*out(i) = float32(a / (1 + math.Exp(-a)) * u.dot(i/o.K, 0))
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
