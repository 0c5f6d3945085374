package engine

import (
	"context"
	"fmt"
	"math"
)

// A Perplexity is how well a model predicts a text.
type Perplexity struct {
	NLL    []float32 // negative log-likelihood of each scored token, nats, in order
	Chunks int
	Chunk  int // tokens of a chunk
}

// Mean is the mean negative log-likelihood in nats.
func (p Perplexity) Mean() float64 {
	if len(p.NLL) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range p.NLL {
		sum += float64(v)
	}
	return sum / float64(len(p.NLL))
}

// PPL is the perplexity, the exponential of the mean.
func (p Perplexity) PPL() float64 { return math.Exp(p.Mean()) }

// Perplexity scores tokens in chunks, each from a fresh state: tokens 1.. of a chunk are scored given those
// before them in it. A last chunk that is not full is left out. Progress, if set, is called after each
// chunk.
func (e *Engine) Perplexity(ctx context.Context, tokens []int32, chunk int, progress func(done, total int, soFar Perplexity)) (Perplexity, error) {
	p := Perplexity{Chunk: chunk}
	if chunk < 2 || chunk > e.cfg.Context {
		return p, fmt.Errorf("chunk of %d tokens: use 2 to the context, %d", chunk, e.cfg.Context)
	}
	if len(tokens) < chunk {
		return p, fmt.Errorf("%d tokens are less than a chunk of %d", len(tokens), chunk)
	}
	s, err := e.NewSession()
	if err != nil {
		return p, err
	}
	defer s.Close()
	total := len(tokens) / chunk
	for c := range total {
		part := tokens[c*chunk : (c+1)*chunk]
		s.Reset()
		err := s.Logits(ctx, part, func(i int, logits []float32) error {
			if i+1 < len(part) {
				p.NLL = append(p.NLL, float32(-logProbability(logits, part[i+1])))
			}
			return nil
		})
		if err != nil {
			return p, fmt.Errorf("chunk %d: %w", c, err)
		}
		p.Chunks++
		if progress != nil {
			progress(c+1, total, p)
		}
	}
	return p, nil
}

// logProbability is the natural logarithm of a token's softmax probability, summed in float64.
func logProbability(logits []float32, id int32) float64 {
	top := math.Inf(-1)
	for _, v := range logits {
		top = max(top, float64(v))
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}
