package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/internal/conformance"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/shaders"
)

// With cooperative matrices models are as close to the reference as with the kernels of float32.
func TestMatrices(t *testing.T) {
	names := []string{"qwen35-f32", "qwen35-q8_0", "qwen3next-q4_k_m", "qwen35moe-f16"}
	ran := 0
	for _, c := range oracle.Cases(t) {
		if !slices.Contains(names, c.Name) {
			continue
		}
		for _, r := range devices(t, "auto") {
			// The longest prompts have 64 rows in one step and less than a tile in the other.
			cfg := engine.Config{Path: c.Model(), KV: "f32", Batch: 64, Context: 512, Matrices: true}
			e, err := engine.Open(r.config(cfg))
			if errors.Is(err, shaders.ErrNoMatrices) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			ran++
			t.Run(c.Name+"/"+r.name, func(t *testing.T) {
				defer func() {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}()
				if e.Matrices() == (shaders.MatrixShape{}) || e.Activations() != engine.ActivationsF32 {
					t.Fatalf("matrices of %v, activations %s", e.Matrices(), e.Activations())
				}
				bars := conformance.BarsFor(c, "f32")
				got, err := conformance.Check(context.Background(), e, c, bars)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("last logits differ by %.2g, log-probabilities by %.2g (median) and %.2g (99 %%)", got.LastLogits, got.LogprobMedian, got.Logprob99)
				if err := got.Error(bars); err != nil {
					t.Error(err)
				}
			})
			if c.Name == "qwen35-f32" {
				t.Run(r.name, func(t *testing.T) { testMatricesUsed(t, r, cfg, c) })
			}
		}
	}
	if ran == 0 {
		t.Skip("no device has cooperative matrices that kernels can use")
	}
}

// testMatricesUsed makes sure that the kernels run, by damaging them, and that snapshots are told from those of other engines.
func testMatricesUsed(t *testing.T, r rig, cfg engine.Config, c oracle.Case) {
	broken := cfg
	broken.BreakKernel = "matmul.f32.matrix"
	bars := conformance.BarsFor(c, "f32")
	got, err := conformance.Check(context.Background(), r.open(t, broken), c, bars)
	if err != nil {
		t.Fatal(err)
	}
	if got.Error(bars) == nil {
		t.Error("damaged kernels change nothing")
	}
	plain := cfg
	plain.Matrices, plain.Activations = false, engine.ActivationsF32
	a, err := engine.Identity(r.open(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	b, err := engine.Identity(r.open(t, plain))
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Error("snapshots are taken for those of engines without")
	}
}

// What has none is told so, and so is who wants whole numbers too.
func TestMatricesRefused(t *testing.T) {
	rs := append(devices(t, "floor"), rig{"reference", engine.Reference, "", ""})
	for _, r := range rs {
		cfg := demoConfig()
		cfg.Matrices = true
		e, err := engine.Open(r.config(cfg))
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "--matrices") || r.backend == engine.Vulkan && !errors.Is(err, shaders.ErrNoMatrices) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	cfg := demoConfig()
	cfg.Matrices, cfg.Activations = true, engine.ActivationsInt8
	if e, err := engine.Open(cfg); err == nil || !strings.Contains(err.Error(), "--activations f32") {
		if err == nil {
			e.Close()
		}
		t.Errorf("with int8: %v", err)
	}
}
