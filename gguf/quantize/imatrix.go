package quantize

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// An Imatrix is an importance matrix: how much the columns of matrices count,
// the mean square of what a calibration text put into them.
type Imatrix struct {
	Name    string               // path
	Dataset string               // what the text was, if known
	Chunks  uint32               // pieces of text, if known
	Entries map[string][]float32 // by tensor name; ne0 values, or ne0 for each matrix of a stack
}

// The suffixes of the tensors of an importance matrix in GGUF (weights.md 10.2),
// the older name last.
const (
	suffixCounts = ".counts"
	suffixSums   = ".in_sum2"
	suffixOlder  = ".sums"
)

// ReadImatrix reads an importance matrix in either of its containers, GGUF or
// the older .dat (weights.md 10.1, 10.2). Its memory is bounded by the size of
// the file.
func ReadImatrix(path string) (*Imatrix, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("importance matrix: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, inputf("importance matrix %s: is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("importance matrix: %w", err)
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); err != nil {
		return nil, inputf("importance matrix %s: is %d bytes long", path, info.Size())
	}
	im := &Imatrix{Name: path, Entries: make(map[string][]float32)}
	if string(magic) == "GGUF" {
		err = im.readGGUF(path)
	} else if _, err = f.Seek(0, io.SeekStart); err == nil {
		err = im.readLegacy(&legacy{r: bufio.NewReaderSize(f, 1<<20), left: info.Size()})
	}
	if err != nil {
		return nil, inputf("importance matrix %s: %w", path, err)
	}
	return im, nil
}

// readGGUF reads W.in_sum2 (or W.sums), ne {ne0, n}, and W.counts, ne {1, n}, of
// each matrix W; n is the number of experts, or 1.
func (im *Imatrix) readGGUF(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if kind, err := f.String("general.type"); err == nil && kind != "imatrix" {
		return fmt.Errorf("is a GGUF file of type %q, not imatrix", kind)
	}
	if names, err := f.Strings("imatrix.datasets"); err == nil && len(names) > 0 {
		im.Dataset = names[0]
	}
	if n, err := f.Uint32("imatrix.chunk_count"); err == nil {
		im.Chunks = n
	}
	for _, t := range f.Tensors() {
		name, ok := strings.CutSuffix(t.Name, suffixSums)
		if !ok {
			if name, ok = strings.CutSuffix(t.Name, suffixOlder); !ok {
				continue
			}
		}
		if _, dup := im.Entries[name]; dup {
			return fmt.Errorf("has two entries for %s", name)
		}
		counts, ok := f.Tensor(name + suffixCounts)
		if !ok {
			return fmt.Errorf("has %s, but no %s%s", t.Name, name, suffixCounts)
		}
		sum, err := floats(f, t)
		if err != nil {
			return err
		}
		seen, err := floats(f, counts)
		if err != nil {
			return err
		}
		if len(sum) == 0 || t.Ne(1)*t.Ne(2)*t.Ne(3) != uint64(len(seen)) {
			return fmt.Errorf("%s is %v, but %s is %v: want one count for each row", t.Name, t.Dims, counts.Name, counts.Dims)
		}
		if err := im.add(name, sum, seen); err != nil {
			return err
		}
	}
	if len(im.Entries) == 0 {
		return errors.New("has no entries")
	}
	return f.Intact()
}

// floats copies a tensor of float32.
func floats(f *gguf.File, t *gguf.Tensor) ([]float32, error) {
	if t.Type != quant.F32 {
		return nil, fmt.Errorf("%s is %v, want F32", t.Name, t.Type)
	}
	data, err := f.Data(t)
	if err != nil {
		return nil, err
	}
	v := make([]float32, t.Elements())
	return v, quant.Dequantize(quant.F32, v, data)
}

// add stores the entry of sums over counts, one count for each of the equal
// parts of sum. A part that was never seen counts 1 everywhere.
func (im *Imatrix) add(name string, sum, counts []float32) error {
	part := len(sum) / len(counts)
	for i, n := range counts {
		if !(n >= 0) || !finite(n) {
			return fmt.Errorf("%s: count %d is %g, want a number of tokens", name, i, n)
		}
		for j := i * part; j < (i+1)*part; j++ {
			v := sum[j]
			switch {
			case n == 0:
				v = 1
			default:
				v /= n
			}
			if !(v >= 0) || !finite(v) {
				return fmt.Errorf("%s: value %d is %g, want a mean of squares", name, j, v)
			}
			sum[j] = v
		}
	}
	im.Entries[name] = sum
	return nil
}

// A legacy reads the older container and knows how many bytes are left.
type legacy struct {
	r    io.Reader
	left int64
}

// take returns the next n bytes.
func (l *legacy) take(n int64, what string) ([]byte, error) {
	if n < 0 || n > l.left {
		return nil, fmt.Errorf("%s would be %d bytes, but %d are left: no importance matrix, or a damaged one", what, n, l.left)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(l.r, b); err != nil {
		return nil, err
	}
	l.left -= n
	return b, nil
}

func (l *legacy) int32(what string) (int32, error) {
	b, err := l.take(4, what)
	if err != nil {
		return 0, err
	}
	return int32(binary.LittleEndian.Uint32(b)), nil
}

// maxLegacyValues is the most values of an entry: those of 4096 experts with rows of 16384 weights.
const maxLegacyValues = 1 << 26

// minLegacyEntry is the size of an entry with an empty name and no values.
const minLegacyEntry = 12

func (im *Imatrix) readLegacy(l *legacy) error {
	n, err := l.int32("the number of entries")
	if err != nil {
		return err
	}
	if n < 1 || int64(n) > l.left/minLegacyEntry {
		return fmt.Errorf("is no importance matrix, or a damaged one: it would have %d entries in %d bytes", n, l.left)
	}
	for i := range n {
		if err := im.readEntry(l, i); err != nil {
			return err
		}
	}
	// What follows, some writers leave out.
	if l.left == 0 {
		return nil
	}
	chunks, err := l.int32("the number of chunks")
	if err != nil {
		return err
	}
	im.Chunks = uint32(max(chunks, 0))
	if l.left == 0 {
		return nil
	}
	size, err := l.int32("the length of the dataset's name")
	if err != nil {
		return err
	}
	dataset, err := l.take(int64(size), "the dataset's name")
	im.Dataset = string(dataset)
	return err
}

func (im *Imatrix) readEntry(l *legacy, i int32) error {
	size, err := l.int32("the length of a name")
	if err != nil {
		return err
	}
	if size < 1 || size > gguf.MaxTensorName {
		return fmt.Errorf("the name of entry %d has %d bytes, want 1 to %d: no importance matrix, or a damaged one", i, size, gguf.MaxTensorName)
	}
	b, err := l.take(int64(size), "a name")
	if err != nil {
		return err
	}
	name := string(b)
	if _, dup := im.Entries[name]; dup {
		return fmt.Errorf("has two entries for %s", name)
	}
	calls, err := l.int32(name + ": the number of calls")
	if err != nil {
		return err
	}
	values, err := l.int32(name + ": the number of values")
	if err != nil {
		return err
	}
	if values < 1 || values > maxLegacyValues && 4*int64(values) <= l.left {
		return fmt.Errorf("%s: has %d values, want 1 to %d", name, values, maxLegacyValues)
	}
	if b, err = l.take(4*int64(values), name+": the values"); err != nil {
		return err
	}
	v := make([]float32, values)
	for k := range v {
		v[k] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*k:]))
	}
	return im.add(name, v, []float32{float32(max(calls, 1))})
}
