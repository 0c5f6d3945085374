package model

import (
	"fmt"
	"slices"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A Model is a file's weights, bound by name and checked, and the graph that uses them.
type Model struct {
	Config
	Weights  []weights.Item
	Warnings []string // oddities of the file that do not stop it from running
	Unused   []string // tensors that the graph has no use for

	embed shaders.Matrix
	// Packs says that products take their inputs in whole numbers, where the weights' block type allows it (shaders.Packs).
	Packs bool

	norm   shaders.View
	head   shaders.Matrix
	layers []layer
}

// layer is one decoder layer. One of net and attn is set, and one of moe and dense.
type layer struct {
	attnNorm, ffnNorm shaders.View
	net               *deltaNet
	attn              *attention
	moe               *moe
	dense             *dense
}

// New reads a model's metadata and binds its tensors.
func New(f *gguf.File) (*Model, error) {
	c, err := ReadConfig(f)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: *c}
	if err := m.bind(f); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Model) bind(f *gguf.File) error {
	b := &binder{f: f, used: map[string]bool{}}
	c := &m.Config
	c.Vocab = b.width("token_embd.weight", 1)
	m.embed = b.matrix("token_embd.weight", c.Embed, c.Vocab)
	m.norm = b.vector("output_norm.weight", c.Embed)
	m.head = m.embed // tied unless the file has a head of its own
	if b.has("output.weight") {
		m.head = b.matrix("output.weight", c.Embed, c.Vocab)
	}
	for i := range c.Layers {
		m.layers = append(m.layers, b.layer(c, i))
		if b.err != nil {
			return b.err
		}
	}
	if b.err != nil {
		return b.err
	}
	m.Weights = b.weights
	m.lookOver(b)
	return nil
}

func (b *binder) layer(c *Config, i int) layer {
	blk := fmt.Sprintf("blk.%d.", i)
	if b.has(blk+"attn_qkv.weight") && !c.Recurrent[i] && !b.has(blk+"ssm_a") && !b.has(blk+"attn_q.weight") {
		b.fail("%w: tensor %sattn_qkv.weight on an attention layer; only separate attn_q, attn_k and attn_v are known", ErrUnsupported, blk)
		return layer{}
	}
	if recurrent, attends := b.has(blk+"ssm_a"), b.has(blk+"attn_q.weight"); recurrent != c.Recurrent[i] || attends == c.Recurrent[i] {
		want := "an attention"
		if c.Recurrent[i] {
			want = "a delta-net"
		}
		b.fail("layer %d is %s layer by the metadata, but tensor %sssm_a is present: %t, %sattn_q.weight: %t", i, want, blk, recurrent, blk, attends)
		return layer{}
	}
	l := layer{
		attnNorm: b.vector(blk+"attn_norm.weight", c.Embed),
		ffnNorm:  b.vector(blk+"post_attention_norm.weight", c.Embed),
	}
	if c.Recurrent[i] {
		n := b.deltaNet(c, blk)
		l.net = &n
	} else {
		a := b.attention(c, blk)
		l.attn = &a
	}
	if c.MoE() {
		e := b.moe(c, blk)
		l.moe = &e
	} else {
		d := b.dense(c, blk)
		l.dense = &d
	}
	return l
}

// lookOver collects warnings and unused tensors.
func (m *Model) lookOver(b *binder) {
	sum := 0.0
	norm := b.values("blk.0.attn_norm.weight")
	for _, v := range norm {
		sum += float64(v)
	}
	if len(norm) > 0 && sum/float64(len(norm)) < 0.5 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("norm weights average %.2f: the file may lack the converter's +1 (blk.0.attn_norm.weight)", sum/float64(len(norm))))
	}
	for _, t := range b.f.Tensors() {
		if !b.used[t.Name] {
			m.Unused = append(m.Unused, t.Name)
		}
	}
}

// Outputs are the buffers that hold what a step computed.
type Outputs struct {
	Logits shaders.Mat  // wanted rows x vocabulary
	Top    shaders.View // [wanted rows][TopK] pairs of id and logit bits, best first
	TopK   int
	Hidden shaders.Mat // wanted rows x embedding width: what the head would read
}

// GraphOptions choose what a graph delivers.
type GraphOptions struct {
	Hidden bool // the rows of the final norm, and nothing of what the head makes of them
	Logits bool // make the logits readable by the host
	TopK   int  // deliver the best TopK tokens of every wanted row, 0 for none
}

