package gguf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// methods are the accessors of a key.
var methods = []string{"String", "Bool", "Uint32", "Uint64", "Int32", "Int64", "Int", "Float32", "Float64",
	"Strings", "Uint32s", "Uint64s", "Int32s", "Ints", "Float32s", "Bools"}

// addSeeds gives a fuzz target the files of the acceptance corpus, and of every reference model its header with the
// smallest data that a reader of headers takes: whole ones are too large to be changed often.
func addSeeds(f *testing.F) {
	seeds, _ := filepath.Glob("testdata/gguf-neg/*.gguf")
	if len(seeds) == 0 {
		f.Fatal("no seeds in testdata/gguf-neg")
	}
	for _, path := range seeds {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	models, _ := filepath.Glob(filepath.Join(oracle(), "*", "model.gguf"))
	for _, path := range models {
		m, err := OpenHeader(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(m.parts[0].data[:m.DataStart(0)]))
		m.Close()
	}
}

// FuzzOpenBytes opens any bytes, reads everything there is to read in what is
// accepted, at a cost bounded by the file's size, and rewrites it.
func FuzzOpenBytes(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var h, m *File
		var herr, err error
		if n := allocated(func() { h, herr = OpenHeaderBytes("fuzz", data) }); n > openCost(len(data)) {
			t.Fatalf("the header of %d bytes: %d allocated", len(data), n)
		}
		if n := allocated(func() { m, err = OpenBytes("fuzz", data) }); n > openCost(len(data)) {
			t.Fatalf("%d bytes: %d allocated", len(data), n)
		}
		// A file whose header is refused is refused; one whose header is accepted is refused only for missing data.
		if herr != nil {
			if err == nil || err.Error() != herr.Error() {
				t.Fatalf("the header is refused with %v, the file with %v", herr, err)
			}
			return
		}
		defer h.Close()
		if (err == nil) != (len(h.Missing()) == 0) {
			t.Fatalf("the header misses %v, the file is refused with %v", h.Missing(), err)
		}
		if n := allocated(func() { readAll(t, h, data) }); n > 1<<20+64*readCost(len(data)) {
			t.Fatalf("reading all of %d bytes: %d allocated", len(data), n)
		}
		if err != nil {
			return
		}
		defer m.Close()
		sameModel(t, m, h)
		rewrite(t, m)
	})
}

// readAll reads all values and tensors of an open file of data.
func readAll(t *testing.T, m *File, data []byte) {
	for key, v := range m.KeyValues() {
		if len(v.raw) > len(data) {
			t.Fatalf("%q has %d bytes of %d", key, len(v.raw), len(data))
		}
		_, _ = v.String(), v.Text(-1, -1)
		n := 0
		for range v.Elements() {
			n++
		}
		if n != v.Len() {
			t.Fatalf("%q has %d elements of %d", key, n, v.Len())
		}
		for _, method := range methods {
			call(m, method, key)
		}
	}
	have, need := m.Extent(0)
	if have != int64(len(data)) || need < m.DataStart(0) {
		t.Fatalf("%d bytes are %d of %d", len(data), have, need)
	}
	for _, tensor := range m.Tensors() {
		b, err := m.Data(tensor)
		if whole := tensor.Offset+tensor.Size <= have; whole != (err == nil) {
			t.Fatalf("tensor %q, %d bytes at %d of %d: %v", tensor.Name, tensor.Size, tensor.Offset, have, err)
		}
		if err == nil && int64(len(b)) != tensor.RowBytes()*int64(tensor.Rows()) {
			t.Fatalf("tensor %q: %d bytes, its rows are %d of %d", tensor.Name, len(b), tensor.Rows(), tensor.RowBytes())
		}
	}
}

// rewrite writes a model and reads it again.
func rewrite(t *testing.T, m *File) {
	var out bytes.Buffer
	if _, err := copyOf(t, m).WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	again, err := OpenBytes("again", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, m, again)
	again.Close()
}

// FuzzSiblings gives the name of a part of a split model to the function that names the others: they lie in the
// same folder, and the part's own name comes out again.
func FuzzSiblings(f *testing.F) {
	for _, path := range []string{"m-00001-of-00003.gguf", "/a/b/m-00003-of-00003.gguf", "m-00002-of-00001.gguf", "-00001-of-00001.gguf",
		"a/../m-00001-of-00002.gguf", "m-00001-of-00002-00001-of-00002.gguf", "m-1-of-2.gguf", "m.gguf", "m-99999-of-99999.gguf"} {
		f.Add(path, uint64(0), uint64(3))
		f.Add(path, uint64(99998), uint64(99999))
		f.Add(path, uint64(1)<<63, uint64(1)<<63+1)
	}
	f.Fuzz(func(t *testing.T, path string, no, count uint64) {
		of, err := siblings(path, split{no: no, count: count})
		if err != nil {
			return
		}
		if no >= count {
			t.Skip("refused before")
		}
		if got := of(no); got != path {
			t.Fatalf("part %d of %q is %q", no, path, got)
		}
		for _, i := range []uint64{0, count - 1, count / 2} {
			other := of(i)
			dir, base := filepath.Split(other)
			if own, _ := filepath.Split(path); dir != own || !strings.HasSuffix(base, fmt.Sprintf("-%05d-of-%05d.gguf", i+1, count)) {
				t.Fatalf("part %d of %q is %q", i, path, other)
			}
		}
	})
}
