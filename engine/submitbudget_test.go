package engine_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
)

// c07 A: while a prompt of 4096 tokens goes in, submissions keep to a budget of 50 ms although attention takes longer with each
// token. It measures time, so it asks for CALDERA_LONG and a machine that nobody else uses. scheduler's TestPaceRandom has
// the same bar for times that are made up. 2048 rows are not possible: 512 are the most of a step.
func TestCaseC07Budget(t *testing.T) {
	if os.Getenv("CALDERA_LONG") == "" {
		t.Skip("measures time; set CALDERA_LONG=1")
	}
	const budget, tokens = 50 * time.Millisecond, 4096
	prompt := make([]int32, tokens)
	for i := range prompt {
		prompt[i] = int32(i*131%4000 + 1)
	}
	for _, r := range devices(t, "auto") {
		for _, batch := range []int{64, 512} {
			t.Run(fmt.Sprintf("%s/%d", r.name, batch), func(t *testing.T) {
				cfg := t35.config(t)
				cfg.Context, cfg.Batch, cfg.SubmitBudget = tokens+16, batch, budget
				e, err := engine.Open(r.config(cfg)) // not closed at the end of all: the next one would be slower
				if err != nil {
					t.Fatal(err)
				}
				st, err := e.Generate(context.Background(), greedy(prompt, 8))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := collect(st); err != nil || len(got) != 8 {
					t.Errorf("%d tokens, %v", len(got), err)
				}
				p := e.Pace()
				t.Logf("%d submissions, %d of them over %v, the longest %v", p.Timed, p.Over, 2*budget, p.Longest.Round(time.Millisecond))
				if p.Timed < tokens/batch || p.Over*100 > p.Timed {
					t.Errorf("%d of %d submissions took more than twice the budget", p.Over, p.Timed)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
