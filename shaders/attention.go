package shaders

import (
	"fmt"
	"math"
)

// Attention is causal attention over the page pools, gated (model-qwen35.md 5.1 steps 5 and 6): query head j
// of a row uses KV head j/(Heads/KVHeads) and attends to positions 0 up to the row's own of its sequence,
//
//	y_j = softmax(Scale · q_j·k) · v * sigmoid(gate_j)
//
// D is Dim, H Heads, Hkv KVHeads. The row's own key and value are in the pools before ([QKRope]).
type Attention struct {
	Step                      View
	Q                         Mat  // rows x H·D, normed and rotated
	P                         Mat  // the projections; the gate of head j is columns 2·D·j+D up to 2·D·(j+1)
	K, V                      View // page pools, as in QKRope
	Y                         Mat  // rows x H·D
	Carry                     Mat  // rows x 2·H, the op's own between its dispatches
	F16                       bool // the pools hold halves
	Rows, Heads, KVHeads, Dim int
	Scale                     float32 // 1/sqrt(D) unless the model says otherwise
	MaxTokens                 int     // tokens a row attends to at most
}

func attentionModules() []Module {
	return []Module{{Name: "attention", Source: "attention.comp", Buffers: 7, Params: 8}}
}

func (o *Attention) Kernel() string { return "attention" }

func (o *Attention) Operands() []Operand {
	return []Operand{R(o.Step), R(o.Q.View), R(o.P.View), R(o.K), R(o.V), W(o.Y.View), W(o.Carry.View)}
}

// Contents says that Carry is the dispatches' own.
func (o *Attention) Contents(operand int) Content {
	if operand == 6 {
		return Notes
	}
	return Values
}

// Cost counts the keys and values once for each row, as if the query heads of a KV head shared them.
func (o *Attention) Cost() Cost {
	r, d := int64(o.Rows), int64(o.Dim)
	q, kv := r*int64(o.Heads)*d, r*int64(o.KVHeads)*d
	n := int64(o.MaxTokens)
	return Cost{Bytes: 4*3*q + 2*kv*n*kvBytes(o.F16), Flops: 4 * q * n}
}

func (o *Attention) Lower(p *Profile) ([]Dispatch, error) {
	d := o.Dim
	switch {
	case o.Heads < 1 || o.KVHeads < 1 || o.Heads%o.KVHeads != 0 || d < 2 || d%2 != 0:
		return nil, fmt.Errorf("attention: %d query heads on %d KV heads of %d", o.Heads, o.KVHeads, d)
	case o.Q.Width != d*o.Heads || o.Y.Width != d*o.Heads || o.P.Width < 2*d*o.Heads:
		return nil, fmt.Errorf("attention: widths %d, %d and %d for %d heads of %d", o.Q.Width, o.P.Width, o.Y.Width, o.Heads, d)
	case o.MaxTokens < 1 || o.Carry.Width != 2*o.Heads || o.Carry.Stride != o.Carry.Width || !o.Carry.holds(o.Rows):
		return nil, fmt.Errorf("attention: %d tokens, %d floats of carry for %d heads", o.MaxTokens, o.Carry.Width, o.Heads)
	case !o.Q.holds(o.Rows) || !o.P.holds(o.Rows) || !o.Y.holds(o.Rows):
		return nil, fmt.Errorf("attention: matrices of %d, %d and %d bytes do not hold %d rows", o.Q.Len, o.P.Len, o.Y.Len, o.Rows)
	}
	if err := checkPools("attention", o.K, o.V, p); err != nil {
		return nil, err
	}
	groups, err := p.grid("attention", o.Heads, o.Rows, 1)
	if err != nil {
		return nil, err
	}
	pairs := ceilDiv(d/2, int(p.Subgroup))
	// A turn takes attentionKeys keys: their scores, sums and weights, then every pair's share of the values.
	turns, err := p.spans(ceilDiv(o.MaxTokens, attentionKeys), attentionKeys*(pairs+4)+pairs*(attentionKeys+1)+1, 2*pairs)
	if err != nil {
		return nil, fmt.Errorf("attention: %w", err)
	}
	var ds []Dispatch
	for _, t := range turns {
		bind := o.Operands()
		bind[5].Access, bind[6].Access = ReadWrite, ReadWrite
		ds = append(ds, Dispatch{
			Module: "attention",
			Spec:   append(p.ReduceSpec(), flag(o.F16), uint32(d), uint32(pairs)),
			Bind:   bind,
			Push: []uint32{uint32(o.Q.Stride), uint32(o.P.Stride), uint32(o.Y.Stride), uint32(o.Heads), uint32(o.KVHeads),
				uint32(t.first * attentionKeys), uint32(t.count * attentionKeys), math.Float32bits(o.Scale)},
			Groups: groups,
		})
	}
	return ds, nil
}

// attentionKeys is KEYS of attention.comp.
const attentionKeys = 4

func (o *Attention) Twin(m Memory) error {
	s := ViewStep(m, o.Step)
	q, p, y := F32(m, o.Q.View), F32(m, o.P.View), F32(m, o.Y.View)
	k, v := kvPool{U32(m, o.K), o.F16}, kvPool{U32(m, o.V), o.F16}
	d := o.Dim
	return parallel(s.Rows()*o.Heads, func(from, to int) error {
		scores, sum := []float64(nil), make([]float64, d)
		for i := from; i < to; i++ {
			r, h := i/o.Heads, i%o.Heads
			query, gate, out := o.Q.row(q, r)[d*h:], o.P.row(p, r)[2*d*h+d:], o.Y.row(y, r)[d*h:]
			at := func(pos int) int { return (s.KVToken(s.Seq(r), pos)*o.KVHeads + h/(o.Heads/o.KVHeads)) * d }
			scores = scores[:0]
			top := math.Inf(-1)
			for pos := range s.Pos(r) + 1 {
				score, a := 0.0, at(pos)
				for e := range d {
					score += float64(query[e]) * float64(k.at(a+e))
				}
				score *= float64(o.Scale)
				top = max(top, score)
				scores = append(scores, score)
			}
			clear(sum)
			total := 0.0
			for pos, score := range scores {
				w, a := math.Exp(score-top), at(pos)
				total += w
				for e := range d {
					sum[e] += w * float64(v.at(a+e))
				}
			}
			for e := range d {
				out[e] = float32(sum[e] / total / (1 + math.Exp(-float64(gate[e]))))
			}
		}
		return nil
	})
}
