package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// An answer ends before a stop string that lies across tokens, without another step; the tokens up to there are those
// of the same request without one.
func TestStop(t *testing.T) {
	e := reference().open(t, demoConfig())
	ask := func(stops ...string) (string, engine.Result) {
		t.Helper()
		r := greedy(e.Tokenizer().Encode("Count from 3 to 9.", true), 24)
		r.Stop = stops
		s, err := e.Generate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for tok, err := range s.Tokens() {
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(tok.Text)
		}
		res, err := s.Result()
		if err != nil {
			t.Fatal(err)
		}
		return b.String(), res
	}
	all, whole := ask()
	if whole.Reason != engine.ReasonLength || len(all) < 12 {
		t.Fatalf("%q, %+v", all, whole)
	}
	for _, at := range []int{1, len(all) / 3, len(all) / 2} {
		stop := all[at : at+6]
		want := all[:strings.Index(all, stop)]
		text, res := ask("never there", stop)
		if text != want || res.Reason != engine.ReasonStop || res.Stop != stop || res.Tokens >= whole.Tokens {
			t.Errorf("%q in %q: %q, %+v", stop, all, text, res)
		}
	}
	// What is held back at the end is given out.
	if text, res := ask(all[len(all)-3:] + "x"); text != all || res.Reason != engine.ReasonLength || res.Stop != "" {
		t.Errorf("%q, %+v", text, res)
	}
	r := greedy([]int32{1}, 4)
	r.Stop = []string{""}
	if _, err := e.Generate(context.Background(), r); err == nil {
		t.Error("an empty stop string was taken")
	}
}
