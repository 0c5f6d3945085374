package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// affine is the cost in seconds of a device that reads its weights once for a step.
func affine(rows int) float64 { return 0.010 + 0.0002*float64(rows) }

// noisy multiplies by normal noise and delays one step in a hundred fivefold.
func noisy(r *rand.Rand, secs, sigma float64) float64 {
	secs *= max(0.3, 1+sigma*r.NormFloat64())
	if r.IntN(100) == 0 {
		secs *= 5
	}
	return secs
}

// near fails unless the model predicts the cost of so many rows within a fraction.
func near(t *testing.T, l *latency, rows int, want, within float64) {
	t.Helper()
	if got, ok := l.predict(float64(rows)); !ok || math.Abs(got/want-1) > within {
		t.Errorf("%d rows: %.2f ms, want %.2f ms within %.0f %%", rows, 1e3*got, 1e3*want, 100*within)
	}
}

func TestPredict(t *testing.T) {
	var l latency
	if _, ok := l.predict(1); ok {
		t.Error("a prediction from nothing")
	}
	l.observe(100, 0.050)
	near(t, &l, 100, 0.050, 1e-9)
	near(t, &l, 200, 0.100, 1e-9) // in proportion
	near(t, &l, 50, 0.025, 1e-9)
	l.observe(1, 0.010)
	near(t, &l, 1, 0.010, 1e-9)
	near(t, &l, 50, 0.010+0.040*49/99, 1e-9)
	l.observe(16, 0.005) // less than one row took: predictions do not fall
	near(t, &l, 16, 0.010, 1e-9)
	near(t, &l, 58, 0.030, 1e-9)
	near(t, &l, 400, 0.200, 1e-9)

	var f Former
	if _, ok := f.Predict(5); ok {
		t.Error("a prediction from nothing")
	}
	f.Done(0, time.Second)
	f.Done(5, 0)
	f.Done(5, -time.Second)
	if _, ok := f.Predict(5); ok {
		t.Error("a prediction from measurements of nothing")
	}
	f.Done(10, 30*time.Millisecond)
	if d, ok := f.Predict(5); !ok || d != 15*time.Millisecond {
		t.Errorf("5 rows %v", d)
	}
	if _, ok := f.Predict(0); ok {
		t.Error("a prediction of no rows")
	}
}

// TestPredictIsMonotone holds for any measurements.
func TestPredictIsMonotone(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		var l latency
		for range 200 {
			l.observe(1+r.IntN(1<<r.IntN(12)), math.Exp(3*r.NormFloat64()))
			before := 0.0
			for rows := 1; rows < 5000; rows += 1 + rows/5 {
				got, _ := l.predict(float64(rows))
				if got < before*(1-1e-12) || math.IsNaN(got) || math.IsInf(got, 0) {
					t.Fatalf("seed %d: %d rows take %g s, fewer %g s", seed, rows, got, before)
				}
				before = got
			}
		}
	}
}

func TestLearns(t *testing.T) {
	costs := []struct {
		name string
		cost func(rows int) float64
		tol  float64
	}{
		{"affine", affine, 0.12},
		{"proportional", func(rows int) float64 { return 0.001 * float64(rows) }, 0.12},
		{"stairs", func(rows int) float64 { return 0.002 * float64(1+bucketOf(rows)) }, 0.2},
	}
	for _, c := range costs {
		r := rand.New(rand.NewPCG(3, 3))
		var l latency
		for range 3000 {
			rows := 1 + r.IntN(1<<r.IntN(10))
			l.observe(rows, noisy(r, c.cost(rows), 0.1))
		}
		for _, rows := range []int{1, 3, 12, 24, 48, 100, 180, 400} {
			near(t, &l, rows, c.cost(rows), c.tol)
		}
		if l.spread < 0.05 || l.spread > 0.2 {
			t.Errorf("%s: spread %.3f of noise with a deviation of 0.08", c.name, l.spread)
		}
	}
}

