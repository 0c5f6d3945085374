package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
)

// The three files of which every test here is a variation.
var files = []string{"qwen35moe-f32", "qwen35-f32", "qwen3next-f32"}

// Sound files bind all their tensors, and what they bind is what they hold.
func TestNew(t *testing.T) {
	for _, name := range files {
		d := load(t, name)
		m := d.model()
		if len(m.Warnings) != 0 || len(m.Unused) != 0 || m.Vocab != 512 || len(m.layers) != m.Layers {
			t.Errorf("%s: warnings %q, unused %q, vocabulary %d, %d layers of %d", name, m.Warnings, m.Unused, m.Vocab, len(m.layers), m.Layers)
		}
		if m.MoE() && (m.ExpertFFN != 32 || m.SharedFFN != 32) {
			t.Errorf("%s: experts of %d, the shared one of %d", name, m.ExpertFFN, m.SharedFFN)
		}
		size := int64(0)
		for _, x := range d.tensors {
			size += int64(len(x.data))
		}
		bound := int64(0)
		for _, it := range m.Weights {
			b, err := it.Bytes()
			if err != nil || int64(len(b)) != it.Buf.Size || it.Buf.Kind != shaders.Weight {
				t.Errorf("%s: weights %s: %d bytes in a %v buffer of %d, %v", name, it.Buf.Name, len(b), it.Buf.Kind, it.Buf.Size, err)
			}
			if it.Tensor != nil && it.Tensor.Name != it.Buf.Name {
				t.Errorf("%s: buffer %s of tensor %s", name, it.Buf.Name, it.Tensor.Name)
			}
			bound += it.Buf.Size
		}
		if bound != size {
			t.Errorf("%s: %d bytes of weights, the file has %d", name, bound, size)
		}
	}
}

// Of every tensor of a layer of each kind: without it, or with one row too many, the file is refused with
// the tensor's name.
func TestEveryTensor(t *testing.T) {
	for _, name := range files {
		base := load(t, name)
		last := fmt.Sprintf("blk.%d.", len(base.model().layers)-1)
		for _, x := range base.tensors {
			if strings.HasPrefix(x.name, "blk.") && !strings.HasPrefix(x.name, "blk.0.") && !strings.HasPrefix(x.name, last) {
				continue // like one of these two
			}
			d := base.clone()
			d.remove(x.name)
			_, err := New(d.open())
			switch {
			case x.name == "output.weight":
				if err != nil {
					t.Errorf("%s with a tied head: %v", name, err)
				}
			case strings.HasSuffix(x.name, "ssm_ba.weight"):
				// Then alpha and beta have to be there by themselves.
				if err == nil || !strings.Contains(err.Error(), "ssm_beta.weight") {
					t.Errorf("%s without %s: %v", name, x.name, err)
				}
			case err == nil || !strings.Contains(err.Error(), x.name):
				t.Errorf("%s without %s: %v", name, x.name, err)
			case errors.Is(err, ErrUnsupported):
				t.Errorf("%s without %s is said to be sound: %v", name, x.name, err)
			}
			for i := range x.dims {
				d := base.clone()
				dims := d.tensor(x.name).dims
				dims[i]++
				d.zeros(x.name, x.typ, dims...)
				_, err := New(d.open())
				what := x.name
				if what == "token_embd.weight" && i == 1 {
					what = "output.weight" // the vocabulary has no key: the two disagree
				}
				if err == nil || !strings.Contains(err.Error(), what) {
					t.Errorf("%s with %s of %v: %v", name, x.name, dims, err)
				}
				if i == 0 {
					continue
				}
				// The container allows a dimension of 0, a model has none.
				d = base.clone()
				dims = d.tensor(x.name).dims
				dims[i] = 0
				d.zeros(x.name, x.typ, dims...)
				if _, err := New(d.open()); err == nil || !strings.Contains(err.Error(), x.name) {
					t.Errorf("%s with %s of %v: %v", name, x.name, dims, err)
				}
			}
		}
	}
}

