package engine_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/schema"
)

// texts reads a stream.
func texts(t *testing.T, s *engine.Stream) (string, []engine.Token, engine.Result) {
	t.Helper()
	var b strings.Builder
	var all []engine.Token
	for tok, err := range s.Tokens() {
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(tok.Text)
		if tok.ID >= 0 {
			all = append(all, tok)
		}
	}
	res, err := s.Result()
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), all, res
}

// An answer under a schema is valid under it, whatever the model would rather say, and a grammar that the model's own
// answer fits changes nothing.
func TestGrammar(t *testing.T) {
	e := reference().open(t, demoConfig())
	prompt := e.Tokenizer().Encode("Capital of France?", true)
	ask := func(g *grammar.Grammar, temperature float32) (string, engine.Result) {
		t.Helper()
		r := greedy(prompt, 64)
		r.Grammar, r.Sample.Temperature, r.Sample.Seed, r.IgnoreEOG = g, temperature, 11, false
		s, err := e.Generate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		text, _, res := texts(t, s)
		return text, res
	}
	compile := func(make func(b *grammar.Builder) (grammar.Expr, error)) *grammar.Grammar {
		t.Helper()
		b := grammar.NewBuilder(grammar.Limits{})
		x, err := make(b)
		if err != nil {
			t.Fatal(err)
		}
		g, err := b.Compile(context.Background(), x)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	digit := compile(func(b *grammar.Builder) (grammar.Expr, error) {
		return schema.Build(context.Background(), b, []byte(`{"type":"object","properties":{"a":{"type":"integer","minimum":0,"maximum":9}},"required":["a"],"additionalProperties":false}`), schema.Options{})
	})
	for _, temperature := range []float32{0, 1, 2} {
		text, res := ask(digit, temperature)
		var v map[string]int
		if err := json.Unmarshal([]byte(text), &v); err != nil || len(v) != 1 || v["a"] < 0 || v["a"] > 9 || res.Reason != engine.ReasonStop {
			t.Errorf("temperature %v: %q, %v, %+v", temperature, text, err, res)
		}
	}
	free, _ := ask(nil, 0)
	if same, _ := ask(compile(func(*grammar.Builder) (grammar.Expr, error) {
		return grammar.Repeat(grammar.Runes(grammar.AnyRune...), 0, grammar.Unbounded), nil
	}), 0); same != free || free == "" {
		t.Errorf("%q under a grammar of any text, %q without", same, free)
	}
	if text, _ := ask(compile(func(*grammar.Builder) (grammar.Expr, error) { return grammar.Choice("yes", "no way"), nil }), 1); text != "yes" && text != "no way" {
		t.Errorf("%q is no choice", text)
	}
}

// Log-probabilities are those of the row that the token is drawn from, and asking for them changes no token.
func TestLogprobs(t *testing.T) {
	e := oneDevice(t).open(t, demoConfig())
	prompt := e.Tokenizer().Encode("Count from 3 to 9.", true)
	r := greedy(prompt, 6)
	plain, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := texts(t, plain)
	r.Logprobs, r.TopLogprobs = true, 3
	s, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	text, toks, _ := texts(t, s)
	if text != want || len(toks) != 6 {
		t.Fatalf("%q (%d tokens) with log-probabilities, %q without", text, len(toks), want)
	}
	session, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	feed := prompt
	for i, tok := range toks {
		row, err := session.Last(context.Background(), feed)
		if err != nil {
			t.Fatal(err)
		}
		sum, best := 0.0, float64(row[tok.ID])
		for _, x := range row {
			sum += math.Exp(float64(x) - best)
		}
		if lp := -math.Log(sum); math.Abs(lp-tok.Logprob) > 1e-3 {
			t.Errorf("token %d: %v, want %v", i, tok.Logprob, lp)
		}
		if len(tok.Top) != 3 || tok.Top[0].ID != tok.ID || tok.Top[0].Value != tok.Logprob || tok.Top[1].Value > tok.Top[0].Value || tok.Top[2].Value > tok.Top[1].Value {
			t.Errorf("token %d: %+v", i, tok)
		}
		feed = []int32{tok.ID}
	}
	r.TopLogprobs = engine.MaxTopLogprobs + 1
	if _, err := e.Generate(context.Background(), r); err == nil {
		t.Error("too many alternatives were taken")
	}
}

// A device and the reference agree on what the head reads.
func TestHidden(t *testing.T) {
	var want []float32
	for _, r := range []rig{reference(), oneDevice(t)} {
		e := r.open(t, demoConfig())
		prompt := e.Tokenizer().Encode("Count from 3 to 9.", true)
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		row, err := s.Hidden(context.Background(), prompt)
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		if len(row) != e.Model().Embed {
			t.Fatalf("%s: a row of %d, want %d", r.name, len(row), e.Model().Embed)
		}
		if want == nil {
			want = row
			continue
		}
		for i := range row {
			if math.Abs(float64(row[i]-want[i])) > 2e-3*(1+math.Abs(float64(want[i]))) {
				t.Fatalf("%s: value %d is %v, the reference has %v", r.name, i, row[i], want[i])
			}
		}
	}
}
