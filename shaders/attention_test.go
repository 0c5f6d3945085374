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
	hot, cold           shaders.KVFormat // cold KVF32: no cold pool
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

// attentionOut is a padded matrix for results, with a carry after it in its buffer.
func attentionOut(rows, heads, dim, before, after int, fill map[*shaders.Buffer][]byte) (y shaders.Mat, carry shaders.View) {
	y = paddedMat("y", rows, heads*dim, before, after, fill)
	n := y.Buf.Size
	y.Buf.Size += int64(rows) * int64(heads) * 8
	fill[y.Buf] = append(fill[y.Buf], make([]byte, y.Buf.Size-n)...)
	return y, y.Buf.View().Slice(n, y.Buf.Size-n)
}

// outRows is the memory of an attentionOut matrix from a row on, up to the carry.
func outRows(y shaders.Mat, carry shaders.View, row int) shaders.View {
	from := int64(row) * int64(y.Stride) * 4
	return y.Buf.View().Slice(from, carry.Off-from)
}

// putToken stores a token's row of a sequence in words of a pool, and returns what the pool then holds.
func putToken(t *testing.T, words []uint32, format shaders.KVFormat, page, at int, row []float32) []float32 {
	t.Helper()
	width, held := len(row), make([]float32, len(row))
	page &^= 1 << 31
	first := page * int(format.PageBytes(width)) / 4
	put := func(half int, h uint16) {
		words[half/2] = words[half/2]&^(0xffff<<(half%2*16)) | uint32(h)<<(half%2*16)
	}
	switch format {
	case shaders.KVF32:
		for e, x := range row {
			words[first+at*width+e], held[e] = math.Float32bits(x), x
		}
	case shaders.KVF16:
		for e, x := range row {
			h := quant.F32ToF16(x)
			put(2*first+at*width+e, h)
			held[e] = quant.F16ToF32(h)
		}
	default: // scales of all blocks, two a word; then their codes
		typ := quant.Q8_0
		if format == shaders.KVQ4_0 {
			typ = quant.Q4_0
		}
		data := make([]byte, width/32*typ.BlockBytes())
		if err := quant.Quantize(typ, data, row); err != nil {
			t.Fatal(err)
		}
		if err := quant.Dequantize(typ, held, data); err != nil {
			t.Fatal(err)
		}
		for b := range width / 32 {
			block := data[b*typ.BlockBytes():][:typ.BlockBytes()]
			i := at*width/32 + b
			put(2*first+i, uint16(block[0])|uint16(block[1])<<8)
			codes := first + shaders.PageTokens*width/64 + i*(len(block)-2)/4
			for j := 2; j < len(block); j += 4 {
				words[codes+j/4] = uint32(block[j]) | uint32(block[j+1])<<8 | uint32(block[j+2])<<16 | uint32(block[j+3])<<24
			}
		}
	}
	return held
}

// fillPools makes pools for the case's sequences and puts their keys and values there. It returns what the pools
// hold of the keys and the values, by sequence.
func (c attentionCase) fillPools(t *testing.T, fill map[*shaders.Buffer][]byte) (hot, cold shaders.KVPool, kept [2][][]float64) {
	t.Helper()
	pages, width := [2]int{2, 2}, c.dim*c.kvHeads
	for _, r := range c.runs {
		for _, p := range r.Pages {
			i := 0
			if p < 0 {
				i = 1
			}
			pages[i] = max(pages[i], int(p&^shaders.PageCold)+2)
		}
	}
	// What belongs to no position up to a sequence's last is not a number, as a float, as two halves and as two
	// scales: whoever reads it is found out.
	const poison = 0x7fc07fc0
	hot = filledPool(pages[0], width, c.hot, poison, fill)
	if c.cold.Cold() {
		cold = filledPool(pages[1], width, c.cold, poison, fill)
	}
	for j, f := range []func(seq, pos, head, e int) float32{c.key, c.value} {
		for s, r := range c.runs {
			var all []float64
			for pos := range r.Pos + len(r.Tokens) {
				row := make([]float32, width)
				for i := range row {
					row[i] = f(s, pos, i/c.dim, i%c.dim)
				}
				page, pool := r.Pages[pos/shaders.PageTokens], hot
				if page < 0 {
					pool = cold
				}
				v := []shaders.View{pool.K, pool.V}[j]
				for _, x := range putToken(t, poolWords(v, fill), pool.Format, int(page&^shaders.PageCold), pos%shaders.PageTokens, row) {
					all = append(all, float64(x))
				}
			}
			kept[j] = append(kept[j], all)
		}
	}
	return hot, cold, kept
}

