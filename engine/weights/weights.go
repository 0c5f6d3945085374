// Package weights decides where the bytes of a model's tensors live: mapped host memory for the reference
// executor, and for a die either the file's own pages, which the device reads in place, or device memory that
// they are copied to. Nothing is dequantised at load.
package weights

import (
	"fmt"
	"unsafe"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/shaders"
)

// An Item ties a buffer to the bytes that belong in it.
type Item struct {
	Buf *shaders.Buffer
	// Tensor is the tensor whose bytes the buffer holds as they are in the file; nil when Bytes makes
	// them, from parts or rows of tensors in another order.
	Tensor *gguf.Tensor
	// Bytes returns the content. The slice may alias the file's mapping and must not be changed. It may be
	// up to three bytes shorter than the buffer, whose size is whole words.
	Bytes func() ([]byte, error)
	// HostOnly says that no kernel reads the buffer, so that it needs no place on the device.
	HostOnly bool
}

// Total is the size of the items in bytes.
func Total(items []Item) int64 {
	n := int64(0)
	for _, it := range items {
		n += it.Buf.Size
	}
	return n
}

// Map returns host memory that holds the items: the file's own pages where they are aligned for words,
// copies elsewhere.
func Map(items []Item) (shaders.HostMemory, error) {
	m := shaders.HostMemory{}
	for _, it := range items {
		data, err := it.content()
		if err != nil {
			return nil, err
		}
		if int64(len(data)) != it.Buf.Size || (len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%4 != 0) {
			c := shaders.AlignedBytes(it.Buf.Size)
			copy(c, data)
			data = c
		}
		m[it.Buf] = data
	}
	return m, nil
}

// content reads an item's bytes and checks their number.
func (it Item) content() ([]byte, error) {
	data, err := it.Bytes()
	if err != nil {
		return nil, fmt.Errorf("weights %s: %w", it.Buf.Name, err)
	}
	if n := int64(len(data)); n > it.Buf.Size || it.Buf.Size-n > 3 {
		return nil, fmt.Errorf("weights %s: %d bytes for a buffer of %d", it.Buf.Name, n, it.Buf.Size)
	}
	return data, nil
}
