package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

func TestWantsColor(t *testing.T) {
	tests := []struct {
		mode     string
		terminal bool
		noColor  string
		term     string
		want     bool
	}{
		{"auto", true, "", "xterm", true},
		{"auto", true, "1", "xterm", false},
		{"auto", true, "", "dumb", false},
		{"auto", false, "", "xterm", false},
		{"always", false, "1", "dumb", true},
		{"never", true, "", "xterm", false},
	}
	for _, tt := range tests {
		t.Setenv("NO_COLOR", tt.noColor)
		t.Setenv("TERM", tt.term)
		if got := wantsColor(tt.mode, tt.terminal); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"blk.0.attn": "blk.0.attn", `a "b" ñ 漢`: `a "b" ñ 漢`, "a\x1b[2Jb\n": `a\x1b[2Jb\n`, "\xff": `\xff`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestTextWriter(t *testing.T) {
	var b bytes.Buffer
	if err := (textWriter{&b, true}).write("a\x1b[2J\r\tb\n\u0085ü"); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "a[2J\tb\nü"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Without a terminal a progress is rare plain lines, and the last state once.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b}
	p.update("1 of %d", 3)
	p.update("2 of 3")
	p.update("3 of 3")
	p.done()
	if got, want := b.String(), "1 of 3\n3 of 3\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.Reset()
	p = &progress{w: &b, next: time.Now().Add(time.Hour)}
	p.update("quick")
	p.done()
	if b.Len() > 0 {
		t.Errorf("a short task shows %q", b.String())
	}
	p = &progress{w: &b, terminal: true, width: 8}
	p.update("1234567890")
	p.done()
	if got, want := b.String(), "\r\x1b[K1234567\r\x1b[K"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A file appears whole or not at all.
func TestWriteFile(t *testing.T) {
	isolate(t)
	a := newApp(nil, io.Discard, io.Discard)
	if err := a.writeFile("x.f32", func(w io.Writer) error { return writeFloats(w, []float32{1, -2}) }); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("x.f32")
	if want := "\x00\x00\x80\x3f\x00\x00\x00\xc0"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	broken := errors.New("broken")
	err = a.writeFile("x.f32", func(w io.Writer) error {
		_ = writeFloats(w, make([]float32, 1<<20))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	if again, _ := os.ReadFile("x.f32"); string(again) != string(got) {
		t.Error("a failed write changed the file")
	}
	if entries, _ := os.ReadDir("."); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.50 KiB", 3 << 30: "3.00 GiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{999: "999", 1500: "1.50 K", 11571760: "11.57 M", 35e9: "35 B"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestWorstOps(t *testing.T) {
	inf := math.Inf(1)
	got := worstOps([]engine.OpCheck{
		{Op: "a", Kernel: "matmul", Rel: 1e-6, Tol: 1e-5, OK: true},
		{Op: "b", Kernel: "rope", Rel: 1e-3, Tol: inf, OK: true},
		{Op: "c", Kernel: "matmul", Rel: 1e-4, Tol: 1e-5},
		{Op: "d", Kernel: "matmul", Rel: 9e-6, Tol: 1e-5, OK: true},
		{Op: "e", Kernel: "rope", Rel: 2e-3, Tol: inf, OK: true},
	})
	var ops []string
	for _, c := range got {
		ops = append(ops, c.Op)
	}
	if s := strings.Join(ops, " "); s != "c e" {
		t.Errorf("worst ops are %s, want c e", s)
	}
	if finite(inf) != nil || finite(math.NaN()) != nil || *finite(1) != 1 {
		t.Error("finite")
	}
}
