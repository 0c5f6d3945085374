// Package model knows the model families: what their metadata means, which tensors they have, and the
// graph of one step. Blocks that families share (delta net, attention, feed-forward) have a file each; a
// family is a small file that says how its files differ.
//
// The package builds graphs and never touches a device.
package model

import (
	"errors"
	"fmt"
	"math"

	"github.com/calderaml/caldera/gguf"
)

// maxLayers bounds block_count before it sizes anything (weights.md 1.5).
const maxLayers = 512

// A Config is a model's shape, read from metadata (model-qwen35.md section 2).
type Config struct {
	Arch    string
	Name    string
	Layers  int // decoder layers, without MTP blocks
	MTP     int // multi-token prediction blocks at the end, present and not run
	Context int // trained context in tokens
	Embed   int // width of the residual stream
	Vocab   int
	Eps     float32

	Heads, KVHeads, HeadDim int
	AttnScale               float32 // of the scores
	Rope                    RopeConfig

	FFN int // width of a dense feed-forward block, 0 in a mixture of experts

	Experts, ExpertsUsed int
	ExpertFFN, SharedFFN int
	ExpertScale          float32 // 0 or 1: none

	KeyHeads, ValueHeads, StateDim int // of the delta net
	// Grouped says that value head h reads key head h / (ValueHeads/KeyHeads); otherwise h mod KeyHeads.
	Grouped bool

	// Recurrent marks the delta-net layers; the others attend.
	Recurrent []bool
}

// ConvChannels is the number of channels of the delta net's convolution: q, k and v.
func (c *Config) ConvChannels() int { return (2*c.KeyHeads + c.ValueHeads) * c.StateDim }

// ValueWidth is the width of all value heads together.
func (c *Config) ValueWidth() int { return c.ValueHeads * c.StateDim }

// MoE reports whether the feed-forward blocks are mixtures of experts.
func (c *Config) MoE() bool { return c.Experts > 0 }

// A family is what distinguishes the architectures that share these blocks.
type family struct {
	moe     bool
	grouped bool // head order of the files that its converter writes
}

var families = map[string]family{
	"qwen35moe": {moe: true},
	"qwen35":    {},
	"qwen3next": {moe: true, grouped: true},
}

// ErrUnsupported marks a file that is well-formed and that this version does not run.
var ErrUnsupported = errors.New("unsupported model")

// ReadConfig reads and checks a model's metadata.
func ReadConfig(f *gguf.File) (*Config, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, err
	}
	fam, ok := families[arch]
	if !ok {
		return nil, fmt.Errorf("%w: architecture %q; this version runs qwen35moe, qwen35 and qwen3next", ErrUnsupported, arch)
	}
	switch t, err := f.String("general.type"); {
	case errors.Is(err, gguf.ErrMissing):
	case err != nil:
		return nil, err
	case t != "model":
		return nil, fmt.Errorf("%w: the file holds a %q, not a model", ErrUnsupported, t)
	}
	r := reader{f: f, arch: arch}
	c := &Config{Arch: arch}
	c.Name, _ = f.String("general.name")
	blocks := r.int("block_count", 1, maxLayers)
	c.MTP = r.optInt("nextn_predict_layers", 0, 0, maxLayers)
	if r.err == nil && c.MTP >= blocks {
		return nil, fmt.Errorf("%s.nextn_predict_layers is %d of %d blocks: no decoder layer is left", arch, c.MTP, blocks)
	}
	c.Layers = blocks - c.MTP
	c.Context = r.int("context_length", 1, 1<<27)
	c.Embed = r.int("embedding_length", 1, 1<<20)
	c.Eps = r.float("attention.layer_norm_rms_epsilon")
	c.Heads = r.int("attention.head_count", 1, 1<<16)
	c.KVHeads = r.kvHeads(blocks)
	c.HeadDim = r.int("attention.key_length", 2, 1<<12)
	if v := r.optInt("attention.value_length", c.HeadDim, 1, 1<<12); r.err == nil && v != c.HeadDim {
		return nil, fmt.Errorf("%s.attention.value_length is %d and key_length %d; they must agree", arch, v, c.HeadDim)
	}
	c.Rope = r.rope(c.HeadDim)
	if fam.moe {
		c.Experts = r.int("expert_count", 1, 1<<16)
		c.ExpertsUsed = r.int("expert_used_count", 1, 1<<16)
		c.ExpertScale = r.optFloat("expert_weights_scale", 0)
	} else {
		c.FFN = r.int("feed_forward_length", 1, 1<<20)
	}
	if k := r.int("ssm.conv_kernel", 1, 64); r.err == nil && k != convTaps {
		return nil, fmt.Errorf("%w: %s.ssm.conv_kernel is %d; only %d is known", ErrUnsupported, arch, k, convTaps)
	}
	c.StateDim = r.int("ssm.state_size", 1, 1<<12)
	c.KeyHeads = r.int("ssm.group_count", 1, 1<<12)
	c.ValueHeads = r.int("ssm.time_step_rank", 1, 1<<14)
	inner := r.int("ssm.inner_size", 1, 1<<24)
	c.Grouped = !r.optBool("ssm.v_head_reordered", !fam.grouped)
	c.AttnScale = attnScale(r.optFloat("attention.scale", 0), c.HeadDim)
	c.Recurrent = r.recurrent(blocks)
	if r.err != nil {
		return nil, r.err
	}
	c.Recurrent = c.Recurrent[:c.Layers]
	if err := c.check(inner); err != nil {
		return nil, err
	}
	return c, nil
}

