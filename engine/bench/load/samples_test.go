package load

import (
	"math"
	"testing"
)

func TestSamples(t *testing.T) {
	var s samples
	if x := s.summary(); x != (Summary{}) {
		t.Errorf("nothing: %+v", x)
	}
	for _, v := range []float64{4, 1, 3, 2} {
		s.add(v)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	x := s.summary()
	// What NumPy's mean, std(ddof=1) and percentile say.
	if x.N != 4 || x.Mean != 2.5 || !near(x.Std, 1.2909944487) || x.P50 != 2.5 || !near(x.P90, 3.7) || !near(x.P95, 3.85) || !near(x.P99, 3.97) || x.Max != 4 {
		t.Errorf("%+v", x)
	}
	s.add(-1)
	if x = s.summary(); x.Max != 4 || x.P50 != 2 {
		t.Errorf("%+v", x)
	}
	var below samples
	below.add(-3)
	if x = below.summary(); x.Max != -3 || x.Std != 0 || x.P99 != -3 {
		t.Errorf("%+v", x)
	}
}

// Memory does not grow beyond a bound; what is exact stays so, and percentiles are of a fair choice.
func TestSamplesBound(t *testing.T) {
	s := samples{most: 2000}
	const n = 100_000
	for i := range n {
		s.add(float64(i)) // rising: a choice of the first or the last would show
	}
	x := s.summary()
	if len(s.kept) != 2000 || cap(s.kept) > 4000 || x.N != n || x.Max != n-1 || math.Abs(x.Mean-(n-1)/2.) > 1e-3 {
		t.Errorf("%d kept, %+v", len(s.kept), x)
	}
	if want := math.Sqrt(float64(n) * (n + 1) / 12); math.Abs(x.Std/want-1) > 1e-6 {
		t.Errorf("deviation %g, want %g", x.Std, want)
	}
	for p, v := range map[float64]float64{50: x.P50, 90: x.P90, 99: x.P99} {
		if math.Abs(v/n-p/100) > 0.03 {
			t.Errorf("percentile %g is %g", p, v)
		}
	}
}
