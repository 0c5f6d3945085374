package model

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// buckets are the row capacities of the plans that an engine makes.
var buckets = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}

// The oracle models of every layout, by what is special about their graphs.
var graphFiles = []string{"qwen35moe-f32", "qwen35-f32", "qwen3next-f32", "qwen3next-q8_0-ssm_in", "qwen3next-q4_k_m", "qwen35moe-q4_0"}

// The graph of every bucket is sound, and every op of it can be lowered for the weakest devices and for
// those that reduce across lanes, within their limits.
func TestGraphLowers(t *testing.T) {
	limits := [3]uint32{65535, 65535, 65535} // what Vulkan promises
	profiles := map[string]*shaders.Profile{
		"floor":  {Subgroup: 4, MaxBinding: 128 << 20, MaxGroups: limits},
		"lanes":  {LanesPerRow: true, Subgroup: 32, OneSubgroup: true, MaxBinding: 128 << 20, MaxGroups: limits},
		"shared": {LanesPerRow: true, Subgroup: 64, MaxBinding: 128 << 20, MaxGroups: limits},
		"fused":  {LanesPerRow: true, Fuse: true, Subgroup: 32, OneSubgroup: true, MaxBinding: 128 << 20, MaxGroups: limits},
	}
	for _, name := range graphFiles {
		m := load(t, name).model()
		states := []StateShape{{Slots: 4, Pages: 64, KV: shaders.KVF32}, {Slots: 4, Pages: 64, KV: shaders.KVF16}}
		if m.CheckKV(shaders.KVQ4_0) == nil {
			states = append(states, StateShape{Slots: 4, Pages: 64, ColdPages: 64, KV: shaders.KVF16, ColdKV: shaders.KVQ4_0})
		}
		for _, state := range states {
			st := m.NewState(state)
			for _, rows := range buckets {
				shape := shaders.StepShape{Rows: rows, Seqs: min(rows, 4), Outs: rows, Pages: 16}
				g, out := m.Graph(shape, st, GraphOptions{Logits: true, TopK: 40})
				if err := g.Check(); err != nil {
					t.Fatalf("%s, %d rows: %v", name, rows, err)
				}
				if out.TopK != 40 || out.Top.Len != int64(rows)*40*8 || out.Logits.Width != m.Vocab || out.Logits.Buf.Kind != shaders.Result {
					t.Errorf("%s, %d rows: outputs %+v", name, rows, out)
				}
				if g.Shape.Rope != m.Rope.Dims {
					t.Errorf("%s: the step has room for rotations of %d, the model has %d", name, g.Shape.Rope, m.Rope.Dims)
				}
				nodes := g.Nodes
				if st.ColdPages > 0 {
					e := m.EncodeGraph(rows, st)
					if err := e.Check(); err != nil {
						t.Fatalf("%s, %d moves: %v", name, rows, err)
					}
					nodes = append(nodes, e.Nodes...)
				}
				for what, p := range profiles {
					for _, n := range nodes {
						ds, err := n.Op.Lower(p)
						folded := what == "fused" && rows <= 2 && n.Op.Kernel() == "rmsnorm" && n.Layer >= 0 && n.Layer < m.Layers
						if err != nil || folded != (len(ds) == 0) {
							t.Fatalf("%s, %d rows, %s: %s: %d dispatches, %v", name, rows, what, n.Label(), len(ds), err)
						}
						for _, d := range ds {
							if err := withinLimits(d, p); err != nil {
								t.Fatalf("%s, %d rows, %s: %s: %v", name, rows, what, n.Label(), err)
							}
						}
					}
				}
			}
		}
	}
}

// withinLimits compares a dispatch with its module and with what a device of the profile allows.
func withinLimits(d shaders.Dispatch, p *shaders.Profile) error {
	m, _, err := shaders.Lookup(d.Module)
	if err != nil {
		return err
	}
	if len(d.Bind) != m.Buffers || len(d.Push) != m.Params {
		return fmt.Errorf("%d operands and %d parameters, %s takes %d and %d", len(d.Bind), len(d.Push), d.Module, m.Buffers, m.Params)
	}
	most := 8
	if p.Fuse {
		most = shaders.FusedBuffers
	}
	if m.Buffers > most || m.PushBytes() > 128 {
		return fmt.Errorf("%s has %d buffers and %d bytes of constants, beyond %d and 128", d.Module, m.Buffers, m.PushBytes(), most)
	}
	for i, o := range d.Bind {
		if !o.Valid() || o.Len > p.MaxBinding {
			return fmt.Errorf("%s: operand %d at %d of %d bytes", d.Module, i, o.Off, o.Len)
		}
	}
	for i, n := range d.Groups {
		if n < 1 || n > p.MaxGroups[i] {
			return fmt.Errorf("%s: grid %v", d.Module, d.Groups)
		}
	}
	return nil
}

// touchedWords calls f with the index in its buffer of every word of a view.
func touchedWords(v shaders.View, f func(i int64)) {
	if v.Pitch == 0 {
		for i := v.Off / 4; i < (v.Off+v.Len)/4; i++ {
			f(i)
		}
		return
	}
	for row := v.Off; row < v.Off+v.Len; row += v.Pitch {
		for i := row / 4; i < (row+v.Row)/4; i++ {
			f(i)
		}
	}
}

