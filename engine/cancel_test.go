package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// A slow engine takes a row a step, so that there is time to cancel.
func slow(t testing.TB, cfg engine.Config) *engine.Engine {
	t.Helper()
	c := small.config(t)
	c.Context, c.Batch, c.Slots, c.Queue, c.CacheRAM = 16384, 1, cfg.Slots, cfg.Queue, cfg.CacheRAM
	return reference().open(t, c)
}

// send sends a request that must be accepted.
func send(t testing.TB, ctx context.Context, e *engine.Engine, r engine.Request) *engine.Stream {
	t.Helper()
	s, err := e.Generate(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// first waits for a request's first tokens.
func first(t testing.TB, s *engine.Stream, n int) {
	t.Helper()
	if !waitTokens(s, n) {
		t.Fatal("the request ended early")
	}
}

func waitTokens(s *engine.Stream, n int) bool {
	for n > 0 {
		if _, ok := engine.NextToken(s); !ok {
			return false
		}
		n--
	}
	return true
}

// Requests end when they are cancelled, wherever they are and whoever cancels, at the next step, and leave nothing behind.
func TestCancel(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 1))
	why := errors.New("changed my mind")
	phases := []struct {
		name   string
		prompt int
		queued bool
		begun  func(s *engine.Stream)
	}{
		{"queued", 10, true, func(*engine.Stream) { time.Sleep(20 * time.Millisecond) }},
		{"prefill", 9000, false, func(*engine.Stream) { time.Sleep(50 * time.Millisecond) }},
		{"decoding", 5, false, func(s *engine.Stream) { first(t, s, 3) }},
	}
	ways := []struct {
		name string
		ctx  func() (context.Context, context.CancelCauseFunc)
		stop func(s *engine.Stream, cancel context.CancelCauseFunc)
		want error
	}{
		{"context", func() (context.Context, context.CancelCauseFunc) {
			return context.WithCancelCause(context.Background())
		},
			func(_ *engine.Stream, cancel context.CancelCauseFunc) { cancel(why) }, why},
		{"stream", func() (context.Context, context.CancelCauseFunc) {
			return context.WithCancelCause(context.Background())
		},
			func(s *engine.Stream, _ context.CancelCauseFunc) { s.Cancel() }, context.Canceled},
		{"deadline", func() (context.Context, context.CancelCauseFunc) {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			return ctx, func(error) { cancel() }
		}, func(*engine.Stream, context.CancelCauseFunc) {}, context.DeadlineExceeded},
	}
	for _, cache := range []int64{0, 16 << 20} {
		e := slow(t, engine.Config{Slots: 1, CacheRAM: cache})
		for _, p := range phases {
			for _, w := range ways {
				t.Run(p.name+"/"+w.name, func(t *testing.T) {
					var before *engine.Stream
					if p.queued {
						before = send(t, context.Background(), e, greedy(randomTokens(r, 10, mixVocab), 0))
						first(t, before, 1)
					}
					ctx, cancel := w.ctx()
					defer cancel(nil)
					s := send(t, ctx, e, greedy(randomTokens(r, p.prompt, mixVocab), 0))
					p.begun(s)
					w.stop(s, cancel)
					begin := time.Now()
					res, err := s.Result()
					if took := time.Since(begin); took > 3*time.Second {
						t.Errorf("it took %v to end", took)
					}
					if !errors.Is(err, w.want) || res.Reason != engine.ReasonCancelled {
						t.Errorf("%v, reason %q; want %v", err, res.Reason, w.want)
					}
					switch {
					case p.queued && (res.Processed > 0 || res.Queued == 0):
						t.Errorf("it waited, and %+v", res)
					case p.name == "prefill" && (res.Processed == 0 || res.Processed == res.PromptTokens || res.Tokens > 0):
						t.Errorf("it was cancelled while the prompt was processed, and %+v", res)
					case p.name == "decoding" && res.Tokens < 3:
						t.Errorf("it was cancelled after three tokens, and %+v", res)
					}
					if before != nil {
						first(t, before, 1) // which was not disturbed
						before.Cancel()
					}
					mustBeIdle(t, e)
				})
			}
		}
	}
}

