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
	if got, cold := s.KVToken(0, 257); got != 1*PageTokens+1 || cold {
		t.Errorf("KVToken = %d, %t", got, cold)
	}
	if got := s.Rope(2)[5]; got != 25705 {
		t.Errorf("rope = %g", got)
	}
}

// Moves and cold pages take nothing from steps that have none.
func TestStepMoves(t *testing.T) {
	plain := StepShape{Rows: 4, Seqs: 3, Outs: 1, Pages: 3, Rope: 2}
	with := plain
	with.Moves, with.Cold = 3, true
	if with.Words() != plain.Words()+6 {
		t.Errorf("%d words for three moves", with.Words()-plain.Words())
	}
	runs := []Run{
		{Pos: 512, Tokens: []int32{7}, Pages: []int32{4 | PageCold, 2, 0}, Moves: []PageMove{{Hot: 5, Cold: 6}}},
		{Moves: []PageMove{{Hot: 1, Cold: 0}}},
	}
	write := func(shape StepShape, runs []Run) ([]uint32, StepView) {
		t.Helper()
		mem, b := HostMemory{}, shape.NewBuffer()
		w := U32(mem, b.View())
		if err := shape.Write(w, runs, testRope{2}); err != nil {
			t.Fatal(err)
		}
		return w, ViewStep(mem, b.View())
	}
	_, s := write(with, runs)
	if s.Moves() != 2 || s.Move(0) != (PageMove{5, 6}) || s.Move(1) != (PageMove{1, 0}) || s.Rows() != 1 || s.Rope(0)[1] != 51201 {
		t.Errorf("%d moves, %v and %v, %d rows", s.Moves(), s.Move(0), s.Move(1), s.Rows())
	}
	if got, cold := s.KVToken(0, 9); got != 4*PageTokens+9 || !cold {
		t.Errorf("position 9 is token %d, cold %t", got, cold)
	}
	if got, cold := s.KVToken(0, 300); got != 2*PageTokens+44 || cold {
		t.Errorf("position 300 is token %d, cold %t", got, cold)
	}
	w, _ := write(with, []Run{{Tokens: []int32{1}, Pages: []int32{0}}})
	v, none := write(plain, []Run{{Tokens: []int32{1}, Pages: []int32{0}}})
	if none.Moves() != 0 {
		t.Errorf("%d moves where there are none", none.Moves())
	}
	for i := range v {
		if v[i] != w[i] {
			t.Errorf("word %d is %d, with room for moves %d", i, v[i], w[i])
		}
	}
}

func TestStepWriteRefuses(t *testing.T) {
	shape := StepShape{Rows: 4, Seqs: 2, Outs: 1, Pages: 1, Rope: 0, Moves: 2}
	move := func(m ...PageMove) []Run { return []Run{{Moves: m}} }
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
		{"cold page", "cold", one(Run{Tokens: make([]int32, 1), Pages: []int32{PageCold}})},
		{"moves too many", "room for 2", move(PageMove{0, 0}, PageMove{0, 1}, PageMove{0, 2})},
		{"one target", "another move", move(PageMove{0, 1}, PageMove{2, 1})},
		{"hot number", "not page numbers", move(PageMove{-1, 0})},
		{"cold number", "not page numbers", move(PageMove{0, PageCold})},
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
	// A plan with a cold pool reads cold pages and writes to hot ones.
	shape = StepShape{Rows: 2, Seqs: 1, Pages: 3, Cold: true}
	for _, c := range []struct {
		pos, tokens int
		pages       []int32
		ok          bool
	}{
		{512, 1, []int32{PageCold, 1 | PageCold, 0}, true},
		{512, 1, []int32{PageCold, 1 | PageCold, 2 | PageCold}, false},
		{511, 1, []int32{PageCold, 1 | PageCold}, false},
		{511, 2, []int32{PageCold, 0, 1 | PageCold}, false},
		{511, 2, []int32{PageCold, 0, 1}, true},
		{255, 1, []int32{0, PageCold}, true},
	} {
		w := make([]uint32, shape.Words())
		err := shape.Write(w, []Run{{Pos: c.pos, Tokens: make([]int32, c.tokens), Pages: c.pages}}, nil)
		if (err == nil) != c.ok {
			t.Errorf("%d tokens at %d in pages %v: %v", c.tokens, c.pos, c.pages, err)
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
