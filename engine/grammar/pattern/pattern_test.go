package pattern

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine/grammar"
)

func compile(t *testing.T, c Constraint, encode Encoder) (*grammar.Grammar, error) {
	t.Helper()
	b := grammar.NewBuilder(grammar.Limits{})
	e, err := Compile(t.Context(), b, c, encode)
	if err != nil {
		return nil, err
	}
	return b.Compile(t.Context(), e)
}

func matches(g *grammar.Grammar, text string) bool {
	s, n := g.Accept(g.Start(), []byte(text))
	return n == len(text) && g.Accepting(s)
}

var sources = []string{
	``, `a`, `^a`, `a$`, `^a$`, `^$`, `a|b`, `^a|b$`, `^(a|b)$`, `(^a|b)c`, `a(b$|c)`, `^(?:a|ab)(?:c|bcd)$`,
	`a*`, `^a*$`, `^a+$`, `^a?b$`, `a{2}`, `^a{2,3}$`, `^a{2,}$`, `^(ab){1,3}$`, `^(a{2}){2}$`, `^(a|aa){2,4}$`,
	`^[a-c]+$`, `^[^a-c]*$`, `^\d{3}-\d{4}$`, `\d`, `^\w+$`, `^\W$`, `^\s*\S\s*$`, `^.$`, `^(?s:.)$`, `^(?i:ab)$`, `^(?i)k$`,
	`^[é-ü]+$`, `^\p{L}+$`, `^\P{L}$`, `^[[:alpha:]]\z`, `\Aab`, `^a.c$`, `b.*b`, `^(a*)*$`, `^(a*b*)+$`, `^(|a)+$`,
	`^a\\b"$`, `"`, `\n`, `^[\x00-\x1f]$`, `^(?P<n>a)$`, `^a+?$`, `^🌋|^.b$`, `^[^"\\]*$`, `a$b`, `b^a`, `^^a$$`,
}

