package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

func TestExpertDown(t *testing.T) {
	type downCase struct {
		in, out, experts, k int
		windows             bool
	}
	cases := []downCase{
		{in: 256, out: 70, experts: 6, k: 3, windows: true}, // the case of types that have but one
		{in: 2560, out: 6, experts: 4, k: 4},
		{in: 256, out: 33, experts: 3, k: 1},
	}
	for i, typ := range weightTypes() {
		for _, c := range cases[:casesOf(typ, len(cases))] {
			name := fmt.Sprintf("%v %d of %d, %d x %d", typ, c.k, c.experts, c.out, c.in)
			r := kerneltest.Rand(uint64(i))
			fill := map[*shaders.Buffer][]byte{}
			step, rows, capacity := unevenStep(t, fill)
			h := paddedMat("h", capacity, c.k*c.in, 1, 2, fill)
			setRows(h, kerneltest.Normal(r, capacity*c.k*c.in), fill)
			y := paddedMat("y", capacity, c.out, 2, 1, fill)
			before := kerneltest.Normal(r, rows*c.out)
			setRows(y, before, fill)
			ids := chosenExperts(r, capacity, c.k, c.experts)
			ids[0] = uint32(c.experts - 1)
			ids[c.k] = uint32(c.experts)
			ids[3*c.k-1] = math.MaxUint32
			ids[5*c.k-1] = 1 << 31
			idb := filledWords("ids", capacity*c.k+1, append([]uint32{1}, ids...), fill)
			weights := kerneltest.Normal(r, capacity*c.k+2)
			weights[3] = 0
			wb := &shaders.Buffer{Name: "weights", Kind: shaders.Scratch, Size: int64(len(weights)) * 4}
			fill[wb] = kerneltest.Floats(weights)
			o := &shaders.ExpertDown{Step: step, W: expertStack(r, "down", typ, c.in, c.out, c.experts, fill), H: h, Y: y,
				Ids: idb.View().Slice(4, int64(capacity*c.k)*4), Weights: wb.View().Slice(8, int64(capacity*c.k)*4), Rows: capacity, K: c.k,
				Parts: partsOf(capacity, c.k, c.out)}
			m := runTwins(t, []shaders.Op{o}, fill)
			hv, yv := shaders.F32(m, h.View), shaders.F32(m, y.View)
			for row := range rows {
				for j := range c.out {
					want := float64(before[row*c.out+j])
					scale := math.Abs(want)
					for s := range c.k {
						if e := ids[row*c.k+s]; int64(e) < int64(c.experts) {
							v, size := product(weightRow(t, o.W, int(e), j, fill), hv[row*h.Stride+s*c.in:][:c.in])
							w := float64(weights[2+row*c.k+s])
							want += w * v
							scale += math.Abs(w) * size
						}
					}
					near(t, fmt.Sprintf("%s row %d output %d", name, row, j), yv[row*y.Stride+j], want, scale, 1e-6)
				}
			}
			group := groupOf(step, o.Ids, capacity, c.k, c.experts, fill)
			kc := kerneltest.Case{Name: name, Few: few(typ), Turn: turn(typ, i), Fill: fill, Ops: []shaders.Op{
				smallDevice{o, 1 << 27, 1}, // outputs beyond the grid
				group,
			}, Check: []kerneltest.Check{
				{View: y.Buf.View(), Tol: 1e-5},
				{View: rowsFrom(y, rows), Exact: true},
				{View: o.Parts.Buf.View().Slice(0, o.Parts.Off), Exact: true}, // where a pair ^0 would be
			}}
			same := func(what string, tiles, parts shaders.View, lower func(shaders.Op) shaders.Op) {
				v := *o
				v.Tiles, v.Parts, v.Y = tiles, parts, sameMat(what, y, fill)
				kc.Ops = append(kc.Ops, lower(&v))
				kc.Check = append(kc.Check, kerneltest.Check{View: v.Y.Buf.View(), Tol: 1e-5})
				kc.Same = append(kc.Same, [2]shaders.View{v.Y.Buf.View(), y.Buf.View()})
			}
			plain := func(o shaders.Op) shaders.Op { return o }
			same("tiles", group.Tiles, o.Parts, plain)
			if c.out > 32 {
				same("tiles, 32 outputs at once", group.Tiles, o.Parts.Slice(0, 4*int64(capacity*c.k*32)+4), plain)
			}
			if c.windows {
				windows := func(v shaders.Op) shaders.Op { return inWindows(t, v, 2*o.W.RowBytes()*int64(c.out)) } // two experts
				same("windows", shaders.View{}, o.Parts, windows)
				same("windows of tiles", group.Tiles, o.Parts, windows)
			}
			kerneltest.Run(t, kc)
		}
	}
}

