package shaders_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// encodeBlocks are blocks of 32 that are hard to encode, then random ones of n in all.
func encodeBlocks(r *rand.Rand, n int, format shaders.KVFormat) (blocks [][32]float32) {
	add := func(f func(i int) float64) {
		var b [32]float32
		for i := range b {
			b[i] = float32(f(i))
			if format == shaders.KVF16 {
				b[i] = quant.F16ToF32(quant.F32ToF16(b[i]))
			}
		}
		blocks = append(blocks, b)
	}
	add(func(i int) float64 { return 0 })
	add(func(i int) float64 { return math.Copysign(0, -1) })
	add(func(i int) float64 { return -3 })
	// The first of two extremes decides the sign of Q4_0.
	add(func(i int) float64 { return float64(5 - 10*(i%2)) })
	add(func(i int) float64 { return float64(10*(i%2) - 5) })
	// Between two codes: Q8_0 goes away from zero, Q4_0 up.
	add(func(i int) float64 {
		if i == 7 {
			return 127
		}
		return float64(i) - 15.5
	})
	add(func(i int) float64 {
		if i == 7 {
			return -8
		}
		return float64(i%16)/2 - 4
	})
	// Just below a half of a code, where adding one half would round up.
	add(func(i int) float64 {
		if i == 0 {
			return 127
		}
		return math.Copysign(0.49999997, float64(i%2)-0.5)
	})
	// The largest and smallest that halves hold, and scales that are subnormal halves or zero.
	for _, top := range []float64{65504, 65503, 0x1p-14 * 127, 0x1p-14 * 8, 0x1p-15 * 127, 0x1p-24 * 127, 0x1p-24 * 63.5, 0x1p-24 * 64, 0x1p-22, 0x1p-22 * 1.5, 0x1p-24 * 20, 0x1p-24 * 28, 0x1p-24} {
		for _, sign := range []float64{1, -1} {
			add(func(i int) float64 { return sign * top * float64(17-i) / 17 })
		}
	}
	// The mantissas next to where the quotient by 127 changes its binade.
	for _, m := range []float64{0x1.fbfffep0, 0x1.fcp0, 0x1.fc0002p0, 0x1.fffffep0, 1, 0x1.000002p0} {
		add(func(i int) float64 { return m * float64(31-2*i) / 31 })
	}
	if format == shaders.KVF32 {
		// Beyond the halves, far below them, and scales in the middle of two of them.
		for _, top := range []float64{8 * (1 + 0x1p-11), 8 * (1 + 0x3p-11), 127 * (1 + 0x1p-11), 127 * (1 + 0x3p-11), 65505, 1e9, math.MaxFloat32, 1e-20, 0x1p-126, 0x1p-149} {
			for _, sign := range []float64{1, -1} {
				add(func(i int) float64 { return sign * top * float64(3-i%3) / 3 })
			}
		}
	}
	// Not numbers.
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		add(func(i int) float64 {
			if i == 9 {
				return x
			}
			return float64(i)
		})
	}
	for len(blocks) < n {
		scale := math.Exp2(float64(r.IntN(36) - 24))
		switch r.IntN(3) {
		case 0:
			add(func(i int) float64 { return scale * r.NormFloat64() / 4 })
		case 1: // any finite half
			add(func(i int) float64 { return float64(quant.F16ToF32(uint16(r.UintN(0x7c00) | r.UintN(2)<<15))) })
		default: // near the middle of two codes
			top := scale * (1 + r.Float64()) / 2
			steps := []float64{127, 8}[r.IntN(2)]
			add(func(i int) float64 {
				if i == 3 {
					return -top
				}
				return top / steps * (float64(r.IntN(2*int(steps))-int(steps)) + 0.5)
			})
		}
	}
	return blocks
}

// encoded is a block as its format's reference has it, with what KVEncode says of other values.
func encoded(t *testing.T, typ quant.Type, x [32]float32) []byte {
	t.Helper()
	b, zeros := make([]byte, typ.BlockBytes()), make([]byte, typ.BlockBytes())
	if err := quant.Quantize(typ, zeros, make([]float32, 32)); err != nil {
		t.Fatal(err)
	}
	for i, v := range x {
		if v-v != 0 {
			return append([]byte{0, 0x7e}, zeros[2:]...)
		}
		x[i] = min(max(v, -65504), 65504)
	}
	if err := quant.Quantize(typ, b, x[:]); err != nil {
		t.Fatal(err)
	}
	if b[0] == 0 && b[1]&0x7f == 0 {
		copy(b[2:], zeros[2:])
	}
	return b
}

