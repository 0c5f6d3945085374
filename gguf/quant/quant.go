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

// Quantize encodes src into the blocks of dst by the reference rounding and
// searches of weights.md 3.2, without an importance matrix. Lengths as in
// [Dequantize]. It is an error if a block format is given a value that is not
// finite, or one that needs a scale a half float cannot hold. It allocates
// nothing and may be called from several goroutines.
func Quantize(t Type, dst []byte, src []float32) error {
	return quantize(t, dst, src, nil)
}

// QuantizeRow is [Quantize] for one row with the importance of its elements (a
// row of an importance matrix, weights.md 10), which must be finite and not
// negative and as many as the elements; nil for none. Only their ratios matter.
// Types whose rounding leaves no choice (F32, F16, BF16, Q8_0, MXFP4, ...) ignore
// it.
//
// With an importance src must be the whole row: some formats weigh an element by
// its size beside the mean of the row, so encoding the pieces of a row one by one
// gives other codes.
func QuantizeRow(t Type, dst []byte, src, importance []float32) error {
	if importance != nil {
		if len(importance) != len(src) {
			return fmt.Errorf("quantize: %v: a row of %d elements has %d importance values", t, len(src), len(importance))
		}
		if err := checkImportance(importance); err != nil {
			return fmt.Errorf("quantize: %v: %w", t, err)
		}
	}
	return quantize(t, dst, src, importance)
}

func quantize(t Type, dst []byte, src, importance []float32) error {
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
	if f.elements > 1 {
		if err := checkFinite(src); err != nil {
			return fmt.Errorf("quantize: %v: %w", t, err)
		}
	}
	if err := f.encode(dst, src, importance); err != nil {
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