func TestTensorRules(t *testing.T) {
	const moe, dense, next = "qwen35moe-f32", "qwen35-f32", "qwen3next-f32"
	retype := func(typ quant.Type, names ...string) func(*draft) {
		return func(d *draft) {
			for _, n := range names {
				d.zeros(n, typ, d.tensor(n).dims...)
			}
		}
	}
	reshape := func(name string, dims ...uint64) func(*draft) {
		return func(d *draft) { d.tensor(name).dims = dims }
	}
	values := func(name string, edit func([]float32)) func(*draft) {
		return func(d *draft) {
			f := d.floats(name)
			edit(f)
			d.encode(name, d.tensor(name).typ, f)
		}
	}
	rename := func(from, to string) func(*draft) {
		return func(d *draft) { d.tensor(from).name = to }
	}
	for _, c := range []struct {
		name, file string
		edit       func(*draft)
		err        []string // parts of the error, none for a file that is accepted
		refused    bool     // the error is an ErrUnsupported
	}{
		// Types.
		{"Q5_0 matrix", moe, retype(quant.Q5_0, "blk.0.attn_qkv.weight"), nil, false},
		{"MXFP4 experts", moe, retype(quant.MXFP4, "blk.1.ffn_up_exps.weight"), nil, false},
		{"NVFP4 matrix", dense, retype(quant.NVFP4, "blk.0.ffn_up.weight"), nil, false},
		{"IQ4_NL embedding", dense, retype(quant.IQ4_NL, "token_embd.weight"), nil, false},
		{"Q4_1 head", dense, retype(quant.Q4_1, "output.weight"), nil, false},
		{"Q5_1 fused input", next, retype(quant.Q5_1, "blk.0.ssm_ba.weight"), nil, false},
		{"Q8_1 matrix", dense, retype(quant.Q8_1, "blk.0.ffn_up.weight"), []string{"blk.0.ffn_up.weight", "Q8_1"}, true},
		{"I32 matrix", dense, retype(quant.I32, "blk.0.ssm_out.weight"), []string{"blk.0.ssm_out.weight", "I32"}, true},
		{"Q8_0 norm", dense, retype(quant.Q8_0, "blk.0.attn_norm.weight"), []string{"blk.0.attn_norm.weight", "Q8_0"}, false},
		{"F64 norm", dense, retype(quant.F64, "output_norm.weight"), []string{"output_norm.weight", "F64"}, false},
		{"Q8_0 router and gates", moe, retype(quant.Q8_0, "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight"), nil, false},
		{"BF16 router and gates", moe, retype(quant.BF16, "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight"), nil, false},
		{"types mixed in a layer", moe, func(d *draft) {
			retype(quant.Q4_0, "blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight")(d)
			retype(quant.Q4_K, "blk.0.ssm_out.weight", "blk.3.attn_output.weight")(d)
			retype(quant.Q6_K, "blk.1.ssm_out.weight")(d)
			retype(quant.Q5_K, "blk.2.ssm_out.weight")(d)
		}, nil, false},

		// Shapes.
		{"gate with a trailing one", moe, reshape("blk.0.ffn_gate_inp_shexp.weight", 64, 1), nil, false},
		{"gate with trailing ones", moe, reshape("blk.0.ffn_gate_inp_shexp.weight", 64, 1, 1, 1), nil, false},
		{"vectors with trailing ones", moe, func(d *draft) {
			reshape("blk.0.ssm_a", 4, 1)(d)
			reshape("blk.0.ssm_dt.bias", 4, 1, 1)(d)
			reshape("blk.0.attn_norm.weight", 64, 1)(d)
			reshape("blk.0.ssm_conv1d.weight", 4, 1024, 1)(d)
		}, nil, false},
		{"matrix with a trailing one", dense, reshape("blk.0.ffn_up.weight", 64, 128, 1), nil, false},
		{"gate with a leading one", moe, reshape("blk.0.ffn_gate_inp_shexp.weight", 1, 64), []string{"blk.0.ffn_gate_inp_shexp.weight", "[1 64]", "[64 1]"}, false},
		{"convolution in the checkpoint's shape", moe, reshape("blk.0.ssm_conv1d.weight", 4, 1, 1024), []string{"blk.0.ssm_conv1d.weight", "[4 1 1024]", "[4 1024]"}, false},
		{"transposed", dense, reshape("blk.0.ffn_up.weight", 128, 64), []string{"blk.0.ffn_up.weight", "[128 64]", "[64 128]"}, false},
		{"one of several", dense, func(d *draft) { d.zeros("blk.0.ffn_up.weight", quant.F32, 64, 128, 2) }, []string{"blk.0.ffn_up.weight", "[64 128 2]"}, false},
		{"flat", dense, reshape("blk.0.ffn_up.weight", 64*128), []string{"blk.0.ffn_up.weight", "[8192]"}, false},
		{"rows that no kernel takes", dense, func(d *draft) {
			d.set("feed_forward_length", uint32(16))
			for i := range 3 {
				blk := fmt.Sprintf("blk.%d.", i)
				d.zeros(blk+"ffn_gate.weight", quant.F32, 64, 16)
				d.zeros(blk+"ffn_up.weight", quant.F32, 64, 16)
				d.zeros(blk+"ffn_down.weight", quant.F32, 16, 64)
			}
		}, []string{"blk.0.ffn_down.weight", "rows of 16"}, true},
		{"the keys of another model", dense, func(d *draft) {
			d.set("ssm.group_count", uint32(4))
		}, []string{"blk.0.ssm_conv1d.weight", "[4 1024]", "[4 1536]"}, false},
		{"no vocabulary", dense, func(d *draft) {
			d.zeros("token_embd.weight", quant.F32, 64, 0)
			d.remove("output.weight")
		}, []string{"token_embd.weight", "[64 0]"}, false},
		{"experts of no width", moe, func(d *draft) {
			d.zeros("blk.0.ffn_down_exps.weight", quant.F32, 0, 64, 8)
			d.zeros("blk.0.ffn_gate_exps.weight", quant.F32, 64, 0, 8)
			d.zeros("blk.0.ffn_up_exps.weight", quant.F32, 64, 0, 8)
		}, []string{"blk.0.ffn_down_exps.weight", "[0 64 8]"}, false},
		{"a shared expert of no width", moe, func(d *draft) {
			d.zeros("blk.0.ffn_down_shexp.weight", quant.F32, 0, 64)
			d.zeros("blk.0.ffn_gate_shexp.weight", quant.F32, 64, 0)
			d.zeros("blk.0.ffn_up_shexp.weight", quant.F32, 64, 0)
		}, []string{"blk.0.ffn_down_shexp.weight", "[0 64]"}, false},
		{"a head of another vocabulary", dense, func(d *draft) { d.zeros("output.weight", quant.F32, 64, 511) }, []string{"output.weight", "[64 511]", "[64 512]"}, false},

		// Kinds of layers.
		{"a delta net where the keys say attention", moe, func(d *draft) {
			d.set("attention.recurrent_layers", []bool{false, true, true, false})
		}, []string{"layer 0 is an attention layer", "blk.0.ssm_a"}, false},
		{"attention where the keys say delta net", moe, func(d *draft) {
			d.set("attention.recurrent_layers", []bool{true, true, true, true})
		}, []string{"layer 3 is a delta-net layer", "blk.3.attn_q.weight"}, false},
		{"both kinds", moe, func(d *draft) {
			d.add("blk.1.attn_q.weight", quant.F32, make([]byte, 4*64), 64)
		}, []string{"layer 1 is a delta-net layer", "blk.1.attn_q.weight"}, false},
		{"neither kind", moe, func(d *draft) { d.remove("blk.1.ssm_a") }, []string{"layer 1 is a delta-net layer", "blk.1.ssm_a"}, false},
		{"fused attention", moe, func(d *draft) {
			d.remove("blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_v.weight")
			d.add("blk.3.attn_qkv.weight", quant.F32, make([]byte, 4*64*1536), 64, 1536)
		}, []string{"blk.3.attn_qkv.weight", "separate"}, true},
		{"blocks counted without the last", moe, func(d *draft) { d.set("block_count", uint32(5)) }, []string{"layer 4", "blk.4.ssm_a"}, false},
		{"only a block for prediction", moe, func(d *draft) {
			d.tensors = slices.DeleteFunc(d.tensors, func(x *tensor) bool { return strings.HasPrefix(x.name, "blk.0.") })
		}, []string{"layer 0", "blk.0.ssm_a"}, false},

		// Values.
		{"A_log", moe, values("blk.1.ssm_a", func(f []float32) { f[2] = 0.25 }), []string{"blk.1.ssm_a", "0.25", "-exp(A_log)"}, false},
		{"A_log in F16", moe, func(d *draft) {
			f := d.floats("blk.1.ssm_a")
			f[0] = 2
			d.encode("blk.1.ssm_a", quant.F16, f)
		}, []string{"blk.1.ssm_a", "holds 2"}, false},
		{"NaN decay", moe, values("blk.0.ssm_a", func(f []float32) { f[0] = float32(math.NaN()) }), []string{"blk.0.ssm_a", "NaN"}, false},
		{"zero decay", moe, values("blk.0.ssm_a", func(f []float32) { f[0], f[1] = 0, float32(math.Copysign(0, -1)) }), nil, false},

		// Layouts that contradict each other.
		{"grouped alpha and beta among tiled heads", moe, func(d *draft) {
			d.remove("blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight")
			d.add("blk.0.ssm_ba.weight", quant.F32, make([]byte, 4*64*8), 64, 8)
		}, []string{"blk.0.ssm_ba.weight", "order"}, true},
		{"grouped projections among tiled heads", moe, func(d *draft) {
			d.remove("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight")
			d.add("blk.0.ssm_in.weight", quant.F32, make([]byte, 4*64*1536), 64, 1536)
		}, []string{"blk.0.ssm_in.weight", "order"}, true},
		{"qwen3next said to be tiled", next, func(d *draft) { d.set("ssm.v_head_reordered", true) }, []string{"blk.0.ssm_ba.weight", "order"}, true},
		{"up projection first", moe, rename("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_gate_exps.weight"), []string{"blk.0.ffn_gate_exps.weight is missing"}, false},
		{"scaled matrix", dense, func(d *draft) { d.add("blk.1.ffn_up.scale", quant.F32, []byte{0, 0, 0, 64}, 1) }, []string{"blk.1.ffn_up.scale"}, true},
		{"scale of a tensor that is not used", dense, func(d *draft) { d.add("v.blk.1.ffn_up.scale", quant.F32, []byte{0, 0, 0, 64}, 1) }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, c.file)
			c.edit(d)
			m, err := New(d.open())
			if err == nil && c.err != nil {
				t.Fatalf("accepted: %+v", m.Config)
			}
			if err != nil && c.err == nil {
				t.Fatal(err)
			}
			for _, part := range c.err {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want %q in it", err, part)
				}
			}
			if err != nil && errors.Is(err, ErrUnsupported) != c.refused {
				t.Errorf("%v (unsupported: %t, want %t)", err, !c.refused, c.refused)
			}
		})
	}
}

