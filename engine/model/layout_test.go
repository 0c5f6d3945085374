package model

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/oracle"
)

// The same weights in another layout of the file compute the same logits. The oracle's numbers say that
// the logits of one layout are right; here every other one is held to it.

// rows is a tensor's bytes, row by row.
func (x *tensor) rows() [][]byte {
	rb, err := x.typ.RowBytes(x.dims[0])
	if err != nil {
		panic(err)
	}
	var rows [][]byte
	for r := range slices.Chunk(x.data, int(rb)) {
		rows = append(rows, r)
	}
	return rows
}

// heads groups rows by heads of n rows.
func heads(rows [][]byte, n int) [][][]byte { return slices.Collect(slices.Chunk(rows, n)) }

// join is the reverse of rows and heads: the bytes of everything in turn.
func join(parts ...[][]byte) []byte { return slices.Concat(slices.Concat(parts...)...) }

// blocks lists the prefixes of the layers that have a tensor.
func (d *draft) blocks(tensor string) (prefixes []string) {
	for i := range maxLayers {
		if blk := fmt.Sprintf("blk.%d.", i); d.has(blk + tensor) {
			prefixes = append(prefixes, blk)
		}
	}
	if len(prefixes) == 0 {
		d.t.Fatalf("no layer has a tensor %s", tensor)
	}
	return prefixes
}

// The delta net of all oracle files has 2 key heads and heads of 128; the value heads vary.
const keyHeads, headRows = 2, 128

// valueHeads counts the value heads.
func (d *draft) valueHeads() int {
	return int(d.tensor(d.blocks("ssm_a")[0] + "ssm_a").dims[0])
}

// fuseExperts stores gate and up projections of an expert as one tensor's rows.
func fuseExperts(d *draft) {
	for _, blk := range d.blocks("ffn_gate_exps.weight") {
		gate, up := d.tensor(blk+"ffn_gate_exps.weight"), d.tensor(blk+"ffn_up_exps.weight")
		f := int(gate.dims[1])
		g, u := heads(gate.rows(), f), heads(up.rows(), f)
		var data []byte
		for e := range g {
			data = append(data, join(g[e], u[e])...)
		}
		d.remove(gate.name, up.name)
		d.add(blk+"ffn_gate_up_exps.weight", gate.typ, data, gate.dims[0], 2*gate.dims[1], gate.dims[2])
	}
}

// legacyIn stores attn_qkv and attn_gate as qwen3next's ssm_in: for each key head q, k, the v of its value
// heads and then their z.
func legacyIn(d *draft) {
	r := d.valueHeads() / keyHeads
	for _, blk := range d.blocks("attn_gate.weight") {
		qkv, gate := d.remove(blk+"attn_qkv.weight"), d.remove(blk+"attn_gate.weight")
		h, z := heads(qkv.rows(), headRows), heads(gate.rows(), headRows)
		q, k, v := h[:keyHeads], h[keyHeads:2*keyHeads], h[2*keyHeads:]
		var data []byte
		for g := range keyHeads {
			data = append(data, join(q[g], k[g])...)
			data = append(data, join(v[g*r:(g+1)*r]...)...)
			data = append(data, join(z[g*r:(g+1)*r]...)...)
		}
		d.add(blk+"ssm_in.weight", qkv.typ, data, qkv.dims[0], qkv.dims[1]+gate.dims[1])
	}
}

// modernIn is the reverse of legacyIn.
func modernIn(d *draft) {
	r := d.valueHeads() / keyHeads
	for _, blk := range d.blocks("ssm_in.weight") {
		in := d.remove(blk + "ssm_in.weight")
		var q, k, v, z [][]byte
		for _, group := range heads(in.rows(), (2+2*r)*headRows) {
			q = append(q, group[:headRows]...)
			k = append(k, group[headRows:2*headRows]...)
			v = append(v, group[2*headRows:(2+r)*headRows]...)
			z = append(z, group[(2+r)*headRows:]...)
		}
		d.add(blk+"attn_qkv.weight", in.typ, join(q, k, v), in.dims[0], uint64(len(q)+len(k)+len(v)))
		d.add(blk+"attn_gate.weight", in.typ, join(z), in.dims[0], uint64(len(z)))
	}
}

