// Package sample chooses the next token from a model's logits.
//
// The steps and their order are those of llama.cpp's default chain: logit bias,
// penalties, top-k, top-p, min-p, temperature, then the draw. Each step sees the
// probabilities renormalised over what the one before has kept, and top-p and min-p see
// them before the temperature.
package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Errors about logits, wrapped with the token where there is one.
var (
	ErrNaN          = errors.New("logit is not a number")
	ErrInfinite     = errors.New("logit is infinite")
	ErrNoCandidates = errors.New("no token can be chosen")
)

// A Sampler chooses the tokens of one sequence. It keeps the tokens that the penalties
// look at and the state of its random numbers, so each sequence needs its own; it is
// not safe for concurrent use. It keeps no copy of a row.
type Sampler struct {
	p        Params
	random   rand.PCG
	history  history
	penalize bool

	best   []candidate
	blocks []float64
	saved  []savedLogit
}

// stream is the second half of the seed of the random numbers.
const stream = 0x63616c64657261

// New returns a sampler. The error is a *ParamError.
func New(p Params) (*Sampler, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p.LogitBias = slices.Clone(p.LogitBias)
	s := &Sampler{p: p, penalize: p.penalizes()}
	s.random.Seed(p.Seed, stream)
	s.history.window = p.RepeatLastN
	return s, nil
}

// Params returns the parameters of the sampler.
func (s *Sampler) Params() Params {
	p := s.p
	p.LogitBias = slices.Clone(p.LogitBias)
	return p
}

// NeedsFullRow reports whether Sample must be used; otherwise SampleTop will do.
func (s *Sampler) NeedsFullRow() bool { return s.CandidatesNeeded() == 0 }

// CandidatesNeeded returns the number of best tokens that SampleTop needs, 1 to
// MaxCandidates, or 0 when only a full row will do: with penalties, biases, no top-k or
// one above MaxCandidates.
func (s *Sampler) CandidatesNeeded() int {
	switch {
	case s.penalize || len(s.p.LogitBias) > 0:
		return 0
	case s.p.Temperature == 0:
		return 1
	case s.p.TopK >= 1 && s.p.TopK <= MaxCandidates:
		return s.p.TopK
	}
	return 0
}

// Accept tells the sampler that a token is now part of the sequence. Sample does not
// do so itself, as a token drawn to check a draft may be thrown away. Tokens of the prompt
// count for the penalties only when they are given too.
func (s *Sampler) Accept(id int32) {
	if s.penalize {
		s.history.add(id)
	}
}

// Sample chooses a token from the logits of the whole vocabulary. A logit of minus
// infinity is never chosen. Biases and penalties change the row, but only
// during the call.
//
// It takes one random number, and none at temperature 0, where of several best
// tokens the lowest is chosen.
func (s *Sampler) Sample(logits []float32) (int32, error) {
	if len(s.p.LogitBias) > 0 || s.penalize {
		s.adjust(logits)
		defer s.restore(logits)
	}
	k := s.p.TopK
	switch {
	case s.p.Temperature == 0:
		k = 1
	case k < 1 || k >= len(logits) && k > MaxCandidates:
		return s.sampleAll(logits)
	}
	var err error
	if s.best, err = appendBest(s.best[:0], logits, k); err != nil {
		return 0, err
	}
	return s.choose(s.best)
}

// SampleTop chooses a token from the best ones and their logits, the best first: at
// least CandidatesNeeded of them, or the whole vocabulary where that is smaller.
// From the same logits it chooses what Sample does.
func (s *Sampler) SampleTop(ids []int32, logits []float32) (int32, error) {
	n := s.CandidatesNeeded()
	if n == 0 {
		return 0, errors.New("sample: these parameters need all logits")
	}
	if len(ids) != len(logits) {
		return 0, fmt.Errorf("sample: %d candidates with %d logits", len(ids), len(logits))
	}
	s.best = s.best[:0]
	for i, l := range logits {
		if math.IsNaN(float64(l)) {
			return 0, fmt.Errorf("sample: token %d: %w", ids[i], ErrNaN)
		}
		if ids[i] < 0 {
			return 0, fmt.Errorf("sample: candidate %d has the token id %d", i, ids[i])
		}
		if !math.IsInf(float64(l), -1) {
			s.best = append(s.best, makeCandidate(l, ids[i]))
		}
	}
	// A device may order equal logits in any way.
	sortBest(s.best)
	return s.choose(s.best[:min(n, len(s.best))])
}

// choose applies top-p, min-p and temperature to candidates, the best first, and draws.
func (s *Sampler) choose(best []candidate) (int32, error) {
	if len(best) == 0 {
		return 0, fmt.Errorf("sample: %w", ErrNoCandidates)
	}
	top := float64(best[0].logit())
	if math.IsInf(top, 1) {
		return 0, fmt.Errorf("sample: token %d: %w", best[0].id(), ErrInfinite)
	}
	if s.p.Temperature == 0 {
		return best[0].id(), nil
	}
	if s.p.TopP < 1 {
		total := 0.0
		for _, c := range best {
			total += exp(float64(c.logit()) - top)
		}
		want := float64(s.p.TopP) * total
		sum := 0.0
		for i, c := range best {
			if sum += exp(float64(c.logit()) - top); sum >= want {
				best = best[:i+1]
				break
			}
		}
	}
	if least := s.leastLogit(top); !math.IsInf(least, -1) {
		n := 1
		for n < len(best) && float64(best[n].logit()) >= least {
			n++
		}
		best = best[:n]
	}
	scale := 1 / float64(s.p.Temperature)
	sum := 0.0
	for _, c := range best {
		sum += weight(c.logit(), top, scale)
	}
	left := s.uniform() * sum
	for _, c := range best {
		if left -= weight(c.logit(), top, scale); left < 0 {
			return c.id(), nil
		}
	}
	// Rounding can leave a little; it belongs to the last token of any weight.
	for i := len(best) - 1; i > 0; i-- {
		if weight(best[i].logit(), top, scale) > 0 {
			return best[i].id(), nil
		}
	}
	return best[0].id(), nil
}

// leastLogit returns the logit that min-p asks for, minus infinity when it is off.
func (s *Sampler) leastLogit(top float64) float64 {
	return top + math.Log(float64(s.p.MinP)) // the logarithm of 0 is minus infinity
}

// weight returns the probability of a token relative to the best one's.
func weight(logit float32, top, scale float64) float64 {
	return exp((float64(logit) - top) * scale)
}

// uniform returns a random number from 0 up to but not including 1.
func (s *Sampler) uniform() float64 {
	return float64(s.random.Uint64()>>11) / (1 << 53)
}