func TestKVEncode(t *testing.T) {
	for _, hot := range []shaders.KVFormat{shaders.KVF32, shaders.KVF16} {
		for cold, typ := range map[shaders.KVFormat]quant.Type{shaders.KVQ8_0: quant.Q8_0, shaders.KVQ4_0: quant.Q4_0} {
			for _, width := range []int{32, 96, 512} {
				name := fmt.Sprintf("%v to %v,%d", hot, cold, width)
				r := kerneltest.Rand(uint64(width))
				fill := map[*shaders.Buffer][]byte{}
				// Two moves, one with a hot page and one with a cold page that the pools have not; room for one more.
				moves := []shaders.PageMove{{Hot: 2, Cold: 0}, {Hot: 3, Cold: 1}, {Hot: 0, Cold: 2}, {Hot: 1, Cold: 3}}
				shape := shaders.StepShape{Seqs: 2, Moves: len(moves) + 1}
				step, data := kerneltest.Step(t, shape, []shaders.Run{{Moves: moves[:1]}, {Moves: moves[1:]}}, nil)
				fill[step] = data
				from := newPool(3, width, hot, fill)
				to := filledPool(3, width, cold, 0x12345678, fill)
				blocks := shaders.PageTokens * width / 32
				var want [2][3][][]byte // keys and values, by cold page and block
				for i, v := range []shaders.View{from.K, from.V} {
					words := poolWords(v, fill)
					for _, m := range []shaders.PageMove{moves[0], moves[2]} {
						xs := encodeBlocks(r, blocks, hot)
						for b, x := range xs {
							for e, y := range x {
								at := (int(m.Hot)*blocks+b)*32 + e
								if hot == shaders.KVF16 {
									words[at/2] = words[at/2]&^(0xffff<<(at%2*16)) | uint32(quant.F32ToF16(y))<<(at%2*16)
								} else {
									words[at] = math.Float32bits(y)
								}
							}
							want[i][m.Cold] = append(want[i][m.Cold], encoded(t, typ, x))
						}
					}
				}
				op := &shaders.KVEncode{Step: step.View(), Hot: from, Cold: to, Width: width, Moves: shape.Moves}

				mem := runTwins(t, []shaders.Op{op}, fill)
				for i, v := range []shaders.View{to.K, to.V} {
					page := cold.PageBytes(width)
					for p, bs := range want[i] {
						got := mem.Bytes(v)[int64(p)*page:][:page]
						if bs == nil {
							if !bytes.Equal(got, fill[v.Buf][v.Off+int64(p)*page:][:page]) {
								t.Fatalf("%s: page %d, which no move names, has changed", name, p)
							}
							continue
						}
						for b, x := range bs {
							codes := got[2*blocks+b*(len(x)-2):][:len(x)-2]
							if !bytes.Equal(got[2*b:2*b+2], x[:2]) || !bytes.Equal(codes, x[2:]) {
								t.Fatalf("%s: page %d block %d: scale %x and codes %x, the reference has %x", name, p, b, got[2*b:2*b+2], codes, x)
							}
						}
					}
				}
				kerneltest.Run(t, kerneltest.Case{Name: name, Ops: []shaders.Op{op}, Fill: fill,
					Check: []kerneltest.Check{{View: to.K, Exact: true}, {View: to.V, Exact: true}}})
			}
		}
	}
}

