package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// C29: where memory is for two and a half whole contexts, three requests for a whole one each are all answered, the
// third after one of the others; a prompt that does not fit is refused with the numbers; short requests use what two
// long ones leave; and memory is what the plan said.
func TestCaseC29(t *testing.T) {
	serial(t)
	rigs := []rig{reference()}
	if long() {
		rigs = append(rigs, oneDevice(t))
	}
	for _, r := range rigs {
		t.Run(r.name, func(t *testing.T) {
			ctx := context.Background()
			length := 1024
			cfg := small.config(t)
			cfg.Context, cfg.Slots, cfg.Batch = length, 3, 64
			rnd := rand.New(rand.NewPCG(29, 1))
			var longs, shorts []engine.Request
			for range 3 {
				longs = append(longs, greedy(randomTokens(rnd, length*3/4-20, mixVocab), 0))
			}
			for range 20 {
				shorts = append(shorts, greedy(randomTokens(rnd, 1+rnd.IntN(100), mixVocab), 1+rnd.IntN(20)))
			}
			e := r.open(t, cfg)
			var wantLong, wantShort []answer
			for _, x := range longs {
				wantLong = append(wantLong, ask(t, e, x))
			}
			for _, x := range shorts {
				wantShort = append(wantShort, ask(t, e, x))
			}

			// The limit at which there is room for ten pages, of which a context takes four.
			for pages := 12; pages > 10; cfg.MemoryLimit -= 4 << 10 {
				plan, err := engine.PlanMemory(r.config(cfg))
				if err != nil {
					t.Fatal(err)
				}
				if cfg.MemoryLimit == 0 {
					cfg.MemoryLimit = 2 * plan.Needed
				}
				pages = plan.KV.Pages
			}
			cfg.MemoryLimit += 4 << 10
			var mu sync.Mutex
			var log []string
			cfg.Warn = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, err.Error())
			}
			e = r.open(t, cfg)
			if m := e.Memory(); m.Slots != 3 || m.KV.Contexts != 2.5 {
				t.Fatalf("there is room for %g contexts, %d slots", m.KV.Contexts, m.Slots)
			}

			var streams []*engine.Stream
			for _, x := range longs {
				streams = append(streams, send(t, ctx, e, x))
			}
			var results []engine.Result
			for i, s := range streams {
				ids, err := collect(s)
				if err != nil {
					t.Errorf("long request %d: %v", i, err)
				}
				res, _ := s.Result()
				results = append(results, res)
				mustEqual(t, fmt.Sprintf("long request %d", i), answer{ids, res}, wantLong[i])
				if res.Reason != engine.ReasonContext || res.PromptTokens+res.Tokens != length+1 {
					t.Errorf("long request %d: %+v", i, res)
				}
			}
			short := min(results[0].PromptTime+results[0].Time, results[1].PromptTime+results[1].Time)
			if results[2].Queued < short/2 || max(results[0].Queued, results[1].Queued) > short/2 {
				t.Errorf("they waited %v, %v and %v; the first two took at least %v", results[0].Queued, results[1].Queued, results[2].Queued, short)
			}

			_, err := e.Generate(ctx, greedy(randomTokens(rnd, length+length/10, mixVocab), 1))
			if !errors.Is(err, engine.ErrContextFull) || !contains(err, fmt.Sprint(length+length/10)) || !contains(err, fmt.Sprint(length)) {
				t.Errorf("a prompt of %d tokens: %v", length+length/10, err)
			}

			// While two long ones run, short ones use the third slot.
			streams = nil
			for _, x := range longs[:2] {
				streams = append(streams, send(t, ctx, e, x))
			}
			for _, s := range streams {
				first(t, s, 1)
			}
			// They did not wait for a long one to end.
			mustEqual(t, "a short request", ask(t, e, shorts[0]), wantShort[0])
			for i, s := range streams {
				if engine.Ended(s) {
					t.Errorf("long request %d ended before a short one had run", i)
				}
			}
			for i, got := range askAll(t, e, shorts, 4) {
				mustEqual(t, fmt.Sprintf("short request %d", i), got, wantShort[i])
			}
			for i, s := range streams {
				ids, err := collect(s)
				if err != nil {
					t.Error(err)
				}
				if !slices.Equal(ids, wantLong[i].ids[1:]) {
					t.Errorf("long request %d beside short ones: %v", i, ids)
				}
			}
			if u := e.MemoryInUse().Own(); r.backend == engine.Vulkan {
				if m := e.Memory(); math.Abs(float64(u-m.Resident())) > 0.05*float64(u) || u > cfg.MemoryLimit {
					t.Errorf("%d bytes are in use, planned were %d, the limit is %d", u, m.Resident(), cfg.MemoryLimit)
				}
			}
			mustBeIdle(t, e)
			mu.Lock()
			defer mu.Unlock()
			t.Logf("limit %s, plan %s", engine.FormatBytes(cfg.MemoryLimit), e.Memory())
			if len(log) > 0 { // all was within the plan
				t.Errorf("warnings:\n%s", strings.Join(log, "\n"))
			}
		})
	}
}