// Graph builds the ops of one step of at most the given shape over a state.
func (m *Model) Graph(shape shaders.StepShape, st *State, opt GraphOptions) (*scheduler.Graph, Outputs) {
	shape.Rope, shape.Cold = m.Rope.Dims, st.ColdPages > 0
	g := scheduler.NewGraph(shape)
	s := &stepBuilder{g: g, c: &m.Config, shape: shape, step: g.Step.View(), state: st, packs: m.Packs}
	s.x = s.scratch("x", m.Embed)
	g.Add("token_embd", &shaders.Embed{Step: s.step, W: m.embed, Y: s.x, Rows: shape.Rows})
	for i := range m.layers {
		l := &m.layers[i]
		g.Layer(i)
		h := s.norm("attn_norm", l.attnNorm)
		if l.net != nil {
			s.deltaNet(l.net, st.recurrent[i], h)
		} else {
			s.attention(l.attn, st.kv[i], h)
		}
		h = s.norm("ffn_norm", l.ffnNorm)
		if l.moe != nil {
			s.moe(l.moe, h)
		} else {
			s.dense(l.dense, h)
		}
	}
	g.Layer(len(m.layers))
	return g, s.head(m.norm, m.head, opt)
}

// stepBuilder adds a model's blocks to a graph.
type stepBuilder struct {
	g     *scheduler.Graph
	c     *Config
	shape shaders.StepShape
	step  shaders.View
	state *State
	x     shaders.Mat // the residual stream
	packs bool        // see [Model.Packs]
}

// packed returns room for inputs of so many rows and columns in whole numbers, and none where no matrix takes them.
func (s *stepBuilder) packed(name string, rows, width int, ws ...shaders.Matrix) shaders.Mat {
	if !s.packs || !slices.ContainsFunc(ws, func(w shaders.Matrix) bool { return w.Buf != nil && shaders.Packs(w.Type) }) {
		return shaders.Mat{}
	}
	return shaders.NewPacked(name+"_packed", rows, width)
}

// scratch returns a new matrix of a row per token.
func (s *stepBuilder) scratch(name string, width int) shaders.Mat {
	return shaders.NewMat(name, shaders.Scratch, s.shape.Rows, width)
}

// norm adds h = RMSNorm(x), for ops that can form it themselves.
func (s *stepBuilder) norm(name string, w shaders.View) shaders.Normed {
	h := shaders.Normed{Mat: s.scratch(name, s.c.Embed), Of: s.x, Weight: w, Eps: s.c.Eps}
	s.g.Add(name, &shaders.RMSNorm{
		Step: s.step, X: h.Of, Y: h.Mat, Weight: h.Weight, Rows: s.shape.Rows, Count: shaders.CountRows, Eps: h.Eps, Folds: true,
	})
	return h
}

// project adds the products of several matrices with x, and returns the row that holds them side by side.
func (s *stepBuilder) project(name string, x shaders.Normed, ws ...shaders.Matrix) shaders.Mat {
	width := 0
	for _, w := range ws {
		width += w.Out
	}
	y := s.scratch(name, width)
	s.g.Add(name, &shaders.Project{Step: s.step, W: ws, X: x, Y: y, Rows: s.shape.Rows, Count: shaders.CountRows,
		Packed: s.packed(name, s.shape.Rows, x.Width, ws...)})
	return y
}

// matmulAdd adds y += w x.
func (s *stepBuilder) matmulAdd(name string, w shaders.Matrix, x, y shaders.Mat) {
	s.g.Add(name, &shaders.MatMul{Step: s.step, W: w, X: x, Y: y, Rows: s.shape.Rows, Count: shaders.CountRows, Accumulate: true,
		Packed: s.packed(name, s.shape.Rows, x.Width, w)})
}

// head adds the final norm and the LM head for the rows whose logits are wanted.
func (s *stepBuilder) head(norm shaders.View, w shaders.Matrix, opt GraphOptions) Outputs {
	outs := s.shape.Outs
	kind := shaders.Scratch
	if opt.Hidden {
		kind = shaders.Result
	}
	h := shaders.NewMat("output_norm", kind, outs, s.c.Embed)
	s.g.Add("output_norm", &shaders.RMSNorm{
		Step: s.step, X: s.x, Y: h, Weight: norm, Rows: outs, Count: shaders.CountOuts, Gather: true, Eps: s.c.Eps,
	})
	if opt.Hidden {
		return Outputs{Hidden: h}
	}
	if opt.Logits {
		kind = shaders.Result
	}
	logits := shaders.NewMat("logits", kind, outs, w.Out)
	s.g.Add("output", &shaders.MatMul{Step: s.step, W: w, X: h, Y: logits, Rows: outs, Count: shaders.CountOuts, Packed: s.packed("output", outs, h.Width, w)})
	out := Outputs{Logits: logits, TopK: opt.TopK}
	if opt.TopK > 0 {
		k := opt.TopK
		top := &shaders.Buffer{Name: "top", Kind: shaders.Result, Size: int64(outs) * int64(k) * 8}
		part := shaders.TopKPart("top_part", w.Out, k, outs)
		s.g.Add("top", &shaders.TopK{Step: s.step, Logits: logits, Part: part, Out: top.View(), Outs: outs, K: k})
		out.Top = top.View()
	}
	return out
}
