package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	cacheSlots   = 1 << 16
	maxCacheWord = 64 // bytes
)

// wordCache remembers the tokens of recent words. Each word has one slot, in which the
// last one to come stays: no lock, no bookkeeping, and never more than cacheSlots entries.
type wordCache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

// slot returns where a word is or would be.
func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}

// newCachedWord copies both, as the word is usually part of a much longer text.
func newCachedWord(word string, ids []int32) *cachedWord {
	return &cachedWord{strings.Clone(word), slices.Clone(ids)}
}
