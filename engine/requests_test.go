package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// long reports whether tests shall run at the size that the cases they are made from ask for, which takes minutes
// each on software devices: with CALDERA_LONG=1.
func long() bool { return os.Getenv("CALDERA_LONG") == "1" }

// scaled is full in a long run, and otherwise few, or fewer under the race detector, which slows all down tenfold.
func scaled(full, few, fewer int) int {
	switch {
	case long():
		return full
	case raceEnabled:
		return fewer
	}
	return few
}

// serial skips a test under the race detector that does one thing at a time.
func serial(t testing.TB) {
	t.Helper()
	if raceEnabled && !long() {
		t.Skip("it does one thing at a time")
	}
}

// reference is the rig of the plain Go twins.
func reference() rig { return rig{"reference", engine.Reference, "", ""} }

// oneDevice is a Vulkan device, the one that makes plans fastest of those that tests are run on, or the reference where
// there is none.
func oneDevice(t testing.TB) rig {
	rs := rigs(t)
	for _, r := range rs {
		if strings.HasPrefix(r.name, "llvmpipe") && r.profile == "auto" {
			return r
		}
	}
	return rs[0]
}

// greedy asks for n tokens without any chance in them.
func greedy(prompt []int32, n int) engine.Request {
	p := sample.Neutral()
	p.Temperature = 0
	return engine.Request{Prompt: prompt, MaxTokens: n, Sample: p, IgnoreEOG: true}
}

// collect reads a stream to its end.
func collect(s *engine.Stream) ([]int32, error) {
	var ids []int32
	for tok, err := range s.Tokens() {
		if err != nil {
			return ids, err
		}
		if tok.ID >= 0 {
			ids = append(ids, tok.ID)
		}
	}
	return ids, nil
}

// An answer is what came of a request.
type answer struct {
	ids []int32
	engine.Result
}

// ask sends a request and waits for its end.
func ask(t testing.TB, e *engine.Engine, r engine.Request) answer {
	t.Helper()
	s, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := collect(s)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.Result()
	if err != nil {
		t.Fatal(err)
	}
	return answer{ids, res}
}

// askAll sends requests from so many clients, each of which waits for its answer before it sends the next, and returns
// the answers in the order of the requests.
func askAll(t testing.TB, e *engine.Engine, rs []engine.Request, clients int) []answer {
	t.Helper()
	as := make([]answer, len(rs))
	next := make(chan int)
	var all sync.WaitGroup
	for range min(clients, len(rs)) {
		all.Go(func() {
			for i := range next {
				s, err := e.Generate(context.Background(), rs[i])
				for errors.Is(err, engine.ErrBusy) { // the queue is full of others' requests
					time.Sleep(time.Millisecond)
					s, err = e.Generate(context.Background(), rs[i])
				}
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					continue
				}
				ids, err := collect(s)
				if err != nil {
					t.Errorf("request %d: %v", i, err)
				}
				res, _ := s.Result()
				as[i] = answer{ids, res}
			}
		})
	}
	for i := range rs {
		next <- i
	}
	close(next)
	all.Wait()
	return as
}

// randomTokens are n tokens.
func randomTokens(r *rand.Rand, n, vocab int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(vocab))
	}
	return ids
}

// join is its arguments one after the other, in memory of their own.
func join(parts ...[]int32) []int32 { return slices.Concat(parts...) }

// mustBeIdle checks that nothing is held when nothing runs.
func mustBeIdle(t testing.TB, e *engine.Engine) {
	t.Helper()
	// A request's reader may learn of its end before the engine has put its seat away.
	deadline := time.Now().Add(5 * time.Second)
	for {
		held := engine.Held(e)
		if held == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing runs, and %s", held)
		}
		time.Sleep(time.Millisecond)
	}
}

// contains reports whether an error says something.
func contains(err error, what string) bool { return err != nil && strings.Contains(err.Error(), what) }
