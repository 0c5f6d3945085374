package sample

import (
	"fmt"
	"math"
)

// MaxCandidates is the largest top-k that can be sampled from candidates selected on the
// device instead of a full row of logits.
const MaxCandidates = 64

// Params says how to choose tokens. The zero value is not valid; start from Defaults
// or Neutral.
type Params struct {
	// Temperature divides the logits, 0 to 2. At 0 the best token is taken, whatever
	// TopK, TopP and MinP are.
	Temperature float32
	// TopK keeps the k best tokens; 0 or -1 keeps all.
	TopK int
	// TopP keeps the best tokens whose probabilities add up to it, 0 to 1, and at
	// least one token; 1 keeps all.
	TopP float32
	// MinP drops tokens whose probability is below this share of the best one's, 0 to 1.
	MinP float32

	// RepetitionPenalty divides a positive logit of a token seen before and multiplies
	// a negative one, above 0 and up to 10; 1 is off.
	RepetitionPenalty float32
	// PresencePenalty is subtracted from the logit of a token seen before, -2 to 2.
	PresencePenalty float32
	// FrequencyPenalty is subtracted once for each time a token was seen, -2 to 2.
	FrequencyPenalty float32
	// RepeatLastN is how many of the last tokens given to Accept the three penalties
	// look at; 0 is none and -1 is all.
	RepeatLastN int

	// LogitBias is added to logits before anything else.
	LogitBias []Bias

	// Seed starts the random numbers: the same seed and the same logits give the
	// same tokens.
	Seed uint64
}

// A Bias is added to the logit of one token. Minus infinity means never.
type Bias struct {
	ID    int32
	Value float32
}

// maxBias bounds the number of biases, each of which costs time at every token.
const maxBias = 1 << 16

// Defaults returns the sampling that the Qwen model cards recommend for answers with or
// without thinking. The window of the penalties is llama.cpp's default, 64 tokens.
func Defaults(thinking bool) Params {
	p := Neutral()
	p.TopK = 20
	if thinking {
		p.Temperature, p.TopP = 1, 0.95
	} else {
		p.Temperature, p.TopP, p.PresencePenalty = 0.7, 0.8, 1.5
	}
	return p
}

// Neutral returns parameters that draw from the model's own distribution.
func Neutral() Params {
	return Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, RepeatLastN: 64}
}

// A ParamError is a parameter out of range.
type ParamError struct {
	Field string // as clients name it, such as "top_p"
	Value any
	Want  string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("sample: %s is %v, must be %s", e.Field, e.Value, e.Want)
}

// Validate returns a *ParamError for the first parameter out of range.
func (p *Params) Validate() error {
	for _, f := range []struct {
		name   string
		value  float32
		lo, hi float32
	}{
		{"temperature", p.Temperature, 0, 2},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"presence_penalty", p.PresencePenalty, -2, 2},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2},
	} {
		if !(f.value >= f.lo && f.value <= f.hi) { // not a number is out of range too
			return &ParamError{f.name, f.value, fmt.Sprintf("%g to %g", f.lo, f.hi)}
		}
	}
	if !(p.RepetitionPenalty > 0 && p.RepetitionPenalty <= 10) {
		return &ParamError{"repeat_penalty", p.RepetitionPenalty, "above 0 and at most 10"}
	}
	if p.TopK < -1 {
		return &ParamError{"top_k", p.TopK, "-1 or more"}
	}
	if p.RepeatLastN < -1 {
		return &ParamError{"repeat_last_n", p.RepeatLastN, "-1 or more"}
	}
	if len(p.LogitBias) > maxBias {
		return &ParamError{"logit_bias", fmt.Sprintf("%d entries", len(p.LogitBias)), fmt.Sprintf("at most %d", maxBias)}
	}
	for _, b := range p.LogitBias {
		if b.ID < 0 {
			return &ParamError{"logit_bias", fmt.Sprintf("for token %d", b.ID), "for tokens of the vocabulary"}
		}
		if v := float64(b.Value); math.IsNaN(v) || math.IsInf(v, 1) {
			return &ParamError{"logit_bias", b.Value, "a number or minus infinity"}
		}
	}
	return nil
}

// penalizes reports whether tokens seen before count.
func (p *Params) penalizes() bool {
	return p.RepeatLastN != 0 && (p.RepetitionPenalty != 1 || p.PresencePenalty != 0 || p.FrequencyPenalty != 0)
}
