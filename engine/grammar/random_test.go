package grammar_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/grammar"
)

// A naive recogniser of expressions, against which the automaton is compared. It knows grammars as trees of its own.
type tree struct {
	op         byte // l literal, s sequence, a alternative, r repetition, c call
	lit        string
	kids       []*tree
	least, max int
	rule       int
}

// ends returns the offsets at which what a tree matches from an offset can end.
func (t *tree) ends(rules []*tree, text string, at int, memo map[[2]any][]int) []int {
	key := [2]any{t, at}
	if e, ok := memo[key]; ok {
		return e
	}
	var out []int
	switch t.op {
	case 'l':
		if strings.HasPrefix(text[at:], t.lit) {
			out = []int{at + len(t.lit)}
		}
	case 's':
		out = []int{at}
		for _, k := range t.kids {
			var next []int
			for _, o := range out {
				next = append(next, k.ends(rules, text, o, memo)...)
			}
			slices.Sort(next)
			out = slices.Compact(next)
		}
	case 'a':
		for _, k := range t.kids {
			out = append(out, k.ends(rules, text, at, memo)...)
		}
	case 'r':
		now := []int{at}
		for n := 0; len(now) > 0 && (t.max < 0 || n <= t.max) && n <= len(text)+t.least+1; n++ {
			if n >= t.least {
				out = append(out, now...)
			}
			var next []int
			for _, o := range now {
				next = append(next, t.kids[0].ends(rules, text, o, memo)...)
			}
			slices.Sort(next)
			now = slices.Compact(next)
		}
	case 'c':
		out = rules[t.rule].ends(rules, text, at, memo)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	memo[key] = out
	return out
}

func (t *tree) expr(rules []grammar.Rule) grammar.Expr {
	var kids []grammar.Expr
	for _, k := range t.kids {
		kids = append(kids, k.expr(rules))
	}
	switch t.op {
	case 'l':
		return grammar.Lit(t.lit)
	case 's':
		return grammar.Seq(kids...)
	case 'a':
		return grammar.Alt(kids...)
	case 'r':
		return grammar.Repeat(kids[0], t.least, t.max)
	}
	return grammar.Ref(rules[t.rule])
}

func (t *tree) String() string {
	switch t.op {
	case 'l':
		return fmt.Sprintf("%q", t.lit)
	case 'r':
		return fmt.Sprintf("(%v){%d,%d}", t.kids[0], t.least, t.max)
	case 'c':
		return string(rune('A' + t.rule))
	}
	return fmt.Sprintf("%c%v", t.op, t.kids)
}

func randomTree(rng *rand.Rand, depth, rules int) *tree {
	kids := func(n int) []*tree {
		var list []*tree
		for range n {
			list = append(list, randomTree(rng, depth-1, rules))
		}
		return list
	}
	switch n := rng.IntN(10); {
	case depth == 0 || n < 3:
		return &tree{op: 'l', lit: []string{"a", "b", "c", "ab", "ba", "aab", ""}[rng.IntN(7)]}
	case n < 5:
		return &tree{op: 's', kids: kids(2 + rng.IntN(2))}
	case n < 7:
		return &tree{op: 'a', kids: kids(2 + rng.IntN(3))}
	case n < 8:
		least := rng.IntN(4)
		most := least + rng.IntN(4)
		switch {
		case rng.IntN(3) == 0:
			most = grammar.Unbounded
		case most == 0:
			most = 1
		}
		return &tree{op: 'r', kids: kids(1), least: least, max: most}
	}
	return &tree{op: 'c', rule: rng.IntN(rules)}
}

// TestRandomGrammars compares random grammars with the naive recogniser on all short texts, and checks that no state
// that is reached is a dead end.
func TestRandomGrammars(t *testing.T) {
	var texts []string
	for length, level := 0, []string{""}; length <= 6; length++ {
		texts = append(texts, level...)
		var next []string
		for _, s := range level {
			next = append(next, s+"a", s+"b")
		}
		level = next
	}
	texts = append(texts, "c", "ca", "abc", "aaaaaaaaaaaa", "abababababab", "aabaabaabaab")
	compiled, matched := 0, 0
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		trees := make([]*tree, 1+rng.IntN(4))
		for i := range trees {
			trees[i] = randomTree(rng, 3, len(trees))
		}
		b := grammar.NewBuilder(grammar.Limits{CacheBytes: 1, Threads: 1 << 20, MaskWork: 1 << 30})
		rules := make([]grammar.Rule, len(trees))
		for i := range rules {
			rules[i] = b.Rule(string(rune('A' + i)))
		}
		for i, tr := range trees {
			b.Define(rules[i], tr.expr(rules))
		}
		g, err := b.Compile(t.Context(), grammar.Ref(rules[0]))
		if err != nil {
			var left *grammar.RecursionError
			if !errors.As(err, &left) && !errors.Is(err, grammar.ErrUnsatisfiable) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		compiled++
		for _, text := range texts {
			want := slices.Contains(trees[0].ends(trees, text, 0, map[[2]any][]int{}), len(text))
			if want {
				matched++
			}
			if got := matches(g, text); got != want {
				for i, tr := range trees {
					t.Logf("%c ::= %v", 'A'+i, tr)
				}
				t.Fatalf("seed %d on %q: %v, want %v", seed, text, got, want)
			}
			s, n := g.Accept(g.Start(), []byte(text))
			if want && n != len(text) {
				t.Fatalf("seed %d: %q matches, but only %d bytes fit", seed, text, n)
			}
			if n < len(text) {
				s, _ = g.Accept(g.Start(), []byte(text[:n]))
			}
			if !g.Accepting(s) && !slices.ContainsFunc([]string{"a", "b", "c"}, func(c string) bool {
				_, n := g.Accept(s, []byte(c))
				return n == 1
			}) {
				t.Fatalf("seed %d: nothing can follow %q", seed, text[:n])
			}
		}
	}
	if compiled < 500 || matched < 2000 {
		t.Errorf("only %d grammars and %d matches", compiled, matched)
	}
	t.Logf("%d grammars, %d matches", compiled, matched)
}
