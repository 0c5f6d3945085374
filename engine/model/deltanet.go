package model

import (
	"math"

	"github.com/calderaml/caldera/shaders"
)

// convTaps is the width of the delta net's causal convolution; the carried tail is one less.
const convTaps = 4

// deltaNet is the weights of a gated delta-net layer (model-qwen35.md 5.2).
type deltaNet struct {
	QKV, Gate, Beta, Alpha, Out shaders.Matrix
	Conv, A, DtBias, Norm       shaders.View
}

// deltaNet binds a layer in any of the layouts that files have: separate projections, the fused beta and
// alpha of qwen3next, or its legacy ssm_in with everything interleaved by key head (model-qwen35.md 4.4).
func (b *binder) deltaNet(c *Config, blk string) deltaNet {
	n := deltaNet{
		Conv:   b.vector(blk+"ssm_conv1d.weight", convTaps, c.ConvChannels()),
		A:      b.vector(blk+"ssm_a", c.ValueHeads),
		DtBias: b.vector(b.either(blk+"ssm_dt.bias", blk+"ssm_dt"), c.ValueHeads),
		Norm:   b.vector(blk+"ssm_norm.weight", c.StateDim),
		Out:    b.matrix(blk+"ssm_out.weight", c.ValueWidth(), c.Embed),
	}
	for _, a := range b.values(blk + "ssm_a") {
		if !(a <= 0) || math.IsInf(float64(a), 0) {
			b.fail("tensor %sssm_a holds %g; it must be -exp(A_log), finite and never positive: the file was converted without that step", blk, a)
			break
		}
	}
	for _, name := range []string{blk + "ssm_in.weight", blk + "ssm_ba.weight"} {
		if b.has(name) && !c.Grouped && c.KeyHeads != c.ValueHeads {
			b.fail("%w: tensor %s holds its value heads in grouped order, the file's others are tiled", ErrUnsupported, name)
		}
	}
	if b.has(blk + "ssm_in.weight") {
		n.QKV, n.Gate = b.legacyIn(c, blk+"ssm_in.weight")
	} else {
		n.QKV = b.matrix(blk+"attn_qkv.weight", c.Embed, c.ConvChannels())
		n.Gate = b.matrix(blk+"attn_gate.weight", c.Embed, c.ValueWidth())
	}
	if b.has(blk + "ssm_ba.weight") {
		n.Beta, n.Alpha = b.fusedBA(c, blk+"ssm_ba.weight")
	} else {
		n.Beta = b.matrix(blk+"ssm_beta.weight", c.Embed, c.ValueHeads)
		n.Alpha = b.matrix(blk+"ssm_alpha.weight", c.Embed, c.ValueHeads)
	}
	return n
}

// legacyIn splits ssm_in, whose rows are, for each key head, q, k, the v of its value heads, and their z,
// into the order that attn_qkv and attn_gate have.
func (b *binder) legacyIn(c *Config, name string) (qkv, gate shaders.Matrix) {
	t := b.tensor(name, c.Embed, c.ConvChannels()+c.ValueWidth())
	d, r := c.StateDim, c.ValueHeads/c.KeyHeads
	group := (2 + 2*r) * d
	qkv = b.rows(name+"[qkv]", t, c.ConvChannels(), func(i int) int {
		head, at := i/d, i%d
		switch {
		case head < c.KeyHeads:
			return head*group + at
		case head < 2*c.KeyHeads:
			return (head-c.KeyHeads)*group + d + at
		}
		head -= 2 * c.KeyHeads
		return head/r*group + (2+head%r)*d + at
	})
	gate = b.rows(name+"[z]", t, c.ValueWidth(), func(i int) int {
		head, at := i/d, i%d
		return head/r*group + (2+r+head%r)*d + at
	})
	return qkv, gate
}

// fusedBA splits ssm_ba, whose rows are, for each key head, beta and then alpha of its value heads.
func (b *binder) fusedBA(c *Config, name string) (beta, alpha shaders.Matrix) {
	t := b.tensor(name, c.Embed, 2*c.ValueHeads)
	r := c.ValueHeads / c.KeyHeads
	beta = b.rows(name+"[beta]", t, c.ValueHeads, func(h int) int { return h/r*2*r + h%r })
	alpha = b.rows(name+"[alpha]", t, c.ValueHeads, func(h int) int { return h/r*2*r + r + h%r })
	return beta, alpha
}

// either returns the name that exists, or the first.
func (b *binder) either(first, second string) string {
	if !b.has(first) && b.has(second) {
		return second
	}
	return first
}

// deltaNet adds a layer's mixing block: x += out(delta rule(conv(projections of h))).
func (s *stepBuilder) deltaNet(n *deltaNet, st *RecurrentState, h shaders.Normed) {
	c := s.c
	conv, vw, heads := c.ConvChannels(), c.ValueWidth(), c.ValueHeads
	// One wide row holds u (q|k|v), z, beta and alpha; one kernel reads them from a single binding.
	p := s.project("gdn_in", h, n.QKV, n.Gate, n.Beta, n.Alpha)
	u, z := p.Cols(0, conv), p.Cols(conv, vw)
	beta, alpha := p.Cols(conv+vw, heads), p.Cols(conv+vw+heads, heads)
	qkv := s.scratch("gdn_qkv", conv+2*heads)
	s.g.Add("ssm_conv", &shaders.GDNConv{
		Step: s.step, P: u, Beta: beta, Alpha: alpha, Conv: n.Conv, A: n.A, DtBias: n.DtBias, Tail: st.Tail.View(), Out: qkv,
		Rows: s.shape.Rows, Seqs: s.shape.Seqs, Slots: s.state.Slots, KHeads: c.KeyHeads, VHeads: heads, Dim: c.StateDim, Eps: c.Eps,
	})
	o, y := s.scratch("gdn_out", vw), s.scratch("gdn_norm", vw)
	s.g.Add("delta_rule", &shaders.DeltaRule{
		Step: s.step, QKV: qkv, S: st.S.View(), O: o,
		Rows: s.shape.Rows, Seqs: s.shape.Seqs, Slots: s.state.Slots, KHeads: c.KeyHeads, VHeads: heads, Dim: c.StateDim, Grouped: c.Grouped,
		Norm: &shaders.GatedNorm{Step: s.step, O: o, Z: z, Y: y, Weight: n.Norm, Rows: s.shape.Rows, Heads: heads, Dim: c.StateDim, Eps: c.Eps},
	})
	s.matmulAdd("ssm_out", n.Out, y, s.x)
}
