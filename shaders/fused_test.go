package shaders_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// block is the ops of a layer that have kernels of the fused scheme, at a capacity of so many rows: the norm, two projections
// of one type and one of another, and a mixture with a shared expert.
type block struct {
	norm    *shaders.RMSNorm
	project *shaders.Project
	gateUp  *shaders.ExpertGateUp
	down    *shaders.ExpertDown
}

func (b block) ops() []shaders.Op { return []shaders.Op{b.norm, b.project, b.gateUp, b.down} }

// blockWeights are the matrices of a block and the sizes that follow from them.
type blockWeights struct {
	project                   []shaders.Matrix
	gate, up, down            shaders.Matrix
	sharedGate, sharedUp, out shaders.Matrix
	norm                      shaders.View
}

// newBlock makes a block over rows of a step. Its outputs are matrices of their own that begin alike.
func newBlock(step shaders.View, w blockWeights, x, y shaders.Mat, ids, weights shaders.View, rows, k int, fill map[*shaders.Buffer][]byte) block {
	const capacity = 4
	name := func(s string) string { return fmt.Sprintf("%s of %d", s, rows) }
	width := 0
	for _, m := range w.project {
		width += m.Out
	}
	p := paddedMat(name("p"), capacity, width, 2, 3, fill)
	h := paddedMat(name("h"), capacity, k*w.gate.Out+w.sharedGate.Out, 1, 1, fill)
	y = sameMat(name("y"), y, fill)
	normed := shaders.Normed{Mat: paddedMat(name("normed"), capacity, x.Width, 0, 1, fill), Of: x, Weight: w.norm, Eps: 1e-3}
	return block{
		&shaders.RMSNorm{Step: step, X: x, Y: normed.Mat, Weight: w.norm, Rows: rows, Count: shaders.CountRows, Eps: normed.Eps, Folds: true},
		&shaders.Project{Step: step, W: w.project, X: normed, Y: p, Rows: rows, Count: shaders.CountRows},
		&shaders.ExpertGateUp{Step: step, Gate: w.gate, Up: w.up, SharedGate: w.sharedGate, SharedUp: w.sharedUp, X: normed, Ids: ids, H: h, Rows: rows, K: k},
		&shaders.ExpertDown{Step: step, W: w.down, Shared: w.out, Gate: p.Cols(width-1, 1), H: h, Ids: ids, Weights: weights,
			Parts: partsOf(rows, k, y.Width), Y: y, Rows: rows, K: k},
	}
}

// The fused scheme gives the bits of the others, with and without each of what it fuses: a sequence's tokens do not depend on
// how many are computed in a step. Its twin is that of the separate ops.
func TestFused(t *testing.T) {
	const in, k, experts = 512, 2, 3
	type fusedCase struct {
		name         string
		shared, last quant.Type // of the shared expert and of the last projection; -1: the type of the others
		up           quant.Type // of the up projections
		window       bool       // of two experts, which the shared one cannot go with
	}
	same := quant.Type(0xffff)
	cases := []fusedCase{
		{"all", same, same, same, false}, // the case of types that have but one
		{"other shared", quant.F32, quant.F32, same, false},
		{"two passes", same, quant.F16, quant.F32, false},
		{"windows", same, same, same, true},
	}
	// All kernels of the scheme are made of the lanes scheme's; types differ in what they bind.
	types := []quant.Type{quant.F32, quant.Q4_K, quant.NVFP4, quant.IQ2_S}
	if os.Getenv("CALDERA_LONG") == "1" {
		types = weightTypes()
	}
	for i, typ := range types {
		some, on := cases[:1], i+1 // on a rig in turn
		if typ == quant.F32 {
			some, on = cases, 0
		}
		for _, c := range some {
			of := func(other quant.Type) quant.Type {
				if other == same {
					return typ
				}
				return other
			}
			r := kerneltest.Rand(uint64(1000 + i))
			fill := map[*shaders.Buffer][]byte{}
			step, data := kerneltest.Step(t, shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(2), Pages: []int32{0}}}, nil)
			fill[step] = data
			norm := &shaders.Buffer{Name: "norm", Kind: shaders.Weight, Size: 4 * in}
			fill[norm] = kerneltest.Floats(kerneltest.Normal(r, in))
			w := blockWeights{
				project: []shaders.Matrix{
					expertStack(r, "p0", typ, in, 33, 0, fill), expertStack(r, "p1", typ, in, 20, 0, fill), expertStack(r, "p2", of(c.last), in, 1, 0, fill),
				},
				gate: expertStack(r, "gate", typ, in, 256, experts, fill), up: expertStack(r, "up", of(c.up), in, 256, experts, fill),
				down:       expertStack(r, "down", typ, 256, in, experts, fill),
				sharedGate: expertStack(r, "shared gate", of(c.shared), in, 512, 0, fill), sharedUp: expertStack(r, "shared up", of(c.shared), in, 512, 0, fill),
				out:  expertStack(r, "shared down", of(c.shared), 512, in, 0, fill),
				norm: norm.View(),
			}
			x, y := paddedMat("x", 4, in, 3, 2, fill), paddedMat("y", 4, in, 0, 5, fill)
			setRows(x, kerneltest.Normal(r, 2*in), fill)
			// The second row's first expert is none.
			ids := filledWords("ids", 4*k, []uint32{2, 0, experts, 1}, fill).View()
			weights := paddedMat("weights", 4, k, 0, 0, fill)
			setRows(weights, kerneltest.Normal(r, 4*k), fill)
			small, large := newBlock(step.View(), w, x, y, ids, weights.View, 2, k, fill), newBlock(step.View(), w, x, y, ids, weights.View, 4, k, fill)
			lower := func(o shaders.Op) shaders.Op { return o }
			if c.window {
				lower = func(o shaders.Op) shaders.Op {
					return smallDevice{o, 4096 + 2*512*max(w.gate.RowBytes(), w.down.RowBytes()), 65535}
				}
			}
			kc := kerneltest.Case{Name: typ.String() + " " + c.name, Fill: fill, Lanes: true, Few: true, Turn: on}
			for _, o := range append(small.ops(), large.ops()...) {
				kc.Ops = append(kc.Ops, lower(o))
			}
			for _, pair := range [][2]shaders.Mat{{small.project.Y, large.project.Y}, {small.gateUp.H, large.gateUp.H}, {small.down.Y, large.down.Y}} {
				kc.Check = append(kc.Check, kerneltest.Check{View: pair[0].Buf.View(), Tol: 2e-5}, kerneltest.Check{View: rowsFrom(pair[0], 2), Exact: true})
				kc.Same = append(kc.Same, [2]shaders.View{pair[0].Buf.View(), pair[1].Buf.View()})
			}
			kerneltest.Run(t, kc)
		}
	}
}

