package grammar_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine/grammar"
)

// checkMask compares a mask with following every token.
func checkMask(t *testing.T, name string, g *grammar.Grammar, s grammar.State, v *grammar.Vocabulary) *grammar.Mask {
	t.Helper()
	m, err := g.Mask(s, v)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	count := 0
	for id := range int32(v.Len()) {
		_, want := g.AcceptToken(s, v, id)
		if want {
			count++
		}
		if got := m.Allows(id); got != want {
			t.Fatalf("%s: token %d %q: %v, want %v", name, id, v.Bytes(id), got, want)
		}
	}
	if m.Count() != count {
		t.Fatalf("%s: the mask counts %d tokens of %d", name, m.Count(), count)
	}
	if m.Allows(-1) || m.Allows(int32(v.Len())) {
		t.Fatalf("%s: ids out of range are allowed", name)
	}
	return m
}

// TestMasks compares masks with brute force on the states of random walks over tokens.
func TestMasks(t *testing.T) {
	for _, real := range []bool{false, true} {
		var v *grammar.Vocabulary
		walks, steps := 10, 30
		if real {
			v, walks, steps = realVocabulary(t), 1, 8
		} else {
			v = smallVocabulary(t)
		}
		for name, g := range grammars(t, grammar.Limits{}) {
			for seed := range uint64(walks) {
				rng := rand.New(rand.NewPCG(seed, 3))
				s := g.Start()
				for range steps {
					m := checkMask(t, name, g, s, v)
					id := pick(rng, m, v)
					if v.IsEnd(id) {
						break
					}
					s, _ = g.AcceptToken(s, v, id)
				}
			}
		}
	}
}

// pick chooses a token of a mask, often one of a single byte, as these are what gives a text its form.
func pick(rng *rand.Rand, m *grammar.Mask, v *grammar.Vocabulary) int32 {
	var ids, short []int32
	for id := range int32(v.Len()) {
		if m.Allows(id) {
			ids = append(ids, id)
			if len(v.Bytes(id)) == 1 && v.Bytes(id)[0] < utf8.RuneSelf {
				short = append(short, id)
			}
		}
	}
	if len(short) > 0 && rng.IntN(2) == 0 {
		return short[rng.IntN(len(short))]
	}
	return ids[rng.IntN(len(ids))]
}

// TestVocabulary checks kinds of tokens.
func TestVocabulary(t *testing.T) {
	tokens := [][]byte{[]byte("a"), []byte("<|im_end|>"), []byte("<|x|>"), {}, []byte("a"), []byte("b"), []byte("<|im_end|>")}
	v := newVocabulary(t, tokens)
	g := fromGBNF(t, `root ::= ("a" | "<|x|>" | "<|im_end|>"){1,2}`, grammar.Limits{})
	m := checkMask(t, "start", g, g.Start(), v)
	for id, want := range []bool{true, false, false, false, true, false, false} {
		if m.Allows(int32(id)) != want {
			t.Errorf("at the start token %d: %v", id, !want)
		}
	}
	s, ok := g.AcceptToken(g.Start(), v, 4)
	m = checkMask(t, "then", g, s, v)
	if !ok || !m.Allows(1) || !m.Allows(6) || m.Count() != 4 {
		t.Errorf("after a: %d tokens", m.Count())
	}
	s, _ = g.AcceptToken(s, v, 0)
	if m = checkMask(t, "end", g, s, v); m.Count() != 2 {
		t.Errorf("at the end: %d tokens", m.Count())
	}
	// No token fits, and the text may not end.
	g = fromGBNF(t, `root ::= "zebra"`, grammar.Limits{})
	if _, err := g.Mask(g.Start(), v); !errors.Is(err, grammar.ErrDeadEnd) {
		t.Errorf("a dead end gives %v", err)
	}
	if _, err := g.Mask(grammar.State{}, v); !errors.Is(err, grammar.ErrDeadEnd) {
		t.Errorf("the zero state gives %v", err)
	}
}

// TestMaskWork checks that a mask that takes too long ends with an error.
func TestMaskWork(t *testing.T) {
	g := fromGBNF(t, `root ::= ([a-z] | [a-z] [a-z] | [a-y]{3} | [b-z]{1,20}){0,300} "."`, grammar.Limits{MaskWork: 20_000})
	var limit *grammar.LimitError
	if _, err := g.Mask(g.Start(), realVocabulary(t)); !errors.As(err, &limit) {
		t.Errorf("error %v", err)
	}
}

// TestConcurrent has many sequences use the same grammars, with caches that overflow all the time.
func TestConcurrent(t *testing.T) {
	v := smallVocabulary(t)
	all := grammars(t, grammar.Limits{CacheBytes: 1})
	alone := grammars(t, grammar.Limits{})
	var group sync.WaitGroup
	for worker := range uint64(8) {
		group.Go(func() {
			for name, g := range all {
				rng := rand.New(rand.NewPCG(worker%4, 5))
				ref := alone[name]
				s, r := g.Start(), ref.Start()
				for range 60 {
					m, err := g.Mask(s, v)
					want, err2 := ref.Mask(r, v)
					if err != nil || err2 != nil || !slices.Equal(m.Words(), want.Words()) {
						t.Errorf("%s: masks differ (%v, %v)", name, err, err2)
						return
					}
					id := pick(rng, m, v)
					if v.IsEnd(id) {
						s, r = g.Start(), ref.Start()
						continue
					}
					s, _ = g.AcceptToken(s, v, id)
					r, _ = ref.AcceptToken(r, v, id)
				}
			}
		})
	}
	group.Wait()
}

// TestMemory checks that the bound on caches is one of real memory.
func TestMemory(t *testing.T) {
	const bound = 4 << 20
	v := smallVocabulary(t)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, source := range map[string]string{
		"counts":    `root ::= ([a-z]{1,1000} ","){1,1000}`,
		"ambiguous": `root ::= ([a-z] | [a-z]{2} | [a-z,]{3}){0,150}`,
		"stacks":    `root ::= ("(" root ")" | "[" root "]" | [a-z,])*`,
	} {
		g := fromGBNF(t, source, grammar.Limits{CacheBytes: bound})
		before := heap()
		rng := rand.New(rand.NewPCG(1, 1))
		s, most, full := g.Start(), int64(0), false
		for i := range 9000 {
			c := "abcdefgh,([)]"[rng.IntN(13)]
			if next, n := g.Accept(s, []byte{c}); n == 1 {
				s = next
			}
			if i%50 == 0 {
				if _, err := g.Mask(s, v); err != nil && !errors.Is(err, grammar.ErrDeadEnd) {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if i%300 == 0 {
				s = g.Start()
			}
			n := g.CacheBytes()
			full = full || n > bound*9/10
			if n > bound*2 {
				t.Fatalf("%s: %d bytes are remembered", name, n)
			}
			if i%3000 == 0 || n > bound*9/10 && most == 0 {
				most = max(most, heap()-before)
			}
		}
		runtime.KeepAlive(g)
		t.Logf("%s: %d KiB of heap with a bound of %d KiB, full %v", name, most>>10, bound>>10, full)
		if most > bound*2 {
			t.Errorf("%s: %d bytes of heap with a bound of %d", name, most, bound)
		}
	}
}
