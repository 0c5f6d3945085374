package quant

// Q6_K: 256 elements in 210 bytes, low nibbles ql[128] @0, high bit pairs
// qh[64] @128, int8 scales[16] @192, d half @208. Each half of 128 elements is
// four runs of 32 that share 64 bytes of ql and 32 of qh;
// value (d·scale)·(q−32) (weights.md 2.2).

func decodeQ6_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 210 {
		d := f16At(src[208:])
		for half := range 2 {
			// A scale covers 16 elements: take the runs in two pieces.
			for piece := range 2 {
				at := 16 * piece
				sc := src[192+8*half+piece:]
				s0 := d * float32(int8(sc[0]))
				s1 := d * float32(int8(sc[2]))
				s2 := d * float32(int8(sc[4]))
				s3 := d * float32(int8(sc[6]))
				la := src[64*half+at:][:16]
				lb := src[64*half+32+at:][:16]
				qh := src[128+32*half+at:][:16]
				y := dst[128*half+at:]
				y0, y1, y2, y3 := y[:16], y[32:48], y[64:80], y[96:112]
				for i, h := range qh {
					a, b := la[i], lb[i]
					y0[i] = s0 * float32(int32(a&15|h&3<<4)-32)
					y1[i] = s1 * float32(int32(b&15|h>>2&3<<4)-32)
					y2[i] = s2 * float32(int32(a>>4|h>>4&3<<4)-32)
					y3[i] = s3 * float32(int32(b>>4|h>>6<<4)-32)
				}
			}
		}
		dst, src = dst[256:], src[210:]
	}
}
