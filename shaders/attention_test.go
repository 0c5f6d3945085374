package shaders_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// attentionCase is a set of sequences with their caches, and what the rows ask of them.
type attentionCase struct {
	name                string
	heads, kvHeads, dim int
	f16                 bool
	scale               float32
	runs                []shaders.Run
	// key, value, query and gate give the heads' elements.
	key, value func(seq, pos, head, e int) float32
	query      func(seq, pos, head, e int) float32
	gate       func(seq, pos, head, e int) float32
}

func (c attentionCase) rows() (n int) {
	for _, r := range c.runs {
		n += len(r.Tokens)
	}
	return n
}

// run fills pools and rows, compares the twin with the formula and the kernel with the twin.
func (c attentionCase) run(t *testing.T) {
	d, pages, longest := c.dim, 0, 0
	for _, r := range c.runs {
		pages = max(pages, int(slices.Max(r.Pages))+2)
		longest = max(longest, len(r.Pages))
	}
	fill := map[*shaders.Buffer][]byte{}
	shape := shaders.StepShape{Rows: c.rows() + 3, Seqs: len(c.runs) + 1, Pages: longest + 1}
	step, data := kerneltest.Step(t, shape, c.runs, nil)
	fill[step] = data
	kb, vb := newPools(pages, d*c.kvHeads, c.f16, fill)
	pools := [2][]uint32{shaders.Words(fill[kb]), shaders.Words(fill[vb])}
	// What belongs to no position up to a sequence's last is not a number: whoever reads it is found out.
	for _, p := range pools {
		for i := range p {
			p[i] = 0x7fc07fc0 // NaN as a float and as two halves
		}
	}
	kept := [2][][]float64{} // keys and values by sequence, as the pools hold them
	for s, r := range c.runs {
		for j := range kept {
			kept[j] = append(kept[j], make([]float64, (r.Pos+len(r.Tokens))*c.kvHeads*d))
		}
		for pos := range r.Pos + len(r.Tokens) {
			for g := range c.kvHeads {
				for e := range d {
					i := (physical(r, pos)*c.kvHeads+g)*d + e
					for j, f := range []func(seq, pos, head, e int) float32{c.key, c.value} {
						x := f(s, pos, g, e)
						if c.f16 {
							h := quant.F32ToF16(x)
							pools[j][i/2] = pools[j][i/2]&^(0xffff<<(i%2*16)) | uint32(h)<<(i%2*16)
							x = quant.F16ToF32(h)
						} else {
							pools[j][i] = math.Float32bits(x)
						}
						kept[j][s][(pos*c.kvHeads+g)*d+e] = float64(x)
					}
				}
			}
		}
	}
	q := paddedMat("q", shape.Rows, d*c.heads, 1, 0, fill)
	proj := paddedMat("p", shape.Rows, 2*d*(c.heads+c.kvHeads), 0, 1, fill)
	y := paddedMat("y", shape.Rows, d*c.heads, 2, 1, fill)
	var qs, ps []float32
	for s, r := range c.runs {
		for pos := r.Pos; pos < r.Pos+len(r.Tokens); pos++ {
			row := make([]float32, proj.Width)
			for i := range row {
				row[i] = 1e3 // not a gate
			}
			for h := range c.heads {
				for e := range d {
					qs = append(qs, c.query(s, pos, h, e))
					row[2*d*h+d+e] = c.gate(s, pos, h, e)
				}
			}
			ps = append(ps, row...)
		}
	}
	setRows(q, qs, fill)
	setRows(proj, ps, fill)
	op := &shaders.Attention{Step: step.View(), Q: q, P: proj, K: kb.View(), V: vb.View(), Y: y, F16: c.f16,
		Carry: shaders.NewMat("carry", shaders.Scratch, shape.Rows, 2*c.heads), MaxTokens: shape.Pages * shaders.PageTokens,
		Rows: shape.Rows, Heads: c.heads, KVHeads: c.kvHeads, Dim: d, Scale: c.scale}

	got := shaders.F32(runTwins(t, []shaders.Op{op}, fill), y.View)
	row := 0
	for s, r := range c.runs {
		for last := r.Pos; last < r.Pos+len(r.Tokens); last++ {
			for h := range c.heads {
				g := h / (c.heads / c.kvHeads)
				scores := make([]float64, last+1)
				for pos := range scores {
					for e := range d {
						scores[pos] += float64(c.query(s, last, h, e)) * kept[0][s][(pos*c.kvHeads+g)*d+e]
					}
					scores[pos] *= float64(c.scale)
				}
				top, total := slices.Max(scores), 0.0
				for _, v := range scores {
					total += math.Exp(v - top)
				}
				for e := range d {
					want := 0.0
					for pos, v := range scores {
						want += math.Exp(v-top) / total * kept[1][s][(pos*c.kvHeads+g)*d+e]
					}
					want *= 1 / (1 + math.Exp(-float64(c.gate(s, last, h, e))))
					near(t, fmt.Sprintf("%s sequence %d position %d head %d element %d", c.name, s, last, h, e), got[row*y.Stride+d*h+e], want, 1, 1e-6)
				}
			}
			row++
		}
	}
	kerneltest.Run(t, kerneltest.Case{Name: c.name, Ops: []shaders.Op{op}, Fill: fill, Check: []kerneltest.Check{
		{View: y.Buf.View(), Tol: 3e-6},
		{View: rowsFrom(y, c.rows()), Exact: true},
	}})
}

