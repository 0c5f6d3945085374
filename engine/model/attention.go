package model

import "github.com/calderaml/caldera/shaders"

// attention is the weights of a gated attention layer (model-qwen35.md 5.1).
type attention struct {
	Q, K, V, Out shaders.Matrix
	QNorm, KNorm shaders.View
}

func (b *binder) attention(c *Config, blk string) attention {
	qk, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return attention{
		Q:     b.matrix(blk+"attn_q.weight", c.Embed, 2*qk), // query and gate of each head
		K:     b.matrix(blk+"attn_k.weight", c.Embed, kv),
		V:     b.matrix(blk+"attn_v.weight", c.Embed, kv),
		Out:   b.matrix(blk+"attn_output.weight", qk, c.Embed),
		QNorm: b.vector(blk+"attn_q_norm.weight", c.HeadDim),
		KNorm: b.vector(blk+"attn_k_norm.weight", c.HeadDim),
	}
}

// attention adds a layer's mixing block: x += out(attention of h over the cache, gated).
func (s *stepBuilder) attention(a *attention, st *KVState, h shaders.Mat) {
	c := s.c
	qk, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	p := s.scratch("attn_in", 2*qk+2*kv)
	s.matmul("attn_q", a.Q, h, p.Cols(0, 2*qk))
	s.matmul("attn_k", a.K, h, p.Cols(2*qk, kv))
	s.matmul("attn_v", a.V, h, p.Cols(2*qk+kv, kv))
	q := s.scratch("attn_rope", qk)
	s.g.Add("attn_rope", &shaders.QKRope{
		Step: s.step, P: p, QNorm: a.QNorm, KNorm: a.KNorm, Q: q, K: st.K.View(), V: st.V.View(), F16: s.state.F16,
		Rows: s.shape.Rows, Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Rope: c.Rope.Dims, Eps: c.Eps,
	})
	y := s.scratch("attn_out", qk)
	s.g.Add("attn_core", &shaders.Attention{
		Step: s.step, Q: q, P: p, K: st.K.View(), V: st.V.View(), Y: y, Carry: s.scratch("attn_carry", 2*c.Heads), F16: s.state.F16,
		Rows: s.shape.Rows, Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Scale: c.AttnScale,
		MaxTokens: s.shape.Pages * shaders.PageTokens,
	})
	s.matmulAdd("attn_output", a.Out, y, s.x)
}
