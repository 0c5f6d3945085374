package load

import (
	"math"
	"math/rand/v2"
	"slices"
)

// maxKept is the most values that samples keep, 4 bytes each.
const maxKept = 1 << 21

// samples collects values. Number, mean, deviation and maximum are of all of them; percentiles are, once there are more than
// maxKept, those of a random choice of that many, in which each value is as likely as any other.
type samples struct {
	n             int
	mean, sq, max float64 // sq is the sum of squared differences from the mean
	kept          []float32
	most          int // maxKept unless set
	random        *rand.Rand
}

// add adds a value; the mean and the squares follow Welford's recurrence.
func (s *samples) add(v float64) {
	s.n++
	d := v - s.mean
	s.mean += d / float64(s.n)
	s.sq += d * (v - s.mean)
	if s.n == 1 || v > s.max {
		s.max = v
	}
	if s.most == 0 {
		s.most = maxKept
	}
	if len(s.kept) < s.most {
		s.kept = append(s.kept, float32(v))
		return
	}
	if s.random == nil {
		s.random = rand.New(rand.NewPCG(1, 2))
	}
	if i := s.random.IntN(s.n); i < s.most {
		s.kept[i] = float32(v)
	}
}

// A Summary describes values of a kind, all in the same unit. All is 0 when N is.
type Summary struct {
	N                  int
	Mean, Std          float64 // Std is the sample standard deviation (n-1)
	P50, P90, P95, P99 float64
	Max                float64
}

// summary sums the values up.
func (s *samples) summary() Summary {
	x := Summary{N: s.n, Mean: s.mean, Max: s.max}
	if s.n > 1 {
		x.Std = math.Sqrt(s.sq / float64(s.n-1))
	}
	slices.Sort(s.kept) // the order of what is kept means nothing
	x.P50, x.P90 = percentile(s.kept, 50), percentile(s.kept, 90)
	x.P95, x.P99 = percentile(s.kept, 95), percentile(s.kept, 99)
	return x
}

// percentile is the p-th percentile of sorted values, between two of them by proportion, as NumPy's default has it.
func percentile(sorted []float32, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p / 100 * float64(len(sorted)-1)
	i := int(at)
	lo, hi := float64(sorted[i]), float64(sorted[min(i+1, len(sorted)-1)])
	return lo + (hi-lo)*(at-float64(i))
}