// The fused scheme takes the dispatches that it is for: one for two projections of a type, one for a whole half of a mixture,
// none for a norm.
func TestFusedCounts(t *testing.T) {
	r, fill := kerneltest.Rand(1), map[*shaders.Buffer][]byte{}
	const in, k = 512, 2
	m := func(typ quant.Type, in, out, experts int) shaders.Matrix {
		return expertStack(r, "w", typ, in, out, experts, fill)
	}
	w := blockWeights{
		project: []shaders.Matrix{m(quant.Q5_K, in, 32, 0), m(quant.Q4_K, in, 32, 0), m(quant.F32, in, 8, 0), m(quant.F32, in, 1, 0)},
		gate:    m(quant.Q4_K, in, 256, 3), up: m(quant.Q4_K, in, 256, 3), down: m(quant.Q6_K, 256, in, 3),
		sharedGate: m(quant.Q4_K, in, 256, 0), sharedUp: m(quant.Q4_K, in, 256, 0), out: m(quant.Q6_K, 256, in, 0),
		norm: (&shaders.Buffer{Size: 4 * in}).View(),
	}
	x, y := paddedMat("x", 4, in, 0, 0, fill), paddedMat("y", 4, in, 0, 0, fill)
	ids, weights := filledWords("ids", 4*k, nil, fill).View(), paddedMat("weights", 4, k, 0, 0, fill).View
	step := shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View()
	limits := [3]uint32{65535, 65535, 65535}
	for _, c := range []struct {
		name string
		p    shaders.Profile
		rows int
		want [4]int
	}{
		{"fused", shaders.Profile{LanesPerRow: true, Fuse: true}, 1, [4]int{0, 3, 1, 1}},
		{"two rows", shaders.Profile{LanesPerRow: true, Fuse: true}, 2, [4]int{0, 3, 1, 1}},
		{"many rows", shaders.Profile{LanesPerRow: true, Fuse: true}, 4, [4]int{1, 4, 2, 2}},
		{"few buffers", shaders.Profile{LanesPerRow: true}, 1, [4]int{1, 4, 2, 2}},
		{"rows", shaders.Profile{Fuse: true}, 1, [4]int{1, 4, 2, 2}},
	} {
		c.p.Subgroup, c.p.OneSubgroup, c.p.MaxBinding, c.p.MaxGroups = 32, true, 1<<27, limits
		for i, o := range newBlock(step, w, x, y, ids, weights, c.rows, k, fill).ops() {
			ds, err := o.Lower(&c.p)
			if err != nil || len(ds) != c.want[i] {
				t.Errorf("%s, %s: %d dispatches, want %d; %v", c.name, o.Kernel(), len(ds), c.want[i], err)
			}
			for _, d := range ds {
				module, err := shaders.Describe(d.Module)
				if err != nil || len(d.Bind) != module.Buffers || len(d.Push) != module.Params {
					t.Errorf("%s, %s: %d operands and %d parameters; %v", c.name, d.Module, len(d.Bind), len(d.Push), err)
				}
				if fused := c.want[0] == 0; fused != strings.HasSuffix(d.Module, ".fused") {
					t.Errorf("%s: module %s", c.name, d.Module)
				}
				if slices.ContainsFunc(d.Bind, func(o shaders.Operand) bool { return !o.Valid() }) {
					t.Errorf("%s, %s: an operand lies outside its memory", c.name, d.Module)
				}
			}
		}
	}
}

