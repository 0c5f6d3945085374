package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// maxLength is the most tokens of a length.
const maxLength = 1 << 20

// Lengths is a distribution of lengths in tokens. The zero value is none.
type Lengths struct {
	text      string
	low, high int     // bounds, both included
	mu, sigma float64 // of the length's logarithm, where sigma is not 0
}

// ParseLengths reads a distribution:
//
//	64                      always 64
//	16-256                  uniform from 16 to 256
//	lognormal:200,0.8       log-normal with mean 200 and a standard deviation 0.8 of the logarithm, cut off at 16 times the mean
//	lognormal:200,0.8,1024  the same, cut off at 1024
func ParseLengths(s string) (Lengths, error) {
	s = strings.TrimSpace(s)
	l := Lengths{text: s}
	if rest, ok := strings.CutPrefix(s, "lognormal:"); ok {
		parts := strings.Split(rest, ",")
		var v [3]float64
		if len(parts) < 2 || len(parts) > 3 {
			return Lengths{}, fmt.Errorf("%q: give mean and sigma, as in lognormal:200,0.8", s)
		}
		for i, p := range parts {
			var err error
			if v[i], err = strconv.ParseFloat(strings.TrimSpace(p), 64); err != nil {
				return Lengths{}, fmt.Errorf("%q: %q is no number", s, p)
			}
		}
		if len(parts) == 2 {
			v[2] = math.Min(16*v[0], maxLength)
		}
		switch {
		case !(v[0] >= 1 && v[0] <= maxLength):
			return Lengths{}, fmt.Errorf("%q: the mean must be 1 to %d tokens", s, maxLength)
		case !(v[1] > 0 && v[1] <= 3):
			return Lengths{}, fmt.Errorf("%q: sigma must be above 0 and at most 3", s)
		case !(v[2] >= 1 && v[2] <= maxLength):
			return Lengths{}, fmt.Errorf("%q: the greatest length must be 1 to %d tokens", s, maxLength)
		}
		// The mean of a log-normal distribution is exp(mu + sigma²/2).
		l.low, l.high, l.sigma = 1, int(v[2]), v[1]
		l.mu = math.Log(v[0]) - v[1]*v[1]/2
		return l, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	var err, err2 error
	l.low, err = strconv.Atoi(strings.TrimSpace(first))
	l.high, err2 = strconv.Atoi(strings.TrimSpace(last))
	switch {
	case err != nil || err2 != nil:
		return Lengths{}, fmt.Errorf("%q is no length; write 64, 16-256 or lognormal:MEAN,SIGMA", s)
	case l.low < 1 || l.high > maxLength:
		return Lengths{}, fmt.Errorf("%q: lengths are 1 to %d tokens", s, maxLength)
	case l.high < l.low:
		return Lengths{}, fmt.Errorf("%q ends before it begins", s)
	}
	return l, nil
}

// String is the distribution as it was written.
func (l Lengths) String() string { return l.text }

func (l Lengths) zero() bool { return l.high == 0 }

// draw returns a length.
func (l Lengths) draw(r *rand.Rand) int {
	if l.sigma != 0 {
		v := math.Round(math.Exp(l.mu + l.sigma*r.NormFloat64()))
		return int(math.Min(math.Max(v, float64(l.low)), float64(l.high)))
	}
	return l.low + r.IntN(l.high-l.low+1)
}
