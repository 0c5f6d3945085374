package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schema names the JSON of a report.
const Schema = "caldera.bench-serve/1"

// A Report is what a run has shown. Numbers of requests do not count the warm-up.
type Report struct {
	Options     Options
	Build       string // of this program
	Date        time.Time
	Model       string
	Duration    time.Duration // until the last request had ended
	Interrupted bool

	Begun, Completed, Failed         int // Failed is what should have been answered and was not in order
	Cut, CutSent, CutPrefill         int
	CutStream, Refused, Expected     int // Expected are malformed ones that were told so
	Closed, Unanswered, Aborted      int // by a shutdown of the server; of the run
	Local, Unsent, Long, Good        int
	Input, Cached, Output, CutDeltas int     // tokens of completed requests; deltas of those that were cut
	TTFT, LongTTFT, TPOT, ITL        Summary // ms
	ITLLong, E2EL, Lag               Summary
	Drain                            time.Duration // from the first sign of a shutdown to the end of the last request
	Server                           []Gauge       // nil when there are no metrics

	Faults     []Fault // the first few
	faultKinds map[string]int
	Bars       []BarResult
	Notes      []string
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// addFault adds a fault that is not of a request of the run.
func (r *Report) addFault(f Fault) {
	r.countFault(f.Kind, 1)
	r.Faults = append(r.Faults, f)
}

func (r *Report) countFault(kind string, n int) {
	if r.faultKinds == nil {
		r.faultKinds = map[string]int{}
	}
	r.faultKinds[kind] += n
}

// FaultCount is how many faults there were.
func (r *Report) FaultCount() int {
	n := 0
	for _, k := range r.faultKinds {
		n += k
	}
	return n
}

// Failure says what a run has found wrong, in a line, or nothing.
func (r *Report) Failure() string {
	var parts []string
	if n := r.FaultCount(); n > 0 {
		s := fmt.Sprintf("%d faults of the server", n)
		if n == 1 {
			s = "a fault of the server"
		}
		var first []string
		for _, f := range r.Faults[:min(3, len(r.Faults))] {
			t := f.Kind + ": " + f.Detail
			if f.Request >= 0 {
				t = fmt.Sprintf("request %d, %s", f.Request, t)
			}
			first = append(first, t)
		}
		parts = append(parts, s+": "+strings.Join(first, "; "))
	}
	if r.Local > 0 {
		parts = append(parts, fmt.Sprintf("%d requests failed for lack of files or ports on this machine", r.Local))
	}
	for _, b := range r.Bars {
		if !b.Met {
			parts = append(parts, b.String())
		}
	}
	if len(parts) == 0 && !r.Interrupted && r.Completed+r.Cut+r.Expected == 0 {
		parts = append(parts, "no request was answered")
	}
	return strings.Join(parts, "; ")
}

// A field is a name and a value of a report: a number, a text, a truth, a time, a list or nil for what is not known.
type field struct {
	name  string
	value any
}

// perSecond is a rate over the run.
func (r *Report) perSecond(n int) any {
	if r.Duration <= 0 {
		return nil
	}
	return float64(n) / r.Duration.Seconds()
}

// fields are the report's values. Those that vLLM's bench serve has as well have its names.
func (r *Report) fields() []field {
	o := &r.Options
	list := []field{
		{"schema", Schema}, {"date", r.Date.UTC().Format(time.RFC3339)}, {"build_commit", r.Build},
		{"url", o.URL}, {"endpoint", o.Endpoint}, {"model_id", r.Model},
		{"max_concurrency", o.Concurrency}, {"request_rate", o.Rate}, {"requests", o.Requests}, {"seed", o.Seed},
		{"prompt_lengths", o.Prompt.String()}, {"output_lengths", o.Output.String()}, {"ignore_eos", o.IgnoreEOS},
		{"dataset_prompts", len(o.Dataset)}, {"prefix_share", o.PrefixShare}, {"prefix_length", o.PrefixLength},
		{"disconnect_share", o.Disconnect}, {"malformed_share", o.Malformed}, {"long_prompt_every", o.LongEvery}, {"long_prompt", o.LongPrompt},
		{"interrupted", r.Interrupted}, {"duration", r.Duration.Seconds()},
		{"begun", r.Begun}, {"completed", r.Completed}, {"failed", r.Failed},
		{"cut", r.Cut}, {"cut_sent", r.CutSent}, {"cut_prefill", r.CutPrefill}, {"cut_stream", r.CutStream},
		{"refused", r.Refused}, {"malformed_refused", r.Expected}, {"closed_by_shutdown", r.Closed}, {"unanswered_in_shutdown", r.Unanswered},
		{"aborted", r.Aborted}, {"failed_local", r.Local}, {"unsent", r.Unsent}, {"long_completed", r.Long}, {"faults", r.FaultCount()},
		{"total_input", r.Input}, {"total_cached", r.Cached}, {"total_output", r.Output}, {"cut_deltas", r.CutDeltas},
		{"request_throughput", r.perSecond(r.Completed)}, {"request_goodput", r.goodput()}, {"output_throughput", r.perSecond(r.Output)},
		{"total_token_throughput", r.perSecond(r.Input + r.Output)}, {"drain_ms", ms(r.Drain)},
	}
	for _, m := range r.latencies() {
		list = append(list, summaryFields(m.name, m.summary)...)
	}
	server := r.Server
	if server == nil {
		server = newGauges()
	}
	for i := range server {
		g := &server[i]
		for _, v := range []struct {
			name  string
			value float64
		}{{"_start", g.Start}, {"_most", g.Most}, {"_end", g.End}, {"_growth", g.Growth()}, {"_late_growth", g.LateGrowth()}} {
			list = append(list, field{g.Name + v.name, known(v.value)})
		}
	}
	return list
}

// known is a number, or nil for NaN.
func known(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// goodput is the good requests a second, where there are goals.
func (r *Report) goodput() any {
	if len(r.Options.Goodput) == 0 {
		return nil
	}
	return r.perSecond(r.Good)
}

// A latency is a metric's name and summary.
type latency struct {
	name    string
	title   string // in the table
	summary Summary
}

// latencies are the times of requests. Those with a long prompt are in itl and the two of their own.
func (r *Report) latencies() []latency {
	return []latency{
		{"ttft", "time to first token", r.TTFT},
		{"tpot", "time per output token", r.TPOT},
		{"itl", "inter-token latency", r.ITL},
		{"itl_long", "the same, a long prompt being read", r.ITLLong},
		{"e2el", "end to end", r.E2EL},
		{"long_ttft", "first token of long prompts", r.LongTTFT},
		{"lag", "sent after it was due", r.Lag},
	}
}

// summaryFields are the values of a metric in vLLM's names.
func summaryFields(name string, s Summary) []field {
	list := []field{{"mean", s.Mean}, {"median", s.P50}, {"std", s.Std}, {"p50", s.P50}, {"p90", s.P90}, {"p95", s.P95}, {"p99", s.P99}, {"max", s.Max}}
	for i := range list {
		list[i].name += "_" + name + "_ms"
		if s.N == 0 {
			list[i].value = nil
		}
	}
	return list
}

// MarshalJSON writes the values in order, and then lists.
func (r *Report) MarshalJSON() ([]byte, error) {
	list := r.fields()
	goals := map[string]float64{}
	for _, g := range r.Options.Goodput {
		goals[g.Metric] = g.MS
	}
	kinds := r.faultKinds
	if kinds == nil {
		kinds = map[string]int{}
	}
	list = append(list, field{"goals_ms", goals}, field{"fault_kinds", kinds}, field{"first_faults", notNil(r.Faults)},
		field{"bars", notNil(r.Bars)}, field{"notes", notNil(r.Notes)})
	for _, g := range r.Server {
		if len(g.series) > 0 {
			list = append(list, field{g.Name + "_series", g.series})
		}
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// notNil makes an empty list of none, which JSON writes as one.
func notNil[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// A Bar is a value of a report that must not be above another: a name and a number.
type Bar struct {
	Name string
	Most float64
}

// A BarResult is what became of a bar.
type BarResult struct {
	Name  string   `json:"name"`
	Most  float64  `json:"at_most"`
	Value *float64 `json:"value"` // nil when it is not known, and the bar not met
	Met   bool     `json:"met"`
}

func (b BarResult) String() string {
	if b.Value == nil {
		return fmt.Sprintf("%s is not known, but must be at most %g", b.Name, b.Most)
	}
	return fmt.Sprintf("%s is %.6g, which is more than %g", b.Name, *b.Value, b.Most)
}

// ParseBars reads bars: p99_itl_ms:250,failed:0.
func ParseBars(s string) ([]Bar, error) { return parsePairs(s) }

// parsePairs reads names with numbers of 0 or more.
func parsePairs(s string) ([]Bar, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var list []Bar
	for item := range strings.SplitSeq(s, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(item), ":")
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if !ok || err != nil || !(v >= 0) {
			return nil, fmt.Errorf("%q: give a name and a number, as in ttft:500", item)
		}
		list = append(list, Bar{strings.TrimSpace(name), v})
	}
	return list, nil
}

// number is a value as a number.
func number(v any) (float64, bool) {
	switch x := v.(type) {
	case int:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

// checkBarNames refuses bars on what is no result.
func checkBarNames(bars []Bar) error {
	names := (&Report{}).fields()
	begin := slices.IndexFunc(names, func(f field) bool { return f.name == "duration" }) // what is before is no result
	for _, b := range bars {
		if !slices.ContainsFunc(names[begin:], func(f field) bool { return f.name == b.Name }) {
			return fmt.Errorf("%q is no result; use a name from -o json, such as p99_itl_ms or goroutines_growth", b.Name)
		}
	}
	return nil
}

// checkBars compares the report with its bars.
func (r *Report) checkBars() {
	fields := r.fields()
	for _, b := range r.Options.AtMost {
		res := BarResult{Name: b.Name, Most: b.Most}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == b.Name })
		if i >= 0 {
			if v, ok := number(fields[i].value); ok {
				res.Value, res.Met = &v, v <= b.Most
			}
		}
		r.Bars = append(r.Bars, res)
	}
}
