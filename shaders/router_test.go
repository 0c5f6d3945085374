package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// unevenStep is a step of ten rows in four sequences of different lengths, for ops that treat rows alike,
// with room for two more rows. Rows 2, 3, 6, 8 and 9 are wanted.
func unevenStep(t *testing.T, fill map[*shaders.Buffer][]byte) (step shaders.View, rows, capacity int) {
	t.Helper()
	runs := []shaders.Run{
		{Tokens: kerneltest.Tokens(3), Pages: []int32{0}, Outs: []int{2}},
		{Tokens: kerneltest.Tokens(1), Pages: []int32{1}, Outs: []int{0}},
		{Tokens: kerneltest.Tokens(4), Pages: []int32{2}, Outs: []int{2}},
		{Tokens: kerneltest.Tokens(2), Pages: []int32{3}, Outs: []int{0, 1}},
	}
	b, data := kerneltest.Step(t, shaders.StepShape{Rows: 12, Seqs: 5, Outs: 7, Pages: 1}, runs, nil)
	fill[b] = data
	return b.View(), 10, 12
}

// filledWords returns a buffer of words that begins with some and goes on with a value that no result has.
func filledWords(name string, n int, words []uint32, fill map[*shaders.Buffer][]byte) *shaders.Buffer {
	b := &shaders.Buffer{Name: name, Kind: shaders.Scratch, Size: int64(n) * 4}
	w := make([]uint32, n)
	for i := copy(w, words); i < n; i++ {
		w[i] = math.Float32bits(7.5)
	}
	fill[b] = kerneltest.Words(w)
	return b
}

// routerCase is a router over the rows of unevenStep: ids and weights lie inside larger buffers.
func routerCase(t *testing.T, logits []float32, experts, k int, scale float32) (*shaders.Router, int, map[*shaders.Buffer][]byte) {
	fill := map[*shaders.Buffer][]byte{}
	step, rows, capacity := unevenStep(t, fill)
	l := paddedMat("logits", capacity, experts, 2, 3, fill)
	setRows(l, logits, fill)
	n := capacity * k
	ids := filledWords("ids", n+5, nil, fill)
	weights := filledWords("weights", n+9, nil, fill)
	return &shaders.Router{Step: step, Logits: l, Ids: ids.View().Slice(8, int64(n)*4), Weights: weights.View().Slice(16, int64(n)*4),
		Rows: capacity, Experts: experts, K: k, Scale: scale}, rows, fill
}

func runRouter(t *testing.T, name string, o *shaders.Router, rows int, fill map[*shaders.Buffer][]byte) {
	t.Helper()
	kerneltest.Run(t, kerneltest.Case{Name: name, Ops: []shaders.Op{o}, Fill: fill, Check: []kerneltest.Check{
		{View: o.Ids.Buf.View(), Exact: true},
		{View: o.Weights.Slice(0, int64(rows*o.K)*4), Tol: 4e-6},
		{View: o.Weights.Buf.View().Slice(0, 16), Exact: true},
		{View: o.Weights.Buf.View().Slice(16+int64(rows*o.K)*4, o.Weights.Buf.Size-16-int64(rows*o.K)*4), Exact: true},
	}})
}

func TestRouter(t *testing.T) {
	for i, c := range []struct {
		experts, k int
		scale      float32
		spread     float64
		levels     float64 // logits are rounded to multiples of 1/levels, so that many are equal; 0: not
	}{
		{experts: 256, k: 8, spread: 2},
		{experts: 512, k: 10, scale: 1, spread: 3},
		{experts: 128, k: 8, scale: 2.5, spread: 1, levels: 2},
		{experts: 64, k: 64, scale: 0.5, spread: 20},
		{experts: 33, k: 5, spread: 1, levels: 1},
		{experts: 7, k: 7, spread: 200},
		{experts: 1, k: 1, spread: 1},
		{experts: 31, k: 1, scale: -1.5, spread: 1},
		{experts: 256, k: 40, spread: 0},                // all equal: experts 0 to 39
		{experts: 20000, k: 1, scale: 3, spread: 0.001}, // so even that the floor of the sum binds
	} {
		name := fmt.Sprintf("%d of %d", c.k, c.experts)
		r := kerneltest.Rand(uint64(i))
		logits := kerneltest.Normal(r, 12*c.experts)
		for j := range logits {
			logits[j] *= float32(c.spread)
			if c.levels != 0 {
				logits[j] = float32(math.Round(float64(logits[j])*c.levels) / c.levels)
			}
		}
		o, rows, fill := routerCase(t, logits, c.experts, c.k, c.scale)
		m := runTwins(t, []shaders.Op{o}, fill)
		ids, weights := shaders.U32(m, o.Ids), shaders.F32(m, o.Weights)
		scale := float64(c.scale)
		if scale == 0 {
			scale = 1
		}
		for row := range rows {
			l := logits[row*c.experts:][:c.experts]
			total := 0.0
			for _, v := range l {
				total += math.Exp(float64(v))
			}
			taken := make([]bool, c.experts)
			mass := 0.0
			for s := range c.k {
				e := -1
				for j, v := range l {
					if !taken[j] && (e < 0 || v > l[e]) {
						e = j
					}
				}
				taken[e] = true
				mass += math.Exp(float64(l[e])) / total
				if got := ids[row*c.k+s]; got != uint32(e) {
					t.Fatalf("%s row %d slot %d: the twin has expert %d, the formula %d", name, row, s, got, e)
				}
			}
			for s := range c.k {
				p := math.Exp(float64(l[ids[row*c.k+s]])) / total
				want := p / max(mass, math.Pow(2, -14)) * scale
				near(t, fmt.Sprintf("%s row %d slot %d", name, row, s), weights[row*c.k+s], want, max(math.Abs(want), 1e-30), 1e-6)
			}
			if c.experts == 20000 && mass >= math.Pow(2, -14) {
				t.Fatalf("%s: the floor does not bind", name)
			}
		}
		runRouter(t, name, o, rows, fill)
	}
}