// inputs gives the rows' queries and projections.
func (c attentionCase) inputs(rows int, fill map[*shaders.Buffer][]byte) (q, proj shaders.Mat) {
	d := c.dim
	q = paddedMat("q", rows, d*c.heads, 1, 0, fill)
	proj = paddedMat("p", rows, 2*d*(c.heads+c.kvHeads), 0, 1, fill)
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
	return q, proj
}

// shape is a step that holds the case and has room for more.
func (c attentionCase) shape() shaders.StepShape {
	longest := 0
	for _, r := range c.runs {
		longest = max(longest, len(r.Pages))
	}
	return shaders.StepShape{Rows: c.rows() + 3, Seqs: len(c.runs) + 1, Pages: longest + 1, Cold: c.cold.Cold()}
}

// run fills pools and rows, compares the twin with the formula and the kernel with the twin.
func (c attentionCase) run(t *testing.T) {
	d, fill, shape := c.dim, map[*shaders.Buffer][]byte{}, c.shape()
	step, data := kerneltest.Step(t, shape, c.runs, nil)
	fill[step] = data
	hot, cold, kept := c.fillPools(t, fill)
	q, proj := c.inputs(shape.Rows, fill)
	y, carry := attentionOut(shape.Rows, c.heads, d, 2, 1, fill)
	op := &shaders.Attention{Step: step.View(), Q: q, P: proj, Hot: hot, Cold: cold, Y: y, Carry: carry,
		MaxTokens: shape.Pages * shaders.PageTokens,
		Rows:      shape.Rows, Heads: c.heads, KVHeads: c.kvHeads, Dim: d, Scale: c.scale}

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
		{View: outRows(y, carry, 0), Tol: 3e-6},
		{View: outRows(y, carry, c.rows()), Exact: true},
	}})
}

// noise is a value from a normal distribution that depends on its arguments only.
func noise(kind uint64, seq, pos, head, e int) float32 {
	return float32(kerneltest.Rand(kind + 8*uint64(seq+8*(head+64*(e+1024*pos)))).NormFloat64())
}

// kvPair is the formats of a cache's pools; cold KVF32 is none.
type kvPair struct{ hot, cold shaders.KVFormat }

func (p kvPair) String() string {
	if p.cold.Cold() {
		return p.hot.String() + "+" + p.cold.String()
	}
	return p.hot.String()
}

// kvFormats are the formats of pages that a cache can have.
var kvFormats = []kvPair{
	{shaders.KVF32, shaders.KVF32}, {shaders.KVF16, shaders.KVF32},
	{shaders.KVF16, shaders.KVQ8_0}, {shaders.KVF16, shaders.KVQ4_0}, {shaders.KVF32, shaders.KVQ8_0},
}

