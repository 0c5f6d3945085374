package predict

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
)

func TestTests(t *testing.T) {
	b := blueprint(t, nil)
	for _, c := range []struct {
		test     Test
		name     string
		plan     plan
		problem  string
		attended float64
	}{
		{test: Test{Gen: 128}, name: "tg128", plan: plan{1, 128, 64.5, 1}},
		{test: Test{Gen: 1, Depth: 100}, name: "tg1 @ d100", plan: plan{1, 1, 101, 1}},
		{test: Test{Prompt: 512}, name: "pp512", plan: plan{64, 8, 256.5, 0.125}},
		{test: Test{Prompt: 100, Depth: 10}, name: "pp100 @ d10", plan: plan{50, 2, 60.5, 0.5}},
		{test: Test{}, problem: "of 0 tokens"}, {test: Test{Prompt: 1, Gen: 1}, problem: "1 tokens of prompt and 1"}, {test: Test{Gen: -1}, problem: "-1"},
		{test: Test{Gen: 1, Depth: b.Model().Context}, problem: fmt.Sprintf("made for 1 to %d", b.Model().Context)},
	} {
		err := c.test.Check(b.Model())
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%+v: %v", c.test, err)
			}
			continue
		}
		if got := c.test.plan(64); err != nil || c.test.Name() != c.name || got != c.plan {
			t.Errorf("%s: %+v, %v", c.test.Name(), got, err)
		}
	}
}

// plain is a device whose rates do not depend on how many invocations there are, and on which nothing but them costs
// time.
func plainDevice() Device {
	return Device{Name: "plain", Memory: 1, Bandwidth: 1e-3, BandwidthEfficiency: 0.5, FP32: 1e6, FP32Efficiency: 1, Lanes: 1, Subgroup: 32, Binding: 4096}
}

// What bounds a step is its term: bytes over bandwidth, operations over the rate, counts times their costs.
func TestTerms(t *testing.T) {
	b := blueprint(t, nil)
	test := Test{Gen: 128}
	predict := func(d Device) *Estimate {
		t.Helper()
		e, err := d.Predict(b, test, 512)
		if err != nil {
			t.Fatal(err)
		}
		x := e.Terms
		if math.Abs(e.Step-x.Total()) > 1e-12*e.Step || math.Abs(e.TS*e.Step-1) > 1e-9 {
			t.Errorf("%s: %+v", d.Name, e)
		}
		return e
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-9*want) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	d := plainDevice()
	e := predict(d)
	near("bytes", e.Terms.Bytes, (e.WeightBytes+e.OtherBytes)/(1e6*0.5))
	if x := e.Terms; x.Arithmetic != 0 || x.Serial != 0 || x.Dispatches != 0 || x.Barriers != 0 || x.Host != 0 {
		t.Errorf("a slow memory: %+v", x)
	}
	d.Dispatch, d.Barrier, d.Host = 3, 5, 7
	e = predict(d)
	near("dispatches", e.Terms.Dispatches, 3e-6*float64(e.Tally.Dispatches))
	near("barriers", e.Terms.Barriers, 5e-6*float64(e.Tally.Barriers))
	near("host", e.Terms.Host, 7e-6)
	d = plainDevice()
	d.Bandwidth, d.FP32 = 1e6, 1e-3
	e = predict(d)
	if e.Terms.Bytes > 0.01*e.Step || e.Terms.Arithmetic < e.Flops/1e9 {
		t.Errorf("slow arithmetic: %+v for %g operations", e.Terms, e.Flops)
	}
	d.FP32, d.Row = 1e6, 1e6
	nets := 0
	for _, r := range b.Model().Recurrent {
		if r {
			nets++
		}
	}
	near("serial", predict(d).Terms.Serial, float64(nets))
	// Few invocations are slower on a device that needs many.
	d = plainDevice()
	d.FP32, d.Bandwidth, d.Lanes = 1e-3, 1e6, 1<<24
	if wide := predict(d); wide.Terms.Arithmetic < 10*e.Terms.Arithmetic {
		t.Errorf("few invocations on a wide device take %g s, on a narrow one %g s", wide.Terms.Arithmetic, e.Terms.Arithmetic)
	}
}

// Weight bytes of a decoded token are those of the file but for the experts that are not chosen and the rows of the
// embedding that are not looked up.
func TestWeightBytes(t *testing.T) {
	b := blueprint(t, nil)
	m := b.Model()
	var all, experts float64
	for _, x := range b.File().Tensors() {
		switch {
		case strings.HasPrefix(x.Name, "token_embd"), strings.HasPrefix(x.Name, "blk.8"), strings.Contains(x.Name, "nextn"):
		case strings.Contains(x.Name, "_exps."):
			experts += float64(x.Size)
		default:
			all += float64(x.Size)
		}
	}
	unused := 0.0
	for _, name := range m.Unused {
		if x, ok := b.File().Tensor(name); ok && !strings.HasPrefix(name, "blk.8") && !strings.Contains(name, "nextn") {
			unused += float64(x.Size)
		}
	}
	embed, _ := b.File().Tensor("token_embd.weight")
	if _, ok := b.File().Tensor("output.weight"); !ok {
		all += float64(embed.Size) // the head is the embedding
	}
	d := plainDevice()
	for _, rows := range []int{1, 64} {
		test := Test{Prompt: rows}
		e, err := d.Predict(b, test, 64)
		if err != nil {
			t.Fatal(err)
		}
		want := all - unused + float64(rows)*float64(embed.RowBytes()) + experts/float64(m.Experts)*Distinct(float64(rows), float64(m.ExpertsUsed), float64(m.Experts))
		if math.Abs(e.WeightBytes/want-1) > 0.001 {
			t.Errorf("%d rows read %.0f bytes of weights, want %.0f", rows, e.WeightBytes, want)
		}
	}
}