// Logits that are not numbers or not finite give distinct experts and finite weights.
func TestRouterNotFinite(t *testing.T) {
	nan, inf, big := float32(math.NaN()), float32(math.Inf(1)), float32(math.MaxFloat32)
	negNaN := math.Float32frombits(0xffc00001)
	zero := math.Float32frombits(1 << 31)
	tiny := math.Float32frombits(1) // a subnormal is more than zero even where arithmetic flushes it
	third := float32(1.0 / 3)
	cases := []struct {
		logits  []float32
		ids     []uint32
		weights []float32
	}{
		{[]float32{nan, nan, nan, nan, nan, nan}, []uint32{0, 1, 2}, []float32{third, third, third}},
		{[]float32{nan, negNaN, 1, nan, negNaN, 1}, []uint32{2, 5, 0}, []float32{0.5, 0.5, 0}},
		{[]float32{nan, -inf, nan, 3, -inf, nan}, []uint32{3, 0, 1}, []float32{1, 0, 0}},
		{[]float32{inf, 1, inf, nan, 2, 3}, []uint32{0, 2, 5}, []float32{0.5, 0.5, 0}},
		{[]float32{1, big, inf, -big, 2, 1}, []uint32{2, 1, 4}, []float32{0.5, 0.5, 0}},
		{[]float32{-inf, -big, -inf, -inf, -inf, -big}, []uint32{1, 5, 0}, []float32{third, third, third}},
		{[]float32{0, zero, zero, 0, -1e-30, -1}, []uint32{0, 1, 2}, []float32{third, third, third}},
		{[]float32{-1, zero, 0, zero, -1, -1}, []uint32{1, 2, 3}, []float32{third, third, third}},
		{[]float32{0, 0, 0, tiny, -tiny, 0}, []uint32{3, 0, 1}, []float32{third, third, third}},
		{[]float32{-inf, -100, -400, -1000, -inf, -inf}, []uint32{1, 2, 3}, []float32{1, 0, 0}},
	}
	var logits []float32
	for _, c := range cases {
		logits = append(logits, c.logits...)
	}
	o, rows, fill := routerCase(t, logits, 6, 3, 0)
	if rows != len(cases) {
		t.Fatalf("%d cases for %d rows", len(cases), rows)
	}
	m := runTwins(t, []shaders.Op{o}, fill)
	ids, weights := shaders.U32(m, o.Ids), shaders.F32(m, o.Weights)
	for i, c := range cases {
		for s := range c.ids {
			if ids[3*i+s] != c.ids[s] {
				t.Fatalf("%v: the twin has experts %d, not %d", c.logits, ids[3*i:3*i+3], c.ids)
			}
			near(t, fmt.Sprint(c.logits), weights[3*i+s], float64(c.weights[s]), 1, 1e-6)
		}
	}
	runRouter(t, "not finite", o, rows, fill)
}

func TestRouterRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	for name, spoil := range map[string]func(o *shaders.Router){
		"":                     func(o *shaders.Router) {},
		"no expert":            func(o *shaders.Router) { o.K = 0 },
		"more than there are":  func(o *shaders.Router) { o.K = 9 },
		"width":                func(o *shaders.Router) { o.Experts = 7 },
		"rows":                 func(o *shaders.Router) { o.Rows = 14 },
		"room for ids":         func(o *shaders.Router) { o.Ids.Len = 92 },
		"room for the weights": func(o *shaders.Router) { o.Weights.Len = 92 },
		"grid":                 func(o *shaders.Router) { p = &shaders.Profile{Subgroup: 8, MaxGroups: [3]uint32{11, 1, 1}} },
	} {
		o, _, _ := routerCase(t, make([]float32, 12*8), 8, 2, 0)
		q := p
		spoil(o)
		if _, err := o.Lower(p); (err == nil) != (name == "") {
			t.Errorf("%q: error %v", name, err)
		}
		p = q
	}
}
