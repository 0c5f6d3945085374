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

// plainRope is the rotation of model-qwen35.md 5.4 for this many dimensions, without scaling.
type plainRope int

func (n plainRope) angle(pos, pair int) float64 {
	return float64(pos) * math.Pow(1e7, -2*float64(pair)/float64(n))
}

func (n plainRope) Row(pos int) []float32 {
	row := make([]float32, n)
	for i := range int(n) / 2 {
		row[2*i], row[2*i+1] = float32(math.Cos(n.angle(pos, i))), float32(math.Sin(n.angle(pos, i)))
	}
	return row
}

// newPool returns a pool of this many F32 or F16 pages of width elements a token, every element 7.5.
func newPool(pages, width int, format shaders.KVFormat, fill map[*shaders.Buffer][]byte) shaders.KVPool {
	word := math.Float32bits(7.5)
	if format == shaders.KVF16 {
		word = 0x47804780
	}
	return filledPool(pages, width, format, word, fill)
}

// filledPool returns a pool of pages of any format, every word the same. Its parts begin at words of their own
// inside their buffers.
func filledPool(pages, width int, format shaders.KVFormat, word uint32, fill map[*shaders.Buffer][]byte) shaders.KVPool {
	p := shaders.KVPool{Format: format}
	for i, v := range []*shaders.View{&p.K, &p.V} {
		size, before := int64(pages)*format.PageBytes(width), int64(4+8*i)
		b := &shaders.Buffer{Name: "kv"[i : i+1], Kind: shaders.State, Size: before + size}
		w := make([]uint32, b.Size/4)
		for j := range w {
			w[j] = word
		}
		fill[b], *v = kerneltest.Words(w), b.View().Slice(before, size)
	}
	return p
}

// poolWords are the words that a view of a pool begins with.
func poolWords(v shaders.View, fill map[*shaders.Buffer][]byte) []uint32 {
	return shaders.Words(fill[v.Buf])[v.Off/4:]
}

// poolValue is element i of the words of a pool of F32 or F16 pages.
func poolValue(words []uint32, format shaders.KVFormat, i int) float64 {
	if format == shaders.KVF16 {
		return float64(quant.F16ToF32(uint16(words[i/2] >> (i % 2 * 16))))
	}
	return float64(math.Float32frombits(words[i]))
}

// physical is the place of a position in a pool, in tokens.
func physical(r shaders.Run, pos int) int {
	return int(r.Pages[pos/shaders.PageTokens])*shaders.PageTokens + pos%shaders.PageTokens
}

