package predict

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/bench"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/excerpt"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
)

// A sample has every class of op of the model, in the same shapes, and the first of its weights.
func TestSample(t *testing.T) {
	b := blueprint(t, nil)
	d := Generic()
	k := d.Kernels()
	s, err := newStep(b, Test{Prompt: 64}, 64, &k)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Model()
	layers := pick(s, m.Layers)
	if len(layers) < 2 || len(layers) > sampleLayers || m.Recurrent[layers[0]] == m.Recurrent[layers[len(layers)-1]] {
		t.Fatalf("layers %v are picked", layers)
	}
	sm, err := newSample(b.File(), m, layers)
	if err != nil {
		t.Fatal(err)
	}
	defer sm.file.Close()
	c := sm.model.Config
	if c.Layers != len(layers) || c.Embed != m.Embed || c.Heads != m.Heads || c.Vocab != min(m.Vocab, sampleVocab) || c.ExpertsUsed != m.ExpertsUsed ||
		c.Experts != min(m.Experts, sampleExperts*m.ExpertsUsed) || c.ExpertFFN != m.ExpertFFN || c.MTP != 0 {
		t.Errorf("the sample is %+v", c)
	}
	classes := map[string]bool{}
	g, err := b.Graph(sm.model, &k, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	all, err := scheduler.Lower(g, &k)
	if err != nil {
		t.Fatal(err)
	}
	lowered := make([][]scheduler.Lowered, len(g.Nodes))
	for _, l := range all {
		lowered[l.Node] = append(lowered[l.Node], l)
	}
	for i, n := range g.Nodes {
		classes[class(n, lowered[i])] = true
	}
	for _, n := range s.nodes {
		if !classes[class(n.Node, n.lowered)] {
			t.Errorf("the sample has no %s", class(n.Node, n.lowered))
		}
	}
	for i, l := range layers {
		for _, x := range sm.file.Tensors() {
			name, ok := excerpt.TensorName(x.Name, []int{i})
			if !ok || name == x.Name {
				continue
			}
			from, _ := b.File().Tensor("blk." + string(rune('0'+l)) + name[len("blk.0"):])
			got, err := sm.file.Data(x)
			if err != nil {
				t.Fatal(err)
			}
			want, err := b.File().Data(from)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(want, got) || m.Recurrent[l] != c.Recurrent[i] {
				t.Errorf("%s is not the beginning of layer %d's", x.Name, l)
			}
		}
	}
}

// A file without data makes up what lets rows differ.
func TestSampleOfHole(t *testing.T) {
	f, err := gguf.OpenBytes(demo.Name, demo.Model())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w gguf.Writer
	for key, v := range f.KeyValues() {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range f.Tensors() {
		if err := w.AddTensorFunc(x.Name, x.Type, x.Dims, nil); err != nil {
			t.Fatal(err)
		}
	}
	path := t.TempDir() + "/hole.gguf"
	if err := w.WriteHole(path); err != nil {
		t.Fatal(err)
	}
	b, err := engine.OpenBlueprint(engine.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	sm, err := newSample(b.File(), b.Model(), []int{0, 3})
	if err != nil {
		t.Fatal(err)
	}
	defer sm.file.Close()
	for name, zero := range map[string]bool{"token_embd.weight": false, "blk.0.attn_norm.weight": false, "blk.0.ffn_gate_inp.weight": false, "blk.1.attn_q.weight": true} {
		x, ok := sm.file.Tensor(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		data, err := sm.file.Data(x)
		if err != nil {
			t.Fatal(err)
		}
		row := data[len(data)/2:] // in the part that repeats, too
		if got := !slices.ContainsFunc(row, func(b byte) bool { return b != 0 }); got != zero {
			t.Errorf("%s: zero is %t", name, got)
		}
	}
}

// Measured rates put together are the step that was measured where the sample has all there is of the model, and with
// more layers as many times the ops of each.
func TestMeasure(t *testing.T) {
	in := instance(t)
	for _, info := range in.Devices() {
		b := blueprint(t, nil)
		k, err := b.Kernels(info)
		if err != nil {
			t.Fatal(err)
		}
		test := Test{Gen: 4, Depth: 300}
		s, err := newStep(b, test, 64, &k)
		if err != nil {
			t.Fatal(err)
		}
		sm, err := newSample(b.File(), b.Model(), pick(s, b.Model().Layers))
		if err != nil {
			t.Fatal(err)
		}
		defer sm.file.Close()
		r, err := newRig(t.Context(), b, in, info, sm)
		if err != nil {
			t.Fatal(err)
		}
		defer r.die.Close()
		if err := r.overheads(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !(r.dispatch > 0 && r.dispatch < 0.1 && r.copies > 1e7 && r.barrier >= 0) {
			t.Errorf("%s: a dispatch takes %g s, a barrier %g s, a copy %g B/s", info.Name, r.dispatch, r.barrier, r.copies)
		}
		m, err := r.run(t.Context(), s.rows, test.Context(), s.attended, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.nodes {
			n := &s.nodes[i]
			at, ok := m.node(n)
			if !ok {
				t.Fatalf("%s was not measured", n.Label())
			}
			if like := &m.step.nodes[at]; like.Name != n.Name || math.Abs(scale(n, like)-1) > 1e-9 || m.nodes[at] <= 0 {
				t.Errorf("%s: %g times %s, which took %g s", n.Label(), scale(n, like), like.Label(), m.nodes[at])
			}
		}
		e := &Estimate{}
		if err := r.estimate(t.Context(), e, s, test); err != nil {
			t.Fatal(err)
		}
		if x := e.Terms; !(x.Dispatches > 0 && x.Arithmetic+x.Bytes > 0 && x.Host >= hostTime && x.Total() < 60) {
			t.Errorf("%s: %+v", info.Name, x)
		}
	}
}

// Time is split without loss: dispatches and barriers first, then bytes, then arithmetic; and scaled by work.
func TestSplit(t *testing.T) {
	r := &rig{dispatch: 1, barrier: 2, copies: 10}
	n := &node{lowered: []scheduler.Lowered{{Barrier: true}, {}}, weights: 20, bytes: 10, share: 1}
	for _, c := range []struct {
		seconds, share float64
		want           Terms
	}{
		{10, 1, Terms{Dispatches: 2, Barriers: 2, Bytes: 3, Arithmetic: 3}}, {5, 1, Terms{Dispatches: 2, Barriers: 2, Bytes: 1}},
		{3, 1, Terms{Dispatches: 2, Barriers: 1}}, {1, 1, Terms{Dispatches: 1}}, {20, 0.5, Terms{Dispatches: 2, Barriers: 2, Bytes: 1.5, Arithmetic: 4.5}},
	} {
		var got Terms
		n.share = c.share
		if r.add(&got, n, c.seconds); got != c.want {
			t.Errorf("%g s: %+v, want %+v", c.seconds, got, c.want)
		}
	}
	for _, c := range []struct {
		one     float64
		n, want int
	}{{0, 512, 512}, {0.001, 64, 64}, {0.03, 64, 64}, {0.05, 64, 32}, {1, 64, 16}, {1, 512, 16}, {1, 20, 16}, {1, 7, 7}, {1, 1, 1}} {
		r.one = c.one
		if got := r.rows(c.n); got != c.want {
			t.Errorf("%d rows for %d of %g s", got, c.n, c.one)
		}
	}
	if scale(&node{flops: 6}, &node{flops: 2}) != 3 || scale(&node{weights: 6, bytes: 2}, &node{weights: 1, bytes: 1}) != 4 || scale(&node{}, &node{}) != 1 {
		t.Error("scale")
	}
}

// Predictions for devices at hand are within a fifth of what is then measured. It needs a machine with nothing else to
// do: CALDERA_TIMING=1 runs it, on the demo model or on the file CALDERA_TIMING_MODEL.
func TestMeasuredIsPredicted(t *testing.T) {
	if os.Getenv("CALDERA_TIMING") == "" {
		t.Skip("CALDERA_TIMING is not set: this measures time and needs an idle machine")
	}
	in := instance(t)
	for _, info := range in.Devices() {
		c := engine.Config{Data: demo.Model(), Name: demo.Name, Device: info.UUID, Context: 256}
		if path := os.Getenv("CALDERA_TIMING_MODEL"); path != "" {
			c.Data, c.Path = nil, path
		}
		b := blueprint(t, func(x *engine.Config) { *x = c })
		tests := []Test{{Gen: 32}, {Prompt: 128}}
		e, err := engine.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		ratios := make([][]float64, len(tests))
		for range 3 { // in turn, so that both see the same machine
			es, err := Measure(t.Context(), b, in, info, tests, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range tests {
				r, err := bench.Run(t.Context(), e, bench.Test{Prompt: x.Prompt, Gen: x.Gen}, bench.Options{Repetitions: 1})
				if err != nil {
					t.Fatal(err)
				}
				ratio := es[i].TS / r.PerSecond()[0]
				t.Logf("%s, %s: predicted %.4g, measured %.4g tokens/s, ratio %.2f", info.Name, x.Name(), es[i].TS, r.PerSecond()[0], ratio)
				ratios[i] = append(ratios[i], ratio)
			}
		}
		for i, x := range tests {
			if r := median(ratios[i]); r < 0.8 || r > 1.2 {
				t.Errorf("%s, %s: the median of the ratios is %.2f", info.Name, x.Name(), r)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An interrupt ends a measurement soon, whatever it is at.
func TestMeasureInterrupted(t *testing.T) {
	in := instance(t)
	info, err := in.Select("")
	if err != nil {
		t.Fatal(err)
	}
	b := blueprint(t, nil)
	for _, at := range []string{"dispatches and copies", "kernels, ", "a 1-row step"} {
		ctx, cancel := context.WithCancel(t.Context())
		after := 0
		es, err := Measure(ctx, b, in, info, []Test{{Gen: 4}}, func(what string) {
			if ctx.Err() != nil {
				after++
			}
			if strings.HasPrefix(what, at) {
				cancel()
			}
		})
		reached := ctx.Err() != nil
		cancel()
		if es != nil || !reached || !errors.Is(err, context.Canceled) || after > runtime.GOMAXPROCS(0) { // pipelines under way are finished
			t.Errorf("%s: %v, %v, and %d things more", at, es, err, after)
		}
	}
}
