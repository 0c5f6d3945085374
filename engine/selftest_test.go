package engine_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/engine/selftest"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// wide is a model whose rows hold the blocks of K-quants.
var wide = synth{layers: 4, interval: 2, embed: 256, heads: 2, headDim: 64, rotary: 32, stateDim: 64, keyHeads: 2, valHeads: 4,
	experts: 8, used: 2, ff: 256, context: 4096, words: true, headGain: 4, attnGain: 1, focus: 1}

// quantised is a model with its matrices in another type where their rows allow it.
func quantised(t *testing.T, data []byte, typ quant.Type) []byte {
	t.Helper()
	f, err := gguf.OpenBytes("synthetic", data)
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
		b, err := f.Data(x)
		if err != nil {
			t.Fatal(err)
		}
		to := quant.F32
		if len(x.Dims) > 1 && x.Dims[0]%uint64(typ.BlockSize()) == 0 && !strings.Contains(x.Name, "conv1d") && !strings.Contains(x.Name, "_inp") {
			to = typ
			values := make([]float32, len(b)/4)
			if err := quant.Dequantize(quant.F32, values, b); err != nil {
				t.Fatal(err)
			}
			b = make([]byte, len(values)/typ.BlockSize()*typ.BlockBytes())
			if err := quant.Quantize(typ, b, values); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.AddTensor(x.Name, to, x.Dims, b); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// continued opens a model and continues a text by 64 tokens, each the best. It returns nothing where the engine fails, as one may
// that runs damaged kernels.
func continued(t *testing.T, cfg engine.Config) (tokens []int32, r engine.SelfTestReport, warnings []string) {
	t.Helper()
	cfg.Warn = func(err error) { warnings = append(warnings, err.Error()) }
	if cfg.SelfTest == "" {
		cfg.SelfTest = engine.SelfTestAuto
	}
	e, err := engine.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := sample.Neutral()
	p.Temperature = 0
	st, err := e.Generate(context.Background(), engine.Request{Prompt: e.Tokenizer().Encode(demo.Chat("Capital of France?"), true), MaxTokens: 64, Sample: p, IgnoreEOG: true})
	if err != nil {
		t.Fatal(err)
	}
	for tok, err := range st.Tokens() {
		if err != nil {
			t.Logf("%v", err)
			break
		}
		tokens = append(tokens, tok.ID)
	}
	return tokens, e.SelfTested()[0], warnings
}

// selfTested are the devices to test on: SwiftShader compiles kernels for seconds.
func selfTested(t *testing.T) []rig {
	if !long() {
		if r := oneDevice(t); r.backend == engine.Vulkan {
			return []rig{r}
		}
	}
	return devices(t, "auto")
}

// C22: drivers that translate kernels wrongly are found before anything depends on it. The engine does without what they get
// wrong, and answers as it would have without that on a driver that is right.
func TestCaseC22(t *testing.T) {
	demoModel := engine.Config{Data: demo.Model(), Name: demo.Name, Context: 256}
	floats := wide.config(t)
	floats.Context, floats.KV = 256, "f32"
	whole := floats
	whole.Data, whole.Activations = quantised(t, floats.Data, quant.Q4_K), engine.ActivationsInt8
	single := whole
	single.Activations = engine.ActivationsF32
	inShort := []string{"none", "shuffle", "int16", "int16, unused", "fp16-flush"} // with the profile auto
	for _, c := range []struct {
		name, fault, profile string
		model                engine.Config
		failed               []string // parts of the names of what has to fail
		without              string   // the last of what the engine does without, "" for nothing
		rounding             bool     // what it does without changes more than rounding, so that another text may come
	}{
		{"none", "", "auto", demoModel, nil, "", false},
		{"none", "", "kepler", demoModel, nil, "", false},
		{"none", "", "floor", demoModel, nil, "", false},
		{"none, int8", "", "auto", whole, nil, "", false},
		{"shuffle", "shuffle", "auto", demoModel, []string{"rmsnorm", "attention"}, "subgroup operations", false},
		{"shuffle", "shuffle", "kepler", demoModel, []string{"matmul.q8_0.fused", "matmul.q8_0.lanes", "rmsnorm"}, "subgroup operations", false},
		{"int16", "int16", "auto", whole, []string{"matmul.q4_k.packed"}, "packed int8 inputs", true},
		{"int16, unused", "int16", "auto", single, nil, "", false},
		{"fp16-flush", "fp16-flush", "auto", demoModel, []string{"matmul.q8_0"}, "conversions of halves", false},
		{"fp16-flush, unused", "fp16-flush", "auto", floats, nil, "", false},
	} {
		if !long() && (c.profile != "auto" || !slices.Contains(inShort, c.name)) {
			continue
		}
		for _, r := range selfTested(t) {
			r.profile = c.profile
			cfg := r.config(c.model)
			name, _, _ := strings.Cut(r.name, "/")
			slow := strings.HasPrefix(name, "SwiftShader") // it compiles kernels for seconds
			if slow && (c.profile != "auto" || c.name != "shuffle" && c.name != "fp16-flush" && c.name != "int16, unused") && !long() {
				continue
			}
			t.Run(c.name+"/"+name+"/"+c.profile, func(t *testing.T) {
				if cfg.Activations == engine.ActivationsInt8 && !packs(t, cfg) {
					t.Skip("the device has no kernels for int8")
				}
				clean, none, warned := continued(t, cfg)
				if none.Without != "" || len(none.Failed()) > 0 || len(warned) > 0 || len(none.Untested) > 0 {
					t.Fatalf("without a fault: %q, %v failed, %v untested, warnings %q", none.Without, none.Failed(), none.Untested, warned)
				}
				if len(clean) != 64 {
					t.Fatalf("%d tokens", len(clean))
				}
				bad := cfg
				bad.Fault = c.fault
				got, report, warned := continued(t, bad)
				if c.fault != "" && len(report.Checks) == 0 {
					t.Error("nothing was checked")
				}
				for _, want := range c.failed {
					if !slices.ContainsFunc(report.Failed(), func(x engine.SelfTestCheck) bool { return strings.HasPrefix(x.Module, want) }) {
						t.Errorf("%s has not failed", want)
					}
				}
				for _, x := range report.Failed() {
					t.Logf("%s differs by %.2g in %s %s", x.Variant, x.Rel, x.Op, x.Without)
				}
				if c.without == "" {
					if report.Without != "" || len(report.Failed()) > 0 || len(warned) > 0 || !slices.Equal(got, clean) {
						t.Errorf("a fault in nothing that is used: runs %q, %d failed, warnings %q, the same tokens %t",
							report.Without, len(report.Failed()), warned, slices.Equal(got, clean))
					}
					return
				}
				if !strings.HasSuffix(report.Without, c.without) || len(warned) != 1 || !strings.Contains(warned[0], report.Without) {
					t.Errorf("runs %q, warnings %q", report.Without, warned)
				}
				// On a driver that is right, and does without the same.
				same, again, _ := continued(t, engine.Restricted(cfg, report.Rungs))
				if again.Rungs != report.Rungs || len(again.Failed()) > 0 {
					t.Errorf("without the fault: %d rungs, %v failed", again.Rungs, again.Failed())
				}
				if !slices.Equal(got, same) {
					t.Errorf("tokens with the fault  %v\nwithout the same %v", got, same)
				}
				if !c.rounding && !slices.Equal(got, clean) {
					t.Errorf("tokens with the fault %v\nwithout %v", got, clean)
				}
				if slow && !long() {
					return
				}
				// The fault is one that matters.
				bad.SelfTest = engine.SelfTestOff
				if wrong, _, _ := continued(t, bad); c.fault != "fp16-flush" && slices.Equal(wrong, clean) {
					t.Error("without a self-test the fault changes nothing")
				}
			})
		}
	}
}

// packs reports whether a configuration's device has kernels for inputs in whole numbers.
func packs(t *testing.T, cfg engine.Config) bool {
	t.Helper()
	_, err := engine.PlanMemory(cfg)
	if err != nil && !errors.Is(err, shaders.ErrNotPacked) {
		t.Fatal(err)
	}
	return err == nil
}

// C22: a device whose driver refuses a feature that it has reported is made without, and computes the same.
func TestCaseC22Rejected(t *testing.T) {
	for _, r := range selfTested(t) {
		cfg := r.config(engine.Config{Data: demo.Model(), Name: demo.Name, Context: 256})
		clean, none, _ := continued(t, cfg)
		if len(none.Rejected) > 0 {
			t.Errorf("%s: %v are refused without a fault", r.name, none.Rejected)
		}
		in, err := vk.Open(vk.Config{AppName: "caldera tests"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := in.Select(r.device)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		has := info.Features.Names()
		for _, names := range [][]string{{"timeline"}, {"int64"}, {"int64", "timeline"}} {
			names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(has, n) })
			bad := cfg
			bad.Fault = "reject:" + strings.Join(names, ",")
			got, report, warned := continued(t, bad)
			for _, n := range names {
				if !slices.Contains(report.Rejected, n) || len(warned) == 0 || !strings.Contains(warned[0], n) {
					t.Errorf("%s: %s is refused: %v, %q", r.name, n, report.Rejected, warned)
				}
			}
			if len(names) == 1 && len(report.Rejected) == len(has) {
				t.Errorf("%s: for %v all features were given up", r.name, names)
			}
			if !slices.Equal(got, clean) {
				t.Errorf("%s without %v: %v, want %v", r.name, report.Rejected, got, clean)
			}
		}
	}
	cfg := engine.Config{Data: demo.Model(), Name: demo.Name, Fault: "reject:nothing"}
	if e, err := engine.Open(cfg); err == nil || !strings.Contains(err.Error(), "nothing") {
		if err == nil {
			e.Close()
		}
		t.Errorf("an unknown feature: %v", err)
	}
}

// Where nothing is right the engine does not open, and says what, where and what to do.
func TestSelfTestRefuses(t *testing.T) {
	for _, r := range selfTested(t) {
		// Every addition and multiplication of floats is wrong, whatever a kernel does without.
		cfg := r.config(engine.Config{Data: demo.Model(), Name: demo.Name, Context: 256, Fault: "arithmetic", SelfTest: engine.SelfTestAuto})
		dir := t.TempDir()
		cfg.SelfTestDir = dir
		e, err := engine.Open(cfg)
		if err == nil {
			e.Close()
		}
		name, _, _ := strings.Cut(r.name, "/")
		if !errors.Is(err, engine.ErrSelfTest) {
			t.Fatalf("%s: %v", r.name, err)
		}
		for _, want := range []string{name, "kernel ", "differs from its twin by", "driver", "--backend reference"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not have %q: %v", r.name, want, err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: kept %v", r.name, left)
		}
		report, err := engine.SelfTest(context.Background(), cfg)
		if err != nil || report.OK() || !errors.Is(report.Err(), engine.ErrSelfTest) {
			t.Errorf("%s: the report: %+v, %v", r.name, report, err)
		}
	}
}

// What was found is kept by device and driver, so that the next start checks nothing; what is wrong is done without, then too.
func TestSelfTestKept(t *testing.T) {
	for _, r := range selfTested(t) {
		dir := t.TempDir()
		cfg := r.config(engine.Config{Data: demo.Model(), Name: demo.Name, Context: 256, SelfTest: engine.SelfTestAuto, SelfTestDir: dir})
		in, err := vk.Open(vk.Config{AppName: "caldera tests"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := in.Select(r.device)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		id := selftest.For(info, vk.Profile{Name: "auto"})
		forget := func() { // as another process knows nothing
			if err := selftest.Forget("", id); err != nil {
				t.Fatal(err)
			}
		}
		defer forget()
		forget()
		open := func() (engine.SelfTestReport, []string) {
			t.Helper()
			var warnings []string
			c := cfg
			c.Warn = func(err error) { warnings = append(warnings, err.Error()) }
			e, err := engine.Open(c)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			return e.SelfTested()[0], warnings
		}
		first, _ := open()
		if len(first.Checks) == 0 {
			t.Fatalf("%s: nothing was checked", r.name)
		}
		forget()
		second, _ := open()
		if len(second.Checks) != 0 || second.Without != "" {
			t.Errorf("%s: %d checks again, %q", r.name, len(second.Checks), second.Without)
		}
		t.Logf("%s: %d checks in %v, known in %v", r.name, len(first.Checks), first.Took, second.Took)
		cfg.SelfTest = engine.SelfTestAlways
		if again, _ := open(); len(again.Checks) != len(first.Checks) {
			t.Errorf("%s: always is %d checks", r.name, len(again.Checks))
		}
		cfg.SelfTest = engine.SelfTestOff
		if off, _ := open(); len(off.Checks) != 0 {
			t.Errorf("%s: off is %d checks", r.name, len(off.Checks))
		}
		cfg.SelfTest = engine.SelfTestAuto

		// A verdict against a kernel that is used.
		forget()
		v := selftest.NewVerdicts()
		i := slices.IndexFunc(first.Checks, func(c engine.SelfTestCheck) bool { return c.Module == "rmsnorm" })
		v.Failed[first.Checks[i].Variant] = 0.5
		if err := selftest.Remember(dir, id, v); err != nil {
			t.Fatal(err)
		}
		forget()
		third, warned := open()
		if !strings.HasSuffix(third.Without, "subgroup operations") || len(warned) != 1 || !strings.Contains(warned[0], "earlier self-test") {
			t.Errorf("%s: with a verdict against rmsnorm it runs %q, warnings %q", r.name, third.Without, warned)
		}
		forget()
		if fourth, _ := open(); fourth.Without != third.Without || len(fourth.Checks) != 0 {
			t.Errorf("%s: after that it runs %q with %d checks", r.name, fourth.Without, len(fourth.Checks))
		}
		// A file that is damaged, or a folder in its place, costs a check.
		forget()
		path := id.Path(dir)
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if fifth, _ := open(); len(fifth.Checks) != len(first.Checks) || fifth.Without != "" {
			t.Errorf("%s: with a damaged file %d checks, %q", r.name, len(fifth.Checks), fifth.Without)
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".selftest-*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v", r.name, left)
		}
	}
}

// Every kind of cache, and every block type of the demo model under every profile, is checked in full.
func TestSelfTestCovers(t *testing.T) {
	for _, r := range selfTested(t) {
		for _, kv := range []string{"f16", "f32", "q8_0", "q4_0"} {
			for _, profile := range []string{"auto", "floor", "apple", "adreno"} {
				if profile != "auto" && (kv != "q4_0" || !long() && profile != "floor") {
					continue
				}
				r.profile = profile
				cfg := r.config(engine.Config{Data: demo.Model(), Name: demo.Name, Context: 2048, KV: kv, KVWindow: 256, KVSink: 256})
				report, err := engine.SelfTest(context.Background(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if !report.OK() || report.Without != "" || len(report.Untested) > 0 || len(report.Checks) < 12 {
					t.Errorf("%s %s %s: %d checks, without %q, untested %v, %v", r.name, profile, kv, len(report.Checks), report.Without, report.Untested, report.Err())
				}
				cold := slices.ContainsFunc(report.Checks, func(c engine.SelfTestCheck) bool { return c.Module == "attention.cold" })
				if cold != strings.HasPrefix(kv, "q") {
					t.Errorf("%s %s %s: attention to cold pages is checked: %t", r.name, profile, kv, cold)
				}
			}
		}
	}
}
