package scheduler

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
)

// A Lowered is what a plan records of a graph's ops: one dispatch, the node it is of, and whether a barrier comes
// before it.
type Lowered struct {
	Node     int
	Barrier  bool
	Dispatch shaders.Dispatch
}

// Lower turns a graph into the dispatches and barriers that Compile would record for a device with such a profile.
// It needs no device and no weights, so that plans can be judged for devices that are not at hand.
func Lower(g *Graph, p *shaders.Profile) ([]Lowered, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	offsets, _ := layOut(g, leg{last: len(g.Nodes)}, true)
	var all []Lowered
	var touches [][]touch
	for i, n := range g.Nodes {
		ds, err := n.Op.Lower(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Label(), err)
		}
		for _, d := range ds {
			var ts []touch
			for j, o := range d.Bind {
				if !o.Valid() {
					return nil, fmt.Errorf("%s: %s: operand %d lies outside its buffer", n.Label(), d.Module, j)
				}
				ts = append(ts, touchAt(o, offsets))
			}
			all, touches = append(all, Lowered{Node: i, Dispatch: d}), append(touches, ts)
		}
	}
	for i, b := range barriers(touches) {
		all[i].Barrier = b
	}
	return all, nil
}

// touchAt places an operand as a plan's memory would: scratch, results and the step buffer are an arena each, and
// everything else has memory of its own. On a die weights may share memory too, but nothing writes those.
func touchAt(o shaders.Operand, offsets map[*shaders.Buffer]int64) touch {
	switch o.Buf.Kind {
	case shaders.Scratch, shaders.StepInput, shaders.Result:
		return touch{o, o.Buf.Kind, offsets[o.Buf] + o.Off}
	}
	return touch{o, o.Buf, o.Off}
}

// Tally counts ops, dispatches and barriers.
type Tally struct {
	Ops        int `json:"ops"`
	Dispatches int `json:"dispatches"`
	Barriers   int `json:"barriers"`
}

// Count sums up what of a lowered graph lies in layers for which in returns true; nil stands for all.
func Count(g *Graph, all []Lowered, in func(layer int) bool) Tally {
	var t Tally
	last := -1
	for _, l := range all {
		if in != nil && !in(g.Nodes[l.Node].Layer) {
			continue
		}
		t.Dispatches++
		if l.Barrier {
			t.Barriers++
		}
		if l.Node != last {
			t.Ops++
			last = l.Node
		}
	}
	return t
}
