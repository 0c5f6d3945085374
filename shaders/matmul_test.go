package shaders_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// randomMatrix returns a matrix, or stack of experts, and its bytes.
func randomMatrix(r *rand.Rand, t quant.Type, in, out, experts int) (shaders.Matrix, []byte) {
	data := randomTable(r, t, out*max(experts, 1), in)
	size := (len(data) + 3) &^ 3
	padded := shaders.AlignedBytes(int64(size))
	copy(padded, data)
	b := &shaders.Buffer{Name: "w." + t.String(), Kind: shaders.Weight, Size: int64(size)}
	return shaders.Matrix{View: b.View(), Name: b.Name, Type: t, In: in, Out: out, Experts: experts}, padded
}

// dequantised returns all weights of a matrix, row by row.
func dequantised(t *testing.T, m shaders.Matrix, data []byte) []float32 {
	t.Helper()
	n := m.In * m.Out * max(m.Experts, 1)
	size, _ := m.Type.RowBytes(uint64(n))
	w := make([]float32, n)
	if err := quant.Dequantize(m.Type, w, data[:size]); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestMatMul(t *testing.T) {
	type matmulCase struct {
		in, out, rows, tokens int
		add, factor, gate     bool
	}
	cases := []matmulCase{
		{768, 33, 4, 3, false, true, false}, // the case of types that have but one
		{256, 5, 1, 1, false, false, false},
		{512, 70, 8, 6, true, false, false},
		{256, 1, 8, 8, false, true, true},
		{256, 97, 2, 2, true, true, false},
	}
	for _, typ := range weightTypes() {
		for _, c := range cases[:casesOf(typ, len(cases))] {
			name := fmt.Sprintf("%v/%dx%d/%dof%d", typ, c.out, c.in, c.tokens, c.rows)
			t.Run(name, func(t *testing.T) { testMatMul(t, typ, c.in, c.out, c.rows, c.tokens, c.add, c.factor, c.gate) })
		}
	}
}

func testMatMul(t *testing.T, typ quant.Type, in, out, rows, tokens int, add, byToken, gate bool) {
	r := kerneltest.Rand(uint64(in*out + tokens))
	w, wdata := randomMatrix(r, typ, in, out, 0)
	step, sdata := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(tokens), Pages: []int32{0}}}, nil)
	// X and Y are columns of wider matrices, so that strides and offsets count. Inputs that lie between texels are read as words.
	before, width := 4, in+8
	if gate {
		before, width = 3, in+7
	}
	x := shaders.NewMat("x", shaders.Scratch, rows, width)
	y := shaders.NewMat("y", shaders.Scratch, rows, out+5)
	f := shaders.NewMat("f", shaders.Scratch, rows, 2)
	xv, yv, fv := kerneltest.Normal(r, rows*width), kerneltest.Normal(r, rows*(out+5)), kerneltest.Normal(r, rows*2)
	op := &shaders.MatMul{Step: step.View(), W: w, X: x.Cols(before, in), Y: y.Cols(2, out), Rows: rows, Count: shaders.CountRows, Accumulate: add, Gate: gate}
	if byToken {
		op.Factor = f.Cols(1, 1)
	}
	fill := map[*shaders.Buffer][]byte{
		step: sdata, w.Buf: wdata, x.Buf: kerneltest.Floats(xv), y.Buf: kerneltest.Floats(yv), f.Buf: kerneltest.Floats(fv),
	}
	withFactors(r, &op.W, fill)

	// The twin against the formula, written out here.
	mem := shaders.HostMemory{}
	for b, d := range fill {
		mem[b] = append(shaders.AlignedBytes(b.Size)[:0], d...)
	}
	if err := op.Twin(mem); err != nil {
		t.Fatal(err)
	}
	weights, got := dequantised(t, w, wdata), shaders.F32(mem, y.View)
	for row := range rows {
		for o := range out + 5 {
			want := float64(yv[row*(out+5)+o])
			if c := o - 2; row < tokens && c >= 0 && c < out {
				v := 0.0
				for i := range in {
					v += float64(weights[c*in+i]) * float64(xv[row*width+before+i])
				}
				v *= float64(factor(op.W, 0, fill))
				if f := float64(fv[row*2+1]); gate {
					v /= 1 + math.Exp(-f)
				} else if byToken {
					v *= f
				}
				if add {
					v += want
				}
				want = v
			}
			if d := math.Abs(float64(got[row*(out+5)+o]) - want); d > 1e-5*max(1, math.Abs(want)) {
				t.Fatalf("twin: row %d column %d is %g, want %g", row, o, got[row*(out+5)+o], want)
			}
		}
	}
	kerneltest.Run(t, kerneltest.Case{Name: "matmul", Few: few(typ), Ops: []shaders.Op{op}, Fill: fill, Check: []kerneltest.Check{{View: y.View, Tol: 5e-6}}})
}

// A matrix larger than a binding is read in windows; every row must come from its own window.
func TestMatMulWindows(t *testing.T) {
	r := kerneltest.Rand(3)
	for _, c := range []struct {
		typ     quant.Type
		in, fit int // rows that a binding has room for; windows of 20 begin at whole words
	}{{quant.Q8_0, 256, 20}, {quant.Q6_K, 256, 21}, {quant.MXFP4, 96, 23}} {
		typ := c.typ
		w, _ := randomMatrix(r, typ, c.in, 101, 0)
		op := &shaders.MatMul{Step: (&shaders.Buffer{Size: 64}).View(), W: w, X: shaders.NewMat("x", shaders.Scratch, 1, c.in), Y: shaders.NewMat("y", shaders.Scratch, 1, 101), Rows: 1}
		ds, err := op.Lower(&shaders.Profile{Subgroup: 8, MaxBinding: 4096 + int64(c.fit)*w.RowBytes(), MaxGroups: [3]uint32{65535, 65535, 65535}})
		if err != nil {
			t.Fatal(err)
		}
		row := int64(0)
		for _, d := range ds {
			if got := d.Bind[1].Off; got != row*w.RowBytes() {
				t.Errorf("%v: a window begins at byte %d, want row %d", typ, got, row)
			}
			if got := d.Bind[3].Off; got != row*4 {
				t.Errorf("%v: window of row %d writes at byte %d", typ, row, got)
			}
			row += int64(d.Push[1])
		}
		if len(ds) != 6 || row != 101 {
			t.Errorf("%v: %d windows over %d rows", typ, len(ds), row)
		}
	}
}

func TestMain(m *testing.M) { kerneltest.Main(m) }