// splitBA stores ssm_ba, for each key head the beta and then the alpha rows of its value heads, as two
// tensors.
func splitBA(d *draft) {
	r := d.valueHeads() / keyHeads
	for _, blk := range d.blocks("ssm_ba.weight") {
		ba := d.remove(blk + "ssm_ba.weight")
		var b, a [][]byte
		for _, group := range heads(ba.rows(), 2*r) {
			b, a = append(b, group[:r]...), append(a, group[r:]...)
		}
		d.add(blk+"ssm_beta.weight", ba.typ, join(b), ba.dims[0], uint64(len(b)))
		d.add(blk+"ssm_alpha.weight", ba.typ, join(a), ba.dims[0], uint64(len(a)))
	}
}

// fuseBA is the reverse of splitBA.
func fuseBA(d *draft) {
	r := d.valueHeads() / keyHeads
	for _, blk := range d.blocks("ssm_beta.weight") {
		beta, alpha := d.remove(blk+"ssm_beta.weight"), d.remove(blk+"ssm_alpha.weight")
		b, a := heads(beta.rows(), r), heads(alpha.rows(), r)
		var data []byte
		for g := range keyHeads {
			data = append(data, join(b[g], a[g])...)
		}
		d.add(blk+"ssm_ba.weight", beta.typ, data, beta.dims[0], 2*beta.dims[1])
	}
}

// reorderHeads moves the value heads of every delta net: head n of the new file is head old(n) of this one
// (model-qwen35.md 4.2). The columns of ssm_out move with them, which needs a type without blocks.
func reorderHeads(d *draft, old func(n int) int) {
	nv := d.valueHeads()
	order := func(hs [][][]byte) []byte {
		var data []byte
		for n := range nv {
			data = append(data, join(hs[old(n)])...)
		}
		return data
	}
	for _, blk := range d.blocks("ssm_a") {
		for _, p := range []struct {
			name      string
			per, skip int // rows of a head, rows of q and k before the first
		}{
			{"attn_qkv.weight", headRows, 2 * keyHeads * headRows}, {"attn_gate.weight", headRows, 0},
			{"ssm_alpha.weight", 1, 0}, {"ssm_beta.weight", 1, 0}, {"ssm_conv1d.weight", headRows, 2 * keyHeads * headRows},
		} {
			x := d.tensor(blk + p.name)
			rows := x.rows()
			x.data = append(join(rows[:p.skip]), order(heads(rows[p.skip:], p.per))...)
		}
		for _, name := range []string{"ssm_a", "ssm_dt.bias"} {
			x := d.tensor(blk + name)
			x.data = order(heads(slices.Collect(slices.Chunk(x.data, 4)), 1))
		}
		out := d.tensor(blk + "ssm_out.weight")
		var data []byte
		for _, row := range out.rows() {
			data = append(data, order(heads(slices.Collect(slices.Chunk(row, 4)), headRows))...)
		}
		out.data = data
	}
}

// grouped is the order of heads in a checkpoint, in terms of the tiled one: the value heads of a key head
// follow each other.
func grouped(d *draft) func(n int) int {
	r := d.valueHeads() / keyHeads
	return func(n int) int { return n%r*keyHeads + n/r }
}

