package shaders

import (
	"fmt"
	"math"
)

// KVEncode re-encodes the step's moves ([PageMove]): every block of 32 elements of the hot page's keys and values
// becomes a block of the cold page, by the reference rounding of its format (weights.md 3.2), bit for bit the same
// on every device and in the twin.
//
// Elements of F32 pages beyond what a half holds count as the largest half. A block whose scale is zero as a half has
// the codes of zeros. A block with an element that is not finite becomes NaN as a whole, so that what went wrong
// stays visible. Moves that name pages beyond the pools are left out.
type KVEncode struct {
	Step  View
	Hot   KVPool // F32 or F16, read
	Cold  KVPool // Q8_0 or Q4_0, written
	Width int    // elements of a token: KV heads times dimensions
	Moves int    // the step's capacity
}

func kvEncodeModules() []Module {
	return []Module{{Name: "kv_encode", Source: "kv_encode.comp", Buffers: 3, Params: 3}}
}

func (o *KVEncode) Kernel() string { return "kv_encode" }

func (o *KVEncode) Operands() []Operand {
	return []Operand{R(o.Step), R(o.Hot.K), R(o.Hot.V), W(o.Cold.K), W(o.Cold.V)}
}

// Contents says that pages are compared as words.
func (o *KVEncode) Contents(int) Content { return Indices }

// Cost counts a division, a few comparisons and roundings for each element as one operation each.
func (o *KVEncode) Cost() Cost {
	n := 2 * int64(o.Moves)
	return Cost{
		Bytes: n * (o.Hot.Format.PageBytes(o.Width) + o.Cold.Format.PageBytes(o.Width)),
		Flops: 4 * n * PageTokens * int64(o.Width),
	}
}

func (o *KVEncode) Lower(p *Profile) ([]Dispatch, error) {
	if o.Width < 1 || o.Moves < 1 {
		return nil, fmt.Errorf("kv_encode: %d pages of rows of %d elements", o.Moves, o.Width)
	}
	for _, pool := range []struct {
		KVPool
		cold bool
	}{{o.Hot, false}, {o.Cold, true}} {
		if err := pool.check("kv_encode", o.Width, pool.cold, p); err != nil {
			return nil, err
		}
	}
	blocks := PageTokens * o.Width / kvBlock
	groups, err := p.grid("kv_encode", ceilDiv(blocks/2, int(p.Subgroup)), o.Moves, 1)
	if err != nil {
		return nil, err
	}
	// Of two blocks each element is looked at twice, and each word of codes is a turn.
	if err := p.loops("kv_encode", 2*(2*kvBlock+8)); err != nil {
		return nil, err
	}
	hot, cold := o.Hot.pages(o.Width), o.Cold.pages(o.Width)
	if max(hot, cold) > math.MaxInt32 {
		return nil, fmt.Errorf("kv_encode: pools of %d and %d pages", hot, cold)
	}
	var ds []Dispatch
	for _, v := range [][2]View{{o.Hot.K, o.Cold.K}, {o.Hot.V, o.Cold.V}} {
		ds = append(ds, Dispatch{
			Module: "kv_encode",
			Spec:   []uint32{p.Subgroup, flag(o.Hot.Format == KVF16), flag(o.Cold.Format == KVQ4_0)},
			Bind:   []Operand{R(o.Step), R(v[0]), W(v[1])},
			Push:   []uint32{uint32(hot), uint32(cold), uint32(blocks)},
			Groups: groups,
		})
	}
	return ds, nil
}

func (o *KVEncode) Twin(m Memory) error {
	s := ViewStep(m, o.Step)
	hot, cold := o.Hot.words(m, o.Width), o.Cold.words(m, o.Width)
	for i := range s.Moves() {
		move := s.Move(i)
		if int64(move.Hot) >= o.Hot.pages(o.Width) || int64(move.Cold) >= o.Cold.pages(o.Width) {
			continue
		}
		for which := range hot {
			if err := cold[which].page(int(move.Cold)).fill(hot[which], int(move.Hot)); err != nil {
				return fmt.Errorf("kv_encode: page %d: %w", move.Hot, err)
			}
		}
	}
	return nil
}

// fill encodes a page of a hot pool.
func (p kvPage) fill(hot kvWords, page int) error {
	per := hot.width / kvBlock
	return parallel(len(p.scales), func(from, to int) error { // by pairs, whose scales share a word
		var x [kvBlock]float32
		for i := 2 * from; i < 2*to; i++ {
			if err := hot.load(x[:], page*PageTokens+i/per, i%per*kvBlock); err != nil {
				return err
			}
			if err := p.encode(i, &x); err != nil {
				return err
			}
		}
		return nil
	})
}
