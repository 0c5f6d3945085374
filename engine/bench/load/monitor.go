package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSeries is how many values of a gauge are kept. When there are more, every second one goes.
const maxSeries = 256

// A Gauge is a figure of the server over a run. What is unknown is NaN.
type Gauge struct {
	Name             string
	Start, Most, End float64
	series           []float64 // evenly spaced over the run
}

// raise takes a value into the most.
func (g *Gauge) raise(v float64) {
	if math.IsNaN(g.Most) || v > g.Most {
		g.Most = v
	}
}

// Growth is how much more there was at the end than at the start.
func (g *Gauge) Growth() float64 { return g.End - g.Start }

// LateGrowth is how much more there was in the run's last quarter than in its second, by their medians: what a server takes
// once, as it warms up, is not in it, and a leak is.
func (g *Gauge) LateGrowth() float64 {
	const least = 8 // values
	n := len(g.series)
	if n < least {
		return math.NaN()
	}
	return medianOf(g.series[n-n/4:]) - medianOf(g.series[n/4:n/2])
}

// medianOf is the median of some values.
func medianOf(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// gaugeNames are those of a report, with the metric that each is the sum of.
var gaugeNames = []struct{ name, metric string }{
	{"rss_bytes", "process_resident_memory_bytes"},
	{"goroutines", "go_goroutines"},
	{"kv_usage", "caldera_kv_cache_usage_ratio"},
	{"slots_busy", "caldera_slots"},
	{"running", "caldera_requests_running"},
	{"waiting", "caldera_requests_waiting"},
	{"device_bytes", "caldera_device_memory_bytes"},
}

// newGauges are gauges of which nothing is known.
func newGauges() []Gauge {
	list := make([]Gauge, len(gaugeNames))
	for i, n := range gaugeNames {
		list[i] = Gauge{Name: n.name, Start: math.NaN(), Most: math.NaN(), End: math.NaN()}
	}
	return list
}

// parseMetrics reads the gauges' metrics from Prometheus's text format, adding up series of a name; of the slots only those
// that are not idle. What is not there is NaN.
func parseMetrics(text []byte) []float64 {
	values := make([]float64, len(gaugeNames))
	for i := range values {
		values[i] = math.NaN()
	}
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		end := strings.IndexAny(line, "{ \t")
		if end < 0 || line[0] == '#' {
			continue
		}
		i := slices.IndexFunc(gaugeNames, func(n struct{ name, metric string }) bool { return n.metric == line[:end] })
		if i < 0 {
			continue
		}
		labels, rest := "", line[end:]
		if rest[0] == '{' {
			// A label's value may hold a brace, but no figure does.
			close := strings.LastIndexByte(rest, '}')
			if close < 0 {
				continue
			}
			labels, rest = rest[1:close], rest[close+1:]
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			continue
		}
		if math.IsNaN(values[i]) {
			values[i] = 0
		}
		if gaugeNames[i].metric == "caldera_slots" && isIdle(labels) {
			continue
		}
		values[i] += v
	}
	return values
}

// isIdle reports whether labels are of slots that nobody uses.
func isIdle(labels string) bool {
	return strings.Contains(labels, `state="idle"`) || strings.Contains(labels, `state="free"`)
}

// A monitor watches the server during a run. Nothing it fails to learn is a fault, but what it learns may be.
type monitor struct {
	t      *target
	rep    *Report
	gauges []Gauge
	every  time.Duration // between samples
	shared bool          // slots were busy before the run: others use the server
	blind  bool          // there are no metrics
}

// sampleEvery is the time between the first samples of the metrics.
const sampleEvery = time.Second

func newMonitor(t *target, rep *Report) *monitor {
	return &monitor{t: t, rep: rep, gauges: newGauges(), every: sampleEvery}
}

// begin looks at the server before the run.
func (m *monitor) begin(ctx context.Context) {
	if busy, err := m.busySlots(ctx); err == nil && len(busy) > 0 {
		m.shared = true
		m.rep.note("slots %s were busy before the run: someone else uses the server", list(busy))
	}
	values, err := m.metrics(ctx)
	if err != nil {
		m.blind = true
		m.rep.note("no metrics: %v", err)
		return
	}
	for i := range m.gauges {
		m.gauges[i].Start, m.gauges[i].Most = values[i], values[i]
	}
	m.rep.Server = m.gauges
}

