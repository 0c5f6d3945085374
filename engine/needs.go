package engine

import (
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// stepNeeds is what any step of at most batch rows takes on each device, over all plans that generation makes. Unaliased is for the
// reference, whose intermediate values share nothing.
func stepNeeds(m *model.Model, st *model.State, split scheduler.Split, pages, batch int, aliased bool) []scheduler.Needs {
	var ns []scheduler.Needs
	for rows := bucket(batch); rows >= 1; rows /= 2 {
		seqs := min(rows, st.Slots)
		shape := shaders.StepShape{Rows: rows, Seqs: seqs, Outs: seqs, Pages: pages}
		// Logits that nobody reads are scratch.
		for _, opt := range []model.GraphOptions{{Logits: true, TopK: shaders.TopKMax}, {TopK: shaders.TopKMax}, {Hidden: true}} {
			g, _ := m.Graph(shape, st, opt)
			ns = maxNeeds(ns, needsOf(g, split, aliased))
		}
	}
	return ns
}

// logitNeeds is what steps that deliver the logits of all their rows take.
func logitNeeds(m *model.Model, st *model.State, split scheduler.Split, pages, batch int, aliased bool) []scheduler.Needs {
	var ns []scheduler.Needs
	for rows := bucket(logitRows(m, batch)); rows >= 1; rows /= 2 {
		shape := shaders.StepShape{Rows: rows, Seqs: min(rows, st.Slots), Outs: rows, Pages: pages}
		g, _ := m.Graph(shape, st, model.GraphOptions{Logits: true})
		ns = maxNeeds(ns, needsOf(g, split, aliased))
	}
	return ns
}

func needsOf(g *scheduler.Graph, split scheduler.Split, aliased bool) []scheduler.Needs {
	if aliased {
		return scheduler.NeedsOf(g, split)
	}
	var n scheduler.Needs
	for _, b := range g.Buffers() {
		switch b.Kind {
		case shaders.Scratch:
			n.Scratch += b.Size
		case shaders.StepInput:
			n.Step += b.Size
		case shaders.Result:
			n.Results += b.Size
		}
	}
	return []scheduler.Needs{n}
}

// eachNeeds combines what two lists say of each device; the first may be empty.
func eachNeeds(a, b []scheduler.Needs, f func(x, y scheduler.Needs) scheduler.Needs) []scheduler.Needs {
	ns := make([]scheduler.Needs, len(b))
	copy(ns, a)
	for i := range b {
		ns[i] = f(ns[i], b[i])
	}
	return ns
}

func maxNeeds(a, b []scheduler.Needs) []scheduler.Needs { return eachNeeds(a, b, scheduler.Needs.Max) }
func addNeeds(a, b []scheduler.Needs) []scheduler.Needs { return eachNeeds(a, b, scheduler.Needs.Add) }

// totalNeeds is the sum in bytes.
func totalNeeds(ns []scheduler.Needs) (sum int64) {
	for _, n := range ns {
		sum += n.Total()
	}
	return sum
}
