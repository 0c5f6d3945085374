package sample

import "math"

// The sums over a whole vocabulary take a quarter of a million exponentials a token, for
// which math.Exp is several times slower than need be.
const (
	expSteps = 64 // steps of the table for each power of two
	expLog2  = math.Ln2 / expSteps
)

// expTable holds 2 to the power of i/expSteps.
var expTable = func() (t [expSteps]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / expSteps)
	}
	return t
}()

// exp returns e to the power of x for x at most 0, with a relative error below 1e-13 for x
// above -100 and below 3e-13 for any. What would be below 1e-299 is 0.
//
// With x = n ln2/64 + r it is 2^(n/64) times the first terms of the power series of
// e^r, of which the next is r^5/120 for |r| up to 0.0055. The conversions keep a compiler from
// fusing operations, so that every machine draws the same tokens.
func exp(x float64) float64 {
	if !(x > -690) {
		return 0
	}
	n := int(float64(x*(1/expLog2)) - 0.5)
	r := x - float64(float64(n)*expLog2)
	p := 1 + float64(r*(1+float64(r*(1./2+float64(r*(1./6+float64(r*(1./24))))))))
	return float64(expTable[n&(expSteps-1)]*p) * math.Float64frombits(uint64(n>>6+1023)<<52)
}
