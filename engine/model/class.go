package model

import "strings"

// A Class is what a weight belongs to, for accounts of memory.
type Class string

// The classes in the order of a model.
const (
	ClassEmbedding Class = "embedding"
	ClassAttention Class = "attention"
	ClassDeltaNet  Class = "delta net"
	ClassExperts   Class = "routed experts"
	ClassShared    Class = "shared expert"
	ClassDense     Class = "dense FFN"
	ClassOutput    Class = "output"
	ClassOther     Class = "norms and other"
)

// Classes lists the classes in order.
func Classes() []Class {
	return []Class{
		ClassEmbedding, ClassAttention, ClassDeltaNet, ClassExperts, ClassShared, ClassDense, ClassOutput, ClassOther,
	}
}

// ClassOf returns the class of a tensor by its name (model-qwen35.md 3.1). Norms and routers are counted as other.
func ClassOf(name string) Class {
	switch {
	case strings.HasPrefix(name, "token_embd."):
		return ClassEmbedding
	case strings.HasPrefix(name, "output."):
		return ClassOutput
	case !strings.HasPrefix(name, "blk."):
		return ClassOther
	}
	_, name, _ = strings.Cut(strings.TrimPrefix(name, "blk."), ".")
	name, _, _ = strings.Cut(name, ".")
	switch name {
	case "attn_q", "attn_k", "attn_v", "attn_output":
		return ClassAttention
	case "attn_qkv", "attn_gate":
		return ClassDeltaNet
	case "ffn_gate_inp", "ffn_gate_inp_shexp":
		return ClassOther
	case "ffn_gate", "ffn_up", "ffn_down":
		return ClassDense
	}
	switch {
	case strings.HasPrefix(name, "ssm_"):
		return ClassDeltaNet
	case strings.HasSuffix(name, "_exps"):
		return ClassExperts
	case strings.HasSuffix(name, "_shexp"):
		return ClassShared
	}
	return ClassOther
}