// TestOutliers: one hundredfold measurement moves a settled estimate by a few percent and a fresh one for a few
// steps only.
func TestOutliers(t *testing.T) {
	var l latency
	for range 20 {
		l.observe(32, 0.010)
	}
	l.observe(32, 1)
	near(t, &l, 32, 0.010, 0.07)
	l.observe(32, 1)
	near(t, &l, 32, 0.010, 0.14)
	l.observe(32, 0.010)
	l.observe(32, 1)
	l.observe(32, 1)
	near(t, &l, 32, 0.010, 0.26) // never three in a row
	l.observe(32, 0.00001)
	l.observe(32, 1) // nor on the same side
	near(t, &l, 32, 0.010, 0.30)
	for range 3 { // but three are a change, whatever came before
		l.observe(32, 0.00001)
	}
	near(t, &l, 32, 0.00001, 0.01)
	l.observe(32, 0.00000001)
	l.observe(32, 0.00000001)
	for range 3 {
		l.observe(32, 0.010)
	}
	near(t, &l, 32, 0.010, 0.01)

	l = latency{}
	l.observe(32, 1)
	l.observe(32, 0.010)
	near(t, &l, 32, 0.010, 0.01)
	l.observe(32, 1)
	l.observe(32, 1)
	near(t, &l, 32, 0.010, 0.01)
}

// TestJump: a device that becomes slower or faster is known to be after three steps, at all sizes.
func TestJump(t *testing.T) {
	for _, factor := range []float64{4, 0.25} {
		r := rand.New(rand.NewPCG(4, 4))
		var l latency
		for range 2000 {
			rows := 1 + r.IntN(1<<r.IntN(10))
			l.observe(rows, affine(rows)*(1+0.05*r.NormFloat64()))
		}
		for range 3 {
			l.observe(64, factor*affine(64))
		}
		for _, rows := range []int{1, 20, 64, 300} {
			near(t, &l, rows, factor*affine(rows), 0.2)
		}
	}
	// A small lasting change is followed too.
	var l latency
	for range 20 {
		l.observe(64, 0.010)
	}
	for range 30 {
		l.observe(64, 0.014)
	}
	near(t, &l, 64, 0.014, 0.02)
}

func TestLimit(t *testing.T) {
	var l latency
	if got := l.limit(1, 3, 100); got != 3 {
		t.Errorf("nothing known: %d", got)
	}
	for n := 1; n <= 512; n *= 2 {
		l.observe(n, affine(n))
	}
	l.spread = 0
	for _, test := range []struct {
		bound  float64
		lo, hi int
		want   int
	}{
		{0.050, 4, 512, 200},
		{0.050, 4, 100, 100},
		{0.050, 4, 4, 4},
		{0.001, 4, 512, 4},
		{1, 4, 512, 512},
		{1, 4, 70, 70},                     // no more is wanted
		{1, 4, 5000, 1024},                 // twice what was measured
		{affine(70) + 1e-9, 4, 512, 64},    // a few rows beyond a power of two
		{affine(80) + 1e-9, 4, 512, 80},    // many
		{affine(70) + 1e-9, 60, 512, 70},   // few, but most of what there is
		{affine(1) + 1e-9, 0, 512, 1},      // none before
		{affine(1) - 1e-9, 0, 512, 0},      // not even one
		{affine(512) + 1e-9, 16, 512, 512}, // all
	} {
		if got := l.limit(test.bound, test.lo, test.hi); got != test.want {
			t.Errorf("limit(%g, %d, %d) = %d, want %d", test.bound, test.lo, test.hi, got, test.want)
		}
	}
	few := latency{}
	few.observe(1, 0.001)
	if got := few.limit(1, 1, 512); got != 1+trickle {
		t.Errorf("one row measured: %d rows", got)
	}
	l.spread = 0.1
	if got, want := l.limit(0.050*1.35, 4, 512), 200; got != want {
		t.Errorf("with a margin %d, want %d", got, want)
	}
	// The first point beyond the bound counts, and larger steps do not take less.
	dip := latency{}
	dip.observe(16, 0.010)
	dip.observe(64, 0.100)
	dip.observe(256, 0.020)
	dip.spread = 0
	if got := dip.limit(0.055, 0, 512); got != 40 {
		t.Errorf("beside a dip %d rows, want 40", got)
	}
	if got := dip.limit(0.100, 0, 1000); got != 256 {
		t.Errorf("beyond a dip %d rows, want 256", got)
	}
}

