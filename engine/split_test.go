package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/state"
)

// pairs lists combinations of two devices: one twice, and two drivers.
func pairs(t testing.TB) (ps [][2]rig) {
	ds := devices(t, "auto")
	for _, d := range ds {
		if long() || d == oneDevice(t) {
			ps = append(ps, [2]rig{d, d})
		}
	}
	if len(ds) > 1 {
		ps = append(ps, [2]rig{ds[0], ds[1]})
	}
	return ps
}

// together is a rig of two devices.
func together(p [2]rig) rig {
	return rig{p[0].name + "+" + p[1].name, engine.Vulkan, p[0].device + "," + p[1].device, p[0].profile}
}

// lastLogits feeds tokens and returns the logits after the last.
func lastLogits(t *testing.T, e *engine.Engine, tokens []int32) []float32 {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	row, err := s.Last(context.Background(), tokens)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(row)
}

// A model whose layers are divided among two devices computes what one device does: the same bits where both are of one kind,
// within rounding and with the same text where they are not. Its snapshots go on on another split.
func TestSplit(t *testing.T) {
	prompt := make([]int32, 150)
	for i := range prompt {
		prompt[i] = int32((7*i*i + 3*i + 1) % 2000)
	}
	words := scaled(64, 12, 6)
	for _, pair := range pairs(t) {
		cfg := t35.config(t)
		cfg.Context, cfg.Batch = 512, 32
		single := pair[0].open(t, cfg)
		logits, text := lastLogits(t, single, prompt), ask(t, single, greedy(prompt, words)).ids
		same := pair[0].device == pair[1].device
		splits := []int{1, 2, 3, 4, 5, 6, 7}
		if !long() && !same {
			splits = []int{2, 5} // SwiftShader compiles every kernel for each
		}
		var snap *state.Snapshot
		for _, at := range splits {
			name := fmt.Sprintf("%s at %d", together(pair).name, at)
			cfg.Split = fmt.Sprint(at)
			e, err := engine.Open(together(pair).config(cfg))
			if err != nil {
				t.Fatal(name, err)
			}
			got := lastLogits(t, e, prompt)
			worst, scale := largest(got, logits), largest(logits, make([]float32, len(logits)))
			if same && worst > 0 || worst > 2e-4*scale {
				t.Errorf("%s: logits differ by %.3g of %.3g", name, worst, scale)
			}
			if ids := ask(t, e, greedy(prompt, words)).ids; !slices.Equal(ids, text) {
				t.Errorf("%s: %v, one device %v", name, ids, text)
			}
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			if snap != nil {
				if err := s.Restore(snap); err != nil {
					t.Errorf("%s: a snapshot of another split: %v", name, err)
				} else if row, err := s.Last(context.Background(), prompt[100:]); err != nil {
					t.Error(name, err)
				} else if worst := largest(row, logits); same && worst > 0 || worst > 2e-4*scale {
					t.Errorf("%s: logits after a snapshot of another split differ by %.3g of %.3g", name, worst, scale)
				}
			}
			s.Reset()
			if err := s.Prefill(context.Background(), prompt[:100]); err != nil {
				t.Fatal(err)
			}
			if snap, err = s.Snapshot(); err != nil {
				t.Fatal(err)
			}
			s.Close()
			m := e.Memory()
			if len(m.Dies) != 2 || m.Dies[0].EndLayer != at || m.Dies[1].FirstLayer != at || m.Dies[0].In != 0 || m.Dies[0].Out != m.Dies[1].In || m.Dies[1].Out != 0 {
				t.Errorf("%s: %+v", name, m.Dies)
			}
			if err := e.Close(); err != nil {
				t.Error(name, err)
			}
		}
	}
}

// largest is the largest difference.
func largest(a, b []float32) (d float64) {
	for i := range a {
		d = max(d, abs(a[i]-b[i]))
	}
	return d
}

// What cannot be a split is refused by name.
func TestSplitErrors(t *testing.T) {
	d := devices(t, "auto")[0]
	for _, c := range []struct{ device, split, err string }{
		{"%s,%s", "0", "needs a layer"}, {"%s,%s", "8", "needs a layer"}, {"%s,%s", "1,2", "does not suit 2 devices"},
		{"%s,%s", "x", "not a number"}, {"%s,%s", "0.5", "does not suit"}, {"%s,%s", "0.01,0.99", "needs a layer"},
		{"%[1]s", "3", "there is one device"}, {"%[1]s,", "", "is empty"},
	} {
		cfg := t35.config(t)
		cfg.Split = c.split
		r := d
		r.device = fmt.Sprintf(strings.Replace(c.device, "%s,%s", "%[1]s,%[1]s", 1), d.device)
		e, err := engine.Open(r.config(cfg))
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s %q: %v, want %q", c.device, c.split, err, c.err)
		}
	}
}