func TestLayouts(t *testing.T) {
	const moe, dense, next = "qwen35moe-f32", "qwen35-f32", "qwen3next-f32"
	set := func(key string, v any) func(*draft) { return func(d *draft) { d.set(key, v) } }
	originals := map[string][]float32{} // logits of the files as they are
	for _, c := range []struct {
		name, file string
		base, edit func(*draft) // two files of the same weights; without base the first is the original
		tol        float64      // of the logits, 0 for equal bits
	}{
		{"fused gate and up projections", moe, nil, fuseExperts, 0},
		{"fused gate and up projections", next, nil, fuseExperts, 0},
		{"fused gate and up projections of blocks", "qwen35moe-q4_0", nil, fuseExperts, 0},
		{"ssm_dt without .bias", moe, nil, func(d *draft) {
			for _, blk := range d.blocks("ssm_dt.bias") {
				d.tensor(blk + "ssm_dt.bias").name = blk + "ssm_dt"
			}
		}, 0},
		{"KV heads per layer", moe, nil, set("attention.head_count_kv", []uint32{0, 0, 0, 1}), 0},
		{"KV heads per layer, block for prediction", moe, nil, func(d *draft) {
			withMTP(d, true)
			d.set("attention.head_count_kv", []int32{0, 0, 0, 1, 1})
		}, 0},
		{"interval of 4 by default", moe, nil, func(d *draft) { d.unset("full_attention_interval") }, 0},
		{"list of layers", dense, nil, func(d *draft) {
			d.unset("full_attention_interval")
			d.set("attention.recurrent_layers", []bool{true, true, false})
		}, 0},
		{"no length of values", next, nil, func(d *draft) { d.unset("attention.value_length") }, 0},
		{"tied head", moe, func(d *draft) { d.tensor("output.weight").data = d.tensor("token_embd.weight").data },
			func(d *draft) { d.remove("output.weight") }, 0},
		{"tied head of blocks", "qwen35-q8_0", func(d *draft) {
			e, o := d.tensor("token_embd.weight"), d.tensor("output.weight")
			o.typ, o.data = e.typ, e.data
		}, func(d *draft) { d.remove("output.weight") }, 0},
		{"legacy ssm_in", next, nil, legacyIn, 0},
		{"ssm_in taken apart", "qwen3next-q8_0-ssm_in", nil, modernIn, 0},
		{"alpha and beta by themselves", next, nil, splitBA, 0},
		{"alpha and beta by themselves, legacy ssm_in", next, nil, func(d *draft) { splitBA(d); legacyIn(d) }, 0},
		{"alpha and beta taken apart and put together", next, nil, func(d *draft) { splitBA(d); fuseBA(d) }, 0},
		// Only the order of summation in ssm_out differs.
		{"grouped heads", moe, nil, func(d *draft) {
			reorderHeads(d, grouped(d))
			d.set("ssm.v_head_reordered", false)
		}, 1e-6},
		{"grouped heads", dense, nil, func(d *draft) {
			reorderHeads(d, grouped(d))
			d.set("ssm.v_head_reordered", false)
		}, 1e-6},
		// A grouped file may have the older layout too.
		{"grouped heads in ssm_in and ssm_ba", moe, func(d *draft) {
			reorderHeads(d, grouped(d))
			d.set("ssm.v_head_reordered", false)
		}, func(d *draft) { legacyIn(d); fuseBA(d) }, 0},
		{"tiled heads by mark", moe, nil, set("ssm.v_head_reordered", true), 0},
		{"tiled qwen3next by mark", next, splitBA, func(d *draft) {
			// From grouped to tiled.
			reorderHeads(d, func(n int) int { return n%keyHeads*(d.valueHeads()/keyHeads) + n/keyHeads })
			d.set("ssm.v_head_reordered", true)
		}, 1e-6},
		{"experts scaled by 0", moe, nil, set("expert_weights_scale", float32(0)), 0},
		{"experts scaled by 1", moe, nil, set("expert_weights_scale", float32(1)), 0},
		{"attention scaled by its default", dense, nil, set("attention.scale", float32(1.0/16)), 0},
		{"no sections", moe, nil, func(d *draft) { d.unset("rope.dimension_sections") }, 0},
		{"trailing ones", moe, nil, func(d *draft) {
			for _, x := range d.tensors {
				if len(x.dims) < 4 {
					x.dims = append(slices.Clone(x.dims), 1)
				}
			}
		}, 0},
		{"tensors in another order", moe, nil, func(d *draft) { slices.Reverse(d.tensors) }, 0},
		// Experts of one layer get 32 more rows, whose results weigh nothing.
		{"wider experts in one layer", moe, nil, func(d *draft) { widenExperts(d, "blk.1.") }, 0},
		{"wider experts in the last layer", moe, nil, func(d *draft) { widenExperts(d, "blk.3.") }, 0},
	} {
		t.Run(c.file+"/"+c.name, func(t *testing.T) {
			d := load(t, c.file)
			var want []float32
			if c.base != nil {
				c.base(d)
				want = d.logits()
			} else if want = originals[c.file]; want == nil {
				want = d.logits()
				originals[c.file] = want
			}
			c.edit(d)
			equal(t, d.logits(), want, c.tol)
		})
	}
}

