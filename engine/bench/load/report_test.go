package load

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// full is a report with something everywhere.
func full(t *testing.T) *Report {
	o := options(t)
	o.Goodput, o.AtMost = []Goal{{"ttft", 500}}, []Bar{{"failed", 0}, {"p99_itl_ms", 100}, {"max_long_ttft_ms", 5}}
	c := newCollector(o.Goodput)
	for i := range 20 {
		c.begin()
		c.end(result{outcome: completed, ttft: time.Duration(i+1) * 50 * time.Millisecond, tpot: 20 * time.Millisecond, e2el: 2 * time.Second, input: 100, cached: 10, output: 50})
		c.addGap(20*time.Millisecond, i%10 == 0)
	}
	for _, r := range []result{
		{outcome: cut, cut: cutStream, deltas: 7, ttft: time.Millisecond}, {outcome: cut, cut: cutSent}, {outcome: refused, retryAfter: -1},
		{outcome: expected}, {outcome: local}, {outcome: faulty, fault: &Fault{FaultCut, 24, "gone | away\n", ""}},
	} {
		c.begin()
		c.end(r)
	}
	c.finish(10*time.Second, 0)
	r := &Report{Options: o, Build: "abc", Date: time.Unix(0, 0), Model: "a|b"}
	r.Server = newGauges()
	r.Server[0] = Gauge{Name: "rss_bytes", Start: 1 << 20, Most: 3 << 20, End: 2 << 20, series: []float64{1 << 20, 3 << 20}}
	c.report(r)
	r.checkBars()
	return r
}

