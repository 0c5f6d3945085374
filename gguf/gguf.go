// Package gguf reads and writes GGUF files, the containers of language models
// (weights.md section 1): ordered metadata, a table of tensors, and their bytes.
//
// A file is memory-mapped and its header parsed in place; the data section is
// only touched through the slices that [File.Data] returns. Nothing in a file
// is trusted: every length is compared with the bytes that are there before it
// is used, so a damaged or hostile file gives an error that names what is
// wrong, at a cost bounded by its own size.
package gguf

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/gguf/quant"
)

// Limits of weights.md 1.5. A file beyond one of them is refused.
const (
	MaxString     = 16 << 20 // bytes of a metadata string
	MaxArray      = 64 << 20 // elements of a metadata array
	MaxKey        = 65535    // bytes of a metadata key
	MaxTensorName = 63       // bytes of a tensor name
	MaxKeys       = 65536    // metadata entries
	MaxTensors    = 1 << 20  // tensors of one file
	MaxDims       = 4        // dimensions of a tensor
	MaxAlignment  = 1 << 20  // bytes
	MaxBlockCount = 512      // layers; for model loaders, before they size a table
	DefaultAlign  = 32       // bytes, without general.alignment
)

const (
	keyAlignment   = "general.alignment"
	maxInt63       = 1<<63 - 1
	minKVBytes     = 8 + 1 + 4 + 1     // key length, key, type, smallest value
	minTensorBytes = 8 + 1 + 4 + 4 + 8 // name length, name, dims, type, offset
)

var (
	// ErrMissing is in the chain of the error for a key that is not there.
	ErrMissing = errors.New("key is missing")

	// ErrTruncated is in the chain of the error for a file whose header is
	// sound but that ends before the bytes of a tensor do, or for a split
	// model one of whose parts is not there.
	ErrTruncated = errors.New("tensor data is missing")

	// ErrChanged is in the chain of the error for a file that was truncated or
	// written to while it was open.
	ErrChanged = mapping.ErrChanged
)

// A Tensor is an entry of the tensor table.
type Tensor struct {
	Name   string
	Type   quant.Type
	Dims   []uint64 // elements, the contiguous dimension (ne0) first; 0 to 4 of them
	Part   int      // index of the file of a split model that holds the bytes
	Offset int64    // bytes from the start of that file
	Size   int64    // bytes
}

// Ne returns the size of dimension i, 1 for those that are not stored.
func (t *Tensor) Ne(i int) uint64 {
	if i < len(t.Dims) {
		return t.Dims[i]
	}
	return 1
}

// Rows returns the number of rows of Ne(0) elements.
func (t *Tensor) Rows() uint64 { return t.Ne(1) * t.Ne(2) * t.Ne(3) }

// Elements returns the number of elements. It cannot overflow for a tensor
// that was read from a file.
func (t *Tensor) Elements() uint64 { return t.Ne(0) * t.Rows() }

// RowBytes returns the bytes of one row.
func (t *Tensor) RowBytes() int64 {
	n, err := t.Type.RowBytes(t.Ne(0))
	if err != nil {
		return 0
	}
	return int64(n)
}

// A File is an open GGUF model: one file, or all parts of a split one. Its
// methods may be called from several goroutines at once, except Close.
type File struct {
	name    string
	parts   []*part
	tensors []*Tensor
	byName  map[string]*Tensor
	missing []error
}

// Open maps the model at path for reading. Of a split model any part may be
// named; all of them are opened. Every tensor's bytes are checked to lie within
// their file: one that is cut short is an [ErrTruncated] that names the tensor.
//
// A file that is truncated or written to while it is open is found by
// [File.Intact]; reading what was lost gives zeros (package mapping).
func Open(path string) (*File, error) { return open(path, false) }

// OpenHeader is Open for looking at a model whose data may be incomplete, such
// as a download under way. What is missing is listed by [File.Missing] instead
// of being an error, and [File.Data] fails for those tensors alone.
func OpenHeader(path string) (*File, error) { return open(path, true) }

// OpenBytes reads a model held in memory, which must not change while the File
// is in use. The name is for messages. Split models cannot be read this way.
func OpenBytes(name string, data []byte) (*File, error) { return openBytes(name, data, false) }

// OpenHeaderBytes is [OpenHeader] for a model held in memory. The data may end
// anywhere after the header.
func OpenHeaderBytes(name string, data []byte) (*File, error) { return openBytes(name, data, true) }

func openBytes(name string, data []byte, lenient bool) (*File, error) {
	p, err := parsePart(name, data)
	if err != nil {
		return nil, err
	}
	f := newFile(name, p)
	s, err := p.split()
	if err != nil {
		return nil, err
	}
	if s.count > 1 {
		err := fmt.Errorf("gguf: %s: is part %d of %d of a split model, which must be opened from disk", name, s.no+1, s.count)
		if !lenient {
			return nil, err
		}
		f.missing = append(f.missing, err)
	}
	return f.finish(lenient)
}

