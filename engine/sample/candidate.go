package sample

import (
	"fmt"
	"math"
	"slices"
)

// A candidate is a token and its logit in one word that orders as the tokens do: a
// higher logit is more, and of equal logits the lower id.
type candidate uint64

func makeCandidate(logit float32, id int32) candidate {
	if logit == 0 {
		logit = 0 // minus zero is no less than zero
	}
	b := math.Float32bits(logit)
	if b>>31 != 0 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return candidate(b)<<32 | candidate(^uint32(id))
}

func (c candidate) id() int32 { return int32(^uint32(c)) }

func (c candidate) logit() float32 {
	b := uint32(c >> 32)
	if b>>31 != 0 {
		b &^= 1 << 31
	} else {
		b = ^b
	}
	return math.Float32frombits(b)
}

// sortBest sorts candidates, the best first.
func sortBest(c []candidate) {
	slices.Sort(c)
	slices.Reverse(c)
}

// appendBest appends the k best tokens of a row, the best first; fewer when the others
// are at minus infinity. Dst must be empty.
func appendBest(dst []candidate, logits []float32, k int) ([]candidate, error) {
	if k < 1 {
		return dst, nil
	}
	least := float32(math.Inf(-1)) // of dst, once it has k
	for i, l := range logits {
		// Ids ascend, so an equal logit is worse than the one there.
		if l <= least {
			continue
		}
		if l != l {
			return dst[:0], fmt.Errorf("sample: token %d: %w", i, ErrNaN)
		}
		c := makeCandidate(l, int32(i))
		if len(dst) < k {
			dst = append(dst, c)
			if len(dst) == k {
				slices.Sort(dst) // which makes it a min-heap
				least = dst[0].logit()
			}
			continue
		}
		replaceLeast(dst, c)
		least = dst[0].logit()
	}
	sortBest(dst)
	return dst, nil
}

// replaceLeast puts a candidate in the place of the least one of a min-heap.
func replaceLeast(h []candidate, c candidate) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if c <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = c
}