// With as many key heads as value heads there is one order of heads, so the layouts that imply the grouped
// one are fine in any file.
func TestOneOrder(t *testing.T) {
	for _, fused := range []bool{false, true} {
		d := tiny(t, "qwen35moe-f32")
		d.set("ssm.time_step_rank", uint32(1))
		d.set("ssm.inner_size", uint32(32))
		for name, dims := range map[string][]uint64{
			"attn_qkv.weight": {32, 96}, "attn_gate.weight": {32, 32}, "ssm_conv1d.weight": {4, 96}, "ssm_out.weight": {32, 32},
			"ssm_a": {1}, "ssm_dt.bias": {1}, "ssm_alpha.weight": {32, 1}, "ssm_beta.weight": {32, 1},
		} {
			d.zeros("blk.0."+name, quant.F32, dims...)
		}
		if fused {
			d.remove("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight")
			d.add("blk.0.ssm_in.weight", quant.F32, make([]byte, 4*32*128), 32, 128)
			d.add("blk.0.ssm_ba.weight", quant.F32, make([]byte, 4*32*2), 32, 2)
		}
		if m := d.model(); m.Grouped || len(m.Unused) > 0 {
			t.Errorf("fused: %t: grouped: %t, unused %q", fused, m.Grouped, m.Unused)
		}
	}
}

// widenExperts doubles the width of a layer's experts.
func widenExperts(d *draft, blk string) {
	gate, up, down := d.tensor(blk+"ffn_gate_exps.weight"), d.tensor(blk+"ffn_up_exps.weight"), d.tensor(blk+"ffn_down_exps.weight")
	e, f, experts := int(gate.dims[0]), int(gate.dims[1]), int(gate.dims[2])
	g, u, dn := d.floats(gate.name), d.floats(up.name), d.floats(down.name)
	var g2, u2, d2 []float32
	for x := range experts {
		for _, p := range []struct {
			to   *[]float32
			from []float32
		}{{&g2, g}, {&u2, u}} {
			own := p.from[x*e*f : (x+1)*e*f]
			*p.to = append(append(*p.to, own...), own...)
		}
		for r := range e {
			d2 = append(append(d2, dn[(x*e+r)*f:(x*e+r+1)*f]...), make([]float32, f)...)
		}
	}
	gate.dims[1], up.dims[1], down.dims[0] = uint64(2*f), uint64(2*f), uint64(2*f)
	d.encode(gate.name, quant.F32, g2)
	d.encode(up.name, quant.F32, u2)
	d.encode(down.name, quant.F32, d2)
}

// equal compares logits: bit for bit, or within a tolerance relative to the largest.
func equal(t *testing.T, got, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d logits, want %d", len(got), len(want))
	}
	if d := distance(got, want); !(d <= tol) {
		t.Errorf("logits differ by %g of the largest, want at most %g", d, tol)
	}
}

// distance is the largest difference of two vectors, relative to the largest value; NaN if one holds NaN.
func distance(a, b []float32) float64 {
	diff, scale := 0.0, 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if math.IsNaN(d) {
			return d
		}
		diff, scale = max(diff, d), max(scale, math.Abs(float64(b[i])))
	}
	return diff / scale
}

