package shaders

import (
	"strings"
	"testing"
)

type testRope struct{ n int }

func (r testRope) Row(pos int) []float32 {
	f := make([]float32, r.n)
	for i := range f {
		f[i] = float32(pos*100 + i)
	}
	return f
}

func TestStepWrite(t *testing.T) {
	shape := StepShape{Rows: 8, Seqs: 3, Outs: 2, Pages: 4, Rope: 6}
	mem := HostMemory{}
	b := shape.NewBuffer()
	runs := []Run{
		{Slot: 2, Pos: 255, Tokens: []int32{7, 8, 9}, Pages: []int32{5, 1}, Outs: []int{2}},
		{Slot: 0, Pos: 0, Tokens: []int32{4}, Pages: []int32{3}, Fresh: true, Outs: []int{0}},
	}
	if err := shape.Write(U32(mem, b.View()), runs, testRope{6}); err != nil {
		t.Fatal(err)
	}
	s := ViewStep(mem, b.View())
	if s.Rows() != 4 || s.Seqs() != 2 || s.Outs() != 2 || s.Count(CountOuts) != 2 {
		t.Errorf("counts %d %d %d", s.Rows(), s.Seqs(), s.Outs())
	}
	if s.Token(1) != 8 || s.Pos(2) != 257 || s.Seq(3) != 1 || s.Out(0) != 2 || s.Out(1) != 3 {
		t.Errorf("rows: token %d pos %d seq %d outs %d %d", s.Token(1), s.Pos(2), s.Seq(3), s.Out(0), s.Out(1))
	}
	if s.RunStart(1) != 3 || s.RunLen(0) != 3 || s.RunSlot(0) != 2 || s.RunFresh(0) || !s.RunFresh(1) {
		t.Errorf("runs wrong")
	}
	if got := s.KVToken(0, 257); got != 1*PageTokens+1 {
		t.Errorf("KVToken = %d", got)
	}
	if got := s.Rope(2)[5]; got != 25705 {
		t.Errorf("rope = %g", got)
	}
}

func TestStepWriteRefuses(t *testing.T) {
	shape := StepShape{Rows: 4, Seqs: 2, Outs: 1, Pages: 1, Rope: 0}
	one := func(r Run) []Run { return []Run{r} }
	for _, c := range []struct {
		name, want string
		runs       []Run
	}{
		{"no runs", "do not fit", nil},
		{"empty run", "no tokens", one(Run{Pages: []int32{0}})},
		{"too many rows", "do not fit", one(Run{Tokens: make([]int32, 5), Pages: []int32{0}})},
		{"too many outs", "wanted", one(Run{Tokens: make([]int32, 2), Pages: []int32{0}, Outs: []int{0, 1}})},
		{"out of run", "wants logits", one(Run{Tokens: make([]int32, 2), Pages: []int32{0}, Outs: []int{2}})},
		{"pages missing", "pages", one(Run{Pos: 256, Tokens: make([]int32, 1), Pages: []int32{0}})},
		{"pages too many", "pages", one(Run{Tokens: make([]int32, 1), Pages: []int32{0, 1}})},
	} {
		w := make([]uint32, shape.Words())
		err := shape.Write(w, c.runs, testRope{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if w[stepRows] != 0 {
			t.Errorf("%s: the step was written", c.name)
		}
	}
}

func TestOverlaps(t *testing.T) {
	m := NewMat("m", Scratch, 4, 10)
	a, b, c := m.Cols(0, 4).View, m.Cols(4, 6).View, m.Cols(3, 2).View
	for _, x := range []struct {
		v, w View
		want bool
	}{
		{a, b, false}, {a, c, true}, {b, c, true}, {a, m.View, true}, {a, a, true},
		{m.Slice(0, 16), m.Slice(16, 16), false}, {m.View, NewMat("n", Scratch, 4, 10).View, false},
	} {
		if got := x.v.Overlaps(x.w); got != x.want {
			t.Errorf("%v overlaps %v: %t", x.v, x.w, got)
		}
		if got := x.w.Overlaps(x.v); got != x.want {
			t.Errorf("%v overlaps %v: %t", x.w, x.v, got)
		}
	}
}
