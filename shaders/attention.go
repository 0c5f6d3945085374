package shaders

import (
	"errors"
	"fmt"
	"math"
)

// Attention is causal attention over the page pools, gated (model-qwen35.md 5.1 steps 5 and 6): query head j
// of a row uses KV head j/(Heads/KVHeads) and attends to positions 0 up to the row's own of its sequence,
//
//	y_j = softmax(Scale · q_j·k) · v * sigmoid(gate_j)
//
// D is Dim, H Heads, Hkv KVHeads. The row's own key and value are in the hot pool before ([QKRope]); earlier pages of
// its sequence may be in either pool, as the step's page table says. What a row gets depends on its query, its
// gate and its sequence's keys and values alone, bit for bit, whatever else is in the step and wherever they lie.
type Attention struct {
	Step                      View
	Q                         Mat    // rows x H·D, normed and rotated
	P                         Mat    // the projections; the gate of head j is columns 2·D·j+D up to 2·D·(j+1)
	Hot                       KVPool // F32 or F16 pages, as QKRope writes them
	Cold                      KVPool // Q8_0 or Q4_0 pages, or none
	Y                         Mat    // rows x H·D
	Carry                     View   // rows x 2·H float32, the op's own between its dispatches; see NewAttentionOut
	Rows, Heads, KVHeads, Dim int
	Scale                     float32 // 1/sqrt(D) unless the model says otherwise
	MaxTokens                 int     // tokens a row attends to at most
}

// NewAttentionOut returns a matrix for the results of attention and, in the same new scratch buffer so that one
// binding reaches both, its carry.
func NewAttentionOut(name string, rows, heads, dim int) (y Mat, carry View) {
	w := heads * dim
	b := &Buffer{Name: name, Kind: Scratch, Size: int64(rows) * int64(w+2*heads) * 4}
	n := int64(rows) * int64(w) * 4
	return Mat{View: b.View().Slice(0, n), Width: w, Stride: w}, b.View().Slice(n, b.Size-n)
}

func attentionModules() []Module {
	return []Module{
		{Name: "attention", Source: "attention.comp", Buffers: 6, Params: 9},
		{Name: "attention.cold", Source: "attention.comp", Defines: []string{"COLD"}, Buffers: 8, Params: 9},
	}
}

func (o *Attention) Kernel() string { return "attention" }

func (o *Attention) Operands() []Operand {
	ops := []Operand{R(o.Step), R(o.Q.View), R(o.P.View), R(o.Hot.K), R(o.Hot.V), W(o.Y.View), W(o.Carry)}
	if !o.Cold.none() {
		ops = append(ops, R(o.Cold.K), R(o.Cold.V))
	}
	return ops
}

// Contents says that Carry is the dispatches' own.
func (o *Attention) Contents(operand int) Content {
	if operand == 6 {
		return Notes
	}
	return Values
}

// Cost counts the keys and values once for each row, as if the query heads of a KV head shared them, and all of
// them as cold where there is a cold pool: a context that fills its pages has few others.
func (o *Attention) Cost() Cost {
	r, d := int64(o.Rows), int64(o.Dim)
	q, n := r*int64(o.Heads)*d, int64(o.MaxTokens)
	format := o.Hot.Format
	if !o.Cold.none() {
		format = o.Cold.Format
	}
	return Cost{Bytes: 4*3*q + 2*r*n*format.PageBytes(o.KVHeads*o.Dim)/PageTokens, Flops: 4 * q * n}
}

