package quant

import "math"

// The search routines of weights.md 3.1. They try a handful of scales for a
// group of elements and keep the one with the least weighted squared error.
//
// Every sum is a float32 sum in the order of the elements and every product is
// rounded before it is added (hence the conversions), so that the result is the
// same on every architecture. All of them are homogeneous in x and in w: a power
// of two in either changes no code. Callers use that to bring x near 1, where
// no square and no sum of squares overflows or vanishes.

// A group whose largest magnitude is below tiny has scale 0.
const tiny = 1e-15

// maxGroup is the largest number of elements a search routine takes.
const maxGroup = 32

// rint rounds to the nearest integer, ties to even, for |v| < 2^22: there the
// sum with 1.5·2^23 has no fraction bits.
func rint(v float32) float32 {
	const bias = 0x1.8p23
	return float32(float32(v)+bias) - bias
}

// clamp limits v to lo … hi.
func clamp(v, lo, hi float32) float32 {
	if v < lo {
		return lo
	}
	if v > hi {
		return hi
	}
	return v
}

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

func sqrt(v float32) float32 { return float32(math.Sqrt(float64(v))) }

// fitSigned is routine S: it finds a scale for codes −nmax … nmax−1, so that x
// is about scale·code, with the weights w. It writes code + nmax to codes and
// returns the scale, whose sign is free: the largest element may land on −nmax
// or near nmax. The lengths of x, w and codes are equal.
func fitSigned(codes []uint8, x, w []float32, nmax float32) float32 {
	w, codes = w[:len(x)], codes[:len(x)]
	amax, m := extremes(x)
	if amax < tiny {
		clear(codes)
		return 0
	}
	best := -nmax / m
	a, b := signedSums(x, w, best, nmax)
	if b == 0 {
		// No weight on any element that is not 0: take the plain scale.
		signedCodes(codes, x, best, nmax)
		return 1 / best
	}
	scale := a / b
	merit := float32(scale * a)
	for i := -9; i <= 9; i++ {
		if i == 0 {
			continue
		}
		inv := -(nmax + float32(0.1*float32(i))) / m
		a, b := signedSums(x, w, inv, nmax)
		if b > 0 && float32(a*a) > float32(merit*b) {
			best, scale = inv, a/b
			merit = float32(scale * a)
		}
	}
	signedCodes(codes, x, best, nmax)
	return scale
}

// signedSums returns a = Σw·x·code and b = Σw·code² for the inverse scale inv.
func signedSums(x, w []float32, inv, nmax float32) (a, b float32) {
	for i, v := range x {
		l := clamp(rint(inv*v), -nmax, nmax-1)
		u := w[i]
		a += float32(float32(u*v) * l)
		b += float32(float32(u*l) * l)
	}
	return a, b
}

func signedCodes(codes []uint8, x []float32, inv, nmax float32) {
	for i, v := range x {
		codes[i] = uint8(clamp(rint(inv*v), -nmax, nmax-1) + nmax)
	}
}

// ladder is the list of candidates of routine A: the inverse scales
// (start + step·i + nmax)/(max − min) for i = 0 … count.
type ladder struct {
	start, step float32
	count       int
	absolute    bool // compare Σw·|error| instead of Σw·error²
}

// fitOffset is routine A: it finds a scale and an offset ≥ 0 so that x is about
// scale·code − offset with codes 0 … nmax. At most maxGroup elements; the
// lengths of x, w and codes are equal.
func fitOffset(codes []uint8, x, w []float32, nmax float32, steps ladder) (scale, offset float32) {
	w, codes = w[:len(x)], codes[:len(x)]
	mn, mx := min(x[0], 0), x[0]
	sumW, sumX := w[0], float32(w[0]*x[0])
	for i, v := range x[1:] {
		mn, mx = min(mn, v), max(mx, v)
		sumW += w[i+1]
		sumX += float32(w[i+1] * v)
	}
	if mx <= mn { // all 0, or all the same negative value
		clear(codes)
		return 0, -mn
	}
	var aux [maxGroup]float32
	q := aux[:len(x)]
	inv := nmax / (mx - mn)
	scale = 1 / inv
	for i, v := range x {
		q[i] = clamp(rint(inv*(v-mn)), 0, nmax)
	}
	bestInv, bestMin := inv, mn
	best := offsetError(x, w, q, scale, mn, steps.absolute, math.MaxFloat32)
	for k := range steps.count + 1 {
		inv := (float32(steps.start+float32(steps.step*float32(k))) + nmax) / (mx - mn)
		var sumL, sumL2, sumXL float32
		for i, v := range x {
			l := clamp(rint(inv*(v-mn)), 0, nmax)
			q[i] = l
			wl := float32(w[i] * l)
			sumL += wl
			sumL2 += float32(wl * l)
			sumXL += float32(wl * v)
		}
		det := float32(sumW*sumL2) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		s := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		m := (float32(sumL2*sumX) - float32(sumL*sumXL)) / det
		if m > 0 {
			m, s = 0, sumXL/sumL2
		}
		if e := offsetError(x, w, q, s, m, steps.absolute, best); e < best {
			// Later candidates start from the fitted minimum.
			best, bestInv, bestMin = e, inv, mn
			scale, mn = s, m
		}
	}
	for i, v := range x {
		codes[i] = uint8(clamp(rint(bestInv*(v-bestMin)), 0, nmax))
	}
	return scale, -mn
}

