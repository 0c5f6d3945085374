package grammar_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/gbnf"
	"github.com/calderaml/caldera/engine/grammar/schema"
	"github.com/calderaml/caldera/engine/grammar/toolcall"
)

func fromGBNF(tb testing.TB, source string, limits grammar.Limits) *grammar.Grammar {
	tb.Helper()
	g, err := gbnf.Compile(tb.Context(), source, limits)
	if err != nil {
		tb.Fatalf("%s: %v", source, err)
	}
	return g
}

func fromSchema(tb testing.TB, source string, limits grammar.Limits) *grammar.Grammar {
	tb.Helper()
	g, err := schema.Compile(tb.Context(), []byte(source), schema.Options{}, limits)
	if err != nil {
		tb.Fatalf("%s: %v", source, err)
	}
	return g
}

func compile(tb testing.TB, build func(b *grammar.Builder) grammar.Expr) *grammar.Grammar {
	tb.Helper()
	b := grammar.NewBuilder(grammar.Limits{})
	g, err := b.Compile(tb.Context(), build(b))
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func matches(g *grammar.Grammar, text string) bool {
	s, n := g.Accept(g.Start(), []byte(text))
	return n == len(text) && g.Accepting(s)
}

func TestNesting(t *testing.T) {
	g := fromSchema(t, `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"array","items":{"$ref":"#"}}}}`, grammar.Limits{})
	deep := strings.Repeat(`{"a":`, 63)
	if !matches(g, deep+"{}"+strings.Repeat("}", 63)) {
		t.Error("64 levels are refused")
	}
	s, n := g.Accept(g.Start(), []byte(deep+`{`))
	if n != len(deep)+1 {
		t.Fatalf("only %d bytes of 64 levels fit", n)
	}
	// At the last level not even the name of a property that needs another may begin.
	if got := string(g.Forced(s, 10)); got != "}" {
		t.Errorf("at the last level %q is forced", got)
	}
	s, _ = g.Accept(g.Start(), []byte(strings.Repeat(`{"a":`, 62)+`{`))
	if _, n = g.Accept(s, []byte(`"b":[]}`)); n != 7 {
		t.Errorf("an empty array at the last level: %d bytes fit", n)
	}
	if _, n = g.Accept(s, []byte(`"b":[{`)); n != 5 {
		t.Errorf("an array with an object below the last level: %d bytes fit", n)
	}
	// The depth of calls is bounded in the same way.
	g = fromGBNF(t, `root ::= "(" root ")" | "x"`, grammar.Limits{Depth: 10})
	var opens int
	s = g.Start()
	for {
		next, n := g.Accept(s, []byte("("))
		if n == 0 {
			break
		}
		s = next
		opens++
	}
	if opens < 5 || opens > 10 {
		t.Errorf("%d calls with a limit of 10", opens)
	}
	if _, n := g.Accept(s, []byte("x"+strings.Repeat(")", opens))); n != 1+opens {
		t.Errorf("a dead end after %d calls", opens)
	}
	// A call at the end of a rule leaves nothing open.
	g = fromGBNF(t, `root ::= "a" root | "b" ("," root)?`, grammar.Limits{Depth: 10})
	if !matches(g, strings.Repeat("a", 5000)+"b,"+strings.Repeat("a", 5000)+"b") {
		t.Error("tail calls deepen the stack")
	}
}

func TestCounts(t *testing.T) {
	g := fromGBNF(t, `root ::= [a-z]{3,100000} "!"`, grammar.Limits{})
	for n, want := range map[int]bool{0: false, 2: false, 3: true, 4: true, 99_999: true, 100_000: true, 100_001: false} {
		if got := matches(g, strings.Repeat("q", n)+"!"); got != want {
			t.Errorf("%d repetitions: %v", n, got)
		}
		if n := g.CacheBytes(); n > 17<<20 {
			t.Errorf("%d bytes are remembered", n)
		}
	}
	g = fromGBNF(t, `root ::= ("a"{2} "b"){2,} `, grammar.Limits{})
	for text, want := range map[string]bool{"aab": false, "aabaab": true, "aabaabaab": true, "aabab": false} {
		if got := matches(g, text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	var left *grammar.RecursionError
	var limit *grammar.LimitError
	compile := func(limits grammar.Limits, build func(b *grammar.Builder) grammar.Expr) error {
		b := grammar.NewBuilder(limits)
		_, err := b.Compile(t.Context(), build(b))
		return err
	}
	direct := func(b *grammar.Builder) grammar.Expr {
		r := b.Rule("r")
		b.Define(r, grammar.Alt(grammar.Seq(grammar.Ref(r), grammar.Lit("a")), grammar.Lit("b")))
		return grammar.Ref(r)
	}
	hidden := func(b *grammar.Builder) grammar.Expr {
		q, r := b.Rule("q"), b.Rule("r")
		b.Define(q, grammar.Seq(grammar.Opt(grammar.Lit("x")), grammar.Repeat(grammar.Lit("y"), 0, 5), grammar.Ref(r)))
		b.Define(r, grammar.Alt(grammar.Lit("z"), grammar.Ref(q)))
		return grammar.Ref(r)
	}
	endless := func(b *grammar.Builder) grammar.Expr {
		r := b.Rule("r")
		b.Define(r, grammar.Seq(grammar.Lit("a"), grammar.Ref(r)))
		return grammar.Ref(r)
	}
	for _, build := range []func(b *grammar.Builder) grammar.Expr{direct, hidden} {
		if err := compile(grammar.Limits{}, build); !errors.As(err, &left) {
			t.Errorf("left recursion: %v", err)
		}
	}
	if err := compile(grammar.Limits{}, endless); !errors.Is(err, grammar.ErrUnsatisfiable) {
		t.Errorf("a rule without end: %v", err)
	}
	for name, build := range map[string]func(b *grammar.Builder) grammar.Expr{
		"empty repetition": func(*grammar.Builder) grammar.Expr { return grammar.Repeat(grammar.Opt(grammar.Lit("a")), 0, 1000) },
		"repetition":       func(*grammar.Builder) grammar.Expr { return grammar.Repeat(grammar.Lit("a"), 0, 1<<21) },
		"size":             func(*grammar.Builder) grammar.Expr { return grammar.Lit(strings.Repeat("x", 2000)) },
		"written out": func(*grammar.Builder) grammar.Expr {
			e := grammar.Lit("x")
			for range 100 {
				e = grammar.Seq(e, e)
			}
			return e
		},
		"depth": func(*grammar.Builder) grammar.Expr {
			e := grammar.Lit("x")
			for range 100_000 {
				e = grammar.Repeat(e, 0, 2)
			}
			return e
		},
		"rules": func(b *grammar.Builder) grammar.Expr {
			for range 101 {
				b.New("r", grammar.Lit("a"))
			}
			return grammar.Lit("a")
		},
	} {
		if err := compile(grammar.Limits{Size: 1000, Rules: 100}, build); !errors.As(err, &limit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := grammar.NewBuilder(grammar.Limits{}).Compile(ctx, grammar.Lit("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
}

// TestAmbiguity checks that many ways to read a text are bounded and end in an error.
func TestAmbiguity(t *testing.T) {
	g := fromGBNF(t, `root ::= ("a" | "aa"){0,100000} "b"`, grammar.Limits{Threads: 50})
	_, n := g.Accept(g.Start(), []byte(strings.Repeat("a", 1000)+"b"))
	if n < 40 || n > 200 {
		t.Errorf("%d bytes of an ambiguous text fit", n)
	}
	s, _ := g.Accept(g.Start(), []byte(strings.Repeat("a", n)))
	if _, err := g.Mask(s, smallVocabulary(t)); err != nil && !errors.Is(err, grammar.ErrDeadEnd) {
		t.Errorf("mask: %v", err)
	}
	// The same language without counts needs no more than a few ways.
	g = fromGBNF(t, `root ::= ("a" | "aa" | "a" "a"? | ("a" | "aa")+ )* "b"?`, grammar.Limits{Threads: 50})
	if !matches(g, strings.Repeat("a", 1000)+"b") {
		t.Error("repetition without counts is refused")
	}
}

func TestForced(t *testing.T) {
	g := fromSchema(t, `{"type":"object","properties":{"name":{"enum":["Oslo","Oschatz"]},"n":{"const":12}},"required":["name","n"]}`, grammar.Limits{})
	for text, want := range map[string]string{
		"": `{"name":"Os`, `{"name":"Os`: "", `{"name":"Osl`: `o","n":12}`, `{"name":"Oslo","n":12}`: "",
	} {
		s, _ := g.Accept(g.Start(), []byte(text))
		if got := string(g.Forced(s, 100)); got != want {
			t.Errorf("after %q %q is forced, want %q", text, got, want)
		}
	}
	if got := string(g.Forced(g.Start(), 3)); got != `{"n` {
		t.Errorf("forced %q with a limit of 3", got)
	}
}

func TestLazy(t *testing.T) {
	g := compile(t, func(b *grammar.Builder) grammar.Expr { return b.Lazy("<call>", grammar.Choice("yes", "no")) })
	for text, want := range map[string]bool{
		"": true, "free text \xff\x00": true, "<call": true, "<<call>yes": true, "x<cal<call>no": true,
		"<call>": false, "<call>maybe": false, "<call>yes!": false, "<call>ye": false, "a<call>yes": true,
	} {
		if got := matches(g, text); got != want {
			t.Errorf("lazy %q: %v", text, got)
		}
	}
	g = compile(t, func(b *grammar.Builder) grammar.Expr { return b.After("</think>", grammar.Lit("{}")) })
	for text, want := range map[string]bool{
		"": false, "thoughts": false, "hm</think>{}": true, "</think>\n\n{}": true, "</think>\n\n\n{}": false,
		"</think": false, "</think></think>{}": false, "\xff</thin</think>\n{}": true, "</think>": false,
	} {
		if got := matches(g, text); got != want {
			t.Errorf("after %q: %v", text, got)
		}
	}
	for _, end := range []string{"aab", "aaa", "abab", "a"} {
		for _, valid := range []bool{false, true} {
			g := compile(t, func(b *grammar.Builder) grammar.Expr { return b.Until(end, valid) })
			for n := range 1 << 8 {
				text := ""
				for i := range 8 {
					text += string(rune('a' + n>>i&1))
				}
				text = "é" + text
				want := strings.Index(text, end) == len(text)-len(end)
				if got := matches(g, text); got != want {
					t.Errorf("until %q on %q: %v", end, text, got)
				}
			}
			if got := matches(g, "\xff"+end); got == valid {
				t.Errorf("until %q, valid %v: invalid UTF-8 gives %v", end, valid, got)
			}
		}
	}
}

// TestRunes compares sets of characters with what they say, over all code points.
func TestRunes(t *testing.T) {
	for _, ranges := range [][]grammar.RuneRange{
		grammar.AnyRune, {{0, 0x7f}}, {{0x80, 0x7ff}}, {{0x7f, 0x80}}, {{0x7ff, 0x800}}, {{0xd000, 0xf000}}, {{0xffff, 0x10000}},
		{{'a', 'z'}, {0x3b1, 0x3c9}, {0x4e00, 0x9fff}, {0x1f300, 0x1f6ff}}, {{0x10ffff, 0x10ffff}}, {{0x1234, 0x5678}}, {{0x12345, 0x56789}},
		{{'z', 'a'}, {'b', 'b'}}, {{5, 10}, {7, 20}, {21, 22}},
	} {
		g := compile(t, func(*grammar.Builder) grammar.Expr { return grammar.Runes(ranges...) })
		var some []rune // every 97th character, and all near the ends of ranges and of lengths
		for r := rune(0); r <= utf8.MaxRune; r += 97 {
			some = append(some, r)
		}
		for _, x := range append(ranges, grammar.RuneRange{Lo: 0x7f, Hi: 0x7ff}, grammar.RuneRange{Lo: 0xffff, Hi: 0xd7ff}) {
			for d := rune(-70); d <= 70; d++ {
				some = append(some, x.Lo+d, x.Hi+d)
			}
		}
		for _, r := range some {
			if !utf8.ValidRune(r) {
				continue
			}
			want := slices.ContainsFunc(ranges, func(x grammar.RuneRange) bool { return x.Lo <= r && r <= x.Hi })
			if got := matches(g, string(r)); got != want {
				t.Fatalf("%x: character %U: %v", ranges, r, got)
			}
		}
		for _, bad := range []string{"\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\xff"} {
			if matches(g, bad) {
				t.Errorf("%x: %q is taken as a character", ranges, bad)
			}
		}
		if not := grammar.Complement(grammar.Complement(ranges)); !slices.Equal(not, grammar.Normalize(ranges)) {
			t.Errorf("complement twice of %x is %x", ranges, not)
		}
	}
}

// TestStates checks that states can be kept, forked and used across tables.
func TestStates(t *testing.T) {
	g := fromSchema(t, `{"type":"array","items":{"type":["integer","array","string"]},"maxItems":2000}`, grammar.Limits{CacheBytes: 1})
	var kept []grammar.State
	text := "["
	s, _ := g.Accept(g.Start(), []byte(text))
	for i := range 1500 {
		if i > 0 {
			s, _ = g.Accept(s, []byte(","))
		}
		next, n := g.Accept(s, []byte(`[1,[2]]`))
		if n != 7 {
			t.Fatalf("item %d: %d bytes", i, n)
		}
		s = next
		kept = append(kept, s)
		if n := g.CacheBytes(); n > 512<<10 {
			t.Fatalf("%d bytes are remembered with a bound of 256 KiB", n)
		}
	}
	for i, s := range kept {
		next, n := g.Accept(s, []byte(`,"x"]`))
		if n != 5 || !g.Accepting(next) {
			t.Fatalf("state %d has gone bad", i)
		}
	}
	var zero grammar.State
	if _, n := g.Accept(zero, []byte("[")); n != 0 || g.Accepting(zero) {
		t.Error("the zero state accepts something")
	}
	other := fromGBNF(t, `root ::= "["`, grammar.Limits{})
	if _, n := other.Accept(s, []byte("[")); n != 0 {
		t.Error("a state of another grammar is taken")
	}
}

// grammars are of every kind, for tests over all.
func grammars(tb testing.TB, limits grammar.Limits) map[string]*grammar.Grammar {
	all := map[string]*grammar.Grammar{
		"object":  fromSchema(tb, `{"type":"object"}`, limits),
		"any":     fromSchema(tb, `true`, limits),
		"strings": fromSchema(tb, `{"type":"array","items":{"type":"string","minLength":2,"maxLength":40}}`, limits),
		"pattern": fromSchema(tb, `{"type":"array","items":{"type":"string","pattern":"^[\\p{L} ]{1,30}$"}}`, limits),
		"search":  fromSchema(tb, `{"type":"string","pattern":"the|日本"}`, limits),
		"schema": fromSchema(tb, `{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
			"tags":{"type":"array","items":{"enum":["a","b","abc"]}},"when":{"type":"string","format":"date-time"},
			"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["name"],"additionalProperties":{"type":"number"}}`, limits),
		"but one": fromGBNF(tb, `root ::= "<" [^"\\\x00-\x1f日]* "\""`, limits),
		"gbnf":    fromGBNF(tb, "root ::= item (\", \" item)* \"\\n\"?\nitem ::= [a-z]+ | \"(\" root \")\" | \"the \" [^\\n,()]{1,10}", limits),
	}
	var err error
	if all["spaced"], err = schema.Compile(tb.Context(), []byte(`{"type":"object"}`), schema.Options{Whitespace: true}, limits); err != nil {
		tb.Fatal(err)
	}
	b := grammar.NewBuilder(limits)
	calls, err := toolcall.Build(tb.Context(), b, []toolcall.Tool{{Name: "weather", Parameters: []byte(
		`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}`)}}, toolcall.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	if all["tools"], err = b.Compile(tb.Context(), b.After("</think>", calls.Text)); err != nil {
		tb.Fatal(err)
	}
	if all["lazy"], err = b.Compile(tb.Context(), b.Lazy(toolcall.Trigger, calls.Rest)); err != nil {
		tb.Fatal(err)
	}
	return all
}
