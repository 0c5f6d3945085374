package quant

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzDequantize decodes any bytes as any type: a whole number of blocks
// decodes, and all else is an error.
func FuzzDequantize(f *testing.F) {
	for _, typ := range Types() {
		b, err := os.ReadFile(filepath.Join("testdata/quant", typ.String()+".blocks.bin"))
		if err != nil {
			b = make([]byte, 3*typ.BlockBytes())
		}
		size := typ.BlockBytes()
		b = b[:min(len(b), 12*size)]
		f.Add(uint32(typ), 12*typ.BlockSize(), b)
		f.Add(uint32(typ), typ.BlockSize(), b[:size-1])
	}
	f.Add(uint32(4), 32, make([]byte, 20))
	f.Fuzz(func(t *testing.T, id uint32, n int, src []byte) {
		n = max(0, min(n, 1<<16))
		dst := make([]float32, n)
		typ := Type(id)
		err := Dequantize(typ, dst, src)
		fits := typ.CanDequantize() && n%typ.BlockSize() == 0 && n/typ.BlockSize()*typ.BlockBytes() == len(src)
		if (err == nil) != fits {
			t.Fatalf("%v, %d elements, %d bytes: %v", typ, n, len(src), err)
		}
		if err == nil && typ.CanQuantize() {
			Quantize(typ, make([]byte, len(src)), dst) // may refuse, may not panic
		}
	})
}
