package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

func scaleError(d float32) error {
	return fmt.Errorf("the scale %g is beyond the half float range", d)
}

// blockError names the elements of block n, of size elements each.
func blockError(n, size int, err error) error {
	return fmt.Errorf("elements %d to %d: %w", n*size, (n+1)*size-1, err)
}

// checkFinite returns an error that names the first element that is not finite.
func checkFinite(x []float32) error {
	for i, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return fmt.Errorf("element %d is %g, which is not finite", i, v)
		}
	}
	return nil
}

// checkImportance returns an error that names the first bad entry.
func checkImportance(im []float32) error {
	for i, v := range im {
		if !(v >= 0 && v <= math.MaxFloat32) {
			return fmt.Errorf("the importance of element %d is %g, which is not zero or a positive number", i, v)
		}
	}
	return nil
}

// extremes returns the largest magnitude of x and the first element that has it.
func extremes(x []float32) (amax, signed float32) {
	for _, v := range x {
		if a := abs(v); a > amax {
			amax, signed = a, v
		}
	}
	return amax, signed
}

// inverse returns the factor that turns values into codes: 1/d, or 0 for an
// all-zero block and for a d so small that 1/d overflows. Its codes are then
// those of 0, which is what such a d becomes as a half anyway.
func inverse(d float32) float32 {
	inv := 1 / d
	if d == 0 || math.IsInf(float64(inv), 0) {
		return 0
	}
	return inv
}

// roundAway rounds to the nearest integer, halves away from zero.
func roundAway(v float32) int32 {
	return int32(float64(v) + math.Copysign(0.5, float64(v)))
}

// putScale stores the scale of a block as a half in b[0:2].
func putScale(b []byte, d float32) error {
	h := F32ToF16(d)
	if h&0x7c00 == 0x7c00 {
		return scaleError(d)
	}
	binary.LittleEndian.PutUint16(b, h)
	return nil
}

// putScales stores a scale and a minimum as halves in b[0:4].
func putScales(b []byte, d, m float32) error {
	if err := putScale(b, d); err != nil {
		return err
	}
	return putScale(b[2:], m)
}

// putNibbles stores 32 codes of 4 bits in b[0:16] in the order of Q4_0.
func putNibbles(b []byte, codes []uint8) {
	lo, hi := codes[:16], codes[16:32]
	for i := range b[:16] {
		b[i] = lo[i]&15 | hi[i]<<4
	}
}

// fifthBits gathers bit 4 of 32 codes, the code of element e in bit e.
func fifthBits(codes []uint8) (h uint32) {
	for e, c := range codes[:32] {
		h |= uint32(c>>4&1) << e
	}
	return h
}

// binade returns the power of two at or just below a magnitude, and its inverse.
// It stays within 2^-100 … 2^126: what is smaller is zero as a half, and the
// inverses are normal numbers.
func binade(amax float32) (unit, inv float32) {
	e := min(max(math.Float32bits(amax)>>23, 27), 253)
	return math.Float32frombits(e << 23), math.Float32frombits((254 - e) << 23)
}

// importance weighs the elements of a row: the caller's vector, or nothing.
type importance struct {
	v   []float32
	inv float32 // power of two that brings the largest entry near 1
}

func newImportance(v []float32) importance {
	amax, _ := extremes(v)
	_, inv := binade(amax)
	return importance{v, inv}
}

// weights sets w to im·√(sigma2+x²) for the elements from at on.
func (im *importance) weights(w, x []float32, at int, sigma2 float32) {
	v, w := im.v[at:][:len(x)], w[:len(x)]
	for i, a := range x {
		w[i] = float32(v[i]*im.inv) * sqrt(sigma2+float32(a*a))
	}
}

// plain sets w to im for the elements from at on.
func (im *importance) plain(w []float32, at int) {
	for i, v := range im.v[at:][:len(w)] {
		w[i] = v * im.inv
	}
}

// squares returns Σx².
func squares(x []float32) (sum float32) {
	for _, v := range x {
		sum += float32(v * v)
	}
	return sum
}

// block32 is the scratch memory of the formats with 32 elements. With an
// importance, the elements are brought near 1 by the largest of the row.
type block32 struct {
	im        importance
	unit, inv float32
	mean      float32 // of x² over the row
	x, w      [32]float32
	codes     [32]uint8
}

// start looks at a row that has an importance vector.
func (b *block32) start(row, im []float32) {
	if im == nil {
		return
	}
	b.im = newImportance(im)
	amax, _ := extremes(row)
	b.unit, b.inv = binade(amax)
	var sum float32
	for _, v := range row {
		v *= b.inv
		sum += float32(v * v)
	}
	b.mean = sum / float32(len(row))
}

// load prepares block n, whose elements are src, for a search with weights
// im·√(mean(row x²) + x²).
func (b *block32) load(src []float32, n int) {
	for i, v := range src[:32] {
		b.x[i] = v * b.inv
	}
	b.im.weights(b.w[:], b.x[:], 32*n, b.mean)
}

// signed codes block n as scale·(code − nmax) and returns the scale: that of
// weights.md 3.2 for Q4_0 and Q5_0.
func (b *block32) signed(src []float32, n int, nmax float32) float32 {
	if b.im.v != nil {
		b.load(src, n)
		return fitSigned(b.codes[:], b.x[:], b.w[:], nmax) * b.unit
	}
	// The element of largest magnitude lands on code 0.
	_, m := extremes(src[:32])
	d := m / -nmax
	inv := inverse(d)
	for i, v := range src[:32] {
		b.codes[i] = uint8(clamp(float32(v*inv)+(nmax+0.5), 0, 2*nmax-1))
	}
	return d
}

// offset codes block n as scale·code + least, with codes up to nmax: weights.md
// 3.2 for Q4_1 and Q5_1.
func (b *block32) offset(src []float32, n int, nmax float32) (scale, least float32) {
	if b.im.v != nil {
		b.load(src, n)
		scale, off := fitOffset(b.codes[:], b.x[:], b.w[:], nmax, ladder{start: -0.9, step: 0.05, count: 36})
		return scale * b.unit, -off * b.unit
	}
	mn, mx := src[0], src[0]
	for _, v := range src[:32] {
		mn, mx = min(mn, v), max(mx, v)
	}
	d := (mx - mn) / nmax
	inv := inverse(d)
	for i, v := range src[:32] {
		b.codes[i] = uint8(clamp(float32((v-mn)*inv)+0.5, 0, nmax))
	}
	return d, mn
}
