package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/calderaml/caldera/engine/grammar"
)

// A generator makes random schemas and with each a random text that is valid under it.
type generator struct {
	rng  *rand.Rand
	defs []string
}

func (g *generator) one(list ...string) string { return list[g.rng.IntN(len(list))] }

// sample makes a text; it may be called again and again, for items.
type sample func() string

// schema returns a schema and a maker of texts.
func (g *generator) schema(level int) (string, sample) {
	constant := func(text string) sample { return func() string { return text } }
	kinds := 16
	if level <= 0 {
		kinds = 9
	}
	switch g.rng.IntN(kinds) {
	case 0:
		return g.one(`{"type":"null"}`, `{"const":null}`), constant("null")
	case 1:
		return `{"type":"boolean"}`, func() string { return g.one("true", "false") }
	case 2:
		lo := g.rng.IntN(2000) - 1000
		hi := lo + g.rng.IntN(3000)
		text := fmt.Sprintf(`{"type":"integer","minimum":%d,"maximum":%d}`, lo, hi)
		return text, func() string { return fmt.Sprint(lo + g.rng.IntN(hi-lo+1)) }
	case 3:
		return `{"type":"integer"}`, func() string { return fmt.Sprint(int64(g.rng.Uint64()) >> g.rng.IntN(64)) }
	case 4:
		return `{"type":"number"}`, func() string {
			data, _ := json.Marshal(g.rng.NormFloat64() * []float64{1, 1e-9, 1e30, 1e6}[g.rng.IntN(4)])
			return string(data)
		}
	case 5:
		lo := g.rng.IntN(4)
		hi := lo + g.rng.IntN(10)
		return fmt.Sprintf(`{"type":"string","minLength":%d,"maxLength":%d}`, lo, hi), func() string {
			return quote(g.text(lo + g.rng.IntN(hi-lo+1)))
		}
	case 6:
		return `{"type":"string"}`, func() string { return quote(g.text(g.rng.IntN(12))) }
	case 7:
		values := []string{`"a"`, `"ab"`, `"b c"`, `1`, `-2.5`, `null`, `true`, `[1,"x"]`, `{"k":{"l":[]}}`, `"é\n"`}
		g.rng.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
		values = values[:1+g.rng.IntN(5)]
		return `{"enum":[` + strings.Join(values, ",") + `]}`, func() string { return g.one(values...) }
	case 8:
		switch g.rng.IntN(6) {
		case 0:
			return `{"type":"string","pattern":"^[a-z]{2,5}-\\d+$"}`, func() string { return g.one(`"ab-1"`, `"abcde-99"`) }
		case 1:
			return `{"type":"string","pattern":"x|\\\\"}`, func() string { return g.one(`"axb"`, `"\\"`, `"\"\\\n"`) }
		case 2:
			return `{"type":"string","format":"date-time"}`, func() string { return g.one(`"2024-02-29T01:02:03Z"`, `"1999-12-31T23:59:59.5-08:00"`) }
		case 3:
			return `{"type":"string","format":"date"}`, constant(`"2023-11-30"`)
		case 4:
			return `{"type":"string","format":"email"}`, constant(`"a.b@c-d.example"`)
		}
		return `{"type":"string","format":"uuid"}`, constant(`"123e4567-e89b-12d3-a456-426614174000"`)
	case 9, 10:
		return g.array(level)
	case 11, 12, 13:
		return g.object(level)
	case 14:
		a, x := g.schema(level - 1)
		b, y := g.schema(level - 1)
		return `{` + g.one(`"anyOf"`, `"anyOf"`, `"description":"d","anyOf"`) + `:[` + a + `,` + b + `]}`, func() string {
			if g.rng.IntN(2) == 0 {
				return x()
			}
			return y()
		}
	}
	// A definition, or a list that refers to itself.
	if g.rng.IntN(2) == 0 {
		s, x := g.schema(level - 1)
		g.defs = append(g.defs, s)
		return fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, len(g.defs)-1), x
	}
	s, x := g.schema(level - 1)
	n := len(g.defs)
	g.defs = append(g.defs, "")
	g.defs[n] = fmt.Sprintf(`{"type":"object","properties":{"v":%s,"next":{"$ref":"#/$defs/d%d"}},"required":["v"],"additionalProperties":false}`, s, n)
	return fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, n), func() string {
		text := `{"v":` + x() + `}`
		for range g.rng.IntN(4) {
			text = `{"v":` + x() + `,"next":` + text + `}`
		}
		return text
	}
}

