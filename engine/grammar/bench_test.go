package grammar_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/grammar"
)

// BenchmarkMask measures masks of the Qwen3 vocabulary that are not remembered, at the places of the table in the
// specification. The time per operation includes compiling; see the median in µs.
func BenchmarkMask(b *testing.B) {
	v := realVocabulary(b)
	const object = `{"type":"object"}`
	const named = `{"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer","minimum":0,"maximum":999}},"required":["name","n"]}`
	for _, c := range []struct{ name, schema, text string }{
		{"value", `true`, ``},
		{"open", object, `{`},
		{"string", object, `{"abc":"de`},
		{"bounded", `{"type":"string","maxLength":200}`, `"de`},
		{"ending", `{"type":"string","maxLength":10}`, `"de`},
		{"pattern", `{"type":"string","pattern":"^[\\p{L} ]{1,30}$"}`, `"de`},
		{"key", named, `{"`},
		{"number", named, `{"name":"x","n":`},
	} {
		b.Run(c.name, func(b *testing.B) {
			var times []time.Duration
			count := 0
			for b.Loop() {
				b.StopTimer()
				g := fromSchema(b, c.schema, grammar.Limits{})
				s, n := g.Accept(g.Start(), []byte(c.text))
				if n != len(c.text) {
					b.Fatal(n)
				}
				b.StartTimer()
				start := time.Now()
				m, err := g.Mask(s, v)
				times = append(times, time.Since(start))
				if err != nil {
					b.Fatal(err)
				}
				count = m.Count()
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "median-µs")
			b.ReportMetric(float64(times[0].Nanoseconds())/1e3, "least-µs")
			b.ReportMetric(float64(count), "tokens")
		})
	}
}

// BenchmarkMaskText measures the mask of the free text of a tool's parameter, and of free text before a trigger.
func BenchmarkMaskText(b *testing.B) {
	v := realVocabulary(b)
	for name, build := range map[string]func(*grammar.Builder) grammar.Expr{
		"parameter": func(b *grammar.Builder) grammar.Expr { return b.Until("\n</parameter>", true) },
		"thinking":  func(b *grammar.Builder) grammar.Expr { return b.Until("</think>", false) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				bld := grammar.NewBuilder(grammar.Limits{})
				g, err := bld.Compile(b.Context(), build(bld))
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := g.Mask(g.Start(), v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMaskAgain(b *testing.B) {
	v := realVocabulary(b)
	g := fromSchema(b, `{"type":"object"}`, grammar.Limits{})
	s, _ := g.Accept(g.Start(), []byte(`{"abc":"de`))
	for b.Loop() {
		if _, err := g.Mask(s, v); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAccept walks over a document of 1 KiB that has been seen before, token by token of 4 bytes.
func BenchmarkAccept(b *testing.B) {
	g := fromSchema(b, `{"type":"array"}`, grammar.Limits{})
	text := []byte("[" + strings.Repeat(`{"name":"Oslo","population":709037,"tags":["city","Norway"],"x":null},`, 14) + "1]")
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s := g.Start()
		for p := range slices.Chunk(text, 4) {
			next, n := g.Accept(s, p)
			if n != len(p) {
				b.Fatal(n)
			}
			s = next
		}
	}
}

func BenchmarkVocabulary(b *testing.B) {
	tokens, err := qwen3()
	if err != nil {
		b.Skip(err)
	}
	for b.Loop() {
		newVocabulary(b, tokens)
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		fromSchema(b, `{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
			"when":{"type":"string","format":"date-time"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["name"]}`, grammar.Limits{})
	}
}
