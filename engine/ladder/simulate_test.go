package ladder

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// An engine is a toy of what a ladder limits: sequences that grow by pages, and snapshots that fill what they may
// have.
type engine struct {
	r         *rand.Rand
	seqs      []int64 // bytes of each
	snapshots int64
}

// A sequence's pages are 1 MiB, or less in a colder format; it has 20 MiB of state.
func (e *engine) second(l Limits) (refused int) {
	if l.Refuse {
		refused++
	} else if !l.Queue && len(e.seqs) < l.Slots {
		e.seqs = append(e.seqs, 20*mib)
	}
	live := e.seqs[:0]
	for i, b := range e.seqs {
		if e.r.IntN(40) == 0 {
			e.snapshots += b // ends, and leaves a snapshot
			continue
		}
		if i < l.Slots {
			b += []int64{mib, mib / 2, mib / 4}[l.Cold]
		}
		live = append(live, b)
	}
	e.seqs = live
	e.snapshots = min(e.snapshots, l.SnapshotBytes)
	return refused
}

func (e *engine) used() int64 {
	n := e.snapshots
	for _, b := range e.seqs {
		n += b
	}
	return n
}

// A run is what a simulation saw.
type run struct {
	climbs, descents int
	top              int           // steps climbed at most
	end              int           // steps climbed at the end
	over             int           // seconds without any headroom
	gap              time.Duration // least time from a descent to the next
	last             time.Duration // of the last change
	ups              []int         // climbs by hour
}

// simulate runs an engine for a number of seconds beside a neighbour that takes so many bytes of a device.
func simulate(t *testing.T, cfg Config, total int64, seconds int, neighbour func(second int) int64) run {
	t.Helper()
	l := newLadder(t, cfg)
	e := &engine{r: rand.New(rand.NewPCG(1, 1))}
	res := run{gap: time.Hour, ups: make([]int, seconds/3600+1)}
	var down time.Duration
	limits := l.Limits()
	for n := range seconds {
		e.second(limits)
		left := total - e.used() - neighbour(n)
		if left <= 0 {
			res.over++
		}
		p := Pressure{
			{Source: Device, Used: -1, Limit: total, Available: max(left, 0)},
			{Source: Host, Used: -1, Limit: -1, Available: -1},
		}
		var events []Event
		limits, events = l.Observe(t0.Add(time.Duration(n)*time.Second), p)
		for _, ev := range events {
			at := time.Duration(n) * time.Second
			res.last = at
			if !ev.Relief {
				res.climbs++
				res.ups[n/3600]++
				continue
			}
			if res.descents++; res.descents > 1 {
				res.gap = min(res.gap, at-down)
			}
			down = at
		}
		climbed, _ := l.Steps()
		res.top = max(res.top, climbed)
	}
	res.end, _ = l.Steps()
	t.Logf("%d up, %d down, at most %d, %d at the end, last after %v, %d s without headroom, climbs by hour %v",
		res.climbs, res.descents, res.top, res.end, res.last, res.over, res.ups)
	return res
}

func TestNoPressure(t *testing.T) {
	if r := simulate(t, full(), 16*gib, 3600, func(int) int64 { return 0 }); r.climbs > 0 {
		t.Errorf("%d climbs", r.climbs)
	}
}

// TestSuddenDrop: a neighbour takes most of the memory for ten minutes.
func TestSuddenDrop(t *testing.T) {
	r := simulate(t, full(), 4*gib, 3600, func(n int) int64 {
		if n >= 600 && n < 1200 {
			return 3 * gib
		}
		return 0
	})
	if r.top < 7 { // snapshots have to go
		t.Errorf("climbed %d steps", r.top)
	}
	if r.over > 10 {
		t.Errorf("%d seconds without headroom", r.over)
	}
	if r.end != 0 {
		t.Errorf("%d steps at the end", r.end)
	}
	if r.climbs > 2*r.top || r.gap < 30*time.Second {
		t.Errorf("%d climbs to step %d, %v between descents", r.climbs, r.top, r.gap)
	}
}

// TestSlowLeak: somebody leaks 1 MiB each second for ever; the ladder goes up and never down, to the end.
func TestSlowLeak(t *testing.T) {
	r := simulate(t, full(), 4*gib, 4096, func(n int) int64 { return int64(n) * mib })
	_, of := newLadder(t, full()).Steps()
	if r.end != of {
		t.Errorf("%d steps at the end, of %d", r.end, of)
	}
	if r.climbs > 2*of {
		t.Errorf("%d climbs and %d descents", r.climbs, r.descents)
	}
	if r.last < 2000*time.Second {
		t.Errorf("all was given up after %v", r.last)
	}
}