// check enforces the rules that hold for every file of the family (model-qwen35.md section 2).
func (c *Config) check(inner int) error {
	switch {
	case inner != c.ValueHeads*c.StateDim:
		return fmt.Errorf("%s.ssm.inner_size is %d, but time_step_rank %d x state_size %d is %d", c.Arch, inner, c.ValueHeads, c.StateDim, c.ValueHeads*c.StateDim)
	case c.ValueHeads%c.KeyHeads != 0:
		return fmt.Errorf("%s.ssm.time_step_rank %d is not a multiple of group_count %d", c.Arch, c.ValueHeads, c.KeyHeads)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("%s.attention.head_count %d is not a multiple of head_count_kv %d", c.Arch, c.Heads, c.KVHeads)
	case c.MoE() && c.ExpertsUsed > c.Experts:
		return fmt.Errorf("%s.expert_used_count %d exceeds expert_count %d", c.Arch, c.ExpertsUsed, c.Experts)
	case c.Rope.Dims > c.HeadDim || c.Rope.Dims%2 != 0:
		return fmt.Errorf("%s.rope.dimension_count %d does not fit heads of %d", c.Arch, c.Rope.Dims, c.HeadDim)
	case c.Eps <= 0 || c.Eps > 1:
		return fmt.Errorf("%s.attention.layer_norm_rms_epsilon is %g", c.Arch, c.Eps)
	case c.HeadDim%2 != 0 || c.StateDim%2 != 0:
		return fmt.Errorf("%s: heads of %d and %d dimensions; both must be even", c.Arch, c.HeadDim, c.StateDim)
	}
	return nil
}

// reader reads keys of an architecture and keeps the first error.
type reader struct {
	f    *gguf.File
	arch string
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) int(key string, lo, hi int) int {
	n, err := r.f.Int(r.arch + "." + key)
	if err != nil {
		r.fail(err)
		return lo
	}
	if n < lo || n > hi {
		r.fail(fmt.Errorf("%s.%s is %d, outside %d..%d", r.arch, key, n, lo, hi))
		return lo
	}
	return n
}

func (r *reader) optInt(key string, absent, lo, hi int) int {
	if !r.f.Has(r.arch + "." + key) {
		return absent
	}
	return r.int(key, lo, hi)
}

func (r *reader) float(key string) float32 {
	v, err := r.f.Float32(r.arch + "." + key)
	if err != nil {
		r.fail(err)
	} else if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		r.fail(fmt.Errorf("%s.%s is %g", r.arch, key, v))
	}
	return v
}

func (r *reader) optFloat(key string, absent float32) float32 {
	if !r.f.Has(r.arch + "." + key) {
		return absent
	}
	return r.float(key)
}

func (r *reader) optBool(key string, absent bool) bool {
	if !r.f.Has(r.arch + "." + key) {
		return absent
	}
	v, err := r.f.Bool(r.arch + "." + key)
	if err != nil {
		r.fail(err)
	}
	return v
}

// count is the number of values of a key, known before they are read: a hostile array is not expanded.
func (r *reader) count(key string) int {
	v, _ := r.f.Value(key)
	return v.Len()
}

// kvHeads reads head_count_kv, a number or one number per layer with 0 where no layer attends.
func (r *reader) kvHeads(blocks int) int {
	key := r.arch + ".attention.head_count_kv"
	if n := r.count(key); r.f.Has(key) && n != 1 && n != blocks {
		r.fail(fmt.Errorf("%s has %d values for %d blocks", key, n, blocks))
		return 1
	}
	ns, err := r.f.Ints(key)
	if err != nil {
		r.fail(err)
		return 1
	}
	heads := 0
	for _, n := range ns {
		if n == 0 {
			continue
		}
		if heads != 0 && n != heads {
			r.fail(fmt.Errorf("%w: %s differs between layers (%d and %d)", ErrUnsupported, key, heads, n))
		}
		heads = n
	}
	if heads < 1 || heads > 1<<16 {
		r.fail(fmt.Errorf("%s gives no layer a usable number of heads (%d)", key, heads))
		return 1
	}
	return heads
}

// recurrent finds the kind of every block: the explicit list if there is one, else every interval-th block
// attends.
func (r *reader) recurrent(blocks int) []bool {
	key := r.arch + ".attention.recurrent_layers"
	if r.f.Has(key) {
		if n := r.count(key); n != blocks {
			r.fail(fmt.Errorf("%s has %d values for %d blocks", key, n, blocks))
			return nil
		}
		list, err := r.f.Bools(key)
		if err != nil {
			r.fail(err)
		}
		return list
	}
	interval := r.optInt("full_attention_interval", 4, 1, maxLayers)
	list := make([]bool, blocks)
	for i := range list {
		list[i] = (i+1)%interval != 0
	}
	return list
}
