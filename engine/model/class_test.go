package model

import "testing"

func TestClassOf(t *testing.T) {
	for name, want := range map[string]Class{
		"token_embd.weight": ClassEmbedding, "output.weight": ClassOutput, "output_norm.weight": ClassOther,
		"blk.0.attn_q.weight": ClassAttention, "blk.3.attn_output.weight": ClassAttention, "blk.3.attn_q_norm.weight": ClassOther,
		"blk.0.attn_qkv.weight": ClassDeltaNet, "blk.0.attn_gate.weight": ClassDeltaNet, "blk.11.ssm_a": ClassDeltaNet,
		"blk.11.ssm_dt.bias": ClassDeltaNet, "blk.0.ssm_in.weight": ClassDeltaNet, "blk.0.ssm_ba.weight": ClassDeltaNet,
		"blk.0.attn_norm.weight": ClassOther, "blk.0.post_attention_norm.weight": ClassOther,
		"blk.0.ffn_gate_inp.weight": ClassOther, "blk.0.ffn_gate_inp_shexp.weight": ClassOther,
		"blk.0.ffn_gate_exps.weight": ClassExperts, "blk.0.ffn_gate_up_exps.weight": ClassExperts, "blk.9.ffn_down_exps.weight": ClassExperts,
		"blk.0.ffn_up_shexp.weight": ClassShared, "blk.0.ffn_up.weight": ClassDense, "blk.0.ffn_down.weight": ClassDense,
		"rope_freqs.weight": ClassOther, "blk.": ClassOther, "": ClassOther,
	} {
		if got := ClassOf(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	seen := map[Class]bool{}
	for _, c := range Classes() {
		if c == "" || seen[c] {
			t.Errorf("class %q is there twice", c)
		}
		seen[c] = true
	}
}