func (o *Attention) Lower(p *Profile) ([]Dispatch, error) {
	d := o.Dim
	switch {
	case o.Heads < 1 || o.KVHeads < 1 || o.Heads%o.KVHeads != 0 || d < 2 || d%2 != 0:
		return nil, fmt.Errorf("attention: %d query heads on %d KV heads of %d", o.Heads, o.KVHeads, d)
	case o.Q.Width != d*o.Heads || o.Y.Width != d*o.Heads || o.P.Width < 2*d*o.Heads:
		return nil, fmt.Errorf("attention: widths %d, %d and %d for %d heads of %d", o.Q.Width, o.P.Width, o.Y.Width, o.Heads, d)
	case o.MaxTokens < 1 || !o.Carry.Valid() || o.Carry.Len < int64(o.Rows)*int64(o.Heads)*8 ||
		o.Carry.Buf != o.Y.Buf || o.Carry.Off < o.Y.Off+o.Y.Len:
		return nil, fmt.Errorf("attention: %d tokens, a carry of %d bytes for %d rows of %d heads; it must follow the results in their buffer",
			o.MaxTokens, o.Carry.Len, o.Rows, o.Heads)
	case !o.Q.holds(o.Rows) || !o.P.holds(o.Rows) || !o.Y.holds(o.Rows):
		return nil, fmt.Errorf("attention: matrices of %d, %d and %d bytes do not hold %d rows", o.Q.Len, o.P.Len, o.Y.Len, o.Rows)
	}
	if err := o.Hot.check("attention", o.KVHeads*d, false, p); err != nil {
		return nil, err
	}
	module, spec := "attention", append(p.ReduceSpec(), flag(o.Hot.Format == KVF16), uint32(d), uint32(ceilDiv(d/2, int(p.Subgroup))))
	results := o.Y.View // and the carry after them
	results.Len, results.Pitch, results.Row = o.Carry.Off+o.Carry.Len-o.Y.Off, 0, 0
	bind := []Operand{R(o.Step), R(o.Q.View), R(o.P.View), R(o.Hot.K), R(o.Hot.V), RW(results)}
	if !o.Cold.none() {
		if err := o.Cold.check("attention", o.KVHeads*d, true, p); err != nil {
			return nil, err
		}
		module, spec, bind = "attention.cold", append(spec, flag(o.Cold.Format == KVQ4_0)), append(bind, R(o.Cold.K), R(o.Cold.V))
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
		ds = append(ds, Dispatch{
			Module: module,
			Spec:   spec,
			Bind:   bind,
			Push: []uint32{uint32(o.Q.Stride), uint32(o.P.Stride), uint32(o.Y.Stride), uint32(o.Heads), uint32(o.KVHeads),
				uint32(t.first * attentionKeys), uint32(t.count * attentionKeys), math.Float32bits(o.Scale), uint32((o.Carry.Off - o.Y.Off) / 4)},
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
	d := o.Dim
	pools := map[bool][2]kvWords{false: o.Hot.words(m, o.KVHeads*d)}
	if !o.Cold.none() {
		pools[true] = o.Cold.words(m, o.KVHeads*d)
	}
	return parallel(s.Rows()*o.Heads, func(from, to int) error {
		scores, sum, kept := []float64(nil), make([]float64, d), make([]float32, d)
		for i := from; i < to; i++ {
			r, h := i/o.Heads, i%o.Heads
			query, gate, out := o.Q.row(q, r)[d*h:], o.P.row(p, r)[2*d*h+d:], o.Y.row(y, r)[d*h:]
			// load puts the head's key, or value, of a position into kept.
			load := func(which, pos int) error {
				token, cold := s.KVToken(s.Seq(r), pos)
				if cold && o.Cold.none() {
					return errors.New("its page is cold, and there is no cold pool")
				}
				return pools[cold][which].load(kept, token, h/(o.Heads/o.KVHeads)*d)
			}
			scores = scores[:0]
			top := math.Inf(-1)
			for pos := range s.Pos(r) + 1 {
				if err := load(0, pos); err != nil {
					return fmt.Errorf("attention: sequence %d, position %d: %w", s.Seq(r), pos, err)
				}
				score := 0.0
				for e, x := range kept {
					score += float64(query[e]) * float64(x)
				}
				score *= float64(o.Scale)
				top = max(top, score)
				scores = append(scores, score)
			}
			clear(sum)
			total := 0.0
			for pos, score := range scores {
				if err := load(1, pos); err != nil {
					return fmt.Errorf("attention: sequence %d, position %d: %w", s.Seq(r), pos, err)
				}
				w := math.Exp(score - top)
				total += w
				for e, x := range kept {
					sum[e] += w * float64(x)
				}
			}
			for e := range d {
				out[e] = float32(sum[e] / total / (1 + math.Exp(-float64(gate[e]))))
			}
		}
		return nil
	})
}
