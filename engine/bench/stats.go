package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Mean is the arithmetic mean.
func Mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// StdDev is the sample standard deviation (n-1); 0 for fewer than two values.
func StdDev(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	m, sum := Mean(v), 0.0
	for _, x := range v {
		sum += (x - m) * (x - m)
	}
	return math.Sqrt(sum / float64(len(v)-1))
}

// Median is the middle value, or the mean of the two in the middle.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// minSamples is the number of samples from which on an interval is worth computing.
const minSamples = 10

// MedianInterval is a 95 % interval of the median by bootstrap; ok is false for fewer than ten values. The same
// values give the same interval.
func MedianInterval(v []float64) (lo, hi float64, ok bool) {
	if len(v) < minSamples {
		return 0, 0, false
	}
	const resamples = 2000
	random := rand.New(rand.NewPCG(1, uint64(len(v))))
	medians, sample := make([]float64, resamples), make([]float64, len(v))
	for i := range medians {
		for k := range sample {
			sample[k] = v[random.IntN(len(v))]
		}
		medians[i] = Median(sample)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000-1], true
}
