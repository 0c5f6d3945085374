package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/calderaml/caldera/gguf/quant"
)

// A Writer collects the metadata and tensors of a model and writes them as a
// GGUF version 3 file, in the order they were given. What it accepts, [Open]
// accepts. The zero Writer is ready to use.
type Writer struct {
	kvs     []keyValue
	index   map[string]int
	tensors []newTensor
	names   map[string]struct{}
}

// newTensor is a tensor to be written: its size and what produces its bytes.
type newTensor struct {
	name  string
	typ   quant.Type
	dims  []uint64
	size  int64
	write func(io.Writer) error
}

// Set adds a metadata entry, or replaces the value of one in its place. The
// value is anything that [ValueOf] takes, such as a [Value] of another file,
// which must stay open until the writing is done.
func (w *Writer) Set(key string, value any) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("gguf: key %.40q is %d bytes long, want 1 to %d", key, len(key), MaxKey)
	}
	v, err := ValueOf(value)
	if err != nil {
		return fmt.Errorf("gguf: %q: %w", key, err)
	}
	if key == keyAlignment {
		if _, err := alignment(v); err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
	}
	if i, ok := w.index[key]; ok {
		w.kvs[i].value = v
		return nil
	}
	if len(w.kvs) == MaxKeys {
		return fmt.Errorf("gguf: %q: there are %d metadata entries already", key, MaxKeys)
	}
	if w.index == nil {
		w.index = make(map[string]int)
	}
	w.index[key] = len(w.kvs)
	w.kvs = append(w.kvs, keyValue{key, v})
	return nil
}

// Delete removes a metadata entry, if it is there.
func (w *Writer) Delete(key string) {
	i, ok := w.index[key]
	if !ok {
		return
	}
	w.kvs = slices.Delete(w.kvs, i, i+1)
	delete(w.index, key)
	for k, at := range w.index {
		if at > i {
			w.index[k] = at - 1
		}
	}
}

// AddTensor adds a tensor whose bytes are in memory. The data is not copied and
// must not change until it is written.
func (w *Writer) AddTensor(name string, t quant.Type, dims []uint64, data []byte) error {
	size, err := w.add(name, t, dims, func(out io.Writer) error {
		_, err := out.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if size != int64(len(data)) {
		w.tensors = w.tensors[:len(w.tensors)-1]
		delete(w.names, name)
		return fmt.Errorf("gguf: tensor %q: %v %v is %d bytes, got %d", name, t, dims, size, len(data))
	}
	return nil
}

// AddTensorFunc adds a tensor whose bytes write produces when the file is
// written: exactly as many as the type and dimensions need.
func (w *Writer) AddTensorFunc(name string, t quant.Type, dims []uint64, write func(io.Writer) error) error {
	_, err := w.add(name, t, dims, write)
	return err
}

func (w *Writer) add(name string, t quant.Type, dims []uint64, write func(io.Writer) error) (int64, error) {
	if err := checkName(name); err != nil {
		return 0, fmt.Errorf("gguf: %w", err)
	}
	if _, dup := w.names[name]; dup {
		return 0, fmt.Errorf("gguf: tensor %q: the name is there already", name)
	}
	if len(dims) > MaxDims {
		return 0, fmt.Errorf("gguf: tensor %q has %d dimensions, the limit is %d", name, len(dims), MaxDims)
	}
	if len(w.tensors) == MaxTensors {
		return 0, fmt.Errorf("gguf: tensor %q: there are %d tensors already", name, MaxTensors)
	}
	size, err := tensorBytes(t, dims)
	if err != nil {
		return 0, fmt.Errorf("gguf: tensor %q: %w", name, err)
	}
	if w.names == nil {
		w.names = make(map[string]struct{})
	}
	w.names[name] = struct{}{}
	w.tensors = append(w.tensors, newTensor{name, t, slices.Clone(dims), size, write})
	return size, nil
}

// header returns everything up to the data section, its padding included.
func (w *Writer) header() (header []byte, align uint64, err error) {
	align = DefaultAlign
	if i, ok := w.index[keyAlignment]; ok {
		if align, err = alignment(w.kvs[i].value); err != nil {
			return nil, 0, fmt.Errorf("gguf: %w", err)
		}
	}
	le := binary.LittleEndian
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = le.AppendUint64(b, uint64(len(w.tensors)))
	b = le.AppendUint64(b, uint64(len(w.kvs)))
	for _, kv := range w.kvs {
		b = appendString(b, kv.key)
		b = le.AppendUint32(b, uint32(kv.value.Kind()))
		if kv.value.array {
			b = le.AppendUint32(b, uint32(kv.value.elem))
			b = le.AppendUint64(b, uint64(kv.value.n))
		}
		b = append(b, kv.value.raw...)
	}
	next := uint64(0)
	for _, t := range w.tensors {
		b = appendString(b, t.name)
		b = le.AppendUint32(b, uint32(len(t.dims)))
		for _, d := range t.dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint32(b, uint32(t.typ))
		b = le.AppendUint64(b, next)
		padded, ok := padTo(uint64(t.size), align)
		if ok {
			next, ok = addTo(next, padded)
		}
		if !ok {
			return nil, 0, fmt.Errorf("gguf: tensor %q: its end overflows", t.name)
		}
	}
	if len(w.tensors) > 0 {
		end, _ := padTo(uint64(len(b)), align)
		b = append(b, make([]byte, end-uint64(len(b)))...)
	}
	return b, align, nil
}

// Size returns the bytes of the file as it would be written now.
func (w *Writer) Size() (int64, error) {
	header, align, err := w.header()
	if err != nil {
		return 0, err
	}
	size := uint64(len(header))
	for _, t := range w.tensors {
		padded, ok := padTo(uint64(t.size), align)
		if ok {
			size, ok = addTo(size, padded)
		}
		if !ok || size > maxInt63 {
			return 0, fmt.Errorf("gguf: tensor %q: its end overflows", t.name)
		}
	}
	return int64(size), nil
}

// WriteTo writes the file. It may be called again: the callbacks of
// [Writer.AddTensorFunc] are then called again too.
func (w *Writer) WriteTo(dst io.Writer) (int64, error) {
	header, align, err := w.header()
	if err != nil {
		return 0, err
	}
	count := &counter{w: dst}
	out := bufio.NewWriterSize(count, 1<<20)
	if _, err := out.Write(header); err != nil {
		return count.n, fmt.Errorf("gguf: write the header: %w", err)
	}
	zeros := make([]byte, align)
	for _, t := range w.tensors {
		exact := &counter{w: out, limited: true, left: t.size}
		err := t.write(exact)
		if err == nil && exact.left > 0 {
			err = fmt.Errorf("got %d bytes, want %d", exact.n, t.size)
		}
		if err == nil {
			padded, _ := padTo(uint64(t.size), align)
			_, err = out.Write(zeros[:padded-uint64(t.size)])
		}
		if err != nil {
			return count.n, fmt.Errorf("gguf: write tensor %q: %w", t.name, err)
		}
	}
	if err := out.Flush(); err != nil {
		return count.n, fmt.Errorf("gguf: write: %w", err)
	}
	return count.n, nil
}

// A counter counts the bytes written through it and, if limited, refuses more
// than are left.
type counter struct {
	w       io.Writer
	n       int64
	limited bool
	left    int64
}

func (c *counter) Write(b []byte) (int, error) {
	if c.limited && int64(len(b)) > c.left {
		return 0, fmt.Errorf("got more bytes than the tensor's %d", c.n+c.left)
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.left -= int64(n)
	return n, err
}
