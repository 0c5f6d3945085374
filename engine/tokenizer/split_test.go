package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// reference is the pattern in the comment of splitter taken literally: each alternative
// in turn, with backtracking where it matters, on the unicode tables themselves.
type reference struct{ marks bool }

func (p reference) word(r rune) bool {
	return unicode.Is(unicode.L, r) || p.marks && unicode.Is(unicode.M, r)
}

func (p reference) punct(r rune) bool {
	return !unicode.Is(unicode.White_Space, r) && !p.word(r) && !unicode.Is(unicode.N, r)
}

func (p reference) next(s []rune) int {
	at := func(i int, f func(rune) bool) bool { return i < len(s) && f(s[i]) }
	run := func(i int, f func(rune) bool) int {
		for at(i, f) {
			i++
		}
		return i
	}
	isSpace := func(r rune) bool { return unicode.Is(unicode.White_Space, r) }
	isLine := func(r rune) bool { return r == '\r' || r == '\n' }
	if s[0] == '\'' {
		for _, c := range []string{"s", "t", "re", "ve", "m", "ll", "d"} {
			n := 1 + len(c)
			if n <= len(s) && strings.EqualFold(string(s[1:n]), c) {
				return n
			}
		}
	}
	if !isLine(s[0]) && !unicode.Is(unicode.L, s[0]) && !unicode.Is(unicode.N, s[0]) && at(1, p.word) {
		return run(1, p.word)
	}
	if p.word(s[0]) {
		return run(0, p.word)
	}
	if unicode.Is(unicode.N, s[0]) {
		return 1
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	if at(i, p.punct) {
		return run(run(i, p.punct), isLine)
	}
	end := run(0, isSpace)
	for i := end; i >= 0; i-- {
		if j := run(i, isLine); j > i {
			return j
		}
	}
	for i := end; i > 0; i-- {
		if i == len(s) || isSpace(s[i]) {
			return i
		}
	}
	return end
}

func TestSplitMatchesPattern(t *testing.T) {
	alphabet := []string{"a", "Z", "é", "中", "\u0301", "\u0915", "\u093f", "1", "٣", "½", "Ⅷ", " ", " ", "\t", "\n", "\r",
		"\u00a0", "\u2028", "\u3000", "\u0085", "\u180e", "\u200b", "!", "=", "'", "'", "s", "S", "ſ", "t", "r", "e", "E", "v", "l", "L", "m", "d",
		"<", "|", "😀", "\u200d", "\x00", "\x7f", "\ufffd", "\U000e0100", "\U0010ffff", "K", "\u212a"}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, marks := range []bool{false, true} {
		split, want := newSplitter(marks), reference{marks}
		for range 30_000 {
			var b strings.Builder
			for n := 1 + rng.IntN(8); n > 0; n-- {
				b.WriteString(alphabet[rng.IntN(len(alphabet))])
			}
			text := b.String()
			for rest := text; rest != ""; {
				got := split.next(rest)
				if n := want.next([]rune(rest)); utf8.RuneCountInString(rest[:got]) != n {
					t.Fatalf("marks %v, %q at %q: %d bytes, want %d characters", marks, text, rest, got, n)
				}
				rest = rest[got:]
			}
		}
	}
}

// Every character has exactly the class that the unicode package gives it.
func TestClasses(t *testing.T) {
	table := classes()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		want := other
		switch {
		case unicode.Is(unicode.L, r):
			want = letter
		case unicode.Is(unicode.M, r):
			want = mark
		case unicode.Is(unicode.N, r):
			want = number
		case r == '\n' || r == '\r':
			want = newline
		case unicode.IsSpace(r):
			want = space
		}
		if got := table.of(r); got != want || r < 128 && table.ascii[r] != want {
			t.Fatalf("%U: class %d, want %d", r, got, want)
		}
	}
}