// Requests that run together on two devices, several steps of them under way at a time, are answered as one after the other on one
// device, whatever is cancelled, forked and found in the cache beside them.
func TestSplitMix(t *testing.T) {
	one := oneDevice(t)
	cfg := small.config(t)
	cfg.Context = 1024
	m := newMix(t, one.open(t, cfg), 23, scaled(60, 16, 6))
	cfg.Slots, cfg.CacheRAM, cfg.Batch, cfg.Split = 5, 1<<20, 24, "1"
	m.check(t, m.run(t, together([2]rig{one, one}).open(t, cfg), 1))
	cfg.KV, cfg.KVSink, cfg.KVWindow = "q8_0", 256, 256 // pages are re-encoded between steps
	single := cfg
	single.Split, single.Slots, single.CacheRAM = "", 1, 0
	m = newMix(t, one.open(t, single), 24, scaled(40, 8, 4))
	m.check(t, m.run(t, together([2]rig{one, one}).open(t, cfg), 2))
}

// Case C23: a split at any layer gives what one device gives, with one slot and with four, bytes on each device are as planned, and
// the planner keeps a device's limit.
func TestCaseC23(t *testing.T) {
	one := oneDevice(t)
	cfg := t35.config(t)
	cfg.Context, cfg.Batch = 1024, 64
	prompt := make([]int32, 300)
	for i := range prompt {
		prompt[i] = int32((11*i*i + 5*i + 2) % 2000)
	}
	tokens := scaled(64, 24, 8)
	want := ask(t, one.open(t, cfg), greedy(prompt, tokens)).ids
	both := together([2]rig{one, one})
	for at := 1; at < 8; at++ {
		for _, slots := range []int{1, 4} {
			if slots == 4 && !long() && at%3 != 1 {
				continue
			}
			x := cfg
			x.Slots, x.Split = slots, fmt.Sprint(at)
			e, err := engine.Open(both.config(x))
			if err != nil {
				t.Fatal(err)
			}
			rs := slices.Repeat([]engine.Request{greedy(prompt, tokens)}, slots)
			for _, a := range askAll(t, e, rs, slots) {
				if !slices.Equal(a.ids, want) {
					t.Errorf("split at %d, %d slots: %v, one device %v", at, slots, a.ids, want)
				}
			}
			closeAfterPlan(t, e, fmt.Sprintf("split at %d, %d slots", at, slots))
		}
	}
	// The second device has room for 40 % of the model.
	m := one.open(t, cfg).Memory()
	limit := m.Weights.Total*2/5 + m.KV.Bytes + m.State.Bytes + m.Scratch + m.Step + m.Results
	for _, limits := range [][]int64{{0, limit}, {limit, 0}} {
		x := cfg
		x.DeviceLimits = limits
		e, err := engine.Open(both.config(x))
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range e.Memory().Dies {
			if limits[i] > 0 && d.Total() > limits[i] {
				t.Errorf("limits %v: device %d has %d bytes", limits, i, d.Total())
			}
		}
		if ids := ask(t, e, greedy(prompt, tokens)).ids; !slices.Equal(ids, want) {
			t.Errorf("limits %v, split at %v: %v, one device %v", limits, e.Split(), ids, want)
		}
		closeAfterPlan(t, e, fmt.Sprintf("limits %v", limits))
	}
	x := cfg
	x.DeviceLimits = []int64{limit / 4, limit / 4}
	if e, err := engine.Open(both.config(x)); !errors.Is(err, engine.ErrDoesNotFit) || !strings.Contains(err.Error(), "limit of device") {
		if err == nil {
			e.Close()
		}
		t.Errorf("limits of a quarter: %v", err)
	}
}

// closeAfterPlan closes an engine whose devices must have taken what was planned for them, within 5 %.
func closeAfterPlan(t *testing.T, e *engine.Engine, name string) {
	t.Helper()
	dies := e.Memory().Dies
	for i, used := range e.MemoryByDevice() {
		d := &dies[i]
		planned := d.Total() - d.Imported
		if got := used.Own(); got > planned*105/100+1<<16 || got < planned*95/100-1<<16 {
			t.Errorf("%s: device %d has taken %d bytes, planned %d", name, i, got, planned)
		}
	}
	if err := e.Close(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}
