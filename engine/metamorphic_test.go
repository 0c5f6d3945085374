package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// mixVocab is the vocabulary of the model small.
const mixVocab = 256

// A mix is requests whose prompts overlap in every way: fresh ones, ones with a common beginning, repeated ones, and
// turns that go on from an earlier answer. Lengths lie around the borders of pages, of 256 tokens.
type mix struct {
	rs   []engine.Request
	want [][]int32
}

// newMix makes n requests and what each is answered when it runs alone, in an engine without a cache.
func newMix(t *testing.T, e *engine.Engine, seed uint64, n int) *mix {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 4))
	lengths := []int{1, 2, 15, 40, 120, 254, 255, 256, 257, 300, 383, 384, 511, 512, 513, 600}
	bases := [][]int32{randomTokens(r, 700, mixVocab), randomTokens(r, 700, mixVocab)}
	m := &mix{}
	for i := range n {
		var prompt []int32
		switch kind := r.IntN(5); {
		case kind == 0 || i == 0:
			prompt = randomTokens(r, lengths[r.IntN(len(lengths))], mixVocab)
		case kind == 1:
			prompt = slices.Clone(m.rs[r.IntN(i)].Prompt)
		case kind == 2:
			if j := r.IntN(i); len(m.rs[j].Prompt) < 800 {
				prompt = join(m.rs[j].Prompt, m.want[j], randomTokens(r, 1+r.IntN(30), mixVocab))
				break
			}
			fallthrough
		default:
			prompt = join(bases[r.IntN(2)][:lengths[r.IntN(len(lengths))]], randomTokens(r, 1+r.IntN(40), mixVocab))
		}
		x := greedy(prompt, 1+r.IntN(24))
		if r.IntN(2) == 0 {
			p := sample.Neutral()
			p.Temperature, p.Seed = 0.2+1.3*r.Float32(), r.Uint64()
			p.TopK = []int{0, 20, 64, 100}[r.IntN(4)]
			p.TopP = []float32{1, 0.95}[r.IntN(2)]
			p.MinP = []float32{0, 0.05}[r.IntN(2)]
			if r.IntN(3) == 0 {
				p.RepetitionPenalty, p.FrequencyPenalty, p.RepeatLastN = 1.2, 0.3, 32
			}
			x.Sample = p
		}
		m.rs = append(m.rs, x)
		m.want = append(m.want, ask(t, e, x).ids)
	}
	return m
}

// check compares answers with those of requests alone.
func (m *mix) check(t *testing.T, as []answer) {
	t.Helper()
	bad := 0
	for i, a := range as {
		if slices.Equal(a.ids, m.want[i]) {
			continue
		}
		if bad++; bad <= 3 {
			t.Errorf("request %d, %d tokens (%s) at temperature %g: %v, alone %v",
				i, len(m.rs[i].Prompt), a.Reuse, m.rs[i].Sample.Temperature, a.ids, m.want[i])
		}
	}
	if bad > 3 {
		t.Errorf("and %d more", bad-3)
	}
}

// run sends the requests in random order from several clients, while others disturb: some cancel theirs in the middle,
// others feed and fork sessions.
func (m *mix) run(t *testing.T, e *engine.Engine, seed uint64) []answer {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	order := r.Perm(len(m.rs))
	shuffled := make([]engine.Request, len(order))
	for i, j := range order {
		shuffled[i] = m.rs[j]
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	for k := range uint64(2) {
		others.Go(func() {
			r := rand.New(rand.NewPCG(seed, 100+k))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if k == 0 {
					m.cancelOne(t, e, r)
				} else {
					forkOne(t, e, r)
				}
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
		})
	}
	got := askAll(t, e, shuffled, 1+r.IntN(scaled(20, 8, 8)))
	close(stop)
	others.Wait()
	mustBeIdle(t, e)
	as := make([]answer, len(order))
	for i, j := range order {
		as[j] = got[i]
	}
	return as
}

// cancelOne sends one of the requests again and cancels it at some time. Tokens that came before are those of the
// whole answer.
func (m *mix) cancelOne(t *testing.T, e *engine.Engine, r *rand.Rand) {
	i := r.IntN(len(m.rs))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := e.Generate(ctx, m.rs[i])
	if err != nil {
		if !errors.Is(err, engine.ErrBusy) {
			t.Error(err)
		}
		return
	}
	after := r.IntN(6)
	if r.IntN(2) == 0 {
		time.AfterFunc(time.Duration(r.IntN(20))*time.Millisecond, cancel)
		after = 1000
	}
	var ids []int32
	for tok, err := range s.Tokens() {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled request: %v", err)
			}
			break
		}
		if tok.ID >= 0 {
			ids = append(ids, tok.ID)
		}
		if len(ids) > after {
			break // which cancels too
		}
	}
	if n := len(ids); n > len(m.want[i]) || !slices.Equal(ids, m.want[i][:n]) {
		t.Errorf("request %d, cancelled, had %v, alone %v", i, ids, m.want[i])
	}
}

