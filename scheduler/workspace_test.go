package scheduler

import (
	"testing"

	"github.com/calderaml/caldera/shaders"
)

// Results do not share bytes with each other, whatever their lifetimes, and scratch does.
func TestLayOut(t *testing.T) {
	g := NewGraph(shaders.StepShape{Rows: 3, Seqs: 1, Outs: 1, Pages: 2, Rope: 8})
	a, b := buffer("a", shaders.Scratch, 1000), buffer("b", shaders.Scratch, 1000)
	r1, r2 := buffer("r1", shaders.Result, 300), buffer("r2", shaders.Result, 20)
	w, s := buffer("w", shaders.Weight, 1<<20), buffer("s", shaders.State, 1<<20)
	for _, ops := range [][]shaders.Operand{
		{shaders.R(w.View()), shaders.W(a.View())}, {shaders.R(a.View()), shaders.W(r1.View())},
		{shaders.RW(s.View()), shaders.W(b.View())}, {shaders.R(b.View()), shaders.W(r2.View())},
	} {
		g.Add("op", &fakeOp{ops})
	}
	whole := leg{last: len(g.Nodes)}
	offsets, n := layOut(g, whole, true)
	if want := (Needs{Scratch: 1024, Step: g.Step.Size, Results: 512 + 256}); n != want || NeedsOf(g, nil)[0] != want {
		t.Errorf("needs %+v, want %+v", n, want)
	}
	if offsets[a] != offsets[b] {
		t.Errorf("scratch at %d and %d shares nothing", offsets[a], offsets[b])
	}
	if offsets[r1] == offsets[r2] || offsets[r2] < offsets[r1]+r1.Size && offsets[r1] < offsets[r2]+r2.Size {
		t.Errorf("results at %d and %d overlap", offsets[r1], offsets[r2])
	}
	if _, ok := offsets[w]; ok {
		t.Error("weights lie in the workspace")
	}
	_, apart := layOut(g, whole, false)
	if apart.Scratch != 2048 {
		t.Errorf("%d bytes of scratch without sharing", apart.Scratch)
	}
}

func TestNeeds(t *testing.T) {
	m := Needs{1, 20, 3, 4, 5}.Max(Needs{10, 2, 30, 1, 9})
	if m != (Needs{10, 20, 30, 4, 9}) || m.Total() != 73 {
		t.Errorf("%+v, %d in all", m, m.Total())
	}
	for n, want := range map[int64]int64{0: 0, 1: stagePiece, stagePiece: stagePiece, stagePiece + 1: 2 * stagePiece, 1 << 40: stagePieces * stagePiece} {
		if got := LoadStaging(n); got != want {
			t.Errorf("staging of %d bytes is %d, want %d", n, got, want)
		}
	}
}
