package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// paddedMat returns a matrix whose rows have other floats before and after them, and the whole of it filled
// with a value that no result has, so that a write outside the matrix shows.
func paddedMat(name string, rows, width, before, after int, fill map[*shaders.Buffer][]byte) shaders.Mat {
	m := shaders.NewMat(name, shaders.Scratch, rows, before+width+after)
	f := make([]float32, rows*(before+width+after))
	for i := range f {
		f[i] = 0.15625
	}
	fill[m.Buf] = kerneltest.Floats(f)
	return m.Cols(before, width)
}

// setRows writes values to the first rows of a matrix's initial content.
func setRows(m shaders.Mat, values []float32, fill map[*shaders.Buffer][]byte) {
	f := shaders.Floats(fill[m.Buf])[m.Off/4:]
	for i, v := range values {
		f[i/m.Width*m.Stride+i%m.Width] = v
	}
}

// rowsFrom is the memory of a matrix's buffer from a row on: what a step with fewer rows must not touch.
func rowsFrom(m shaders.Mat, row int) shaders.View {
	from := int64(row) * int64(m.Stride) * 4
	return m.Buf.View().Slice(from, m.Buf.Size-from)
}

// runTwins computes ops in host memory that begins as fill says.
func runTwins(t *testing.T, ops []shaders.Op, fill map[*shaders.Buffer][]byte) shaders.HostMemory {
	t.Helper()
	m := shaders.HostMemory{}
	for b, data := range fill {
		m[b] = append(shaders.AlignedBytes(b.Size)[:0], data...)
	}
	for i, o := range ops {
		if err := o.Twin(m); err != nil {
			t.Fatalf("twin of op %d: %v", i, err)
		}
	}
	return m
}

// near fails unless got is want within tol, relative to the scale.
func near(t *testing.T, what string, got float32, want, scale, tol float64) {
	t.Helper()
	if d := math.Abs(float64(got) - want); !(d <= tol*scale) {
		t.Fatalf("%s: the twin has %g, the formula %g", what, got, want)
	}
}

func TestRMSNorm(t *testing.T) {
	// Three sequences; rows 1, 3, 4 and 6 are wanted.
	runs := []shaders.Run{
		{Tokens: kerneltest.Tokens(2), Pages: []int32{0}, Outs: []int{1}},
		{Tokens: kerneltest.Tokens(1), Pages: []int32{1}},
		{Tokens: kerneltest.Tokens(4), Pages: []int32{2}, Outs: []int{0, 1, 3}},
	}
	const rows = 7
	outs := []int{1, 3, 4, 6}
	shape := shaders.StepShape{Rows: 10, Outs: 6, Seqs: 4, Pages: 1}
	for i, c := range []struct {
		width          int
		scale          float64
		gather, inside bool
	}{
		{width: 1, scale: 1},
		{width: 7, scale: 1},
		{width: 32, scale: 1e-4}, // eps decides
		{width: 33, scale: 1e6, gather: true},
		{width: 256, scale: 1, inside: true},
		{width: 1000, scale: 1e-3, gather: true},
		{width: 2048, scale: 30},
		{width: 5120, scale: 1, gather: true},
		{width: 64, scale: 0}, // a row of zeros gives zeros
	} {
		name := fmt.Sprintf("%d", c.width)
		r := kerneltest.Rand(uint64(i))
		fill := map[*shaders.Buffer][]byte{}
		step, data := kerneltest.Step(t, shape, runs, nil)
		fill[step] = data
		x := paddedMat("x", shape.Rows, c.width, 3, 1, fill)
		y := paddedMat("y", shape.Rows, c.width, 0, 2, fill)
		in := kerneltest.Normal(r, shape.Rows*c.width)
		for j := range in {
			in[j] = float32((float64(in[j]) + 0.5) * c.scale * float64(1+j/c.width))
		}
		setRows(x, in, fill)
		w := kerneltest.Normal(r, c.width)
		wb := &shaders.Buffer{Name: "weight", Kind: shaders.Weight, Size: int64(c.width) * 4}
		fill[wb] = kerneltest.Floats(w)
		if c.inside {
			y = x
		}
		op := &shaders.RMSNorm{Step: step.View(), X: x, Y: y, Weight: wb.View(), Rows: shape.Rows, Gather: c.gather, Eps: 1e-6}
		n := rows
		if c.gather {
			op.Count, op.Rows = shaders.CountOuts, shape.Outs
			n = len(outs)
		}
		m := runTwins(t, []shaders.Op{op}, fill)
		got := shaders.F32(m, y.View)
		for row := range n {
			from := row
			if c.gather {
				from = outs[row]
			}
			sum := 0.0
			for _, v := range in[from*c.width : (from+1)*c.width] {
				sum += float64(v) * float64(v)
			}
			for j := range c.width {
				want := float64(in[from*c.width+j]) / math.Sqrt(sum/float64(c.width)+float64(float32(1e-6))) * float64(w[j])
				near(t, fmt.Sprintf("%s row %d column %d", name, row, j), got[row*y.Stride+j], want, math.Abs(want), 1e-6)
			}
		}
		kerneltest.Run(t, kerneltest.Case{Name: name, Ops: []shaders.Op{op}, Fill: fill, Check: []kerneltest.Check{
			{View: y.Buf.View(), Tol: 1e-6},
			{View: rowsFrom(y, n), Exact: true},
		}})
	}
}

func TestRMSNormRefuses(t *testing.T) {
	step := shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer()
	w := &shaders.Buffer{Name: "weight", Kind: shaders.Weight, Size: 32}
	good := func() *shaders.RMSNorm {
		return &shaders.RMSNorm{Step: step.View(), X: shaders.NewMat("x", shaders.Scratch, 4, 8), Y: shaders.NewMat("y", shaders.Scratch, 4, 8), Weight: w.View(), Rows: 4}
	}
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	if _, err := good().Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.RMSNorm){
		"widths":          func(o *shaders.RMSNorm) { o.Y = o.Y.Cols(0, 7) },
		"weights":         func(o *shaders.RMSNorm) { o.Weight.Len = 28 },
		"rows":            func(o *shaders.RMSNorm) { o.Rows = 5 },
		"gather, count":   func(o *shaders.RMSNorm) { o.Gather = true },
		"gather in place": func(o *shaders.RMSNorm) { o.Gather, o.Count, o.X = true, shaders.CountOuts, o.Y },
	} {
		o := good()
		spoil(o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
