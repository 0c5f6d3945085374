package model

import "github.com/calderaml/caldera/shaders"

// dense is a SwiGLU block: down(silu(gate h) * (up h)). It is also the shared expert of a mixture.
type dense struct {
	Gate, Up, Down shaders.Matrix
}

// moe is a mixture of experts with a gated shared expert (model-qwen35.md 5.3).
type moe struct {
	Router         shaders.Matrix
	Gate, Up, Down shaders.Matrix // stacks
	SharedGate     shaders.Matrix // one row: the shared expert's weight in the sum
	Shared         dense
}

func (b *binder) dense(c *Config, blk string) dense {
	return dense{
		Gate: b.matrix(blk+"ffn_gate.weight", c.Embed, c.FFN),
		Up:   b.matrix(blk+"ffn_up.weight", c.Embed, c.FFN),
		Down: b.matrix(blk+"ffn_down.weight", c.FFN, c.Embed),
	}
}

// moe binds a mixture. The experts' width comes from the tensors: the keys' defaults differ between
// engines (model-qwen35.md 13).
func (b *binder) moe(c *Config, blk string) moe {
	m := moe{Router: b.matrix(blk+"ffn_gate_inp.weight", c.Embed, c.Experts)}
	down := blk + "ffn_down_exps.weight"
	c.ExpertFFN = b.width(down, 0)
	m.Down = b.stack(down, c.ExpertFFN, c.Embed, c.Experts)
	if fused := blk + "ffn_gate_up_exps.weight"; b.has(fused) {
		// Per expert the gate's rows come first, then the up projection's.
		both := b.stack(fused, c.Embed, 2*c.ExpertFFN, c.Experts)
		if b.err == nil {
			m.Gate, m.Up = both.Rows(0, c.ExpertFFN), both.Rows(c.ExpertFFN, c.ExpertFFN)
		}
	} else {
		m.Gate = b.stack(blk+"ffn_gate_exps.weight", c.Embed, c.ExpertFFN, c.Experts)
		m.Up = b.stack(blk+"ffn_up_exps.weight", c.Embed, c.ExpertFFN, c.Experts)
	}
	m.SharedGate = b.matrix(blk+"ffn_gate_inp_shexp.weight", c.Embed, 1)
	c.SharedFFN = b.width(blk+"ffn_down_shexp.weight", 0)
	m.Shared = dense{
		Down: b.matrix(blk+"ffn_down_shexp.weight", c.SharedFFN, c.Embed),
		Gate: b.matrix(blk+"ffn_gate_shexp.weight", c.Embed, c.SharedFFN),
		Up:   b.matrix(blk+"ffn_up_shexp.weight", c.Embed, c.SharedFFN),
	}
	return m
}

// width is a dimension of a tensor that says by its shape what no key says. The container allows 0.
func (b *binder) width(name string, dim int) int {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.fail("tensor %s is missing", name)
		return 0
	}
	n := t.Ne(dim)
	if n == 0 || n > maxWidth {
		b.fail("tensor %s has dimensions %v; %d is outside 1..%d", name, t.Dims, n, maxWidth)
		return 0
	}
	return int(n)
}

// maxWidth bounds sizes that are read off a tensor, so that products of them cannot overflow.
const maxWidth = 1 << 24

// dense adds x += down(silu(gate h) * up h).
func (s *stepBuilder) dense(d *dense, h shaders.Normed) {
	f := s.scratch("ffn_act", d.Gate.Out)
	s.g.Add("ffn_gate_up", &shaders.ExpertGateUp{Step: s.step, Gate: d.Gate, Up: d.Up, X: h, H: f, Rows: s.shape.Rows, K: 1,
		Packed: s.packed("ffn_gate_up", s.shape.Rows, h.Width, d.Gate, d.Up)})
	s.matmulAdd("ffn_down", d.Down, f, s.x)
}

// moe adds x += sum over the selected experts + shared expert.
func (s *stepBuilder) moe(m *moe, h shaders.Normed) {
	c, k := s.c, s.c.ExpertsUsed
	logits := s.project("ffn_gate_inp", h, m.Router, m.SharedGate)
	ids, weights := s.scratch("expert_ids", k), s.scratch("expert_weights", k)
	s.g.Add("router", &shaders.Router{
		Step: s.step, Logits: logits.Cols(0, c.Experts), Ids: ids.View, Weights: weights.View,
		Rows: s.shape.Rows, Experts: c.Experts, K: k, Scale: c.ExpertScale,
	})
	tiles := s.tiles(ids.View)
	act := s.scratch("expert_act", k*m.Down.In+m.Shared.Down.In) // layers may differ
	s.g.Add("ffn_gate_up_exps", &shaders.ExpertGateUp{
		Step: s.step, Gate: m.Gate, Up: m.Up, SharedGate: m.Shared.Gate, SharedUp: m.Shared.Up,
		X: h, Ids: ids.View, Tiles: tiles, H: act, Rows: s.shape.Rows, K: k,
		Packed: s.packed("ffn_gate_up_exps", s.shape.Rows, h.Width, m.Gate, m.Up, m.Shared.Gate, m.Shared.Up),
	})
	parts := &shaders.Buffer{Name: "expert_parts", Kind: shaders.Scratch, Size: shaders.PartsBytes(s.shape.Rows, k, c.Embed)}
	s.g.Add("ffn_down_exps", &shaders.ExpertDown{
		Step: s.step, W: m.Down, Shared: m.Shared.Down, Gate: logits.Cols(c.Experts, 1),
		H: act, Ids: ids.View, Weights: weights.View, Tiles: tiles, Parts: parts.View(), Y: s.x, Rows: s.shape.Rows, K: k,
		Packed: s.packed("ffn_down_exps", s.shape.Rows, act.Width, m.Down, m.Shared.Down),
	})
}

// Steps of groupRows rows and more sort their rows by expert, so that rows share an expert's weights. Sorting goes
// over all pairs of a row and an expert in one loop, which no more than groupLoops keeps within what devices allow
// whatever a file says; a step beyond it reads the weights for each pair. Neither changes a result.
const (
	groupRows  = 4
	groupLoops = 1 << 15
)

// tiles adds the sorting of the rows by expert where it is worth its time, and returns an empty view elsewhere.
func (s *stepBuilder) tiles(ids shaders.View) shaders.View {
	rows, k, experts := s.shape.Rows, s.c.ExpertsUsed, s.c.Experts
	if rows < groupRows || shaders.GroupLoops(rows, k, experts) > groupLoops {
		return shaders.View{}
	}
	b := &shaders.Buffer{Name: "expert_tiles", Kind: shaders.Scratch, Size: shaders.TilesBytes(rows, k, experts)}
	s.g.Add("expert_group", &shaders.ExpertGroup{Step: s.step, Ids: ids, Tiles: b.View(), Rows: rows, Experts: experts, K: k})
	return b.View()
}
