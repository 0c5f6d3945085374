package tokenizer

import (
	"context"
	"slices"
	"sync"
)

// maxShort is the longest piece, in bytes, that is merged by looking through it for the
// best pair again and again. Beyond it that grows too slow.
const maxShort = 48

// appendShort appends the tokens of a piece of at most maxShort bytes.
func (t *Tokenizer) appendShort(dst []int32, piece string) []int32 {
	var ids [maxShort]int32
	var ranks [maxShort]uint32 // of the pair that starts here
	n := len(piece)
	for i := range n {
		ids[i] = t.bytes[piece[i]]
	}
	best, at := noRank, 0
	for i := range n - 1 {
		r := t.merges.rank(ids[i], ids[i+1])
		ranks[i] = r
		if r < best {
			best, at = r, i
		}
	}
	for best != noRank {
		ids[at] = t.merges.tokens[best]
		n--
		copy(ids[at+1:n], ids[at+2:n+1])
		copy(ranks[at+1:n], ranks[at+2:n+1])
		if at > 0 {
			ranks[at-1] = t.merges.rank(ids[at-1], ids[at])
		}
		if at < n-1 {
			ranks[at] = t.merges.rank(ids[at], ids[at+1])
		}
		best = noRank
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
	}
	return append(dst, ids[:n]...)
}

// A symbol is a token of a long piece, linked to its neighbours.
type symbol struct {
	id         int32
	prev, next int32  // -1 at the ends
	rank       uint32 // of the pair of this and the next one
}

// longScratch is the working memory of appendLong.
type longScratch struct {
	symbols []symbol
	queue   []uint64
}

// keepScratch is the longest piece, in bytes, whose working memory is kept for reuse.
const keepScratch = 1 << 18

var longPool = sync.Pool{New: func() any { return new(longScratch) }}

// appendLong appends the tokens of a piece of any length. Pairs wait in a heap by
// rank and position; one that has changed since it was put there is recognised by its
// rank, which no other pair has, and skipped. Time is n log n, memory 24 bytes for each byte.
// It fails only when the context ends.
func (t *Tokenizer) appendLong(ctx context.Context, dst []int32, piece string) ([]int32, error) {
	scratch := new(longScratch)
	if len(piece) <= keepScratch {
		scratch = longPool.Get().(*longScratch)
		defer longPool.Put(scratch)
	}
	symbols := slices.Grow(scratch.symbols[:0], len(piece))[:len(piece)]
	queue := pairHeap(slices.Grow(scratch.queue[:0], len(piece)))
	for i := range symbols {
		symbols[i] = symbol{t.bytes[piece[i]], int32(i) - 1, int32(i) + 1, noRank}
		if i > 0 {
			if r := t.merges.rank(symbols[i-1].id, symbols[i].id); r != noRank {
				symbols[i-1].rank = r
				queue = append(queue, uint64(r)<<32|uint64(i-1))
			}
		}
	}
	symbols[len(symbols)-1].next = -1
	queue.order()

	// update puts the pair that starts at a symbol into the heap.
	update := func(i int32) {
		s := &symbols[i]
		s.rank = noRank
		if s.next < 0 {
			return
		}
		if s.rank = t.merges.rank(s.id, symbols[s.next].id); s.rank != noRank {
			queue.push(uint64(s.rank)<<32 | uint64(i))
		}
	}
	for steps := 0; len(queue) > 0; steps++ {
		if steps&(1<<16-1) == 0 && ctx.Err() != nil {
			return dst, ctx.Err()
		}
		top := queue.pop()
		rank, i := uint32(top>>32), int32(uint32(top))
		s := &symbols[i]
		if s.rank != rank {
			continue
		}
		gone := &symbols[s.next]
		s.id = t.merges.tokens[rank]
		s.next = gone.next
		gone.rank = noRank
		if s.next >= 0 {
			symbols[s.next].prev = i
		}
		update(i)
		if s.prev >= 0 {
			update(s.prev)
		}
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		dst = append(dst, symbols[i].id)
	}
	scratch.symbols, scratch.queue = symbols, queue
	return dst, nil
}

// pairHeap is a min-heap with four children to a node, which takes half the levels of
// the usual two and looks at neighbouring words on each.
type pairHeap []uint64

// order makes a heap of values in any order.
func (h pairHeap) order() {
	for i := (len(h) - 2) / 4; i >= 0 && len(h) > 1; i-- {
		h.down(i, h[i])
	}
}

func (h *pairHeap) push(v uint64) {
	*h = append(*h, v)
	a := *h
	i := len(a) - 1
	for i > 0 {
		up := (i - 1) / 4
		if a[up] <= v {
			break
		}
		a[i] = a[up]
		i = up
	}
	a[i] = v
}

// pop removes and returns the least value of a heap that is not empty.
func (h *pairHeap) pop() uint64 {
	a := *h
	top, v := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	*h = a
	if len(a) > 0 {
		a.down(0, v)
	}
	return top
}

// down places a value at or below a free place.
func (h pairHeap) down(i int, v uint64) {
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		least := child
		for k := child + 1; k < min(child+4, len(h)); k++ {
			if h[k] < h[least] {
				least = k
			}
		}
		if v <= h[least] {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = v
}