// A head with its norm in one workgroup gives the bits of the two kernels, outputs and states.
func TestDeltaHead(t *testing.T) {
	for i, c := range []struct {
		shape deltaShape
		runs  []shaders.Run
	}{
		{deltaShape{1, 1, 128, false, 4, 2, 2}, []shaders.Run{gdnRun(1, 2, false)}},
		{deltaShape{2, 6, 16, false, 4, 2, 2}, []shaders.Run{gdnRun(1, 1, false), gdnRun(0, 1, true)}},
		{deltaShape{2, 4, 21, true, 4, 2, 3}, []shaders.Run{gdnRun(2, 1, true), gdnRun(0, 1, false)}},
		{deltaShape{1, 3, 2, false, 4, 1, 1}, []shaders.Run{gdnRun(0, 2, true)}},
		{deltaShape{1, 1, 256, false, 4, 1, 1}, []shaders.Run{gdnRun(0, 1, false)}},
	} {
		s, fresh := c.shape, []int(nil)
		for _, r := range c.runs {
			if r.Fresh {
				fresh = append(fresh, r.Slot)
			}
		}
		k := newDeltaCase(uint64(300+i), s, 2, fresh)
		r := kerneltest.Rand(uint64(i))
		step, data := kerneltest.Step(t, shaders.StepShape{Rows: s.rows, Seqs: s.seqs, Pages: 1}, c.runs, nil)
		k.fill[step] = data
		z := paddedMat("z", s.rows, s.nv*s.d, 1, 2, k.fill)
		setRows(z, kerneltest.Normal(r, 2*s.nv*s.d), k.fill)
		norm := &shaders.Buffer{Name: "norm", Kind: shaders.Weight, Size: int64(4 * s.d)}
		k.fill[norm] = kerneltest.Floats(kerneltest.Normal(r, s.d))
		y := paddedMat("y", s.rows, s.nv*s.d, 3, 1, k.fill)
		make := func(rows int) *shaders.DeltaRule {
			o := *k.op
			o.Step, o.Rows, o.O = step.View(), rows, sameMat(fmt.Sprint("o ", rows), k.op.O, k.fill)
			state := *k.op.S.Buf
			k.fill[&state] = k.fill[k.op.S.Buf]
			o.S.Buf = &state
			o.Norm = &shaders.GatedNorm{Step: o.Step, O: o.O, Z: z, Y: sameMat(fmt.Sprint("y ", rows), y, k.fill), Weight: norm.View(),
				Rows: rows, Heads: s.nv, Dim: s.d, Eps: 1e-4}
			return &o
		}
		small, large := make(2), make(4)
		delete(k.fill, k.op.S.Buf)
		kerneltest.Run(t, kerneltest.Case{
			Name: fmt.Sprintf("%d heads of %d", s.nv, s.d), Ops: []shaders.Op{small, large}, Fill: k.fill, Lanes: true,
			Check: []kerneltest.Check{
				{View: small.Norm.Y.Slice(0, int64(2*small.Norm.Y.Stride-8)*4), Tol: 1e-5}, {View: rowsFrom(small.Norm.Y, 2), Exact: true}, {View: small.S, Tol: 2e-6},
			},
			Same: [][2]shaders.View{{small.Norm.Y.Buf.View(), large.Norm.Y.Buf.View()}, {small.S, large.S}},
		})
		p := &shaders.Profile{LanesPerRow: true, Fuse: true, OneSubgroup: true, Subgroup: 32, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
		for rows, want := range map[int]int{2: 1, 4: 2} {
			if ds, err := make(rows).Lower(p); err != nil || len(ds) != want {
				t.Errorf("%d rows of %d heads of %d: %d dispatches, want %d; %v", rows, s.nv, s.d, len(ds), want, err)
			}
		}
	}
}
