package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// llvmpipe leaves all loops of an invocation without an error once it has gone around them 65535 times in
// all. These tests run the loops of the largest steps and of the longest rows that models have.

func TestDeltaRuleLongRun(t *testing.T) {
	const rows, dim = 512, 128
	r := kerneltest.Rand(11)
	step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 2},
		[]shaders.Run{{Tokens: kerneltest.Tokens(rows), Pages: []int32{0, 1}}}, nil)
	width := 3*dim + 2
	in := kerneltest.Normal(r, rows*width)
	for row := range rows {
		x := in[row*width : (row+1)*width]
		for i := range x {
			x[i] /= float32(math.Sqrt(dim))
		}
		x[3*dim], x[3*dim+1] = float32(0.9+0.1*r.Float64()), float32(r.Float64())
	}
	qkv := shaders.NewMat("qkv", shaders.Scratch, rows, width)
	s := &shaders.Buffer{Name: "s", Kind: shaders.State, Size: 4 * dim * dim}
	o := shaders.NewMat("o", shaders.Scratch, rows, dim)
	kerneltest.Run(t, kerneltest.Case{
		Name: "run",
		Ops:  []shaders.Op{&shaders.DeltaRule{Step: step.View(), QKV: qkv, S: s.View(), O: o, Rows: rows, Seqs: 1, Slots: 1, KHeads: 1, VHeads: 1, Dim: dim}},
		Fill: map[*shaders.Buffer][]byte{step: sdata, qkv.Buf: kerneltest.Floats(in), s: kerneltest.Floats(kerneltest.Normal(r, dim*dim))},
		Check: []kerneltest.Check{
			{View: o.View, Tol: 5e-6}, {View: o.Slice(4*dim*(rows-40), 4*dim*40), Tol: 5e-6}, {View: s.View(), Tol: 5e-6},
		},
	})
}

func TestAttentionLongContext(t *testing.T) {
	const dim, pages, rows = 256, 24, 3
	pos := pages*shaders.PageTokens - rows
	r := kerneltest.Rand(12)
	list := make([]int32, pages)
	for i := range list {
		list[i] = int32(pages - 1 - i)
	}
	step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: pages},
		[]shaders.Run{{Pos: pos, Tokens: kerneltest.Tokens(rows), Pages: list}}, nil)
	q, p := shaders.NewMat("q", shaders.Scratch, rows, dim), shaders.NewMat("p", shaders.Scratch, rows, 2*dim)
	y, carry := shaders.NewAttentionOut("y", rows, 1, dim)
	n := pages * shaders.PageTokens * dim
	k := &shaders.Buffer{Name: "k", Kind: shaders.State, Size: int64(4 * n)}
	v := &shaders.Buffer{Name: "v", Kind: shaders.State, Size: int64(4 * n)}
	kerneltest.Run(t, kerneltest.Case{
		Name: "context",
		Ops: []shaders.Op{&shaders.Attention{Step: step.View(), Q: q, P: p, Hot: shaders.KVPool{K: k.View(), V: v.View()}, Y: y, Carry: carry,
			Rows: rows, Heads: 1, KVHeads: 1, Dim: dim, Scale: 1.0 / 16, MaxTokens: pages * shaders.PageTokens}},
		Fill: map[*shaders.Buffer][]byte{step: sdata, q.Buf: kerneltest.Floats(kerneltest.Normal(r, rows*dim)), p.Buf: kerneltest.Floats(kerneltest.Normal(r, rows*2*dim)),
			k: kerneltest.Floats(kerneltest.Normal(r, n)), v: kerneltest.Floats(kerneltest.Normal(r, n))},
		Check: []kerneltest.Check{{View: y.View, Tol: 1e-5}},
	})
}

// Rows longer than any model's: the loops over the weights of a block must not count.
func TestMatMulLongRows(t *testing.T) {
	const in, out = 32768, 3
	// TestLoad32IsStraight holds the other types to this one's loops.
	for _, typ := range []quant.Type{quant.F32, quant.Q8_0} {
		for _, tokens := range []int{1, 4} {
			r := kerneltest.Rand(13)
			w, wdata := randomMatrix(r, typ, in, out, 0)
			step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: tokens, Seqs: 1, Outs: 1, Pages: 1},
				[]shaders.Run{{Tokens: kerneltest.Tokens(tokens), Pages: []int32{0}}}, nil)
			x, y := shaders.NewMat("x", shaders.Scratch, tokens, in), shaders.NewMat("y", shaders.Scratch, tokens, out)
			kerneltest.Run(t, kerneltest.Case{
				Name:  fmt.Sprintf("%v/%d", typ, tokens),
				Ops:   []shaders.Op{&shaders.MatMul{Step: step.View(), W: w, X: x, Y: y, Rows: tokens}},
				Fill:  map[*shaders.Buffer][]byte{step: sdata, w.Buf: wdata, x.Buf: kerneltest.Floats(kerneltest.Normal(r, tokens*in))},
				Check: []kerneltest.Check{{View: y.View, Tol: 1e-5}},
			})
		}
	}
}

// Ten experts of a width beyond any model's, in one sum.
func TestExpertDownLong(t *testing.T) {
	const in, out, k = 4096, 3, 10
	for _, typ := range []quant.Type{quant.F32, quant.Q4_K, quant.Q6_K} {
		r := kerneltest.Rand(14)
		w, wdata := randomMatrix(r, typ, in, out, k)
		step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1},
			[]shaders.Run{{Tokens: kerneltest.Tokens(1), Pages: []int32{0}}}, nil)
		h, y := shaders.NewMat("h", shaders.Scratch, 1, k*in), shaders.NewMat("y", shaders.Scratch, 1, out)
		ids, weights := shaders.NewMat("ids", shaders.Scratch, 1, k), shaders.NewMat("weights", shaders.Scratch, 1, k)
		kerneltest.Run(t, kerneltest.Case{
			Name: typ.String(),
			Ops:  []shaders.Op{&shaders.ExpertDown{Step: step.View(), W: w, H: h, Ids: ids.View, Weights: weights.View, Parts: partsOf(1, k, out), Y: y, Rows: 1, K: k}},
			Fill: map[*shaders.Buffer][]byte{step: sdata, w.Buf: wdata, h.Buf: kerneltest.Floats(kerneltest.Normal(r, k*in)),
				ids.Buf: kerneltest.Words([]uint32{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}), weights.Buf: kerneltest.Floats(kerneltest.Normal(r, k))},
			Check: []kerneltest.Check{{View: y.View, Tol: 1e-5}},
		})
	}
}

// What cannot be cut and would go around too often is refused instead of computed wrongly.
func TestLoopsRefused(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 30, MaxGroups: [3]uint32{65535, 65535, 65535}, MaxLoops: 60000}
	step := shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1}.NewBuffer().View()
	mat := func(width int) shaders.Mat { return shaders.NewMat("m", shaders.Scratch, 1, width) }
	for name, op := range map[string]shaders.Op{
		"rmsnorm": &shaders.RMSNorm{Step: step, X: mat(1 << 20), Y: mat(1 << 20), Weight: mat(1 << 20).View, Rows: 1, Count: shaders.CountRows},
		"router":  &shaders.Router{Step: step, Logits: mat(2048), Ids: mat(1024).View, Weights: mat(1024).View, Rows: 1, Experts: 2048, K: 1024},
	} {
		if _, err := op.Lower(p); err == nil {
			t.Errorf("%s was lowered", name)
		}
		free := *p
		free.MaxLoops = 0
		if _, err := op.Lower(&free); err != nil {
			t.Errorf("%s without a limit: %v", name, err)
		}
	}
}
