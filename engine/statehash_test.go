package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/internal/oracle"
)

// caches are types of KV cache whose windows and sinks make pages turn cold within a few hundred tokens.
var caches = []struct {
	kv           string
	sink, window int
}{{"f16", 0, 0}, {"q4_0", 100, 64}, {"q8_0", 0, 200}, {"f32", 0, 0}}

// hash is the digest of a session's state.
func hash(t testing.TB, s *engine.Session) state.Digest {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return snap.Hash()
}

// The state after some tokens is the same, bit for bit, however they were divided into steps and whatever ran in the
// same steps; and so it is after a snapshot, its encoding, and a restore, in the same engine or in another.
func TestStateDependsOnTokensAlone(t *testing.T) {
	serial(t)
	ctx := context.Background()
	lengths := []int{1, 257, 577, 900} // a page of q4_0 turns cold at 576 and at 832, of q8_0 at 456 and 712
	for i, r := range []rig{reference(), oneDevice(t)} {
		for j, kv := range caches {
			if i == 1 && !long() && j != 1 {
				continue
			}
			t.Run(r.name+"/"+kv.kv, func(t *testing.T) {
				cfg := small.config(t)
				cfg.KV, cfg.KVSink, cfg.KVWindow, cfg.Context, cfg.Slots = kv.kv, kv.sink, kv.window, 1024, 4
				ids := randomTokens(rand.New(rand.NewPCG(7, 7)), 1000, mixVocab)
				e := r.open(t, cfg)
				s := session(t, e)
				want := map[int]*state.Snapshot{}
				at := 0
				for _, n := range lengths {
					if err := s.Prefill(ctx, ids[at:n]); err != nil {
						t.Fatal(err)
					}
					at = n
					snap, err := s.Snapshot()
					if err != nil {
						t.Fatal(err)
					}
					want[n] = snap
				}
				same := func(what string, n int, got state.Digest) {
					t.Helper()
					if got != want[n].Hash() {
						t.Errorf("%d tokens, %s: the state is another one", n, what)
					}
				}
				last := lengths[len(lengths)-1]

				for _, batch := range []int{1, 7, 64, 512} {
					if i == 1 && batch == 1 && !long() {
						continue
					}
					if err := e.SetBatch(batch); err != nil {
						t.Fatal(err)
					}
					s.Reset()
					if err := s.Prefill(ctx, ids[:last]); err != nil {
						t.Fatal(err)
					}
					same(fmt.Sprintf("in steps of %d", batch), last, hash(t, s))
				}

				// Beside others in the same steps, and from any snapshot on.
				layout, err := e.Layout()
				if err != nil {
					t.Fatal(err)
				}
				other := r.open(t, cfg)
				for _, n := range lengths {
					var b bytes.Buffer
					if err := want[n].Encode(&b); err != nil {
						t.Fatal(err)
					}
					decoded, err := state.Decode(&b, int64(b.Len()), layout)
					if err != nil {
						t.Fatal(err)
					}
					same("encoded and decoded", n, decoded.Hash())
					for _, e := range []*engine.Engine{e, other} {
						x := session(t, e)
						if err := x.Restore(want[n]); err != nil {
							t.Fatal(err)
						}
						same("restored", n, hash(t, x))
						if n < last {
							if err := x.Prefill(ctx, ids[n:last]); err != nil {
								t.Fatal(err)
							}
							same(fmt.Sprintf("restored at %d and fed the rest", n), last, hash(t, x))
						}
						f, err := x.Fork()
						if err != nil {
							t.Fatal(err)
						}
						same("forked", last, hash(t, f))
						f.Close()
						x.Close()
					}
				}
			})
		}
	}
}

// Requests that run side by side leave in the cache the state that a session has after the same tokens.
func TestCachedStateIsTheSessions(t *testing.T) {
	ctx := context.Background()
	for i, r := range []rig{reference(), oneDevice(t)} {
		kv := caches[i]
		t.Run(r.name+"/"+kv.kv, func(t *testing.T) {
			cfg := small.config(t)
			cfg.KV, cfg.KVSink, cfg.KVWindow, cfg.Context, cfg.Slots = kv.kv, kv.sink, kv.window, 1024, 4
			cfg.CacheRAM, cfg.CacheEvery = 64<<20, 128
			e := r.open(t, cfg)
			rnd := rand.New(rand.NewPCG(8, 8))
			prompts := make([][]int32, 4)
			var all sync.WaitGroup
			for i := range prompts {
				prompts[i] = randomTokens(rnd, 300+100*i, mixVocab)
				all.Go(func() { askAll(t, e, []engine.Request{greedy(prompts[i], 20)}, 1) })
			}
			all.Wait()
			s := session(t, e)
			for _, p := range prompts {
				for n := 128; n < len(p); n += 128 {
					m := e.Cache().Lookup(p[:n+1])
					if m.Pos != n {
						t.Fatalf("after %d of %d tokens there is no snapshot: %v", n, len(p), m)
					}
					s.Reset()
					if err := s.Prefill(ctx, p[:n]); err != nil {
						t.Fatal(err)
					}
					if m.Snapshot.Hash() != hash(t, s) {
						t.Errorf("the cached state after %d of %d tokens is not the session's", n, len(p))
					}
					m.Release()
				}
			}
		})
	}
}

// So it is with quantised weights, on every device and profile.
func TestStateOnEveryDevice(t *testing.T) {
	serial(t)
	path := oracle.OfArch(oracle.Supported(oracle.Cases(t), "F32", "Q4_0"), "qwen35moe")[0].Model()
	for _, r := range rigs(t) {
		e := r.open(t, engine.Config{Path: path, Context: 256, Batch: 64, KV: "f16"})
		s := session(t, e)
		var want state.Digest
		for _, batch := range []int{64, 5, 7} {
			if err := e.SetBatch(batch); err != nil {
				t.Fatal(err)
			}
			s.Reset()
			if err := s.Prefill(context.Background(), randomTokens(rand.New(rand.NewPCG(7, 9)), 78, e.Model().Vocab)); err != nil {
				t.Fatal(err)
			}
			if got := hash(t, s); batch == 64 {
				want = got
			} else if got != want {
				t.Errorf("%s: the state after steps of %d is not that after one of 64 and one of 14", r.name, batch)
			}
		}
	}
}
