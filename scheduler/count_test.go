package scheduler

import (
	"errors"
	"strings"
	"testing"

	"github.com/calderaml/caldera/shaders"
)

// loweredOp is a fakeOp that becomes dispatches of one operand each, or fails.
type loweredOp struct {
	fakeOp
	fail error
}

func (o *loweredOp) Lower(*shaders.Profile) ([]shaders.Dispatch, error) {
	var ds []shaders.Dispatch
	for _, x := range o.operands {
		ds = append(ds, shaders.Dispatch{Module: "fake", Spec: []uint32{1}, Bind: []shaders.Operand{x}, Groups: [3]uint32{1, 1, 1}})
	}
	return ds, o.fail
}

// Barriers are where dispatches touch the same bytes, scratch that shares memory included; results, state and
// scratch lie apart.
func TestLower(t *testing.T) {
	g := NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	s1, s2 := buffer("s1", shaders.Scratch, 64), buffer("s2", shaders.Scratch, 64)
	r1, r2 := buffer("r1", shaders.Result, 64), buffer("r2", shaders.Result, 64)
	w, st := buffer("w", shaders.Weight, 64), buffer("st", shaders.State, 64)
	add := func(layer int, ops ...shaders.Operand) {
		g.Layer(layer)
		g.Add("op", &loweredOp{fakeOp: fakeOp{ops}})
	}
	add(-1, shaders.W(s1.View()), shaders.R(w.View())) // a barrier against the step before
	add(0, shaders.W(st.View()))                       // none: other memory
	add(0, shaders.R(s1.View()))                       // one: it was written
	add(1, shaders.W(s2.View()))                       // one: it has the memory of s1, which was just read
	add(1, shaders.W(r1.View()), shaders.W(r2.View())) // none: apart
	add(2, shaders.R(st.View()), shaders.W(r1.View())) // none for the first, one for the second
	all, err := Lower(g, &shaders.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		node    int
		barrier bool
	}{{0, true}, {0, false}, {1, false}, {2, true}, {3, true}, {4, false}, {4, false}, {5, false}, {5, true}}
	if len(all) != len(want) {
		t.Fatalf("%d dispatches", len(all))
	}
	for i, x := range want {
		if all[i].Node != x.node || all[i].Barrier != x.barrier || all[i].Dispatch.Module != "fake" {
			t.Errorf("dispatch %d: %+v, want %+v", i, all[i], x)
		}
	}
	if got := Count(g, all, nil); got != (Tally{Ops: 6, Dispatches: 9, Barriers: 4}) {
		t.Errorf("%+v", got)
	}
	if got := Count(g, all, func(l int) bool { return l == 1 }); got != (Tally{Ops: 2, Dispatches: 3, Barriers: 1}) {
		t.Errorf("layer 1: %+v", got)
	}
	bad := errors.New("no such kernel")
	g.Add("last", &loweredOp{fail: bad})
	if _, err := Lower(g, &shaders.Profile{}); !errors.Is(err, bad) || !strings.Contains(err.Error(), "last") {
		t.Errorf("an op that fails: %v", err)
	}
	g.Nodes = nil
	g.Add("read", &loweredOp{fakeOp: fakeOp{[]shaders.Operand{shaders.R(s1.View())}}})
	if _, err := Lower(g, &shaders.Profile{}); err == nil {
		t.Error("a graph that reads what nothing wrote is lowered")
	}
}
