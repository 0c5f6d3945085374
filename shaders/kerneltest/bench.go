package kerneltest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// Bench measures ops on every device under the profile that the engine picks for it, each as a sub-benchmark. An
// iteration is a replay of copies of the ops; bytes is what one copy reads of its weights, which go test turns into
// a rate. Weights and inputs are what fill says.
func Bench(b *testing.B, name string, copies int, bytes int64, fill map[*shaders.Buffer][]byte, ops ...shaders.Op) {
	set := open()
	if set.err != nil {
		b.Skipf("no Vulkan device to measure on: %v", set.err)
	}
	c := Case{Ops: ops}
	g := &scheduler.Graph{Step: c.separate()}
	for range copies {
		for _, o := range ops {
			g.Add(name, o)
		}
	}
	for _, r := range set.rigs {
		if r.again || r.die.Kernels.LanesPerRow != r.die.Device.Profile().Lanes {
			continue
		}
		if slices.ContainsFunc(ops, func(o shaders.Op) bool {
			_, err := o.Lower(&r.die.Kernels)
			return errors.Is(err, shaders.ErrNotPacked)
		}) {
			continue
		}
		b.Run(name+"/"+r.name, func(b *testing.B) {
			for _, buf := range g.Buffers() {
				if buf.Kind == shaders.StepInput {
					continue
				}
				if err := r.die.Allocate(buf, true); err != nil {
					b.Fatal(err)
				}
				defer r.die.Free(buf)
				if data := fill[buf]; data != nil {
					if err := r.die.Upload(buf.View(), data); err != nil {
						b.Fatal(err)
					}
				}
			}
			p, err := compile(g, r.die)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			if err := p.Write(g.Step.View(), fill[g.Step]); err != nil {
				b.Fatal(err)
			}
			if err := p.Replay(); err != nil { // compiles the kernels
				b.Fatal(err)
			}
			b.SetBytes(bytes * int64(copies))
			best := time.Duration(1 << 62)
			for b.Loop() {
				start := time.Now()
				if err := p.Replay(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(bytes)*float64(copies)/1e9/best.Seconds(), "GB/s-best")
		})
	}
}
