package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// squareError returns Σw·(value(code) − x)².
func squareError(codes []uint8, x, w []float32, value func(c float64) float64) (e float64) {
	for i, c := range codes {
		d := value(float64(c)) - float64(x[i])
		e += float64(w[i]) * d * d
	}
	return e
}

// bestScale returns the least Σw·(scale·code − x)² of a fine grid of scales from
// top/2 to 2·top in both directions, codes lo … hi being the nearest.
func bestScale(x, w []float32, top, lo, hi float64) float64 {
	best := math.Inf(1)
	for step := range 4000 {
		scale := top * (0.5 + 1.5*float64(step%2000)/2000)
		if step >= 2000 {
			scale = -scale
		}
		var e float64
		for i, v := range x {
			q := min(max(math.RoundToEven(float64(v)/scale), lo), hi)
			d := scale*q - float64(v)
			e += float64(w[i]) * d * d
		}
		best = min(best, e)
	}
	return best
}

// TestSearch compares the routines with a search over a fine grid of scales, of
// which they may lose little over many groups, or with the plain scale and offset,
// which they must never lose to.
func TestSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 9))
	x, w, codes := make([]float32, 16), make([]float32, 16), make([]uint8, 16)
	type sums struct{ got, want float64 }
	all := map[string]*sums{}
	check := func(name string, got, want, limit float64) {
		if all[name] == nil {
			all[name] = &sums{}
		}
		all[name].got += got
		all[name].want += want
		if limit > 0 && !(got <= limit*want) {
			t.Errorf("%s: error %g, the other search %g: x %v, w %v", name, got, want, x, w)
		}
	}
	for range 300 {
		for i := range x {
			x[i], w[i] = float32(r.NormFloat64()), float32(r.ExpFloat64())+0.05
		}
		amax, m := extremes(x)
		for _, nmax := range []float64{4, 8, 16, 32} {
			scale := float64(fitSigned(codes, x, w, float32(nmax)))
			got := squareError(codes, x, w, func(c float64) float64 { return scale * (c - nmax) })
			want := bestScale(x, w, float64(amax)/nmax, -nmax, nmax-1)
			check("signed", got, want, 0)
			// The fit of the best candidate explains most of Σw·x².
			best := 0.0
			for i := -9; i <= 9; i++ {
				var a, b float64
				for k, v := range x {
					q := math.RoundToEven((nmax + 0.1*float64(i)) / float64(m) * float64(v))
					q = min(max(-q, -nmax), nmax-1)
					a += float64(w[k]) * float64(v) * q
					b += float64(w[k]) * q * q
				}
				best = max(best, a*a/b)
			}
			rest := squareError(codes, x, w, func(float64) float64 { return 0 }) - best
			check("candidates", got, rest+1e-5*best, 1)
		}
		w2 := make([]float32, 16)
		for i, v := range x {
			w2[i] = v * v
		}
		scale := float64(fitThree(codes, x, w2))
		got := squareError(codes, x, w2, func(c float64) float64 { return scale * (c - 4) })
		check("three", got, bestScale(x, w2, float64(amax)/4, -4, 3), 0)

		p := make([]float32, 16)
		for i, v := range x {
			p[i] = abs(v)
		}
		for _, nmax := range []float64{15, 63} {
			scale := float64(fitPositive(codes, p, w, float32(nmax)))
			got := squareError(codes, p, w, func(c float64) float64 { return scale * c })
			check("positive", got, bestScale(p, w, float64(amax)/nmax, 0, nmax), 0)
		}
		for _, nmax := range []float64{3, 15, 31} {
			s, m := fitOffset(codes, x, w, float32(nmax), ladder{start: -0.9, step: 0.05, count: 36})
			if m < 0 {
				t.Fatalf("offset %g", m)
			}
			got := squareError(codes, x, w, func(c float64) float64 { return float64(s)*c - float64(m) })
			// Against the scale and offset that just span the elements.
			mn, mx := float32(0), float32(0)
			for _, v := range x {
				mn, mx = min(mn, v), max(mx, v)
			}
			step, want := float64(mx-mn)/nmax, 0.0
			for i, v := range x {
				d := float64(mn) + step*math.RoundToEven(float64(v-mn)/step) - float64(v)
				want += float64(w[i]) * d * d
			}
			check("offset", got, want, 1.0001)
		}
	}
	// The whole gain or loss beside the finer or coarser search.
	for name, limit := range map[string]float64{"signed": 1.05, "three": 1.25, "candidates": 1, "positive": 1.16, "offset": 0.53} {
		ratio := all[name].got / all[name].want
		t.Logf("%s: %.3f", name, ratio)
		if !(ratio <= limit) {
			t.Errorf("%s: error is %.3f of the other search's, want at most %.2f", name, ratio, limit)
		}
	}
}

