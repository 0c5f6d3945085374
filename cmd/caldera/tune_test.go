package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What was kept is a table; if that is nothing, a line says so without figures that look like a loss.
func TestPrintTuning(t *testing.T) {
	var out bytes.Buffer
	a := newApp(nil, &out, &out)
	r := tuneReport{
		Uses: []tunedUse{
			{Kernel: "matmul", Type: "Q8_0", In: 256, Scheme: "row", Group: 8, Tokens: []int{1, 4}, Plain: true, Gain: 1},
			{Kernel: "matmul", Type: "Q4_K", In: 256, Scheme: "spread", Group: 8, Tokens: []int{1, 4}, Gain: 1.2},
		},
		Steps: []tunedStep{{Rows: 1, Plain: 820 * time.Microsecond, Tuned: time.Millisecond}}, Refused: []string{"all together"}, Path: "dir/file", Took: 90 * time.Second,
	}
	if err := a.printTuning(r); err != nil {
		t.Fatal(err)
	}
	if want := "not used: all together\nnothing faster was found in 90 s: the model's kernels go their plain ways\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	r.Uses[0].Plain = false
	r.Uses[1].Kept = true
	if err := a.printTuning(r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GAIN", "1.00  not used\n", "1.20  \n", "0.82\n", "not used: all together\n", "kept in dir/file after 90 s\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}

// An interrupt leaves no file, and says so.
func TestTuneInterrupted(t *testing.T) {
	needDevice(t)
	isolate(t)
	dir := t.TempDir()
	t.Setenv("CALDERA_CACHE_DIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errw bytes.Buffer
	code := execute(ctx, []string{"tune", "--rows", "1"}, strings.NewReader(""), &out, &errw)
	if left, _ := filepath.Glob(filepath.Join(dir, "tuning-*")); code != exitInterrupted || !strings.Contains(errw.String(), "nothing of this was kept") || out.Len() > 0 || len(left) > 0 {
		t.Errorf("code %d, files %v, %s%s", code, left, out.String(), errw.String())
	}
}

// A model without the types that take whole numbers is not told of as if it had them.
func TestNoteInputs(t *testing.T) {
	r := command(t, "", "run", "--backend", "reference", "--activations", "int8", "-n", "1", "Hi")
	if r.code != exitDone || strings.Contains(r.err, "inputs:") || !strings.Contains(r.err, "loaded in") {
		t.Errorf("%+v", r)
	}
}
