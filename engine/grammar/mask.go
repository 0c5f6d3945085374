package grammar

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrDeadEnd is the error for a state at which no token of the vocabulary is allowed.
var ErrDeadEnd = errors.New("no token can follow under the grammar")

// A Mask is the set of tokens that a grammar allows. It is shared and does not change.
type Mask struct {
	v     *Vocabulary
	words []uint64
	count int
}

// Allows reports whether the token is in the set.
func (m *Mask) Allows(id int32) bool {
	return id >= 0 && int(id) < m.v.n && m.words[id>>6]>>(id&63)&1 != 0
}

// Count returns the number of tokens in the set.
func (m *Mask) Count() int { return m.count }

// Words returns the set as bits: token i is bit i%64 of word i/64. The caller must not change them.
func (m *Mask) Words() []uint64 { return m.words }

// AcceptToken returns the state after a token and whether it is allowed. A token that ends the generation leaves the
// state as it is. It costs a few nanoseconds for each byte when the text has been there before.
func (g *Grammar) AcceptToken(s State, v *Vocabulary, id int32) (State, bool) {
	if p := v.Bytes(id); p != nil {
		next, n := g.Accept(s, p)
		return next, n == len(p)
	}
	return s, v.IsEnd(id) && g.Accepting(s)
}

// Mask returns the tokens that are allowed at a state: those whose bytes all fit, and those that end the generation
// where the text may end. The error is ErrDeadEnd when there is none, and a *LimitError when finding out took more
// than Limits allow.
func (g *Grammar) Mask(s State, v *Vocabulary) (*Mask, error) {
	t, cur := g.enter(s)
	if cur == dead {
		return nil, ErrDeadEnd
	}
	m := cur.mask.Load()
	if m == nil || m.v != v {
		w := walk{g: g, t: t, left: g.budget()}
		m = w.mask(cur, v)
		if w.exhausted() {
			return nil, &LimitError{"steps for the allowed tokens", g.limits.MaskWork}
		}
		if w.over && m.count == 0 {
			return nil, fmt.Errorf("%w: too many ways to read the text (%d) or too deep", ErrDeadEnd, g.limits.Threads)
		}
		if old := cur.mask.Swap(m); old == nil {
			t.bytes.Add(int64(8 * len(m.words)))
		}
	}
	if m.count == 0 {
		return nil, ErrDeadEnd
	}
	return m, nil
}

// A walk explores one table within a budget.
type walk struct {
	g    *Grammar
	t    *table
	left *budget
	over bool // a limit refused something
}

func (w *walk) exhausted() bool { return w.left.spent() }

func (w *walk) step(s *state, class uint8) *state {
	next := s.next[class].Load()
	if next == nil {
		next = w.t.expand(w.g, s, class, w.left)
	}
	w.over = w.over || next == over
	return next
}

// mask computes the set for a state.
func (w *walk) mask(s *state, v *Vocabulary) *Mask {
	m := &Mask{v: v, words: make([]uint64, len(v.plain))}
	if s.cfg.accepts {
		for _, id := range v.end {
			m.words[id>>6] |= 1 << (id & 63)
		}
	}
	if v.plainCount > 0 && w.absorbs(s) {
		for i, word := range v.plain {
			m.words[i] |= word
		}
		w.tokens(m.words, s, &v.rest)
	} else {
		w.tokens(m.words, s, &v.all)
	}
	for _, word := range m.words {
		m.count += bits.OnesCount64(word)
	}
	return m
}

// tokens adds the tokens of a trie that fit at a state.
func (w *walk) tokens(words []uint64, s *state, t *trie) {
	path := make([]*state, t.deep+1)
	path[0] = s
	class := &w.g.prog.class
	for i := 0; i < len(t.bytes); {
		d := t.depth[i]
		next := w.step(path[d], class[t.bytes[i]])
		if next.refuses() {
			i = int(t.skip[i])
			continue
		}
		path[d+1] = next
		for _, id := range t.ids[t.first[i]:t.first[i+1]] {
			words[id>>6] |= 1 << (id & 63)
		}
		i++
	}
}
