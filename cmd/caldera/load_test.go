package main

import (
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// The line of loading tells bytes, share, rate and device, whatever the numbers.
func TestLoadLine(t *testing.T) {
	for _, c := range []struct {
		p    engine.Progress
		took time.Duration
		want string
	}{
		{engine.Progress{Done: 3 << 29, Total: 2 << 30, Device: "gpu"}, 3 * time.Second, "loading m.gguf to gpu: 1.50 GiB of 2.00 GiB, 75 %, 512.00 MiB/s"},
		{engine.Progress{Done: 1999, Total: 2000, Device: "gpu"}, time.Second, "loading m.gguf to gpu: 1.95 KiB of 1.95 KiB, 99 %, 1.95 KiB/s"},
		{engine.Progress{Done: 2000, Total: 2000, Device: "gpu"}, 0, "loading m.gguf to gpu: 1.95 KiB of 1.95 KiB, 100 %, 0 B/s"},
		{engine.Progress{Device: "a\x1b[2Jb"}, time.Second, `loading m.gguf to a\x1b[2Jb: 0 B of 0 B, 100 %, 0 B/s`},
	} {
		if got := loadLine("m.gguf", c.p, c.took); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