// A request that ends while the cache is looked at for it leaves no snapshot in use.
func TestCancelDuringLookup(t *testing.T) {
	e := slow(t, engine.Config{Slots: 2, CacheRAM: 16 << 20})
	r := rand.New(rand.NewPCG(13, 2))
	prompt := randomTokens(r, 600, mixVocab)
	if want := ask(t, e, greedy(prompt, 1)); want.Processed != 600 {
		t.Fatalf("%+v", want.Result)
	}
	busy := send(t, context.Background(), e, greedy([]int32{1, 2, 3}, 0)) // so that steps go on
	for range scaled(2000, 500, 100) {
		s := send(t, context.Background(), e, greedy(prompt, 1))
		time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		s.Cancel()
		if _, err := s.Result(); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	busy.Cancel()
	if _, err := busy.Result(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	mustBeIdle(t, e)
	if s := e.Cache().Stats(); s.Hits+s.PartialHits == 0 {
		t.Error("nothing was found, and the test shows nothing")
	}
}

// A context that has ended before the request is sent costs nothing.
func TestCancelBefore(t *testing.T) {
	e := slow(t, engine.Config{Slots: 1})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s, err := e.Generate(ctx, greedy([]int32{1, 2, 3}, 5))
	if err == nil {
		_, err = s.Result()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	mustBeIdle(t, e)
}

// Leaving the loop over the tokens cancels the request. Tokens that were not read before the end of a request stay to
// be read, and a slow reader holds nobody up.
func TestReaders(t *testing.T) {
	e := slow(t, engine.Config{Slots: 2})
	s := send(t, context.Background(), e, greedy([]int32{1, 2, 3}, 0))
	n := 0
	for _, err := range s.Tokens() {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 4 {
			break
		}
	}
	if res, err := s.Result(); !errors.Is(err, context.Canceled) || res.Reason != engine.ReasonCancelled || res.Tokens < 4 {
		t.Errorf("after the loop was left: %+v, %v", res, err)
	}

	want := ask(t, e, greedy([]int32{1, 2, 3}, 200)).ids
	reader := send(t, context.Background(), e, greedy([]int32{1, 2, 3}, 200))
	if got := ask(t, e, greedy([]int32{4, 5}, 20)); len(got.ids) != 20 {
		t.Errorf("%d tokens beside a request that nobody reads", len(got.ids))
	}
	if res, err := reader.Result(); err != nil || res.Tokens != 200 || res.Reason != engine.ReasonLength {
		t.Errorf("nobody read it, and it ended with %+v, %v", res, err)
	}
	got, err := collect(reader)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("tokens read after the end: %v, %v; want %v", got, err, want)
	}
	if more, err := collect(reader); len(more) > 0 || err != nil {
		t.Errorf("read once more: %v, %v", more, err)
	}
	mustBeIdle(t, e)
}

// As many requests wait as the queue has room for. Those that find a free slot do not wait.
func TestBusy(t *testing.T) {
	for _, queue := range []int{-1, 2} {
		room := max(0, queue)
		e := slow(t, engine.Config{Slots: 2, Queue: queue})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var streams []*engine.Stream
		for range 2 + room {
			streams = append(streams, send(t, ctx, e, greedy([]int32{1, 2, 3}, 0)))
		}
		first(t, streams[1], 1)
		if _, err := e.Generate(ctx, greedy([]int32{1}, 1)); !errors.Is(err, engine.ErrBusy) {
			t.Errorf("queue of %d: one more: %v", room, err)
		}
		if _, err := e.NewSession(); !errors.Is(err, engine.ErrBusy) {
			t.Errorf("queue of %d: a session beside two requests in two slots: %v", room, err)
		}
		streams[0].Cancel()
		if _, err := streams[0].Result(); err == nil {
			t.Error("it was not cancelled")
		}
		if room > 0 {
			first(t, streams[2], 1) // which has come in
		}
		// The place of the one that has gone is free.
		deadline := time.Now().Add(5 * time.Second)
		for {
			s, err := e.Generate(ctx, greedy([]int32{1}, 1))
			if err == nil {
				if room == 0 {
					if _, err := s.Result(); err != nil {
						t.Error(err)
					}
				}
				break
			}
			if !errors.Is(err, engine.ErrBusy) || time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
		mustBeIdle(t, e)
	}
}

// Requests come to their turn in the order in which they were sent.
func TestOrder(t *testing.T) {
	e := slow(t, engine.Config{Slots: 1})
	var sent []time.Time
	var streams []*engine.Stream
	for i := range 6 {
		sent = append(sent, time.Now())
		streams = append(streams, send(t, context.Background(), e, greedy(randomTokens(rand.New(rand.NewPCG(1, 1)), 60-10*i, mixVocab), 3)))
	}
	var before time.Time
	for i, s := range streams {
		res, err := s.Result()
		if err != nil {
			t.Fatal(err)
		}
		seated := sent[i].Add(res.Queued)
		if seated.Before(before) {
			t.Errorf("request %d came in %v before the one that was sent before it", i, before.Sub(seated))
		}
		before = seated
	}
}

// A session holds a seat like a request does, and requests wait for it to be closed.
func TestSessionsAndRequestsShareSeats(t *testing.T) {
	e := slow(t, engine.Config{Slots: 1})
	ctx := context.Background()
	x, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	s := send(t, ctx, e, greedy([]int32{1, 2, 3}, 5))
	if err := x.Prefill(ctx, []int32{5, 6, 7}); err != nil {
		t.Error(err)
	}
	time.Sleep(20 * time.Millisecond)
	if n := engine.Delivered(s); n > 0 {
		t.Errorf("%d tokens while a session has the only seat", n)
	}
	x.Close()
	if res, err := s.Result(); err != nil || res.Tokens != 5 {
		t.Errorf("%+v, %v", res, err)
	}
	if err := x.Prefill(ctx, []int32{1}); err == nil {
		t.Error("a closed session was fed")
	}
	x.Close() // does no harm
	mustBeIdle(t, e)

	// A session may be fed while a request runs.
	e = slow(t, engine.Config{Slots: 2})
	want := ask(t, e, greedy([]int32{1, 2, 3}, 50)).ids
	s = send(t, ctx, e, greedy([]int32{1, 2, 3}, 50))
	y := session(t, e)
	if err := y.Prefill(ctx, randomTokens(rand.New(rand.NewPCG(1, 2)), 100, mixVocab)); err != nil {
		t.Error(err)
	}
	if got, err := collect(s); err != nil || !slices.Equal(got, want) {
		t.Errorf("beside a session: %v, %v; alone %v", got, err, want)
	}
}

// Closing an engine ends what runs and what waits, at once, and refuses what comes.
func TestCloseWhileRunning(t *testing.T) {
	for _, cache := range []int64{0, 16 << 20} {
		c := small.config(t)
		c.Context, c.Batch, c.Slots, c.CacheRAM = 16384, 1, 3, cache
		e, err := engine.Open(reference().config(c))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 3))
		held, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		fed := make(chan error)
		go func() {
			for {
				if err := held.Prefill(context.Background(), []int32{1, 2}); err != nil {
					fed <- err
					return
				}
			}
		}()
		decoding := send(t, context.Background(), e, greedy([]int32{1, 2, 3}, 0))
		first(t, decoding, 2)
		streams := []*engine.Stream{decoding}
		for _, n := range []int{9000, 10, 20} { // one in prefill, two that wait
			streams = append(streams, send(t, context.Background(), e, greedy(randomTokens(r, n, mixVocab), 0)))
		}
		var late sync.WaitGroup
		for range 4 {
			late.Go(func() {
				for {
					s, err := e.Generate(context.Background(), greedy([]int32{7, 8}, 0))
					if err != nil {
						if !errors.Is(err, engine.ErrClosed) {
							t.Errorf("sent to an engine that closes: %v", err)
						}
						return
					}
					if _, err := s.Result(); !errors.Is(err, engine.ErrClosed) {
						t.Errorf("accepted before it closed: %v", err)
					}
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		begin := time.Now()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("closing took %v", took)
		}
		late.Wait()
		if err := <-fed; !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a session that was being fed: %v", err)
		}
		if _, err := held.Snapshot(); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a snapshot after that: %v", err)
		}
		if _, err := held.Fork(); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a fork after that: %v", err)
		}
		held.Reset()
		held.Close()
		for i, s := range streams {
			if res, err := s.Result(); !errors.Is(err, engine.ErrClosed) || res.Reason != engine.ReasonError {
				t.Errorf("request %d: %+v, %v", i, res, err)
			}
		}
		if _, err := e.Generate(context.Background(), greedy([]int32{1}, 1)); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a request to a closed engine: %v", err)
		}
		if _, err := e.NewSession(); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a session of a closed engine: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("closing twice: %v", err)
		}
	}
}

