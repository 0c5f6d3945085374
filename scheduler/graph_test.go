package scheduler

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/calderaml/caldera/shaders"
)

// fakeOp is an op with given operands that computes nothing.
type fakeOp struct{ operands []shaders.Operand }

func (o *fakeOp) Kernel() string                                     { return "fake" }
func (o *fakeOp) Operands() []shaders.Operand                        { return o.operands }
func (o *fakeOp) Cost() shaders.Cost                                 { return shaders.Cost{Flops: 1} }
func (o *fakeOp) Lower(*shaders.Profile) ([]shaders.Dispatch, error) { return nil, nil }
func (o *fakeOp) Twin(shaders.Memory) error                          { return nil }

func buffer(name string, kind shaders.Kind, size int64) *shaders.Buffer {
	return &shaders.Buffer{Name: name, Kind: kind, Size: size}
}

func TestGraphCheck(t *testing.T) {
	a, b := buffer("a", shaders.Scratch, 64), buffer("b", shaders.Scratch, 64)
	w := buffer("w", shaders.Weight, 64)
	other := shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1}.NewBuffer()
	for _, c := range []struct {
		name, want string
		ops        [][]shaders.Operand
	}{
		{"sound", "", [][]shaders.Operand{{shaders.R(w.View()), shaders.W(a.View())}, {shaders.R(a.View()), shaders.W(b.View())}}},
		{"unwritten", "which nothing has written", [][]shaders.Operand{{shaders.R(a.View())}}},
		{"read-write first", "which nothing has written", [][]shaders.Operand{{shaders.RW(a.View())}}},
		{"write to weights", "writes weight buffer w", [][]shaders.Operand{{shaders.W(w.View())}}},
		{"foreign step", "not the graph's", [][]shaders.Operand{{shaders.R(other.View())}}},
		{"outside", "does not lie in buffer w", [][]shaders.Operand{{shaders.R(w.View().Slice(32, 64))}}},
		{"unaligned", "does not lie in buffer w", [][]shaders.Operand{{shaders.R(w.View().Slice(2, 4))}}},
		{"nothing", "no buffer", [][]shaders.Operand{{shaders.R(shaders.View{})}}},
	} {
		g := NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
		for _, o := range c.ops {
			g.Add("op", &fakeOp{o})
		}
		err := g.Check()
		if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// randomGraph writes and reads scratch buffers in a random order, as a model does.
func randomGraph(r *rand.Rand) *Graph {
	g := NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	var live []*shaders.Buffer
	for range 5 + r.IntN(40) {
		out := buffer("s", shaders.Scratch, int64(4+4*r.IntN(500)))
		ops := []shaders.Operand{shaders.W(out.View())}
		for range min(len(live), r.IntN(4)) {
			b := live[len(live)-1-r.IntN(min(len(live), 6))]
			if r.IntN(3) == 0 {
				ops = append(ops, shaders.RW(b.View()))
			} else {
				ops = append(ops, shaders.R(b.View()))
			}
		}
		g.Add("op", &fakeOp{ops})
		live = append(live, out)
	}
	return g
}

// Buffers that are in use at the same op must not share memory, and sharing must save some.
func TestPlanScratch(t *testing.T) {
	saved := false
	for seed := range uint64(200) {
		g := randomGraph(rand.New(rand.NewPCG(seed, 0)))
		if err := g.Check(); err != nil {
			t.Fatal(err)
		}
		offsets, size := planScratch(lifetimes(g, 0, len(g.Nodes)), true)
		_, apart := planScratch(lifetimes(g, 0, len(g.Nodes)), false)
		saved = saved || size < apart
		if size > apart {
			t.Errorf("seed %d: sharing takes %d bytes, not sharing %d", seed, size, apart)
		}
		ls := lifetimes(g, 0, len(g.Nodes))
		for i, a := range ls {
			if offsets[a.buf]%scratchAlign != 0 || offsets[a.buf]+a.buf.Size > size {
				t.Fatalf("seed %d: buffer at %d of %d bytes in an arena of %d", seed, offsets[a.buf], a.buf.Size, size)
			}
			for _, b := range ls[:i] {
				if a.first <= b.last && b.first <= a.last && offsets[a.buf] < offsets[b.buf]+b.buf.Size && offsets[b.buf] < offsets[a.buf]+a.buf.Size {
					t.Fatalf("seed %d: two live buffers overlap", seed)
				}
			}
		}
	}
	if !saved {
		t.Error("no memory was ever shared")
	}
}

// touchesOf gives every dispatch of a graph its touches, with scratch in one arena.
func touchesOf(g *Graph) [][]touch {
	offsets, _ := planScratch(lifetimes(g, 0, len(g.Nodes)), true)
	var ts [][]touch
	for _, n := range g.Nodes {
		var d []touch
		for _, o := range n.Op.Operands() {
			d = append(d, touch{o, "arena", offsets[o.Buf] + o.Off})
		}
		ts = append(ts, d)
	}
	return ts
}

// The barriers that are inferred satisfy the check that does not share their code, and every one of them
// is needed: without it the check names two ops.
func TestBarriers(t *testing.T) {
	removed := 0
	for seed := range uint64(200) {
		ts := touchesOf(randomGraph(rand.New(rand.NewPCG(seed, 1))))
		need := barriers(ts)
		label := func(i int) string { return "op" }
		if err := checkBarriers(ts, need, label); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i := range need {
			if i == 0 || !need[i] {
				continue
			}
			need[i] = false
			if err := checkBarriers(ts, need, label); err == nil {
				t.Errorf("seed %d: barrier %d can go", seed, i)
			}
			need[i] = true
			removed++
		}
	}
	if removed == 0 {
		t.Error("no barrier was ever placed")
	}
}

// Writers of different columns of one matrix need no barrier between them; a reader of all does.
func TestBarriersColumns(t *testing.T) {
	m := shaders.NewMat("m", shaders.Scratch, 4, 8)
	at := func(o shaders.Operand) []touch { return []touch{{o, "arena", o.Off}} }
	need := barriers([][]touch{at(shaders.W(m.Cols(0, 4).View)), at(shaders.W(m.Cols(4, 4).View)), at(shaders.R(m.View))})
	if need[1] || !need[2] {
		t.Errorf("barriers %v", need)
	}
}