// noise is a value from a normal distribution that depends on its arguments only.
func noise(kind uint64, seq, pos, head, e int) float32 {
	return float32(kerneltest.Rand(kind + 8*uint64(seq+8*(head+64*(e+1024*pos)))).NormFloat64())
}

func TestAttention(t *testing.T) {
	// The start of a sequence, one that goes on over a page boundary, a single token of a long one, a single
	// token that is the first. Pages in no order and some nobody's.
	ragged := []shaders.Run{
		{Pos: 0, Tokens: kerneltest.Tokens(6), Pages: []int32{3}},
		{Pos: 253, Tokens: kerneltest.Tokens(5), Pages: []int32{7, 1}},
		{Pos: 601, Tokens: kerneltest.Tokens(1), Pages: []int32{0, 5, 2}},
		{Pos: 0, Tokens: kerneltest.Tokens(1), Pages: []int32{6}},
	}
	random := attentionCase{runs: ragged,
		key:   func(s, p, h, e int) float32 { return noise(0, s, p, h, e) },
		value: func(s, p, h, e int) float32 { return noise(1, s, p, h, e) },
		query: func(s, p, h, e int) float32 { return 2 * noise(2, s, p, h, e) },
		gate: func(s, p, h, e int) float32 {
			// Also gates that are shut and open for good.
			if e%16 == 5 {
				return 1000 * noise(3, s, p, h, e)
			}
			return 3 * noise(3, s, p, h, e)
		},
	}
	for _, c := range []struct{ heads, kvHeads, dim int }{
		{1, 1, 2},
		{6, 2, 10}, // no subgroup's lanes divide 5 pairs
		{4, 4, 40},
		{4, 1, 64},
		{3, 3, 34},
		{16, 2, 256},
	} {
		for _, f16 := range []bool{false, true} {
			r := random
			r.name = fmt.Sprintf("%dx%dx%d,f16=%v", c.heads, c.kvHeads, c.dim, f16)
			r.heads, r.kvHeads, r.dim, r.f16 = c.heads, c.kvHeads, c.dim, f16
			r.scale = float32(1 / math.Sqrt(float64(c.dim)))
			r.run(t)
		}
	}

	// Scores of about 10080 in magnitude that differ by 0 to 3: whole numbers, so that every order of
	// summation gives them exactly. The sign of a key decides; groups of positions alternate.
	large := random
	large.heads, large.kvHeads, large.dim, large.scale = 2, 1, 64, 1
	large.query = func(s, p, h, e int) float32 {
		if e == 0 {
			return 1
		}
		return 16
	}
	for name, sign := range map[string]func(s, p int) float32{
		"low":     func(s, p int) float32 { return -1 },
		"high":    func(s, p int) float32 { return 1 },
		"rising":  func(s, p int) float32 { return float32(-1 + 2*min(p/3, 1)) },
		"falling": func(s, p int) float32 { return float32(1 - 2*min(p/3, 1)) },
		"both":    func(s, p int) float32 { return float32(1 - 2*(p/5%2)) },
		"zero":    func(s, p int) float32 { return 0 },
	} {
		large.key = func(s, p, h, e int) float32 {
			if e == 0 {
				return float32((p*7 + s) % 4)
			}
			return 10 * sign(s, p)
		}
		for _, large.f16 = range []bool{false, true} {
			large.name = fmt.Sprintf("large,%s,f16=%v", name, large.f16)
			large.run(t)
		}
	}
}

