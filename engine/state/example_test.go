package state_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/calderaml/caldera/engine/state"
)

// A sequence's memory on some device: one page and one slot.
type memory struct{ page, slot [8]byte }

func (m *memory) PageFormat(int) int { return 0 }

func (m *memory) at(p state.Part) []byte {
	if p.Page < 0 {
		return m.slot[:]
	}
	return m.page[:]
}

func (m *memory) Download(parts []state.Part) error {
	for _, p := range parts {
		copy(p.Data, m.at(p))
	}
	return nil
}

func (m *memory) Upload(parts []state.Part) error {
	for _, p := range parts {
		copy(m.at(p), p.Data)
	}
	return nil
}

func Example() {
	layout, err := state.NewLayout(state.Config{
		Model:      state.DigestOf([]byte("tensors and metadata of a model")),
		Format:     "f16",
		PageTokens: 4, MaxTokens: 4, Vocab: 100,
		Pages: []state.PageFormat{{Name: "f16", Regions: []state.Region{{Name: "blk.1.k", Bytes: 8, Rows: true}}}},
		Slots: []state.Region{{Name: "blk.0.state", Bytes: 8}},
	})
	if err != nil {
		panic(err)
	}
	device := &memory{page: [8]byte{1, 2, 3, 4}, slot: [8]byte{9}}
	tokens := []int32{17, 4} // what the sequence has been fed
	snap, err := state.Capture(layout, tokens, device, nil, nil)
	if err != nil {
		panic(err)
	}

	var file bytes.Buffer
	if err := snap.Encode(&file); err != nil {
		panic(err)
	}
	back, err := state.Decode(&file, int64(file.Len()), layout)
	if err != nil {
		panic(err)
	}
	other := &memory{}
	fmt.Println(state.Restore(layout, back, tokens, other), other.page, other.slot)
	fmt.Println(errors.Is(state.Restore(layout, back, tokens[:1], other), state.ErrPosition))
	// Output:
	// <nil> [1 2 3 4 0 0 0 0] [9 0 0 0 0 0 0 0]
	// true
}
