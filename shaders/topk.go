package shaders

import (
	"fmt"
	"math"
	"slices"
)

// TopK finds the K largest logits of each output row with their ids, in descending order (of equal ones the
// lowest id first); K = 1 is the argmax. A NaN ranks, and comes out, as -infinity. Where a row has fewer
// than K logits the rest is id 0xffffffff and -infinity.
//
// A dispatch over chunks of the vocabulary leaves the winners of each chunk in Part and a second one merges
// them.
type TopK struct {
	Step   View
	Logits Mat  // outputs x vocabulary
	Part   Mat  // scratch made by TopKPart
	Out    View // [Outs][K] pairs of id (uint32) and logit (float32)
	Outs   int
	K      int // 1 to 64
}

// TopKMax is the largest K of a TopK.
const TopKMax = 64

// topkNone is the id of a winner that does not exist.
const topkNone = 0xffffffff

// topkChunk is the number of logits a workgroup looks at.
const topkChunk = 1024

// TopKPart returns the scratch of a TopK: outs rows with a pair of words for each of the k winners of each
// chunk of a vocabulary.
func TopKPart(name string, vocab, k, outs int) Mat {
	return NewMat(name, Scratch, outs, ceilDiv(vocab, topkChunk)*k*2)
}

func topkModules() []Module {
	return []Module{{Name: "topk", Source: "topk.comp", Buffers: 3, Params: 5}}
}

func (o *TopK) Kernel() string { return "topk" }

func (o *TopK) Operands() []Operand {
	return []Operand{R(o.Step), R(o.Logits.View), W(o.Part.View), W(o.Out)}
}

// Contents says that Part is the dispatches' own and that Out holds ids beside copied logits.
func (o *TopK) Contents(operand int) Content {
	if operand == 2 {
		return Notes
	}
	return Indices
}

func (o *TopK) Cost() Cost {
	r := int64(o.Outs)
	return Cost{Bytes: 4 * r * int64(o.Logits.Width+2*o.Part.Width+2*o.K), Flops: r * int64(o.Logits.Width)}
}

func (o *TopK) Lower(p *Profile) ([]Dispatch, error) {
	chunks := ceilDiv(o.Logits.Width, topkChunk)
	switch {
	case o.K < 1 || o.K > TopKMax:
		return nil, fmt.Errorf("topk: %d winners; 1 to %d are possible", o.K, TopKMax)
	case o.Part.Width != chunks*o.K*2:
		return nil, fmt.Errorf("topk: rows of %d words of scratch, %d are needed", o.Part.Width, chunks*o.K*2)
	case !o.Logits.holds(o.Outs) || !o.Part.holds(o.Outs):
		return nil, fmt.Errorf("topk: matrices of %d and %d bytes do not hold %d rows", o.Logits.Len, o.Part.Len, o.Outs)
	case o.Out.Len < int64(o.Outs)*int64(o.K)*8:
		return nil, fmt.Errorf("topk: %d bytes for %d rows of %d winners", o.Out.Len, o.Outs, o.K)
	}
	var ds []Dispatch
	for merge, d := range []struct {
		n, chunk, groups int
		src, dst         Mat
	}{
		{o.Logits.Width, topkChunk, chunks, o.Logits, o.Part},
		{chunks, chunks, 1, o.Part, Mat{o.Out, o.K * 2, o.K * 2}},
	} {
		groups, err := p.grid("topk", d.groups, o.Outs, 1)
		if err != nil {
			return nil, err
		}
		ds = append(ds, Dispatch{
			Module: "topk",
			Spec:   append(p.ReduceSpec(), uint32(merge)),
			Bind:   []Operand{R(o.Step), R(d.src.View), W(d.dst.View)},
			Push:   []uint32{uint32(d.n), uint32(d.chunk), uint32(d.src.Stride), uint32(d.dst.Stride), uint32(o.K)},
			Groups: groups,
		})
	}
	return ds, nil
}

func (o *TopK) Twin(m Memory) error {
	logits, out := F32(m, o.Logits.View), U32(m, o.Out)
	type winner struct {
		id uint32
		v  float32
	}
	for t := range ViewStep(m, o.Step).Outs() {
		var best []winner // at most K, descending
		for id, v := range o.Logits.row(logits, t) {
			if v != v {
				v = float32(math.Inf(-1))
			}
			i := len(best)
			for i > 0 && v > best[i-1].v {
				i--
			}
			if i < o.K {
				best = slices.Insert(best[:min(len(best), o.K-1)], i, winner{uint32(id), v})
			}
		}
		for len(best) < o.K {
			best = append(best, winner{topkNone, float32(math.Inf(-1))})
		}
		for i, w := range best {
			// Adding zero turns -0 into 0, which ranks the same.
			out[2*(t*o.K+i)], out[2*(t*o.K+i)+1] = w.id, math.Float32bits(w.v+0)
		}
	}
	return nil
}