// TestBarredBucket: an estimate that is wrongly high is not for ever, though nothing measures it again.
func TestBarredBucket(t *testing.T) {
	var l latency
	for range 10 {
		l.observe(16, affine(16))
		l.observe(64, 5)
	}
	grown := 0
	for n := range 2000 {
		rows := l.limit(0.050, 4, 512)
		l.observe(rows, affine(rows))
		if rows > 100 && grown == 0 {
			grown = n
		}
	}
	if grown == 0 || grown > 2*forget {
		t.Errorf("more than 100 rows were first tried in step %d", grown)
	}
	// A bucket that is too slow indeed is tried seldom.
	cliff := func(rows int) float64 {
		if rows > 64 {
			return 0.2
		}
		return affine(rows)
	}
	l, over := latency{}, 0
	for range 5000 {
		rows := l.limit(0.050, 4, 512)
		l.observe(rows, cliff(rows))
		if cliff(rows) > 0.050 {
			over++
		}
	}
	if over == 0 || over > 50 {
		t.Errorf("%d of 5000 steps beyond a cliff", over)
	}
	// It is not tried at all while other steps measure it now and then.
	l, over = latency{}, 0
	for n := range 5000 {
		if n%50 == 0 {
			l.observe(66, cliff(66))
		}
		rows := l.limit(0.050, 4, 512)
		l.observe(rows, cliff(rows))
		if n > 100 && cliff(rows) > 0.050 {
			over++
		}
	}
	if over > 0 {
		t.Errorf("%d steps beyond a cliff that is measured", over)
	}
}

// A client is a simulated sequence: a prompt, then tokens.
type client struct {
	arrives, prompt, tokens int // step, and sizes
	started                 float64
	first                   float64 // seconds from arrival to the end of the prompt
}

// simulate runs clients through a former on a synthetic device and returns the durations of the steps in which
// somebody decoded beside a prompt, sorted.
func simulate(f *Former, clients []*client, cost func(n, rows int) float64) (mixed []float64) {
	var jobs []Job
	now := 0.0
	live := map[int]*client{}
	for n := 0; ; n++ {
		waiting := false
		for id, c := range clients {
			if c.arrives == n {
				c.started = now
				live[id] = c
				jobs = append(jobs, Job{ID: id, Prompt: c.prompt, Cut: 256})
			}
			waiting = waiting || c.arrives > n
		}
		if len(jobs) == 0 && !waiting {
			break
		}
		rows, decoding, feeding := 0, false, false
		for _, j := range jobs {
			decoding = decoding || j.Decoding
			feeding = feeding || j.Prompt > 0
		}
		parts := f.Next(jobs)
		for _, p := range parts {
			rows += p.Tokens
		}
		if rows == 0 {
			continue
		}
		took := cost(n, rows)
		now += took
		f.Done(rows, time.Duration(took*1e9))
		if decoding && feeding {
			mixed = append(mixed, took)
		}
		for _, p := range parts {
			i := slices.IndexFunc(jobs, func(j Job) bool { return j.ID == p.ID })
			c, j := live[p.ID], &jobs[i]
			if j.Decoding {
				c.tokens--
			} else if j.Prompt -= p.Tokens; j.Prompt == 0 {
				j.Decoding = true
				c.first = now - c.started
			}
			if j.Decoding && c.tokens == 0 {
				jobs = slices.Delete(jobs, i, i+1)
			}
		}
	}
	slices.Sort(mixed)
	return mixed
}

