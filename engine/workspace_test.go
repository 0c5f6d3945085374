package engine

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/vk"
)

// SetAvailable makes plans believe that the machine has n bytes of memory available, for one test.
func SetAvailable(t *testing.T, n int64) {
	available, total := availableMemory, totalMemory
	availableMemory, totalMemory = func() int64 { return n }, func() int64 { return n }
	t.Cleanup(func() { availableMemory, totalMemory = available, total })
}

// Plans of one engine use the same scratch, and nothing in it is carried from one step to the next: with NaN in
// scratch and results before every step the logits are the same, bit for bit, while state lives on.
func TestScratchCarriesNothing(t *testing.T) {
	ctx := context.Background()
	in, err := vk.Open(vk.Config{})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	devices := in.Devices()
	in.Close()
	path := oracle.OfArch(oracle.Cases(t), "qwen35moe")[0].Model()
	for _, d := range devices {
		for _, profile := range []string{"auto", "floor"} {
			e, err := Open(Config{Path: path, Context: 256, Batch: 16, Device: d.UUID, Profile: profile, Check: true})
			if err != nil {
				t.Fatal(err)
			}
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			ids := make([]int32, 45)
			for i := range ids {
				ids[i] = int32((7*i + 1) % e.model.Vocab)
			}
			// Steps of 16, 16, 13 and then 1, 2, 5 rows: plans of five shapes in turn, and all rows' logits.
			run := func(before func()) (rows [][]float32) {
				s.Reset()
				for _, part := range [][]int32{ids[:16], ids[16:32], ids[32:], ids[:1], ids[1:3], ids[3:8], ids[8:9]} {
					before()
					row, err := s.Last(ctx, part)
					if err != nil {
						t.Fatal(err)
					}
					rows = append(rows, slices.Clone(row))
				}
				before()
				if err := s.Logits(ctx, ids[:6], func(_ int, row []float32) error {
					rows = append(rows, slices.Clone(row))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				return rows
			}
			want := run(func() {})
			poisoned := 0
			got := run(func() {
				for _, w := range e.works {
					if w == nil {
						continue
					}
					poisoned++
					if err := w.Poison(0xff); err != nil { // all ones is a NaN
						t.Fatal(err)
					}
				}
			})
			if poisoned == 0 {
				t.Error("nothing was poisoned")
			}
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("%s %s: logits %d change with what scratch held before the step", d.Name, profile, i)
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
