package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/sample"
)

func TestRowLimit(t *testing.T) {
	l := rowLimit{budget: 100 * time.Millisecond}
	const ms = time.Millisecond
	for i, c := range []struct {
		rows    int
		longest time.Duration
		want    int // of a batch of 64
		told    bool
	}{
		{64, 80 * ms, 64, false},
		{64, 400 * ms, 16, true},
		{16, 200 * ms, 8, true},
		{1, 300 * ms, 8, false},  // no fewer rows than one
		{8, 50 * ms, 16, false},  // half the budget
		{2, 10 * ms, 16, false},  // says nothing of 16
		{16, 60 * ms, 16, false}, // neither
		{16, 0, 16, false},       // not measured
		{16, 20 * ms, 32, false},
		{32, 40 * ms, 64, false},
		{64, 101 * ms, 63, true},
	} {
		if err := l.saw(c.rows, 64, c.longest); (err != nil) != c.told || l.of(64) != c.want {
			t.Errorf("step %d, of %d rows in %v: %d rows at most, want %d; said: %v", i, c.rows, c.longest, l.of(64), c.want, err)
		}
	}
	none := rowLimit{}
	if err := none.saw(64, 64, time.Hour); err != nil || none.of(64) != 64 {
		t.Errorf("without a budget: %d rows, %v", none.of(64), err)
	}
}

// With a budget that steps exceed they are submitted in parts, with fewer rows, and give the same tokens.
func TestSubmitBudget(t *testing.T) {
	eachBackend(t, func(t *testing.T, cfg Config) {
		if cfg.Backend == Reference {
			t.Skip("nothing is submitted")
		}
		cfg.Data, cfg.Name, cfg.Context, cfg.Batch = demo.Model(), demo.Name, 1024, 4
		greedy := sample.Neutral()
		greedy.Temperature = 0
		req := Request{Prompt: make([]int32, 8), MaxTokens: 4, Sample: greedy, IgnoreEOG: true}
		for i := range req.Prompt {
			req.Prompt[i] = int32(7*i + 1)
		}
		var want []int32
		// Every command buffer takes longer than a nanosecond.
		for _, budget := range []time.Duration{-1, 1} {
			cfg.SubmitBudget = budget
			warned := 0
			cfg.Warn = func(error) { warned++ }
			e, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			before := e.DeviceStats()
			s, err := e.Generate(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for tok, err := range s.Tokens() {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, tok.ID)
			}
			d := e.DeviceStats().Sub(before)
			t.Logf("budget %v: %d submissions of %d command buffers, told %d times", budget, d.Submits, d.CommandBuffers, warned)
			if budget < 0 {
				if want = got; warned != 0 || d.Submits != 2+3 {
					t.Errorf("%d submissions and %d warnings without a budget", d.Submits, warned)
				}
			} else if !slices.Equal(got, want) {
				t.Errorf("tokens %v, without a budget %v", got, want)
			} else if warned != 1 || d.Submits != d.CommandBuffers || e.limit.rows != 1 {
				t.Errorf("%d submissions of %d command buffers, told %d times, %d rows at most", d.Submits, d.CommandBuffers, warned, e.limit.rows)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Sessions keep to the limit too.
func TestSubmitBudgetSession(t *testing.T) {
	e, err := Open(Config{Data: demo.Model(), Name: demo.Name, Backend: Reference, Context: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.limit = rowLimit{budget: time.Second, rows: 3}
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Prefill(context.Background(), make([]int32, 10)); err != nil {
		t.Fatal(err)
	}
	for k := range e.plans {
		if k.rows > 4 {
			t.Errorf("a plan of %d rows was made, where steps have 3 at most", k.rows)
		}
	}
}
