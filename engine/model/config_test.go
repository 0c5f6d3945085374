package model

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf"
)

// onlyKeys loads an oracle file's metadata.
func onlyKeys(t testing.TB, name string) *draft {
	d := load(t, name)
	d.tensors = nil
	return d
}

func TestReadConfig(t *testing.T) {
	// What the three files have in common.
	base := Config{
		Context: 4096, Embed: 64, Eps: 1e-6,
		Heads: 2, KVHeads: 1, HeadDim: 256, AttnScale: 1.0 / 16, Rope: RopeConfig{Base: 1e7, Dims: 64},
		KeyHeads: 2, ValueHeads: 4, StateDim: 128,
	}
	for _, c := range []struct {
		file string
		edit func(*Config)
	}{
		{"qwen35moe-f32", func(c *Config) {
			c.Layers, c.Recurrent = 4, []bool{true, true, true, false}
			c.Experts, c.ExpertsUsed = 8, 2
		}},
		{"qwen35-f32", func(c *Config) {
			c.Layers, c.Recurrent = 3, []bool{true, true, false}
			c.FFN = 128
		}},
		{"qwen3next-f32", func(c *Config) {
			c.Layers, c.Recurrent = 2, []bool{true, false}
			c.Experts, c.ExpertsUsed = 8, 2
			c.Grouped = true
		}},
	} {
		d := onlyKeys(t, c.file)
		got, err := ReadConfig(d.open())
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		want := base
		want.Arch, want.Name = d.arch, "random "+d.arch
		c.edit(&want)
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.file, *got, want)
		}
		if got.ConvChannels() != 1024 || got.ValueWidth() != 512 || got.MoE() != (c.file != "qwen35-f32") {
			t.Errorf("%s: %d channels, values %d wide, experts: %t", c.file, got.ConvChannels(), got.ValueWidth(), got.MoE())
		}
	}
}

// requiredKeys are the keys without which a file is refused. A default that other engines have for one
// of them is wrong for these models (model-qwen35.md 2).
var requiredKeys = []string{
	"block_count", "context_length", "embedding_length",
	"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
	"rope.freq_base", "rope.dimension_count",
	"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
}

