package engine

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/ladder"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/vk"
)

// tinyModel is a small model with both kinds of layers.
func tinyModel(t *testing.T) string { return oracle.OfArch(oracle.Cases(t), "qwen35moe")[0].Model() }

// eachBackend runs a test on the reference and on a device, the one that makes plans fastest, with CALDERA_LONG=1 on
// every one there is.
func eachBackend(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Run("reference", func(t *testing.T) { f(t, Config{Backend: Reference}) })
	in, err := vk.Open(vk.Config{})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	devices := in.Devices()
	in.Close()
	if os.Getenv("CALDERA_LONG") == "" {
		fast := max(0, slices.IndexFunc(devices, func(d vk.DeviceInfo) bool { return strings.HasPrefix(d.Name, "llvmpipe") }))
		devices = devices[fast : fast+1]
	}
	for _, d := range devices {
		t.Run(d.Name, func(t *testing.T) { f(t, Config{Device: d.UUID}) })
	}
}

// run sends requests with prompts of various lengths and returns what each got.
func run(t *testing.T, e *Engine, n, tokens int) [][]int32 {
	t.Helper()
	greedy := sample.Neutral()
	greedy.Temperature = 0
	var streams []*Stream
	for i := range n {
		prompt := make([]int32, 60+90*i)
		for j := range prompt {
			prompt[j] = int32((7*j + 13*i + 1) % e.model.Vocab)
		}
		s, err := e.Generate(context.Background(), Request{Prompt: prompt, MaxTokens: tokens, Sample: greedy, IgnoreEOG: true})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	var all [][]int32
	for i, s := range streams {
		var ids []int32
		for tok, err := range s.Tokens() {
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			ids = append(ids, tok.ID)
		}
		all = append(all, ids)
	}
	return all
}

// fakeMemory is low for some observations after the first.
type fakeMemory struct {
	asked atomic.Int64
	low   int64
}

func (m *fakeMemory) read() ladder.Pressure {
	left := int64(1 << 30)
	if n := m.asked.Add(1); n > 2 && n <= 2+m.low {
		left = 0
	}
	return ladder.Pressure{{Source: ladder.Device, Used: -1, Limit: 1 << 30, Available: left}}
}

// Under memory pressure the engine gives things up in the order of the ladder while requests run, says so, and takes
// all of it back. With an F32 cache, which has no colder form, the tokens stay what they were.
func TestPressure(t *testing.T) {
	eachBackend(t, func(t *testing.T, cfg Config) {
		for _, format := range []string{"f32", "f16"} {
			t.Run(format, func(t *testing.T) {
				cfg := cfg
				cfg.Path, cfg.Context, cfg.Slots, cfg.Batch, cfg.KV, cfg.CacheRAM = tinyModel(t), 1024, 16, 128, format, 32<<20
				cfg.KVWindow = 64
				calm, err := Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				want := run(t, calm, 4, 20)
				if err := calm.Close(); err != nil {
					t.Fatal(err)
				}
				m := &fakeMemory{low: 16}
				var mu sync.Mutex
				var events []string
				cfg.pressure, cfg.settle = m.read, time.Millisecond
				cfg.Warn = func(err error) { mu.Lock(); events = append(events, err.Error()); mu.Unlock() }
				e, err := Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				before := e.Memory().Needed
				got := run(t, e, 4, 20)
				if format == "f32" {
					for i := range want {
						if !slices.Equal(got[i], want[i]) {
							t.Errorf("request %d: %v, want %v", i, got[i], want[i])
						}
					}
				}
				// Requests bring the batcher to look at memory until all is taken back.
				restored := func() bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					return e.cfg.Slots == 16 && e.cfg.Batch == 128 && e.cfg.KV == format
				}
				for i := 0; i < 200 && !restored(); i++ {
					run(t, e, 1, 1)
				}
				e.mu.Lock()
				if e.cfg.Slots != 16 || e.cfg.Batch != 128 || e.cfg.KV != format || e.pool.Live() != 16 {
					t.Errorf("left with %d slots, %d live, batch %d, KV %s", e.cfg.Slots, e.pool.Live(), e.cfg.Batch, e.cfg.KV)
				}
				if e.room.Needed != before {
					t.Errorf("needs %d bytes, %d before", e.room.Needed, before)
				}
				if n := e.pool.InUse(); n != (kv.Need{}) || len(e.seqs) != 0 {
					t.Errorf("%+v in use when all requests have ended", n)
				}
				e.mu.Unlock()
				mu.Lock()
				defer mu.Unlock()
				all := strings.Join(events, "\n")
				order := []string{"live slots 16 -> 8", "live slots 8 -> 1", "KV format of new pages f16 -> q8_0", "KV format of new pages q8_0 -> q4_0",
					"prefill chunk 128 -> 32", "memory for snapshots 32 MiB -> 16 MiB", "new requests wait", "new requests are refused",
					"new requests wait instead", "waiting requests start", "prefill chunk 32 -> 128", "live slots 1 -> 8", "live slots 8 -> 16"}
				for _, x := range order {
					if format == "f32" && strings.Contains(x, "q8_0") {
						continue
					}
					_, rest, ok := strings.Cut(all, x)
					if !ok {
						t.Fatalf("%q is missing or out of order:\n%s", x, strings.Join(events, "\n"))
					}
					all = rest
				}
				for _, ev := range events {
					if !strings.HasPrefix(ev, "memory pressure") {
						t.Errorf("went wrong: %s", ev)
					}
				}
			})
		}
	})
}

