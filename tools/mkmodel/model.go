package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// options are what a file is made from.
type options struct {
	Model                  string
	Layers, Experts, Vocab int // 0: the model's
	Mix                    string
	Seed                   uint64
	Header                 bool // only the header; the data is a hole
}

// A shape is a released model's dimensions (model-qwen35.md section 1). The values that are the same for all of
// the family are constants below.
type shape struct {
	name, arch     string
	layers, embed  int
	ffn            int // dense width; 0 in a mixture
	heads, kvHeads int
	valueHeads     int
	experts, used  int
	expertFFN      int // the shared expert's too
	vocab          int
	tied           bool
}

const (
	headDim  = 256
	rotary   = 64
	stateDim = 128
	keyHeads = 16
	convTaps = 4
	interval = 4 // every fourth layer attends
	context  = 262144
)

var shapes = []shape{
	{"0.8B", "qwen35", 24, 1024, 3584, 8, 2, 16, 0, 0, 0, 248320, true},
	{"2B", "qwen35", 24, 2048, 6144, 8, 2, 16, 0, 0, 0, 248320, true},
	{"4B", "qwen35", 32, 2560, 9216, 16, 4, 32, 0, 0, 0, 248320, true},
	{"9B", "qwen35", 32, 4096, 12288, 16, 4, 32, 0, 0, 0, 248320, false},
	{"27B", "qwen35", 64, 5120, 17408, 24, 4, 48, 0, 0, 0, 248320, false},
	{"35B-A3B", "qwen35moe", 40, 2048, 0, 16, 2, 32, 256, 8, 512, 248320, false},
	{"122B-A10B", "qwen35moe", 48, 3072, 0, 32, 2, 64, 256, 8, 1024, 248320, false},
	{"397B-A17B", "qwen35moe", 60, 4096, 0, 32, 2, 64, 512, 10, 1024, 248320, false},
	{"80B-A3B", "qwen3next", 48, 2048, 0, 16, 2, 32, 512, 10, 512, 151936, false},
}

// defaultModels are the models that -arch stands for.
var defaultModels = map[string]string{"qwen35moe": "35B-A3B", "qwen35": "9B", "qwen3next": "80B-A3B"}

func modelNames() []string {
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	return names
}

// find returns the shape that options ask for.
func find(o options) (shape, error) {
	i := slices.IndexFunc(shapes, func(s shape) bool { return strings.EqualFold(s.name, o.Model) })
	if i < 0 {
		return shape{}, fmt.Errorf("unknown model %q; there are %s", o.Model, strings.Join(modelNames(), ", "))
	}
	s := shapes[i]
	set := func(dst *int, v int) {
		if v > 0 {
			*dst = v
		}
	}
	set(&s.layers, o.Layers)
	set(&s.vocab, o.Vocab)
	if s.experts > 0 {
		set(&s.experts, o.Experts)
		s.used = min(s.used, s.experts)
	}
	switch {
	case o.Layers < 0 || s.layers > gguf.MaxBlockCount:
		return s, fmt.Errorf("-layers is %d; use 1 to %d, or 0 for the model's", o.Layers, gguf.MaxBlockCount)
	case o.Experts < 0 || s.experts > 1<<12:
		return s, fmt.Errorf("-experts is %d; use 1 to %d, or 0 for the model's", o.Experts, 1<<12)
	case o.Vocab < 0 || s.vocab < minVocab || s.vocab > maxVocab:
		return s, fmt.Errorf("-vocab is %d; use %d to %d, or 0 for the model's", o.Vocab, minVocab, maxVocab)
	}
	return s, nil
}

// write makes the file at path.
func write(path string, o options) error {
	s, err := find(o)
	if err != nil {
		return err
	}
	m, err := parseMix(o.Mix)
	if err != nil {
		return err
	}
	var w gguf.Writer
	if err := s.metadata(&w, m, o); err != nil {
		return err
	}
	for _, t := range s.tensors() {
		typ := quant.F32
		if t.kind == matrix {
			if typ, err = m.pick(t, s); err != nil {
				return err
			}
		}
		fill, err := filler(t, typ, o.Seed)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
		if err := w.AddTensorFunc(t.name, typ, t.dims, func(out io.Writer) error { return fill(out) }); err != nil {
			return err
		}
	}
	if o.Header {
		return w.WriteHole(path)
	}
	return w.WriteFile(path)
}

