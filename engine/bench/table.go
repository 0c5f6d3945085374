package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Writer prints records, each as soon as it is there.
type Writer interface {
	Write(r Record) error
	Close() error // ends the output
}

// Formats are the output formats.
func Formats() []string { return []string{"md", "json", "jsonl", "csv"} }

// NewWriter returns the writer of a format. The table gets a column for the batch where batches vary.
func NewWriter(format string, w io.Writer, batches bool) (Writer, error) {
	switch format {
	case "md":
		return &markdown{w: w, batches: batches}, nil
	case "json":
		return &jsonArray{w: w}, nil
	case "jsonl":
		return jsonLines{w}, nil
	case "csv":
		return &csv{w: w}, nil
	}
	return nil, fmt.Errorf("output format %q: use %s", format, strings.Join(Formats(), ", "))
}

// A column of the table; a negative width aligns to the left.
type column struct {
	name  string
	width int
	value func(r *Record) string
}

// defaultBatch is the batch whose column is left out.
const defaultBatch = 512

// columns are those of llama-bench's table, with its widths; those that are not always shown depend on the
// first record.
func columns(r *Record, batches bool) []column {
	cols := []column{
		{"model", -30, func(r *Record) string { return r.ModelType }},
		{"size", 10, func(r *Record) string {
			if r.ModelSize < 1<<30 {
				return fmt.Sprintf("%.2f MiB", float64(r.ModelSize)/(1<<20))
			}
			return fmt.Sprintf("%.2f GiB", float64(r.ModelSize)/(1<<30))
		}},
		{"params", 10, func(r *Record) string {
			if r.ModelParams < 1e9 {
				return fmt.Sprintf("%.2f M", float64(r.ModelParams)/1e6)
			}
			return fmt.Sprintf("%.2f B", float64(r.ModelParams)/1e9)
		}},
		{"backend", -10, func(r *Record) string { return r.Backends }},
	}
	add := func(show bool, name string, width int, value func(r *Record) string) {
		if show {
			cols = append(cols, column{name, width, value})
		}
	}
	add(r.GPULayers != 0, "ngl", 3, func(r *Record) string { return strconv.Itoa(r.GPULayers) })
	add(r.GPULayers == 0, "threads", 7, func(r *Record) string { return strconv.Itoa(r.Threads) })
	add(batches || r.Batch != defaultBatch, "n_batch", 7, func(r *Record) string { return strconv.Itoa(r.Batch) })
	add(r.TypeK != "f16", "type_k", 6, func(r *Record) string { return r.TypeK })
	add(r.TypeV != "f16", "type_v", 6, func(r *Record) string { return r.TypeV })
	add(r.Devices != "auto", "dev", -12, func(r *Record) string { return clean(r.Devices) })
	add(true, "test", 15, func(r *Record) string { return r.Test().Name() })
	add(true, "t/s", 20, func(r *Record) string { return fmt.Sprintf("%.2f ± %.2f", r.AvgTS, r.StdDevTS) })
	return cols
}

// pad brings text to a width in characters; a negative width aligns to the left.
func pad(s string, width int) string {
	left := width < 0
	if left {
		width = -width
	}
	fill := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if left {
		return s + fill
	}
	return fill + s
}

// writeTable writes a Markdown table whose first row is the head. The first left columns are aligned to the left.
func writeTable(b *strings.Builder, left int, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i := range min(left, len(widths)) {
		widths[i] = -widths[i]
	}
	for k, r := range rows {
		for i, cell := range r {
			fmt.Fprintf(b, "| %s ", pad(cell, widths[i]))
		}
		b.WriteString("|\n")
		if k > 0 {
			continue
		}
		for _, w := range widths {
			if w < 0 {
				fmt.Fprintf(b, "| %s ", strings.Repeat("-", -w))
			} else {
				fmt.Fprintf(b, "| %s: ", strings.Repeat("-", w-1))
			}
		}
		b.WriteString("|\n")
	}
}

// markdown prints llama-bench's table.
type markdown struct {
	w       io.Writer
	batches bool
	cols    []column
	last    Record
}

func (m *markdown) Write(r Record) error {
	var b strings.Builder
	if m.cols == nil {
		m.cols = columns(&r, m.batches)
		b.WriteString("|")
		for _, c := range m.cols {
			fmt.Fprintf(&b, " %s |", pad(c.name, c.width))
		}
		b.WriteString("\n|")
		for _, c := range m.cols {
			if c.width < 0 {
				fmt.Fprintf(&b, " %s |", strings.Repeat("-", -c.width))
			} else {
				fmt.Fprintf(&b, " %s: |", strings.Repeat("-", c.width-1))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("|")
	for _, c := range m.cols {
		fmt.Fprintf(&b, " %s |", pad(c.value(&r), c.width))
	}
	b.WriteString("\n")
	m.last = r
	_, err := io.WriteString(m.w, b.String())
	return err
}

func (m *markdown) Close() error {
	if m.cols == nil {
		return nil
	}
	_, err := fmt.Fprintf(m.w, "\nbuild: %s (%d)\n", m.last.BuildCommit, m.last.BuildNumber)
	return err
}

// jsonArray prints an array of objects, each when it is there.
type jsonArray struct {
	w    io.Writer
	some bool
}

func (j *jsonArray) Write(r Record) error {
	b, err := json.MarshalIndent(r, "  ", "  ")
	if err != nil {
		return err
	}
	before := ",\n  "
	if !j.some {
		before, j.some = "[\n  ", true
	}
	_, err = fmt.Fprintf(j.w, "%s%s", before, b)
	return err
}

func (j *jsonArray) Close() error {
	end := "\n]\n"
	if !j.some {
		end = "[]\n"
	}
	_, err := io.WriteString(j.w, end)
	return err
}

// jsonLines prints one object a line.
type jsonLines struct{ w io.Writer }

func (j jsonLines) Write(r Record) error { return json.NewEncoder(j.w).Encode(r) }
func (jsonLines) Close() error           { return nil }

// csv prints a header and one row a record, every value in quotes as llama-bench does. Lists are left out.
type csv struct {
	w    io.Writer
	some bool
}

func (c *csv) Write(r Record) error {
	var names, values []string
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Slice || f.Kind() == reflect.Pointer {
			continue
		}
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		names = append(names, name)
		values = append(values, `"`+strings.ReplaceAll(csvValue(f), `"`, `""`)+`"`)
	}
	if !c.some {
		c.some = true
		if _, err := fmt.Fprintln(c.w, strings.Join(names, ",")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(c.w, strings.Join(values, ","))
	return err
}

// csvValue renders a value as llama-bench does.
func csvValue(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case float64:
		return fmt.Sprintf("%.6f", x)
	case bool:
		if x {
			return "1"
		}
		return "0"
	default:
		return fmt.Sprint(x)
	}
}

func (c *csv) Close() error { return nil }