// Norms that a converter left without its +1 are pointed out; the file runs.
func TestNormWarning(t *testing.T) {
	for _, c := range []struct {
		mean float32
		typ  quant.Type
		warn bool
	}{{0.02, quant.F32, true}, {0.49, quant.F32, true}, {0.02, quant.F16, true}, {0.51, quant.F32, false}, {1, quant.BF16, false}} {
		d := load(t, "qwen35-f32")
		f := d.floats("blk.0.attn_norm.weight")
		for i := range f {
			f[i] = c.mean
		}
		d.encode("blk.0.attn_norm.weight", c.typ, f)
		m := d.model()
		if (len(m.Warnings) == 1) != c.warn || (c.warn && !strings.Contains(m.Warnings[0], "blk.0.attn_norm.weight")) {
			t.Errorf("norms of %g: warnings %q", c.mean, m.Warnings)
		}
	}
}

// withMTP adds a block for multi-token prediction after the last, made of the last layer's tensors.
func withMTP(d *draft, tensors bool) (names []string) {
	n := uint32(len(d.model().layers))
	d.set("block_count", n+1)
	d.set("nextn_predict_layers", uint32(1))
	if !tensors {
		return nil
	}
	from, to := fmt.Sprintf("blk.%d.", n-1), fmt.Sprintf("blk.%d.", n)
	for _, x := range slices.Clone(d.tensors) {
		if rest, ok := strings.CutPrefix(x.name, from); ok {
			d.add(to+rest, x.typ, x.data, x.dims...)
			names = append(names, to+rest)
		}
	}
	e := uint64(len(d.floats("output_norm.weight")))
	for _, x := range []struct {
		name string
		dims []uint64
	}{
		{"nextn.eh_proj.weight", []uint64{2 * e, e}}, {"nextn.enorm.weight", []uint64{e}},
		{"nextn.hnorm.weight", []uint64{e}}, {"nextn.shared_head_norm.weight", []uint64{e}},
	} {
		n := e
		if len(x.dims) == 2 {
			n *= 2 * e
		}
		d.add(to+x.name, quant.F32, make([]byte, 4*n), x.dims...)
		names = append(names, to+x.name)
	}
	return names
}

