package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstTTFT is what a first token is taken to need while none has come.
	firstTTFT = 50 * time.Millisecond
	// maxRetry is the longest that a client waits when a server refuses, whatever the server says.
	maxRetry = 10 * time.Second
	// usualRetry is for a refusal that does not say how long.
	usualRetry = time.Second
	// lostPause keeps a client from trying a server that is gone without end.
	lostPause = 100 * time.Millisecond
	// lostRow is how many requests in a row find no server before the run gives up.
	lostRow = 50
	// maxUnsent is the most requests that are counted without having been sent.
	maxUnsent = 10_000_000
	// raceTime is how old a request is at most that a server lost without a word as it went down because its connection was
	// just closed as idle, which no client can know. An older one was accepted and must be answered.
	raceTime = time.Second
	// warmupTries is how often a warm-up is repeated that the server refuses.
	warmupTries = 10
)

// A runner sends the requests of a run.
type runner struct {
	opt  *Options
	t    *target
	work *workload
	path string
	col  *collector
	long longPrompts

	start  time.Time
	issued atomic.Int64 // indices given out
	usual  atomic.Int64 // ns, a moving mean of times to first token
	row    atomic.Int64 // requests in a row without a server
	down   atomic.Int64 // ns since start when the server was first seen going down, +1; 0 for not
	races  atomic.Int64 // when a request was first lost without a word, as down
	unsent int          // open loop: due within the run, but too many were running
	stop   context.CancelFunc
}

func newRunner(o *Options, t *target, w *workload) *runner {
	r := &runner{opt: o, t: t, work: w, path: "/v1/chat/completions", col: newCollector(o.Goodput), start: time.Now(), stop: func() {}}
	if o.Endpoint == Completions {
		r.path = "/v1/completions"
	}
	r.usual.Store(int64(firstTTFT))
	return r
}

// warmUp runs the requests that do not count. It reports whether the run may begin: a server that does not answer one request
// is not worth a run, and the report has its fault.
func (r *runner) warmUp(ctx context.Context, rep *Report) bool {
	for i := range r.opt.Warmup {
		var res result
		for range warmupTries {
			if res = r.perform(ctx, r.work.request(warmupIndex-i), time.Now()); res.outcome != refused {
				break
			}
			sleep(ctx, retry(res))
		}
		switch res.outcome {
		case completed:
			continue
		case aborted:
			rep.Interrupted = true
		case faulty:
			res.fault.Request = -1
			res.fault.Detail = "the warm-up: " + res.fault.Detail
			rep.addFault(*res.fault)
		case refused:
			rep.addFault(Fault{Kind: FaultWarmup, Request: -1, Detail: "the server refuses every request (429 or 503) before the run"})
		default:
			rep.addFault(Fault{Kind: FaultWarmup, Request: -1, Detail: "the warm-up was not answered"})
		}
		return false
	}
	// What the warm-up left among the gaps is not of the run.
	r.col = newCollector(r.opt.Goodput)
	return true
}

// run sends the requests and returns when all have ended.
func (r *runner) run(ctx context.Context, m *monitor) {
	r.start = time.Now()
	r.col.start = r.start
	arrivals, stop := context.WithCancel(ctx)
	defer stop()
	if r.opt.Duration > 0 {
		arrivals, stop = context.WithTimeout(ctx, r.opt.Duration)
		defer stop()
	}
	r.stop = stop
	watching, watched := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { m.watch(watching, r) })
	if r.opt.ShutdownGrace > 0 {
		watch.Go(func() { r.watchShutdown(watching) })
	}
	if r.opt.Rate > 0 {
		r.openLoop(ctx, arrivals)
	} else {
		r.closedLoop(ctx, arrivals)
	}
	r.col.finish(time.Since(r.start), r.unsent)
	watched()
	watch.Wait()
}

// next gives out an index.
func (r *runner) next() (int, bool) {
	n := int(r.issued.Add(1)) - 1
	return n, r.opt.Requests == 0 || n < r.opt.Requests
}

// closedLoop runs clients of which each sends its next request when its last has ended.
func (r *runner) closedLoop(ctx, arrivals context.Context) {
	var wg sync.WaitGroup
	for range r.opt.Concurrency {
		wg.Go(func() {
			for arrivals.Err() == nil {
				i, ok := r.next()
				if !ok {
					return
				}
				res := r.one(ctx, i, time.Now())
				switch {
				case res.outcome == refused:
					sleep(arrivals, retry(res))
				case res.unreachable || res.outcome == local:
					sleep(arrivals, lostPause)
				}
			}
		})
	}
	wg.Wait()
}

// openLoop sends requests when they are due, whatever became of others. When as many are running as may, the next is sent late,
// and what it waits for that is counted: its times begin when it was due.
func (r *runner) openLoop(ctx, arrivals context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, r.opt.Concurrency)
	next := newArrivals(r.work.random(arrivalIndex), r.opt.Rate)
	due := r.start
	for {
		i, ok := r.next()
		if !ok {
			return
		}
		due = due.Add(next.gap())
		if !sleep(arrivals, time.Until(due)) {
			break
		}
		select {
		case room <- struct{}{}:
		case <-arrivals.Done():
		}
		if arrivals.Err() != nil {
			break
		}
		at := due // due goes on
		wg.Go(func() {
			defer func() { <-room }()
			r.one(ctx, i, at)
		})
	}
	// Those that were due and found no room were as good as refused, by us.
	if r.opt.Duration > 0 && ctx.Err() == nil {
		for end := r.start.Add(r.opt.Duration); due.Before(end) && !time.Now().Before(end) && r.unsent < maxUnsent; due = due.Add(next.gap()) {
			r.unsent++
		}
	}
}

