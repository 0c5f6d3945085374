package tokenizer

import (
	"math/bits"
	"math/rand/v2"
)

// A slot of the merge table holds the left id, the right id and the rank of a merge.
const (
	idBits   = 21
	rankBits = 64 - 2*idBits
)

const noRank = ^uint32(0)

// mergeTable maps a pair of token ids to the rank of its merge, and a rank to the
// token it makes. It is an open hash table of one word a slot: at about 250,000 merges
// that is 4 MiB, of which ordinary text touches a small part.
type mergeTable struct {
	slots []uint64 // all ones where empty: no rank is that high
	mask  uint64
	// seed differs from table to table, so that no file can aim for collisions.
	seed   [2]uint64
	tokens []int32 // made by the merge of each rank
}

func newMergeTable(n int) mergeTable {
	size := uint64(1) << bits.Len(uint(2*n))
	t := mergeTable{
		slots:  make([]uint64, size),
		mask:   size - 1,
		seed:   [2]uint64{rand.Uint64(), rand.Uint64() | 1},
		tokens: make([]int32, n),
	}
	for i := range t.slots {
		t.slots[i] = ^uint64(0)
	}
	return t
}

func (t *mergeTable) hash(pair uint64) uint64 {
	hi, lo := bits.Mul64(pair^t.seed[0], t.seed[1])
	return hi ^ lo
}

// insert adds a merge unless the pair already has one.
func (t *mergeTable) insert(left, right int32, rank uint32, token int32) {
	t.tokens[rank] = token
	pair := uint64(left)<<idBits | uint64(right)
	for i := t.hash(pair); ; i++ {
		s := &t.slots[i&t.mask]
		if *s == ^uint64(0) {
			*s = pair<<rankBits | uint64(rank)
			return
		}
		if *s>>rankBits == pair {
			return
		}
	}
}

// rank returns the rank of a pair, noRank when it has no merge.
func (t *mergeTable) rank(left, right int32) uint32 {
	pair := uint64(left)<<idBits | uint64(right)
	for i := t.hash(pair); ; i++ {
		s := t.slots[i&t.mask]
		if s == ^uint64(0) {
			return noRank
		}
		if s>>rankBits == pair {
			return uint32(s & (1<<rankBits - 1))
		}
	}
}