// JSON has the names of vLLM's bench serve, and null for what is not known.
func TestReportJSON(t *testing.T) {
	var b bytes.Buffer
	r := full(t)
	if err := r.Write(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var x map[string]any
	if err := json.Unmarshal(b.Bytes(), &x); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"schema": "caldera.bench-serve/1", "model_id": "a|b", "completed": 20., "failed": 2., "total_input": 2000., "total_output": 1000., "duration": 10.,
		"request_throughput": 2., "output_throughput": 100., "total_token_throughput": 300., "request_goodput": 1., "total_cached": 200.,
		"mean_tpot_ms": 20., "p99_itl_ms": 20., "std_e2el_ms": 0., "median_e2el_ms": 2000., "p90_itl_long_ms": 20., "mean_long_ttft_ms": nil,
		"cut": 2., "cut_stream": 1., "cut_deltas": 7., "malformed_refused": 1., "refused": 1., "failed_local": 1., "faults": 1., "interrupted": false,
		"rss_bytes_growth": 1048576., "rss_bytes_late_growth": nil, "goroutines_end": nil, "max_ttft_ms": 1000.,
	} {
		if v, ok := x[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	for _, m := range []string{"ttft", "tpot", "itl", "e2el"} {
		for _, s := range []string{"mean", "median", "std", "p50", "p90", "p95", "p99"} {
			if _, ok := x[s+"_"+m+"_ms"].(float64); !ok {
				t.Errorf("%s_%s_ms is %v", s, m, x[s+"_"+m+"_ms"])
			}
		}
	}
	if f, ok := x["first_faults"].([]any); !ok || len(f) != 1 || f[0].(map[string]any)["request"] != 24. {
		t.Errorf("%v", x["first_faults"])
	}
	if s, ok := x["rss_bytes_series"].([]any); !ok || len(s) != 2 {
		t.Errorf("%v", x["rss_bytes_series"])
	}

	// One line, and the same.
	b.Reset()
	var y map[string]any
	if err := r.Write(&b, "jsonl"); err != nil || strings.Count(b.String(), "\n") != 1 || json.Unmarshal(b.Bytes(), &y) != nil || len(y) != len(x) {
		t.Errorf("%v, %s", err, b.String())
	}
	// Nothing at all is an object as well.
	b.Reset()
	empty := Report{Options: options(t)}
	if err := empty.Write(&b, "json"); err != nil || json.Unmarshal(b.Bytes(), &y) != nil || y["mean_ttft_ms"] != nil || y["request_throughput"] != nil {
		t.Errorf("%v, %s", err, b.String())
	}
}

func TestReportCSV(t *testing.T) {
	var b bytes.Buffer
	if err := full(t).Write(&b, "csv"); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(rows) != 2 || len(rows[0]) != len(rows[1]) {
		t.Fatalf("%v, %q", err, rows)
	}
	got := map[string]string{}
	for i, name := range rows[0] {
		if _, twice := got[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		got[name] = rows[1][i]
	}
	for name, want := range map[string]string{"completed": "20", "mean_tpot_ms": "20.000000", "p99_long_ttft_ms": "", "interrupted": "0", "model_id": "a|b"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestReportMarkdown(t *testing.T) {
	var b bytes.Buffer
	r := full(t)
	if err := r.Write(&b, "md"); err != nil {
		t.Fatal(err)
	}
	s := b.String()
	for _, want := range []string{
		"| model | endpoint | load      | prompt | output |   time | completed | failed | req/s | in t/s | out t/s | good req/s |\n",
		"| a?b   | chat     | 1 clients | 10-30  | 8      | 10.0 s |        20 |      2 |  2.00 | 200.00 |  100.00 |       1.00 |\n",
		"| time per output token (tpot)                  |    20 |    20.00 ± 0.00 |   20.00 |", "| cut by the client once sent     |     1 |\n",
		"| fault: cut                      |     1 |\n", "| rss_bytes | 1.00 MiB | 3.00 MiB | 2.00 MiB | 1.00 MiB |           ? |\n", "\nbuild: abc\n",
	} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if strings.Contains(s, "goroutines") || strings.Contains(s, "long prompts") || strings.Contains(s, "due") {
		t.Errorf("what is not known is shown:\n%s", s)
	}
	if err := r.Write(&b, "xml"); err == nil {
		t.Error("a format xml")
	}
}

func TestFailure(t *testing.T) {
	want := "a fault of the server: request 24, cut: gone | away\n; 1 requests failed for lack of files or ports on this machine; " +
		"failed is 2, which is more than 0; max_long_ttft_ms is not known, but must be at most 5"
	if s := full(t).Failure(); s != want {
		t.Errorf("%q", s)
	}
	for _, c := range []struct {
		r    Report
		want string
	}{
		{Report{}, "no request was answered"},
		{Report{Interrupted: true}, ""},
		{Report{Refused: 5}, "no request was answered"},
		{Report{Completed: 1}, ""},
		{Report{Cut: 1}, ""},
		{Report{Expected: 1}, ""},
	} {
		if s := c.r.Failure(); s != c.want {
			t.Errorf("%+v: %q", c.r, s)
		}
	}
}

func TestParsePairs(t *testing.T) {
	if g, err := ParseGoals(" ttft:500, tpot:50.5,e2el:4000"); err != nil || len(g) != 3 || g[1] != (Goal{"tpot", 50.5}) {
		t.Errorf("%v, %v", g, err)
	}
	if g, err := ParseGoals(""); err != nil || g != nil {
		t.Errorf("%v, %v", g, err)
	}
	for _, bad := range []string{"ttft", "ttft:", "ttft:x", "ttft:-1", "itl:5", "ttft:5,", "ttft:NaN"} {
		if g, err := ParseGoals(bad); err == nil {
			t.Errorf("%q: %v", bad, g)
		}
	}
	if b, err := ParseBars("p99_itl_ms:250,failed:0"); err != nil || len(b) != 2 || b[0] != (Bar{"p99_itl_ms", 250}) {
		t.Errorf("%v, %v", b, err)
	}
}

// The series of a gauge keeps its span when it is thinned, and stays bounded.
func TestSeries(t *testing.T) {
	m := &monitor{gauges: newGauges(), every: sampleEvery}
	values := make([]float64, len(m.gauges))
	for i := range values {
		values[i] = math.NaN()
	}
	for now, next := time.Duration(0), time.Duration(0); now < 3000*time.Second; now += time.Second {
		if now >= next {
			values[0] = now.Seconds()
			m.sample(values)
			next = now + m.every
		}
	}
	s := m.gauges[0].series
	if len(s) < maxSeries/2 || len(s) >= maxSeries || s[0] > 2*m.every.Seconds() || s[len(s)-1] < 2900 || len(m.gauges[1].series) != 0 || !math.IsNaN(m.gauges[1].Most) {
		t.Fatalf("%d values, %g to %g", len(s), s[0], s[len(s)-1])
	}
	step := s[1] - s[0]
	for i := range s[1:] {
		if math.Abs(s[i+1]-s[i]-step) > 1 {
			t.Fatalf("a step of %g among steps of %g", s[i+1]-s[i], step)
		}
	}
}

func TestClip(t *testing.T) {
	if s := clip(" a\nb\x1b[31m\xff" + strings.Repeat("é", 300)); !strings.HasPrefix(s, "a b [31m?é") || !strings.HasSuffix(s, "...") || len([]rune(s)) != 203 {
		t.Errorf("%q", s)
	}
}