// Depth makes attention read more, and nothing else.
func TestDepth(t *testing.T) {
	b := blueprint(t, nil)
	d := plainDevice()
	near, err := d.Predict(b, Test{Gen: 1}, 64)
	if err != nil {
		t.Fatal(err)
	}
	far, err := d.Predict(b, Test{Gen: 1, Depth: 1000}, 64)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Model()
	layers := 0
	for _, r := range m.Recurrent {
		if !r {
			layers++
		}
	}
	kv := float64(1000 * layers * m.KVHeads * m.HeadDim * 2 * 2) // keys and values of two bytes
	if got := far.OtherBytes - near.OtherBytes; math.Abs(got/kv-1) > 0.01 || far.WeightBytes != near.WeightBytes {
		t.Errorf("1000 tokens more read %.0f bytes more, want %.0f", got, kv)
	}
}

// The counts of layers and of the rest sum up to those of a token.
func TestCountLayers(t *testing.T) {
	b := blueprint(t, nil)
	g := Generic()
	k := g.Kernels()
	c, err := Count(b, "x", &k, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	sum := func(f func(LayerCount) float64) float64 {
		n := 0.0
		for _, l := range []LayerCount{c.DeltaNet, c.Attention, c.Rest} {
			n += float64(l.Layers) * f(l)
		}
		return n
	}
	d, br := sum(func(l LayerCount) float64 { return l.Dispatches }), sum(func(l LayerCount) float64 { return l.Barriers })
	if math.Abs(d-float64(c.Token.Dispatches)) > 1e-9 || math.Abs(br-float64(c.Token.Barriers)) > 1e-9 || c.DeltaNet.Layers+c.Attention.Layers != b.Model().Layers {
		t.Errorf("%+v", c)
	}
	if !c.Same(c) || c.Same(&Counts{}) {
		t.Error("counts are not the same as themselves")
	}
}

// Counts without a device are those that a plan on the device has, for every device, profile and number of sequences.
func TestCountsArePlans(t *testing.T) {
	in := instance(t)
	for _, info := range in.Devices() {
		for _, profile := range []string{"auto", "floor"} {
			for _, seqs := range []int{1, 8} {
				c := engine.Config{Data: demo.Model(), Name: demo.Name, Device: info.UUID, Profile: profile, Slots: seqs, Context: 700}
				b := blueprint(t, func(x *engine.Config) { *x = c })
				k, err := b.Kernels(info)
				if err != nil {
					t.Fatal(err)
				}
				got, err := Count(b, info.Name, &k, seqs, 700)
				if err != nil {
					t.Fatal(err)
				}
				e, err := engine.Open(c)
				if err != nil {
					t.Fatal(err)
				}
				want, err := e.DecodeCounts(seqs)
				if cerr := e.Close(); err == nil {
					err = cerr
				}
				if err != nil {
					t.Fatal(err)
				}
				if got.Token != (scheduler.Tally{Ops: want.Ops, Dispatches: want.Dispatches, Barriers: want.Barriers}) {
					t.Errorf("%s, %s, %d sequences: counted %+v, the plan has %+v", info.Name, profile, seqs, got.Token, want.Stats)
				}
			}
		}
	}
}

// A small binding, as software devices have, cuts tensors into more dispatches.
func TestSmallBinding(t *testing.T) {
	b := blueprint(t, nil)
	d := Generic()
	k := d.Kernels()
	whole, err := Count(b, "x", &k, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	k.MaxBinding = 600 << 10
	cut, err := Count(b, "x", &k, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	if cut.Token.Dispatches <= whole.Token.Dispatches || cut.Token.Ops != whole.Token.Ops {
		t.Errorf("%+v with small bindings, %+v with large ones", cut.Token, whole.Token)
	}
}

func TestBlockType(t *testing.T) {
	b := blueprint(t, nil)
	d := plainDevice()
	k := d.Kernels()
	s, err := newStep(b, Test{Gen: 1}, 64, &k)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]quant.Type{}
	for _, n := range s.nodes {
		if typ, ok := blockType(n.lowered); ok {
			seen[n.Name] = typ
		}
	}
	if seen["output"] != quant.Q8_0 || seen["token_embd"] != quant.Q8_0 || seen["ffn_gate_inp"] != quant.F32 {
		t.Errorf("%v", seen)
	}
	if _, ok := seen["delta_rule"]; ok {
		t.Error("the delta rule decodes weights")
	}
	for typ, want := range map[quant.Type]float64{quant.F32: 0, quant.F16: 1, quant.Q4_K: 3, quant.Q6_K: 4, quant.IQ2_XS: 6} {
		if got := decodeCost(typ); got != want {
			t.Errorf("%v costs %g", typ, got)
		}
	}
}
