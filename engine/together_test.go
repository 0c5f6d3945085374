package engine_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// Requests that start together and begin alike compute what they share once: the others wait for the snapshot of the
// one that is ahead. Groups within groups do so again, none waits for one that has ended, and no token depends on it.
func TestStartTogether(t *testing.T) {
	r := reference()
	cfg := small.config(t)
	cfg.Context, cfg.Slots, cfg.CacheRAM, cfg.CacheEvery, cfg.Batch = 1024, 8, 64<<20, -1, 16
	e, err := engine.Open(r.config(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	random := rand.New(rand.NewPCG(7, 7))
	tokens := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(random.IntN(e.Model().Vocab))
		}
		return ids
	}
	for round := range scaled(20, 3, 1) {
		// Four prompts share 400 tokens, two of them 100 more and the last two are the same; another shares nothing.
		trunk, branch, twin := tokens(400), tokens(100), tokens(40)
		rs := []engine.Request{
			greedy(join(trunk, tokens(30)), 4), greedy(join(trunk, branch, tokens(30)), 4),
			greedy(join(trunk, branch, twin), 4), greedy(join(trunk, branch, twin), 4), greedy(tokens(64), 4),
		}
		random.Shuffle(len(rs), func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
		var colds []engine.Request
		for _, r := range rs {
			colds = append(colds, cold(r))
		}
		got, want := askAll(t, e, rs, len(rs)), askAll(t, e, colds, len(rs))
		sum, all := 0, 0
		for i := range rs {
			mustEqual(t, "together", got[i], want[i])
			sum, all = sum+got[i].Processed, all+want[i].Processed
		}
		// 400 + 30 + 100 + 30 + 40 + 1 + 64, and what the first computes before the others are there.
		if most := 665 + 5*cfg.Batch; sum > most {
			t.Errorf("round %d: %d of %d tokens were computed, at most %d are due: %v", round, sum, all, most,
				slices.Collect(func(yield func(string) bool) {
					for _, a := range got {
						if !yield(a.Reuse) {
							return
						}
					}
				}))
		}
	}
	mustBeIdle(t, e)
}
