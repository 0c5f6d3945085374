package gbnf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/grammar"
)

func matches(g *grammar.Grammar, text string) bool {
	s, n := g.Accept(g.Start(), []byte(text))
	return n == len(text) && g.Accepting(s)
}

const jsonGrammar = `# JSON as in llama.cpp's example
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
`

const arithmetic = `root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
`

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		source   string
		yes, not []string
	}{
		{`root ::= "a"`, []string{"a"}, []string{"", "b", "aa"}},
		{`root ::= "a" "b" | "c"`, []string{"ab", "c"}, []string{"a", "abc", "b"}},
		{`root ::= "a"*`, []string{"", "a", "aaaa"}, []string{"b"}},
		{`root ::= "a"+`, []string{"a", "aaaa"}, []string{""}},
		{`root ::= "a"? "b"`, []string{"b", "ab"}, []string{"", "aab"}},
		{`root ::= "a"{2}`, []string{"aa"}, []string{"a", "aaa"}},
		{`root ::= "a"{2,}`, []string{"aa", "aaaaa"}, []string{"a"}},
		{`root ::= "a"{ 1 , 3 }`, []string{"a", "aaa"}, []string{"", "aaaa"}},
		{`root ::= "a"{,2}`, []string{"", "aa"}, []string{"aaa"}},
		{`root ::= "a"{0}`, []string{""}, []string{"a"}},
		{`root ::= "ab"*`, []string{"", "abab"}, []string{"abb"}},
		{`root ::= ("a" | "b"){2}`, []string{"ab", "ba", "aa"}, []string{"a", "abc"}},
		{`root ::= "a"+?`, []string{"", "aa"}, []string{"b"}},
		{`root ::= [a-c0-1]`, []string{"a", "c", "0"}, []string{"d", "2", "-"}},
		{`root ::= [^a-c]`, []string{"d", "é", "日", "\n"}, []string{"a", "b", "dd"}},
		{`root ::= [a-]`, []string{"a", "-"}, []string{"b"}},
		{`root ::= [-a]`, []string{"a", "-"}, []string{"b"}},
		{`root ::= [\]\[\\^]+`, []string{"]", "[", `\`, "^"}, []string{"a"}},
		{`root ::= [\x41-\x43\u00e9\U0001F30B]+`, []string{"ABC", "é", "🌋"}, []string{"D", "e"}},
		{`root ::= [ぁ-ゟ]+`, []string{"ひらがな"}, []string{"カ", "a"}},
		{`root ::= "\"\\\n\t\r\x41\u0042\U00000043\[\]"`, []string{"\"\\\n\t\rABC[]"}, []string{""}},
		{`root ::= "\xe9"`, []string{"é"}, []string{"\xe9"}},
		{`root ::= .`, []string{"a", "é", "🌋", "\n"}, []string{"", "ab", "\xff"}},
		{`root ::= ""`, []string{""}, []string{"a"}},
		{`root ::= | "a"`, []string{"", "a"}, nil},
		{`root ::= "a" |`, []string{"", "a"}, nil},
		{`root ::= ()`, []string{""}, nil},
		{"root ::=\n  \"a\"\n", []string{"a"}, nil},
		{"root ::= \"a\" |\n  \"b\"", []string{"a", "b"}, nil},
		{"root ::= \"a\"\n  | \"b\"\n\n  # more\n  | \"c\"", []string{"a", "b", "c"}, []string{"ab"}},
		{"root ::= (\n \"a\" # first\n\n \"b\"\n)\r\n", []string{"ab"}, nil},
		{"# only\nroot ::= x-1 # trailing\nx-1 ::= \"x\"\nunused ::= \"y\"", []string{"x"}, []string{"y"}},
		{"root ::= x_y\nx_y::=\"x\"", []string{"x"}, nil},
		{"list ::= \"a\" | \"a\" \",\" list\nroot ::= list", []string{"a", "a,a,a"}, []string{"a,"}},
		{`root ::= "(" root ")" | "x"`, []string{"x", "((x))"}, []string{"((x)", "()"}},
		{jsonGrammar, []string{`{}`, `{"a":1}`, `{"a": [1, 2.5e1, "x\n\u00e9"], "b": {"c": null}}` + "\n"}, []string{`[]`, `{"a"}`, `{"a":1,}`, "{\"a\n\":1}"}},
		{arithmetic, []string{"a=1\n", "(x +1)*2 = y\nb=c\n"}, []string{"a", "a=\n", "1+=2\n"}},
	} {
		g, err := Compile(t.Context(), c.source, grammar.Limits{})
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		for _, text := range c.yes {
			if !matches(g, text) {
				t.Errorf("%s: %q is refused", c.source, text)
			}
		}
		for _, text := range c.not {
			if matches(g, text) {
				t.Errorf("%s: %q is accepted", c.source, text)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		source    string
		line, col int
		want      string
	}{
		{``, 1, 1, "root"},
		{"a ::= \"x\"\n", 2, 1, "root"},
		{`root ::= missing "a"`, 1, 10, `"missing" is not defined`},
		{"root ::= a\na ::= é", 2, 7, "found 'é'"},
		{`root = "a"`, 1, 6, "::="},
		{`root ::= "a`, 1, 10, "does not end"},
		{"root ::= \"a\n\"", 1, 10, "does not end on its line"},
		{`root ::= [a`, 1, 10, "does not end"},
		{`root ::= []`, 1, 10, "empty"},
		{`root ::= [z-a]`, 1, 11, "wrong way round"},
		{`root ::= "a" )`, 1, 14, "end of the rule"},
		{"root ::= (\n \"a\" ", 2, 6, "expected )"},
		{`root ::= *`, 1, 10, "nothing to repeat"},
		{`root ::= "a" | +`, 1, 16, "nothing to repeat"},
		{`root ::= ( ? )`, 1, 12, "nothing to repeat"},
		{`root ::= {2}`, 1, 10, "nothing to repeat"},
		{`root ::= "a"{`, 1, 14, "number"},
		{`root ::= "a"{}`, 1, 14, "number"},
		{`root ::= "a"{,}`, 1, 15, "number"},
		{`root ::= "a"{2`, 1, 15, "}"},
		{`root ::= "a"{3,2}`, 1, 13, "wrong way round"},
		{`root ::= "a"{99999999999999999999}`, 1, 13, "limit"},
		{`root ::= "a"{0,5000000}`, 1, 13, "limit"},
		{`root ::= "\q"`, 1, 11, "escape"},
		{`root ::= "\x4"`, 1, 11, "hexadecimal"},
		{`root ::= "\ud800"`, 1, 11, "no character"},
		{`root ::= "\UFFFFFFFF"`, 1, 11, "no character"},
		{`root ::= "\`, 1, 11, "escape"},
		{"root ::= \"\xff\"", 1, 11, "UTF-8"},
		{"root ::= \"a\"\nroot ::= \"b\"", 2, 1, "twice"},
		{`root ::= "a" x ::= "b"`, 1, 14, "own line"},
		{`root ::= <think>`, 1, 10, "tokens"},
		{`root ::= !<[1]>`, 1, 10, "tokens"},
		{"root ::= \"a\x00\"", 1, 12, "zero byte"},
		{"root ::= \"é\" \"日\" $", 1, 18, "found '$'"},
		{`root ::= ` + strings.Repeat("(", 65) + `"a"` + strings.Repeat(")", 65), 1, 74, "limit of 64"},
	} {
		_, err := Compile(t.Context(), c.source, grammar.Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: error %v", c.source, err)
		} else if e.Line != c.line || e.Col != c.col || !strings.Contains(e.Msg, c.want) {
			t.Errorf("%q: %v, want line %d, column %d, %q", c.source, e, c.line, c.col, c.want)
		}
	}
	var left *grammar.RecursionError
	for _, source := range []string{`root ::= root "a" | "b"`, "root ::= a? b\na ::= \"x\"\nb ::= c*\nc ::= root \"z\" | \"y\""} {
		if _, err := Compile(t.Context(), source, grammar.Limits{}); !errors.As(err, &left) {
			t.Errorf("%q: error %v", source, err)
		}
	}
}

// TestCaseC16 sends what case C16 does: each must end soon, in little memory, with an error that names the limit.
func TestCaseC16(t *testing.T) {
	var alts strings.Builder
	alts.WriteString(`root ::= "a0"`)
	for alts.Len() < 1<<20 {
		alts.WriteString(` | "a1"`)
	}
	// Below the limits a long list compiles, in as little memory.
	var long strings.Builder
	long.WriteString(`root ::= "a"`)
	for i := 0; long.Len() < 250_000; i++ {
		fmt.Fprintf(&long, ` | "a%d"`, i)
	}
	for name, source := range map[string]string{
		"long list":    long.String(),
		"groups":       `root ::= ` + strings.Repeat("(", 60_000) + `"a"` + strings.Repeat(")", 60_000),
		"open groups":  `root ::= ` + strings.Repeat("(", 60_000),
		"alternatives": alts.String(),
		"quantifiers":  `root ::= "a"` + strings.Repeat("{2}", 100_000),
		"rules":        "root ::= \"a\"\n" + strings.Repeat("a", 10) + strings.Repeat("\nb ::= root", 50_000),
		"many rules":   manyRules(50_000),
		"repetition":   `root ::= ((("a"{1000000}){1000000}){1000000}){1000001111}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := Compile(t.Context(), source, grammar.Limits{})
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		if (err == nil) != (name == "long list") {
			t.Errorf("%s: error %v", name, err)
		}
		mib := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %.90v (%v, %d MiB)", name, err, took, mib)
		if mib > 64 {
			t.Errorf("%s: %d MiB allocated", name, mib)
		}
	}
}

func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("r")
		for d := i; d > 0; d /= 26 {
			b.WriteByte(byte('a' + d%26))
		}
		b.WriteString(" ::= \"a\"\n")
	}
	return b.String()
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compile(ctx, `root ::= "a"`, grammar.Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// FuzzGBNF compiles any source under small limits and walks at random. Nothing may panic or take long, every error is
// of a known kind, and no state is a dead end unless a limit on threads was met.
func FuzzGBNF(f *testing.F) {
	for i, s := range []string{
		jsonGrammar, arithmetic, `root ::= ("a" | "aa"){0,50} "b"`, `root ::= "(" root ")" | "x" root?`, `root ::= [^\x00-\x1f]{2,} .`,
		`root ::= (a | b)* "c"` + "\na ::= \"x\"{0,3} b?\nb ::= [a-z] | \"\"", `root ::= "a"{2}{3}?`, `root ::= ((((("a"))*)*)*)*`,
	} {
		f.Add(s, uint64(i))
	}
	f.Fuzz(func(t *testing.T, source string, seed uint64) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		limits := grammar.Limits{Rules: 500, Size: 20_000, Depth: 100, Threads: 64, CacheBytes: 1, MaskWork: 100_000}
		g, err := Compile(ctx, source, limits)
		if err != nil {
			var e *Error
			var limit *grammar.LimitError
			var left *grammar.RecursionError
			if !errors.As(err, &e) && !errors.As(err, &limit) && !errors.As(err, &left) && !errors.Is(err, grammar.ErrUnsatisfiable) {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		rng := rand.New(rand.NewPCG(seed, 2))
		s := g.Start()
		var text []byte
		for range 100 {
			from := rng.IntN(256)
			fits := false
			for i := range 256 {
				c := byte(from + i)
				if next, n := g.Accept(s, []byte{c}); n == 1 {
					s, text, fits = next, append(text, c), true
					break
				}
			}
			if !fits {
				break
			}
		}
		if again, n := g.Accept(g.Start(), text); n != len(text) || g.Accepting(again) != g.Accepting(s) {
			t.Fatalf("%q: %q is accepted in steps and not at once", source, text)
		}
		if n := g.CacheBytes(); n > 8<<20 {
			t.Fatalf("%q: %d bytes are remembered", source, n)
		}
	})
}
