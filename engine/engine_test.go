package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/internal/conformance"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/vk"
)

// rig is a way to run a model.
type rig struct{ name, backend, device, profile string }

// rigs lists every device under the auto and the floor profile, and the reference last.
func rigs(t testing.TB) []rig {
	t.Helper()
	var rs []rig
	if in, err := vk.Open(vk.Config{AppName: "caldera tests"}); err == nil {
		for _, d := range in.Devices() {
			for _, p := range []string{"auto", "floor"} {
				rs = append(rs, rig{d.Name + "/" + p, engine.Vulkan, d.UUID, p})
			}
		}
		in.Close()
	} else {
		t.Logf("no Vulkan here, only the reference is tested: %v", err)
	}
	return append(rs, rig{"reference", engine.Reference, "", ""})
}

// devices are the rigs without the reference, on one profile.
func devices(t testing.TB, profile string) []rig {
	rs := slices.DeleteFunc(rigs(t), func(r rig) bool { return r.profile != profile })
	if len(rs) == 0 {
		t.Skip("no Vulkan device")
	}
	return rs
}

// config is a configuration for the rig.
func (r rig) config(cfg engine.Config) engine.Config {
	cfg.Backend, cfg.Device, cfg.Profile, cfg.Check = r.backend, r.device, r.profile, true
	return cfg
}

