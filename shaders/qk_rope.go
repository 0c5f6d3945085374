package shaders

import (
	"fmt"
	"math"
)

// QKRope prepares attention (model-qwen35.md 5.1 steps 2 to 4 and 5.4): every query and key head is
// RMS-normed and its first Rope dimensions are rotated, NEOX pairs (i, i+Rope/2) by the step's table; keys
// and values, which are neither normed nor rotated, go to the row's place in the page pools.
//
// D is Dim, H Heads, Hkv KVHeads. Gates stay in P, where [Attention] reads them.
type QKRope struct {
	Step View
	P    Mat // rows x (2·D·H + 2·D·Hkv): per head D of query, D of gate; then Hkv·D of keys, Hkv·D of values
	// QNorm and KNorm are D float32 each, shared by all heads.
	QNorm, KNorm                    View
	Q                               Mat    // rows x H·D: the queries
	KV                              KVPool // in F32 or F16; a token's row is Hkv·D elements
	Rows, Heads, KVHeads, Dim, Rope int
	Eps                             float32
}

func qkRopeModules() []Module {
	return []Module{{Name: "qk_rope", Source: "qk_rope.comp", Buffers: 7, Params: 7}}
}

func (o *QKRope) Kernel() string { return "qk_rope" }

func (o *QKRope) Operands() []Operand {
	return []Operand{R(o.Step), R(o.P.View), R(o.QNorm), R(o.KNorm), W(o.Q.View), W(o.KV.K), W(o.KV.V)}
}

// Contents says that F16 pages hold halves.
func (o *QKRope) Contents(operand int) Content {
	if operand >= 5 && o.KV.Format == KVF16 {
		return Halves
	}
	return Values
}

func (o *QKRope) Cost() Cost {
	q, kv := int64(o.Rows)*int64(o.Heads)*int64(o.Dim), int64(o.Rows)*int64(o.KVHeads)*int64(o.Dim)
	return Cost{
		Weights: o.QNorm.Len + o.KNorm.Len,
		Bytes:   4*(q+2*kv) + 4*q + int64(o.Rows)*2*o.KV.Format.PageBytes(o.KVHeads*o.Dim)/PageTokens,
		Flops:   7 * (q + kv),
	}
}

func (o *QKRope) Lower(p *Profile) ([]Dispatch, error) {
	d := o.Dim
	switch {
	case o.Heads < 1 || o.KVHeads < 1 || d < 2 || d%2 != 0 || o.Rope < 0 || o.Rope%2 != 0 || o.Rope > d:
		return nil, fmt.Errorf("qk_rope: %d and %d heads of %d, %d of them rotated", o.Heads, o.KVHeads, d, o.Rope)
	case o.P.Width != 2*d*(o.Heads+o.KVHeads) || o.Q.Width != d*o.Heads || o.QNorm.Len != 4*int64(d) || o.KNorm.Len != 4*int64(d):
		return nil, fmt.Errorf("qk_rope: widths %d and %d, norms of %d and %d bytes for %d and %d heads of %d",
			o.P.Width, o.Q.Width, o.QNorm.Len, o.KNorm.Len, o.Heads, o.KVHeads, d)
	case !o.P.holds(o.Rows) || !o.Q.holds(o.Rows):
		return nil, fmt.Errorf("qk_rope: matrices of %d and %d bytes do not hold %d rows", o.P.Len, o.Q.Len, o.Rows)
	}
	if err := o.KV.check("qk_rope", o.KVHeads*d, false, p); err != nil {
		return nil, err
	}
	groups, err := p.grid("qk_rope", o.Heads+2*o.KVHeads, o.Rows, 1)
	if err != nil {
		return nil, err
	}
	return []Dispatch{{
		Module: "qk_rope",
		Spec:   append(p.ReduceSpec(), flag(o.KV.Format == KVF16)),
		Bind:   o.Operands(),
		Push: []uint32{uint32(o.P.Stride), uint32(o.Q.Stride), uint32(o.Heads), uint32(o.KVHeads),
			uint32(d), uint32(o.Rope), math.Float32bits(o.Eps)},
		Groups: groups,
	}}, nil
}

func (o *QKRope) Twin(m Memory) error {
	s := ViewStep(m, o.Step)
	p, q := F32(m, o.P.View), F32(m, o.Q.View)
	qn, kn := F32(m, o.QNorm), F32(m, o.KNorm)
	d := o.Dim
	kv := o.KV.words(m, o.KVHeads*d)
	for r := range s.Rows() {
		in, out, rope := o.P.row(p, r), o.Q.row(q, r), s.Rope(r)
		if len(rope) < o.Rope {
			return fmt.Errorf("qk_rope: the step's table rotates %d dimensions, not %d", len(rope), o.Rope)
		}
		for h := range o.Heads {
			copy(out[h*d:], o.rotate(in[2*d*h:][:d], qn, rope))
		}
		token, cold := s.KVToken(s.Seq(r), s.Pos(r))
		if cold {
			return fmt.Errorf("qk_rope: position %d of sequence %d lies in a cold page", s.Pos(r), s.Seq(r))
		}
		keys, at := in[2*d*o.Heads:], token*o.KVHeads*d
		values := keys[d*o.KVHeads:]
		for g := range o.KVHeads {
			for i, x := range o.rotate(keys[d*g:][:d], kn, rope) {
				kv[0].set(at+d*g+i, x)
				kv[1].set(at+d*g+i, values[d*g+i])
			}
		}
	}
	return nil
}

// rotate returns the head x normed by the weights w and rotated by a row of the rope table.
func (o *QKRope) rotate(x, w, rope []float32) []float32 {
	scale := rmsScale(x, o.Eps)
	n := make([]float64, o.Dim)
	for i := range n {
		n[i] = float64(x[i]) * scale * float64(w[i])
	}
	for i, h := 0, o.Rope/2; i < h; i++ {
		a, b, c, s := n[i], n[i+h], float64(rope[2*i]), float64(rope[2*i+1])
		n[i], n[i+h] = a*c-b*s, a*s+b*c
	}
	y := make([]float32, o.Dim)
	for i := range y {
		y[i] = float32(n[i])
	}
	return y
}