// What the graph has no use for is listed and changes nothing, even if its type is one that no kernel reads.
func TestUnused(t *testing.T) {
	for _, name := range files {
		base := load(t, name)
		want := base.logits()
		for _, c := range []struct {
			name string
			edit func(*draft) []string
		}{
			{"announced block for prediction", func(d *draft) []string { return withMTP(d, false) }},
			{"block for prediction", func(d *draft) []string { return withMTP(d, true) }},
			{"vision", func(d *draft) []string {
				names := []string{"v.patch_embd.weight", "v.blk.0.attn_q.weight", "mm.0.weight", "rope_freqs.weight"}
				for _, n := range names {
					d.add(n, quant.IQ2_XXS, make([]byte, 66), 256)
				}
				return names
			}},
			{"layers beyond the last", func(d *draft) []string {
				n := "blk.77.attn_norm.weight"
				d.add(n, quant.F32, make([]byte, 4), 1)
				return []string{n}
			}},
		} {
			d := base.clone()
			unused := c.edit(d)
			m, err := New(d.open())
			if err != nil {
				t.Errorf("%s with %s: %v", name, c.name, err)
				continue
			}
			if !slices.Equal(m.Unused, unused) {
				t.Errorf("%s with %s: unused %q, want %q", name, c.name, m.Unused, unused)
			}
			if got := logits(t, m, d.prompt, len(d.prompt), nil); !slices.Equal(got, want) {
				t.Errorf("%s with %s: other logits", name, c.name)
			}
		}
	}
}
