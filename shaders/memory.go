package shaders

import (
	"fmt"
	"unsafe"

	"github.com/calderaml/caldera/gguf/quant"
)

// Memory gives twins the bytes behind views.
type Memory interface {
	// Bytes returns the view's bytes, aligned to 4. The slice aliases the memory.
	Bytes(v View) []byte
}

// HostMemory is memory in which every buffer is a slice of its own.
type HostMemory map[*Buffer][]byte

// Bytes returns the view's bytes. A view outside its buffer is a fault of the graph, which the scheduler's
// check has refused before; here it is a run-time panic like any slice bound.
func (m HostMemory) Bytes(v View) []byte {
	b, ok := m[v.Buf]
	if !ok {
		// Buffers come into being on first use, zeroed, as scratch does on a device.
		b = AlignedBytes(v.Buf.Size)
		m[v.Buf] = b
	}
	return b[v.Off : v.Off+v.Len : v.Off+v.Len]
}

// AlignedBytes returns n zero bytes at an address that is a multiple of 8, so that they can be seen as
// words and floats.
func AlignedBytes(n int64) []byte {
	w := make([]uint64, (n+7)/8)
	if len(w) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), n)
}

// F32 sees the view's bytes as float32. Both share memory.
func F32(m Memory, v View) []float32 { return castSlice[float32](m.Bytes(v)) }

// U32 sees the view's bytes as uint32. Both share memory.
func U32(m Memory, v View) []uint32 { return castSlice[uint32](m.Bytes(v)) }

// Words sees bytes as uint32 words; b must be 4-byte aligned.
func Words(b []byte) []uint32 { return castSlice[uint32](b) }

// Floats sees bytes as float32; b must be 4-byte aligned.
func Floats(b []byte) []float32 { return castSlice[float32](b) }

func castSlice[T uint32 | float32](b []byte) []T {
	if len(b) < 4 {
		return nil
	}
	p := unsafe.Pointer(&b[0])
	if uintptr(p)%4 != 0 {
		panic(fmt.Sprintf("shaders: memory of %d bytes is not aligned to 4", len(b)))
	}
	return unsafe.Slice((*T)(p), len(b)/4)
}

// castWords sees words as float32.
func castWords(w []uint32) []float32 {
	if len(w) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&w[0])), len(w))
}

// HalfPair returns the values of the two halves in a word, the low one first.
func HalfPair(w uint32) (lo, hi float32) {
	return quant.F16ToF32(uint16(w)), quant.F16ToF32(uint16(w >> 16))
}