// forkOne feeds a session, forks it, and expects the same of both.
func forkOne(t *testing.T, e *engine.Engine, r *rand.Rand) {
	ids := randomTokens(r, 20+r.IntN(300), mixVocab)
	at := 1 + r.IntN(len(ids)-1)
	s, err := e.NewSession()
	if err != nil {
		if !errors.Is(err, engine.ErrBusy) {
			t.Error(err)
		}
		return
	}
	defer s.Close()
	ctx := context.Background()
	if err := s.Prefill(ctx, ids[:at]); err != nil {
		t.Error(err)
		return
	}
	f, err := s.Fork()
	if err != nil {
		if !errors.Is(err, engine.ErrBusy) {
			t.Error(err)
		}
		return
	}
	defer f.Close()
	var tops [2][]engine.Candidate
	for i, x := range []*engine.Session{s, f} {
		if tops[i], err = x.Top(ctx, ids[at:], 5, nil); err != nil {
			t.Error(err)
			return
		}
	}
	if !slices.Equal(tops[0], tops[1]) {
		t.Errorf("%d tokens, forked after %d: %v, and the fork %v", len(ids), at, tops[0], tops[1])
	}
}

// What a request is answered depends on the request alone: not on how many others run, how its prompt is divided,
// what is cancelled, forked and evicted meanwhile, nor on whether its beginning comes from the prefix cache, in memory,
// from disk or from before a restart.
func TestAnswersDependOnRequestsAlone(t *testing.T) {
	type variant struct {
		name         string
		slots, batch int
		latency      time.Duration
		ram, disk    int64
		twice        bool // and once more after a restart
	}
	variants := []variant{
		{name: "two slots, no cache", slots: 2, batch: 512},
		{name: "one slot", slots: 1, batch: 7, ram: 64 << 20},
		{name: "full", slots: 16, batch: 512, ram: 64 << 20},
		{name: "evicting", slots: 5, batch: 33, ram: 300 << 10},
		{name: "disk and restart", slots: 3, batch: 100, ram: 1 << 20, disk: 64 << 20, twice: true},
		{name: "disk alone", slots: 4, batch: 64, disk: 64 << 20, twice: true},
		{name: "latency bound", slots: 8, batch: 512, latency: time.Millisecond, ram: 64 << 20},
		{name: "row by row", slots: 2, batch: 1, ram: 64 << 20},
	}
	seeds, n := uint64(scaled(2, 1, 1)), scaled(40, 12, 6)
	turn := 0
	for _, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && raceEnabled && !long() {
			continue // the twins show the same races faster
		}
		stride, caches := scaled(1, 5, 5), caches
		if r.backend == engine.Vulkan && !long() {
			stride, caches, n = 5, caches[:2], n/2
		}
		if raceEnabled && !long() {
			caches = caches[:2]
		}
		for _, kv := range caches {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/%s/%d", r.name, kv.kv, seed), func(t *testing.T) {
					cfg := small.config(t)
					cfg.KV, cfg.KVSink, cfg.KVWindow, cfg.Context = kv.kv, kv.sink, kv.window, 1024
					m := newMix(t, r.open(t, cfg), seed, n)
					for _, v := range variants {
						// In a short run the variants go around, so that all meet each backend and some each cache.
						turn++
						if turn%stride != 0 || v.batch == 1 && r.backend == engine.Vulkan && !long() {
							continue
						}
						cfg := cfg
						cfg.Slots, cfg.Batch, cfg.MaxLatency = v.slots, v.batch, v.latency
						cfg.CacheRAM, cfg.CacheDisk = v.ram, v.disk
						if v.disk > 0 {
							cfg.CacheDir = t.TempDir()
						}
						cfg.Warn = func(err error) { t.Errorf("%s: warning: %v", v.name, err) }
						t.Run(v.name, func(t *testing.T) {
							for round := range 2 {
								if round > 0 && !v.twice {
									break
								}
								e, err := engine.Open(r.config(cfg))
								if err != nil {
									t.Fatal(err)
								}
								as := m.run(t, e, seed+uint64(round))
								m.check(t, as)
								reused := 0
								for _, a := range as {
									reused += a.Reused
									if a.PromptTokens != a.Reused+a.Processed {
										t.Errorf("%d of a prompt of %d reused and %d processed", a.Reused, a.PromptTokens, a.Processed)
									}
								}
								if v.ram+v.disk == 0 && reused > 0 || round > 0 && reused == 0 {
									t.Errorf("round %d: %d tokens reused", round, reused)
								}
								if err := e.Close(); err != nil {
									t.Error(err)
								}
							}
						})
					}
				})
			}
		}
	}
}