func newFile(name string, first *part) *File {
	return &File{name: name, parts: []*part{first}}
}

// finish indexes the tensors of all parts and checks that their bytes are there.
func (f *File) finish(lenient bool) (*File, error) {
	n := 0
	for _, p := range f.parts {
		n += len(p.tensors)
	}
	f.tensors = make([]*Tensor, 0, n)
	f.byName = make(map[string]*Tensor, n)
	for i, p := range f.parts {
		for k := range p.tensors {
			t := &p.tensors[k]
			if other, ok := f.byName[t.Name]; ok {
				return nil, fmt.Errorf("gguf: %s: tensor %q is also in %s", p.name, t.Name, f.parts[other.Part].name)
			}
			t.Part = i
			f.tensors = append(f.tensors, t)
			f.byName[t.Name] = t
		}
		if err := p.checkExtents(); err != nil {
			if !lenient {
				return nil, err
			}
			f.missing = append(f.missing, err)
		}
	}
	return f, nil
}

// Close unmaps the files. Slices returned by Data and Values of the metadata
// must not be used afterwards.
func (f *File) Close() error {
	var errs []error
	for _, p := range f.parts {
		errs = append(errs, p.close())
	}
	f.parts, f.tensors, f.byName = nil, nil, nil
	return errors.Join(errs...)
}

// Name returns the path or name the file was opened by.
func (f *File) Name() string { return f.name }

// Version returns the version of the container, 2 or 3.
func (f *File) Version() int {
	if len(f.parts) == 0 {
		return 0
	}
	return int(f.parts[0].version)
}

// Parts returns the names of the files, one unless the model is split.
func (f *File) Parts() []string {
	names := make([]string, len(f.parts))
	for i, p := range f.parts {
		names[i] = p.name
	}
	return names
}

// Pages returns the whole pages of memory that a file of the model is mapped
// to, for sharing them with a device: its bytes, and zeros to the end of the
// last page. It is read-only, and nil for a model that is not mapped.
func (f *File) Pages(part int) []byte {
	if part < 0 || part >= len(f.parts) || f.parts[part].mapping == nil {
		return nil
	}
	return f.parts[part].mapping.Pages()
}

// Intact returns an [ErrChanged] when one of the files was truncated, grew or
// was written to since it was opened, so that what was read of it may be wrong.
// Whoever computes with the bytes that [File.Data] returns asks before the
// results are used. Having failed once it always fails. A file that was removed
// or replaced by another of its name stays what it was and is no error. It
// costs about a microsecond a file.
func (f *File) Intact() error {
	for _, p := range f.parts {
		if p.mapping == nil {
			continue
		}
		if err := p.mapping.Check(); err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
	}
	return nil
}

// Alignment returns the alignment in bytes of tensors in part's data section.
func (f *File) Alignment(part int) int64 { return int64(f.parts[part].align) }

// DataStart returns the offset in bytes of part's data section.
func (f *File) DataStart(part int) int64 { return int64(f.parts[part].dataStart) }

// Size returns the size in bytes of all files together.
func (f *File) Size() int64 {
	var n int64
	for _, p := range f.parts {
		n += int64(len(p.data))
	}
	return n
}

// Missing returns what a header-only open found to be incomplete: one error for
// each part that is absent or ends before its tensors do.
func (f *File) Missing() []error { return f.missing }

// Tensors returns the tensors in file order, part after part. The slice is
// shared: do not change it.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Tensor returns the tensor of a name.
func (f *File) Tensor(name string) (*Tensor, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// Data returns the bytes of a tensor of this file: a window of the mapping, not
// a copy. Writing to it is a fault. It is an [ErrTruncated] if the file ends
// before the tensor does.
func (f *File) Data(t *Tensor) ([]byte, error) {
	if f.parts == nil {
		return nil, fmt.Errorf("gguf: %s: tensor %q: %w", f.name, t.Name, os.ErrClosed)
	}
	if t.Part < 0 || t.Part >= len(f.parts) {
		return nil, fmt.Errorf("gguf: %s: tensor %q is of part %d, the model has %d", f.name, t.Name, t.Part+1, len(f.parts))
	}
	p := f.parts[t.Part]
	size := int64(len(p.data))
	if t.Offset < 0 || t.Size < 0 || t.Offset > size || t.Size > size-t.Offset {
		return nil, fmt.Errorf("gguf: %s: %w", p.name, p.truncated(t))
	}
	return p.data[t.Offset : t.Offset+t.Size : t.Offset+t.Size], nil
}

// KeyValues yields the metadata in file order; of a split model, that of its
// first part.
func (f *File) KeyValues() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if len(f.parts) == 0 {
			return
		}
		for _, kv := range f.parts[0].kvs {
			if !yield(kv.key, kv.value) {
				return
			}
		}
	}
}

// Value returns the value of a key.
func (f *File) Value(key string) (Value, bool) {
	if len(f.parts) == 0 {
		return Value{}, false
	}
	return f.parts[0].value(key)
}
