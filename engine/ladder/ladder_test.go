package ladder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const mib, gib = int64(1) << 20, int64(1) << 30

// t0 is when every test begins.
var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// full is a configuration in which every rung exists.
func full() Config {
	return Config{Slots: 16, Formats: []string{"f16", "q8_0", "q4_0"}, Chunk: 512, SnapshotBytes: gib}
}

func newLadder(t *testing.T, cfg Config) *Ladder {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// device is the pressure of a device budget of 2 GiB with so many MiB left.
func device(left int64) Pressure {
	return Pressure{{Source: Device, Used: 2*gib - left*mib, Limit: 2 * gib, Available: -1}}
}

func TestOrder(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want []string
	}{
		{"all", full(), []string{
			"live slots 16 -> 8", "live slots 8 -> 1",
			"KV format of new pages f16 -> q8_0", "KV format of new pages q8_0 -> q4_0",
			"prefill chunk 512 -> 128", "prefill chunk 128 -> 32",
			"memory for snapshots 1.00 GiB -> 512 MiB", "memory for snapshots 512 MiB -> 256 MiB",
			"memory for snapshots 256 MiB -> 0 B",
			"new requests wait", "new requests are refused",
		}},
		{"nothing to give", Config{Slots: 1, Formats: []string{"q4_0"}, Chunk: 32}, []string{
			"new requests wait", "new requests are refused",
		}},
		{"many slots", Config{Slots: 48, Chunk: 16}, []string{
			"live slots 48 -> 24", "live slots 24 -> 12", "live slots 12 -> 8", "live slots 8 -> 1",
			"new requests wait", "new requests are refused",
		}},
		{"few slots", Config{Slots: 3, Chunk: 64, Formats: []string{"f32", "f16"}}, []string{
			"live slots 3 -> 1", "KV format of new pages f32 -> f16", "prefill chunk 64 -> 32",
			"new requests wait", "new requests are refused",
		}},
		{"smallest chunk", Config{Slots: 1, Chunk: 512, MinChunk: 8, SnapshotBytes: 3}, []string{
			"prefill chunk 512 -> 128", "prefill chunk 128 -> 32",
			"memory for snapshots 3 B -> 1 B", "memory for snapshots 1 B -> 0 B",
			"new requests wait", "new requests are refused",
		}},
	}
	for _, test := range tests {
		l := newLadder(t, test.cfg)
		start := l.Limits()
		c := test.cfg
		if want := (Limits{Slots: c.Slots, Chunk: c.Chunk, SnapshotBytes: c.SnapshotBytes}); start != want {
			t.Errorf("%s: starts at %+v", test.name, start)
		}
		var got []string
		seen := []Limits{start}
		now := t0
		for range 20 {
			limits, events := l.Observe(now, device(92))
			for _, e := range events {
				const why = "memory pressure: 92 MiB of the device budget left (of 2.00 GiB): "
				if !strings.HasPrefix(e.String(), why) || e.Relief {
					t.Errorf("%s: %q", test.name, e)
				}
				got = append(got, strings.TrimPrefix(e.String(), why))
				seen = append(seen, limits)
			}
			now = now.Add(2 * time.Second)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s:\n%q\nwant\n%q", test.name, got, test.want)
		}
		if climbed, of := l.Steps(); climbed != of || of != len(test.want) {
			t.Errorf("%s: %d of %d steps", test.name, climbed, of)
		}
		// Back in reverse order, through the same limits.
		slices.Reverse(got)
		back := 0
		for range 600 {
			limits, events := l.Observe(now, device(1024))
			for _, e := range events {
				if !e.Relief || e.Rung < Queue && !strings.Contains(got[back], e.To+" -> "+e.From) {
					t.Errorf("%s: %q takes back %q", test.name, e, got[back])
				}
				back++
				if limits != seen[len(seen)-1-back] {
					t.Errorf("%s: %q leads to %+v, it was %+v", test.name, e, limits, seen[len(seen)-1-back])
				}
			}
			now = now.Add(time.Second)
		}
		if l.Limits() != start {
			t.Errorf("%s: ends at %+v", test.name, l.Limits())
		}
	}
}