// one runs a request and counts it.
func (r *runner) one(ctx context.Context, i int, due time.Time) result {
	r.col.begin()
	res := r.perform(ctx, r.work.request(i), due)
	r.col.end(res)
	switch {
	case res.refusedDown && r.opt.ShutdownGrace > 0:
		r.sawShutdown()
	case !res.unreachable:
		r.row.Store(0)
	case r.opt.ShutdownGrace > 0 && r.shuttingDown(), r.row.Add(1) == lostRow:
		r.stop() // the server is gone; what still runs may end
	}
	return res
}

// retry is how long to wait after a refusal.
func retry(res result) time.Duration {
	if res.retryAfter < 0 {
		return usualRetry
	}
	return min(max(res.retryAfter, lostPause), maxRetry)
}

// usualTTFT is about how long a first token takes.
func (r *runner) usualTTFT() time.Duration { return time.Duration(r.usual.Load()) }

// sawFirst takes a time to first token into the mean. Two at the same time may lose one, which does no harm.
func (r *runner) sawFirst(d time.Duration) {
	u := r.usual.Load()
	r.usual.Store(u + (int64(d)-u)/8)
}

// sawShutdown marks that the server goes down.
func (r *runner) sawShutdown() { r.down.CompareAndSwap(0, int64(time.Since(r.start))+1) }

// watchShutdown asks until the server goes down: clients that all have a running request would not notice.
func (r *runner) watchShutdown(ctx context.Context) {
	for sleep(ctx, healthPoll) {
		_, err := r.t.ask(ctx, "/health", nil)
		var status *statusError
		switch {
		case ctx.Err() != nil:
		case isDial(err):
			r.sawShutdown()
			r.stop()
			return
		case errors.As(err, &status) && status.code == http.StatusServiceUnavailable:
			r.sawShutdown()
		}
	}
}

// mayBeRace reports whether a request that was lost without a word may have met a shutdown by accident. If there is none near,
// judgeShutdown takes that back.
func (r *runner) mayBeRace(began time.Time) bool {
	if time.Since(began) > raceTime {
		return false
	}
	r.races.CompareAndSwap(0, int64(time.Since(r.start))+1)
	return true
}

func (r *runner) shuttingDown() bool { return r.down.Load() != 0 }

// shutdownSlack is what the end of the last stream may be later than the grace: the time in which a shutdown is noticed.
const shutdownSlack = 2 * time.Second

// judgeShutdown says whether the server went down as it should.
func (r *runner) judgeShutdown(ctx context.Context, rep *Report) {
	if !r.shuttingDown() {
		rep.addFault(Fault{Kind: FaultShutdown, Request: -1, Detail: "the server was to be stopped during the run, but answered to its end"})
		return
	}
	if lost := r.races.Load(); lost != 0 && lost < r.down.Load()-int64(raceTime) {
		rep.addFault(Fault{Kind: FaultConnection, Request: -1, Detail: "a connection was lost before the server began to go down"})
	}
	seen := r.start.Add(time.Duration(r.down.Load() - 1))
	rep.Drain = max(r.col.last().Sub(seen), 0)
	if rep.Drain > r.opt.ShutdownGrace+shutdownSlack {
		rep.addFault(*fault(FaultShutdown, "the last request ended %v after the server began to go down, which is more than its %v",
			rep.Drain.Round(time.Millisecond), r.opt.ShutdownGrace))
	}
	r.t.close()
	for until := seen.Add(r.opt.ShutdownGrace + shutdownSlack); ; {
		_, err := r.t.ask(ctx, "/health", nil)
		if isDial(err) || ctx.Err() != nil {
			return
		}
		if time.Now().After(until) {
			rep.addFault(*fault(FaultShutdown, "the server still accepts connections %v after it began to go down", time.Since(seen).Round(time.Millisecond)))
			return
		}
		sleep(ctx, healthPoll)
	}
}

// arrivals are the gaps of a Poisson process: exponential, with the mean 1/rate.
type arrivals struct {
	random *rand.Rand
	rate   float64 // a second
}

func newArrivals(r *rand.Rand, rate float64) *arrivals { return &arrivals{r, rate} }

func (a *arrivals) gap() time.Duration {
	return time.Duration(a.random.ExpFloat64() / a.rate * float64(time.Second))
}

// longPrompts knows when long prompts are being read, as far as a client can: from when one is sent until its first token.
type longPrompts struct {
	running atomic.Int64
	ended   atomic.Int64 // when one last ended, in ns of [time.Time.UnixNano]
}

// begin marks the begin of one; end its end, once.
func (l *longPrompts) begin() (end func()) {
	l.running.Add(1)
	return sync.OnceFunc(func() {
		l.ended.Store(time.Now().UnixNano())
		l.running.Add(-1)
	})
}

// overlaps reports whether one was being read at any time of a gap that ends now.
func (l *longPrompts) overlaps(gap time.Duration) bool {
	return l.running.Load() > 0 || l.ended.Load() > time.Now().Add(-gap).UnixNano()
}
