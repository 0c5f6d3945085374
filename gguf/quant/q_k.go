package quant

// Shared by the 256-element formats with 6-bit scales and minima.

// scaleMin unpacks the 6-bit scale and minimum of 32-element group g (0…7) from
// the 12 bytes at s (weights.md 2.2, Q4_K).
func scaleMin(s []byte, g int) (scale, min uint8) {
	_ = s[11]
	if g < 4 {
		return s[g] & 63, s[g+4] & 63
	}
	return s[g+4]&15 | s[g-4]>>6<<4, s[g+4]>>4 | s[g]>>6<<4
}

// putScaleMin packs the 6-bit scales and minima of eight groups into s[0:12], the
// inverse of scaleMin.
func putScaleMin(s []byte, scales, mins []uint8) {
	for g := range 4 {
		s[g] = scales[g] | scales[g+4]>>4<<6
		s[g+4] = mins[g] | mins[g+4]>>4<<6
		s[g+8] = scales[g+4]&15 | mins[g+4]<<4
	}
}
