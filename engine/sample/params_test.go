package sample

import (
	"errors"
	"slices"
	"testing"
)

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		field string // "" for valid
		edit  func(p *Params)
	}{
		{"", func(p *Params) {}},
		{"", func(p *Params) { *p = Defaults(true) }},
		{"", func(p *Params) { *p = Defaults(false) }},
		{"", func(p *Params) { p.Temperature = 0; p.TopP = 0; p.MinP = 0; p.TopK = 0 }},
		{"", func(p *Params) { p.Temperature = 2; p.TopP = 1; p.MinP = 1; p.TopK = -1; p.RepeatLastN = -1 }},
		{"", func(p *Params) { p.PresencePenalty = -2; p.FrequencyPenalty = 2; p.RepetitionPenalty = 10 }},
		{"", func(p *Params) { p.LogitBias = []Bias{{0, -inf}, {1 << 30, 1e30}} }},
		{"", func(p *Params) { p.TopK = 1 << 60; p.RepeatLastN = 1 << 60 }},
		{"temperature", func(p *Params) { p.Temperature = -0.1 }},
		{"temperature", func(p *Params) { p.Temperature = 2.1 }},
		{"temperature", func(p *Params) { p.Temperature = nan }},
		{"temperature", func(p *Params) { p.Temperature = inf }},
		{"top_k", func(p *Params) { p.TopK = -2 }},
		{"top_p", func(p *Params) { p.TopP = 1.1 }},
		{"top_p", func(p *Params) { p.TopP = nan }},
		{"min_p", func(p *Params) { p.MinP = -0.1 }},
		{"repeat_penalty", func(p *Params) { p.RepetitionPenalty = 0 }},
		{"repeat_penalty", func(p *Params) { p.RepetitionPenalty = nan }},
		{"repeat_penalty", func(p *Params) { p.RepetitionPenalty = 11 }},
		{"presence_penalty", func(p *Params) { p.PresencePenalty = 2.1 }},
		{"frequency_penalty", func(p *Params) { p.FrequencyPenalty = -2.1 }},
		{"repeat_last_n", func(p *Params) { p.RepeatLastN = -2 }},
		{"logit_bias", func(p *Params) { p.LogitBias = []Bias{{-1, 0}} }},
		{"logit_bias", func(p *Params) { p.LogitBias = []Bias{{1, nan}} }},
		{"logit_bias", func(p *Params) { p.LogitBias = []Bias{{1, inf}} }},
		{"logit_bias", func(p *Params) { p.LogitBias = make([]Bias, maxBias+1) }},
	} {
		p := with(test.edit)
		_, err := New(p)
		var bad *ParamError
		switch {
		case test.field == "" && err != nil:
			t.Errorf("%+v: %v", p, err)
		case test.field != "" && (!errors.As(err, &bad) || bad.Field != test.field):
			t.Errorf("error %v, want one about %s", err, test.field)
		}
	}
	if _, err := New(Params{}); err == nil {
		t.Error("the zero value is valid")
	}
}

// The caller's biases are its own.
func TestParamsAreCopied(t *testing.T) {
	p := with(func(p *Params) { p.LogitBias = []Bias{{1, 50}} })
	s := mustNew(t, p)
	p.LogitBias[0].Value = -50
	s.Params().LogitBias[0].Value = -50
	if id, err := s.Sample([]float32{0, 0}); err != nil || id != 1 {
		t.Errorf("token %d (%v)", id, err)
	}
}

func TestPenalties(t *testing.T) {
	logits := []float32{2, 2, -2, -2, 0, 7}
	tests := []struct {
		name   string
		edit   func(p *Params)
		accept []int32
		want   []float32
	}{
		{"repetition", func(p *Params) { p.RepetitionPenalty = 2 }, []int32{0, 2, 2, 4}, []float32{1, 2, -4, -2, 0, 7}},
		{"presence", func(p *Params) { p.PresencePenalty = 1.5 }, []int32{0, 2, 2}, []float32{0.5, 2, -3.5, -2, 0, 7}},
		{"frequency", func(p *Params) { p.FrequencyPenalty = 0.5 }, []int32{0, 2, 2}, []float32{1.5, 2, -3, -2, 0, 7}},
		{"all", func(p *Params) { p.RepetitionPenalty = 2; p.PresencePenalty = 1; p.FrequencyPenalty = 0.5 },
			[]int32{0, 0}, []float32{-1, 2, -2, -2, 0, 7}},
		{"bias first", func(p *Params) { p.RepetitionPenalty = 2; p.LogitBias = []Bias{{0, 2}, {0, 1}} }, []int32{0}, []float32{2.5, 2, -2, -2, 0, 7}},
		{"outside", func(p *Params) { p.PresencePenalty = 1 }, []int32{-1, 6, 1 << 30}, logits},
		{"nothing yet", func(p *Params) { p.PresencePenalty = 1 }, nil, logits},
		{"window", func(p *Params) { p.PresencePenalty = 1; p.RepeatLastN = 2 }, []int32{0, 1, 2, 3}, []float32{2, 2, -3, -3, 0, 7}},
		{"window of repeats", func(p *Params) { p.FrequencyPenalty = 1; p.RepeatLastN = 3 }, []int32{0, 0, 1, 0, 1}, []float32{1, 0, -2, -2, 0, 7}},
		{"no window", func(p *Params) { p.PresencePenalty = 1; p.RepeatLastN = 0 }, []int32{0, 1}, logits},
		{"endless window", func(p *Params) { p.FrequencyPenalty = 0.01; p.RepeatLastN = -1 }, slices.Repeat([]int32{0}, 100), []float32{1, 2, -2, -2, 0, 7}},
	}
	for _, test := range tests {
		s := mustNew(t, with(test.edit))
		for _, id := range test.accept {
			s.Accept(id)
		}
		got := slices.Clone(logits)
		s.adjust(got)
		for i := range got {
			if d := got[i] - test.want[i]; d > 1e-5 || d < -1e-5 {
				t.Errorf("%s: logits %v, want %v", test.name, got, test.want)
				break
			}
		}
		s.restore(got)
		if !slices.Equal(got, logits) {
			t.Errorf("%s: logits %v after the call, want %v", test.name, got, logits)
		}
	}
	// Penalties that overflow are an error, and the row still comes back.
	s := mustNew(t, with(func(p *Params) { p.RepetitionPenalty = 1e-9 }))
	s.Accept(0)
	big := []float32{1e38, 0}
	if _, err := s.Sample(big); !errors.Is(err, ErrInfinite) || big[0] != 1e38 {
		t.Errorf("error %v, logits %v", err, big)
	}
}