func (g *generator) text(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(g.one("a", "b", "Z", "0", " ", "é", "日", "🌋", `"`, `\`, "/", "\n", "\t", "\x01", "\x7f", "\u2028"))
	}
	return b.String()
}

func (g *generator) array(level int) (string, sample) {
	item, x := g.schema(level - 1)
	lo := g.rng.IntN(3)
	hi := lo + g.rng.IntN(4)
	text := fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d`, item, lo, hi)
	var first []sample
	if g.rng.IntN(2) == 0 {
		var list []string
		for range 1 + g.rng.IntN(3) {
			s, y := g.schema(level - 1)
			list, first = append(list, s), append(first, y)
		}
		text += `,"prefixItems":[` + strings.Join(list, ",") + `]`
	}
	return text + `}`, func() string {
		var items []string
		for i := range lo + g.rng.IntN(hi-lo+1) {
			if i < len(first) {
				items = append(items, first[i]())
			} else {
				items = append(items, x())
			}
		}
		return `[` + strings.Join(items, ",") + `]`
	}
}

func (g *generator) object(level int) (string, sample) {
	names := []string{"a", "ab", "b", "name", "é", `q"`, "", "x/y"}
	g.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:g.rng.IntN(5)]
	var list, required []string
	var makers []sample
	needed := map[string]bool{}
	for _, n := range names {
		s, x := g.schema(level - 1)
		list, makers = append(list, quote(n)+":"+s), append(makers, x)
		if g.rng.IntN(2) == 0 {
			required, needed[n] = append(required, quote(n)), true
		}
	}
	text := `{"type":"object","properties":{` + strings.Join(list, ",") + `},"required":[` + strings.Join(required, ",") + `]`
	var extra sample
	switch g.rng.IntN(4) {
	case 0:
		text += `,"additionalProperties":false`
	case 1:
		s, x := g.schema(level - 1)
		text, extra = text+`,"additionalProperties":`+s, x
	case 2:
		text, extra = text+`,"additionalProperties":true`, func() string { return g.one("1", `"x"`, `{"y":[null]}`) }
	}
	if g.rng.IntN(3) == 0 && len(list) > 1 {
		// The same in two parts, if nothing else would change the meaning of one.
		if extra == nil && !strings.HasSuffix(text, "false") {
			text = `{"allOf":[{"type":"object","properties":{` + list[0] + `}},{"properties":{` + strings.Join(list[1:], ",") +
				`},"required":[` + strings.Join(required, ",") + `]}]`
		}
	}
	return text + `}`, func() string {
		var pairs []string
		for i, n := range names {
			if needed[n] || g.rng.IntN(2) == 0 {
				pairs = append(pairs, quote(n)+":"+makers[i]())
			}
		}
		if extra != nil {
			for i := range g.rng.IntN(3) {
				pairs = append(pairs, quote(fmt.Sprint(g.one("aa", "abc", "n", "z"), i))+":"+extra())
			}
		}
		return `{` + strings.Join(pairs, ",") + `}`
	}
}

func (g *generator) document(level int) (string, sample) {
	s, x := g.schema(level)
	if len(g.defs) > 0 {
		var defs []string
		for i, d := range g.defs {
			defs = append(defs, fmt.Sprintf(`"d%d":%s`, i, d))
		}
		s = `{"allOf":[` + s + `],"$defs":{` + strings.Join(defs, ",") + `}}`
	}
	return s, x
}

// validator compiles a schema with the reference validator, formats asserted.
func validator(t *testing.T, source string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(source))
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return s
}

