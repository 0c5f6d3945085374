package load

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const second = time.Second

// A closed loop of clients: every figure follows from the fake's times.
func TestClosedLoop(t *testing.T) {
	for _, endpoint := range []string{Chat, Completions} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.slots, f.tokens = `[{"id":0,"is_processing":false}]`, 2
			o := options(t)
			o.Endpoint, o.Concurrency, o.Requests, o.Warmup, o.Key = endpoint, 3, 30, 2, "the-key"
			o.Goodput = []Goal{{"ttft", 100}, {"tpot", 10}, {"e2el", 170}}
			var progress []Progress
			o.Progress = func(p Progress) { progress = append(progress, p) }
			r := f.run(t, t.Context(), o)
			// 100 ms to the first of 8 tokens, 10 ms between two: 170 ms a request, ten in a row.
			want := Summary{N: 30, Mean: 100, P50: 100, P90: 100, P95: 100, P99: 100, Max: 100}
			if r.TTFT != want {
				t.Errorf("ttft %+v", r.TTFT)
			}
			want = Summary{N: 30, Mean: 10, P50: 10, P90: 10, P95: 10, P99: 10, Max: 10}
			if r.TPOT != want {
				t.Errorf("tpot %+v", r.TPOT)
			}
			if want.N = 30 * 7; r.ITL != want {
				t.Errorf("itl %+v", r.ITL)
			}
			if r.E2EL.N != 30 || math.Abs(r.E2EL.Mean-170) > 1e-6 || r.Duration != 1700*time.Millisecond {
				t.Errorf("e2el %+v, %v", r.E2EL, r.Duration)
			}
			if r.Model != "fake" || r.Begun != 30 || r.Completed != 30 || r.Failed != 0 || r.Good != 30 || r.Input != 600 || r.Output != 240 || r.Interrupted {
				t.Errorf("%+v", r)
			}
			if f.n != 32 || f.most != 3 || len(f.keys) != 1 || !f.keys["Bearer the-key"] {
				t.Errorf("%d requests, %d at a time, keys %v", f.n, f.most, f.keys)
			}
			if r.Failure() != "" || r.FaultCount() != 0 {
				t.Error(r.Failure())
			}
			if len(progress) != 1 || progress[0].Completed != 15 || progress[0].Running != 3 || progress[0].Begun != 18 || progress[0].Other != 0 || progress[0].Output != 120 {
				t.Errorf("%+v", progress)
			}
			if len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], "no metrics: /metrics answers 404") {
				t.Errorf("%q", r.Notes)
			}
		})
	}
}

// After the duration no request begins, and those that have begun may end. A request that meets one goal and misses another
// is no good one.
func TestDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		o := options(t)
		o.Requests, o.Duration, o.Concurrency = 0, second, 2
		o.Goodput = []Goal{{"ttft", 500}, {"tpot", 9.9}}
		r := f.run(t, t.Context(), o)
		if r.Completed != 12 || r.Begun != 12 || r.Duration != 6*170*time.Millisecond || r.Good != 0 || r.Failure() != "" {
			t.Errorf("%+v", r)
		}
	})
}

