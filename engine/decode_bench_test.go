package engine_test

import (
	"context"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// BenchmarkDecode decodes the demo model greedily on every device: by hand, which is what caldera bench measures, and as
// a request. Run it with -benchmem: neither allocates per token (TestDecodeAllocations).
func BenchmarkDecode(b *testing.B) {
	for _, r := range devices(b, "auto") {
		b.Run(r.name, func(b *testing.B) {
			e := openPlain(b, r)
			b.Run("session", func(b *testing.B) {
				step, done := decoding(b, e)
				defer done()
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
			})
			b.Run("request", func(b *testing.B) {
				next, done := generating(b, e)
				defer done()
				b.ReportAllocs()
				for b.Loop() {
					next()
				}
			})
		})
	}
}

// openPlain opens the demo model as the program does, without checks of plans.
func openPlain(t testing.TB, r rig) *engine.Engine {
	t.Helper()
	cfg := r.config(demoConfig())
	cfg.Check = false
	e, err := engine.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// decoding returns a function that decodes a token of a session that starts over when its context is full.
func decoding(t testing.TB, e *engine.Engine) (step, done func()) {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	token, cand := []int32{5}, make([]engine.Candidate, 0, 1)
	step = func() {
		if s.Len() == e.Context() {
			s.Reset()
		}
		if cand, err = s.Top(ctx, token, 1, cand[:0]); err != nil {
			t.Fatal(err)
		}
		token[0] = cand[0].ID
	}
	for range 3 {
		step() // plans are made
	}
	return step, s.Close
}

// generating returns a function that takes a token of a request, which is made again when its context is full.
func generating(t testing.TB, e *engine.Engine) (next, done func()) {
	t.Helper()
	var stream *engine.Stream
	next = func() {
		for {
			if stream == nil {
				var err error
				if stream, err = e.Generate(context.Background(), greedy([]int32{5}, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if _, ok := engine.NextToken(stream); ok {
				return
			}
			if _, err := stream.Result(); err != nil {
				t.Fatal(err)
			}
			stream = nil
		}
	}
	for range 3 {
		next()
	}
	return next, func() { stream.Cancel(); stream.Result() }
}
