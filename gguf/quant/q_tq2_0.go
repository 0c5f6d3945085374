package quant

// TQ2_0: 256 elements in 66 bytes, 64 bytes of 2-bit codes @0 in the order of Q2_K,
// d half @64; value (c−1)·d (weights.md 2.2).

func decodeTQ2_0(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 66 {
		d := f16At(src[64:])
		for j := range 8 { // runs of 32
			q, y, shift := src[j>>2<<5:][:32], dst[32*j:][:32], j&3<<1
			for i, v := range q {
				y[i] = float32(int32(v>>shift&3)-1) * d
			}
		}
		dst, src = dst[256:], src[66:]
	}
}

// encodeTQ2_0: d = amax, codes as trits; an importance changes nothing
// (weights.md 3.2).
func encodeTQ2_0(dst []byte, src, _ []float32) error {
	var codes [256]uint8
	for n := 0; len(src) >= 256; n++ {
		b := dst[:66]
		if err := putScale(b[64:], trits(codes[:], src)); err != nil {
			return blockError(n, 256, err)
		}
		put2(b, &codes)
		dst, src = dst[66:], src[256:]
	}
	return nil
}

// trits sets as many codes as there are to 0, 1 or 2 for what is nearest to −d, 0
// or d, and returns d, the largest magnitude of those elements.
func trits(codes []uint8, src []float32) float32 {
	d, _ := extremes(src[:len(codes)])
	inv := inverse(d)
	for i, v := range src[:len(codes)] {
		codes[i] = uint8(roundAway(float32(v*inv)) + 1)
	}
	return d
}