// The tests above would also pass if the things that they change did not matter. They do.
func TestLayoutsMatter(t *testing.T) {
	swap := func(d *draft, a, b string) {
		x, y := d.tensor(a), d.tensor(b)
		x.data, y.data = y.data, x.data
	}
	for _, c := range []struct {
		name, file string
		edit       func(*draft)
	}{
		{"head order without its mark", "qwen35moe-f32", func(d *draft) { reorderHeads(d, grouped(d)) }},
		{"mark without its head order", "qwen35-f32", func(d *draft) { d.set("ssm.v_head_reordered", false) }},
		{"head of its own", "qwen35-f32", func(d *draft) { d.remove("output.weight") }},
		{"gate and up projection", "qwen35moe-f32", func(d *draft) { swap(d, "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight") }},
		{"alpha and beta", "qwen35-f32", func(d *draft) { swap(d, "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight") }},
		{"scale of attention", "qwen35-f32", func(d *draft) { d.set("attention.scale", float32(1)) }},
		{"scale of experts", "qwen35moe-f32", func(d *draft) { d.set("expert_weights_scale", float32(2)) }},
		{"base of the rotation", "qwen35-f32", func(d *draft) { d.set("rope.freq_base", float32(10000)) }},
		{"scaling of the rotation", "qwen35-f32", func(d *draft) {
			d.set("rope.scaling.type", "yarn")
			d.set("rope.scaling.factor", float32(4))
			d.set("rope.scaling.original_context_length", uint32(64))
		}},
		{"epsilon", "qwen35-f32", func(d *draft) { d.set("attention.layer_norm_rms_epsilon", float32(0.1)) }},
		{"order of layers", "qwen35moe-f32", func(d *draft) { swap(d, "blk.0.attn_qkv.weight", "blk.1.attn_qkv.weight") }},
	} {
		d := load(t, c.file)
		want := d.logits()
		c.edit(d)
		if x := distance(d.logits(), want); !(x > 1e-4) {
			t.Errorf("%s: logits change by %g", c.name, x)
		}
	}
}

// The files that the layouts start from compute the oracle's logits.
func TestBaseLogits(t *testing.T) {
	for _, name := range append(slices.Clone(files), "qwen3next-q8_0-ssm_in") {
		d := load(t, name)
		c, err := oracle.Read(filepath.Join(oracle.Root(), "testdata", "oracle", name))
		if err != nil {
			t.Fatal(err)
		}
		p := c.Prompt("p7")
		got := logits(t, d.model(), p.Tokens, 8, nil)
		for i, want := range p.LastLogits {
			if x := float64(got[6*c.NVocab+i]); !(math.Abs(x-float64(want)) < 1e-3) {
				t.Errorf("%s: logit %d is %g, want %g", name, i, x, want)
				break
			}
		}
	}
}

// TestNarrowVectors stores what is usually F32 in a narrower type: the file computes what one computes that
// holds the rounded values as F32.
func TestNarrowVectors(t *testing.T) {
	vectors := []string{"_norm.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias"}
	for _, name := range files {
		for _, c := range []struct {
			what  string
			typ   quant.Type
			names []string
		}{
			{"vectors", quant.F16, vectors},
			{"vectors", quant.BF16, vectors},
			{"routers and gates", quant.F16, []string{"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight"}},
			{"routers and gates", quant.BF16, []string{"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight"}},
			{"routers and gates", quant.Q8_0, []string{"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight"}},
		} {
			narrow := load(t, name)
			rounded := narrow.clone()
			n := 0
			for _, x := range narrow.tensors {
				if slices.ContainsFunc(c.names, func(s string) bool { return strings.HasSuffix(x.name, s) }) {
					narrow.encode(x.name, c.typ, narrow.floats(x.name))
					rounded.encode(x.name, quant.F32, narrow.floats(x.name))
					n++
				}
			}
			if n < 2 {
				t.Fatalf("%s has %d %s", name, n, c.what)
			}
			if x := distance(narrow.logits(), rounded.logits()); x != 0 {
				t.Errorf("%s with %s in %v: logits differ by %g", name, c.what, c.typ, x)
			}
		}
	}
}

// A model in two parts is the whole one, whichever part is named.
func TestSplitFile(t *testing.T) {
	whole := load(t, "qwen35moe-f32")
	want := whole.logits()
	dir := t.TempDir()
	var paths []string
	half := len(whole.tensors) / 2
	for i := range 2 {
		part := whole.clone()
		if i == 0 {
			part.tensors = part.tensors[:half]
		} else {
			part.tensors = part.tensors[half:]
			part.keys = nil // all metadata is in the first part
		}
		w := part.writer()
		for key, v := range map[string]any{"split.no": uint16(i), "split.count": uint16(2), "split.tensors.count": int32(len(whole.tensors))} {
			if err := w.Set(key, v); err != nil {
				t.Fatal(err)
			}
		}
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("model-%05d-of-00002.gguf", i+1)))
		if err := w.WriteFile(paths[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(f)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, logits(t, m, whole.prompt, len(whole.prompt), nil), want, 0)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
