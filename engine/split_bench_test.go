package engine_test

import (
	"context"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// deep has as many layers as the 35B-A3B.
var deep = func() synth { s := t35; s.layers, s.context = 40, 4096; return s }()

// BenchmarkBegin is what beginning a step of 40 layers takes of the host: forming it, writing its step buffers and submitting what the first
// device does. The divided model has 20 layers on each of two devices.
func BenchmarkBegin(b *testing.B) {
	d := oneDevice(b)
	for _, r := range []rig{d, together([2]rig{d, d})} {
		b.Run(r.name, func(b *testing.B) {
			cfg := deep.config(b)
			cfg = r.config(cfg)
			cfg.Check, cfg.Context = false, 2048
			e, err := engine.Open(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			s, err := e.NewSession()
			if err != nil {
				b.Fatal(err)
			}
			one := []*engine.Session{s}
			token := func(int, engine.Candidate) int32 { return 7 }
			if err := e.Decode(context.Background(), one, 8, token); err != nil {
				b.Fatal(err)
			}
			before, steps := s.Times, s.Steps
			for b.Loop() {
				if s.Len() > 2000 {
					s.Reset()
				}
				if err := e.Decode(context.Background(), one, 1, token); err != nil {
					b.Fatal(err)
				}
			}
			t, n := s.Times.Minus(before), float64(s.Steps-steps)
			b.ReportMetric(float64((t.Form+t.Write+t.Submit).Nanoseconds())/1e3/n, "µs/begin")
			b.ReportMetric(float64(t.Wait.Nanoseconds())/1e3/n, "µs/wait")
		})
	}
}
