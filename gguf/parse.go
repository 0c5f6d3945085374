package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/gguf/quant"
)

// A part is one file of a model: its bytes and its parsed header.
type part struct {
	name      string
	data      []byte
	mapping   *mapping.Mapping // nil for bytes in memory
	version   uint32
	kvs       []keyValue
	index     map[string]int // key to its place in kvs
	align     uint64
	dataStart uint64
	tensors   []Tensor
}

type keyValue struct {
	key   string
	value Value
}

func (p *part) value(key string) (Value, bool) {
	i, ok := p.index[key]
	if !ok {
		return Value{}, false
	}
	return p.kvs[i].value, true
}

func (p *part) close() error {
	if p.mapping == nil {
		return nil
	}
	m := p.mapping
	p.mapping, p.data, p.kvs, p.index = nil, nil, nil, nil
	if err := m.Close(); err != nil {
		return fmt.Errorf("gguf: %s: %w", p.name, err)
	}
	return nil
}

// openPart maps a file and parses its header. A lenient open takes a file that grows meanwhile, as a download under
// way does, if what was there makes a header.
func openPart(path string, lenient bool) (*part, error) {
	m, err := mapping.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	p, err := parsePart(path, m.Bytes())
	// A file that is being written while it is read makes no sense, and that is the better reason.
	if cerr := m.Check(); cerr != nil && (err != nil || !lenient) {
		err = fmt.Errorf("gguf: %w", cerr)
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	p.mapping = m
	return p, nil
}

// parsePart parses the header of a file. That the tensors' bytes are there is
// for checkExtents; here they only have to be possible.
func parsePart(name string, data []byte) (*part, error) {
	p := &part{name: name, data: data}
	c := &cursor{data: data}
	if err := p.parse(c); err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", name, err)
	}
	return p, nil
}

func (p *part) parse(c *cursor) error {
	magic := c.take(4, "the magic")
	if c.err == nil && !bytes.Equal(magic, []byte("GGUF")) {
		return fmt.Errorf("is not a GGUF file: it begins with %q, not \"GGUF\"", magic)
	}
	p.version = c.u32("the version")
	if c.err == nil {
		if err := checkVersion(p.version); err != nil {
			return err
		}
	}
	tensors, keys := c.u64("the tensor count"), c.u64("the metadata count")
	switch {
	case c.err != nil:
		return c.err
	case keys > MaxKeys:
		return fmt.Errorf("the header claims %d metadata entries, the limit is %d", keys, MaxKeys)
	case tensors > MaxTensors:
		return fmt.Errorf("the header claims %d tensors, the limit is %d", tensors, MaxTensors)
	case keys*minKVBytes+tensors*minTensorBytes > c.left():
		return fmt.Errorf("the header claims %d metadata entries and %d tensors, but only %d bytes follow", keys, tensors, c.left())
	}
	if err := p.parseMetadata(c, int(keys)); err != nil {
		return err
	}
	if err := p.parseAlignment(); err != nil {
		return err
	}
	return p.parseTensors(c, int(tensors))
}

func checkVersion(v uint32) error {
	switch {
	case v == 2 || v == 3:
		return nil
	case v == 1:
		return fmt.Errorf("GGUF version 1 is not supported: convert the model again with a current converter")
	case v != 0 && v&0xffff == 0:
		return fmt.Errorf("is a big-endian GGUF (version %d): convert it to little-endian", bits.ReverseBytes32(v))
	}
	return fmt.Errorf("GGUF version %d is not supported, only 2 and 3 are", v)
}

func (p *part) parseMetadata(c *cursor, n int) error {
	p.kvs = make([]keyValue, 0, n)
	p.index = make(map[string]int, n)
	for i := range n {
		key := string(c.text(MaxKey, "a key"))
		if c.err != nil {
			return fmt.Errorf("metadata entry %d: %w", i, c.err)
		}
		if key == "" {
			return fmt.Errorf("metadata entry %d: the key is empty", i)
		}
		if _, dup := p.index[key]; dup {
			return fmt.Errorf("metadata entry %d: the key %q is there twice", i, key)
		}
		v := c.value(Kind(c.u32("a value type")))
		if c.err != nil {
			return fmt.Errorf("metadata entry %d, %q: %w", i, key, c.err)
		}
		p.index[key] = i
		p.kvs = append(p.kvs, keyValue{key, v})
	}
	return nil
}

func (p *part) parseAlignment() error {
	p.align = DefaultAlign
	v, ok := p.value(keyAlignment)
	if !ok {
		return nil
	}
	var err error
	p.align, err = alignment(v)
	return err
}

// alignment returns the number of a general.alignment value: a uint32 and
// nothing else, a power of two, 1 to MaxAlignment.
func alignment(v Value) (uint64, error) {
	if v.Kind() != KindUint32 {
		return 0, fmt.Errorf("%q is %s, want uint32", keyAlignment, v.describe())
	}
	a := uint64(binary.LittleEndian.Uint32(v.raw))
	if a == 0 || a&(a-1) != 0 || a > MaxAlignment {
		return 0, fmt.Errorf("%q is %d, want a power of two up to %d", keyAlignment, a, MaxAlignment)
	}
	return a, nil
}