// TestLatencyBound: with noise, 99 % of steps beside decoding stay within the bound, and use it.
func TestLatencyBound(t *testing.T) {
	const bound = 0.055
	for _, sigma := range []float64{0.02, 0.1} {
		for seed := range uint64(5) {
			r := rand.New(rand.NewPCG(seed, 5))
			var clients []*client
			for i := range 12 {
				clients = append(clients, &client{arrives: i * 40, prompt: 10 + r.IntN(3000), tokens: 1500})
			}
			clients = append(clients, &client{arrives: 30, prompt: 200000, tokens: 10})
			f := &Former{MaxLatency: time.Duration(bound * 1e9)}
			mixed := simulate(f, clients, func(_, rows int) float64 {
				return affine(rows) * max(0.3, 1+sigma*r.NormFloat64())
			})
			over := 0
			for _, d := range mixed {
				if d > bound {
					over++
				}
			}
			median := mixed[len(mixed)/2]
			t.Logf("sigma %.2f seed %d: %d of %d steps over the bound, median %.1f ms",
				sigma, seed, over, len(mixed), 1e3*median)
			if len(mixed) < 500 || over*100 > len(mixed) {
				t.Errorf("%d of %d steps beyond the bound", over, len(mixed))
			}
			if low := bound / (1 + 4*sigma); median < 0.9*low {
				t.Errorf("the median step takes %.1f ms of %.1f ms: room is wasted", 1e3*median, 1e3*bound)
			}
		}
	}
}

// TestLatencyJump: when the device halves its speed the bound is kept again soon, and the room is used again when it
// recovers.
func TestLatencyJump(t *testing.T) {
	const bound = 0.080
	r := rand.New(rand.NewPCG(6, 6))
	f := &Former{MaxLatency: time.Duration(bound * 1e9)}
	jobs := []Job{{ID: 1, Decoding: true, Cut: 1}, {ID: 2, Prompt: 1 << 30, Cut: 512}}
	speed := []float64{1, 2.5, 1}
	for phase, factor := range speed {
		over, rows := 0, 0
		for n := range 1000 {
			rows = 0
			for _, p := range f.Next(jobs) {
				rows += p.Tokens
			}
			took := factor * noisy(r, affine(rows), 0.05)
			f.Done(rows, time.Duration(took*1e9))
			if n > 20 && took > bound {
				over++
			}
		}
		t.Logf("phase %d: %d steps over the bound, %d rows at the end", phase, over, rows)
		// One step in a hundred is delayed fivefold by the device itself.
		if over > 25 {
			t.Errorf("phase %d: %d of 980 steps beyond the bound", phase, over)
		}
		if most := (bound/factor - 0.010) / 0.0002; float64(rows) < 0.5*most {
			t.Errorf("phase %d: %d rows, %.0f would fit", phase, rows, most)
		}
	}
}

// TestFirstToken: short prompts beside one of 100,000 tokens start soon, and it is fed all the same.
func TestFirstToken(t *testing.T) {
	for _, decoders := range []int{0, 4} {
		r := rand.New(rand.NewPCG(8, 8))
		var clients []*client
		for range decoders {
			clients = append(clients, &client{prompt: 20, tokens: 4000})
		}
		long := &client{arrives: 20, prompt: 100000, tokens: 1}
		clients = append(clients, long)
		var short []*client
		for n := 50; n < 250; n += 10 {
			c := &client{arrives: n, prompt: 100 + r.IntN(200), tokens: 1}
			short = append(short, c)
			clients = append(clients, c)
		}
		f := &Former{MaxLatency: 80 * time.Millisecond}
		if decoders == 0 {
			f.MaxLatency = 0
		}
		simulate(f, clients, func(_, rows int) float64 { return noisy(r, affine(rows), 0.05) })
		worst, sum := 0.0, 0.0
		for _, c := range short {
			worst, sum = max(worst, c.first), sum+c.first
		}
		t.Logf("%d decoding: first token of short prompts after %.0f ms in the mean, %.0f ms at worst; the long one %.1f s",
			decoders, 1e3*sum/float64(len(short)), 1e3*worst, long.first)
		if worst > 0.5 {
			t.Errorf("%d decoding: a short prompt waited %.2f s for its first token", decoders, worst)
		}
		// Alone it takes 100000/512 steps of 0.11 s without decoding, and 100000/280 of 0.07 s beside it.
		if alone := []float64{0: 22.5, 4: 26}[decoders]; long.first == 0 || long.first > 1.6*alone {
			t.Errorf("%d decoding: the long prompt took %.1f s", decoders, long.first)
		}
	}
}