func TestRequiredKeys(t *testing.T) {
	for _, c := range []struct {
		file string
		more []string
	}{
		{"qwen35moe-f32", []string{"expert_count", "expert_used_count"}},
		{"qwen35-f32", []string{"feed_forward_length"}},
		{"qwen3next-f32", []string{"expert_count", "expert_used_count"}},
	} {
		whole := onlyKeys(t, c.file)
		want, err := ReadConfig(whole.open())
		if err != nil {
			t.Fatal(err)
		}
		required := []string{"general.architecture"}
		for _, k := range append(slices.Clone(requiredKeys), c.more...) {
			required = append(required, whole.key(k))
		}
		for _, key := range whole.keys {
			d := whole.clone()
			d.unset(key)
			got, err := ReadConfig(d.open())
			if slices.Contains(required, key) {
				if !errors.Is(err, gguf.ErrMissing) || !strings.Contains(err.Error(), key) {
					t.Errorf("without %s: %v", key, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("without %s: %v", key, err)
				continue
			}
			switch key {
			case "general.name":
				got.Name = want.Name
			case whole.key("full_attention_interval"):
				// Its default is 4, which one of the files has anyway.
				for i := range got.Recurrent {
					if got.Recurrent[i] != (i%4 != 3) {
						t.Errorf("%s without %s: layers %v", c.file, key, got.Recurrent)
					}
				}
				got.Recurrent = want.Recurrent
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("without %s:\n got %+v\nwant %+v", key, got, want)
			}
		}
	}
}

// Every value of a key that is read is of a type that fits it, and a wrong one is an error that names the key.
func TestWrongTypes(t *testing.T) {
	numbers := append(slices.Clone(requiredKeys), "expert_count", "expert_used_count", "nextn_predict_layers",
		"attention.value_length", "full_attention_interval", "expert_weights_scale", "attention.scale")
	integers := slices.DeleteFunc(slices.Clone(numbers), func(k string) bool {
		return slices.Contains([]string{"attention.layer_norm_rms_epsilon", "rope.freq_base", "expert_weights_scale", "attention.scale"}, k)
	})
	type wrong struct {
		keys  []string
		value any
	}
	cases := []wrong{
		{numbers, "4"},
		{numbers, true},
		{numbers, []string{"4"}},
		{integers, float32(4)},
		{[]string{"general.architecture", "general.type", "rope.scaling.type"}, uint32(1)},
		{[]string{"general.architecture", "general.type", "rope.scaling.type"}, []string{"yarn"}},
		{[]string{"attention.recurrent_layers"}, []uint32{1, 1, 1, 0}},
		{[]string{"attention.recurrent_layers"}, "true"},
		{[]string{"ssm.v_head_reordered"}, uint8(0)},
		{[]string{"ssm.v_head_reordered"}, "false"},
		{[]string{"ssm.v_head_reordered"}, []bool{false}},
	}
	// An array is right for one of the integers alone.
	arrays := slices.DeleteFunc(slices.Clone(numbers), func(k string) bool { return k == "attention.head_count_kv" })
	cases = append(cases, wrong{arrays, []uint32{4, 4, 4, 4}}, wrong{[]string{"attention.head_count_kv"}, []float32{0, 0, 0, 1}})
	for _, key := range []string{"attention.layer_norm_rms_epsilon", "rope.freq_base", "expert_weights_scale", "attention.scale"} {
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			cases = append(cases, wrong{[]string{key}, v})
		}
	}
	base := onlyKeys(t, "qwen35moe-f32")
	for _, c := range cases {
		for _, key := range c.keys {
			// With an explicit list of layers the interval is not looked at; both ways of reading have
			// to see every other fault.
			for _, list := range []bool{false, true} {
				if list && (key == "attention.recurrent_layers" || key == "full_attention_interval") {
					continue
				}
				d := base.clone()
				if list {
					d.set("attention.recurrent_layers", []bool{true, true, true, false})
				}
				d.set(key, c.value)
				got, err := ReadConfig(d.open())
				if err == nil || !strings.Contains(err.Error(), d.key(key)) {
					t.Errorf("%s = %T %v, list of layers: %t: %v, %+v", key, c.value, c.value, list, err, got)
				}
			}
		}
	}
}

func TestConfigRules(t *testing.T) {
	type config = *Config
	set := func(key string, v any) func(*draft) { return func(d *draft) { d.set(key, v) } }
	all := func(edits ...func(*draft)) func(*draft) {
		return func(d *draft) {
			for _, e := range edits {
				e(d)
			}
		}
	}
	yarn := all(set("rope.scaling.type", "yarn"), set("rope.scaling.factor", float32(4)), set("rope.scaling.original_context_length", uint32(64)))
	const moe, dense, next = "qwen35moe-f32", "qwen35-f32", "qwen3next-f32"
	layers := func(want ...bool) func(config) bool {
		return func(c config) bool { return slices.Equal(c.Recurrent, want) && c.Layers == len(want) }
	}
	for _, c := range []struct {
		name, file string
		edit       func(*draft)
		err        string            // a part of the error, which is expected if this is set
		refused    bool              // the error is an ErrUnsupported: the file is sound and this version does not run it
		check      func(config) bool // of a file that is accepted
	}{
		// What kind of file it is.
		{"unknown architecture", moe, set("general.architecture", "llama"), `architecture "llama"`, true, nil},
		{"architecture without a name", moe, set("general.architecture", ""), `architecture ""`, true, nil},
		{"similar architecture", moe, set("general.architecture", "qwen35moe "), "architecture", true, nil},
		{"adapter", moe, set("general.type", "adapter"), `"adapter"`, true, nil},
		{"projector", moe, set("general.type", "mmproj"), `"mmproj"`, true, nil},

		// Blocks.
		{"no blocks", moe, set("block_count", uint32(0)), "qwen35moe.block_count is 0", false, nil},
		{"513 blocks", moe, set("block_count", uint32(513)), "qwen35moe.block_count is 513", false, nil},
		{"2^31 blocks", moe, set("block_count", uint32(1<<31)), "qwen35moe.block_count is 2147483648", false, nil},
		{"2^63 blocks", moe, set("block_count", uint64(1<<63)), "qwen35moe.block_count", false, nil},
		{"-1 blocks", moe, set("block_count", int32(-1)), "qwen35moe.block_count is -1", false, nil},
		{"512 blocks", moe, set("block_count", uint32(512)), "", false, func(c config) bool { return c.Layers == 512 && len(c.Recurrent) == 512 }},
		{"blocks as 64 bits", moe, set("block_count", uint64(4)), "", false, layers(true, true, true, false)},
		{"blocks as 16 bits", moe, set("block_count", int16(4)), "", false, layers(true, true, true, false)},
		{"a block for prediction", moe, all(set("block_count", uint32(5)), set("nextn_predict_layers", uint32(1))), "", false,
			func(c config) bool { return c.MTP == 1 && layers(true, true, true, false)(c) }},
		{"no block for prediction", moe, set("nextn_predict_layers", uint32(0)), "", false, layers(true, true, true, false)},
		{"all blocks for prediction", moe, set("nextn_predict_layers", uint32(4)), "qwen35moe.nextn_predict_layers is 4 of 4", false, nil},
		{"more blocks for prediction", moe, set("nextn_predict_layers", uint32(5)), "qwen35moe.nextn_predict_layers is 5 of 4", false, nil},
		{"-1 blocks for prediction", moe, set("nextn_predict_layers", int32(-1)), "qwen35moe.nextn_predict_layers is -1", false, nil},
		{"2^32-1 blocks for prediction", moe, set("nextn_predict_layers", uint32(math.MaxUint32)), "qwen35moe.nextn_predict_layers is 4294967295", false, nil},

		// Kinds of layers.
		{"interval 2", moe, set("full_attention_interval", uint32(2)), "", false, layers(true, false, true, false)},
		{"interval 1", moe, set("full_attention_interval", uint32(1)), "", false, layers(false, false, false, false)},
		{"interval of more than all blocks", moe, set("full_attention_interval", uint32(9)), "", false, layers(true, true, true, true)},
		{"interval 0", moe, set("full_attention_interval", uint32(0)), "qwen35moe.full_attention_interval is 0", false, nil},
		{"interval -4", moe, set("full_attention_interval", int32(-4)), "qwen35moe.full_attention_interval is -4", false, nil},
		{"list of layers", moe, set("attention.recurrent_layers", []bool{false, true, true, false}), "", false, layers(false, true, true, false)},
		{"list of layers over interval", moe, all(set("attention.recurrent_layers", []bool{false, true, true, false}), set("full_attention_interval", uint32(2))),
			"", false, layers(false, true, true, false)},
		{"list of layers with a block for prediction", moe, all(set("block_count", uint32(5)), set("nextn_predict_layers", uint32(1)),
			set("attention.recurrent_layers", []bool{false, true, true, false, false})), "", false, layers(false, true, true, false)},
		{"short list of layers", moe, set("attention.recurrent_layers", []bool{true, true, true}), "qwen35moe.attention.recurrent_layers has 3 values for 4", false, nil},
		{"long list of layers", moe, set("attention.recurrent_layers", []bool{true, true, true, false, true}), "qwen35moe.attention.recurrent_layers has 5 values for 4", false, nil},
		{"empty list of layers", moe, set("attention.recurrent_layers", []bool{}), "qwen35moe.attention.recurrent_layers has 0 values", false, nil},

		// Attention.
		{"KV heads per layer", moe, set("attention.head_count_kv", []uint32{0, 0, 0, 1}), "", false, func(c config) bool { return c.KVHeads == 1 }},
		{"KV heads per layer, all the same", moe, set("attention.head_count_kv", []int32{2, 2, 2, 2}), "", false, func(c config) bool { return c.KVHeads == 2 }},
		{"KV heads in an array of one", moe, set("attention.head_count_kv", []uint32{2}), "", false, func(c config) bool { return c.KVHeads == 2 }},
		{"KV heads differ", moe, set("attention.head_count_kv", []uint32{0, 2, 0, 1}), "qwen35moe.attention.head_count_kv differs between layers (2 and 1)", true, nil},
		{"KV heads of too few layers", moe, set("attention.head_count_kv", []uint32{0, 0, 1}), "qwen35moe.attention.head_count_kv has 3 values for 4", false, nil},
		{"KV heads of too many layers", moe, set("attention.head_count_kv", []uint32{0, 0, 0, 1, 0}), "qwen35moe.attention.head_count_kv has 5 values for 4", false, nil},
		{"KV heads of no layer", moe, set("attention.head_count_kv", []uint32{}), "qwen35moe.attention.head_count_kv has 0 values", false, nil},
		{"no KV heads per layer", moe, set("attention.head_count_kv", []uint32{0, 0, 0, 0}), "qwen35moe.attention.head_count_kv gives no layer", false, nil},
		{"no KV heads", moe, set("attention.head_count_kv", uint32(0)), "qwen35moe.attention.head_count_kv gives no layer", false, nil},
		{"-1 KV heads", moe, set("attention.head_count_kv", []int32{0, 0, 0, -1}), "qwen35moe.attention.head_count_kv gives no layer", false, nil},
		{"heads no multiple of KV heads", moe, set("attention.head_count", uint32(3)), "", false, func(c config) bool { return c.Heads == 3 }},
		{"heads no multiple of two KV heads", moe, all(set("attention.head_count", uint32(3)), set("attention.head_count_kv", uint32(2))),
			"head_count 3 is not a multiple of head_count_kv 2", false, nil},
		{"more KV heads than heads", moe, set("attention.head_count_kv", uint32(4)), "head_count 2 is not a multiple of head_count_kv 4", false, nil},
		{"no heads", moe, set("attention.head_count", uint32(0)), "qwen35moe.attention.head_count is 0", false, nil},
		{"values of another length", moe, set("attention.value_length", uint32(128)), "qwen35moe.attention.value_length is 128 and key_length 256", false, nil},
		{"odd heads", moe, all(set("attention.key_length", uint32(255)), set("attention.value_length", uint32(255))), "both must be even", false, nil},
		{"scale of 1", moe, set("attention.scale", float32(1)), "", false, func(c config) bool { return c.AttnScale == 1 }},
		{"scale of 0 is none", moe, set("attention.scale", float32(0)), "", false, func(c config) bool { return c.AttnScale == 1.0/16 }},
		{"epsilon 0", moe, set("attention.layer_norm_rms_epsilon", float32(0)), "layer_norm_rms_epsilon is 0", false, nil},
		{"epsilon -1", moe, set("attention.layer_norm_rms_epsilon", float32(-1)), "layer_norm_rms_epsilon is -1", false, nil},
		{"epsilon 2", moe, set("attention.layer_norm_rms_epsilon", float32(2)), "layer_norm_rms_epsilon is 2", false, nil},
		{"epsilon of 64 bits", moe, set("attention.layer_norm_rms_epsilon", 1e-5), "", false, func(c config) bool { return c.Eps == 1e-5 }},

		// Rotation.
		{"base 1", moe, set("rope.freq_base", float32(1)), "qwen35moe.rope.freq_base is 1", false, nil},
		{"base 0", moe, set("rope.freq_base", float32(0)), "qwen35moe.rope.freq_base is 0", false, nil},
		{"integer base", moe, set("rope.freq_base", uint32(10_000_000)), "", false, func(c config) bool { return c.Rope.Base == 1e7 }},
		{"odd rotation", moe, set("rope.dimension_count", uint32(63)), "rope.dimension_count 63", false, nil},
		{"no rotation", moe, set("rope.dimension_count", uint32(0)), "qwen35moe.rope.dimension_count is 0", false, nil},
		{"rotation of more than a head", moe, set("rope.dimension_count", uint32(258)), "qwen35moe.rope.dimension_count is 258", false, nil},
		{"rotation of a head", moe, set("rope.dimension_count", uint32(256)), "", false, func(c config) bool { return c.Rope.Dims == 256 }},
		{"three sections", moe, set("rope.dimension_sections", []int32{11, 11, 10}), "", false, func(c config) bool { return c.Rope.Dims == 64 }},
		{"YaRN", moe, yarn, "", false, func(c config) bool {
			return c.Rope == RopeConfig{Base: 1e7, Dims: 64, Factor: 4, Original: 64}
		}},
		{"YaRN without a factor", moe, all(yarn, func(d *draft) { d.unset("rope.scaling.factor") }), "qwen35moe.rope.scaling.factor", false, nil},
		{"YaRN without a length", moe, all(yarn, func(d *draft) { d.unset("rope.scaling.original_context_length") }), "qwen35moe.rope.scaling.original_context_length", false, nil},
		{"YaRN that shrinks", moe, all(yarn, set("rope.scaling.factor", float32(0.5))), "qwen35moe.rope.scaling.factor is 0.5", false, nil},
		{"YaRN by NaN", moe, all(yarn, set("rope.scaling.factor", float32(math.NaN()))), "qwen35moe.rope.scaling.factor is NaN", false, nil},
		{"YaRN from nothing", moe, all(yarn, set("rope.scaling.original_context_length", uint32(0))), "original_context_length is 0", false, nil},
		{"no scaling", moe, set("rope.scaling.type", "none"), "", false, func(c config) bool { return c.Rope.Factor == 0 }},
		{"linear scaling", moe, all(yarn, set("rope.scaling.type", "linear")), `rope.scaling.type "linear"`, true, nil},
		{"unknown scaling", moe, set("rope.scaling.type", "longrope"), `rope.scaling.type "longrope"`, true, nil},

		// Feed-forward blocks.
		{"more experts used than there are", moe, set("expert_used_count", uint32(9)), "expert_used_count 9 exceeds expert_count 8", false, nil},
		{"all experts used", moe, set("expert_used_count", uint32(8)), "", false, func(c config) bool { return c.ExpertsUsed == 8 }},
		{"no experts", moe, set("expert_count", uint32(0)), "qwen35moe.expert_count is 0", false, nil},
		{"no experts used", moe, set("expert_used_count", uint32(0)), "qwen35moe.expert_used_count is 0", false, nil},
		{"scaled experts", moe, set("expert_weights_scale", float32(2.5)), "", false, func(c config) bool { return c.ExpertScale == 2.5 }},
		{"experts scaled by 0", moe, set("expert_weights_scale", float32(0)), "", false, func(c config) bool { return c.ExpertScale == 0 }},
		{"a dense width beside experts", moe, set("feed_forward_length", uint32(5120)), "", false, func(c config) bool { return c.FFN == 0 && c.Experts == 8 }},
		{"no dense width", dense, set("feed_forward_length", uint32(0)), "qwen35.feed_forward_length is 0", false, nil},
		{"experts in a dense model", dense, set("expert_count", uint32(8)), "", false, func(c config) bool { return c.FFN == 128 && !c.MoE() }},

		// Delta net.
		{"convolution of 3", moe, set("ssm.conv_kernel", uint32(3)), "qwen35moe.ssm.conv_kernel is 3", true, nil},
		{"convolution of 0", moe, set("ssm.conv_kernel", uint32(0)), "qwen35moe.ssm.conv_kernel is 0", false, nil},
		{"inner size", moe, set("ssm.inner_size", uint32(1024)), "qwen35moe.ssm.inner_size is 1024", false, nil},
		{"inner size of a larger state", moe, set("ssm.state_size", uint32(256)), "qwen35moe.ssm.inner_size is 512", false, nil},
		{"value heads no multiple of key heads", moe, set("ssm.group_count", uint32(3)), "time_step_rank 4 is not a multiple of group_count 3", false, nil},
		{"more key heads than value heads", moe, set("ssm.group_count", uint32(8)), "time_step_rank 4 is not a multiple of group_count 8", false, nil},
		{"no key heads", moe, set("ssm.group_count", uint32(0)), "qwen35moe.ssm.group_count is 0", false, nil},
		{"odd state", moe, all(set("ssm.state_size", uint32(127)), set("ssm.inner_size", uint32(508))), "both must be even", false, nil},
		{"as many key heads as value heads", moe, set("ssm.group_count", uint32(4)), "", false, func(c config) bool { return c.KeyHeads == 4 && c.ConvChannels() == 1536 }},

		// Order of the value heads (model-qwen35.md 4.3).
		{"tiled by mark", moe, set("ssm.v_head_reordered", true), "", false, func(c config) bool { return !c.Grouped }},
		{"grouped by mark", moe, set("ssm.v_head_reordered", false), "", false, func(c config) bool { return c.Grouped }},
		{"dense, grouped by mark", dense, set("ssm.v_head_reordered", false), "", false, func(c config) bool { return c.Grouped }},
		{"qwen3next, grouped by mark", next, set("ssm.v_head_reordered", false), "", false, func(c config) bool { return c.Grouped }},
		{"qwen3next, tiled by mark", next, set("ssm.v_head_reordered", true), "", false, func(c config) bool { return !c.Grouped }},

		// Sizes that would overflow something.
		{"width 2^31", moe, set("embedding_length", uint32(1<<31)), "qwen35moe.embedding_length is 2147483648", false, nil},
		{"context 0", moe, set("context_length", uint32(0)), "qwen35moe.context_length is 0", false, nil},
		{"2^32-1 heads", moe, set("attention.head_count", uint32(math.MaxUint32)), "qwen35moe.attention.head_count is 4294967295", false, nil},
		{"2^32-1 KV heads", moe, set("attention.head_count_kv", uint32(math.MaxUint32)), "qwen35moe.attention.head_count_kv", false, nil},
		{"2^32-1 value heads", moe, set("ssm.time_step_rank", uint32(math.MaxUint32)), "qwen35moe.ssm.time_step_rank is 4294967295", false, nil},
		{"2^32-1 experts", moe, set("expert_count", uint32(math.MaxUint32)), "qwen35moe.expert_count is 4294967295", false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := onlyKeys(t, c.file)
			c.edit(d)
			got, err := ReadConfig(d.open())
			switch {
			case c.err == "" && err != nil:
				t.Error(err)
			case c.err == "":
				if !c.check(got) {
					t.Errorf("got %+v", *got)
				}
			case err == nil:
				t.Errorf("accepted: %+v", *got)
			case !strings.Contains(err.Error(), c.err) || errors.Is(err, ErrUnsupported) != c.refused:
				t.Errorf("%v (unsupported: %t), want %q (%t)", err, errors.Is(err, ErrUnsupported), c.err, c.refused)
			}
		})
	}
}

// Lists are measured before they are read: one of millions costs nothing.
func TestLongLists(t *testing.T) {
	for key, list := range map[string]any{
		"attention.recurrent_layers": make([]bool, 4<<20),
		"attention.head_count_kv":    make([]uint8, 4<<20),
	} {
		d := onlyKeys(t, "qwen35moe-f32")
		d.set(key, list)
		f := d.open()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadConfig(f)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), key+" has 4194304 values for 4 blocks") {
			t.Errorf("%s: %v", key, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: refusing the list allocated %d bytes", key, n)
		}
	}
}
