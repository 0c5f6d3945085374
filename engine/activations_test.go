package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/conformance"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/shaders"
)

// Inputs in whole numbers change what a model says by at most half of what llama.cpp's 8-bit ones do, which the cases have
// as cpu_packed.
func TestInt8(t *testing.T) {
	names := []string{"qwen3next-q4_k_m", "qwen35-q4_k_m", "qwen35moe-q4_k_m", "qwen35moe-q5_k", "qwen35moe-q6_k"}
	for _, c := range oracle.Cases(t) {
		if !slices.Contains(names, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			open := func(activations string) *engine.Engine {
				e, err := engine.Open(engine.Config{Path: c.Model(), Backend: engine.Reference, KV: "f32", Context: 512, Activations: activations})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { e.Close() })
				if e.Activations() != activations {
					t.Fatalf("activations are %s", e.Activations())
				}
				named := slices.ContainsFunc(e.PackedTypes(), func(t quant.Type) bool { return strings.Contains(c.Name, strings.ToLower(t.String())) })
				if named != (activations == engine.ActivationsInt8) {
					t.Errorf("with %s products with %v have inputs in whole numbers", activations, e.PackedTypes())
				}
				return e
			}
			kl, err := conformance.Divergence(context.Background(), open(engine.ActivationsF32), open(engine.ActivationsInt8), c)
			if err != nil {
				t.Fatal(err)
			}
			bar := c.Spread["cpu_packed"].KLMean / 2
			t.Logf("mean KL divergence %.3g, allowed %.3g", kl, bar)
			if !(kl > 0 && kl <= bar) {
				t.Errorf("mean KL divergence %.3g, allowed %.3g", kl, bar)
			}
		})
	}
}

// A device without kernels for it says so, and takes float32 unless told.
func TestInt8Refused(t *testing.T) {
	for _, r := range devices(t, "floor") {
		cfg := r.config(engine.Config{Data: demo.Model(), Name: demo.Name, Context: 64, Activations: engine.ActivationsInt8})
		e, err := engine.Open(cfg)
		if err == nil {
			e.Close()
		}
		if !errors.Is(err, shaders.ErrNotPacked) || !strings.Contains(err.Error(), ", profile floor: ") {
			t.Fatalf("%s: %v", r.name, err)
		}
		// The profile is named as the reason where it is.
		cfg.Profile = ""
		whole, werr := engine.Open(cfg)
		if werr == nil {
			whole.Close()
		}
		if strings.Contains(err.Error(), "--profile auto, with which the device could") != (werr == nil) {
			t.Errorf("%s: %v; without the profile %v", r.name, err, werr)
		}
	}
}