// Requests that cannot be answered are refused with a reason.
func TestRefusals(t *testing.T) {
	c := small.config(t)
	c.Context = 512
	e := reference().open(t, c)
	ctx := context.Background()
	for _, x := range []struct {
		name   string
		r      engine.Request
		is     error
		reason string
	}{
		{"no prompt", greedy(nil, 1), nil, "no tokens"},
		{"a token outside the vocabulary", greedy([]int32{1, 256}, 1), nil, "256"},
		{"a negative token", greedy([]int32{-1}, 1), nil, "-1"},
		{"a negative limit", greedy([]int32{1}, -1), nil, "-1"},
		{"a long prompt", greedy(make([]int32, 513), 1), engine.ErrContextFull, "513"},
	} {
		s, err := e.Generate(ctx, x.r)
		if err == nil || s != nil || x.is != nil && !errors.Is(err, x.is) || !contains(err, x.reason) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	bad := greedy([]int32{1}, 1)
	bad.Sample.TopP = 2
	if _, err := e.Generate(ctx, bad); err == nil {
		t.Error("parameters that make no sense were accepted")
	}

	// A full context ends a request and is no error; the last token is drawn from its last row.
	for _, n := range []int{500, 511, 512} {
		a := ask(t, e, greedy(make([]int32, n), 0))
		if a.Reason != engine.ReasonContext || a.Tokens != 512-n+1 || len(a.ids) != a.Tokens {
			t.Errorf("a prompt of %d in a context of 512: %+v", n, a.Result)
		}
		a = ask(t, e, greedy(make([]int32, n), 1000))
		if a.Reason != engine.ReasonContext || a.Tokens != 512-n+1 {
			t.Errorf("a prompt of %d in a context of 512, 1000 tokens asked for: %+v", n, a.Result)
		}
	}
	mustBeIdle(t, e)
}