func TestQKRope(t *testing.T) {
	// The start of one sequence, one that goes on over a page boundary, a single token of a long one; pages
	// in no order, and page 6 nobody's.
	runs := []shaders.Run{
		{Pos: 0, Tokens: kerneltest.Tokens(3), Pages: []int32{2}, Fresh: true},
		{Pos: 254, Tokens: kerneltest.Tokens(5), Pages: []int32{4, 1}},
		{Pos: 700, Tokens: kerneltest.Tokens(1), Pages: []int32{0, 5, 3}},
	}
	const rows, pages = 9, 7
	written := map[int]bool{}
	for _, run := range runs {
		for i := range run.Tokens {
			// Tokens are the places of the row's keys, so that the check below can look them up.
			run.Tokens[i] = int32(physical(run, run.Pos+i))
			written[int(run.Tokens[i])] = true
		}
	}
	for i, c := range []struct {
		heads, kvHeads, dim, rope int
		loud                      bool // keys that halves cannot hold
	}{
		{1, 16, 2, 2, false},
		{3, 16, 10, 4, false}, // no subgroup's lanes divide 5 pairs
		{2, 4, 40, 38, false},
		{2, 1, 64, 64, false},
		{2, 1, 64, 0, false},
		{4, 2, 48, 16, true},
		{16, 2, 256, 64, false},
	} {
		for _, format := range []shaders.KVFormat{shaders.KVF32, shaders.KVF16} {
			f16 := format == shaders.KVF16
			name := fmt.Sprintf("%dx%dx%d,%d,%v", c.heads, c.kvHeads, c.dim, c.rope, format)
			r, d := kerneltest.Rand(uint64(i)), c.dim
			fill := map[*shaders.Buffer][]byte{}
			shape := shaders.StepShape{Rows: 12, Seqs: 4, Pages: 3, Rope: c.rope}
			step, data := kerneltest.Step(t, shape, runs, plainRope(c.rope))
			fill[step] = data
			proj := paddedMat("p", shape.Rows, 2*d*(c.heads+c.kvHeads), 1, 3, fill)
			q := paddedMat("q", shape.Rows, d*c.heads, 2, 1, fill)
			in := kerneltest.Normal(r, shape.Rows*proj.Width)
			valueCol := 2*d*c.heads + d*c.kvHeads
			// Values are only converted: below and above what halves hold, between two of them, and beyond.
			copy(in[valueCol:], []float32{1e-6, 70000})
			copy(in[proj.Width+valueCol:], []float32{-1e9, 65519})
			setRows(proj, in, fill)
			norms := [2][]float32{kerneltest.Normal(r, d), kerneltest.Normal(r, d)}
			if c.loud {
				for j := range norms[1] {
					norms[1][j] *= 1e6
				}
			}
			var nb [2]*shaders.Buffer
			for j, n := range norms {
				nb[j] = &shaders.Buffer{Name: "norm", Kind: shaders.Weight, Size: int64(d) * 4}
				fill[nb[j]] = kerneltest.Floats(n)
			}
			kv := newPool(pages, d*c.kvHeads, format, fill)
			k, v := kv.K, kv.V
			op := &shaders.QKRope{Step: step.View(), P: proj, QNorm: nb[0].View(), KNorm: nb[1].View(), Q: q, KV: kv,
				Rows: shape.Rows, Heads: c.heads, KVHeads: c.kvHeads, Dim: d, Rope: c.rope, Eps: 1e-6}

			m := runTwins(t, []shaders.Op{op}, fill)
			gq, gk, gv := shaders.F32(m, q.View), shaders.U32(m, k), shaders.U32(m, v)
			tol := 1e-6
			if f16 {
				tol = 5e-4 // half of a half's last bit
			}
			stored := func(x float64) float64 {
				if f16 {
					return max(-65504, min(65504, x))
				}
				return x
			}
			row := 0
			for _, run := range runs {
				for p := run.Pos; p < run.Pos+len(run.Tokens); p++ {
					x := in[row*proj.Width : (row+1)*proj.Width]
					for h := range c.heads {
						want := ropedHead(x[2*d*h:2*d*h+d], norms[0], plainRope(c.rope), p)
						for e, w := range want {
							near(t, fmt.Sprintf("%s q row %d head %d element %d", name, row, h, e), gq[row*q.Stride+d*h+e], w, 1, 2e-6)
						}
					}
					at := physical(run, p) * d * c.kvHeads
					for g := range c.kvHeads {
						want := ropedHead(x[2*d*c.heads+d*g:][:d], norms[1], plainRope(c.rope), p)
						// A small element may be what is left of two large ones turned by float32 angles.
						turned := 2e-7 * max(slices.Max(want), -slices.Min(want))
						for e, w := range want {
							what := fmt.Sprintf("%s row %d KV head %d element %d", name, row, g, e)
							near(t, what, float32(poolValue(gk, format, at+d*g+e)), stored(w), tol*(1+math.Abs(stored(w)))+turned, 1)
							w = stored(float64(x[valueCol+d*g+e]))
							near(t, what, float32(poolValue(gv, format, at+d*g+e)), w, math.Abs(w)+1e-4, tol)
						}
					}
					row++
				}
			}

			checks := []kerneltest.Check{
				{View: q.Buf.View(), Tol: 2e-6},
				{View: rowsFrom(q, rows), Exact: true},
				{View: v, Exact: true},
			}
			// Places of no row are as they were.
			per := k.Len / (pages * shaders.PageTokens)
			for tok, from := 0, 0; tok <= pages*shaders.PageTokens; tok++ {
				if tok == pages*shaders.PageTokens || written[tok] {
					if tok > from {
						checks = append(checks, kerneltest.Check{View: k.Slice(int64(from)*per, int64(tok-from)*per), Exact: true})
					}
					from = tok + 1
				}
			}
			// Written keys are compared as floats, which for halves takes a look-up: words of halves cannot
			// be compared within a tolerance.
			look := paddedMat("look", shape.Rows, d*c.kvHeads, 0, 0, fill)
			typ := quant.F32
			if f16 {
				typ = quant.F16
			}
			ops := []shaders.Op{op, &shaders.Embed{Step: step.View(), Y: look, Rows: shape.Rows,
				W: shaders.Matrix{View: k, Name: "k", Type: typ, In: d * c.kvHeads, Out: pages * shaders.PageTokens}}}
			checks = append(checks, kerneltest.Check{View: look.View, Tol: 2 * tol})
			kerneltest.Run(t, kerneltest.Case{Name: name, Ops: ops, Fill: fill, Check: checks})
		}
	}
}

// ropedHead is model-qwen35.md 5.1 steps 2 and 3 for one head.
func ropedHead(x, w []float32, rope plainRope, pos int) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v) / math.Sqrt(sum/float64(len(x))+1e-6) * float64(w[i])
	}
	for i := range int(rope) / 2 {
		j := i + int(rope)/2
		s, c := math.Sincos(rope.angle(pos, i))
		y[i], y[j] = y[i]*c-y[j]*s, y[i]*s+y[j]*c
	}
	return y
}

func TestQKRopeRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 20, MaxGroups: [3]uint32{65535, 65535, 65535}}
	fill := map[*shaders.Buffer][]byte{}
	kv, big := newPool(1, 16, shaders.KVF32, fill), newPool(65, 16, shaders.KVF32, fill)
	norm := &shaders.Buffer{Name: "norm", Kind: shaders.Weight, Size: 32}
	good := shaders.QKRope{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1, Rope: 4}.NewBuffer().View(),
		P: shaders.NewMat("p", shaders.Scratch, 4, 2*8*6), QNorm: norm.View(), KNorm: norm.View(), Q: shaders.NewMat("q", shaders.Scratch, 4, 32),
		KV: kv, Rows: 4, Heads: 4, KVHeads: 2, Dim: 8, Rope: 4}
	if _, err := good.Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.QKRope){
		"odd head":      func(o *shaders.QKRope) { o.Dim = 7 },
		"odd rotation":  func(o *shaders.QKRope) { o.Rope = 3 },
		"long rotation": func(o *shaders.QKRope) { o.Rope = 10 },
		"projections":   func(o *shaders.QKRope) { o.P = o.P.Cols(0, 95) },
		"queries":       func(o *shaders.QKRope) { o.Q = o.Q.Cols(0, 31) },
		"norm":          func(o *shaders.QKRope) { o.KNorm.Len = 28 },
		"rows":          func(o *shaders.QKRope) { o.Rows = 5 },
		"pool":          func(o *shaders.QKRope) { o.KV.K = big.K },
		"cold pool":     func(o *shaders.QKRope) { o.KV.Format = shaders.KVQ8_0 },
	} {
		o := good
		spoil(&o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
