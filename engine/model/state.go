package model

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
)

// A StateShape says how much state there is and how it is stored.
type StateShape struct {
	Slots int // recurrent slots: sequences that have state at a time
	Pages int // KV pages that new tokens are written to, of all sequences together
	// ColdPages are pages for what has left the recent window of its sequence, 0 for none.
	ColdPages int
	KV        shaders.KVFormat // of Pages: KVF32 or KVF16
	ColdKV    shaders.KVFormat // of ColdPages: KVQ8_0 or KVQ4_0
}

// A State is the memory that sequences of a model carry from step to step: a recurrent slot per sequence
// and pools of KV pages. It is made once and shared by the graphs of all row buckets.
type State struct {
	StateShape

	recurrent map[int]*RecurrentState // by layer
	kv        map[int]*KVState
}

// A RecurrentState is a delta-net layer's slots.
type RecurrentState struct {
	S    *shaders.Buffer // [slots][value heads][value index][key index] float32
	Tail *shaders.Buffer // [slots][3][channels] float32, oldest first
}

// A KVState is an attention layer's pages. A page number means the same page of its pool in every layer.
type KVState struct {
	Hot, Cold shaders.KVPool // Cold is none without cold pages
}

// NewState lays out state of a shape that CheckKV accepts.
func (c *Config) NewState(shape StateShape) *State {
	s := &State{StateShape: shape, recurrent: map[int]*RecurrentState{}, kv: map[int]*KVState{}}
	buffer := func(layer int, name string, size int64) *shaders.Buffer {
		return &shaders.Buffer{Name: fmt.Sprintf("blk.%d.%s", layer, name), Kind: shaders.State, Size: size}
	}
	pool := func(layer int, prefix string, pages int, f shaders.KVFormat) shaders.KVPool {
		size := int64(pages) * f.PageBytes(c.kvWidth())
		return shaders.KVPool{K: buffer(layer, prefix+"k", size).View(), V: buffer(layer, prefix+"v", size).View(), Format: f}
	}
	for i, recurrent := range c.Recurrent {
		if recurrent {
			s.recurrent[i] = &RecurrentState{
				S:    buffer(i, "state", int64(shape.Slots)*c.slotBytes()),
				Tail: buffer(i, "conv", int64(shape.Slots)*c.tailBytes()),
			}
			continue
		}
		s.kv[i] = &KVState{Hot: pool(i, "", shape.Pages, shape.KV)}
		if shape.ColdPages > 0 {
			s.kv[i].Cold = pool(i, "cold_", shape.ColdPages, shape.ColdKV)
		}
	}
	return s
}

// CheckKV refuses a format for the model's KV cache that its heads do not fit.
func (c *Config) CheckKV(f shaders.KVFormat) error { return f.CheckWidth(c.kvWidth()) }

// kvWidth is the number of elements of a token's keys, or values, in one layer.
func (c *Config) kvWidth() int { return c.KVHeads * c.HeadDim }

// slotBytes is one layer's delta matrix of one sequence.
func (c *Config) slotBytes() int64 {
	return int64(c.ValueHeads) * int64(c.StateDim) * int64(c.StateDim) * 4
}

// tailBytes is one layer's convolution tail of one sequence.
func (c *Config) tailBytes() int64 { return (convTaps - 1) * int64(c.ConvChannels()) * 4 }

// PageBytes is the size of a page of a format, the keys and values of all attention layers together.
func (c *Config) PageBytes(f shaders.KVFormat) int64 {
	n := int64(0)
	for _, recurrent := range c.Recurrent {
		if !recurrent {
			n += 2 * f.PageBytes(c.kvWidth())
		}
	}
	return n
}

// SlotBytes is the size of a recurrent slot, all delta-net layers together.
func (c *Config) SlotBytes() int64 {
	n := int64(0)
	for _, recurrent := range c.Recurrent {
		if recurrent {
			n += c.slotBytes() + c.tailBytes()
		}
	}
	return n
}

// Buffers lists the state's buffers in layer order.
func (s *State) Buffers() []*shaders.Buffer {
	var bs []*shaders.Buffer
	for i := range len(s.recurrent) + len(s.kv) {
		if r := s.recurrent[i]; r != nil {
			bs = append(bs, r.S, r.Tail)
		} else if k := s.kv[i]; k != nil {
			bs = append(bs, k.Hot.K.Buf, k.Hot.V.Buf)
			if s.ColdPages > 0 {
				bs = append(bs, k.Cold.K.Buf, k.Cold.V.Buf)
			}
		}
	}
	return bs
}

// Bytes is the size of the state.
func (s *State) Bytes() int64 {
	n := int64(0)
	for _, b := range s.Buffers() {
		n += b.Size
	}
	return n
}

// PageViews lists the bytes of a page in layer order, keys before values. The page is numbered as in a step's
// page table: with [shaders.PageCold] set it is a page of the cold pool.
func (s *State) PageViews(page int32) []shaders.View {
	var vs []shaders.View
	for i := range len(s.recurrent) + len(s.kv) {
		k := s.kv[i]
		if k == nil {
			continue
		}
		pool, pages := k.Hot, s.Pages
		if page&shaders.PageCold != 0 {
			pool, pages = k.Cold, s.ColdPages
		}
		size := pool.K.Len / int64(pages)
		at := int64(page&^shaders.PageCold) * size
		vs = append(vs, pool.K.Slice(at, size), pool.V.Slice(at, size))
	}
	return vs
}

// SlotViews lists the bytes of a recurrent slot in layer order, the delta matrix before the convolution's tail.
func (s *State) SlotViews(slot int) []shaders.View {
	var vs []shaders.View
	for i := range len(s.recurrent) + len(s.kv) {
		if r := s.recurrent[i]; r != nil {
			for _, b := range []*shaders.Buffer{r.S, r.Tail} {
				size := b.Size / int64(s.Slots)
				vs = append(vs, b.View().Slice(int64(slot)*size, size))
			}
		}
	}
	return vs
}