// watch samples the metrics, and tells how far the run is, until ctx ends.
func (m *monitor) watch(ctx context.Context, r *runner) {
	next := time.Now().Add(m.every)
	for sleep(ctx, time.Second) {
		if r.opt.Progress != nil {
			r.opt.Progress(r.col.progress())
		}
		if m.blind || time.Now().Before(next) {
			continue
		}
		if values, err := m.metrics(ctx); err == nil {
			m.sample(values)
		}
		next = time.Now().Add(m.every)
	}
}

// sample adds values to the series.
func (m *monitor) sample(values []float64) {
	thin := false
	for i := range m.gauges {
		g := &m.gauges[i]
		if math.IsNaN(values[i]) {
			continue
		}
		g.raise(values[i])
		if g.series = append(g.series, values[i]); len(g.series) >= maxSeries {
			thin = true
			for k := range maxSeries / 2 {
				g.series[k] = g.series[2*k+1] // the last stays, from which the next is two steps away
			}
			g.series = g.series[:maxSeries/2]
		}
	}
	if thin {
		m.every *= 2
	}
}

// settlePoll is how often a server is asked whether it is idle.
const settlePoll = 250 * time.Millisecond

// finish looks at the server after the run: it must be healthy, and its slots must be free soon.
func (m *monitor) finish(ctx context.Context, settle time.Duration) {
	m.t.close() // each connection has goroutines of the server's
	until := time.Now().Add(settle)
	m.finishSlots(ctx, until)
	if _, err := m.t.ask(ctx, "/health", nil); err != nil && ctx.Err() == nil {
		if status, ok := err.(*statusError); !ok || !isMissing(status.code) {
			m.rep.addFault(*fault(FaultHealth, "after the run: %s", clip(err.Error())))
		}
	}
	if m.blind {
		return
	}
	for {
		values, err := m.metrics(ctx)
		if err != nil {
			m.rep.note("no metrics after the run: %v", err)
			return
		}
		quiet := true
		for i := range m.gauges {
			g := &m.gauges[i]
			g.End = values[i]
			g.raise(values[i])
			// These fall to what they were, if a moment after the last answer.
			if (g.Name == "goroutines" || g.Name == "running" || g.Name == "slots_busy") && g.End > g.Start {
				quiet = false
			}
		}
		if quiet || time.Now().After(until) || !sleep(ctx, settlePoll) {
			return
		}
	}
}

// finishSlots waits for the slots.
func (m *monitor) finishSlots(ctx context.Context, until time.Time) {
	for {
		busy, err := m.busySlots(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.rep.note("whether slots are free after the run is not known: %v", err)
			return
		case len(busy) == 0:
			return
		case time.Now().After(until) && m.shared:
			m.rep.note("slots %s are busy after the run, but others use the server too", list(busy))
			return
		case time.Now().After(until):
			m.rep.addFault(*fault(FaultSlot, "slots %s are still busy after the run", list(busy)))
			return
		}
		sleep(ctx, settlePoll)
	}
}

// metrics asks for the gauges' values.
func (m *monitor) metrics(ctx context.Context) ([]float64, error) {
	b, err := m.t.ask(ctx, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	return parseMetrics(b), nil
}

// busySlots asks which slots are in use.
func (m *monitor) busySlots(ctx context.Context) ([]int, error) {
	b, err := m.t.ask(ctx, "/slots", nil)
	if err != nil {
		return nil, err
	}
	var slots []struct {
		ID   int  `json:"id"`
		Busy bool `json:"is_processing"`
	}
	if err := json.Unmarshal(b, &slots); err != nil {
		return nil, fmt.Errorf("/slots: %w", err)
	}
	var busy []int
	for _, s := range slots {
		if s.Busy {
			busy = append(busy, s.ID)
		}
	}
	return busy, nil
}

// list writes the first of some numbers.
func list(v []int) string {
	const most = 8
	s := strings.Trim(fmt.Sprint(v[:min(len(v), most)]), "[]")
	if len(v) > most {
		s += " ..."
	}
	return strings.ReplaceAll(s, " ", ", ")
}