// coldRuns have cold pages before, after and between hot ones; one has none. Page numbers of the pools overlap.
var coldRuns = []shaders.Run{
	{Pos: 530, Tokens: kerneltest.Tokens(3), Pages: []int32{3 | shaders.PageCold, 1, 2}},
	{Pos: 2, Tokens: kerneltest.Tokens(2), Pages: []int32{3}},
	{Pos: 769, Tokens: kerneltest.Tokens(1), Pages: []int32{0, 1 | shaders.PageCold, 0 | shaders.PageCold, 5}},
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
		for _, f := range kvFormats {
			r := random
			r.name = fmt.Sprintf("%dx%dx%d,%s", c.heads, c.kvHeads, c.dim, f)
			r.heads, r.kvHeads, r.dim, r.hot, r.cold = c.heads, c.kvHeads, c.dim, f.hot, f.cold
			if f.cold.Cold() {
				if c.kvHeads*c.dim%32 != 0 || f.hot == shaders.KVF32 && c.dim != 64 {
					continue
				}
				r.runs = coldRuns
			}
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
		for _, large.hot = range []shaders.KVFormat{shaders.KVF32, shaders.KVF16} {
			large.name = fmt.Sprintf("large,%s,%v", name, large.hot)
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
	for _, format := range []shaders.KVFormat{shaders.KVF32, shaders.KVF16} {
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
		step := func(from, to [2]int, kv shaders.KVPool) result {
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
			var carry shaders.View
			r.y, carry = attentionOut(capacity, heads, dim, 0, 0, fill)
			ops = append(ops,
				&shaders.QKRope{Step: sb.View(), P: p, QNorm: norm[0].View(), KNorm: norm[1].View(), Q: q, KV: kv,
					Rows: capacity, Heads: heads, KVHeads: kvHeads, Dim: dim, Rope: rope, Eps: 1e-6},
				&shaders.Attention{Step: sb.View(), Q: q, P: p, Hot: kv, Y: r.y, Carry: carry, MaxTokens: shape.Pages * shaders.PageTokens,
					Rows: capacity, Heads: heads, KVHeads: kvHeads, Dim: dim, Scale: float32(1 / math.Sqrt(dim))})
			tol := 5e-6
			if format == shaders.KVF16 {
				tol = 2e-4 // a key at the middle of two halves may go to the one or the other
			}
			checks = append(checks, kerneltest.Check{View: r.y.View, Tol: tol}, kerneltest.Check{View: outRows(r.y, carry, len(r.rows)), Exact: true})
			return r
		}
		whole := step([2]int{}, lengths, newPool(pages, dim*kvHeads, format, fill))
		second := newPool(pages, dim*kvHeads, format, fill)
		var parts []result
		cuts := [][2]int{{0, 0}, {100, 1}, {101, 2}, {101, 20}, {259, 20}, lengths}
		for i := range cuts[1:] {
			parts = append(parts, step(cuts[i], cuts[i+1], second))
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
		kerneltest.Run(t, kerneltest.Case{Name: format.String(), Ops: ops, Fill: fill, Check: checks})
	}
}

// TestAttentionAlone runs sequences together, in another order, and each in a step of its own with a plan for fewer
// pages and rows: a row's results are the same bits.
func TestAttentionAlone(t *testing.T) {
	for _, f := range kvFormats[:4] {
		c := attentionCase{heads: 4, kvHeads: 2, dim: 48, hot: f.hot, cold: f.cold, scale: 0.25, runs: coldRuns,
			key:   func(s, p, h, e int) float32 { return noise(0, s, p, h, e) },
			value: func(s, p, h, e int) float32 { return noise(1, s, p, h, e) },
			query: func(s, p, h, e int) float32 { return noise(2, s, p, h, e) },
			gate:  func(s, p, h, e int) float32 { return noise(3, s, p, h, e) },
		}
		if !f.cold.Cold() {
			c.runs = nil
			for i, r := range coldRuns {
				r.Pages = []int32{int32(4 * i), int32(4*i + 3), int32(4*i + 1), int32(4*i + 2)}[:len(r.Pages)]
				c.runs = append(c.runs, r)
			}
		}
		fill := map[*shaders.Buffer][]byte{}
		hot, cold, _ := c.fillPools(t, fill)
		shape := c.shape()
		q, proj := c.inputs(shape.Rows, fill)
		rowOf := map[int]int{} // first row of a sequence in q and proj
		for s, n := 0, 0; s < len(c.runs); s++ {
			rowOf[s] = n
			n += len(c.runs[s].Tokens)
		}
		var ops []shaders.Op
		var checks []kerneltest.Check
		var same [][2]shaders.View
		var first shaders.Mat
		for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {0}, {1}, {2}} {
			var runs []shaders.Run
			var qs, ps []float32
			longest := 0
			for _, s := range order {
				runs = append(runs, c.runs[s])
				longest = max(longest, len(c.runs[s].Pages))
				for i := range c.runs[s].Tokens {
					qs = append(qs, shaders.Floats(fill[q.Buf])[int(q.Off)/4+(rowOf[s]+i)*q.Stride:][:q.Width]...)
					ps = append(ps, shaders.Floats(fill[proj.Buf])[int(proj.Off)/4+(rowOf[s]+i)*proj.Stride:][:proj.Width]...)
				}
			}
			rows := len(qs) / q.Width
			step, data := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: len(order), Pages: longest, Cold: shape.Cold}, runs, nil)
			if len(ops) > 0 {
				step.Kind = shaders.State // a case has one step buffer; the others pass as ordinary memory
			}
			fill[step] = data
			in, p := paddedMat("q", rows, q.Width, 0, 0, fill), paddedMat("p", rows, proj.Width, 0, 0, fill)
			setRows(in, qs, fill)
			setRows(p, ps, fill)
			y, carry := attentionOut(rows, c.heads, c.dim, 0, 0, fill)
			ops = append(ops, &shaders.Attention{Step: step.View(), Q: in, P: p, Hot: hot, Cold: cold, Y: y, Carry: carry,
				MaxTokens: longest * shaders.PageTokens, Rows: rows, Heads: c.heads, KVHeads: c.kvHeads, Dim: c.dim, Scale: c.scale})
			checks = append(checks, kerneltest.Check{View: y.View, Tol: 3e-6})
			if len(ops) == 1 {
				first = y
				continue
			}
			row := 0
			for _, s := range order {
				n := int64(len(c.runs[s].Tokens)) * int64(y.Stride) * 4
				same = append(same, [2]shaders.View{first.Slice(int64(rowOf[s]*y.Stride)*4, n), y.Slice(int64(row*y.Stride)*4, n)})
				row += len(c.runs[s].Tokens)
			}
		}
		kerneltest.Run(t, kerneltest.Case{Name: f.String(), Ops: ops, Fill: fill, Check: checks, Same: same})
	}
}

func TestAttentionRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 20, MaxGroups: [3]uint32{65535, 65535, 65535}}
	fill := map[*shaders.Buffer][]byte{}
	hot, big := newPool(1, 16, shaders.KVF32, fill), newPool(65, 16, shaders.KVF32, fill)
	y, carry := shaders.NewAttentionOut("y", 4, 4, 8)
	_, other := shaders.NewAttentionOut("y", 4, 4, 8)
	good := shaders.Attention{Step: shaders.StepShape{Rows: 4, Seqs: 1, Pages: 1}.NewBuffer().View(),
		Q: shaders.NewMat("q", shaders.Scratch, 4, 32), P: shaders.NewMat("p", shaders.Scratch, 4, 64), Hot: hot,
		Y: y, Carry: carry, MaxTokens: 512, Rows: 4, Heads: 4, KVHeads: 2, Dim: 8, Scale: 1}
	if _, err := good.Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.Attention){
		"heads":   func(o *shaders.Attention) { o.KVHeads = 3 },
		"queries": func(o *shaders.Attention) { o.Q = o.Q.Cols(0, 31) },
		"gates":   func(o *shaders.Attention) { o.P = o.P.Cols(0, 63) },
		"results": func(o *shaders.Attention) { o.Y = o.Y.Cols(0, 31) },
		"rows":    func(o *shaders.Attention) { o.Rows = 5 },
		"pool":    func(o *shaders.Attention) { o.Hot.V = big.V },
		"carry":   func(o *shaders.Attention) { o.Carry.Len -= 4 },
		"apart":   func(o *shaders.Attention) { o.Carry = other },
		"inside":  func(o *shaders.Attention) { o.Carry.Off -= 4 },
		"swapped": func(o *shaders.Attention) { o.Hot.Format = shaders.KVQ8_0 },
		"no cold": func(o *shaders.Attention) { o.Cold = hot },
		// Two heads of 8 make half a block.
		"blocks": func(o *shaders.Attention) { o.Cold = shaders.KVPool{K: hot.K, V: hot.V, Format: shaders.KVQ8_0} },
	} {
		o := good
		spoil(&o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
