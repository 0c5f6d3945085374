package scheduler

import (
	"fmt"

	"github.com/calderaml/caldera/shaders"
)

// A touch is one access of a dispatch to memory: the view it names and where that lies. Memory is told
// apart by arena, an identity that two touches share exactly if they can lie in the same bytes.
type touch struct {
	shaders.Operand
	arena any
	off   int64 // of the view in the arena
}

// conflicts reports whether the order of two touches matters: they share a byte and one of them writes.
// Two views of one buffer are compared as views, which knows columns; different buffers conflict when
// their lifetimes let them share memory.
func (a touch) conflicts(b touch) bool {
	if (a.Access|b.Access)&shaders.Write == 0 || a.arena != b.arena {
		return false
	}
	if a.Buf == b.Buf {
		return a.Overlaps(b.View)
	}
	return a.off < b.off+b.Len && b.off < a.off+a.Len
}

// barriers infers before which dispatches a barrier is needed: a dispatch that conflicts with one issued
// since the last barrier. The first dispatch always gets one, against whatever the previous step left.
func barriers(dispatches [][]touch) []bool {
	need := make([]bool, len(dispatches))
	var since []touch
	for i, d := range dispatches {
		need[i] = i == 0
		for _, t := range d {
			for _, s := range since {
				if t.conflicts(s) {
					need[i] = true
					break
				}
			}
			if need[i] {
				break
			}
		}
		if need[i] {
			since = since[:0]
		}
		since = append(since, d...)
	}
	return need
}

// checkBarriers is the debug mode: it goes over what was recorded, pair by pair and without the state that
// barriers keeps, and names the first two dispatches that conflict with no barrier between them.
func checkBarriers(dispatches [][]touch, barrier []bool, label func(i int) string) error {
	for i := range dispatches {
		for j := i - 1; j >= 0 && !barrier[j+1]; j-- {
			for _, t := range dispatches[i] {
				for _, s := range dispatches[j] {
					if t.conflicts(s) {
						return fmt.Errorf("no barrier between %s and %s, which both touch %s", label(j), label(i), t.Buf.Name)
					}
				}
			}
		}
	}
	return nil
}
