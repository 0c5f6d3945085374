package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// Decoding a token allocates nothing on the heap, neither here nor in the driver's layer.
func TestDecodeAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	step, done := decoding(t, openPlain(t, devices(t, "auto")[0]))
	defer done()
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%g allocations per token", n)
	}
}

// A profile has every op of the step with its time, leaves nothing behind and changes no answer.
func TestProfile(t *testing.T) {
	for _, r := range []rig{devices(t, "auto")[0], {name: "reference", backend: engine.Reference}} {
		t.Run(r.name, func(t *testing.T) {
			cfg := demoConfig()
			cfg.Context, cfg.Slots, cfg.Batch = 64, 2, 16
			e := r.open(t, cfg)
			ctx := context.Background()
			prompt := demoTokens(t, 20)
			answer := func() []int32 {
				s, err := e.Generate(ctx, greedy(prompt, 5))
				if err != nil {
					t.Fatal(err)
				}
				ids, err := collect(s)
				if err != nil {
					t.Fatal(err)
				}
				return ids
			}
			before := answer()
			for _, o := range []engine.ProfileOptions{
				{Depth: 21, Sequences: 2, Repetitions: 3},
				{Rows: 16, Repetitions: 1},
				{Rows: 4, Depth: 60}, // up to the end of the context
			} {
				p, err := e.Profile(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				checkProfile(t, o, p)
				if held := engine.Held(e); held != "" {
					t.Errorf("after a profile %s", held)
				}
				if o.Sequences == 2 {
					c, err := e.DecodeCounts(2)
					if err != nil || c != p.Counts || r.backend == engine.Vulkan && len(p.Ops) != c.Ops {
						t.Errorf("%d ops, counts %+v; a step has %+v, %v", len(p.Ops), p.Counts, c, err)
					}
				}
			}
			if after := answer(); len(after) != 5 || !slices.Equal(before, after) {
				t.Errorf("before %d, after %d", before, after)
			}
			if rate, err := e.CopyRate(); err != nil || rate < 1e8 || rate > 1e14 {
				t.Errorf("copies at %g bytes/s, %v", rate, err)
			}
		})
	}
}

// checkProfile checks that a profile is one of the step asked for, and that its times fit each other.
func checkProfile(t *testing.T, o engine.ProfileOptions, p *engine.Profile) {
	t.Helper()
	if p.Sequences != max(1, o.Sequences) || p.Rows != max(1, o.Rows) || p.Depth != o.Depth || p.Repetitions < max(1, o.Repetitions) {
		t.Errorf("asked for %+v, got a profile of %d sequences of %d rows after %d, %d times", o, p.Sequences, p.Rows, p.Depth, p.Repetitions)
	}
	var sum time.Duration
	kernels := map[string]int{}
	for _, op := range p.Ops {
		kernels[op.Kernel]++
		sum += op.Time
		if op.Time < 0 {
			t.Errorf("%+v", op)
		}
		if op.Kernel == "matmul" && (op.Time == 0 || !strings.Contains(op.Detail, "x") || op.Cost.Flops == 0) {
			t.Errorf("%+v", op)
		}
	}
	if kernels["matmul"] == 0 || kernels["delta_rule"] == 0 || kernels["embed"] != 1 {
		t.Errorf("kernels %v", kernels)
	}
	// The times of one step add up to its total exactly; medians of ops and of totals nearly do.
	if sum < p.Device/2 || sum > 2*p.Device || p.Device <= 0 || p.Device > p.Wait || p.Plain <= 0 {
		t.Errorf("ops %v, device %v, wait %v, ordinary %v", sum, p.Device, p.Wait, p.Plain)
	}
}

func TestProfileErrors(t *testing.T) {
	cfg := demoConfig()
	cfg.Context, cfg.Batch = 64, 16
	e := rig{backend: engine.Reference}.open(t, cfg)
	ctx := context.Background()
	for _, o := range []engine.ProfileOptions{{Rows: 17}, {Depth: 64}, {Depth: -1}, {Rows: 5, Depth: 60}} {
		if _, err := e.Profile(ctx, o); err == nil || !strings.Contains(err.Error(), "does not fit a batch of 16 and a context of 64") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := e.Profile(ctx, engine.ProfileOptions{Sequences: 2}); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("more sequences than slots: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.Profile(gone, engine.ProfileOptions{Depth: 3}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if held := engine.Held(e); held != "" {
		t.Error(held)
	}
	s := session(t, e)
	if _, err := e.Profile(ctx, engine.ProfileOptions{}); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("beside a session: %v", err)
	}
	// The times of a session's steps are counted and add up.
	if _, err := s.Top(ctx, demoTokens(t, 20), 1, nil); err != nil {
		t.Fatal(err)
	}
	x := s.Times
	if s.Steps != 2 || x.Wait != s.Waited || x.Form <= 0 || x.Write <= 0 || x.Read <= 0 || x.Host() != x.Form+x.Write+x.Submit+x.Read {
		t.Errorf("%d steps, waited %v, %+v", s.Steps, s.Waited, x)
	}
	if x.Plus(x).Minus(x) != x {
		t.Errorf("%+v", x.Plus(x).Minus(x))
	}
}
