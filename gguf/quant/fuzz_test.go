package quant

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// FuzzDequantize decodes any bytes as any type: a whole number of blocks decodes,
// and gives what its blocks give one by one, and all else is an error. [Check]
// refuses what does not decode to finite values.
func FuzzDequantize(f *testing.F) {
	dirs := vectorDirs()
	for _, typ := range Types() {
		b, err := os.ReadFile(filepath.Join(dirs[len(dirs)-1], typ.String()+".blocks.bin"))
		if err != nil {
			b = make([]byte, 3*typ.BlockBytes())
		}
		size := typ.BlockBytes()
		// The first blocks have edge scales and payloads, the others are random.
		b = b[:min(len(b), 12*size)]
		f.Add(uint32(typ), len(b)/size*typ.BlockSize(), b)
		f.Add(uint32(typ), typ.BlockSize(), b[len(b)-size:])
		f.Add(uint32(typ), typ.BlockSize(), b[:size-1])
	}
	f.Add(uint32(4), 32, make([]byte, 20))
	f.Fuzz(func(t *testing.T, id uint32, n int, src []byte) {
		n = max(0, min(n, 1<<16))
		dst := make([]float32, n)
		typ := Type(id)
		err := Dequantize(typ, dst, src)
		size := typ.BlockBytes()
		fits := typ.CanDequantize() && n%typ.BlockSize() == 0 && n/typ.BlockSize()*size == len(src)
		if (err == nil) != fits {
			t.Fatalf("%v, %d elements, %d bytes: %v", typ, n, len(src), err)
		}
		err = Check(typ, src)
		if !fits {
			if err == nil && (!typ.Valid() || len(src)%size != 0) {
				t.Fatalf("%v: Check passes %d bytes", typ, len(src))
			}
			return
		}
		one := make([]float32, typ.BlockSize())
		for i := 0; i < len(dst); i += len(one) {
			if err := Dequantize(typ, one, src[i/len(one)*size:][:size]); err != nil {
				t.Fatal(err)
			}
			for k, v := range one {
				if math.Float32bits(v) != math.Float32bits(dst[i+k]) {
					t.Fatalf("%v: element %d is %g in a row and %g in a block alone", typ, i+k, dst[i+k], v)
				}
			}
		}
		if what := checkAgainstDecoder(typ, src, err); what != "" {
			t.Fatalf("%v: %s (Check: %v)", typ, what, err)
		}
		if typ.CanQuantize() {
			Quantize(typ, make([]byte, len(src)), dst) // may refuse, may not panic
		}
	})
}
