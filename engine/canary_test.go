package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// C11: conversations that evict each other from the cache, and requests that are abandoned, never meet: each is answered
// as without a cache. A long run has the case's size on the reference, and the usual one on a device: the cache is the
// same code, and on software devices the case's 570,000 tokens take hours.
func TestCaseC11(t *testing.T) {
	for _, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && !long() {
			continue
		}
		for _, disk := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/disk=%t", r.name, disk), func(t *testing.T) { canary(t, r, disk) })
		}
	}
}

func canary(t *testing.T, r rig, disk bool) {
	conversations, filler, requests, entries, patience := 40, 600, 400, 6, 100*time.Millisecond
	switch full := long() && r.backend == engine.Reference; {
	case !full && raceEnabled:
		conversations, filler, requests, entries, patience = 6, 30, 24, 3, 10*time.Millisecond
	case !full: // short runs are over after 100 ms
		conversations, filler, requests, entries, patience = 12, 60, 80, 3, 3*time.Millisecond
	}
	rnd := rand.New(rand.NewPCG(5, 11))
	cfg := chatty.config(t)
	cfg.Context, cfg.Slots = 4096, 2
	e := r.open(t, cfg)
	tok := e.Tokenizer()
	markers := make([]string, conversations)
	rs := make([]engine.Request, conversations)
	want := make([]answer, conversations)
	for i := range rs {
		for range 12 {
			markers[i] += string(rune('a' + rnd.IntN(26)))
		}
		var words []string
		for k := range filler {
			words = append(words, fmt.Sprintf("w%d", (i*7+k*k)%89))
		}
		rs[i] = body{16, []message{
			{Role: "system", Content: "Token " + markers[i] + " belongs to room " + fmt.Sprint(i) + ".\n" + strings.Join(words, " ")},
			{Role: "user", Content: "repeat your token"},
		}}.request(tok, false)
		want[i] = ask(t, e, rs[i])
	}

	// A budget for so many conversations, from what one takes.
	cfg.CacheRAM = 1 << 30
	one, err := engine.Open(r.config(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ask(t, one, rs[0])
	cfg.CacheRAM = int64(entries) * one.Cache().Stats().RAMBytes
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if disk {
		cfg.CacheDir, cfg.CacheDisk = t.TempDir(), 2*cfg.CacheRAM
	}
	cfg.Warn = func(err error) { t.Errorf("warning: %v", err) }
	e = r.open(t, cfg)
	var order []int
	for i := range requests {
		order = append(order, i%conversations)
	}
	rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })

	var all sync.WaitGroup
	next := make(chan int)
	var mu sync.Mutex
	reused, aborted := 0, 0
	for range 3 { // one more than there are slots
		all.Go(func() {
			for n := range next {
				i := order[n]
				ctx, cancel := context.WithCancel(context.Background())
				if n%10 == 9 {
					time.AfterFunc(patience, cancel)
				}
				s, err := e.Generate(ctx, rs[i])
				if err != nil {
					t.Error(err)
					cancel()
					continue
				}
				ids, err := collect(s)
				res, _ := s.Result()
				cancel()
				switch {
				case err == nil && !slices.Equal(ids, want[i].ids):
					t.Errorf("request %d, conversation %d (%s): %v, without reuse %v", n, i, res.Reuse, ids, want[i].ids)
				case err != nil && (!errors.Is(err, context.Canceled) || len(ids) > len(want[i].ids) || !slices.Equal(ids, want[i].ids[:len(ids)])):
					t.Errorf("request %d, conversation %d, abandoned: %v, %v; without reuse %v", n, i, ids, err, want[i].ids)
				}
				text := tok.Decode(ids)
				for j, m := range markers {
					if j != i && strings.Contains(text, m) {
						t.Errorf("the answer in conversation %d has the marker of %d", i, j)
					}
				}
				if n := res.PromptTokens - res.Reused; err == nil && n != res.Processed {
					t.Errorf("it says that it reused %d of %d tokens, and processed %d", res.Reused, res.PromptTokens, res.Processed)
				}
				mu.Lock()
				reused += min(1, res.Reused)
				if err != nil {
					aborted++
				}
				mu.Unlock()
			}
		})
	}
	for n := range requests {
		next <- n
	}
	close(next)
	all.Wait()
	mustBeIdle(t, e)
	s := e.Cache().Stats()
	t.Logf("%d requests in %d conversations of %d tokens, %d reused, %d abandoned: %+v", requests, conversations, len(rs[0].Prompt), reused, aborted, s)
	if reused == 0 || aborted == 0 || s.Evicted == 0 && !disk || disk && s.Loaded == 0 {
		t.Error("nothing was reused, abandoned, evicted or loaded, and the test shows nothing")
	}
}
