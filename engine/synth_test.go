package engine_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// A synth is a model of the qwen35moe family with random weights, small enough for thousands of requests on a
// software device, whose logits are far from flat.
type synth struct {
	layers, interval              int // every interval-th layer attends
	embed, heads, headDim, rotary int // with one KV head
	stateDim, keyHeads, valHeads  int
	experts, used, ff             int
	context                       int
	words                         bool // the demo model's vocabulary; otherwise 256 tokens without text
	// How much larger than usual logits are, what attention contributes, which averages out over random tokens, and how
	// far apart its scores are.
	headGain, attnGain, focus float64
}

// small has a layer that attends between two delta-net layers, so that whatever attention does shows in the state.
var small = synth{layers: 3, interval: 2, embed: 32, heads: 1, headDim: 32, rotary: 16, stateDim: 16, keyHeads: 1, valHeads: 2,
	experts: 4, used: 2, ff: 32, context: 1 << 16, headGain: 4, attnGain: 4, focus: 1.5}

// chatty is the same with a vocabulary, so that it understands text and the structure of chats.
var chatty = func() synth { s := small; s.words = true; return s }()

// t35 is a mixture of eight layers of which the fourth and the eighth attend, with 16 experts, four of them used.
var t35 = synth{layers: 8, interval: 4, embed: 32, heads: 2, headDim: 32, rotary: 16, stateDim: 16, keyHeads: 2, valHeads: 4,
	experts: 16, used: 4, ff: 32, context: 1 << 16, words: true, headGain: 1, attnGain: 1, focus: 1}

// synths are the files that were made, by model.
var synths sync.Map

// config opens the model.
func (s synth) config(t testing.TB) engine.Config {
	t.Helper()
	b, ok := synths.Load(s)
	if !ok {
		b, _ = synths.LoadOrStore(s, s.file(t))
	}
	return engine.Config{Data: b.([]byte), Name: "synthetic", Context: 2048}
}

// file makes the model's file. The same model gives the same bytes.
func (s synth) file(t testing.TB) []byte {
	t.Helper()
	var w gguf.Writer
	vocab := 256
	set := func(key string, v any) {
		t.Helper()
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	set("general.architecture", "qwen35moe")
	for _, k := range []struct {
		key string
		n   int
	}{
		{"block_count", s.layers}, {"context_length", s.context}, {"embedding_length", s.embed}, {"full_attention_interval", s.interval},
		{"attention.head_count", s.heads}, {"attention.head_count_kv", 1}, {"attention.key_length", s.headDim}, {"attention.value_length", s.headDim},
		{"rope.dimension_count", s.rotary},
		{"ssm.conv_kernel", 4}, {"ssm.state_size", s.stateDim}, {"ssm.group_count", s.keyHeads}, {"ssm.time_step_rank", s.valHeads},
		{"ssm.inner_size", s.valHeads * s.stateDim},
		{"expert_count", s.experts}, {"expert_used_count", s.used}, {"expert_feed_forward_length", s.ff}, {"expert_shared_feed_forward_length", s.ff},
	} {
		set("qwen35moe."+k.key, uint32(k.n))
	}
	set("qwen35moe.attention.layer_norm_rms_epsilon", float32(1e-6))
	set("qwen35moe.rope.freq_base", float32(1e6))
	set("qwen35moe.rope.dimension_sections", []int32{int32(s.rotary/2 - 4), 2, 2, 0})
	if s.words {
		f, err := gguf.OpenBytes(demo.Name, demo.Model())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for key, v := range f.KeyValues() {
			if strings.HasPrefix(key, "tokenizer.") {
				set(key, v)
			}
		}
		tokens, err := f.Strings("tokenizer.ggml.tokens")
		if err != nil {
			t.Fatal(err)
		}
		vocab = len(tokens)
	}
	r := rand.New(rand.NewPCG(35, uint64(s.layers)))
	add := func(name string, value func() float64, dims ...int) {
		t.Helper()
		n, ds := 1, []uint64(nil)
		for _, d := range dims {
			n *= d
			ds = append(ds, uint64(d))
		}
		b := make([]byte, 0, 4*n)
		for range n {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(value())))
		}
		if err := w.AddTensor(name, quant.F32, ds, b); err != nil {
			t.Fatal(err)
		}
	}
	// Results of a matrix of gain 1 are as large as its inputs.
	matrix := func(gain float64, in int) func() float64 {
		return func() float64 { return gain * r.NormFloat64() / math.Sqrt(float64(in)) }
	}
	around := func(mid, width float64) func() float64 {
		return func() float64 { return mid + width*(r.Float64()-0.5) }
	}
	norm := around(1, 0.2)
	e, vw := s.embed, s.valHeads*s.stateDim
	channels := 2*s.keyHeads*s.stateDim + vw
	add("token_embd.weight", r.NormFloat64, e, vocab)
	for i := range s.layers {
		blk := func(name string, value func() float64, dims ...int) {
			t.Helper()
			add(fmt.Sprintf("blk.%d.%s", i, name), value, dims...)
		}
		blk("attn_norm.weight", norm, e)
		blk("post_attention_norm.weight", norm, e)
		if (i+1)%s.interval == 0 {
			blk("attn_q.weight", matrix(1, e), e, 2*s.headDim*s.heads)
			blk("attn_k.weight", matrix(1, e), e, s.headDim)
			blk("attn_v.weight", matrix(1, e), e, s.headDim)
			blk("attn_output.weight", matrix(s.attnGain, s.headDim*s.heads), s.headDim*s.heads, e)
			blk("attn_q_norm.weight", around(s.focus, 0.2), s.headDim)
			blk("attn_k_norm.weight", around(s.focus, 0.2), s.headDim)
		} else {
			blk("attn_qkv.weight", matrix(1, e), e, channels)
			blk("attn_gate.weight", matrix(1, e), e, vw)
			blk("ssm_alpha.weight", matrix(1, e), e, s.valHeads)
			blk("ssm_beta.weight", matrix(1, e), e, s.valHeads)
			blk("ssm_a", func() float64 { return -math.Exp(3*r.Float64() - 4) }, s.valHeads) // remembers up to hundreds of tokens
			blk("ssm_dt.bias", around(-2, 2), s.valHeads)
			blk("ssm_conv1d.weight", around(0, 1), 4, channels)
			blk("ssm_norm.weight", norm, s.stateDim)
			blk("ssm_out.weight", matrix(1, vw), vw, e)
		}
		blk("ffn_gate_inp.weight", matrix(6, e), e, s.experts) // so decided that rounding seldom changes the choice
		blk("ffn_gate_exps.weight", matrix(1, e), e, s.ff, s.experts)
		blk("ffn_up_exps.weight", matrix(1, e), e, s.ff, s.experts)
		blk("ffn_down_exps.weight", matrix(1, s.ff), s.ff, e, s.experts)
		blk("ffn_gate_inp_shexp.weight", matrix(1, e), e)
		blk("ffn_gate_shexp.weight", matrix(1, e), e, s.ff)
		blk("ffn_up_shexp.weight", matrix(1, e), e, s.ff)
		blk("ffn_down_shexp.weight", matrix(1, s.ff), s.ff, e)
	}
	add("output_norm.weight", norm, e)
	add("output.weight", matrix(s.headGain, e), e, vocab)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
