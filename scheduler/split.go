package scheduler

import (
	"fmt"
	"slices"

	"github.com/calderaml/caldera/shaders"
)

// A Split divides the layers of a model among dies in contiguous ranges: entry i is the first layer of die i+1. What comes before
// the layers belongs to the first die and what comes after them to the last. The nil Split is one die.
type Split []int

// Dies is how many dies there are.
func (s Split) Dies() int { return len(s) + 1 }

// Die is the die of a layer, as nodes number them.
func (s Split) Die(layer int) int {
	i := 0
	for i < len(s) && layer >= s[i] {
		i++
	}
	return i
}

// Check refuses a split of so many layers that leaves a die without any.
func (s Split) Check(layers int) error {
	for i, l := range s {
		if l < 1 || l >= layers || i > 0 && l <= s[i-1] {
			return fmt.Errorf("%d layers are divided at %v; each of %d devices needs a layer at least", layers, []int(s), s.Dies())
		}
	}
	return nil
}

// Range is the layers of die i, [first, end), of so many.
func (s Split) Range(i, layers int) (first, end int) {
	end = layers
	if i > 0 {
		first = s[i-1]
	}
	if i < len(s) {
		end = s[i]
	}
	return first, end
}

// A Placement says which dies run a graph.
type Placement struct {
	Dies  []*Die
	Split Split
}

// On places everything on one die.
func On(d *Die) Placement { return Placement{Dies: []*Die{d}} }

// Check refuses a placement whose split is not for its dies.
func (w Placement) Check() error {
	if len(w.Dies) != w.Split.Dies() {
		return fmt.Errorf("%d devices for layers that are divided among %d", len(w.Dies), w.Split.Dies())
	}
	for i, d := range w.Dies {
		if d == nil || slices.Contains(w.Dies[:i], d) {
			return fmt.Errorf("device %d of a placement is missing, or there twice", i)
		}
	}
	return nil
}

// Homes says on which dies each weight and state buffer of a graph is used, in ascending order. Most are on one; tied
// embeddings are used by the first die and by the last.
func (s Split) Homes(g *Graph) map[*shaders.Buffer][]int {
	homes := map[*shaders.Buffer][]int{}
	for _, n := range g.Nodes {
		die := s.Die(n.Layer)
		for _, o := range n.Op.Operands() {
			if k := o.Buf.Kind; (k == shaders.Weight || k == shaders.State) && !slices.Contains(homes[o.Buf], die) {
				homes[o.Buf] = append(homes[o.Buf], die)
				slices.Sort(homes[o.Buf])
			}
		}
	}
	return homes
}

// A leg is the part of a graph that one die runs, and what crosses its ends: the rows of the residual stream, for the models there
// are.
type leg struct {
	first, last int               // nodes [first, last)
	in, out     []*shaders.Buffer // scratch that the die before has written, and that the one after reads
}

// legs divides a graph. Buffers that cross must be matrices of a row for each row of the step, of which only as many
// travel as a step has.
func legs(g *Graph, s Split) ([]leg, error) {
	ls := make([]leg, s.Dies())
	at := 0
	for i, n := range g.Nodes {
		die := s.Die(n.Layer)
		if die < at {
			return nil, fmt.Errorf("%s comes after nodes of device %d and belongs to device %d", n.Label(), at, die)
		}
		for ; at < die; at++ {
			ls[at].last, ls[at+1].first, ls[at+1].last = i, i, i
		}
		ls[at].last = i + 1
	}
	for ; at < len(ls)-1; at++ {
		ls[at+1].first, ls[at+1].last = ls[at].last, ls[at].last
	}
	for _, l := range lifetimes(g, 0, len(g.Nodes)) {
		for i := range len(ls) - 1 {
			if l.first >= ls[i].last || l.last < ls[i].last {
				continue
			}
			if ls[i].first == ls[i].last || ls[i+1].first == ls[i+1].last {
				return nil, fmt.Errorf("%s crosses a device that has nothing to do", l.buf.Name)
			}
			if g.Shape.Rows == 0 || l.buf.Size%int64(4*g.Shape.Rows) != 0 {
				return nil, fmt.Errorf("%s (%d bytes) crosses from one device to the next and has no row for each of %d", l.buf.Name, l.buf.Size, g.Shape.Rows)
			}
			ls[i].out, ls[i+1].in = append(ls[i].out, l.buf), append(ls[i+1].in, l.buf)
		}
	}
	return ls, nil
}

// crossing is the size in bytes of buffers that lie side by side at a boundary.
func crossing(bs []*shaders.Buffer) (n int64) {
	for _, b := range bs {
		n += b.Size
	}
	return n
}
