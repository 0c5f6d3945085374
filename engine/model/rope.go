package model

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/calderaml/caldera/gguf"
)

// A RopeConfig describes the rotation of queries and keys (model-qwen35.md 5.4).
type RopeConfig struct {
	Base     float64
	Dims     int     // rotated dimensions of a head
	Factor   float64 // YaRN extension, 0 when there is none
	Original int     // context before the extension
}

// rope reads the rotation. An absent base or size is an error: the defaults other engines have are wrong
// for these models.
func (r *reader) rope(headDim int) RopeConfig {
	c := RopeConfig{Base: float64(r.float("rope.freq_base")), Dims: r.int("rope.dimension_count", 2, headDim)}
	if r.err == nil && c.Base <= 1 {
		r.fail(fmt.Errorf("%s.rope.freq_base is %g", r.arch, c.Base))
	}
	kind, err := r.f.String(r.arch + ".rope.scaling.type")
	switch {
	case errors.Is(err, gguf.ErrMissing) || kind == "none":
	case err != nil:
		r.fail(err)
	case kind == "yarn":
		c.Factor = float64(r.float("rope.scaling.factor"))
		c.Original = r.int("rope.scaling.original_context_length", 1, 1<<27)
		if r.err == nil && (c.Factor < 1 || c.Factor > 1024) {
			r.fail(fmt.Errorf("%s.rope.scaling.factor is %g", r.arch, c.Factor))
		}
	default:
		r.fail(fmt.Errorf("%w: %s.rope.scaling.type %q; only yarn is known", ErrUnsupported, r.arch, kind))
	}
	return c
}

// Rope computes rotations on the host in float64: a shader's sin is not good enough for large positions
// (vulkan-platform.md 11). It remembers the positions it has computed.
type Rope struct {
	freqs []float64 // angle per position and pair
	scale float64   // of cos and sin

	mu    sync.Mutex
	rows  [][]float32 // by position, nil until computed
	slabs [][]float32 // what they lie in, ropeSlab of them each
}

// ropeSlab is the number of rows that are allocated together, so that decoding does not allocate for each token.
const ropeSlab = 256

// NewRope returns the rotations of a configuration.
func NewRope(c RopeConfig) *Rope {
	r := &Rope{scale: 1}
	for i := range c.Dims / 2 {
		f := math.Pow(c.Base, -2*float64(i)/float64(c.Dims))
		if c.Factor > 1 {
			f *= yarn(c, i)
		}
		r.freqs = append(r.freqs, f)
	}
	if c.Factor > 1 {
		r.scale = 1 + 0.1*math.Log(c.Factor)
	}
	return r
}

// yarn is the factor on pair i's angle: 1 for fast pairs, 1/Factor for slow ones, a ramp between.
func yarn(c RopeConfig, i int) float64 {
	const fast, slow = 32, 1
	corr := func(beta float64) float64 {
		return float64(c.Dims) * math.Log(float64(c.Original)/(beta*2*math.Pi)) / (2 * math.Log(c.Base))
	}
	low := max(0, math.Floor(corr(fast)))
	high := min(float64(c.Dims-1), math.Ceil(corr(slow)))
	y := (float64(i) - low) / max(0.001, high-low)
	m := 1 - min(1, max(0, y))
	return (1-m)/c.Factor + m
}

// Row returns cos and sin of every pair at a position, interleaved. The caller must not change it.
func (r *Rope) Row(pos int) []float32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pos >= len(r.rows) {
		r.rows, r.slabs = append(r.rows, make([][]float32, ropeSlab)...), append(r.slabs, nil)
	}
	if r.rows[pos] == nil {
		n, slab := 2*len(r.freqs), &r.slabs[pos/ropeSlab]
		if *slab == nil {
			*slab = make([]float32, ropeSlab*n)
		}
		row := (*slab)[pos%ropeSlab*n:][:n:n]
		for i, f := range r.freqs {
			sin, cos := math.Sincos(float64(pos) * f)
			row[2*i], row[2*i+1] = float32(cos*r.scale), float32(sin*r.scale)
		}
		r.rows[pos] = row
	}
	return r.rows[pos]
}

// attnScale is the factor on attention scores: 1/sqrt(head dimension) unless the file says otherwise.
func attnScale(key float32, headDim int) float32 {
	if key != 0 {
		return key
	}
	return float32(1 / math.Sqrt(float64(headDim)))
}
