package sample

import (
	"fmt"
	"math"
)

// A Logprob is the natural logarithm of the probability of a token. It is minus infinity for
// a token that cannot be chosen.
type Logprob struct {
	ID    int32
	Value float64
}

// LogSumExp returns the natural logarithm of the sum of the exponentials of a row of logits,
// computed in float64: a logit less this is the log-probability of its token.
func LogSumExp(logits []float32) (float64, error) {
	top, err := maxLogit(logits)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, l := range logits {
		if d := float64(l) - top; d >= -negligible {
			sum += exp(d)
		}
	}
	return top + math.Log(sum), nil
}

// Logprobs returns the log-probability of one token of a row of logits, before any
// penalty or temperature, and appends those of the n most likely ones, the most likely first.
func Logprobs(dst []Logprob, logits []float32, id int32, n int) (value float64, top []Logprob, err error) {
	if id < 0 || int(id) >= len(logits) {
		return 0, dst, fmt.Errorf("sample: token %d is outside the %d logits", id, len(logits))
	}
	norm, err := LogSumExp(logits)
	if err != nil {
		return 0, dst, err
	}
	if n > 0 {
		var few [MaxCandidates]candidate
		best, err := appendBest(few[:0], logits, n)
		if err != nil {
			return 0, dst, err
		}
		for _, c := range best {
			dst = append(dst, Logprob{c.id(), float64(c.logit()) - norm})
		}
	}
	return float64(logits[id]) - norm, dst, nil
}
