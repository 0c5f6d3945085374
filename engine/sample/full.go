package sample

import (
	"fmt"
	"math"
)

// negligible is how far below the best a logit, in natural units, adds nothing: e to the power
// of -60 times the largest vocabulary is less than the rounding of a float64.
const negligible = 60

// sampleAll chooses a token when there is no top-k. It goes through the row several times
// instead of sorting it.
func (s *Sampler) sampleAll(logits []float32) (int32, error) {
	top, err := maxLogit(logits)
	if err != nil {
		return 0, err
	}
	k := keep{
		least: max(s.leastLogit(top), top-negligible*float64(s.p.Temperature)),
		last:  math.MaxInt32,
	}
	if s.p.TopP < 1 {
		if c, ok := s.nucleus(logits, top); ok && float64(c.logit()) >= k.least {
			k = keep{float64(c.logit()), c.id()}
		}
	}
	return s.draw(logits, top, k), nil
}

// A keep says which tokens of a row can be drawn: those with a logit above least, and of
// those with just that one the ids up to last.
type keep struct {
	least float64
	last  int32
}

func (k keep) has(logit float32, id int) bool {
	l := float64(logit)
	return l > k.least || l == k.least && id <= int(k.last)
}

// The histogram of nucleus has this many bins to a natural unit of logit, and this
// many in all. The last takes everything beyond.
const (
	binsPerUnit = 16
	bins        = (negligible + 4) * binsPerUnit
)

// bin returns the bin of a logit.
func bin(logit float32, top float64) int {
	return int(min((top-float64(logit))*binsPerUnit, bins-1))
}

// nucleus returns the last token that top-p keeps; not ok means all of them. It adds up
// the probabilities by distance from the best logit, so that only the tokens
// at the distance where they reach top-p need sorting.
func (s *Sampler) nucleus(logits []float32, top float64) (last candidate, ok bool) {
	var mass [bins]float64
	for _, l := range logits {
		if d := float64(l) - top; d >= -negligible {
			mass[bin(l, top)] += exp(d)
		}
	}
	total := 0.0
	for _, m := range mass {
		total += m
	}
	want := float64(s.p.TopP) * total
	edge, sum := 0, 0.0
	for edge < bins-1 && sum+mass[edge] < want {
		sum += mass[edge]
		edge++
	}
	s.best = s.best[:0]
	for i, l := range logits {
		if bin(l, top) == edge && !math.IsInf(float64(l), -1) {
			s.best = append(s.best, makeCandidate(l, int32(i)))
		}
	}
	sortBest(s.best)
	for _, c := range s.best {
		last, ok = c, true
		if sum += exp(float64(c.logit()) - top); sum >= want {
			break
		}
	}
	return last, ok
}

// blockSize is the number of logits whose weights draw adds up at a time.
const blockSize = 1024

// draw takes one of the tokens to keep, in the order of their ids. It adds up the weights by
// blocks, so that only one block is gone through again.
func (s *Sampler) draw(logits []float32, top float64, k keep) int32 {
	s.blocks = s.blocks[:0]
	sum := 0.0
	scale := 1 / float64(s.p.Temperature)
	for from := 0; from < len(logits); from += blockSize {
		part := 0.0
		for i, l := range logits[from:min(from+blockSize, len(logits))] {
			if k.has(l, from+i) {
				part += weight(l, top, scale)
			}
		}
		s.blocks = append(s.blocks, part)
		sum += part
	}
	// The block that the random number falls into, or by rounding the last one of any weight.
	left, at := s.uniform()*sum, 0
	for b, part := range s.blocks {
		if part == 0 {
			continue
		}
		if at = b; left < part {
			break
		}
		left -= part
	}
	from, id := at*blockSize, int32(0)
	for i, l := range logits[from:min(from+blockSize, len(logits))] {
		if !k.has(l, from+i) {
			continue
		}
		if w := weight(l, top, scale); w > 0 {
			id = int32(from + i)
			if left -= w; left < 0 {
				break
			}
		}
	}
	return id
}

// maxLogit returns the largest of a row of logits.
func maxLogit(logits []float32) (float64, error) {
	top := float32(math.Inf(-1))
	for i, l := range logits {
		if l <= top {
			continue
		}
		if l != l {
			return 0, fmt.Errorf("sample: token %d: %w", i, ErrNaN)
		}
		if math.IsInf(float64(l), 1) {
			return 0, fmt.Errorf("sample: token %d: %w", i, ErrInfinite)
		}
		top = l
	}
	if math.IsInf(float64(top), -1) {
		return 0, fmt.Errorf("sample: %w", ErrNoCandidates)
	}
	return float64(top), nil
}