// offsetError returns the weighted error of scale·q + mn as x, or what it has
// summed when that reaches limit.
func offsetError(x, w, q []float32, scale, mn float32, absolute bool, limit float32) (e float32) {
	for len(x) > 0 && e < limit {
		n := min(len(x), 8)
		xs, ws, qs := x[:n], w[:n], q[:n]
		if absolute {
			for i, v := range xs {
				e += float32(ws[i] * abs(float32(scale*qs[i])+mn-v))
			}
		} else {
			for i, v := range xs {
				diff := float32(scale*qs[i]) + mn - v
				e += float32(ws[i] * float32(diff*diff))
			}
		}
		x, w, q = x[n:], w[n:], q[n:]
	}
	return e
}

// fitPositive is routine P: it finds a scale for x ≥ 0 with codes 0 … nmax. At
// most maxGroup elements; the lengths of x, w and codes are equal.
func fitPositive(codes []uint8, x, w []float32, nmax float32) float32 {
	w, codes = w[:len(x)], codes[:len(x)]
	var mx float32
	for _, v := range x {
		mx = max(mx, v)
	}
	if mx < tiny {
		clear(codes)
		return 0
	}
	inv := nmax / mx
	best := positiveError(x, w, inv, nmax)
	for i := -4; i <= 4; i++ {
		if i == 0 {
			continue
		}
		try := (float32(0.1*float32(i)) + nmax) / mx
		if e := positiveError(x, w, try, nmax); e < best {
			best, inv = e, try
		}
	}
	var aux [maxGroup]float32
	q := aux[:len(x)]
	var a, b float32
	for i, v := range x {
		q[i] = min(nmax, rint(inv*v))
		a += float32(float32(w[i]*v) * q[i])
		b += float32(float32(w[i]*q[i]) * q[i])
	}
	a, b = refine(q, x, w, a, b, 0, nmax)
	for i, l := range q {
		codes[i] = uint8(l)
	}
	if b == 0 { // no weight on any element that is not 0
		return 1 / inv
	}
	return a / b
}

func positiveError(x, w []float32, inv, nmax float32) (e float32) {
	scale := 1 / inv
	for i, v := range x {
		diff := v - float32(scale*min(nmax, rint(inv*v)))
		e += float32(w[i] * float32(diff*diff))
	}
	return e
}

// fitThree is routine Q3S, the signed search with codes −4 … 3 and weights x².
// It writes code + 4 to codes and returns the scale.
func fitThree(codes []uint8, x, w []float32) float32 {
	const nmax = 4
	w, codes = w[:len(x)], codes[:len(x)]
	amax, m := extremes(x)
	if amax < tiny {
		clear(codes)
		return 0
	}
	inv := -nmax / m
	var aux [maxGroup]float32
	q := aux[:len(x)]
	var a, b float32
	for i, v := range x {
		q[i] = clamp(rint(inv*v), -nmax, nmax-1)
		a += float32(float32(w[i]*v) * q[i])
		b += float32(float32(w[i]*q[i]) * q[i])
	}
	a, b = refine(q, x, w, a, b, -nmax, nmax-1)
	for i, l := range q {
		codes[i] = uint8(l + nmax)
	}
	return a / b // the largest element has a code and, being above tiny, a weight
}

// refine sweeps over the codes q up to five times, rounding each again with the
// scale that fits all the others best, and keeps a change when it raises a²/b
// for a = Σw·x·q and b = Σw·q². It returns the new a and b. As in the reference,
// nothing changes while a is negative, as it is for a negative scale; sweeps there
// would hardly change the error of Q3_K (0.1 % on normal weights).
func refine(q, x, w []float32, a, b, lo, hi float32) (float32, float32) {
	for range 5 {
		changed := false
		for i, v := range x {
			wx := float32(w[i] * v)
			a1 := a - float32(wx*q[i])
			b1 := b - float32(float32(w[i]*q[i])*q[i])
			if !(a1 > 0 && b1 > 0) {
				continue
			}
			l := rint(clamp(float32(v*b1)/a1, lo, hi))
			if l == q[i] {
				continue
			}
			a1 += float32(wx * l)
			b1 += float32(float32(w[i]*l) * l)
			if b1 > 0 && float32(float32(a1*a1)*b) > float32(float32(a*a)*b1) {
				q[i], a, b = l, a1, b1
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	return a, b
}
