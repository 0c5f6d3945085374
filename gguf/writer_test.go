package gguf

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
)

// copyOf fills a Writer with all of f.
func copyOf(t testing.TB, f *File) *Writer {
	t.Helper()
	w := new(Writer)
	for key, v := range f.KeyValues() {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	for i, tensor := range f.Tensors() {
		data, err := f.Data(tensor)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			err = w.AddTensor(tensor.Name, tensor.Type, tensor.Dims, data)
		} else {
			err = w.AddTensorFunc(tensor.Name, tensor.Type, tensor.Dims, func(out io.Writer) error {
				for len(data) > 0 { // in pieces
					n := min(7, len(data))
					if _, err := out.Write(data[:n]); err != nil {
						return err
					}
					data = data[n:]
				}
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// sameModel compares metadata, tensors and data.
func sameModel(t testing.TB, a, b *File) {
	t.Helper()
	type entry struct {
		key   string
		kind  Kind
		elem  Kind
		n     int
		bytes string
	}
	metadata := func(f *File) (all []entry) {
		for key, v := range f.KeyValues() {
			all = append(all, entry{key, v.Kind(), v.Elem(), v.Len(), string(v.raw)})
		}
		return all
	}
	if x, y := metadata(a), metadata(b); !reflect.DeepEqual(x, y) {
		t.Errorf("metadata: %v, want %v", y, x)
	}
	if len(a.Tensors()) != len(b.Tensors()) {
		t.Fatalf("%d tensors, want %d", len(b.Tensors()), len(a.Tensors()))
	}
	for i, x := range a.Tensors() {
		y := b.Tensors()[i]
		if x.Name != y.Name || x.Type != y.Type || !reflect.DeepEqual(x.Dims, y.Dims) || x.Size != y.Size {
			t.Errorf("tensor %d: %+v, want %+v", i, *y, *x)
			continue
		}
		dx, err1 := a.Data(x)
		dy, err2 := b.Data(y)
		if err1 != nil || err2 != nil || !bytes.Equal(dx, dy) {
			t.Errorf("tensor %q: data differs (%v, %v)", x.Name, err1, err2)
		}
		if y.Offset%b.Alignment(y.Part) != 0 {
			t.Errorf("tensor %q: offset %d is not aligned to %d", y.Name, y.Offset, b.Alignment(y.Part))
		}
	}
}

// TestRoundTrip rewrites every file that the corpus accepts.
func TestRoundTrip(t *testing.T) {
	n := 0
	for _, dir := range corpusDirs() {
		for name := range readIndex(t, dir) {
			path := filepath.Join(dir, name+".gguf")
			f, err := Open(path)
			if err != nil {
				continue
			}
			n++
			t.Run(path, func(t *testing.T) {
				defer f.Close()
				var b bytes.Buffer
				w := copyOf(t, f)
				written, err := w.WriteTo(&b)
				if err != nil || written != int64(b.Len()) {
					t.Fatalf("%d of %d bytes, %v", written, b.Len(), err)
				}
				g, err := OpenBytes(name, b.Bytes())
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				sameModel(t, f, g)
				if g.Version() != 3 {
					t.Errorf("version %d", g.Version())
				}
				// What was written once is written the same again.
				first := bytes.Clone(b.Bytes())
				b.Reset()
				if _, err := copyOf(t, g).WriteTo(&b); err != nil || !bytes.Equal(first, b.Bytes()) {
					t.Errorf("rewriting changes the file (%v)", err)
				}
				// A version 3 file with nothing after its data is
				// rewritten to the byte.
				old, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if f.Version() == 3 && len(old) == len(first) && !bytes.Equal(old, first) {
					t.Error("the copy differs from the original")
				}
			})
		}
	}
	if n < 14 {
		t.Errorf("%d files, want 14 or more", n)
	}
}

// TestOracleModels opens and rewrites the reference models.
func TestOracleModels(t *testing.T) {
	paths, _ := filepath.Glob(filepath.Join(oracle(), "*", "model.gguf"))
	if oracle() == "" || len(paths) == 0 {
		t.Skip("no reference models: set CALDERA_ORACLE")
	}
	for _, path := range paths {
		f, err := Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if arch, err := f.String("general.architecture"); err != nil || len(f.Tensors()) == 0 {
			t.Errorf("%s: architecture %q, %d tensors, %v", path, arch, len(f.Tensors()), err)
		}
		if f.Size() < 4<<20 {
			out := filepath.Join(t.TempDir(), "copy.gguf")
			if err := copyOf(t, f).WriteFile(out); err != nil {
				t.Error(err)
			} else if g, err := Open(out); err != nil {
				t.Error(err)
			} else {
				sameModel(t, f, g)
				g.Close()
			}
		}
		f.Close()
	}
}

func TestWriterRefuses(t *testing.T) {
	var w Writer
	row := make([]byte, 34)
	for name, err := range map[string]error{
		"empty key":      w.Set("", "x"),
		"long key":       w.Set(strings.Repeat("k", MaxKey+1), "x"),
		"an int":         w.Set("k", 3),
		"a map":          w.Set("k", map[string]int{}),
		"nested":         w.Set("k", [][]int32{{1}}),
		"long string":    w.Set("k", strings.Repeat("x", MaxString+1)),
		"long element":   w.Set("k", []string{strings.Repeat("x", MaxString+1)}),
		"zero Value":     w.Set("k", Value{}),
		"alignment type": w.Set("general.alignment", uint64(32)),
		"alignment 24":   w.Set("general.alignment", uint32(24)),
		"no name":        w.AddTensor("", quant.F32, nil, make([]byte, 4)),
		"long name":      w.AddTensor(strings.Repeat("n", 64), quant.F32, nil, make([]byte, 4)),
		"NUL":            w.AddTensor("a\x00", quant.F32, nil, make([]byte, 4)),
		"5 dims":         w.AddTensor("a", quant.F32, []uint64{1, 1, 1, 1, 1}, make([]byte, 4)),
		"row":            w.AddTensor("a", quant.Q8_0, []uint64{33}, row),
		"short data":     w.AddTensor("a", quant.Q8_0, []uint64{32, 2}, row),
		"overflow":       w.AddTensor("a", quant.F32, []uint64{1 << 62, 2}, nil),
		"type":           w.AddTensor("a", quant.Type(4), []uint64{32}, row),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// Nothing of that has left a trace.
	if len(w.kvs) != 0 || len(w.tensors) != 0 || len(w.names) != 0 {
		t.Errorf("left behind: %d keys, %d tensors, %d names", len(w.kvs), len(w.tensors), len(w.names))
	}
	if err := w.AddTensor("a", quant.Q8_0, []uint64{32}, row); err != nil {
		t.Error(err)
	}
	if err := w.AddTensor("a", quant.Q8_0, []uint64{32}, row); err == nil {
		t.Error("duplicate name: no error")
	}
}

func TestSetAndDelete(t *testing.T) {
	f := build(t, func(w *Writer) error {
		for _, kv := range []struct {
			key   string
			value any
		}{{"a", uint8(1)}, {"b", uint8(2)}, {"c", uint8(3)}, {"a", "one"}} {
			if err := w.Set(kv.key, kv.value); err != nil {
				return err
			}
		}
		w.Delete("b")
		w.Delete("none")
		return w.Set("c", uint8(4))
	})
	defer f.Close()
	var got []string
	for key, v := range f.KeyValues() {
		got = append(got, key+"="+v.String())
	}
	if s := strings.Join(got, " "); s != `a="one" c=4` {
		t.Error(s)
	}
}

// failing fails its n-th write.
type failing struct {
	n int
}

var errDisk = errors.New("the disk is full")

func (f *failing) Write(b []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

// TestFailures fails every write in turn, and the callbacks.
func TestFailures(t *testing.T) {
	big := make([]byte, 3<<20)
	var w Writer
	w.AddTensor("a", quant.I8, []uint64{uint64(len(big))}, big)
	w.AddTensor("b", quant.I8, []uint64{5}, big[:5])
	n := 0
	for ; n < 100; n++ {
		_, err := w.WriteTo(&failing{n})
		if err == nil {
			break
		}
		if !errors.Is(err, errDisk) {
			t.Errorf("write %d: %v", n, err)
		}
	}
	if n == 0 || n == 100 {
		t.Errorf("succeeded after %d failures", n)
	}

	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(io.Writer) error{
		"too few":  func(out io.Writer) error { _, err := out.Write(big[:9]); return err },
		"too many": func(out io.Writer) error { _, err := out.Write(big[:11]); return err },
		"failed":   func(io.Writer) error { return errDisk },
	} {
		var w Writer
		w.AddTensorFunc("tensor.x", quant.I8, []uint64{10}, write)
		err := w.WriteFile(path)
		if err == nil || !strings.Contains(err.Error(), "tensor.x") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if old, err := os.ReadFile(path); err != nil || string(old) != "old" {
		t.Errorf("a failed WriteFile left %q, %v", old, err)
	}
	if err := w.WriteFile(path); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestAlignments writes tensors of awkward sizes at every alignment.
func TestAlignments(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for align := uint32(1); align <= MaxAlignment; align *= 16 {
		data := make([][]byte, 5)
		f := build(t, func(w *Writer) error {
			if err := w.Set("general.alignment", align); err != nil {
				return err
			}
			for i, n := range []uint64{3, 0, 33, 32, 1} {
				data[i] = make([]byte, n)
				for k := range data[i] {
					data[i][k] = byte(rng.Uint32())
				}
				if err := w.AddTensor(string(rune('a'+i)), quant.I8, []uint64{n}, data[i]); err != nil {
					return err
				}
			}
			return nil
		})
		for i, tensor := range f.Tensors() {
			got, err := f.Data(tensor)
			if err != nil || !bytes.Equal(got, data[i]) || tensor.Offset%int64(align) != 0 {
				t.Errorf("alignment %d, tensor %q at %d: %v", align, tensor.Name, tensor.Offset, err)
			}
		}
		f.Close()
	}
}