// A sequence goes on after a change of shape as if nothing had been, whatever else changes hands; with another type of
// cache its recurrent state is the same and its pages are what the device would have made of them.
func TestReshape(t *testing.T) {
	eachBackend(t, func(t *testing.T, cfg Config) {
		cfg.Path, cfg.Context, cfg.Slots, cfg.Batch = tinyModel(t), 1024, 4, 64
		cfg.KVWindow = 100
		ctx := context.Background()
		e, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		tokens := make([]int32, 700)
		for i := range tokens {
			tokens[i] = int32((5*i + i/7 + 1) % e.model.Vocab)
		}
		feed := func(e *Engine) *Session {
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Prefill(ctx, tokens); err != nil {
				t.Fatal(err)
			}
			return s
		}
		next := func(s *Session) []float32 {
			row, err := s.Last(ctx, []int32{3})
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(row)
		}
		plain := feed(e)
		want := next(plain)
		plain.Close()

		s := feed(e)
		other, err := e.NewSession() // of a slot that will go
		if err != nil {
			t.Fatal(err)
		}
		reshape := func(slots, batch int, format string) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.reshape(slots, batch, format)
		}
		if err := reshape(1, 64, "f16"); !errors.Is(err, ErrBusy) {
			t.Errorf("two sequences in one slot: %v", err)
		}
		other.Close()
		for _, x := range []struct {
			slots, batch int
		}{{1, 8}, {3, 128}} {
			if err := reshape(x.slots, x.batch, "f16"); err != nil {
				t.Fatal(err)
			}
			fork, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(next(s), want) {
				t.Errorf("%+v: the logits have changed", x)
			}
			if err := s.Restore(fork); err != nil {
				t.Fatal(err)
			}
		}
		// The same tokens in an engine that had the colder cache from the start: pages that were cold at their time are read
		// by later rows, so the state differs by the rounding of the cache; but the sequence must go on.
		if err := reshape(2, 64, "q8_0"); err != nil {
			t.Fatal(err)
		}
		if n := s.seq.seat.ColdPages(); n != 2 {
			t.Errorf("%d pages are cold, want 2", n)
		}
		got := next(s)
		worst, scale := float32(0), float32(0)
		for i := range got {
			worst, scale = max(worst, max(got[i]-want[i], want[i]-got[i])), max(scale, max(want[i], -want[i]))
		}
		if worst == 0 || worst > 0.05*scale {
			t.Errorf("a cache of q8_0 changes logits by %g of %g", worst, scale)
		}
	})
}
