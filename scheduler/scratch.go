package scheduler

import (
	"slices"
	"sort"

	"github.com/calderaml/caldera/shaders"
)

// scratchAlign keeps every scratch buffer at an offset that any device accepts for a binding
// (vulkan-platform.md 4: SwiftShader asks for 256).
const scratchAlign = 256

// lifetime is the first and last node that touch a scratch buffer.
type lifetime struct {
	buf         *shaders.Buffer
	first, last int
}

// lifetimes finds when each scratch buffer is in use among nodes [first, last) of a graph.
func lifetimes(g *Graph, first, last int) []lifetime {
	at := map[*shaders.Buffer]int{}
	var ls []lifetime
	for i := first; i < last; i++ {
		for _, o := range g.Nodes[i].Op.Operands() {
			if o.Buf.Kind != shaders.Scratch {
				continue
			}
			j, ok := at[o.Buf]
			if !ok {
				j = len(ls)
				at[o.Buf] = j
				ls = append(ls, lifetime{o.Buf, i, i})
			}
			ls[j].last = i
		}
	}
	return ls
}

// lifetimes finds when each scratch buffer is in use on the leg's die. What comes in is there from the beginning, and what goes
// out is to the end.
func (l leg) lifetimes(g *Graph) []lifetime {
	ls := lifetimes(g, l.first, l.last)
	for i := range ls {
		if slices.Contains(l.in, ls[i].buf) {
			ls[i].first = l.first
		}
		if slices.Contains(l.out, ls[i].buf) {
			ls[i].last = l.last
		}
	}
	return ls
}

// planScratch gives every scratch buffer an offset in one arena such that buffers that are in use at the
// same node do not overlap, and returns the arena's size. Larger buffers are placed first, each at the
// lowest offset that is free during its life. Without alias every buffer has memory of its own, which
// verification needs to look at intermediate values afterwards.
func planScratch(ls []lifetime, alias bool) (offsets map[*shaders.Buffer]int64, size int64) {
	offsets = map[*shaders.Buffer]int64{}
	if alias {
		sort.SliceStable(ls, func(i, j int) bool { return ls[i].buf.Size > ls[j].buf.Size })
	}
	var placed []lifetime
	for _, l := range ls {
		var busy []lifetime
		for _, q := range placed {
			if !alias || (q.first <= l.last && l.first <= q.last) {
				busy = append(busy, q)
			}
		}
		sort.Slice(busy, func(i, j int) bool { return offsets[busy[i].buf] < offsets[busy[j].buf] })
		off := int64(0)
		for _, q := range busy {
			if off+l.buf.Size <= offsets[q.buf] {
				break
			}
			off = max(off, roundUp(offsets[q.buf]+q.buf.Size, scratchAlign))
		}
		offsets[l.buf] = off
		placed = append(placed, l)
		size = max(size, off+l.buf.Size)
	}
	return offsets, roundUp(size, scratchAlign)
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
