package shaders_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

func topkCase(t *testing.T, logits []float32, vocab, k int) (*shaders.TopK, map[*shaders.Buffer][]byte) {
	fill := map[*shaders.Buffer][]byte{}
	step, _, _ := unevenStep(t, fill)
	const outs = 7 // capacity; five rows are wanted
	l := paddedMat("logits", outs, vocab, 1, 2, fill)
	setRows(l, logits, fill)
	out := filledWords("out", outs*k*2+3, nil, fill)
	part := shaders.TopKPart("part", vocab, k, outs)
	return &shaders.TopK{Step: step, Logits: l, Part: part, Out: out.View().Slice(4, int64(outs*k)*8), Outs: outs, K: k}, fill
}

func TestTopK(t *testing.T) {
	const wanted = 5
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for i, c := range []struct {
		vocab, k int
		logit    func(row, id int, normal float32) float32
	}{
		{vocab: 1000, k: 1},
		{vocab: 1024, k: 1},
		{vocab: 1025, k: 20},
		{vocab: 5000, k: 1},
		{vocab: 5000, k: 64},
		{vocab: 4096 * 2, k: 64},
		{vocab: 151936, k: 1},
		{vocab: 248320, k: 64},
		{vocab: 1, k: 1},
		{vocab: 1, k: 3},
		{vocab: 17, k: 20},
		{vocab: 2049, k: 64},
		// The winners are the last ids, then the first.
		{vocab: 3000, k: 10, logit: func(row, id int, n float32) float32 { return float32(id) }},
		{vocab: 3000, k: 10, logit: func(row, id int, n float32) float32 { return float32(-id) }},
		// Equal logits across chunks: the lowest ids.
		{vocab: 3000, k: 33, logit: func(row, id int, n float32) float32 { return 2 }},
		{vocab: 3000, k: 33, logit: func(row, id int, n float32) float32 { return float32(math.Round(float64(n))) }},
		// Zeros of both signs are equal.
		{vocab: 2500, k: 12, logit: func(row, id int, n float32) float32 {
			return min(float32(math.Copysign(0, float64(n))), float32(id%900-1))
		}},
		// Subnormals differ from zero and from each other.
		{vocab: 2500, k: 12, logit: func(row, id int, n float32) float32 { return math.Float32frombits(uint32(id) % 5) }},
		// Not numbers and not finite: all of a row, all but three, some.
		{vocab: 2500, k: 7, logit: func(row, id int, n float32) float32 {
			switch {
			case row == 0 || row == 1 && id%1000 != 400:
				return nan
			case row == 2 && id%3 != 0:
				return math.Float32frombits(0xffffffff)
			case row == 3:
				return -inf
			case row == 4 && id%800 == 13:
				return inf
			}
			return n
		}},
	} {
		name := fmt.Sprintf("%d %d of %d", i, c.k, c.vocab)
		r := kerneltest.Rand(uint64(i))
		logits := kerneltest.Normal(r, 7*c.vocab)
		if c.logit != nil {
			for j := range logits {
				logits[j] = c.logit(j/c.vocab, j%c.vocab, logits[j])
			}
		}
		o, fill := topkCase(t, logits, c.vocab, c.k)
		m := runTwins(t, []shaders.Op{o}, fill)
		out := shaders.U32(m, o.Out)
		for row := range wanted {
			l := slices.Clone(logits[row*c.vocab:][:c.vocab])
			ids := make([]int, c.vocab)
			for j := range l {
				ids[j] = j
				if l[j] != l[j] {
					l[j] = -inf
				}
			}
			slices.SortStableFunc(ids, func(a, b int) int {
				switch {
				case l[a] > l[b]:
					return -1
				case l[a] < l[b]:
					return 1
				}
				return 0
			})
			for s := range c.k {
				id, v := uint32(0xffffffff), -inf
				if s < c.vocab {
					id, v = uint32(ids[s]), l[ids[s]]
				}
				got := out[2*(row*c.k+s):][:2]
				if g := math.Float32frombits(got[1]); got[0] != id || g != v || math.Signbit(float64(g)) != (v < 0) {
					t.Fatalf("%s row %d: winner %d of the twin is %d with %g, of the formula %d with %g", name, row, s, got[0], g, id, v)
				}
			}
		}
		kerneltest.Run(t, kerneltest.Case{Name: name, Ops: []shaders.Op{o}, Fill: fill, Check: []kerneltest.Check{
			{View: o.Out.Buf.View(), Exact: true},
		}})
	}
}

func TestTopKRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 65535, 65535}}
	small := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 27, MaxGroups: [3]uint32{65535, 6, 1}}
	for name, spoil := range map[string]func(o *shaders.TopK) *shaders.Profile{
		"":              func(o *shaders.TopK) *shaders.Profile { return p },
		"no winner":     func(o *shaders.TopK) *shaders.Profile { o.K = 0; return p },
		"many winners":  func(o *shaders.TopK) *shaders.Profile { o.K = 65; return p },
		"scratch":       func(o *shaders.TopK) *shaders.Profile { o.K = 5; return p },
		"rows":          func(o *shaders.TopK) *shaders.Profile { o.Outs = 8; return p },
		"room":          func(o *shaders.TopK) *shaders.Profile { o.Out.Len -= 4; return p },
		"grid":          func(o *shaders.TopK) *shaders.Profile { return small },
		"other scratch": func(o *shaders.TopK) *shaders.Profile { o.Part = shaders.TopKPart("part", 100, 4, 7); return p },
	} {
		o, _ := topkCase(t, make([]float32, 7*3000), 3000, 4)
		if _, err := o.Lower(spoil(o)); (err == nil) != (name == "") {
			t.Errorf("%q: error %v", name, err)
		}
	}
}
