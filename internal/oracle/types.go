package oracle

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
)

// ggmlTypes names GGML's tensor types by number.
var ggmlTypes = map[uint32]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
	34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}

// tensorTypes lists the types of a GGUF file's tensors, sorted, each once. It knows just enough of the format to walk over the
// metadata of a well-formed file; the cases are made by us, so it is not hardened against others.
func tensorTypes(path string) (types []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := walker{r: bufio.NewReader(f)}
	defer func() {
		if w.err != nil {
			types, err = nil, fmt.Errorf("%s: %w", path, w.err)
		}
	}()
	if magic := w.u32(); magic != 0x46554747 { // "GGUF", little-endian
		return nil, fmt.Errorf("%s: not a GGUF file", path)
	}
	w.u32() // version
	nTensors, nKeys := w.u64(), w.u64()
	for range nKeys {
		w.skipString()
		w.skipValue(w.u32())
		if w.err != nil {
			return nil, w.err
		}
	}
	for range nTensors {
		w.skipString()
		w.skip(8 * uint64(w.u32())) // dimensions
		n := w.u32()
		w.skip(8) // offset
		if w.err != nil {
			return nil, w.err
		}
		name, ok := ggmlTypes[n]
		if !ok {
			name = fmt.Sprintf("type %d", n)
		}
		if !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	slices.Sort(types)
	return types, nil
}

// walker reads forward and keeps its first error.
type walker struct {
	r   *bufio.Reader
	err error
}

func (w *walker) skip(n uint64) {
	if w.err == nil {
		_, w.err = io.CopyN(io.Discard, w.r, int64(n))
	}
}

func (w *walker) bytes(b []byte) {
	if w.err == nil {
		_, w.err = io.ReadFull(w.r, b)
	}
}

func (w *walker) u32() uint32 {
	var b [4]byte
	w.bytes(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (w *walker) u64() uint64 {
	var b [8]byte
	w.bytes(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (w *walker) skipString() { w.skip(w.u64()) }

// skipValue passes over a metadata value of the given type number.
func (w *walker) skipValue(typ uint32) {
	switch typ {
	case 0, 1, 7: // uint8, int8, bool
		w.skip(1)
	case 2, 3: // uint16, int16
		w.skip(2)
	case 4, 5, 6: // uint32, int32, float32
		w.skip(4)
	case 10, 11, 12: // uint64, int64, float64
		w.skip(8)
	case 8:
		w.skipString()
	case 9:
		elem, n := w.u32(), w.u64()
		for i := uint64(0); i < n && w.err == nil; i++ {
			w.skipValue(elem)
		}
	default:
		if w.err == nil {
			w.err = fmt.Errorf("metadata value of unknown type %d", typ)
		}
	}
}
