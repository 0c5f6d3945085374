package quant

import "fmt"

// Dequantize decodes the blocks in src into dst. The length of dst must be a
// multiple of t's block size and src exactly the bytes of that many elements;
// a whole row, many rows or a single block are all fine. Any bytes decode: a
// damaged scale gives infinities or NaNs, never an error.
func Dequantize(t Type, dst []float32, src []byte) error {
	f := t.format()
	if f.decode == nil {
		if f.name == "" {
			return fmt.Errorf("dequantize: %v is unknown", t)
		}
		return fmt.Errorf("dequantize: no decoder for %v", t)
	}
	if err := checkLengths(t, len(dst), len(src)); err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	f.decode(dst, src)
	return nil
}

// Quantize encodes src into the blocks of dst by the reference rounding of
// weights.md 3.2, without an importance matrix. Lengths as in [Dequantize]. It
// is an error if a block format is given a value that is not finite or whose
// scale a half float cannot hold.
func Quantize(t Type, dst []byte, src []float32) error {
	f := t.format()
	if f.encode == nil {
		if f.name == "" {
			return fmt.Errorf("quantize: %v is unknown", t)
		}
		return fmt.Errorf("quantize: no encoder for %v", t)
	}
	if err := checkLengths(t, len(src), len(dst)); err != nil {
		return fmt.Errorf("quantize: %w", err)
	}
	if err := f.encode(dst, src); err != nil {
		return fmt.Errorf("quantize: %v: %w", t, err)
	}
	return nil
}

// checkLengths reports whether n elements of type t take exactly size bytes.
func checkLengths(t Type, n, size int) error {
	want, err := t.RowBytes(uint64(n))
	if err != nil {
		return err
	}
	if want != uint64(size) {
		return fmt.Errorf("%d elements of %v are %d bytes, not %d", n, t, want, size)
	}
	return nil
}
