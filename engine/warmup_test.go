package engine_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// After a warm-up no request makes a pipeline, however long its prompt, however it draws, and however many run beside it.
// GPUs' kernels differ by the number of rows: with other profiles there is less to miss.
func TestWarmUp(t *testing.T) {
	r := oneDevice(t)
	if r.backend == engine.Vulkan {
		r.profile = "kepler"
	}
	cfg := demoConfig()
	cfg.Slots, cfg.KV = 4, "q8_0"
	e := r.open(t, cfg)
	made, total := -1, 0
	if err := e.WarmUp(context.Background(), func(done, of int) {
		if done != made+1 || of < done || total != 0 && of != total {
			t.Errorf("%d of %d pipelines after %d of %d", done, of, made, total)
		}
		made, total = done, of
	}); err != nil {
		t.Fatal(err)
	}
	// None was left to be made by the steps of the warm-up either.
	before := e.DeviceStats().Pipelines
	if before != int64(total) || total > 0 && made != total {
		t.Errorf("%d of %d pipelines were told of, %d made", made, total, before)
	}
	run := func(reqs ...engine.Request) {
		t.Helper()
		var all []*engine.Stream
		for _, q := range reqs {
			st, err := e.Generate(context.Background(), q)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, st)
		}
		for _, st := range all {
			if _, err := st.Result(); err != nil {
				t.Fatal(err)
			}
		}
	}
	prompt := func(n int) engine.Request { return greedy(demoTokens(t, n), 2) }
	logprobs, top, penalty := prompt(2), prompt(2), prompt(3)
	logprobs.Logprobs, logprobs.TopLogprobs = true, 3
	top.Sample = sample.Defaults(true)
	top.Sample.PresencePenalty = 0
	penalty.Sample.RepetitionPenalty = 1.1
	run(prompt(1))
	run(prompt(12))
	run(logprobs)
	run(prompt(3), top, logprobs, penalty)
	if long() {
		run(prompt(300)) // a page becomes a cold one
	}
	if n := e.DeviceStats().Pipelines - before; n > 0 {
		t.Errorf("requests made %d pipelines", n)
	}
}

// A warm-up ends with its context, between two pipelines.
func TestWarmUpCancelled(t *testing.T) {
	r := oneDevice(t)
	if r.backend == engine.Reference {
		t.Skip("no pipelines without a device")
	}
	e := r.open(t, demoConfig())
	ctx, cancel := context.WithCancel(context.Background())
	made, total := 0, 0
	err := e.WarmUp(ctx, func(done, of int) {
		if made, total = done, of; done == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || made < 3 || made-3 > runtime.GOMAXPROCS(0) || made == total && runtime.GOMAXPROCS(0) < 16 {
		t.Errorf("%v after %d of %d pipelines", err, made, total)
	}
	// What is missing is made by another, or by whoever needs it.
	if err := e.WarmUp(context.Background(), func(_, of int) { total = of }); err != nil {
		t.Error(err)
	}
}