func (p *part) parseTensors(c *cursor, n int) error {
	// What the header claims is not trusted with more than a little memory at once.
	p.tensors = make([]Tensor, 0, min(n, 4096))
	names := make(map[string]struct{}, min(n, 4096))
	var next uint64 // where the next tensor must begin, from the data section
	for i := range n {
		t, offset, err := parseTensor(c)
		if err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
		if _, dup := names[t.Name]; dup {
			return fmt.Errorf("tensor %d: the name %q is there twice", i, t.Name)
		}
		names[t.Name] = struct{}{}
		if offset != next {
			return fmt.Errorf("tensor %q begins at offset %d of the data, want %d, right after the tensor before%s",
				t.Name, offset, next, p.legacyHint(i, offset))
		}
		padded, ok := padTo(uint64(t.Size), p.align)
		if ok {
			next, ok = addTo(next, padded)
		}
		if !ok {
			return fmt.Errorf("tensor %q: its end overflows", t.Name)
		}
		t.Offset = int64(offset)
		p.tensors = append(p.tensors, t)
	}
	p.dataStart = uint64(c.pos)
	if n == 0 {
		return nil
	}
	start, ok := padTo(p.dataStart, p.align)
	if !ok || start > uint64(len(p.data)) {
		return fmt.Errorf("the file ends at byte %d, before the data section at %d", len(p.data), start)
	}
	if _, ok = addTo(start, next); !ok {
		return fmt.Errorf("the end of the data section overflows")
	}
	p.dataStart = start
	for i := range p.tensors {
		p.tensors[i].Offset += int64(start)
	}
	return nil
}

// parseTensor takes one entry of the tensor table; its offset is relative to
// the data section.
func parseTensor(c *cursor) (t Tensor, offset uint64, err error) {
	t.Name = string(c.text(MaxTensorName, "a tensor name"))
	n := c.u32("the number of dimensions")
	if c.err != nil {
		return t, 0, c.err
	}
	if err := checkName(t.Name); err != nil {
		return t, 0, err
	}
	if n > MaxDims {
		return t, 0, fmt.Errorf("%q has %d dimensions, the limit is %d", t.Name, n, MaxDims)
	}
	t.Dims = make([]uint64, n)
	for i := range t.Dims {
		t.Dims[i] = c.u64("a dimension")
	}
	id := c.u32("a tensor type")
	offset = c.u64("a tensor offset")
	if c.err != nil {
		return t, 0, fmt.Errorf("%q: %w", t.Name, c.err)
	}
	if t.Type, err = quant.Lookup(id); err != nil {
		return t, 0, fmt.Errorf("%q: %w", t.Name, err)
	}
	if t.Size, err = tensorBytes(t.Type, t.Dims); err != nil {
		return t, 0, fmt.Errorf("%q: %w", t.Name, err)
	}
	return t, offset, nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the tensor name is empty")
	case len(name) > MaxTensorName:
		return fmt.Errorf("the tensor name %q is longer than %d bytes", name, MaxTensorName)
	case bytes.IndexByte([]byte(name), 0) >= 0:
		return fmt.Errorf("the tensor name %q contains a NUL", name)
	}
	return nil
}

// tensorBytes returns the size of a tensor. Neither its rows, its elements nor
// its bytes may exceed an int64 (weights.md 1.5).
func tensorBytes(t quant.Type, dims []uint64) (int64, error) {
	ne0, rows := uint64(1), uint64(1)
	fits := true
	for i, d := range dims {
		if i == 0 {
			ne0 = d
		} else if rows, fits = mul(rows, d); !fits {
			break
		}
	}
	if fits {
		_, fits = mul(ne0, rows)
	}
	if !fits {
		return 0, fmt.Errorf("the number of elements of dimensions %v overflows", dims)
	}
	row, err := t.RowBytes(ne0)
	if err != nil {
		return 0, err
	}
	size, fits := mul(row, rows)
	if !fits {
		return 0, fmt.Errorf("the number of bytes of %v elements of dimensions %v overflows", t, dims)
	}
	return int64(size), nil
}

// mul multiplies two numbers if they and their product are below 2^63.
func mul(a, b uint64) (uint64, bool) {
	hi, lo := bits.Mul64(a, b)
	return lo, hi == 0 && a <= maxInt63 && b <= maxInt63 && lo <= maxInt63
}

// padTo rounds n up to a multiple of align, a power of two.
func padTo(n, align uint64) (uint64, bool) {
	if n > maxInt63-(align-1) {
		return 0, false
	}
	return (n + align - 1) &^ (align - 1), true
}

// addTo adds two numbers below 2^63 if their sum is.
func addTo(a, b uint64) (uint64, bool) { return a + b, a+b <= maxInt63 }