// TestKVEncodeAttention lets attention read three pages of a sequence from the hot pool and, once they are
// re-encoded, from the cold one, and compares the difference with what the format's errors make of it.
func TestKVEncodeAttention(t *testing.T) {
	const heads, kvHeads, dim, tokens = 4, 2, 64, 4
	const width = kvHeads * dim
	// The errors of the formats on normal values (weights.md 3.5).
	for cold, e := range map[shaders.KVFormat]float64{shaders.KVQ8_0: 0.0053, shaders.KVQ4_0: 0.0860} {
		fill := map[*shaders.Buffer][]byte{}
		run := shaders.Run{Pos: 3 * shaders.PageTokens, Tokens: kerneltest.Tokens(tokens), Pages: []int32{2, 0, 3, 1}}
		later := run
		later.Pages = []int32{1 | shaders.PageCold, 2 | shaders.PageCold, 0 | shaders.PageCold, 1}
		encode := shaders.Run{Moves: []shaders.PageMove{{Hot: 2, Cold: 1}, {Hot: 0, Cold: 2}, {Hot: 3, Cold: 0}}}
		shape := shaders.StepShape{Rows: tokens, Seqs: 1, Pages: 4, Cold: true}
		step, data := kerneltest.Step(t, shape, []shaders.Run{run}, nil)
		fill[step] = data
		moveShape := shaders.StepShape{Seqs: 1, Moves: 3}
		moving, data := kerneltest.Step(t, moveShape, []shaders.Run{encode}, nil)
		fill[moving], moving.Kind = data, shaders.State
		after, data := kerneltest.Step(t, shape, []shaders.Run{later}, nil)
		fill[after], after.Kind = data, shaders.State
		c := attentionCase{heads: heads, kvHeads: kvHeads, dim: dim, hot: shaders.KVF16, runs: []shaders.Run{run},
			key:   func(s, p, h, e int) float32 { return noise(0, s, p, h, e) },
			value: func(s, p, h, e int) float32 { return noise(1, s, p, h, e) },
			query: func(s, p, h, e int) float32 { return 2 * noise(2, s, p, h, e) },
			gate:  func(s, p, h, e int) float32 { return noise(3, s, p, h, e) },
		}
		hot, _, _ := c.fillPools(t, fill)
		q, proj := c.inputs(tokens, fill)
		coldPool := filledPool(3, width, cold, 0x7fc07fc0, fill)
		attend := func(step *shaders.Buffer) *shaders.Attention {
			y, carry := attentionOut(tokens, heads, dim, 0, 0, fill)
			return &shaders.Attention{Step: step.View(), Q: q, P: proj, Hot: hot, Cold: coldPool, Y: y, Carry: carry,
				Rows: tokens, Heads: heads, KVHeads: kvHeads, Dim: dim, Scale: 1.0 / 8, MaxTokens: 4 * shaders.PageTokens}
		}
		one, two := attend(step), attend(after)
		ops := []shaders.Op{one, &shaders.KVEncode{Step: moving.View(), Hot: hot, Cold: coldPool, Width: width, Moves: 3}, two}
		m := runTwins(t, ops, fill)
		a, b := shaders.F32(m, one.Y.View), shaders.F32(m, two.Y.View)
		diff, sum := 0.0, 0.0
		for i := range a {
			diff += math.Pow(float64(a[i]-b[i]), 2)
			sum += math.Pow(float64(a[i]), 2)
		}
		rel := math.Sqrt(diff / sum)
		t.Logf("%v: the results of attention are off by %.5f of their size", cold, rel)
		// A score is the product of a key with a query whose scaled length is 2, so that it, and a weight relative to
		// its size, is off by 2e; a value is off by e. A mean of independent values is off, relative to its own
		// size, as each of them is.
		if want := e * math.Sqrt(5); rel < 0.7*want || rel > 1.05*want {
			t.Errorf("%v: the results of attention are off by %.5f of their size, want about %.5f", cold, rel, want)
		}
		kerneltest.Run(t, kerneltest.Case{Name: cold.String(), Ops: ops, Fill: fill, Check: []kerneltest.Check{
			{View: one.Y.View, Tol: 3e-6}, {View: coldPool.K, Exact: true}, {View: coldPool.V, Exact: true}, {View: two.Y.View, Tol: 3e-6}}})
	}
}

func TestKVEncodeRefuses(t *testing.T) {
	p := &shaders.Profile{Subgroup: 8, MaxBinding: 1 << 20, MaxGroups: [3]uint32{65535, 64, 64}}
	fill := map[*shaders.Buffer][]byte{}
	good := shaders.KVEncode{Step: shaders.StepShape{Seqs: 1, Moves: 4}.NewBuffer().View(), Width: 32, Moves: 4,
		Hot: newPool(1, 32, shaders.KVF16, fill), Cold: filledPool(1, 32, shaders.KVQ4_0, 0, fill)}
	if _, err := good.Lower(p); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(o *shaders.KVEncode){
		"no moves":   func(o *shaders.KVEncode) { o.Moves = 0 },
		"many moves": func(o *shaders.KVEncode) { o.Moves = 65 },
		"width":      func(o *shaders.KVEncode) { o.Width = 48 },
		"cold hot":   func(o *shaders.KVEncode) { o.Hot = o.Cold },
		"hot cold":   func(o *shaders.KVEncode) { o.Cold = o.Hot },
		"no cold":    func(o *shaders.KVEncode) { o.Cold = shaders.KVPool{} },
		"large":      func(o *shaders.KVEncode) { o.Hot = newPool(65, 32, shaders.KVF32, fill) },
	} {
		o := good
		spoil(&o)
		if _, err := o.Lower(p); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	few := *p
	few.MaxLoops = 100
	if _, err := good.Lower(&few); err == nil {
		t.Error("loops: not refused")
	}
}