// Graph.Check looks at whole buffers. Here it is every word: none is read that no op has written, so that
// what a step computes cannot depend on what was in the memory before.
func TestNoUnwrittenReads(t *testing.T) {
	for _, name := range graphFiles {
		m := load(t, name).model()
		g, _ := m.Graph(shaders.StepShape{Rows: 4, Seqs: 2, Outs: 3, Pages: 1}, m.NewState(StateShape{Slots: 2, Pages: 2, KV: shaders.KVF32}), GraphOptions{TopK: 1})
		written := map[*shaders.Buffer][]bool{}
		for _, n := range g.Nodes {
			for _, o := range n.Op.Operands() {
				if k := o.Buf.Kind; o.Access&shaders.Read == 0 || (k != shaders.Scratch && k != shaders.Result) {
					continue
				}
				missing := 0
				w := written[o.Buf]
				touchedWords(o.View, func(i int64) {
					if w == nil || !w[i] {
						missing++
					}
				})
				if missing > 0 {
					t.Errorf("%s: %s reads %d words of %s that nothing has written", name, n.Label(), missing, o.Buf.Name)
				}
			}
			for _, o := range n.Op.Operands() {
				if o.Access&shaders.Write == 0 || o.Buf.Kind == shaders.State {
					continue
				}
				if written[o.Buf] == nil {
					written[o.Buf] = make([]bool, o.Buf.Size/4)
				}
				touchedWords(o.View, func(i int64) { written[o.Buf][i] = true })
			}
		}
	}
}

// The same by what comes out: with NaN in all memory that a fresh sequence should not read, the recurrent
// slot and the cache included, and with room for more rows than the step has, the logits are the same bits.
func TestStaleMemory(t *testing.T) {
	for _, name := range graphFiles {
		d := load(t, name)
		m := d.model()
		want := logits(t, m, d.prompt, len(d.prompt), nil)
		got := logits(t, m, d.prompt, 32, func(g *scheduler.Graph, mem shaders.HostMemory) {
			for _, b := range g.Buffers() {
				if b.Kind == shaders.Scratch || b.Kind == shaders.Result || b.Kind == shaders.State {
					mem[b] = shaders.AlignedBytes(b.Size)
					for i := range shaders.Floats(mem[b]) {
						shaders.Floats(mem[b])[i] = float32(math.NaN())
					}
				}
			}
		})
		if x := distance(got, want); x != 0 {
			t.Errorf("%s: logits differ by %g", name, x)
		}
	}
}

// What the graph binds is what the model holds: every weight is read, and nothing else is weights.
func TestGraphReadsAllWeights(t *testing.T) {
	for _, name := range graphFiles {
		m := load(t, name).model()
		g, _ := m.Graph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1}, m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF16}), GraphOptions{TopK: 1})
		read := map[*shaders.Buffer]bool{}
		for _, b := range g.Buffers() {
			read[b] = true
		}
		for _, it := range m.Weights {
			if !read[it.Buf] {
				t.Errorf("%s: nothing reads %s", name, it.Buf.Name)
			}
			delete(read, it.Buf)
		}
		for b := range read {
			if b.Kind == shaders.Weight {
				t.Errorf("%s: %s is read and not among the model's weights", name, b.Name)
			}
		}
	}
}

// The number of ops of a step is the number of kernel calls that a decoded token costs, which may only
// fall. Steps of several rows sort them by expert, one op for each mixture; nothing else depends on the rows.
func TestOpCounts(t *testing.T) {
	// Per layer, with the norm before each half.
	const (
		// norm, projections, convolution, delta rule with its norm, output
		deltaNet = 5
		// norm, projections, rotation and cache, attention, output
		attention = 5
		// norm, gate and up, down
		dense = 3
		// norm, router and shared gate, selection, gate and up, down and sum
		moe = 5
		// embedding; final norm, head
		around = 3
	)
	for _, c := range []struct {
		file   string
		layers []int
	}{
		{"qwen35moe-f32", []int{deltaNet + moe, deltaNet + moe, deltaNet + moe, attention + moe}},
		{"qwen35-f32", []int{deltaNet + dense, deltaNet + dense, attention + dense}},
		{"qwen3next-f32", []int{deltaNet + moe, attention + moe}},
		// A layout that is taken apart at load time costs nothing in a step.
		{"qwen3next-q8_0-ssm_in", []int{deltaNet + moe, attention + moe}},
	} {
		m := load(t, c.file).model()
		for _, rows := range []int{1, 512} {
			for _, opt := range []GraphOptions{{Logits: true}, {TopK: 1}, {Logits: true, TopK: 8}} {
				g, _ := m.Graph(shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 2}, m.NewState(StateShape{Slots: 1, Pages: 2, KV: shaders.KVF32}), opt)
				want := around
				if opt.TopK > 0 {
					want++
				}
				got := make([]int, len(c.layers)+2)
				for _, n := range g.Nodes {
					got[n.Layer+1]++
				}
				layers := slices.Clone(c.layers)
				for i, n := range layers {
					if rows > 1 && n != deltaNet+dense && n != attention+dense {
						layers[i]++
					}
				}
				if inner := got[1 : len(c.layers)+1]; !slices.Equal(inner, layers) {
					t.Errorf("%s, %d rows: %v ops per layer, want %v", c.file, rows, inner, layers)
				}
				if n := got[0] + got[len(got)-1]; got[0] != 1 || n != want {
					t.Errorf("%s, %d rows, %+v: %d ops around the layers, want %d", c.file, rows, opt, n, want)
				}
			}
		}
	}
	// 30 delta nets, 10 attention layers, the embedding, the head and the choice of a token.
	if n := 30*(deltaNet+moe) + 10*(attention+moe) + around + 1; n != 404 {
		t.Errorf("a token of 35B-A3B takes %d ops", n)
	}
}