// In an open loop a slow server does not slow the arrivals down, and what requests wait counts from when they were due.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.first, f.gap = second, 0
		o := options(t)
		o.Rate, o.Requests, o.Concurrency = 100, 20, 1
		r := f.run(t, t.Context(), o)
		// One at a time takes 20 s, but all were due in about 0.2 s: the mean wait is that of 0 to 19 s.
		if r.Completed != 20 || f.most != 1 || math.Abs(r.TTFT.Mean-10_500) > 200 || math.Abs(r.TTFT.Max-20_000) > 300 || math.Abs(r.Lag.Max-19_000) > 300 || r.E2EL.Max < r.TTFT.Max {
			t.Errorf("ttft %+v, lag %+v, %d at a time", r.TTFT, r.Lag, f.most)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.first, f.gap = second, 0
		o := options(t)
		o.Rate, o.Requests, o.Duration, o.Concurrency = 50, 0, 20*second, 1000
		r := f.run(t, t.Context(), o)
		// With room for all none waits. There are about 50 a second, of which each takes one.
		if math.Abs(float64(r.Completed)-1000) > 100 || r.Lag.Max != 0 || r.TTFT.Max != 1000 || f.most < 30 || f.most > 90 || r.Unsent != 0 {
			t.Errorf("%d completed, %d at a time, lag %+v, ttft %+v", r.Completed, f.most, r.Lag, r.TTFT)
		}
		if r.Duration < 20*second || r.Duration > 22*second {
			t.Errorf("%v", r.Duration)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.first, f.gap = second, 0
		o := options(t)
		o.Rate, o.Requests, o.Duration, o.Concurrency = 50, 0, 10*second, 2
		r := f.run(t, t.Context(), o)
		// Two a second are served, and the others must not be forgotten.
		if r.Completed < 18 || r.Completed > 22 || math.Abs(float64(r.Completed+r.Unsent)-500) > 80 || !hasNote(r, "due but not sent") {
			t.Errorf("%d completed, %d not sent, %q", r.Completed, r.Unsent, r.Notes)
		}
	})
}

func hasNote(r *Report, text string) bool { return strings.Contains(strings.Join(r.Notes, "\n"), text) }

// Clients that leave are seen by the server at every point, and none of it is a fault.
func TestDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.first = 150 * time.Millisecond
		f.slots = `[]`
		o := options(t)
		var err error
		if o.Output, err = ParseLengths("100"); err != nil {
			t.Fatal(err)
		}
		o.Disconnect, o.Requests, o.Concurrency = 1, 300, 4
		r := f.run(t, t.Context(), o)
		synctest.Wait()
		if r.Cut != 300 || r.Completed != 0 || r.Cut != r.CutSent+r.CutPrefill+r.CutStream || r.Failure() != "" {
			t.Errorf("%+v", r)
		}
		if min(r.CutSent, r.CutPrefill, r.CutStream) < 70 {
			t.Errorf("%d sent, %d in prefill, %d in the stream", r.CutSent, r.CutPrefill, r.CutStream)
		}
		if f.running != 0 || f.leftLong < 70 || f.leftLong > r.CutStream+20 || f.left < 250 {
			t.Errorf("the server saw %d leave, %d of them in a stream; %d still run", f.left, f.leftLong, f.running)
		}
		// Streams were left at points all over them.
		if mean := float64(r.CutDeltas) / float64(r.CutStream); mean < 35 || mean > 65 || r.Output != 0 {
			t.Errorf("left after %g deltas on average", mean)
		}
		if r.TTFT.N < r.CutStream || r.ITL.N == 0 || r.E2EL.N != 0 || r.TPOT.N != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A server in order bears a mixture of everything without a fault.
func TestMixture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		o := options(t)
		o.Disconnect, o.Malformed, o.PrefixShare, o.PrefixLength, o.LongEvery, o.LongPrompt = 0.2, 0.05, 0.3, 16, 25, 300
		o.Requests, o.Concurrency, o.Warmup = 1000, 32, 1
		r := f.run(t, t.Context(), o)
		if r.Failure() != "" || r.Begun != 1000 || r.Completed+r.Cut+r.Expected != 1000 || r.Expected < 30 || r.Expected > 70 || r.Cut < 140 || r.Cut > 240 {
			t.Errorf("%s, %+v", r.Failure(), r)
		}
		if r.Long == 0 || r.Long > 40 || r.LongTTFT.N < r.Long || r.TTFT.N+r.LongTTFT.N < r.Completed || r.E2EL.N != r.Completed-r.Long {
			t.Errorf("%d long, %+v, %+v", r.Long, r.LongTTFT, r.E2EL)
		}
	})
}

