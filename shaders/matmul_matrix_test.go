package shaders_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// matrixTol is what products with cooperative matrices may differ by. The largest difference seen is 3.1e-7, on llvmpipe; without the lower
// halves of the inputs it is 2e-4.
const matrixTol = 1e-6

// matrixCase is a product: its weights, the rows that the plan has room for and the tokens of the step.
type matrixCase struct {
	in, out, rows, tokens int
	add, factor, gate     bool
}

// Cooperative matrices give what the twin gives, with weights and tokens that are no multiples of what a workgroup takes.
func TestMatrix(t *testing.T) {
	cases := []matrixCase{
		{512, 70, 40, 37, true, true, false}, // the case of types that have but one
		{256, 1, 64, 64, false, false, false},
		{1024, 64, 33, 1, false, true, true},
		{768, 131, 80, 69, false, false, false},
		{256, 33, 96, 95, true, true, true},
	}
	for _, typ := range weightTypes() {
		for _, c := range cases[:casesOf(typ, len(cases))] {
			name := fmt.Sprintf("%v/%dx%d/%dof%d", typ, c.out, c.in, c.tokens, c.rows)
			t.Run(name, func(t *testing.T) {
				r := kerneltest.Rand(uint64(c.in*c.out + c.tokens))
				testMatrix(t, r, typ, c, kerneltest.Normal(r, c.rows*(c.in+7)))
			})
		}
	}
}

// testMatrix runs a product with inputs x, rows of 7 more columns than it has weights.
func testMatrix(t *testing.T, r *rand.Rand, typ quant.Type, c matrixCase, in []float32) {
	w, wdata := randomMatrix(r, typ, c.in, c.out, 0)
	step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: c.rows, Seqs: 1, Outs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(c.tokens), Pages: []int32{0}}}, nil)
	// X and Y are columns of wider matrices; what is beside them, and rows past the step's, stays.
	x, y := shaders.NewMat("x", shaders.Scratch, c.rows, c.in+7), shaders.NewMat("y", shaders.Scratch, c.rows, c.out+5)
	f := shaders.NewMat("f", shaders.Scratch, c.rows, 2)
	op := &shaders.MatMul{Step: step.View(), W: w, X: x.Cols(3, c.in), Y: y.Cols(2, c.out), Rows: c.rows, Count: shaders.CountRows, Accumulate: c.add, Gate: c.gate}
	if c.factor {
		op.Factor = f.Cols(1, 1)
	}
	fill := map[*shaders.Buffer][]byte{
		step: sdata, w.Buf: wdata, x.Buf: kerneltest.Floats(in),
		y.Buf: kerneltest.Floats(kerneltest.Normal(r, c.rows*(c.out+5))), f.Buf: kerneltest.Floats(kerneltest.Normal(r, c.rows*2)),
	}
	withFactors(r, &op.W, fill)
	kerneltest.Run(t, kerneltest.Case{Name: "matrix", Matrices: true, Ops: []shaders.Op{op}, Fill: fill, Check: []kerneltest.Check{{View: y.View, Tol: matrixTol}}})
}

// Inputs of any size are taken: a row's are brought to where halves are exact, so one row's do not count for another's, and
// small ones beside large ones do as in float32.
func TestMatrixRange(t *testing.T) {
	const in, out, rows, extra = 512, 40, 48, 7
	for _, typ := range []quant.Type{quant.F32, quant.Q8_0, quant.Q4_K} {
		r := kerneltest.Rand(21)
		w, wdata := randomMatrix(r, typ, in, out, 0)
		step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(rows), Pages: []int32{0}}}, nil)
		x, y := shaders.NewMat("x", shaders.Scratch, rows, in+extra), shaders.NewMat("y", shaders.Scratch, rows, out)
		xv := kerneltest.Normal(r, rows*(in+extra))
		sizes := []float64{1, 1e-30, 3e5, 1e20, 0, 7e-9, 1, 1}
		for row := range rows {
			v := xv[row*(in+extra) : (row+1)*(in+extra)]
			for i := range v {
				v[i] *= float32(sizes[row%len(sizes)])
				if row%len(sizes) == 6 && i%64 != 0 {
					v[i] *= 1e-4 // beside a few that are ten thousand times as large
				}
			}
		}
		op := &shaders.MatMul{Step: step.View(), W: w, X: x.Cols(extra, in), Y: y, Rows: rows, Count: shaders.CountRows}
		var checks []kerneltest.Check // each row against its own size
		for row := range rows {
			checks = append(checks, kerneltest.Check{View: y.Slice(int64(row*out)*4, out*4), Tol: matrixTol})
		}
		kerneltest.Run(t, kerneltest.Case{Name: typ.String(), Matrices: true, Ops: []shaders.Op{op}, Check: checks,
			Fill: map[*shaders.Buffer][]byte{step: sdata, w.Buf: wdata, x.Buf: kerneltest.Floats(xv)}})
	}
}

