package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/calderaml/caldera/engine"
)

// A Trace collects what devices did, for a timeline. It is used by one goroutine at a time, as an engine does.
type Trace struct {
	start     time.Time
	stretches []engine.Stretch
	marks     []mark
}

// A mark is a test that began.
type mark struct {
	name string
	at   time.Time
}

// NewTrace begins a timeline.
func NewTrace() *Trace { return &Trace{start: time.Now()} }

// Add takes in a stretch; it is for [engine.Config], Trace.
func (t *Trace) Add(s engine.Stretch) { t.stretches = append(t.stretches, s) }

// Mark notes that a test begins.
func (t *Trace) Mark(name string) { t.marks = append(t.marks, mark{name, time.Now()}) }

// Busy is how long a device was busy between two times.
func (t *Trace) Busy(die int, from, to time.Time) (sum time.Duration) {
	for _, s := range t.stretches {
		if s.Die != die || s.Carry {
			continue
		}
		begin, end := s.Begin, s.End
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(begin))
	}
	return sum
}

// event is one of Chrome's trace event format (Trace Event Format, Google, "Complete", "Metadata" and "Instant" events).
type event struct {
	Name string         `json:"name"`
	Ph   string         `json:"ph"`
	TS   float64        `json:"ts"` // µs
	Dur  float64        `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	S    string         `json:"s,omitempty"`
	Args map[string]any `json:"args,omitempty"`
}

// Write writes the timeline as chrome://tracing and Perfetto read it, a row for each device and one for what the host carries between
// them. Names are those of the devices.
func (t *Trace) Write(w io.Writer, names []string) error {
	const pid = 1
	us := func(at time.Time) float64 { return float64(at.Sub(t.start).Nanoseconds()) / 1e3 }
	var es []event
	for i, name := range names {
		es = append(es, event{Name: "thread_name", Ph: "M", PID: pid, TID: i + 1, Args: map[string]any{"name": fmt.Sprintf("device %d: %s", i, name)}})
	}
	es = append(es, event{Name: "thread_name", Ph: "M", PID: pid, Args: map[string]any{"name": "host: rows from device to device"}})
	for _, m := range t.marks {
		es = append(es, event{Name: m.name, Ph: "i", TS: us(m.at), PID: pid, S: "g"})
	}
	for _, s := range t.stretches {
		e := event{Name: fmt.Sprintf("%d rows", s.Rows), Ph: "X", TS: us(s.Begin), Dur: float64(s.End.Sub(s.Begin).Nanoseconds()) / 1e3, PID: pid, TID: s.Die + 1}
		if s.Carry {
			e.TID, e.Args = 0, map[string]any{"to": s.Die}
		}
		es = append(es, e)
	}
	return json.NewEncoder(w).Encode(map[string]any{"traceEvents": es, "displayTimeUnit": "ms"})
}