func validate(s *jsonschema.Schema, text []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// walk goes through an automaton at random, with some bytes that end things more likely, until the text may end. It
// returns nil when it does not end soon.
func walk(rng *rand.Rand, g *grammar.Grammar, most int) []byte {
	s := g.Start()
	var text []byte
	for len(text) < most {
		if g.Accepting(s) && rng.IntN(3) == 0 {
			return text
		}
		if f := g.Forced(s, 50); len(f) > 0 {
			s, _ = g.Accept(s, f)
			text = append(text, f...)
			continue
		}
		fits := false
		for range 400 {
			c := byte(rng.Uint32())
			switch {
			case len(text) > most/3 && rng.IntN(2) == 0:
				c = `"}]0`[rng.IntN(4)]
			case rng.IntN(3) == 0:
				c = `"}],:{[-0189.eEtfnaebx\u `[rng.IntN(25)]
			}
			if next, n := g.Accept(s, []byte{c}); n == 1 {
				s, text, fits = next, append(text, c), true
				break
			}
		}
		if !fits {
			for c := range 256 {
				if next, n := g.Accept(s, []byte{byte(c)}); n == 1 {
					s, text, fits = next, append(text, byte(c)), true
					break
				}
			}
		}
		if !fits {
			if g.Accepting(s) {
				return text
			}
			panic(fmt.Sprintf("nothing can follow %q", text))
		}
	}
	return nil
}

// TestRandomSchemas checks both directions for random schemas: valid texts are accepted, and what random walks
// generate is valid.
func TestRandomSchemas(t *testing.T) {
	accepted, generated := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 11))
		gen := &generator{rng: rng}
		source, x := gen.document(3)
		v := validator(t, source)
		g, err := Compile(t.Context(), []byte(source), Options{}, grammar.Limits{CacheBytes: 1 << 20})
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, source, err)
		}
		spaced, err := Compile(t.Context(), []byte(source), Options{Whitespace: true}, grammar.Limits{CacheBytes: 1 << 20})
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, source, err)
		}
		for range 6 {
			text := x()
			if err := validate(v, []byte(text)); err != nil {
				t.Fatalf("seed %d: the generator made %s for %s: %v", seed, text, source, err)
			}
			if s, n := g.Accept(g.Start(), []byte(text)); n != len(text) || !g.Accepting(s) {
				t.Fatalf("seed %d: %s refuses %s after %d bytes", seed, source, text, n)
			}
			var pretty bytes.Buffer
			if json.Indent(&pretty, []byte(text), "", "  ") == nil && !matches(spaced, pretty.String()) {
				// Indent writes empty containers without a line inside, and so does the grammar.
				t.Fatalf("seed %d: %s refuses %s", seed, source, pretty.String())
			}
			accepted++
		}
		for i := range 8 {
			from := g
			if i%2 == 1 {
				from = spaced
			}
			text := walk(rng, from, 600)
			if text == nil {
				continue
			}
			generated++
			if err := validate(v, text); err != nil {
				t.Fatalf("seed %d: %s generates %q: %v", seed, source, text, err)
			}
			if !json.Valid(text) {
				t.Fatalf("seed %d: %q is not JSON", seed, text)
			}
		}
	}
	t.Logf("%d valid texts accepted, %d generated texts valid", accepted, generated)
	if generated < 1000 {
		t.Error("too few texts were generated")
	}
}

// FuzzSchema compiles anything under small limits and walks at random. Nothing may panic or take long, errors are of
// this package, and what is generated is valid if the reference validator takes the schema.
func FuzzSchema(f *testing.F) {
	for seed := range uint64(12) {
		gen := &generator{rng: rand.New(rand.NewPCG(seed, 13))}
		s, _ := gen.document(2)
		f.Add([]byte(s), seed)
	}
	f.Add([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#"},{"type":"array","items":{"$ref":"#/$defs/a"}}]}}}`), uint64(1))
	f.Add([]byte(`{"allOf":[{"anyOf":[{"minLength":1},{"type":"null"}]},{"oneOf":[{"pattern":"a"},{"const":1}]}]}`), uint64(2))
	f.Fuzz(func(t *testing.T, source []byte, seed uint64) {
		limits := grammar.Limits{Rules: 3000, Size: 50_000, Threads: 64, CacheBytes: 1, MaskWork: 100_000}
		start := time.Now()
		g, err := Compile(t.Context(), source, Options{Whitespace: seed%2 == 1}, limits)
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("%q takes %v", source, took)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		rng := rand.New(rand.NewPCG(seed, 17))
		s := g.Start()
		var text []byte
		for range 150 {
			from, fits := rng.IntN(256), false
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
		if n := g.CacheBytes(); n > 8<<20 {
			t.Fatalf("%q: %d bytes are remembered", source, n)
		}
		if !g.Accepting(s) {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q generates %q", source, text)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
		if err != nil {
			return
		}
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft2020)
		// oneOf is taken as anyOf, and strange keys change what the validator does.
		if bytes.Contains(source, []byte("oneOf")) || bytes.Contains(source, []byte(`$`)) || bytes.Contains(source, []byte(`\`)) {
			return
		}
		if c.AddResource("s.json", doc) != nil {
			return
		}
		v, err := c.Compile("s.json")
		if err != nil {
			return
		}
		if err := validate(v, text); err != nil {
			t.Fatalf("%q generates %q: %v", source, text, err)
		}
	})
}
