package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/oracle"
)

// commandHere runs a command line inside the test, in the folder and environment as they are.
func commandHere(t *testing.T, args ...string) result {
	t.Helper()
	var out, errw bytes.Buffer
	code := execute(t.Context(), args, strings.NewReader(""), &out, &errw)
	return result{code, out.String(), errw.String()}
}

// negative lists the files of the container's acceptance corpus.
func negative(t testing.TB) []string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(oracle.Root(), "gguf", "testdata", "gguf-neg", "*.gguf"))
	if len(files) != 85 {
		t.Fatalf("%d files of the corpus, want 85", len(files))
	}
	return files
}

// A value is shown as what it is: the numbers of JSON where it has them, the shortest that read back as the same.
func TestInspectValues(t *testing.T) {
	isolate(t)
	w := new(gguf.Writer)
	for key, v := range map[string]any{
		"a.float": float32(0.1), "a.nan": []float64{0.5, math.NaN(), math.Inf(1)}, "a.big": uint64(1<<64 - 1), "a.neg": int8(-7), "a.bools": []bool{true, false},
		"a.text": "<|im_end|>\n", "a.long": []uint16{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "a.none": []string{}, "a.strings": []string{"x", "<y>"},
	} {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteFile("values.gguf"); err != nil {
		t.Fatal(err)
	}
	for full, want := range map[bool]map[string]string{
		false: {"a.float": `0.1`, "a.nan": `[0.5,"NaN","+Inf"]`, "a.big": `18446744073709551615`, "a.neg": `-7`, "a.bools": `[true,false]`,
			"a.text": `"<|im_end|>\n"`, "a.long": `[1,2,3,4,5,6,7,8]`, "a.none": `[]`, "a.strings": `["x","<y>"]`},
		true: {"a.long": `[1,2,3,4,5,6,7,8,9,10]`},
	} {
		r := commandHere(t, "inspect", "values.gguf", "--json", fmt.Sprintf("--full=%v", full))
		var x struct {
			Metadata []struct {
				Key   string
				Value json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(r.out), &x); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, m := range x.Metadata {
			var b bytes.Buffer
			if err := json.Compact(&b, m.Value); err != nil {
				t.Fatal(err)
			}
			if w, ok := want[m.Key]; ok {
				seen++
				if b.String() != w {
					t.Errorf("full %v: %s is %s, want %s", full, m.Key, &b, w)
				}
			}
		}
		if seen != len(want) {
			t.Errorf("full %v: %d of %d values", full, seen, len(want))
		}
	}
}

// An incomplete file says how much of it is here, and a whole one does not.
func TestInspectIncomplete(t *testing.T) {
	isolate(t)
	whole := demo.Model()
	f, err := gguf.OpenHeaderBytes("demo", whole)
	if err != nil {
		t.Fatal(err)
	}
	_, need := f.Extent(0)
	start := f.DataStart(0)
	for _, n := range []int64{start, start + 1<<20, need - 1} {
		if err := os.WriteFile("part.gguf", whole[:n], 0o666); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%s of %s are here (%d of %d bytes, %d %%)", size(n), size(need), n, need, 100*n/need)
		r := commandHere(t, "inspect", "part.gguf")
		if r.code != exitDone || !strings.Contains(r.out, want) || !strings.Contains(r.out, "token_embd.weight") ||
			!strings.Contains(r.err, "the model is incomplete: "+want) {
			t.Errorf("%d bytes: %+v, want %q", n, r, want)
		}
		x := decode[inspectResult](t, commandHere(t, "inspect", "part.gguf", "--json", "-q"))
		if x.Size != n || x.Expected != need || len(x.Missing) != 1 {
			t.Errorf("%d bytes: %d of %d, missing %q", n, x.Size, x.Expected, x.Missing)
		}
	}
	if err := os.WriteFile("part.gguf", whole[:need], 0o666); err != nil {
		t.Fatal(err)
	}
	if r := commandHere(t, "inspect", "part.gguf"); r.code != exitDone || strings.Contains(r.out, "incomplete") || r.err != "" {
		t.Errorf("whole: %+v", r)
	}
	// A header that is cut off cannot be shown, and the message says where it ends.
	if err := os.WriteFile("part.gguf", whole[:start/2], 0o666); err != nil {
		t.Fatal(err)
	}
	if r := commandHere(t, "inspect", "part.gguf"); r.code != exitModel || !strings.Contains(r.err, "part.gguf") || !strings.Contains(r.err, "the file has") {
		t.Errorf("half a header: %+v", r)
	}
}

// inspectCost is the most that inspecting a file of n bytes may allocate: its metadata and tables in Go and as text.
func inspectCost(n int) uint64 { return 4<<20 + 512*uint64(n) }

// No file of the negative corpus, and no beginning of a sound file, costs more than 32 MiB: looked at, or opened as
// a model.
func TestHostileCost(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(oracle.Root(), "testdata", "oracle", "qwen35moe-q4_0", "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.OpenHeaderBytes("whole", whole)
	if err != nil {
		t.Fatal(err)
	}
	type input struct {
		name string
		data []byte
		cut  bool
	}
	var inputs []input
	for _, path := range negative(t) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, input{filepath.Base(path), data, false})
	}
	isolate(t)
	step := int64(16)
	if testing.Short() {
		step = 1024
	}
	for n := int64(0); n < f.DataStart(0)+256; n += step {
		inputs = append(inputs, input{fmt.Sprintf("the first %d bytes", n), whole[:n], true})
	}
	worst := uint64(0)
	for i, in := range inputs {
		if err := os.WriteFile("x.gguf", in.data, 0o666); err != nil {
			t.Fatal(err)
		}
		for k, args := range [][]string{{"inspect", "x.gguf"}, {"inspect", "--json", "--full", "x.gguf"}, {"run", "-m", "x.gguf", "--backend", "reference", "x"}} {
			if in.cut && k != i%3 {
				continue // one of the three for each length
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			code := execute(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard)
			runtime.ReadMemStats(&after)
			n := after.TotalAlloc - before.TotalAlloc
			if worst = max(worst, n); n > 32<<20 {
				t.Errorf("%s: %v allocated %d bytes", in.name, args, n)
			}
			if code != exitModel && (args[0] == "run" || code != exitDone) {
				t.Errorf("%s: %v exits with %d", in.name, args, code)
			}
		}
	}
	t.Logf("%d files, at most %d bytes allocated", len(inputs), worst)
}

// hugeFile is a file of 64 GiB, nearly all of it a hole, with the demo model's metadata and a few tensors of hundreds
// of megabytes. The second has only a quarter of its data.
func hugeFile(t *testing.T) (whole, part string) {
	t.Helper()
	const tensors, rows = 32, 1 << 18
	w := new(gguf.Writer)
	f, err := gguf.OpenHeaderBytes("demo", demo.Model())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for key, v := range f.KeyValues() {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	dims := []uint64{2048, rows}
	for i := range tensors {
		err := w.AddTensorFunc(fmt.Sprintf("blk.%d.huge.weight", i), quant.F32, dims, func(out io.Writer) error {
			out.Write(make([]byte, 2<<20)) // pushes the header through the writer's buffer
			return errors.New("the rest is a hole")
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var header bytes.Buffer
	if _, err := w.WriteTo(&header); err == nil || header.Len() == 0 {
		t.Fatalf("%d bytes, %v", header.Len(), err)
	}
	end, err := w.Size()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	whole, part = filepath.Join(dir, "whole.gguf"), filepath.Join(dir, "part.gguf")
	for path, n := range map[string]int64{whole: end, part: end / 4} {
		write(t, path, header.String())
		if err := os.Truncate(path, n); err != nil {
			t.Skip(err)
		}
	}
	return whole, part
}

// peakGrowth is by how many bytes the process's resident memory, mapped files included, grew at most while f ran; 0 where
// the system does not tell.
func peakGrowth(t *testing.T, f func()) int64 {
	t.Helper()
	field := func(name string) int64 {
		status, _ := os.ReadFile("/proc/self/status")
		_, rest, _ := strings.Cut(string(status), name+":")
		var n int64
		fmt.Sscan(rest, &n)
		return n << 10
	}
	debug.FreeOSMemory()
	before := field("VmRSS")
	err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // the peak is what is resident now
	f()
	if err != nil || before == 0 {
		return 0
	}
	return field("VmHWM") - before
}

// A file of any size is shown at once, in memory that depends on its header.
func TestInspectHuge(t *testing.T) {
	whole, part := hugeFile(t)
	isolate(t)
	for path, want := range map[string]string{whole: "blk.31.huge.weight", part: "16.00 GiB of 64.00 GiB are here"} {
		for _, args := range [][]string{{"inspect", path}, {"inspect", path, "--json"}} {
			var r result
			start := time.Now()
			grown := peakGrowth(t, func() { r = commandHere(t, args...) })
			t.Logf("%v: %.2f s, resident memory grew by at most %d KiB", args, time.Since(start).Seconds(), grown>>10)
			if r.code != exitDone || len(args) == 2 && !strings.Contains(r.out, want) {
				t.Errorf("%v: %+v", args, r)
			}
			if grown > 32<<20 {
				t.Errorf("%v: resident memory grew by %d bytes", args, grown)
			}
		}
	}
}

// FuzzInspect shows any bytes as a file, in every form.
func FuzzInspect(f *testing.F) {
	for _, path := range negative(f) {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	models, _ := filepath.Glob(filepath.Join(oracle.Dir(), "*", "model.gguf"))
	for _, path := range models {
		m, err := gguf.OpenHeader(path)
		if err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:m.DataStart(0)])
		m.Close()
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := gguf.OpenHeaderBytes("fuzz", data)
		if err != nil {
			return
		}
		defer m.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, full := range []bool{false, true} {
			r := newInspectResult(m, full)
			var text, machine bytes.Buffer
			if err := printInspect(&text, r); err != nil {
				t.Fatal(err)
			}
			if i := strings.IndexFunc(text.String(), func(c rune) bool { return c < ' ' && c != '\n' || c == 0x7f }); i >= 0 {
				t.Fatalf("a control character at %d of %q", i, text.String())
			}
			a := newApp(nil, &machine, io.Discard)
			if err := a.printJSON(r); err != nil {
				t.Fatal(err)
			}
			if !json.Valid(machine.Bytes()) {
				t.Fatalf("no JSON: %s", &machine)
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > inspectCost(len(data)) {
			t.Fatalf("%d bytes: %d allocated", len(data), n)
		}
	})
}
