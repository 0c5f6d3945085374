package quant

// TQ1_0: 256 elements in 54 bytes, 48 bytes of five ternary digits each @0, 4 bytes
// of four digits @48, d half @52. A byte is a fraction of 256 in base 3: digit p is
// the integer part after multiplying by 3 p+1 times, dropping the integer part each
// time. The first 32 bytes hold elements 0 to 159, digit p of byte i element
// 32p + i; the next 16 hold 160 to 239 in the same manner and the last 4 the rest;
// value (digit−1)·d (weights.md 2.2).

func decodeTQ1_0(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 54 {
		d := f16At(src[52:])
		ternary(dst[:160], src[:32], d)
		ternary(dst[160:240], src[32:48], d)
		ternary(dst[240:256], src[48:52], d)
		dst, src = dst[256:], src[54:]
	}
}

// ternary sets y from the digits of b, the first digit of every byte first.
func ternary(y []float32, b []byte, d float32) {
	for pow := uint16(1); len(y) >= len(b); pow *= 3 {
		for i, v := range b {
			digit := (uint16(v) * pow & 255) * 3 >> 8
			y[i] = float32(int32(digit)-1) * d
		}
		y = y[len(b):]
	}
}

// encodeTQ1_0: d = amax, codes as trits; an importance changes nothing
// (weights.md 3.2).
func encodeTQ1_0(dst []byte, src, _ []float32) error {
	var codes [256]uint8
	for n := 0; len(src) >= 256; n++ {
		b := dst[:54]
		if err := putScale(b[52:], trits(codes[:], src)); err != nil {
			return blockError(n, 256, err)
		}
		putTernary(b[:32], codes[:160])
		putTernary(b[32:48], codes[160:240])
		putTernary(b[48:52], codes[240:])
		dst, src = dst[54:], src[256:]
	}
	return nil
}

// putTernary stores codes 0 … 2 in b as five or fewer base 3 digits a byte, the
// inverse of ternary. A byte is the fraction rounded up, so that the digits
// come out whole.
func putTernary(b []byte, codes []uint8) {
	for i := range b {
		q := uint32(0)
		for p := range 5 {
			q *= 3
			if at := i + p*len(b); at < len(codes) {
				q += uint32(codes[at])
			}
		}
		b[i] = byte((q*256 + 242) / 243)
	}
}
