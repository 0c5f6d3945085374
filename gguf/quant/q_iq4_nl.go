package quant

// IQ4_NL: 32 elements in 18 bytes, d half @0, 16 bytes of nibbles @2 in the order
// of Q4_0; value d·valuesIQ4[code] (weights.md 2.2).

// valuesIQ4 are the 16 levels of IQ4_NL and IQ4_XS, in steps that grow with the
// distance from zero.
var valuesIQ4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func decodeIQ4_NL(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		d := f16At(src)
		q, lo, hi := src[2:18], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d * float32(valuesIQ4[v&15])
			hi[i] = d * float32(valuesIQ4[v>>4])
		}
		dst, src = dst[32:], src[18:]
	}
}

// encodeIQ4_NL searches the scale of a block with fitIQ4 and codes it with the
// scale found, not with the half that is stored (weights.md 3.2).
func encodeIQ4_NL(dst []byte, src, im []float32) error {
	var (
		x, w  [32]float32
		codes [32]uint8
		imp   importance
	)
	if im != nil {
		imp = newImportance(im)
	}
	for n := 0; len(src) >= 32; n++ {
		b := dst[:18]
		amax, _ := extremes(src[:32])
		unit, inv := binade(amax)
		for i, v := range src[:32] {
			x[i] = v * inv
		}
		if im != nil {
			imp.weights(w[:], x[:], 32*n, 2*squares(x[:])/32)
		} else {
			for i, v := range x {
				w[i] = float32(v * v)
			}
		}
		scale := fitIQ4(x[:], w[:])
		if err := putScale(b, scale*unit); err != nil {
			return blockError(n, 32, err)
		}
		codeIQ4(codes[:], x[:], inverse(scale))
		putNibbles(b[2:], codes[:])
		dst, src = dst[18:], src[32:]
	}
	return nil
}

// nearestIQ4 is the code of the level nearest to a value v in −127 … 113, ties up,
// at ⌊2v⌋ + 254: halfway between two levels is a whole number of halves.
var nearestIQ4 = func() (t [481]uint8) {
	for i := range t {
		c := 0
		for c < 15 && i-254 >= int(valuesIQ4[c])+int(valuesIQ4[c+1]) {
			c++
		}
		t[i] = uint8(c)
	}
	return t
}()

// levelIQ4 returns the code of the level nearest to v.
func levelIQ4(v float32) uint8 {
	return nearestIQ4[int(2*float64(clamp(v, -127, 113))+254)]
}

func codeIQ4(codes []uint8, x []float32, inv float32) {
	for i, v := range x {
		codes[i] = levelIQ4(float32(inv * v))
	}
}

// fitIQ4 finds the scale of a group: it tries inverse scales that put the element
// of largest magnitude on the top level and near the bottom one.
func fitIQ4(x, w []float32) float32 {
	amax, m := extremes(x)
	if amax < tiny {
		return 0
	}
	first := 127 / m
	a, b := sumsIQ4(x, w, first)
	if b == 0 { // no weight at all
		return 1 / first
	}
	scale := a / b
	best := float32(scale * a)
	for t := -7; t <= 7; t++ {
		a, b := sumsIQ4(x, w, float32(t-127)/m)
		if b > 0 && float32(a*a) > float32(best*b) {
			scale = a / b
			best = float32(scale * a)
		}
	}
	return scale
}

// sumsIQ4 returns a = Σw·x·level and b = Σw·level² for the inverse scale inv.
func sumsIQ4(x, w []float32, inv float32) (a, b float32) {
	w = w[:len(x)]
	for i, v := range x {
		l := float32(valuesIQ4[levelIQ4(float32(inv*v))&15])
		u := float32(w[i] * l)
		a += float32(u * v)
		b += float32(u * l)
	}
	return a, b
}