// The routed FFN of a layer: router, experts and residual in one step, as a model has them.
func TestRoutedFFN(t *testing.T) {
	const experts, k, in, f = 16, 4, 256, 256
	r := kerneltest.Rand(3)
	fill := map[*shaders.Buffer][]byte{}
	step, rows, capacity := unevenStep(t, fill)
	x := paddedMat("x", capacity, in, 0, 0, fill)
	setRows(x, kerneltest.Normal(r, capacity*in), fill)
	y := paddedMat("y", capacity, in, 0, 0, fill)
	before := kerneltest.Normal(r, rows*in)
	setRows(y, before, fill)
	l := paddedMat("logits", capacity, experts, 0, 0, fill)
	logits := kerneltest.Normal(r, capacity*experts)
	setRows(l, logits, fill)
	h := paddedMat("h", capacity, k*f, 0, 0, fill)
	ids := filledWords("ids", capacity*k, nil, fill).View()
	weights := filledWords("weights", capacity*k, nil, fill).View()
	both := expertStack(r, "gate and up", quant.Q4_K, in, 2*f, experts, fill)
	down := expertStack(r, "down", quant.Q6_K, f, in, experts, fill)
	gate, up := both.Rows(0, f), both.Rows(f, f)
	ops := []shaders.Op{
		&shaders.Router{Step: step, Logits: l, Ids: ids, Weights: weights, Rows: capacity, Experts: experts, K: k},
		&shaders.ExpertGateUp{Step: step, Gate: gate, Up: up, X: shaders.Plain(x), Ids: ids, H: h, Rows: capacity, K: k},
		&shaders.ExpertDown{Step: step, W: down, H: h, Ids: ids, Weights: weights, Parts: partsOf(capacity, k, in), Y: y, Rows: capacity, K: k},
	}
	m := runTwins(t, ops, fill)
	xv, yv := shaders.F32(m, x.View), shaders.F32(m, y.View)
	for _, row := range []int{0, 4, 9} {
		want, scale := make([]float64, in), make([]float64, in)
		for j := range want {
			want[j] = float64(before[row*in+j])
		}
		lr := logits[row*experts:][:experts]
		for e := range lr {
			// An expert is chosen when fewer than k are more probable, and weighs its part of the chosen.
			more, mass := 0, 0.0
			for _, v := range lr {
				if v > lr[e] {
					more++
				}
			}
			for j, v := range lr {
				above := 0
				for _, u := range lr {
					if u > lr[j] {
						above++
					}
				}
				if above < k {
					mass += math.Exp(float64(v))
				}
			}
			if more >= k {
				continue
			}
			inner := make([]float32, f)
			for j := range inner {
				g, _ := product(weightRow(t, gate, e, j, fill), xv[row*in:][:in])
				u, _ := product(weightRow(t, up, e, j, fill), xv[row*in:][:in])
				inner[j] = float32(g / (1 + math.Exp(-g)) * u)
			}
			for j := range want {
				v, size := product(weightRow(t, down, e, j, fill), inner)
				want[j] += math.Exp(float64(lr[e])) / mass * v
				scale[j] += math.Exp(float64(lr[e])) / mass * size
			}
		}
		for j, v := range want {
			near(t, fmt.Sprintf("row %d output %d", row, j), yv[row*in+j], v, scale[j], 1e-6)
		}
	}
	kerneltest.Run(t, kerneltest.Case{Name: "ffn", Ops: ops, Fill: fill, Check: []kerneltest.Check{
		{View: y.View, Tol: 1e-5},
		{View: ids, Exact: true},
	}})
}

func TestExpertDownRefuses(t *testing.T) {
	p := &shaders.Profile{MaxGroups: [3]uint32{65535, 65535, 65535}}
	for name, spoil := range map[string]func(o *shaders.ExpertDown) int64{
		"":        func(o *shaders.ExpertDown) int64 { return 1 << 27 },
		"ids":     func(o *shaders.ExpertDown) int64 { o.Ids.Len -= 4; return 1 << 27 },
		"weights": func(o *shaders.ExpertDown) int64 { o.Weights.Len -= 4; return 1 << 27 },
		"parts":   func(o *shaders.ExpertDown) int64 { o.Parts.Len = 4*4*2*32 - 4; return 1 << 27 },
		"tiles": func(o *shaders.ExpertDown) int64 {
			o.Tiles = filledWords("tiles", int(shaders.TilesBytes(4, 2, 3))/4-1, nil, map[*shaders.Buffer][]byte{}).View()
			return 1 << 27
		},
		"slots":       func(o *shaders.ExpertDown) int64 { o.K = 0; return 1 << 27 },
		"width of H":  func(o *shaders.ExpertDown) int64 { o.H = o.H.Cols(0, 127); return 1 << 27 },
		"width of Y":  func(o *shaders.ExpertDown) int64 { o.Y = o.Y.Cols(0, 39); return 1 << 27 },
		"rows":        func(o *shaders.ExpertDown) int64 { o.Rows = 5; return 1 << 27 },
		"short stack": func(o *shaders.ExpertDown) int64 { o.W.Len -= 4; return 1 << 27 },
		"block type":  func(o *shaders.ExpertDown) int64 { o.W.Type = quant.Q8_1; return 1 << 27 },
		"one expert":  func(o *shaders.ExpertDown) int64 { return 4096 + 40*64*4 - 1 },
		"grid in y":   func(o *shaders.ExpertDown) int64 { p.MaxGroups[1] = 3; return 1 << 27 },
	} {
		fill := map[*shaders.Buffer][]byte{}
		o := &shaders.ExpertDown{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View(),
			H: paddedMat("h", 4, 128, 0, 0, fill), Y: paddedMat("y", 4, 40, 0, 0, fill),
			Ids: filledWords("ids", 8, nil, fill).View(), Weights: filledWords("weights", 8, nil, fill).View(), Rows: 4, K: 2,
			Parts: partsOf(4, 2, 40), W: expertStack(kerneltest.Rand(1), "down", quant.F32, 64, 40, 3, fill)}
		p.MaxGroups = [3]uint32{65535, 65535, 65535}
		p.MaxBinding = spoil(o)
		if _, err := o.Lower(p); (err == nil) != (name == "") {
			t.Errorf("%q: error %v", name, err)
		}
	}
}
