package load

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Write prints a report as md (tables), json, jsonl (one line) or csv (a head and a row, without the lists).
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "md":
		_, err := io.WriteString(w, r.markdown())
		return err
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "jsonl":
		return json.NewEncoder(w).Encode(r)
	case "csv":
		var names, values []string
		for _, f := range r.fields() {
			names, values = append(names, f.name), append(values, text(f.value))
		}
		c := csv.NewWriter(w)
		return c.WriteAll([][]string{names, values})
	}
	return fmt.Errorf("output format %q: use md, json, jsonl or csv", format)
}

// text renders a value for csv.
func text(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(x, 'f', 6, 64)
	case bool:
		if x {
			return "1"
		}
		return "0"
	}
	return fmt.Sprint(v)
}

// markdown is the report as tables in llama-bench's manner.
func (r *Report) markdown() string {
	var b strings.Builder
	o := &r.Options
	load := fmt.Sprintf("%d clients", o.Concurrency)
	if o.Rate > 0 {
		load = fmt.Sprintf("%g req/s", o.Rate)
	}
	prompt := o.Prompt.String()
	if len(o.Dataset) > 0 {
		prompt = fmt.Sprintf("%d given", len(o.Dataset))
	}
	head := []string{"model", "endpoint", "load", "prompt", "output", "time", "completed", "failed", "req/s", "in t/s", "out t/s"}
	row := []string{cell(r.Model), o.Endpoint, load, prompt, o.Output.String(), fmt.Sprintf("%.1f s", r.Duration.Seconds()),
		strconv.Itoa(r.Completed), strconv.Itoa(r.Failed), rate(r.perSecond(r.Completed)), rate(r.perSecond(r.Input)), rate(r.perSecond(r.Output))}
	if len(o.Goodput) > 0 {
		head, row = append(head, "good req/s"), append(row, rate(r.goodput()))
	}
	writeTable(&b, 5, [][]string{head, row})

	rows := [][]string{{"ms", "count", "mean", "median", "p90", "p95", "p99", "max"}}
	for _, m := range r.latencies() {
		s := m.summary
		if s.N == 0 || m.name == "lag" && o.Rate == 0 {
			continue
		}
		rows = append(rows, []string{m.title + " (" + m.name + ")", strconv.Itoa(s.N), fmt.Sprintf("%.2f ± %.2f", s.Mean, s.Std),
			rate(s.P50), rate(s.P90), rate(s.P95), rate(s.P99), rate(s.Max)})
	}
	if len(rows) > 1 {
		b.WriteByte('\n')
		writeTable(&b, 1, rows)
	}
	b.WriteByte('\n')
	writeTable(&b, 1, r.outcomeRows())
	if rows := r.serverRows(); len(rows) > 1 {
		b.WriteByte('\n')
		writeTable(&b, 1, rows)
	}
	if r.Build != "" {
		fmt.Fprintf(&b, "\nbuild: %s\n", cell(r.Build))
	}
	return b.String()
}

// outcomeRows say what became of the requests.
func (r *Report) outcomeRows() [][]string {
	rows := [][]string{{"requests", "count"}}
	for _, x := range []struct {
		what   string
		n      int
		always bool
	}{
		{"begun", r.Begun, true},
		{"completed", r.Completed, true},
		{"cut by the client once sent", r.CutSent, false},
		{"cut by the client in prefill", r.CutPrefill, false},
		{"cut by the client in the stream", r.CutStream, false},
		{"malformed, and told so", r.Expected, false},
		{"refused (429, 503)", r.Refused, false},
		{"closed by the shutdown", r.Closed, false},
		{"unanswered in the shutdown", r.Unanswered, false},
		{"aborted with the run", r.Aborted, false},
		{"failed on this machine", r.Local, false},
		{"due but not sent", r.Unsent, false},
	} {
		if x.always || x.n > 0 {
			rows = append(rows, []string{x.what, strconv.Itoa(x.n)})
		}
	}
	var kinds []string
	for kind := range r.faultKinds {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		rows = append(rows, []string{"fault: " + kind, strconv.Itoa(r.faultKinds[kind])})
	}
	return rows
}

// serverRows are the gauges that are known.
func (r *Report) serverRows() [][]string {
	rows := [][]string{{"server", "start", "most", "end", "growth", "late growth"}}
	for i := range r.Server {
		g := &r.Server[i]
		if math.IsNaN(g.Start) && math.IsNaN(g.Most) && math.IsNaN(g.End) {
			continue
		}
		row := []string{g.Name}
		for _, v := range []float64{g.Start, g.Most, g.End, g.Growth(), g.LateGrowth()} {
			switch {
			case math.IsNaN(v):
				row = append(row, "?")
			case strings.HasSuffix(g.Name, "_bytes"):
				row = append(row, fmt.Sprintf("%.2f MiB", v/(1<<20)))
			default:
				row = append(row, strconv.FormatFloat(v, 'g', 4, 64))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// rate renders a number that may not be known.
func rate(v any) string {
	if x, ok := number(v); ok {
		return fmt.Sprintf("%.2f", x)
	}
	return "?"
}

// cell keeps what a server says from breaking a table or driving a terminal.
func cell(s string) string { return strings.ReplaceAll(clip(s), "|", "?") }

// writeTable writes a Markdown table whose first row is the head. The first left columns are aligned to the left.
func writeTable(b *strings.Builder, left int, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for k, r := range rows {
		for i, c := range r {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i < left {
				c += fill
			} else {
				c = fill + c
			}
			b.WriteString("| " + c + " ")
		}
		b.WriteString("|\n")
		if k > 0 {
			continue
		}
		for i, w := range widths {
			if i < left {
				b.WriteString("| " + strings.Repeat("-", w) + " ")
			} else {
				b.WriteString("| " + strings.Repeat("-", w-1) + ": ")
			}
		}
		b.WriteString("|\n")
	}
}