func (r rig) open(t testing.TB, cfg engine.Config) *engine.Engine {
	t.Helper()
	e, err := engine.Open(r.config(cfg))
	if err != nil {
		t.Fatal(err)
	}
	// Close reports what the validation layers said.
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func session(t testing.TB, e *engine.Engine) *engine.Session {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Every case that this version supports agrees with the reference on every device and on the twins. Profiles,
// batches and cache types go around with the cases, so that all meet over the whole; make oracle runs
// every combination.
func TestOracle(t *testing.T) {
	batches, kvs := []int{512, 1, 7, 64}, []string{"f32", "f32", "f16"}
	// Devices for the quantised cases in turn, -1 for none: the kernels compile for up to half a minute before a model runs.
	quantised := []int{0, 2, -1, 1, 3, -1, -1, -1, 2, 3, -1, 3}
	turn := 0
	for i, c := range oracle.Cases(t) {
		for j, r := range rigs(t) {
			// Every architecture in F32 on one profile of each device; of the others, whose block types have
			// tests of their own, half have one device and profile. make oracle runs them all.
			plain := strings.HasSuffix(c.Name, "-f32")
			if r.backend == engine.Vulkan && (plain && (i+j+j/2)%2 != 0 || !plain && j != quantised[i%len(quantised)]) {
				continue
			}
			kv, batch := kvs[turn%len(kvs)], batches[turn%len(batches)]
			turn++
			cfg := engine.Config{Path: c.Model(), KV: kv, Batch: batch, Context: 512}
			if !runnable(t, cfg) {
				continue
			}
			t.Run(c.Name+"/"+r.name+"/"+kv, func(t *testing.T) {
				bars := conformance.BarsFor(c, kv)
				got, err := conformance.Check(context.Background(), r.open(t, cfg), c, bars)
				if err != nil {
					t.Fatal(err)
				}
				if err := got.Error(bars); err != nil {
					t.Errorf("batch %d: %v", batch, err)
				}
			})
		}
	}
}

// runnable reports whether this version supports a model.
func runnable(t *testing.T, cfg engine.Config) bool {
	t.Helper()
	cfg.Backend = engine.Reference
	e, err := engine.Open(cfg)
	if errors.Is(err, model.ErrUnsupported) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}

// demoConfig opens the embedded model.
func demoConfig() engine.Config {
	return engine.Config{Data: demo.Model(), Name: demo.Name, Context: 1024}
}

// demoResults is the part of demo.json that tests read.
type demoResults struct {
	Files map[string]struct {
		Greedy []struct {
			Prompt    string  `json:"prompt"`
			PromptIDs []int32 `json:"prompt_ids"`
			IDs       []int32 `json:"ids"`
			Text      string  `json:"text"`
		} `json:"greedy"`
	} `json:"files"`
}

func readDemo(t testing.TB) demoResults {
	t.Helper()
	var d demoResults
	b, err := os.ReadFile(oracle.DemoFile(t, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// The demo model continues as measured elsewhere, token by token, and its tokenizer gives the prompts' ids.
func TestDemoGreedy(t *testing.T) {
	rs := devices(t, "auto")
	for i, r := range rs {
		all := i == len(rs)-1
		for file, want := range readDemo(t).Files {
			if !all {
				// The slower devices take a few prompts of one file: they share everything but the driver.
				if file != "demo-q8_0.gguf" {
					continue
				}
				want.Greedy = want.Greedy[4:8]
			} else if file != "demo-q8_0.gguf" && !long() {
				want.Greedy = want.Greedy[2:5] // the other files differ in block types alone
			}
			t.Run(r.name+"/"+file, func(t *testing.T) {
				e := r.open(t, engine.Config{Path: oracle.DemoFile(t, file), Context: 1024})
				for _, g := range want.Greedy {
					if ids := e.Tokenizer().Encode(g.Prompt, true); !slices.Equal(ids, g.PromptIDs) {
						t.Errorf("%q: tokens %v, want %v", g.Prompt, ids, g.PromptIDs)
					}
					p := sample.Neutral()
					p.Temperature = 0
					var ids []int32
					stream, err := e.Generate(context.Background(), engine.Request{Prompt: g.PromptIDs, MaxTokens: len(g.IDs), Sample: p, IgnoreEOG: true})
					if err != nil {
						t.Fatal(err)
					}
					for token, err := range stream.Tokens() {
						if err != nil {
							t.Fatal(err)
						}
						if token.ID >= 0 {
							ids = append(ids, token.ID)
						}
					}
					if !slices.Equal(ids, g.IDs) {
						t.Errorf("%q: %v, want %v (%q)", g.Prompt, ids, g.IDs, g.Text)
					}
				}
			})
		}
	}
}

// The demo model's per-token losses on held-out text agree with those measured elsewhere.
func TestDemoPerplexity(t *testing.T) {
	tokens := readU16(t, oracle.DemoFile(t, "val_tokens.u16"))
	want := readF32(t, oracle.DemoFile(t, "val_nll-q8_0.f32"))
	const chunk = 512
	rs := devices(t, "auto")
	for i, r := range rs {
		chunks := 1
		if i == len(rs)-1 || long() {
			chunks = 2
		}
		t.Run(r.name, func(t *testing.T) {
			cfg := demoConfig()
			cfg.KV = "f32"
			p, err := r.open(t, cfg).Perplexity(context.Background(), tokens[:chunk*chunks], chunk, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.NLL) != chunks*(chunk-1) {
				t.Fatalf("%d losses", len(p.NLL))
			}
			far := 0
			for i, v := range p.NLL {
				if math.Abs(float64(v-want[i])) > 2e-3 {
					far++
				}
			}
			if far*100 > len(p.NLL) {
				t.Errorf("%d of %d losses differ by more than 2e-3", far, len(p.NLL))
			}
		})
	}
}

// The kernels of GPUs agree with the reference on a model of each kind: small steps, which fuse, and large ones. A long run
// does both with each.
func TestLanes(t *testing.T) {
	profiles := []string{"kepler", "apple", "adreno"}
	devices(t, "auto") // skips without one
	names, batches := []string{"qwen35moe-f32", "qwen35-q8_0"}, []int{1, 64}
	if long() {
		names = []string{"qwen35moe-q4_k_m", "qwen35-q8_0", "qwen3next-f32"}
	}
	for i, name := range names {
		c := oracle.Case{}
		for _, all := range oracle.Cases(t) {
			if all.Name == name {
				c = all
			}
		}
		if c.Name == "" {
			t.Fatalf("there is no case %s", name)
		}
		r := oneDevice(t) // SwiftShader takes minutes to compile these kernels
		r.profile = profiles[i]
		for j, batch := range batches {
			if i != j && !long() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/%s/%d", name, r.name, r.profile, batch), func(t *testing.T) {
				bars := conformance.BarsFor(c, "f32")
				got, err := conformance.Check(context.Background(), r.open(t, engine.Config{Path: c.Model(), KV: "f32", Batch: batch, Context: 512}), c, bars)
				if err != nil {
					t.Fatal(err)
				}
				if err := got.Error(bars); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Verification passes on every device, and names the kernel when one is damaged.
func TestVerify(t *testing.T) {
	tokens := demoTokens(t, 40)
	rs := devices(t, "auto")
	gpu := oneDevice(t)
	gpu.name, gpu.profile = gpu.name+" as a GPU", "kepler"
	for _, r := range append(rs, gpu) {
		t.Run(r.name, func(t *testing.T) {
			v, err := r.open(t, demoConfig()).Verify(context.Background(), tokens)
			if err != nil {
				t.Fatal(err)
			}
			if !v.OK() || len(v.Ops) == 0 {
				t.Errorf("first failing op: %+v, logits %+v", v.First, v.Logits)
			}
		})
	}
}

func TestVerifyFindsDamage(t *testing.T) {
	tokens := demoTokens(t, 12)
	rs := devices(t, "auto")
	r := rs[len(rs)-1]
	for _, kernel := range []string{
		"embed", "rmsnorm", "matmul", "gdn_conv", "delta_rule", "gated_norm", "qk_rope", "attention", "router", "expert_gate_up", "expert_down",
	} {
		t.Run(kernel, func(t *testing.T) {
			cfg := demoConfig()
			cfg.BreakKernel, cfg.KV = kernel, "f32"
			v, err := r.open(t, cfg).Verify(context.Background(), tokens)
			if err != nil {
				t.Fatal(err)
			}
			want := kernel
			if kernel == "gated_norm" {
				want = "delta_rule" // the op that ends with it
			}
			if v.First == nil || v.First.Kernel != want {
				t.Errorf("first failing op is %+v", v.First)
			}
		})
	}
}

// Decoding replays: nothing is recorded, made or allocated on the device between tokens, and a token is one
// submission.
func TestDecodeReplays(t *testing.T) {
	r := devices(t, "auto")[0]
	e := r.open(t, demoConfig())
	s := session(t, e)
	ctx := context.Background()
	if _, err := s.Top(ctx, demoTokens(t, 8), 1, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Top(ctx, []int32{5}, 1, nil); err != nil {
		t.Fatal(err)
	}
	before := e.DeviceStats()
	const n = 20
	for range n {
		if _, err := s.Top(ctx, []int32{5}, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	d := e.DeviceStats().Sub(before)
	if d.Submits != n {
		t.Errorf("%d submissions for %d tokens", d.Submits, n)
	}
	if d.Recordings != 0 || d.Pipelines != 0 || d.Allocations != 0 || d.Copies != 0 {
		t.Errorf("between tokens: %+v", d)
	}
	counts, err := e.DecodeCounts(1)
	if err != nil {
		t.Fatal(err)
	}
	if counts.Dispatches == 0 || counts.Barriers == 0 || counts.Barriers > counts.Dispatches {
		t.Errorf("counts %+v", counts)
	}
}

// What a session refuses, it refuses with numbers and without losing what it holds.
func TestSessionErrors(t *testing.T) {
	e := rig{backend: engine.Reference}.open(t, engine.Config{Data: demo.Model(), Name: demo.Name, Context: 16})
	s := session(t, e)
	ctx := context.Background()
	if _, err := e.NewSession(); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a second session where one slot is: %v", err)
	}
	tokens := demoTokens(t, 10)
	if err := s.Prefill(ctx, tokens); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		tokens []int32
		want   string
	}{
		{"none", nil, "no tokens"},
		{"too many", make([]int32, 7), "10 tokens are in it and 7 more do not fit 16"},
		{"negative", []int32{-1}, "outside the vocabulary"},
		{"too large", []int32{1 << 20}, "outside the vocabulary"},
	} {
		if err := s.Prefill(ctx, c.tokens); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := s.Prefill(ctx, make([]int32, 7)); !errors.Is(err, engine.ErrContextFull) {
		t.Errorf("context full: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Prefill(cancelled, tokens[:1]); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if s.Len() != 10 {
		t.Errorf("the session holds %d tokens", s.Len())
	}
	// It goes on as if nothing had been refused.
	got, err := s.Last(ctx, tokens[:2])
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.Clone(got)
	s.Reset()
	want, err := s.Last(ctx, append(slices.Clone(tokens), tokens[:2]...))
	if err != nil {
		t.Fatal(err)
	}
	if !closeTo(kept, want, 1e-4) {
		t.Error("refused calls changed the sequence")
	}
}

func TestOpenErrors(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk.gguf")
	if err := os.WriteFile(junk, []byte("GGUF but not really"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		cfg        engine.Config
	}{
		{"no model", "no model", engine.Config{}},
		{"backend", "backend", engine.Config{Path: junk, Backend: "cuda"}},
		{"kv", "KV cache type", engine.Config{Path: junk, KV: "q3"}},
		{"batch", "batch", engine.Config{Path: junk, Batch: 513}},
		{"junk", "junk.gguf", engine.Config{Path: junk}},
		{"missing", "absent.gguf", engine.Config{Path: filepath.Join(t.TempDir(), "absent.gguf")}},
		{"context", "context of 4096", engine.Config{Data: demo.Model(), Name: demo.Name, Backend: engine.Reference, Context: 4096}},
	} {
		e, err := engine.Open(c.cfg)
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// demoTokens are the first tokens of the held-out text.
func demoTokens(t testing.TB, n int) []int32 {
	return readU16(t, oracle.DemoFile(t, "val_tokens.u16"))[:n]
}

func readU16(t testing.TB, path string) []int32 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, len(b)/2)
	for i := range ids {
		ids[i] = int32(b[2*i]) | int32(b[2*i+1])<<8
	}
	return ids
}

func readF32(t testing.TB, path string) []float32 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24)
	}
	return f
}

func closeTo(a, b []float32, tol float64) bool {
	for i := range a {
		if math.Abs(float64(a[i]-b[i])) > tol {
			return false
		}
	}
	return len(a) == len(b)
}
