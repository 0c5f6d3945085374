// Package conformance holds an engine to the reference numbers of an oracle case.
package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/internal/oracle"
)

// Bars are the limits a result is held to.
type Bars struct {
	LastLogits    float64 // largest difference of a logit after the last token
	LogprobMedian float64 // of |difference| of a token's log-probability
	Logprob99     float64 // its 99 % quantile
	Margin        float64 // argmax must agree wherever the reference's two best logits are further apart
	ArgmaxOnly    bool    // hold to argmax and the greedy continuation alone
}

// BarsFor returns the limits for a case: activations and sums are float32, so only their order may differ
// from the reference. An F16 cache rounds keys and values, which is held to argmax and greedy text.
func BarsFor(c oracle.Case, kv string) Bars {
	b := Bars{LastLogits: 1e-2, LogprobMedian: 1e-3, Logprob99: 1e-2, Margin: 0.05, ArgmaxOnly: kv == "f16"}
	if slices.Equal(c.Types(), []string{"F32"}) {
		b.LastLogits = 1e-3
	}
	return b
}

// A Result is how far an engine is from a case's reference, over all prompts.
type Result struct {
	LastLogits    float64
	LogprobMedian float64
	Logprob99     float64
	LogprobMax    float64
	ArgmaxWrong   int // where the margin is above the bar
	Positions     int
	Greedy        int // tokens of the continuation reproduced
	GreedyWant    int
}

// Worst joins two results of the same case: the larger error of each kind, the fewer greedy tokens.
func (r Result) Worst(o Result) Result {
	return Result{
		LastLogits:    max(r.LastLogits, o.LastLogits),
		LogprobMedian: max(r.LogprobMedian, o.LogprobMedian),
		Logprob99:     max(r.Logprob99, o.Logprob99),
		LogprobMax:    max(r.LogprobMax, o.LogprobMax),
		ArgmaxWrong:   max(r.ArgmaxWrong, o.ArgmaxWrong),
		Positions:     max(r.Positions, o.Positions),
		Greedy:        min(r.Greedy, o.Greedy),
		GreedyWant:    max(r.GreedyWant, o.GreedyWant),
	}
}

// Failures lists the bars a result misses.
func (r Result) Failures(b Bars) []string {
	var f []string
	if !b.ArgmaxOnly {
		for _, x := range []struct {
			what      string
			got, want float64
		}{{"last logits", r.LastLogits, b.LastLogits}, {"log-probability median", r.LogprobMedian, b.LogprobMedian}, {"log-probability 99 %", r.Logprob99, b.Logprob99}} {
			if !(x.got <= x.want) {
				f = append(f, fmt.Sprintf("%s differ by %.3g, allowed %.3g", x.what, x.got, x.want))
			}
		}
	}
	if r.ArgmaxWrong > 0 {
		f = append(f, fmt.Sprintf("argmax differs at %d of %d positions", r.ArgmaxWrong, r.Positions))
	}
	if r.Greedy != r.GreedyWant {
		f = append(f, fmt.Sprintf("greedy text parts after %d of %d tokens", r.Greedy, r.GreedyWant))
	}
	return f
}

// Error returns the failures as one error, or nil.
func (r Result) Error(b Bars) error {
	if f := r.Failures(b); len(f) > 0 {
		return fmt.Errorf("%s", strings.Join(f, "; "))
	}
	return nil
}

// Check runs every prompt of a case through an engine that has the case's model open.
func Check(ctx context.Context, e *engine.Engine, c oracle.Case, b Bars) (Result, error) {
	var r Result
	var diffs []float64
	s, err := e.NewSession()
	if err != nil {
		return r, err
	}
	defer s.Close()
	for _, p := range c.Prompts {
		s.Reset()
		err := s.Logits(ctx, p.Tokens, func(i int, logits []float32) error {
			if len(logits) != c.NVocab {
				return fmt.Errorf("%d logits, the case has %d", len(logits), c.NVocab)
			}
			r.Positions++
			if argmax(logits) != p.Argmax[i] && p.Top2Margin[i] > b.Margin {
				r.ArgmaxWrong++
			}
			if i < len(p.NextLogprob) {
				diffs = append(diffs, math.Abs(logprob(logits, p.Tokens[i+1])-p.NextLogprob[i]))
			}
			if i == len(p.Tokens)-1 {
				for j, v := range logits {
					d := math.Abs(float64(v) - float64(p.LastLogits[j]))
					if !(d <= r.LastLogits) {
						r.LastLogits = d
					}
				}
			}
			return nil
		})
		if err != nil {
			return r, fmt.Errorf("prompt %s: %w", p.Name, err)
		}
		if len(p.Continuation) > 0 {
			n, err := greedy(ctx, s, p)
			if err != nil {
				return r, fmt.Errorf("greedy: %w", err)
			}
			r.Greedy += n
			r.GreedyWant += len(p.Continuation)
		}
	}
	slices.Sort(diffs)
	if n := len(diffs); n > 0 {
		r.LogprobMedian, r.Logprob99, r.LogprobMax = diffs[n/2], diffs[min(n-1, n*99/100)], diffs[n-1]
	}
	return r, nil
}

// Divergence is the mean over all positions of a case's prompts of the KL divergence, in nats, of an engine's distribution from
// another's, which has the case's model open as well and stands for its reference.
func Divergence(ctx context.Context, reference, e *engine.Engine, c oracle.Case) (float64, error) {
	sum, n := 0.0, 0
	var want [][]float32
	for _, p := range c.Prompts {
		for _, from := range []*engine.Engine{reference, e} {
			s, err := from.NewSession()
			if err != nil {
				return 0, err
			}
			err = s.Logits(ctx, p.Tokens, func(i int, logits []float32) error {
				if from == reference {
					want = append(want[:i], slices.Clone(logits))
					return nil
				}
				sum, n = sum+divergence(want[i], logits), n+1
				return nil
			})
			s.Close()
			if err != nil {
				return 0, fmt.Errorf("prompt %s: %w", p.Name, err)
			}
		}
	}
	return sum / float64(max(n, 1)), nil
}

// divergence is the KL divergence of q's distribution from p's, of logits.
func divergence(p, q []float32) float64 {
	pm, qm, ps, qs := float64(p[argmax(p)]), float64(q[argmax(q)]), 0.0, 0.0
	for i := range p {
		ps, qs = ps+math.Exp(float64(p[i])-pm), qs+math.Exp(float64(q[i])-qm)
	}
	sum := 0.0
	for i := range p {
		a, b := float64(p[i])-pm-math.Log(ps), float64(q[i])-qm-math.Log(qs)
		sum += math.Exp(a) * (a - b)
	}
	return sum
}

// greedy decodes one token at a time and returns how many of the continuation's tokens come out.
func greedy(ctx context.Context, s *engine.Session, p oracle.Prompt) (int, error) {
	s.Reset()
	next := p.Tokens[:p.NPrompt]
	for i, want := range p.Continuation {
		top, err := s.Top(ctx, next, 1, nil)
		if err != nil {
			return i, err
		}
		if len(top) == 0 || top[0].ID != want {
			return i, nil
		}
		next = []int32{want}
	}
	return len(p.Continuation), nil
}

func argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// logprob is the natural logarithm of a token's probability, in float64.
func logprob(logits []float32, id int32) float64 {
	top := float64(logits[argmax(logits)])
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}