// The gaps of other streams while a long prompt is read are told apart.
func TestLongPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		o := options(t)
		var err error
		if o.Output, err = ParseLengths("60"); err != nil {
			t.Fatal(err)
		}
		o.LongEvery, o.LongPrompt, o.Requests, o.Concurrency = 10, 400, 40, 2
		busy := false // a long prompt is being read
		f.answer = func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
			if r.ContentLength > 1000 {
				f.mu.Lock()
				busy = true
				f.mu.Unlock()
				time.Sleep(300 * time.Millisecond)
				f.mu.Lock()
				busy = false
				f.mu.Unlock()
				f.stream(w, r, textChunk, 60, "")
				return true
			}
			time.Sleep(f.first)
			for range 60 {
				f.mu.Lock()
				slow := busy
				f.mu.Unlock()
				if slow {
					time.Sleep(40 * time.Millisecond)
				}
				time.Sleep(f.gap)
				send(w, textChunk)
			}
			send(w, finishChunk+doneChunk)
			return true
		}
		r := f.run(t, t.Context(), o)
		if r.Failure() != "" || r.Completed != 40 || r.Long != 4 || r.LongTTFT.N != 4 || r.LongTTFT.Mean != 400 || r.TTFT.N != 36 {
			t.Fatalf("%s, %+v", r.Failure(), r)
		}
		// From sending a long prompt to its first token are 400 ms, in which the other stream has 6 gaps of 50 ms and about 10 of 10.
		if r.ITLLong.N < 20 || r.ITLLong.N > 100 || r.ITLLong.Max != 50 || r.ITLLong.P50 < r.ITL.P50 || r.ITL.N != 40*59 || r.ITL.P50 != 10 {
			t.Errorf("itl %+v, while long prompts were read %+v", r.ITL, r.ITLLong)
		}
	})
}

