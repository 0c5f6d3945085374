package engine

import (
	"context"
	"fmt"
	"math"
)

// A Perplexity is how well a model predicts a text.
type Perplexity struct {
	NLL    []float32 // negative log-likelihood of each scored token, nats, in order
	Best   []int32   // the most likely token in its place
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
				p.Best = append(p.Best, argmax(logits))
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

// A Comparison is how the scores of a text differ from those of another run over the same tokens and chunks.
type Comparison struct {
	Ratio    float64 `json:"ppl_ratio"`     // of the perplexities
	MeanDiff float64 `json:"nll_mean_diff"` // nats
	AbsDiff  float64 `json:"nll_abs_diff"`  // mean of the magnitudes of the differences, nats
	MaxDiff  float64 `json:"nll_max_diff"`
	SameBest float64 `json:"same_best"` // share of tokens for which the most likely one is the same
}

// Against compares scores with those of a base.
func (p Perplexity) Against(base Perplexity) (Comparison, error) {
	var c Comparison
	n := len(p.NLL)
	if n == 0 || n != len(base.NLL) || n != len(base.Best) || n != len(p.Best) || p.Chunk != base.Chunk {
		return c, fmt.Errorf("%d scores in chunks of %d cannot be compared with %d in chunks of %d", n, p.Chunk, len(base.NLL), base.Chunk)
	}
	for i := range p.NLL {
		d := float64(p.NLL[i]) - float64(base.NLL[i])
		c.MeanDiff += d / float64(n)
		c.AbsDiff += math.Abs(d) / float64(n)
		c.MaxDiff = max(c.MaxDiff, math.Abs(d))
		if p.Best[i] == base.Best[i] {
			c.SameBest += 1 / float64(n)
		}
	}
	c.Ratio = math.Exp(c.MeanDiff)
	return c, nil
}

// argmax is the id of the largest logit, the lowest of equal ones.
func argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
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