// TestOscillation: a neighbour takes memory and returns it, in periods from seconds to half an hour. The number of
// changes must not be that of its turns.
func TestOscillation(t *testing.T) {
	const hours = 8
	for _, period := range []int{2, 10, 50, 90, 150, 300, 700, 1100} {
		t.Run(time.Duration(period*1e9).String(), func(t *testing.T) {
			r := simulate(t, full(), 4*gib, hours*3600, func(n int) int64 {
				if n%period < period/2 {
					return 3*gib + gib/2
				}
				return 0
			})
			_, of := newLadder(t, full()).Steps()
			if r.top < 3 {
				t.Errorf("climbed %d steps only", r.top)
			}
			// Some turns teach it, each worth the whole ladder at most; from then on there is next to nothing.
			if n := r.ups[0] + r.ups[1]; n > 4*of {
				t.Errorf("%d climbs in the first two hours", n)
			}
			for hour, n := range r.ups[2:] {
				if n > 3 {
					t.Errorf("%d climbs in hour %d", n, 2+hour)
				}
			}
		})
	}
}

// TestOwnCycle: what the ladder itself frees is taken again when it gives it back, and is not given back in a short
// cycle for ever.
func TestOwnCycle(t *testing.T) {
	l := newLadder(t, Config{Slots: 1, Chunk: 1, SnapshotBytes: gib})
	climbs := 0
	limits := l.Limits()
	for n := range 6 * 3600 {
		left := 1100*mib - limits.SnapshotBytes - 50*mib // snapshots fill what they have at once
		var events []Event
		limits, events = l.Observe(t0.Add(time.Duration(n)*time.Second), Pressure{{Own, 2*gib - left, 2 * gib, -1}})
		for _, e := range events {
			if !e.Relief {
				climbs++
			}
		}
	}
	if climbs < 2 || climbs > 45 {
		t.Errorf("%d climbs in six hours", climbs)
	}
}

// TestCalmReturns: after a long quiet time the ladder is as quick to give back as at first.
func TestCalmReturns(t *testing.T) {
	l := newLadder(t, full())
	now := t0
	// press makes it climb once, then returns how long it took to come down.
	press := func() time.Duration {
		if _, events := l.Observe(now, device(92)); len(events) != 1 {
			t.Fatal("no climb")
		}
		start := now
		for {
			now = now.Add(time.Second)
			if _, events := l.Observe(now, device(1000)); len(events) > 0 {
				return now.Sub(start)
			}
			if now.Sub(start) > time.Hour {
				t.Fatal("no descent")
			}
		}
	}
	var got []time.Duration
	for range 5 {
		got = append(got, press().Truncate(10*time.Second))
	}
	for i, want := range []time.Duration{30, 120, 480, 600, 600} {
		if got[i] != want*time.Second {
			t.Errorf("descents after %v", got)
			break
		}
	}
	now = now.Add(21 * time.Minute)
	l.Observe(now, device(1000))
	if d := press(); d > 32*time.Second {
		t.Errorf("after a quiet time it took %v", d)
	}
}

// TestStepsDown: a step down that lasts makes the next come sooner.
func TestStepsDown(t *testing.T) {
	l := newLadder(t, full())
	now := t0
	for range 3 { // step down too early, until the time is ten minutes
		l.Observe(now, device(92))
		for climbed := 1; climbed > 0; climbed, _ = l.Steps() {
			now = now.Add(time.Second)
			l.Observe(now, device(1000))
		}
	}
	for range 8 {
		l.Observe(now, device(92))
		now = now.Add(2 * time.Second)
	}
	l.Observe(now, device(1000))
	before := now
	var got []time.Duration
	for now.Sub(t0) < 2*time.Hour {
		now = now.Add(time.Second)
		if _, events := l.Observe(now, device(1000)); len(events) > 0 {
			got = append(got, now.Sub(before))
			before = now
		}
	}
	const s = time.Second
	want := []time.Duration{600 * s, 300 * s, 150 * s, 75 * s, 38 * s, 30 * s, 30 * s, 30 * s}
	if !slices.Equal(got, want) {
		t.Errorf("steps down after %v, want %v", got, want)
	}
}
