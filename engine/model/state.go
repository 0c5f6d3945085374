package model

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
)

// A State is the memory that sequences of a model carry from step to step: a recurrent slot per sequence
// and a pool of KV pages. It is made once and shared by the graphs of all row buckets.
type State struct {
	Slots int
	Pages int
	F16   bool // KV pages hold halves, otherwise float32

	recurrent map[int]*RecurrentState // by layer
	kv        map[int]*KVState
}

// A RecurrentState is a delta-net layer's slots.
type RecurrentState struct {
	S    *shaders.Buffer // [slots][value heads][value index][key index] float32
	Tail *shaders.Buffer // [slots][3][channels] float32, oldest first
}

// A KVState is an attention layer's pages, [pages][PageTokens][KV heads x dimensions].
type KVState struct {
	K, V *shaders.Buffer
}

// NewState lays out state for a number of sequences and KV pages.
func (c *Config) NewState(slots, pages int, f16 bool) *State {
	s := &State{Slots: slots, Pages: pages, F16: f16, recurrent: map[int]*RecurrentState{}, kv: map[int]*KVState{}}
	buffer := func(layer int, name string, size int64) *shaders.Buffer {
		return &shaders.Buffer{Name: fmt.Sprintf("blk.%d.%s", layer, name), Kind: shaders.State, Size: size}
	}
	for i, recurrent := range c.Recurrent {
		if recurrent {
			s.recurrent[i] = &RecurrentState{
				S:    buffer(i, "state", int64(slots)*c.slotBytes()),
				Tail: buffer(i, "conv", int64(slots)*c.tailBytes()),
			}
		} else {
			size := int64(pages) * shaders.PageTokens * c.tokenBytes(f16)
			s.kv[i] = &KVState{K: buffer(i, "k", size), V: buffer(i, "v", size)}
		}
	}
	return s
}

// slotBytes is one layer's delta matrix of one sequence.
func (c *Config) slotBytes() int64 {
	return int64(c.ValueHeads) * int64(c.StateDim) * int64(c.StateDim) * 4
}

// tailBytes is one layer's convolution tail of one sequence.
func (c *Config) tailBytes() int64 { return (convTaps - 1) * int64(c.ConvChannels()) * 4 }

// tokenBytes is one layer's keys, or values, of one token.
func (c *Config) tokenBytes(f16 bool) int64 {
	n := int64(c.KVHeads) * int64(c.HeadDim)
	if f16 {
		return 2 * n
	}
	return 4 * n
}

// Buffers lists the state's buffers in layer order.
func (s *State) Buffers() []*shaders.Buffer {
	var bs []*shaders.Buffer
	for i := range len(s.recurrent) + len(s.kv) {
		if r := s.recurrent[i]; r != nil {
			bs = append(bs, r.S, r.Tail)
		} else if k := s.kv[i]; k != nil {
			bs = append(bs, k.K, k.V)
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
