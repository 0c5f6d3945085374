package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
)

func TestParseInts(t *testing.T) {
	tests := []struct {
		in   []string
		want []int
	}{
		{[]string{"512"}, []int{512}},
		{[]string{"0"}, []int{0}},
		{[]string{"1,2", "3"}, []int{1, 2, 3}},
		{[]string{"1-4"}, []int{1, 2, 3, 4}},
		{[]string{"64-256+64"}, []int{64, 128, 192, 256}},
		{[]string{"1-100*3"}, []int{1, 3, 9, 27, 81}},
		{[]string{"5-5"}, []int{5}},
	}
	for _, tt := range tests {
		if got, err := ParseInts(tt.in); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: %v, %v", tt.in, got, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "1-", "5-1", "1-9+0", "1-9*1", "0-9*2", "1-100000000", "1-2-3", "999999999999", "1.5"} {
		if got, err := ParseInts([]string{bad}); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestTests(t *testing.T) {
	var names []string
	for _, x := range append(Tests([]int{512, 0}, []int{0, 128}, []int{0, 64}), Test{Prompt: 8, Gen: 4, Depth: 2}) {
		names = append(names, x.Name())
	}
	want := "pp512, tg128, pp512 @ d64, tg128 @ d64, pp8+tg4 @ d2"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestStats(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	if Mean(v) != 2.5 || Median(v) != 2.5 || Median(v[:3]) != 3 || math.Abs(StdDev(v)-1.2909944) > 1e-6 {
		t.Errorf("mean %g, median %g, deviation %g", Mean(v), Median(v), StdDev(v))
	}
	if StdDev(v[:1]) != 0 || StdDev(nil) != 0 || Mean(nil) != 0 || Median(nil) != 0 {
		t.Error("few values")
	}
	if _, _, ok := MedianInterval(v); ok {
		t.Error("an interval of four values")
	}
	many := make([]float64, 40)
	for i := range many {
		many[i] = float64(i % 10)
	}
	lo, hi, ok := MedianInterval(many)
	if m := Median(many); !ok || lo > m || hi < m || lo < 1 || hi > 8 {
		t.Errorf("interval %g to %g", lo, hi)
	}
}

// sampleRecord has the values of a row of llama-bench's documentation.
func sampleRecord() Record {
	return Record{
		ModelType: "qwen2 7B Q4_K - Medium", ModelSize: 4677120000, ModelParams: 7615616512, Backends: "CUDA", GPULayers: -1,
		Batch: defaultBatch, TypeK: "f16", TypeV: "f16", Devices: "auto", Prompt: 512, AvgTS: 7340.2, StdDevTS: 23.449,
		BuildCommit: "8cf427ff", SamplesNS: []int64{1}, SamplesTS: []float64{1},
	}
}

// The table is llama-bench's, to the byte.
func TestMarkdown(t *testing.T) {
	r, s := sampleRecord(), sampleRecord()
	s.Prompt, s.Gen, s.Depth, s.AvgTS, s.StdDevTS = 0, 128, 512, 116.71, 0.6
	want := `| model                          |       size |     params | backend    | ngl |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | --------------: | -------------------: |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  -1 |           pp512 |      7340.20 ± 23.45 |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  -1 |    tg128 @ d512 |        116.71 ± 0.60 |

build: 8cf427ff (0)
`
	if got := render(t, "md", r, s); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	r.Batch, r.TypeK, r.Devices = 64, "f32", "llvmpipe"
	head, _, _ := strings.Cut(render(t, "md", r), "\n")
	for _, c := range []string{" n_batch |", " type_k |", " dev          |"} {
		if !strings.Contains(head, c) {
			t.Errorf("no column %q in %s", c, head)
		}
	}
}

func render(t *testing.T, format string, records ...Record) string {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(format, &b, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFormats(t *testing.T) {
	r := sampleRecord()
	r.CPUInfo = `the "fast" one`
	var list []Record
	if err := json.Unmarshal([]byte(render(t, "json", r, r)), &list); err != nil || len(list) != 2 || !reflect.DeepEqual(list[1], r) {
		t.Errorf("json: %v", err)
	}
	if got := render(t, "json"); got != "[]\n" {
		t.Errorf("json without records: %q", got)
	}
	lines := strings.Split(strings.TrimSpace(render(t, "jsonl", r, r)), "\n")
	var one Record
	if err := json.Unmarshal([]byte(lines[1]), &one); err != nil || len(lines) != 2 || !reflect.DeepEqual(one, r) {
		t.Errorf("jsonl: %v", err)
	}
	lines = strings.Split(strings.TrimSpace(render(t, "csv", r, r)), "\n")
	if len(lines) != 3 || lines[1] != lines[2] || !strings.HasPrefix(lines[0], "build_commit,build_number,cpu_info,gpu_info,backends,model_filename,model_type,") {
		t.Errorf("csv: %q", lines)
	}
	if !strings.Contains(lines[1], `"the ""fast"" one"`) || strings.Contains(lines[0], "samples") {
		t.Errorf("csv: %s", lines[1])
	}
	if _, err := NewWriter("xml", nil, false); err == nil {
		t.Error("xml is a format")
	}
}

func TestFileType(t *testing.T) {
	for in, want := range map[string]string{
		"F32": "all F32", "F16": "F16", "Q8_0": "Q8_0", "Q4_K_M": "Q4_K - Medium", "Q5_K_S": "Q5_K - Small", "Q3_K_L": "Q3_K - Large", "Q6_K": "Q6_K", "IQ3_S": "IQ3_S",
	} {
		if got := fileType(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if got := clean("a|b\x1b"); got != "a?b?" {
		t.Errorf("clean: %q", got)
	}
}

func TestRun(t *testing.T) {
	e, err := engine.Open(engine.Config{Data: demo.Model(), Name: demo.Name, Backend: engine.Reference, Context: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	calls := 0
	opt := Options{Repetitions: 3, Seed: 1, Progress: func(i, of int, took time.Duration) { calls++ }}
	r, err := Run(t.Context(), e, Test{Prompt: 4, Gen: 2, Depth: 3}, opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Samples) != 3 || calls != 3 || !r.Warm || r.Cold <= 0 || r.Prefill <= 0 {
		t.Errorf("%+v after %d calls", r, calls)
	}
	total := time.Duration(0)
	for _, d := range r.Samples {
		total += d
	}
	if r.Host < 0 || r.Host > total || r.Prefill > total || r.PerSecond()[0] <= 0 {
		t.Errorf("host %v and prefill %v of %v", r.Host, r.Prefill, total)
	}
	x := NewRecord(e, Setup{Model: "demo.gguf", Backend: engine.Reference, KV: "f16"}, r)
	if x.ModelType != "qwen35moe 12M Q8_0" || x.ModelParams != 11571760 || x.Backends != "Reference" || x.AvgTS <= 0 || x.MinTS > x.MedianTS || x.MaxTS < x.MedianTS || len(x.ShaderSet) != 12 {
		t.Errorf("%+v", x)
	}
	if _, err := Run(t.Context(), e, Test{Prompt: 17}, opt); err == nil {
		t.Error("a test larger than the context runs")
	}
	// The session of a failed test is closed, so that the next can run.
	if _, err := Run(t.Context(), e, Test{Gen: 1}, Options{Repetitions: 1, NoWarmup: true}); err != nil {
		t.Error(err)
	}
	if _, err := Run(t.Context(), e, Test{}, opt); err == nil {
		t.Error("a test of nothing runs")
	}
}
