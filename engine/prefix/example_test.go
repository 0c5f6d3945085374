package prefix_test

import (
	"fmt"

	"github.com/calderaml/caldera/engine/prefix"
	"github.com/calderaml/caldera/engine/state"
)

// A sequence stands for one on a device.
type sequence struct{}

func (sequence) PageFormat(int) int { return 0 }

func (sequence) Download(parts []state.Part) error { return nil }

func Example() {
	layout, err := state.NewLayout(state.Config{
		Format: "f16", PageTokens: 4, MaxTokens: 100, Vocab: 100,
		Slots: []state.Region{{Name: "blk.0.state", Bytes: 64}},
	})
	if err != nil {
		panic(err)
	}
	cache, err := prefix.New(prefix.Config{Layout: layout, RAM: 1 << 20})
	if err != nil {
		panic(err)
	}

	// The first request finds nothing. On its way through the prompt it is captured where prompts are likely to part.
	prompt := []int32{1, 10, 3, 40, 41, 42, 2, 3, 1, 11, 3, 50}
	policy := prefix.Policy{Markers: prefix.Markers{Start: 1, End: 2, User: []int32{10, 3}, Assistant: []int32{11, 3}}, Gap: 5}
	fmt.Println(cache.Lookup(prompt))
	for _, pos := range policy.Points(prompt) {
		if release, ok := cache.Reserve(prompt[:pos], layout.CaptureBytes(pos, nil)); ok {
			snap, err := state.Capture(layout, prompt[:pos], sequence{}, nil, nil)
			release()
			if err != nil {
				panic(err)
			}
			if err := cache.Insert(prompt, snap); err != nil {
				fmt.Println(err)
			}
		}
	}

	// The next turn goes on after the header of the answer, whose reasoning is not in the history.
	m := cache.Lookup([]int32{1, 10, 3, 40, 41, 42, 2, 3, 1, 11, 3, 60, 61, 2, 3})
	defer m.Release()
	fmt.Println(m, m.Snapshot.Pos())
	fmt.Println(cache.Lookup([]int32{1, 10, 3, 40, 77}))
	// Output:
	// reused 0 of 12 tokens: no earlier prompt begins like this one
	// reused 11 of 15 tokens 11
	// reused 0 of 5 tokens: 4 are shared with an earlier prompt, and there is no snapshot of so many
}