// Each way in which a server fails is recognised, counted and named, and makes the run a failure.
func TestFaults(t *testing.T) {
	raw := func(status int, kind, body string) func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
		return func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			io.WriteString(w, body)
			return true
		}
	}
	const object = `{"error":{"message":"sorry","type":"server_error","param":null,"code":null}}`
	const events = "text/event-stream"
	for _, c := range []struct {
		name   string
		kind   string
		want   string
		change func(o *Options)
		answer func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool
	}{
		{"500", FaultStatus, "500 Internal Server Error, server_error: sorry", nil, raw(500, "application/json", object)},
		{"501", FaultStatus, "501", nil, raw(501, "application/json", object)},
		{"302", FaultStatus, "302 Found", nil, func(_ *fake, w http.ResponseWriter, r *http.Request, _ int) bool {
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
			return true
		}},
		{"400", FaultRejected, "400 Bad Request, server_error: sorry", nil, raw(400, "application/json", object)},
		{"401", FaultRejected, "401", nil, raw(401, "application/json", object)},
		{"text", FaultNoObject, "no error object", nil, raw(400, "text/plain", "sorry")},
		{"text error", FaultNoObject, "no error object", nil, raw(404, "application/json", `{"error":"sorry"}`)},
		{"content type", FaultNoObject, "Content-Type", nil, raw(404, "text/plain", object)},
		{"503 without object", FaultNoObject, "503", nil, raw(503, "text/plain", "busy")},
		{"no stream", FaultHeader, "application/json", nil, raw(200, "application/json", `{"choices":[]}`)},
		{"cut", FaultCut, "after 1 deltas", nil, raw(200, events, textChunk)},
		{"no finish", FaultNoFinish, "", nil, raw(200, events, textChunk+doneChunk)},
		{"no done", FaultNoDone, "", nil, raw(200, events, textChunk+finishChunk)},
		{"no event", FaultEvent, "none of an event", nil, raw(200, events, "<p>\n\n")},
		{"no chunk", FaultEvent, "no chunk", nil, raw(200, events, "data: {\n\n")},
		{"error in the stream", FaultError, "server_error: out of luck", nil, raw(200, events, textChunk+errorChunk)},
		{"too many tokens", FaultTooMuch, "9 tokens, but 8", nil, raw(200, events, textChunk+finishChunk+usageChunk+doneChunk)},
		{"accepted", FaultAccepted, "malformed", func(o *Options) { o.Malformed = 1 }, func(f *fake, w http.ResponseWriter, r *http.Request, _ int) bool {
			f.stream(w, r, textChunk, 50, "")
			return true
		}},
		{"malformed, 500", FaultStatus, "malformed", func(o *Options) { o.Malformed = 1 }, raw(500, "application/json", object)},
		{"malformed, text", FaultNoObject, "malformed", func(o *Options) { o.Malformed = 1 }, raw(400, "text/plain", "bad")},
		{"connection", FaultConnection, "", nil, func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				c.Close()
			}
			return true
		}},
		{"connection in the stream", FaultCut, "EOF", nil, func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
			send(w, textChunk)
			panic(http.ErrAbortHandler)
		}},
		{"stalled", FaultStalled, "nothing came for 20s", func(o *Options) { o.Timeout = 20 * second }, func(_ *fake, w http.ResponseWriter, r *http.Request, _ int) bool {
			<-r.Context().Done()
			return true
		}},
		{"stalled in the stream", FaultStalled, "after 1 deltas", func(o *Options) { o.Timeout = 20 * second }, func(_ *fake, w http.ResponseWriter, r *http.Request, _ int) bool {
			send(w, textChunk)
			<-r.Context().Done()
			return true
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.answer = c.answer
			f.server.ErrorLog = nil
			o := options(t)
			o.Requests = 15
			if c.change != nil {
				c.change(&o)
			}
			r := f.run(t, t.Context(), o)
			if r.FaultCount() != 15 || r.faultKinds[c.kind] != 15 || r.Failed != 15 || r.Completed != 0 || len(r.Faults) != maxFaults {
				t.Errorf("%s: %v, %d failed, %d completed, %+v", c.name, r.faultKinds, r.Failed, r.Completed, r.Faults)
				return
			}
			for i, x := range r.Faults {
				if x.Kind != c.kind || x.Request != i || !strings.Contains(x.Detail, c.want) {
					t.Errorf("%s: %+v", c.name, x)
				}
			}
			if s := r.Failure(); !strings.HasPrefix(s, "15 faults of the server: request 0, "+c.kind) || strings.Count(s, "; request ") != 2 {
				t.Errorf("%s: %s", c.name, s)
			}
		})
	}
}

// Pings keep a slow answer alive.
func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.answer = func(f *fake, w http.ResponseWriter, r *http.Request, _ int) bool {
			for range 10 {
				send(w, ": ping\n\n")
				time.Sleep(15 * second)
			}
			return false
		}
		o := options(t)
		o.Requests, o.Timeout = 2, 20*second
		if r := f.run(t, t.Context(), o); r.Completed != 2 || r.TTFT.Mean != 150_100 {
			t.Errorf("%s, %+v", r.Failure(), r.TTFT)
		}
	})
}

// A server may refuse. Clients then wait as long as it says.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		status int
		after  string
		begun  int // in 9.45 s
	}{{429, "2", 5}, {503, "2", 5}, {429, "", 10}, {429, "0", 95}, {429, "3600", 1}, {429, "soon", 10}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.answer = func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				sendErrorType(w, c.status, "rate_limit_error", "later")
				return true
			}
			o := options(t)
			o.Requests, o.Duration, o.Malformed = 0, 9450*time.Millisecond, 0.5
			r := f.run(t, t.Context(), o)
			if r.Refused != c.begun || r.Begun != c.begun || r.FaultCount() != 0 || r.Failed != 0 || r.Failure() != "no request was answered" {
				t.Errorf("%+v: %d refused of %d, %s", c, r.Refused, r.Begun, r.Failure())
			}
			if told := c.after != "" && c.after != "soon"; hasNote(r, "no Retry-After") == told {
				t.Errorf("%+v: %q", c, r.Notes)
			}
		})
	}
}

