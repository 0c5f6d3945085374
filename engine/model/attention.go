package model

import (
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

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
func (s *stepBuilder) attention(a *attention, st *KVState, h shaders.Normed) {
	c := s.c
	p := s.project("attn_in", h, a.Q, a.K, a.V)
	q := s.scratch("attn_rope", c.Heads*c.HeadDim)
	s.g.Add("attn_rope", &shaders.QKRope{
		Step: s.step, P: p, QNorm: a.QNorm, KNorm: a.KNorm, Q: q, KV: st.Hot,
		Rows: s.shape.Rows, Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Rope: c.Rope.Dims, Eps: c.Eps,
	})
	y, carry := shaders.NewAttentionOut("attn_out", s.shape.Rows, c.Heads, c.HeadDim)
	s.g.Add("attn_core", &shaders.Attention{
		Step: s.step, Q: q, P: p, Hot: st.Hot, Cold: st.Cold, Y: y, Carry: carry,
		Rows: s.shape.Rows, Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Scale: c.AttnScale,
		MaxTokens: s.shape.Pages * shaders.PageTokens,
	})
	s.matmulAdd("attn_output", a.Out, y, s.x)
}

// EncodeGraph builds the step that re-encodes up to slots full pages into cold ones, in all attention layers: it
// takes runs that have moves and no tokens. The state must have cold pages. It is a step of its own, as the step
// that follows must find the pages where its page tables say.
func (m *Model) EncodeGraph(slots int, st *State) *scheduler.Graph {
	g := scheduler.NewGraph(shaders.StepShape{Seqs: slots, Moves: slots})
	for i := range m.layers {
		if kv := st.kv[i]; kv != nil {
			g.Layer(i)
			g.Add("kv_encode", &shaders.KVEncode{Step: g.Step.View(), Hot: kv.Hot, Cold: kv.Cold, Width: m.kvWidth(), Moves: slots})
		}
	}
	return g
}
