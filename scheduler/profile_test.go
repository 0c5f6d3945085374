package scheduler

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/shaders"
)

func TestStepTimes(t *testing.T) {
	g := NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	for _, name := range []string{"a", "b", "none", "c"} {
		g.Add(name, &fakeOp{})
	}
	nodes := []int{0, 1, 1, 3} // b has two dispatches, and one op none
	for _, c := range []struct {
		name  string
		ns    []int64
		want  []time.Duration
		total time.Duration
		err   string
	}{
		{"in order", []int64{0, 10, 30, 35, 100}, []time.Duration{10, 25, 0, 65}, 100, ""},
		{"late begin", []int64{7, 10, 30, 35, 100}, []time.Duration{3, 25, 0, 65}, 93, ""},
		{"out of order", []int64{0, 10, 8, 35, 100}, []time.Duration{10, 27, 0, 65}, 100, ""},
		{"one missing", []int64{0, 10, 30, -1, 100}, nil, 0, "written 3 of 5 timestamps, then none for layer -1 b (fake)"},
		{"none", []int64{-1, -1, -1, -1, -1}, nil, 0, "written 0 of 5 timestamps, then none for layer -1 a"},
	} {
		got := StepTimes{Nodes: make([]time.Duration, 4)}
		err := got.add(c.ns, nodes, g)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Nodes, c.want) || got.Total != c.total {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// The reference notes times only when it is asked to, and those of the last step alone.
func TestReferenceTimes(t *testing.T) {
	g := NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	for range 3 {
		g.Add("op", &slowOp{})
	}
	r, err := NewReference(g, shaders.HostMemory{})
	if err != nil {
		t.Fatal(err)
	}
	run := []shaders.Run{{Tokens: []int32{1}, Pages: []int32{0}}}
	var times StepTimes
	if _, err := r.Run(run, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Times(&times); !errors.Is(err, ErrNotStamped) {
		t.Errorf("times without being asked: %v", err)
	}
	r.Stamp = true
	for range 2 {
		spent, err := r.Run(run, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Times(&times); err != nil {
			t.Fatal(err)
		}
		if len(times.Nodes) != 3 || slices.Min(times.Nodes) < time.Millisecond || times.Total < 3*time.Millisecond || times.Total > spent.Wait {
			t.Errorf("%+v of %+v", times, spent)
		}
		if spent.Total() != spent.Write+spent.Submit+spent.Wait || spent.Add(spent).Wait != 2*spent.Wait {
			t.Errorf("%+v", spent)
		}
	}
}

// slowOp takes a millisecond.
type slowOp struct{ fakeOp }

func (o *slowOp) Twin(shaders.Memory) error {
	time.Sleep(time.Millisecond)
	return nil
}
