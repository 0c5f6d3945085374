package engine_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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

// When the one that computes what others wait for is cancelled, one of them takes its place.
func TestLeaderCancelled(t *testing.T) {
	cfg := small.config(t)
	cfg.Context, cfg.Slots, cfg.CacheRAM, cfg.CacheEvery, cfg.Batch = 1024, 8, 64<<20, -1, 8
	e := reference().open(t, cfg)
	random := rand.New(rand.NewPCG(11, 3))
	trunk := randomTokens(random, 400, mixVocab)
	rounds := scaled(6, 3, 1)
	for round := range rounds {
		trunk := join(randomTokens(random, 16, mixVocab), trunk)
		request := func() engine.Request { return greedy(join(trunk, randomTokens(random, 20, mixVocab)), 3) }
		// It is on its way when the others come, and in the middle of its prompt, which takes about a hundred milliseconds,
		// when it ends. At any other time less is computed.
		leader := send(t, t.Context(), e, request())
		time.Sleep(10 * time.Millisecond)
		var rs []engine.Request
		var streams []*engine.Stream
		for range 5 {
			rs = append(rs, request())
			streams = append(streams, send(t, t.Context(), e, rs[len(rs)-1]))
		}
		time.Sleep(time.Duration(10+10*round) * time.Millisecond)
		leader.Cancel()
		sum := 0
		for i, s := range streams {
			ids, err := collect(s)
			if err != nil {
				t.Fatal(err)
			}
			res, _ := s.Result()
			sum += res.Processed
			if i == round%len(streams) {
				mustEqual(t, "a follower", answer{ids, res}, ask(t, e, cold(rs[i])))
			}
		}
		if most := len(trunk) + len(streams)*(20+cfg.Batch+1); sum > most {
			t.Errorf("round %d: the others computed %d tokens, at most %d are due", round, sum, most)
		}
	}
	mustBeIdle(t, e)
}