// metadata sets the keys of model-qwen35.md section 2.
func (s shape) metadata(w *gguf.Writer, m mix, o options) error {
	type kv struct {
		key   string
		value any
	}
	a := s.arch + "."
	keys := []kv{
		{"general.architecture", s.arch},
		{"general.type", "model"},
		{"general.name", fmt.Sprintf("synthetic slice of %s, %d layers, seed %d", s.name, s.layers, o.Seed)},
		{"general.size_label", s.name},
		{"general.file_type", m.fileType},
		{"general.quantization_version", uint32(2)},
		{a + "block_count", uint32(s.layers)},
		{a + "context_length", uint32(context)},
		{a + "embedding_length", uint32(s.embed)},
		{a + "attention.head_count", uint32(s.heads)},
		{a + "attention.head_count_kv", uint32(s.kvHeads)},
		{a + "attention.key_length", uint32(headDim)},
		{a + "attention.value_length", uint32(headDim)},
		{a + "attention.layer_norm_rms_epsilon", float32(1e-6)},
		{a + "full_attention_interval", uint32(interval)},
		{a + "rope.freq_base", float32(1e7)},
		{a + "rope.dimension_count", uint32(rotary)},
		{a + "ssm.conv_kernel", uint32(convTaps)},
		{a + "ssm.state_size", uint32(stateDim)},
		{a + "ssm.group_count", uint32(keyHeads)},
		{a + "ssm.time_step_rank", uint32(s.valueHeads)},
		{a + "ssm.inner_size", uint32(s.valueHeads * stateDim)},
	}
	if s.arch != "qwen3next" {
		keys = append(keys, kv{a + "rope.dimension_sections", []int32{11, 11, 10, 0}})
	}
	if s.experts > 0 {
		keys = append(keys,
			kv{a + "expert_count", uint32(s.experts)}, kv{a + "expert_used_count", uint32(s.used)},
			kv{a + "expert_feed_forward_length", uint32(s.expertFFN)}, kv{a + "expert_shared_feed_forward_length", uint32(s.expertFFN)})
	} else {
		keys = append(keys, kv{a + "feed_forward_length", uint32(s.ffn)})
	}
	v := newVocabulary(s)
	keys = append(keys,
		kv{"tokenizer.ggml.model", "gpt2"}, kv{"tokenizer.ggml.pre", v.pre},
		kv{"tokenizer.ggml.tokens", v.tokens}, kv{"tokenizer.ggml.token_type", v.types}, kv{"tokenizer.ggml.merges", v.merges},
		kv{"tokenizer.ggml.eos_token_id", v.eos}, kv{"tokenizer.ggml.padding_token_id", v.pad}, kv{"tokenizer.ggml.add_bos_token", false})
	for _, k := range keys {
		if err := w.Set(k.key, k.value); err != nil {
			return err
		}
	}
	return nil
}

// kind is what a tensor's values are like.
type kind int

const (
	matrix kind = iota // quantised, values of variance 1/inputs
	router             // the same in F32
	norm               // about 1
	decay              // ssm_a: -exp(A_log)
	bias               // ssm_dt.bias
	conv               // taps of the convolution
)

// A tensor is what there is to fill.
type tensor struct {
	name  string
	kind  kind
	block int // layer, -1 outside of them
	dims  []uint64
}

// tensors lists a model's tensors in the order of a converter: embedding, layers, head (model-qwen35.md 3.1).
func (s shape) tensors() []tensor {
	var ts []tensor
	add := func(block int, name string, k kind, dims ...int) {
		t := tensor{name: name, kind: k, block: block}
		if block >= 0 {
			t.name = fmt.Sprintf("blk.%d.%s", block, name)
		}
		for _, d := range dims {
			t.dims = append(t.dims, uint64(d))
		}
		ts = append(ts, t)
	}
	e, vw := s.embed, s.valueHeads*stateDim
	channels := 2*keyHeads*stateDim + vw
	add(-1, "token_embd.weight", matrix, e, s.vocab)
	for i := range s.layers {
		add(i, "attn_norm.weight", norm, e)
		add(i, "post_attention_norm.weight", norm, e)
		if (i+1)%interval == 0 {
			add(i, "attn_q.weight", matrix, e, 2*headDim*s.heads)
			add(i, "attn_k.weight", matrix, e, headDim*s.kvHeads)
			add(i, "attn_v.weight", matrix, e, headDim*s.kvHeads)
			add(i, "attn_output.weight", matrix, headDim*s.heads, e)
			add(i, "attn_q_norm.weight", norm, headDim)
			add(i, "attn_k_norm.weight", norm, headDim)
		} else {
			add(i, "attn_qkv.weight", matrix, e, channels)
			add(i, "attn_gate.weight", matrix, e, vw)
			if s.arch == "qwen3next" {
				add(i, "ssm_ba.weight", matrix, e, 2*s.valueHeads)
			} else {
				add(i, "ssm_alpha.weight", matrix, e, s.valueHeads)
				add(i, "ssm_beta.weight", matrix, e, s.valueHeads)
			}
			add(i, "ssm_a", decay, s.valueHeads)
			add(i, "ssm_dt.bias", bias, s.valueHeads)
			add(i, "ssm_conv1d.weight", conv, convTaps, channels)
			add(i, "ssm_norm.weight", norm, stateDim)
			add(i, "ssm_out.weight", matrix, vw, e)
		}
		if s.experts == 0 {
			add(i, "ffn_gate.weight", matrix, e, s.ffn)
			add(i, "ffn_up.weight", matrix, e, s.ffn)
			add(i, "ffn_down.weight", matrix, s.ffn, e)
			continue
		}
		f := s.expertFFN
		add(i, "ffn_gate_inp.weight", router, e, s.experts)
		add(i, "ffn_gate_exps.weight", matrix, e, f, s.experts)
		add(i, "ffn_up_exps.weight", matrix, e, f, s.experts)
		add(i, "ffn_down_exps.weight", matrix, f, e, s.experts)
		add(i, "ffn_gate_inp_shexp.weight", router, e)
		add(i, "ffn_gate_shexp.weight", matrix, e, f)
		add(i, "ffn_up_shexp.weight", matrix, e, f)
		add(i, "ffn_down_shexp.weight", matrix, f, e)
	}
	add(-1, "output_norm.weight", norm, e)
	if !s.tied {
		add(-1, "output.weight", matrix, e, s.vocab)
	}
	return ts
}