// When the server is gone the run ends instead of knocking on.
func TestGone(t *testing.T) {
	for _, rate := range []float64{0, 20} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.answer = func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
				if n == 10 {
					go f.server.Close()
				}
				return false
			}
			o := options(t)
			o.Requests, o.Duration, o.Concurrency, o.Rate = 0, time.Hour, 4, rate
			r := f.run(t, t.Context(), o)
			if r.Duration > time.Minute || r.faultKinds[FaultConnection] < lostRow || r.Begun > 80 || r.faultKinds[FaultHealth] != 1 || r.Failure() == "" {
				t.Errorf("%v, %v, %d begun", r.Duration, r.faultKinds, r.Begun)
			}
		})
	}
}

// An interrupt ends a run at once, and what was measured is reported.
func TestInterrupt(t *testing.T) {
	for _, rate := range []float64{0, 50} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			o := options(t)
			o.Requests, o.Duration, o.Concurrency, o.Rate, o.Warmup = 0, time.Hour, 8, rate, 1
			ctx, cancel := context.WithTimeout(t.Context(), 5*second)
			defer cancel()
			start := time.Now()
			r := f.run(t, ctx, o)
			synctest.Wait()
			if !r.Interrupted || r.Completed < 100 || r.Aborted == 0 || r.Begun != r.Completed+r.Aborted || r.Failure() != "" || r.TTFT.N != r.Completed {
				t.Errorf("%+v", r)
			}
			if time.Since(start) != 5*second || f.running != 0 {
				t.Errorf("it took %v, %d still run", time.Since(start), f.running)
			}
		})
	}
}

// A server that cannot be measured makes an error, or a report of the fault, and no run.
func TestUnready(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *fake, o *Options)
		err    string
		fault  string // kind
	}{
		{"no server", func(f *fake, o *Options) { f.Close() }, "connection refused", ""},
		{"sick", func(f *fake, o *Options) { f.health = 500 }, "/health answers 500", ""},
		{"loading", func(f *fake, o *Options) { f.health = 503; o.Wait = 20 * second }, "503 Service Unavailable, invalid_request_error: sick after 20s", ""},
		{"fails", func(f *fake, o *Options) {
			f.answer = func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
				sendError(w, 401, "no key")
				return true
			}
		}, "", FaultRejected},
		{"refuses", func(f *fake, o *Options) {
			f.answer = func(_ *fake, w http.ResponseWriter, _ *http.Request, _ int) bool {
				sendError(w, 429, "full")
				return true
			}
		}, "", FaultWarmup},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.start(t)
			o := options(t)
			o.Warmup, o.dial = 1, f.dial
			c.change(f, &o)
			start := time.Now()
			r, err := Run(t.Context(), o)
			if c.err != "" {
				if !errors.Is(err, ErrUnready) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %v", c.name, err)
				}
				if took := time.Since(start); took < o.Wait || took > o.Wait+second {
					t.Errorf("%s: %v", c.name, took)
				}
				return
			}
			if err != nil || len(r.Faults) != 1 || r.Faults[0].Kind != c.fault || r.Begun != 0 || r.Failure() == "" {
				t.Errorf("%s: %v, %+v", c.name, err, r)
			}
		})
	}
	// A server that becomes ready is waited for.
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.health = 503
		time.AfterFunc(7*second, func() { f.set("", 0) })
		o := options(t)
		o.Wait, o.Warmup = 20*second, 1
		start := time.Now()
		if r := f.run(t, t.Context(), o); r.Completed != 10 || r.Date.Sub(start) > second || time.Since(start) < 7*second {
			t.Errorf("%+v", r)
		}
	})
}