// A row's bits are its own: they do not depend on the other rows, on how many there are, or on the window that its weights are in.
func TestMatrixAlone(t *testing.T) {
	const in, out, rows, at = 1024, 400, 37, 20
	for _, typ := range []quant.Type{quant.F16, quant.Q6_K} {
		r := kerneltest.Rand(22)
		w, wdata := randomMatrix(r, typ, in, out, 0)
		step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(rows), Pages: []int32{0}}}, nil)
		x, y := shaders.NewMat("x", shaders.Scratch, rows, in), shaders.NewMat("y", shaders.Scratch, rows, out)
		// The second product has row `at` as its first, and fewer others.
		other, z := shaders.NewMat("other", shaders.Scratch, rows, in), shaders.NewMat("z", shaders.Scratch, rows, out)
		xv, ov := kerneltest.Normal(r, rows*in), make([]float32, rows*in)
		copy(ov, xv[at*in:])
		ops := []shaders.Op{
			&shaders.MatMul{Step: step.View(), W: w, X: x, Y: y, Rows: rows, Count: shaders.CountRows},
			&shaders.MatMul{Step: step.View(), W: w.Rows(0, 361), X: other, Y: z.Cols(0, 361), Rows: rows, Count: shaders.CountRows},
		}
		kerneltest.Run(t, kerneltest.Case{Name: typ.String(), Matrices: true, Binding: 160 << 10, Ops: ops,
			Fill:  map[*shaders.Buffer][]byte{step: sdata, w.Buf: wdata, x.Buf: kerneltest.Floats(xv), other.Buf: kerneltest.Floats(ov)},
			Check: []kerneltest.Check{{View: y.View, Tol: matrixTol}, {View: z.View, Tol: matrixTol}},
			Same:  [][2]shaders.View{{y.Slice(at*out*4, 361*4), z.Slice(0, 361*4)}},
		})
	}
}

// Plans of few rows, inputs in whole numbers and rows too long for the device keep their schemes, and windows are cut as for others.
func TestMatrixChosen(t *testing.T) {
	base := shaders.Profile{Subgroup: 32, OneSubgroup: true, LanesPerRow: true, MaxBinding: 1 << 30, MaxGroups: [3]uint32{65535, 65535, 65535},
		Matrices: shaders.MatrixShape{M: 16, N: 16, K: 16}}
	r := kerneltest.Rand(23)
	for _, c := range []struct {
		name       string
		typ        quant.Type
		rows       int
		change     func(*shaders.Profile, *shaders.MatMul)
		groups, of int // workgroups in weight rows and tokens, of each dispatch
		dispatches int
		isMatrices bool
	}{
		{"many", quant.Q4_K, 65, nil, 5, 2, 1, true},
		{"least", quant.IQ3_S, 32, nil, 5, 1, 1, true},
		{"few", quant.Q4_K, 31, nil, 0, 0, 1, false},
		{"off", quant.Q4_K, 65, func(p *shaders.Profile, _ *shaders.MatMul) { p.Matrices = shaders.MatrixShape{} }, 0, 0, 1, false},
		{"loops", quant.F32, 65, func(p *shaders.Profile, _ *shaders.MatMul) { p.MaxLoops = 300 }, 0, 0, 1, false},
		{"windows", quant.Q4_K, 65, func(p *shaders.Profile, o *shaders.MatMul) { p.MaxBinding = 4096 + 100*o.W.RowBytes() }, 2, 2, 3, true},
	} {
		p := base
		w, _ := randomMatrix(r, c.typ, 512, 300, 0)
		op := &shaders.MatMul{Step: (&shaders.Buffer{Size: 64}).View(), W: w, X: shaders.NewMat("x", shaders.Scratch, c.rows, 512), Y: shaders.NewMat("y", shaders.Scratch, c.rows, 300), Rows: c.rows}
		if c.change != nil {
			c.change(&p, op)
		}
		ds, err := op.Lower(&p)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(ds) != c.dispatches {
			t.Errorf("%s: %d dispatches, want %d", c.name, len(ds), c.dispatches)
		}
		for _, d := range ds {
			if got := strings.HasSuffix(d.Module, ".matrix"); got != c.isMatrices {
				t.Errorf("%s: module %s", c.name, d.Module)
			} else if got && (int(d.Groups[0]) != c.groups || int(d.Groups[1]) != c.of || fmt.Sprint(d.Spec) != "[128 16 16 16]") {
				t.Errorf("%s: %v workgroups, constants %v; want %d x %d", c.name, d.Groups, d.Spec, c.groups, c.of)
			}
		}
	}
	for _, s := range shaders.MatrixShapes() {
		if n := s.SharedBytes(); n > 32<<10 {
			t.Errorf("%v: %d bytes of shared memory", s, n)
		}
	}
}
