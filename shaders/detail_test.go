package shaders

import (
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
)

func TestDetail(t *testing.T) {
	m := Matrix{Type: quant.Q4_K, In: 2048, Out: 512, Experts: 256}
	other := m
	other.Type = quant.Q6_K
	ids := (&Buffer{Size: 32}).View()
	for want, op := range map[string]Op{
		"q4_k 2048x512":                 &MatMul{W: m.only()},
		"q6_k 2048x512":                 &Embed{W: other},
		"q4_k 2048x1024, q6_k 2048x512": &Project{W: []Matrix{m.only(), m.only(), other.only()}},
		"q4_k 2048x512 x8":              &ExpertDown{W: m, K: 8},
		"q4_k 2048x512 x4":              &ExpertGateUp{Gate: m, Up: m, Tiles: ids, K: 4},
		"q4_k+q6_k 2048x512 x2":         &ExpertGateUp{Gate: m, Up: other, Ids: ids, K: 2},
		"q6_k+q4_k 2048x512":            &ExpertGateUp{Gate: other, Up: m, K: 1},
		"8 of 256":                      &Router{K: 8, Experts: 256},
		"2048":                          &RMSNorm{X: Mat{Width: 2048}},
		"32/16 heads of 128":            &DeltaRule{VHeads: 32, KHeads: 16, Dim: 128},
		"16/2 heads of 256":             &Attention{Heads: 16, KVHeads: 2, Dim: 256},
		"1 of 248320":                   &TopK{K: 1, Logits: Mat{Width: 248320}},
		"":                              &GatedNorm{Heads: 4, Dim: 64},
	} {
		if got := Detail(op); got != want {
			t.Errorf("%T: %q, want %q", op, got, want)
		}
	}
}
