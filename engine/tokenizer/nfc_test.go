package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func TestNormalize(t *testing.T) {
	long := strings.Repeat("\u0302", 100)
	for _, test := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{"e\u0301", "é"},
		{"\u0301e", "\u0301e"},
		{"\u1100\u1161\u11a8", "각"},
		{"\u0344", "\u0308\u0301"},                             // decomposes to non-starters
		{"\u0958", "\u0915\u093c"},                             // excluded from composition
		{"a\u0323\u0301", "ạ\u0301"},                           // ordered already
		{"a\u0301\u0323", "ạ\u0301"},                           // not
		{"x" + long, "x" + long},                               // no U+034F
		{"e\u0301" + long, "é" + long},                         // composed before a long run
		{"ae" + long + "\u0301b", "aê" + long[2:] + "\u0301b"}, // blocked behind it
		{"a" + long + "\u0323", "ậ" + long[2:]},                // ordered across it, then composed twice
		{long + "e\u0301", long + "é"},                         // without a starter
		{"e\u0301x" + long + "e\u0301", "éx" + long + "é"},     // on both sides
		{"\u1100" + strings.Repeat("\u1161", 40), "가" + strings.Repeat("\u1161", 39)},
		{"a" + strings.Repeat("\u0344", 16), "\u00e4\u0301" + strings.Repeat("\u0308\u0301", 15)},
	} {
		if got := normalize(test.in); got != test.want {
			t.Errorf("%+q: %+q, want %+q", test.in, got, test.want)
		}
	}
}

// The two ways to normalise agree with each other, and with package norm wherever no
// run of non-starters is long.
func TestNormalizeMatchesNorm(t *testing.T) {
	var marks, pool []rune
	for r := rune(1); r < 0x3100; r++ {
		p := norm.NFC.PropertiesString(string(r))
		if !p.BoundaryBefore() {
			marks = append(marks, r)
		}
		if !p.BoundaryBefore() || p.Decomposition() != nil || r < 0x80 {
			pool = append(pool, r)
		}
	}
	pool = append(pool, 0x1100, 0x1161, 0x11a8, 0xac00, 0xac01, 0xfb1d, 0x1d15e, 0x1d165, 0x11099, 0x110ba)
	rng := rand.New(rand.NewPCG(5, 6))
	for range 15_000 {
		var b strings.Builder
		for n := 1 + rng.IntN(10); n > 0; n-- {
			b.WriteRune(pool[rng.IntN(len(pool))])
		}
		s := b.String()
		want := norm.NFC.String(s)
		if strings.Contains(want, "\u034f") {
			continue
		}
		if got := normalize(s); got != want {
			t.Fatalf("%+q: %+q, want %+q", s, got, want)
		}
		if got := string(appendLongRun(nil, s)); got != want {
			t.Fatalf("%+q the long way: %+q, want %+q", s, got, want)
		}
	}
	for range 1_500 {
		var b strings.Builder
		for n := 1 + rng.IntN(4); n > 0; n-- {
			b.WriteRune(pool[rng.IntN(len(pool))])
			few := marks[:1+rng.IntN(len(marks))]
			for n := rng.IntN(60); n > 0; n-- {
				b.WriteRune(few[rng.IntN(len(few))])
			}
			b.WriteString("ab"[:rng.IntN(3)])
		}
		s := b.String()
		got, want := normalize(s), string(appendLongRun(nil, s))
		if got != want {
			t.Fatalf("%+q: %+q, want %+q", s, got, want)
		}
		if again := normalize(got); again != got {
			t.Fatalf("%+q: %+q is not stable, gives %+q", s, got, again)
		}
	}
}

// Every single character that could be more than itself.
func TestNormalizeCharacters(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) || r >= 0x30000 && norm.NFC.PropertiesString(string(r)).Decomposition() == nil {
			continue
		}
		s := string(r)
		want := norm.NFC.String(s)
		if got := normalize(s); got != want {
			t.Fatalf("%U: %+q, want %+q", r, got, want)
		}
		if got := string(appendLongRun(nil, s)); got != want {
			t.Fatalf("%U the long way: %+q, want %+q", r, got, want)
		}
	}
}