// TestMatches compares with the standard library on all short texts over an alphabet, and on some longer ones.
func TestMatches(t *testing.T) {
	letters := []string{"a", "b", "c", "A", "B", "1", "é", " ", "\n", `"`, `\`, "🌋", "K", "-"}
	texts := []string{""}
	for _, x := range letters {
		for _, y := range append(letters, "") {
			for _, z := range []string{"", "a", "b", "c"} {
				texts = append(texts, x+y+z)
			}
		}
	}
	texts = append(texts, "\b", "\f", "\r", "\t", "555-1234", "abab", "ababab", "abababab", "aaaa", "aaaaa", "aaaaaaaa", "\u212a", "\x01", "\x1f", "bcdabcd", "abcd", "acbcd", "ab\u017f")
	for _, source := range sources {
		re := regexp.MustCompile(source)
		raw, err := compile(t, Constraint{Patterns: []Pattern{{source, false}}, Max: grammar.Unbounded}, Raw)
		if err == nil {
			for _, text := range texts {
				if want, got := re.MatchString(text), matches(raw, text); got != want {
					t.Errorf("%q on %q: %v, want %v", source, text, got, want)
				}
			}
		} else if errors.Is(err, grammar.ErrUnsatisfiable) {
			for _, text := range texts {
				if re.MatchString(text) {
					t.Errorf("%q: %v, but %q matches", source, err, text)
				}
			}
			continue
		} else {
			t.Errorf("%q: %v", source, err)
			continue
		}
		inJSON, err := compile(t, Constraint{Patterns: []Pattern{{source, false}}, Max: grammar.Unbounded}, JSON)
		if err != nil {
			t.Errorf("%q: %v", source, err)
			continue
		}
		for _, text := range texts {
			if want, got := re.MatchString(text), matches(inJSON, quoted(t, text)); got != want {
				t.Errorf("%q on JSON %q: %v, want %v", source, text, got, want)
			}
		}
		whole, err := compile(t, Constraint{Patterns: []Pattern{{source, true}}, Max: grammar.Unbounded}, Raw)
		full := regexp.MustCompile(`\A(?:` + source + `)\z`)
		for _, text := range texts {
			if want, got := full.MatchString(text), err == nil && matches(whole, text); got != want {
				t.Errorf("whole %q on %q: %v, want %v", source, text, got, want)
			}
		}
	}
}

// quoted is a text as it stands between the quotes of a JSON string.
func quoted(t *testing.T, text string) string {
	t.Helper()
	var buf strings.Builder
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		t.Fatal(err)
	}
	return buf.String()[1 : buf.Len()-2]
}

// TestTogether joins patterns with bounds and a forbidden string.
func TestTogether(t *testing.T) {
	for _, first := range sources {
		for _, second := range []string{`a`, `^[a-c]*$`, `b$`} {
			c := Constraint{Patterns: []Pattern{{first, false}, {second, false}}, Min: 1, Max: 3, Avoid: "ab"}
			g, err := compile(t, c, Raw)
			if err != nil && !errors.Is(err, grammar.ErrUnsatisfiable) {
				t.Fatalf("%q and %q: %v", first, second, err)
			}
			a, b := regexp.MustCompile(first), regexp.MustCompile(second)
			for _, x := range []string{"", "a", "b", "c", "A", "é"} {
				for _, y := range []string{"", "a", "b", "aa", "ba", "bab", "aaa", "bbb"} {
					text := x + y
					n := utf8.RuneCountInString(text)
					want := a.MatchString(text) && b.MatchString(text) && n >= 1 && n <= 3 && !strings.Contains(text, "ab")
					if got := err == nil && matches(g, text); got != want {
						t.Errorf("%q and %q on %q: %v, want %v", first, second, text, got, want)
					}
				}
			}
		}
	}
}

// TestRefused checks what case C16 sends, and other patterns that cannot be used.
func TestRefused(t *testing.T) {
	for source, want := range map[string]string{
		`^+a$`:                               "nothing to repeat",
		`^{2}x$`:                             "nothing to repeat",
		`+a`:                                 "nothing to repeat",
		`(?:)*`:                              "nothing to repeat",
		`(?<=a)b`:                            "",
		`((((`:                               "missing closing",
		`[z-a]`:                              "range",
		`a{1000000}`:                         "limit",
		`(?:(?:a{1000}){1000}){1000}`:        "limit",
		`(?:a{1,50}){1000}b`:                 "limit",
		`[ab]*a[ab]{14}c`:                    "limit",
		`\bword`:                             "word boundaries",
		`(?m)^a`:                             "flag",
		`(a)\1`:                              "",
		`\u0041`:                             "",
		strings.Repeat("(", 5000):            "",
		"a0|" + strings.Repeat("a1|", 4<<17): "limit",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := compile(t, Constraint{Patterns: []Pattern{{source, false}}, Max: grammar.Unbounded}, JSON)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%.20q took %v", source, took)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 512 {
			t.Errorf("%.20q allocated %d MiB", source, n)
		}
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want one with %q", source, err, want)
		} else {
			t.Logf("%.20q: %v (%v)", source, err, time.Since(start))
		}
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := grammar.NewBuilder(grammar.Limits{})
	if _, err := Whole(ctx, b, `^[a-z]{0,900}$`); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
}

// FuzzPattern compares whatever compiles with the standard library.
func FuzzPattern(f *testing.F) {
	for i, s := range sources {
		f.Add(s, "ab1\n", uint64(i))
	}
	f.Fuzz(func(t *testing.T, source, text string, seed uint64) {
		if len(source) > 200 || len(text) > 100 || !utf8.ValidString(text) {
			return
		}
		b := grammar.NewBuilder(grammar.Limits{Rules: 1000, Size: 20000, CacheBytes: 1})
		e, err := Compile(t.Context(), b, Constraint{Patterns: []Pattern{{source, false}}, Max: grammar.Unbounded}, Raw)
		if err != nil {
			return
		}
		re, err := regexp.Compile(source)
		if err != nil {
			t.Fatalf("%q compiled here and not there: %v", source, err)
		}
		g, err := b.Compile(t.Context(), e)
		if err != nil {
			if errors.Is(err, grammar.ErrUnsatisfiable) && re.MatchString(text) {
				t.Fatalf("%q: %v, but %q matches", source, err, text)
			}
			return
		}
		if got, want := matches(g, text), re.MatchString(text); got != want {
			t.Fatalf("%q on %q: %v, want %v", source, text, got, want)
		}
		// A random walk: what it accepts matches.
		rng := rand.New(rand.NewPCG(seed, 1))
		s, out := g.Start(), []byte{}
		for range 60 {
			p := []byte{byte(rng.Uint32())}
			if rng.IntN(2) == 0 && len(text) > 0 {
				p[0] = text[rng.IntN(len(text))]
			}
			if next, n := g.Accept(s, p); n == 1 {
				s, out = next, append(out, p...)
			}
		}
		if g.Accepting(s) && !re.Match(out) {
			t.Fatalf("%q: the walk accepts %q", source, out)
		}
	})
}