func TestRelief(t *testing.T) {
	l := newLadder(t, Config{Slots: 1, Chunk: 1})
	now := t0
	var got []string
	for n := range 400 {
		p := device(30)
		if n > 10 {
			p = device(300)
		}
		_, events := l.Observe(now, p)
		for _, e := range events {
			got = append(got, e.String())
		}
		now = now.Add(time.Second)
	}
	want := []string{
		"memory pressure: 30 MiB of the device budget left (of 2.00 GiB): new requests wait",
		"memory pressure: 30 MiB of the device budget left (of 2.00 GiB): new requests are refused",
		"memory pressure eases: 300 MiB of the device budget left (of 2.00 GiB): new requests wait instead of being refused",
		"memory pressure eases: 300 MiB of the device budget left (of 2.00 GiB): waiting requests start again",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestPace: how long the ladder waits between steps.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name string
		at   func(since time.Duration) Pressure
		want []time.Duration // of events
	}{
		{"low", func(time.Duration) Pressure { return device(92) }, []time.Duration{0, 2000 * ms, 4000 * ms}},
		{"critical", func(time.Duration) Pressure { return device(20) }, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms}},
		{"critical after low", func(d time.Duration) Pressure {
			if d < 600*ms {
				return device(92)
			}
			return device(20)
		}, []time.Duration{0, 600 * ms, 850 * ms}},
		{"at the low mark", func(time.Duration) Pressure { return device(103) }, nil},
		{"relieved by the first step", func(d time.Duration) Pressure {
			if d < 1000*ms {
				return device(92)
			}
			return device(110)
		}, []time.Duration{0}},
		{"room", func(d time.Duration) Pressure {
			if d < 2500*ms {
				return device(92)
			}
			return device(257)
		}, []time.Duration{0, 2000 * ms, 32500 * ms, 62500 * ms}},
		{"at the high mark", func(d time.Duration) Pressure {
			if d < 2500*ms {
				return device(92)
			}
			return device(256)
		}, []time.Duration{0, 2000 * ms}},
		{"room interrupted", func(d time.Duration) Pressure {
			if d < 2500*ms {
				return device(92)
			} else if d == 20000*ms {
				return device(200) // neither low nor room
			}
			return device(400)
		}, []time.Duration{0, 2000 * ms, 50050 * ms}},
		{"the source stops telling", func(d time.Duration) Pressure {
			if d < 2500*ms {
				return device(92)
			} else if d == 20000*ms {
				return nil
			}
			return device(400)
		}, []time.Duration{0, 2000 * ms, 50050 * ms}},
	}
	for _, test := range tests {
		l := newLadder(t, full())
		var got []time.Duration
		last := time.Minute + 10*time.Second
		if len(test.want) > 0 {
			last = test.want[len(test.want)-1] + 100*ms
		}
		for d := time.Duration(0); d <= last; d += 50 * ms {
			before := l.Limits()
			limits, events := l.Observe(t0.Add(d), test.at(d))
			if len(events) > 1 || len(events) == 0 != (limits == before) || limits != l.Limits() {
				t.Fatalf("%s: after %v %v, from %+v to %+v", test.name, d, events, before, limits)
			}
			for range events {
				got = append(got, d)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: events at %v, want %v", test.name, got, test.want)
		}
	}
}

// TestAtTheMarks: neither mark itself is beyond it.
func TestAtTheMarks(t *testing.T) {
	const low, high = 2 * gib / 20, 2*gib/8 - 1 // the latter in whole bytes of 2.5 times the former
	at := func(left int64) Pressure { return Pressure{{Source: Own, Used: -1, Limit: 2 * gib, Available: left}} }
	l := newLadder(t, full())
	if _, events := l.Observe(t0, at(low)); len(events) > 0 {
		t.Errorf("at the low mark: %v", events)
	}
	if _, events := l.Observe(t0, at(low-1)); len(events) != 1 {
		t.Errorf("below the low mark: %v", events)
	}
	for n := range 100 {
		if _, events := l.Observe(t0.Add(time.Duration(n)*time.Second), at(high)); len(events) > 0 {
			t.Fatalf("at the high mark: %v", events)
		}
	}
	l.Observe(t0.Add(100*time.Second), at(high+1))
	if _, events := l.Observe(t0.Add(130*time.Second), at(high+1)); len(events) != 1 {
		t.Errorf("above the high mark: %v", events)
	}
}

