package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// heavy has a large recurrent state for what it computes, so that snapshots of it fill a budget.
var heavy = func() synth { s := small; s.layers, s.stateDim, s.valHeads = 2, 32, 16; return s }()

// resident is how many bytes of memory the process has, on Linux those of all kinds, elsewhere those of the Go runtime.
func resident(t testing.TB) int64 {
	t.Helper()
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			var kb int64
			if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
				return kb << 10
			}
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// A watch keeps an eye on the memory of the process.
type watch struct {
	t            testing.TB
	start, most  int64
	budget, warm int64 // most that the cache may take, and what the process had when it was full
}

func newWatch(t testing.TB, budget int64) *watch {
	debug.FreeOSMemory()
	return &watch{t: t, start: resident(t), budget: budget}
}

// look samples memory and checks the cache's share.
func (w *watch) look(e *engine.Engine) {
	w.t.Helper()
	n := resident(w.t)
	w.most = max(w.most, n)
	s := e.Cache().Stats()
	if s.RAMBytes > w.budget {
		w.t.Errorf("the cache has %d of %d bytes", s.RAMBytes, w.budget)
	}
	if w.warm == 0 && s.Evicted > 0 { // the cache is full
		w.warm = n
	}
}

// check judges what was seen: growth of at most the budget and a tenth of it, and of what small budgets are small
// against: garbage that is not worth a collection, and the requests themselves.
func (w *watch) check() {
	w.t.Helper()
	grown := w.most - w.start
	w.t.Logf("resident: %s at the start, %s when the cache was full, %s at most: %s more for a budget of %s",
		engine.FormatBytes(w.start), engine.FormatBytes(w.warm), engine.FormatBytes(w.most), engine.FormatBytes(grown), engine.FormatBytes(w.budget))
	if w.warm == 0 {
		w.t.Error("the cache was never full, and the test shows nothing")
	}
	if grown > w.budget+w.budget/10+12<<20 && !raceEnabled {
		w.t.Errorf("memory grew by %d bytes for a budget of %d", grown, w.budget)
	}
}

// C04: in a long session of many conversations memory stays within the cache's budget, which covers all snapshots, is
// told truly, and is free again when the cache is cleared.
func TestCaseC04(t *testing.T) {
	conversations, words, budget := scaled(400, 40, 12), scaled(1500, 400, 100), int64(scaled(256, 10, 2))<<20
	cfg := heavy.config(t)
	cfg.Context, cfg.Slots, cfg.CacheRAM = 4096, 4, budget
	e := reference().open(t, cfg)
	ask(t, e, cold(greedy(make([]int32, 600), 4))) // all that is made once
	w := newWatch(t, budget)
	var all sync.WaitGroup
	var mu sync.Mutex
	next := make(chan int)
	for range 4 {
		all.Go(func() {
			for r := range next {
				prompt := []int32{1, int32(r % 251), int32(r / 251)}
				for k := range words {
					prompt = append(prompt, int32((r*31+k)%997%mixVocab))
				}
				for turn, more := range [][]int32{nil, {2, int32(r % 251)}, {3, int32(r % 251)}} {
					prompt = join(prompt, more)
					a := ask(t, e, greedy(prompt, 8))
					if turn > 0 && a.Processed > 600 {
						t.Errorf("turn %d of conversation %d processed %d tokens: %s", turn+1, r, a.Processed, a.Reuse)
					}
					prompt = join(prompt, a.ids)
				}
				mu.Lock()
				w.look(e)
				mu.Unlock()
			}
		})
	}
	for r := range conversations {
		next <- r
	}
	close(next)
	all.Wait()
	mustBeIdle(t, e)
	w.check()
	s := e.Cache().Stats()
	t.Logf("%+v", s)
	if sum := e.Cache().Audit(); sum != s.RAMBytes {
		t.Errorf("the cache says that it has %d bytes, its entries have %d", s.RAMBytes, sum)
	}
	e.Cache().Clear()
	if s := e.Cache().Stats(); s.RAMBytes != 0 || s.Entries != 0 {
		t.Errorf("after clearing: %+v", s)
	}
	debug.FreeOSMemory()
	if n := resident(t); n > w.start+budget/4+12<<20 && !raceEnabled {
		t.Errorf("cleared, the process still has %d bytes more than at the start", n-w.start)
	}
}

// Two thousand requests of random lengths, many of them cancelled: memory stays flat, and all seats are returned.
func TestChurn(t *testing.T) {
	requests, budget := scaled(2000, 200, 24), int64(scaled(256, 10, 1))<<20
	for _, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && !long() {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			cfg := heavy.config(t)
			cfg.Context, cfg.Slots, cfg.Batch, cfg.CacheRAM = 2048, 8, 128, budget
			e := r.open(t, cfg)
			rnd := rand.New(rand.NewPCG(20, 26))
			longest := scaled(1200, 400, 300)
			ask(t, e, cold(greedy(make([]int32, 600), 4)))
			askAll(t, e, []engine.Request{cold(greedy(make([]int32, 400), 40)), cold(greedy(make([]int32, 300), 40)), cold(greedy(make([]int32, 200), 40))}, 3)
			before := e.MemoryInUse()
			w := newWatch(t, budget)
			type job struct {
				r     engine.Request
				after time.Duration // 0: not cancelled
			}
			next := make(chan job)
			var all sync.WaitGroup
			var mu sync.Mutex
			ends := map[string]int{}
			for range 12 {
				all.Go(func() {
					for j := range next {
						ctx, cancel := context.WithCancel(context.Background())
						if j.after > 0 {
							time.AfterFunc(j.after, cancel)
						}
						s, err := e.Generate(ctx, j.r)
						if err != nil {
							t.Error(err)
							cancel()
							continue
						}
						if _, err := collect(s); err != nil && !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						res, _ := s.Result()
						cancel()
						mu.Lock()
						ends[res.Reason]++
						w.look(e)
						mu.Unlock()
					}
				})
			}
			var seen []engine.Request
			for range requests {
				j := job{r: greedy(randomTokens(rnd, 1+rnd.IntN(longest), mixVocab), 1+rnd.IntN(30))}
				if len(seen) > 0 && rnd.IntN(4) == 0 {
					j.r = seen[len(seen)-1-rnd.IntN(min(len(seen), 20))]
					j.r.Prompt = join(j.r.Prompt, []int32{7})
				}
				seen = append(seen, j.r)
				if rnd.IntN(5) == 0 {
					j.after = time.Duration(1+rnd.IntN(50)) * time.Millisecond
				}
				next <- j
			}
			close(next)
			all.Wait()
			mustBeIdle(t, e)
			w.check()
			t.Logf("%v; %+v", ends, e.Cache().Stats())
			if ends[engine.ReasonCancelled] == 0 || ends[engine.ReasonLength] == 0 {
				t.Error("no request was cancelled, or all were")
			}
			if after := e.MemoryInUse(); after != before {
				t.Errorf("the device had %+v in use, and has %+v", before, after)
			}
			e.Cache().Clear()
			if s := e.Cache().Stats(); s.RAMBytes != 0 || s.Entries != 0 || s.Pinned != 0 {
				t.Errorf("after clearing: %+v", s)
			}
		})
	}
}
