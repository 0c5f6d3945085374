package model

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// The sizes of cold pages, where they come in the list of buffers, and which bytes a page and a slot are.
func TestColdState(t *testing.T) {
	m := Config{Recurrent: []bool{true, false, true, false}, KVHeads: 2, HeadDim: 48, KeyHeads: 1, ValueHeads: 1, StateDim: 2}
	shape := StateShape{Slots: 3, Pages: 5, ColdPages: 7, KV: shaders.KVF16, ColdKV: shaders.KVQ4_0}
	st := m.NewState(shape)
	var names []string
	for _, b := range st.Buffers() {
		names = append(names, b.Name)
	}
	want := "[blk.0.state blk.0.conv blk.1.k blk.1.v blk.1.cold_k blk.1.cold_v blk.2.state blk.2.conv blk.3.k blk.3.v blk.3.cold_k blk.3.cold_v]"
	if fmt.Sprint(names) != want {
		t.Errorf("%v, want %s", names, want)
	}
	// Two layers' keys and values of 256 tokens of 96 elements: 2 bytes each, and 18 for 32.
	hot, cold := int64(2*2*256*96*2), int64(2*2*256*3*18)
	if m.PageBytes(shaders.KVF16) != hot || m.PageBytes(shaders.KVQ4_0) != cold {
		t.Errorf("pages of %d and %d bytes, want %d and %d", m.PageBytes(shaders.KVF16), m.PageBytes(shaders.KVQ4_0), hot, cold)
	}
	if got := st.Bytes(); got != 3*m.SlotBytes()+5*hot+7*cold {
		t.Errorf("%d bytes, want 3 slots of %d, %d hot and %d cold", got, m.SlotBytes(), 5*hot, 7*cold)
	}
	for _, c := range []struct {
		views []shaders.View
		index int64
		of    []string
		total int64
	}{
		{st.PageViews(4), 4, []string{"blk.1.k", "blk.1.v", "blk.3.k", "blk.3.v"}, hot},
		{st.PageViews(6 | shaders.PageCold), 6, []string{"blk.1.cold_k", "blk.1.cold_v", "blk.3.cold_k", "blk.3.cold_v"}, cold},
		{st.SlotViews(2), 2, []string{"blk.0.state", "blk.0.conv", "blk.2.state", "blk.2.conv"}, m.SlotBytes()},
	} {
		total := int64(0)
		var of []string
		for _, v := range c.views {
			total += v.Len
			of = append(of, v.Buf.Name)
			if !v.Valid() || v.Off != c.index*v.Len {
				t.Errorf("%s: bytes %d to %d of %d", v.Buf.Name, v.Off, v.Off+v.Len, v.Buf.Size)
			}
		}
		if total != c.total || !slices.Equal(of, c.of) {
			t.Errorf("%d bytes of %v, want %d of %v", total, of, c.total, c.of)
		}
	}
	odd := m
	odd.HeadDim = 40
	for _, f := range []shaders.KVFormat{shaders.KVQ8_0, shaders.KVQ4_0} {
		if err := m.CheckKV(f); err != nil {
			t.Error(err)
		}
		if err := odd.CheckKV(f); err == nil || !strings.Contains(err.Error(), "80") || !strings.Contains(err.Error(), f.String()) {
			t.Errorf("%v with 80 elements: %v", f, err)
		}
	}
	if err := odd.CheckKV(shaders.KVF16); err != nil {
		t.Error(err)
	}
}

// A prompt of a page and a few tokens more: the page is re-encoded in a step of its own, and the tokens after it
// read what the cold page holds and nothing of the hot one.
func TestEncodeGraph(t *testing.T) {
	m := load(t, "qwen35-f32").model()
	if m.kvWidth()%32 != 0 {
		t.Fatalf("the model's keys have %d elements, no multiple of 32", m.kvWidth())
	}
	attends := 0
	for _, recurrent := range m.Recurrent {
		if !recurrent {
			attends++
		}
	}
	prompt := make([]int32, shaders.PageTokens)
	for i := range prompt {
		prompt[i] = int32((i*i*31 + 7) % m.Vocab)
	}
	tail := []int32{1, 2, 3}
	var exact []float32
	for _, f := range []shaders.KVFormat{shaders.KVF16, shaders.KVQ8_0, shaders.KVQ4_0} {
		shape := StateShape{Slots: 1, Pages: 2, KV: shaders.KVF16}
		if f.Cold() {
			shape.ColdPages, shape.ColdKV = 2, f
		}
		st := m.NewState(shape)
		mem, err := weights.Map(m.Weights)
		if err != nil {
			t.Fatal(err)
		}
		run := func(g *scheduler.Graph, r shaders.Run) *scheduler.Reference {
			t.Helper()
			ref, err := scheduler.NewReference(g, mem)
			if err == nil {
				_, err = ref.Run([]shaders.Run{r}, NewRope(m.Rope))
			}
			if err != nil {
				t.Fatal(err)
			}
			return ref
		}
		g, _ := m.Graph(shaders.StepShape{Rows: len(prompt), Seqs: 1, Outs: 1, Pages: 2}, st, GraphOptions{TopK: 1})
		run(g, shaders.Run{Tokens: prompt, Pages: []int32{1}, Fresh: true, Outs: []int{len(prompt) - 1}})
		pages := []int32{1, 0}
		if f.Cold() {
			e := m.EncodeGraph(2, st)
			if len(e.Nodes) != attends || e.Nodes[0].Layer != slices.Index(m.Recurrent, false) {
				t.Errorf("%v: %d ops for %d attention layers, the first in layer %d", f, len(e.Nodes), attends, e.Nodes[0].Layer)
			}
			run(e, shaders.Run{Moves: []shaders.PageMove{{Hot: 1, Cold: 1}}})
			for _, v := range st.PageViews(1) {
				for i := range shaders.Words(mem.Bytes(v)) {
					shaders.Words(mem.Bytes(v))[i] = 0x7fc07fc0 // NaN, twice
				}
			}
			pages[0] |= shaders.PageCold
			if got, want := e.Cost().Bytes, 2*(m.PageBytes(shaders.KVF16)+m.PageBytes(f)); got != want {
				t.Errorf("%v: two pages cost %d bytes, want %d", f, got, want)
			}
		}
		g, out := m.Graph(shaders.StepShape{Rows: 4, Seqs: 1, Outs: 4, Pages: 2}, st, GraphOptions{Logits: true})
		ref := run(g, shaders.Run{Pos: len(prompt), Tokens: tail, Pages: pages, Outs: []int{0, 1, 2}})
		got := shaders.AlignedBytes(int64(len(tail)) * int64(m.Vocab) * 4)
		if err := ref.Read(out.Logits.Slice(0, int64(len(got))), got); err != nil {
			t.Fatal(err)
		}
		logits := shaders.Floats(got)
		if f == shaders.KVF16 {
			exact = logits
			continue
		}
		diff, sum := 0.0, 0.0
		for i, x := range logits {
			diff += math.Pow(float64(x-exact[i]), 2)
			sum += math.Pow(float64(exact[i]), 2)
		}
		rel := math.Sqrt(diff / sum)
		t.Logf("%v: logits off by %.6f of their size", f, rel)
		if limit := map[shaders.KVFormat]float64{shaders.KVQ8_0: 0.0053, shaders.KVQ4_0: 0.0860}[f]; !(rel > 0 && rel < limit) {
			t.Errorf("%v: logits off by %.6f of their size, the format's own error is %g", f, rel, limit)
		}
	}
}
