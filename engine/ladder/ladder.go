package ladder

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// A Rung is what a step of the ladder limits.
type Rung int

// Rungs, in the order in which they are climbed.
const (
	Slots Rung = iota
	KVFormat
	Chunk
	Snapshots
	Queue
	Refuse
)

// String names what the rung limits, as in the log.
func (r Rung) String() string {
	switch r {
	case Slots:
		return "live slots"
	case KVFormat:
		return "KV format of new pages"
	case Chunk:
		return "prefill chunk"
	case Snapshots:
		return "memory for snapshots"
	case Queue:
		return "new requests wait"
	case Refuse:
		return "new requests are refused"
	}
	return fmt.Sprintf("rung %d", int(r))
}

// Limits are what an engine may use at the moment.
type Limits struct {
	Slots         int   // most live sequences
	Cold          int   // index of the format of new KV pages in Config.Formats
	Chunk         int   // most rows of prompt in a step
	SnapshotBytes int64 // of memory for snapshots; more than that is to be evicted
	Queue         bool  // start nothing new
	Refuse        bool  // refuse new requests
}

// Config is where a ladder starts and when it moves. Zero times and marks stand for the defaults.
type Config struct {
	Slots         int      // most live sequences without pressure, at least 1
	Formats       []string // KV formats from the one in use to the coldest, for the log; nil if there is no other
	Chunk         int      // rows of a prefill chunk without pressure, at least 1
	MinChunk      int      // rows that a chunk is not made smaller than; default 32
	SnapshotBytes int64    // of memory for snapshots without pressure, 0 for none

	Marks   Marks
	Settle  time.Duration // from one climb to the next while headroom is low; default 2 s
	Urgent  time.Duration // likewise while it is critical; default 250 ms
	Calm    time.Duration // of headroom above the high mark before a step down; default 30 s
	MaxCalm time.Duration // most that Calm grows to when steps down prove too early; default 10 min
}

// An Event is a step of the ladder, up or down.
type Event struct {
	Rung     Rung
	Relief   bool    // it was a step down: something is given back
	From, To string  // the limit before and after: "16" and "8", "f16" and "q8_0", "no" and "yes"
	Why      Reading // the tightest source
}

// String is the event as a sentence for a log.
func (e Event) String() string {
	what := "memory pressure"
	if e.Relief {
		what = "memory pressure eases"
	}
	change := fmt.Sprintf("%v %s -> %s", e.Rung, e.From, e.To)
	switch {
	case e.Rung == Queue && e.Relief:
		change = "waiting requests start again"
	case e.Rung == Refuse && e.Relief:
		change = "new requests wait instead of being refused"
	case e.Rung == Queue || e.Rung == Refuse:
		change = e.Rung.String()
	}
	return fmt.Sprintf("%s: %v: %s", what, e.Why, change)
}

// A step is one place on the ladder: the limits there, and what changed.
type step struct {
	limits   Limits
	rung     Rung
	from, to string
}

// A Ladder is the state of an engine under memory pressure. It is used by one goroutine.
type Ladder struct {
	cfg   Config
	steps []step // steps[0] is the start, without pressure
	at    int

	climbed   time.Time     // last climb, zero before the first
	descended time.Time     // last descent, likewise
	low       time.Time     // when headroom was low last
	down      bool          // the last change was a descent
	since     time.Time     // since when there is room, zero while there is not
	calm      time.Duration // how long there must be room before the first step down after a climb
	next      time.Duration // and before the next step down
}

// New returns a ladder at its foot. The error says what of the configuration makes no sense.
func New(cfg Config) (*Ladder, error) {
	for _, d := range []struct {
		at      *time.Duration
		name    string
		usually time.Duration
	}{
		{&cfg.Settle, "Settle", 2 * time.Second},
		{&cfg.Urgent, "Urgent", 250 * time.Millisecond},
		{&cfg.Calm, "Calm", 30 * time.Second},
		{&cfg.MaxCalm, "MaxCalm", max(10*time.Minute, cfg.Calm)},
	} {
		if *d.at < 0 {
			return nil, fmt.Errorf("memory ladder: %s is %v; it is not negative", d.name, *d.at)
		} else if *d.at == 0 {
			*d.at = d.usually
		}
	}
	if cfg.MinChunk == 0 {
		cfg.MinChunk = 32
	}
	switch {
	case cfg.Slots < 1:
		return nil, fmt.Errorf("memory ladder: %d slots; there is at least one", cfg.Slots)
	case cfg.Chunk < 1 || cfg.MinChunk < 1:
		return nil, fmt.Errorf("memory ladder: chunks of %d rows, at least %d; both are positive", cfg.Chunk, cfg.MinChunk)
	case cfg.SnapshotBytes < 0:
		return nil, fmt.Errorf("memory ladder: %d bytes for snapshots", cfg.SnapshotBytes)
	case cfg.MaxCalm < cfg.Calm:
		return nil, errors.New("memory ladder: MaxCalm is less than Calm")
	}
	if err := cfg.Marks.check(); err != nil {
		return nil, fmt.Errorf("memory ladder: %w", err)
	}
	return &Ladder{cfg: cfg, steps: cfg.steps(), calm: cfg.Calm}, nil
}

