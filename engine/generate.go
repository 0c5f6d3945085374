package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine/sample"
)

// A Request asks a session to continue its sequence.
type Request struct {
	Prompt    []int32
	MaxTokens int // 0: until the end of the turn or of the context
	Sample    sample.Params
	IgnoreEOG bool // go on over end-of-turn tokens
}

// Reasons for which a generation ends.
const (
	ReasonStop    = "stop"    // the model ended its turn
	ReasonLength  = "length"  // the request's limit
	ReasonContext = "context" // the context is full
)

// A Generation is what a request cost and how it ended.
type Generation struct {
	PromptTokens int
	Tokens       int // generated
	PromptTime   time.Duration
	Time         time.Duration // of generating, from the first token's logits on
	Reason       string
}

// Generate feeds the prompt and then one token after the other, calling emit for each with the text that
// is complete so far; a token that ends inside a character carries an empty text. An end-of-turn token is
// not emitted. Generate returns what it did also when it returns an error.
func (s *Session) Generate(ctx context.Context, r Request, emit func(id int32, text string) error) (Generation, error) {
	var g Generation
	if r.MaxTokens < 0 {
		return g, fmt.Errorf("a limit of %d tokens", r.MaxTokens)
	}
	smp, err := sample.New(r.Sample)
	if err != nil {
		return g, err
	}
	var text interface {
		Push(id int32) string
		Flush() string
	} = noText{}
	if s.e.tok != nil {
		text = s.e.tok.NewStreamDecoder()
	}
	for _, t := range r.Prompt {
		smp.Accept(t)
	}
	start := time.Now()
	id, err := s.sample(ctx, smp, r.Prompt)
	if err != nil {
		return g, err
	}
	g.PromptTokens, g.PromptTime = len(r.Prompt), time.Since(start)
	start = time.Now()
	next := make([]int32, 1)
	for {
		if !r.IgnoreEOG && s.e.tok != nil && s.e.tok.IsEOG(id) {
			g.Reason = ReasonStop
			break
		}
		smp.Accept(id)
		g.Tokens++
		if err := emit(id, text.Push(id)); err != nil {
			g.Time = time.Since(start)
			return g, err
		}
		if r.MaxTokens > 0 && g.Tokens == r.MaxTokens {
			g.Reason = ReasonLength
			break
		}
		if s.pos >= s.e.cfg.Context {
			g.Reason = ReasonContext
			break
		}
		next[0] = id
		if id, err = s.sample(ctx, smp, next); err != nil {
			g.Time = time.Since(start)
			return g, err
		}
	}
	g.Time = time.Since(start)
	if tail := text.Flush(); tail != "" {
		return g, emit(-1, tail)
	}
	return g, nil
}

// sample feeds tokens and draws the next one, from the device's best candidates where those suffice.
func (s *Session) sample(ctx context.Context, smp *sample.Sampler, tokens []int32) (int32, error) {
	k := smp.CandidatesNeeded()
	if k == 0 {
		row, err := s.Last(ctx, tokens)
		if err != nil {
			return 0, err
		}
		id, err := smp.Sample(row)
		return id, explain(err)
	}
	var err error
	if s.cand, err = s.Top(ctx, tokens, k, s.cand[:0]); err != nil {
		return 0, err
	}
	if len(s.cand) == 0 {
		return 0, errors.New("the model gave no usable logits")
	}
	s.ids, s.logits = s.ids[:0], s.logits[:0]
	for _, c := range s.cand {
		s.ids, s.logits = append(s.ids, c.ID), append(s.logits, c.Logit)
	}
	id, err := smp.SampleTop(s.ids, s.logits)
	return id, explain(err)
}

// explain says what logits that cannot be sampled mean.
func explain(err error) error {
	if errors.Is(err, sample.ErrNaN) || errors.Is(err, sample.ErrInfinite) || errors.Is(err, sample.ErrNoCandidates) {
		return fmt.Errorf("the model's logits are not finite, its file may be damaged (caldera verify tells the device's part): %w", err)
	}
	return err
}

// noText stands in for a decoder where a model has no vocabulary.
type noText struct{}

func (noText) Push(int32) string { return "" }
func (noText) Flush() string     { return "" }