// TestSearchScale checks that powers of two in the elements and in the weights
// change no code.
func TestSearchScale(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	for range 200 {
		var x, w, x2, w2 [32]float32
		f, g := float32(math.Ldexp(1, r.IntN(12)-6)), float32(math.Ldexp(1, r.IntN(40)-20))
		for i := range x {
			x[i], w[i] = float32(r.NormFloat64()), float32(r.ExpFloat64())
			x2[i], w2[i] = x[i]*f, w[i]*g
		}
		type result struct {
			codes [32]uint8
			s, m  float32
		}
		for name, fit := range map[string]func(x, w []float32, c []uint8) (float32, float32){
			"S": func(x, w []float32, c []uint8) (float32, float32) { return fitSigned(c, x, w, 8), 0 },
			"A": func(x, w []float32, c []uint8) (float32, float32) {
				return fitOffset(c, x, w, 15, ladder{-1, 0.1, 20, false})
			},
			"A absolute": func(x, w []float32, c []uint8) (float32, float32) {
				return fitOffset(c, x, w, 3, ladder{-0.5, 0.1, 15, true})
			},
			"P": func(x, w []float32, c []uint8) (float32, float32) {
				y := make([]float32, 32)
				for i, v := range x {
					y[i] = abs(v)
				}
				return fitPositive(c, y, w, 63), 0
			},
			"Q3S": func(x, w []float32, c []uint8) (float32, float32) { return fitThree(c, x, w), 0 },
			"IQ4": func(x, w []float32, c []uint8) (float32, float32) { return fitIQ4(x, w), 0 },
		} {
			var a, b result
			a.s, a.m = fit(x[:], w[:], a.codes[:])
			b.s, b.m = fit(x2[:], w2[:], b.codes[:])
			if a.codes != b.codes || a.s*f != b.s || a.m*f != b.m {
				t.Errorf("%s: scale %g, offset %g, codes %v; with x·%g and w·%g %g, %g, %v",
					name, a.s, a.m, a.codes, f, g, b.s, b.m, b.codes)
			}
		}
	}
}

// nearest returns the first of the codes below n whose value is nearest to v.
func nearest(v float64, n int, value func(c int) float64) (best int) {
	for c := range n {
		if math.Abs(value(c)-v) < math.Abs(value(best)-v) {
			best = c
		}
	}
	return best
}

func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	var values []float64
	for i := -1100; i <= 1100; i++ {
		for _, f := range []float64{1, 2, 4, 8, 1024} {
			v := float32(float64(i) / f)
			values = append(values, float64(v), float64(math.Nextafter32(v, 2000)), float64(math.Nextafter32(v, -2000)))
		}
	}
	for range 5000 {
		values = append(values, float64(float32(r.NormFloat64()*math.Exp(3*r.NormFloat64()))))
	}
	for _, v := range values {
		if got := rint(float32(v)); float64(got) != math.RoundToEven(v) {
			t.Fatalf("rint(%g): got %g", v, got)
		}
		if got := roundAway(float32(v)); float64(got) != math.Round(v) {
			t.Fatalf("roundAway(%g): got %d", v, got)
		}
		c := nearest(-v, 16, func(c int) float64 { return -float64(valuesIQ4[15-c]) }) // ties go up
		if got := int(levelIQ4(float32(v))); got != 15-c {
			t.Fatalf("levelIQ4(%g): got %d, want %d", v, got, 15-c)
		}
		c = nearest(v, 16, func(c int) float64 { return float64(valuesE2M1[c]) })
		if got := int(codeE2M1(v)); got != c {
			t.Fatalf("codeE2M1(%g): got %d, want %d", v, got, c)
		}
		v = math.Abs(v)
		c = 126 - nearest(v, 127, func(c int) float64 { return 2 * float64(halfUE4M3(byte(126-c))) })
		if got := int(toUE4M3(float32(v))); got != c {
			t.Fatalf("toUE4M3(%g): got %d, want %d", v, got, c)
		}
		unit, inv := binade(float32(v))
		if unit*inv != 1 || v > 1e-30 && !(float64(unit) <= v && v < 2*float64(unit)) {
			t.Fatalf("binade(%g): got %g, %g", v, unit, inv)
		}
	}
	for _, v := range []float32{0, math.SmallestNonzeroFloat32, math.MaxFloat32, 0x1p126, 0x1p-126} {
		unit, inv := binade(v)
		if unit*inv != 1 || !(v*inv < 4) {
			t.Errorf("binade(%g): got %g, %g", v, unit, inv)
		}
	}
}

// TestPacking checks the packed scales and codes against the decoders' readers.
func TestPacking(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 4))
	for range 200 {
		var scales, mins [8]uint8
		for g := range scales {
			scales[g], mins[g] = uint8(r.IntN(64)), uint8(r.IntN(64))
		}
		var s [12]byte
		putScaleMin(s[:], scales[:], mins[:])
		for g := range scales {
			if sc, m := scaleMin(s[:], g); sc != scales[g] || m != mins[g] {
				t.Fatalf("group %d: scale %d, min %d became %d, %d", g, scales[g], mins[g], sc, m)
			}
		}
		for _, n := range []int{160, 80, 16} {
			codes, b, y := make([]uint8, n), make([]byte, (n+4)/5), make([]float32, n)
			for i := range codes {
				codes[i] = uint8(r.IntN(3))
			}
			putTernary(b[:map[int]int{160: 32, 80: 16, 16: 4}[n]], codes)
			ternary(y, b, 1)
			for i, c := range codes {
				if y[i] != float32(c)-1 {
					t.Fatalf("%d digits: digit %d is %g, want %d", n, i, y[i], int(c)-1)
				}
			}
		}
	}
}