// TestUnknown: what does not tell is no reason for anything.
func TestUnknown(t *testing.T) {
	unknown := []Pressure{
		nil,
		{},
		{{}}, // a reading that nobody filled in has no limit
		{{Device, -1, -1, -1}},
		{{Device, 5 * gib, -1, -1}},
		{{Device, -1, 4 * gib, -1}},
		{{Host, -1, 0, 0}},
		{{Host, -1, -1, 1000}},
		{{Device, -1, -1, -1}, {Own, -1, -1, -1}, {Host, -1, -1, -1}},
	}
	for _, climbed := range []bool{false, true} {
		for _, p := range unknown {
			l := newLadder(t, full())
			now := t0
			if climbed {
				l.Observe(now, device(1))
			}
			want := l.Limits()
			for range 2000 {
				now = now.Add(time.Second)
				if got, events := l.Observe(now, p); len(events) > 0 || got != want {
					t.Fatalf("%+v: %v", p, events)
				}
			}
			// One known source acts alone, whatever does not tell beside it.
			if _, events := l.Observe(now, append(slices.Clone(p), device(1)...)); len(events) != 1 {
				t.Errorf("%+v and a known source: %v", p, events)
			}
		}
	}
}

// TestClock: a clock that is set back delays at most by the times of the configuration.
func TestClock(t *testing.T) {
	l := newLadder(t, full())
	l.Observe(t0, device(92))
	now := t0.Add(-time.Hour)
	steps := 0
	for range 50 {
		_, events := l.Observe(now, device(92))
		steps += len(events)
		now = now.Add(100 * time.Millisecond)
	}
	if steps != 2 {
		t.Errorf("%d steps in 5 s", steps)
	}
	l.Observe(now, device(1000))
	now = now.Add(-time.Hour)
	for range 31 {
		_, events := l.Observe(now, device(1000))
		steps += len(events)
		now = now.Add(time.Second)
	}
	if steps != 3 {
		t.Errorf("%d steps, want one down after 30 s", steps-2)
	}
}

func TestNew(t *testing.T) {
	for _, test := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Slots = 0 }, "slots"},
		{func(c *Config) { c.Chunk = 0 }, "chunks"},
		{func(c *Config) { c.MinChunk = -1 }, "chunks"},
		{func(c *Config) { c.SnapshotBytes = -1 }, "snapshots"},
		{func(c *Config) { c.Settle = -1 }, "Settle"},
		{func(c *Config) { c.Calm = -1 }, "Calm"},
		{func(c *Config) { c.MaxCalm = time.Second }, "MaxCalm is less"},
		{func(c *Config) { c.Marks.Fraction = 0.3 }, "fraction"},
		{func(c *Config) { c.Marks.Fraction = -1 }, "fraction"},
		{func(c *Config) { c.Marks.Most = -1 }, "bytes"},
		{func(c *Config) { c.Marks.Step = -1 }, "step"},
		{func(c *Config) { c.Marks.Critical = 1 }, "critical"},
		{func(c *Config) { c.Marks.High = 1 }, "high"},
		{func(c *Config) { c.Marks.High = 4 }, "high"},
	} {
		cfg := full()
		test.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %v does not mention %q", err, test.says)
		}
	}
	cfg := full()
	cfg.Calm = time.Hour // longer than the default of MaxCalm
	newLadder(t, cfg)
}

func TestNames(t *testing.T) {
	for s := Device; s <= Host; s++ {
		if strings.Contains(s.String(), "source") {
			t.Errorf("source %d has no name", s)
		}
	}
	for r := Slots; r <= Refuse; r++ {
		if strings.Contains(r.String(), "rung") {
			t.Errorf("rung %d has no name", r)
		}
	}
	if got := fmt.Sprint(Source(9), Rung(9)); got != "memory source 9 rung 9" {
		t.Error(got)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	l := newLadder(t, full())
	p := device(500)
	now := t0
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		l.Observe(now, p)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