// TestAttentionSplit runs the tokens of two sequences in one step and in several, norms and rotation included,
// and expects the same.
func TestAttentionSplit(t *testing.T) {
	const heads, kvHeads, dim, rope, pages, capacity = 2, 1, 32, 16, 5, 310
	const width = 2 * dim * (heads + kvHeads)
	lengths := [2]int{270, 33}
	seqPages := [2][]int32{{3, 1}, {2}}
	shape := shaders.StepShape{Rows: capacity, Seqs: 2, Pages: 2, Rope: rope}
	norm := [2]*shaders.Buffer{}
	for _, f16 := range []bool{false, true} {
		fill := map[*shaders.Buffer][]byte{}
		for i := range norm {
			norm[i] = &shaders.Buffer{Name: "norm", Kind: shaders.Weight, Size: dim * 4}
			fill[norm[i]] = kerneltest.Floats(kerneltest.Normal(kerneltest.Rand(uint64(i)), dim))
		}
		type result struct {
			y    shaders.Mat
			rows map[[2]int]int // by sequence and position
		}
		var ops []shaders.Op
		var checks []kerneltest.Check
		// step adds the ops of a step in which sequence s goes from from[s] to to[s].
		step := func(from, to [2]int, k, v *shaders.Buffer) result {
			var runs []shaders.Run
			var in []float32
			r := result{rows: map[[2]int]int{}}
			for s := range from {
				if from[s] == to[s] {
					continue
				}
				run := shaders.Run{Pos: from[s], Tokens: kerneltest.Tokens(to[s] - from[s]), Pages: seqPages[s], Fresh: from[s] == 0}
				runs = append(runs, run)
				for pos := from[s]; pos < to[s]; pos++ {
					r.rows[[2]int{s, pos}] = len(r.rows)
					in = append(in, kerneltest.Normal(kerneltest.Rand(uint64(100+2*pos+s)), width)...)
				}
			}
			sb, data := kerneltest.Step(t, shape, runs, plainRope(rope))
			if len(ops) > 0 {
				sb.Kind = shaders.State // a case has one step buffer; the others pass as ordinary memory
			}
			fill[sb] = data
			p := paddedMat("p", capacity, width, 0, 0, fill)
			setRows(p, in, fill)
			q := paddedMat("q", capacity, heads*dim, 0, 0, fill)
			r.y = paddedMat("y", capacity, heads*dim, 0, 0, fill)
			ops = append(ops,
				&shaders.QKRope{Step: sb.View(), P: p, QNorm: norm[0].View(), KNorm: norm[1].View(), Q: q, K: k.View(), V: v.View(),
					F16: f16, Rows: capacity, Heads: heads, KVHeads: kvHeads, Dim: dim, Rope: rope, Eps: 1e-6},
				&shaders.Attention{Step: sb.View(), Q: q, P: p, K: k.View(), V: v.View(), Y: r.y, F16: f16,
					Carry: shaders.NewMat("carry", shaders.Scratch, capacity, 2*heads), MaxTokens: shape.Pages * shaders.PageTokens,
					Rows: capacity, Heads: heads, KVHeads: kvHeads, Dim: dim, Scale: float32(1 / math.Sqrt(dim))})
			tol := 5e-6
			if f16 {
				tol = 2e-4 // a key at the middle of two halves may go to the one or the other
			}
			checks = append(checks, kerneltest.Check{View: r.y.View, Tol: tol}, kerneltest.Check{View: rowsFrom(r.y, len(r.rows)), Exact: true})
			return r
		}
		k1, v1 := newPools(pages, dim*kvHeads, f16, fill)
		whole := step([2]int{}, lengths, k1, v1)
		k2, v2 := newPools(pages, dim*kvHeads, f16, fill)
		var parts []result
		cuts := [][2]int{{0, 0}, {100, 1}, {101, 2}, {101, 20}, {259, 20}, lengths}
		for i := range cuts[1:] {
			parts = append(parts, step(cuts[i], cuts[i+1], k2, v2))
		}

		m := runTwins(t, ops, fill)
		one, n := shaders.F32(m, whole.y.View), 0
		for _, p := range parts {
			y := shaders.F32(m, p.y.View)
			for at, row := range p.rows {
				a, b := one[whole.rows[at]*whole.y.Stride:][:heads*dim], y[row*p.y.Stride:][:heads*dim]
				if !slices.Equal(a, b) {
					t.Fatalf("sequence %d position %d: %v in one step, %v in several", at[0], at[1], a, b)
				}
				n++
			}
		}
		if n != lengths[0]+lengths[1] {
			t.Fatalf("%d rows compared", n)
		}
		kerneltest.Run(t, kerneltest.Case{Name: fmt.Sprintf("f16=%v", f16), Ops: ops, Fill: fill, Check: checks})
	}
}

func TestAttentionRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 20, MaxGroups: [3]uint32{65535, 65535, 65535}}
	fill := map[*shaders.Buffer][]byte{}
	k, v := newPools(1, 16, false, fill)
	big, _ := newPools(65, 16, false, fill)
	good := shaders.Attention{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View(),
		Q: shaders.NewMat("q", shaders.Scratch, 4, 32), P: shaders.NewMat("p", shaders.Scratch, 4, 64), K: k.View(), V: v.View(),
		Y: shaders.NewMat("y", shaders.Scratch, 4, 32), Carry: shaders.NewMat("carry", shaders.Scratch, 4, 8), MaxTokens: 512, Rows: 4, Heads: 4, KVHeads: 2, Dim: 8, Scale: 1}
	if _, err := good.Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.Attention){
		"heads":   func(o *shaders.Attention) { o.KVHeads = 3 },
		"queries": func(o *shaders.Attention) { o.Q = o.Q.Cols(0, 31) },
		"gates":   func(o *shaders.Attention) { o.P = o.P.Cols(0, 63) },
		"results": func(o *shaders.Attention) { o.Y = o.Y.Cols(0, 31) },
		"rows":    func(o *shaders.Attention) { o.Rows = 5 },
		"pool":    func(o *shaders.Attention) { o.V = big.View() },
	} {
		o := good
		spoil(&o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