// steps builds the ladder of a configuration.
func (c Config) steps() []step {
	l := Limits{Slots: c.Slots, Chunk: c.Chunk, SnapshotBytes: c.SnapshotBytes}
	steps := []step{{limits: l}}
	add := func(r Rung, from, to string) { steps = append(steps, step{l, r, from, to}) }
	for l.Slots > 1 {
		from := l.Slots
		if l.Slots > 8 {
			l.Slots = max(l.Slots/2, 8)
		} else {
			l.Slots = 1
		}
		add(Slots, strconv.Itoa(from), strconv.Itoa(l.Slots))
	}
	for l.Cold+1 < len(c.Formats) {
		l.Cold++
		add(KVFormat, c.Formats[l.Cold-1], c.Formats[l.Cold])
	}
	for range 2 {
		if from := l.Chunk; from > c.MinChunk {
			l.Chunk = max(from/4, c.MinChunk)
			add(Chunk, strconv.Itoa(from), strconv.Itoa(l.Chunk))
		}
	}
	for _, part := range []int64{2, 4, 0} {
		from := l.SnapshotBytes
		if l.SnapshotBytes = 0; part > 0 {
			l.SnapshotBytes = c.SnapshotBytes / part
		}
		if from > l.SnapshotBytes {
			add(Snapshots, size(from), size(l.SnapshotBytes))
		}
	}
	l.Queue = true
	add(Queue, "no", "yes")
	l.Refuse = true
	add(Refuse, "no", "yes")
	return steps
}

// Limits returns the limits as they are.
func (l *Ladder) Limits() Limits { return l.steps[l.at].limits }

// Steps returns how many steps are climbed and how many there are.
func (l *Ladder) Steps() (climbed, of int) { return l.at, len(l.steps) - 1 }

// Observe takes readings in, moves at most one step and returns the limits from now on, with the event if they
// changed. It is meant to be called before each step of the engine and about every second without one. It
// allocates only for an event.
func (l *Ladder) Observe(now time.Time, p Pressure) (Limits, []Event) {
	tightest, known := p.Tightest(l.cfg.Marks)
	if !known {
		l.since = time.Time{} // what is not known is not room
		return l.Limits(), nil
	}
	// Its marks are those of the others too: all of them have more left in these terms.
	left, _ := tightest.Headroom()
	m := l.cfg.Marks
	low, critical := left < m.Low(tightest.Limit), left < m.critical(tightest.Limit)
	room := left > m.high(tightest.Limit)
	if !room {
		l.since = time.Time{}
	} else if l.since.IsZero() || now.Before(l.since) {
		l.since = now
	}
	if now.Before(l.climbed) { // the clock was set back
		l.climbed = now
	}

	if low {
		l.low = now
		wait := l.cfg.Settle
		if critical {
			wait = l.cfg.Urgent
		}
		if now.Sub(l.climbed) >= wait && l.at+1 < len(l.steps) {
			return l.climb(now, tightest)
		}
	}
	if l.at == 0 && now.Sub(l.low) >= 2*l.cfg.MaxCalm {
		l.calm = l.cfg.Calm
	}
	if room && l.at > 0 && now.Sub(l.since) >= l.next {
		return l.descend(now, tightest)
	}
	return l.Limits(), nil
}

// climb goes a step up.
func (l *Ladder) climb(now time.Time, why Reading) (Limits, []Event) {
	if l.down && now.Sub(l.descended) < l.cfg.MaxCalm {
		l.calm = min(4*l.calm, l.cfg.MaxCalm) // that step down was too early
	}
	l.climbed, l.down, l.next = now, false, l.calm
	l.at++
	s := &l.steps[l.at]
	return s.limits, []Event{{Rung: s.rung, From: s.from, To: s.to, Why: why}}
}

// descend goes a step down.
func (l *Ladder) descend(now time.Time, why Reading) (Limits, []Event) {
	l.descended, l.since, l.down = now, now, true
	l.next = max(l.next/2, l.cfg.Calm)
	s := &l.steps[l.at]
	l.at--
	return l.Limits(), []Event{{Rung: s.rung, Relief: true, From: s.to, To: s.from, Why: why}}
}
