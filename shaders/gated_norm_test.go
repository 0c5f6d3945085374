package shaders_test

import (
	"math"
	"testing"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

func TestGatedNorm(t *testing.T) {
	for i, c := range []struct {
		name                   string
		heads, dim, rows, used int
	}{
		{"one row", 1, 32, 1, 1},
		{"odd", 3, 21, 9, 5}, // the head dimension divides no subgroup
		{"small heads", 5, 2, 4, 4},
		{"model heads", 16, 128, 8, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, w := kerneltest.Rand(uint64(400+i)), c.heads*c.dim
			fill := map[*shaders.Buffer][]byte{}
			matrix := func(name string, stride int, f []float32) shaders.Mat {
				m := shaders.NewMat(name, shaders.State, c.rows, stride)
				fill[m.Buf] = kerneltest.Floats(f)
				return m
			}
			nan := float32(math.NaN())
			// Heads of very different lengths, of which eps matters to some; gates far on both sides.
			o, z := kerneltest.Normal(r, c.rows*(w+3)), kerneltest.Normal(r, c.rows*(w+6))
			for row := range c.rows {
				for h := range c.heads {
					scale := float32(math.Pow(10, float64(-4+(row+h)%7)))
					for i := range c.dim {
						o[row*(w+3)+1+h*c.dim+i] *= scale
					}
				}
				z[row*(w+6)+5], z[row*(w+6)+6] = -100, 100
			}
			copy(o[c.used*(w+3):], gdnConst((c.rows-c.used)*(w+3), nan))
			copy(z[c.used*(w+6):], gdnConst((c.rows-c.used)*(w+6), nan))
			om, zm, ym := matrix("o", w+3, o), matrix("z", w+6, z), matrix("y", w+2, gdnConst(c.rows*(w+2), 0.125))
			weight := &shaders.Buffer{Name: "weight", Kind: shaders.Weight, Size: int64(c.dim+1) * 4}
			wf := kerneltest.Normal(r, c.dim+1)
			fill[weight] = kerneltest.Floats(wf)
			step, data := kerneltest.Step(t, shaders.StepShape{Rows: c.rows, Seqs: 1, Pages: 1}, []shaders.Run{gdnRun(0, c.used, true)}, nil)
			fill[step] = data
			op := &shaders.GatedNorm{
				Step: step.View(), O: om.Cols(1, w), Z: zm.Cols(5, w), Y: ym.Cols(2, w),
				Weight: weight.View().Slice(4, int64(c.dim)*4), Rows: c.rows, Heads: c.heads, Dim: c.dim, Eps: 1e-6,
			}

			all := shaders.F32(gdnTwin(t, fill, op), ym.View)
			var got []float32
			var want []float64
			for row := range c.used {
				got = append(got, all[row*(w+2)+2:(row+1)*(w+2)]...)
				for h := range c.heads {
					head, gate := o[row*(w+3)+1+h*c.dim:], z[row*(w+6)+5+h*c.dim:]
					mean := 0.0
					for i := range c.dim {
						mean += math.Pow(float64(head[i]), 2) / float64(c.dim)
					}
					for i := range c.dim {
						rms := float64(head[i]) / math.Sqrt(mean+float64(op.Eps)) * float64(wf[1+i])
						g := float64(gate[i])
						want = append(want, rms*(g/(1+math.Exp(-g))))
					}
				}
			}
			gdnNear(t, "twin", got, want, 2e-7)

			line := int64(w+2) * 4
			checks := []kerneltest.Check{{View: ym.Slice(int64(c.used)*line, int64(c.rows-c.used)*line), Exact: true}}
			for row := range c.used { // each row by its own scale
				checks = append(checks, kerneltest.Check{View: ym.Slice(int64(row)*line, line), Tol: 2e-6})
			}
			for _, x := range []struct {
				name string
				op   shaders.Op
			}{
				{"plain", op},
				{"shared32", gdnScheme{op, true, 32, 0}}, // several subgroups on software devices
				{"shared64", gdnScheme{op, true, 64, 0}},
			} {
				kerneltest.Run(t, kerneltest.Case{Name: x.name, Ops: []shaders.Op{x.op}, Fill: fill, Check: checks})
			}
		})
	}
}

func TestGatedNormRefusals(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	for _, c := range []struct {
		name  string
		spoil func(o *shaders.GatedNorm)
	}{
		{"narrow o", func(o *shaders.GatedNorm) { o.O.Width-- }},
		{"wide z", func(o *shaders.GatedNorm) { o.Z.Width++ }},
		{"short weight", func(o *shaders.GatedNorm) { o.Weight.Len -= 4 }},
		{"in place", func(o *shaders.GatedNorm) { o.Y = o.Z }},
		{"too many rows", func(o *shaders.GatedNorm) { o.Rows = 65536 }},
	} {
		m := func(name string) shaders.Mat { return shaders.NewMat(name, shaders.Scratch, 4, 32) }
		w := &shaders.Buffer{Name: "weight", Kind: shaders.Weight, Size: 64}
		o := &shaders.GatedNorm{O: m("o"), Z: m("z"), Y: m("y"), Weight: w.View(), Rows: 4, Heads: 2, Dim: 16, Eps: 1e-6}
		if _, err := o.Lower(p); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		c.spoil(o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", c.name)
		}
	}
}
