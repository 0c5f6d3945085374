package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzOpenBytes opens any bytes, reads everything there is to read in what is
// accepted, and rewrites it.
func FuzzOpenBytes(f *testing.F) {
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
	methods := []string{"String", "Bool", "Uint32", "Uint64", "Int32", "Int64", "Int", "Float32", "Float64",
		"Strings", "Uint32s", "Uint64s", "Int32s", "Ints", "Float32s", "Bools"}
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := OpenHeaderBytes("fuzz", data); err == nil {
			for _, tensor := range h.Tensors() {
				h.Data(tensor)
			}
			h.Close()
		}
		m, err := OpenBytes("fuzz", data)
		if err != nil {
			return
		}
		defer m.Close()
		for key, v := range m.KeyValues() {
			_ = v.String()
			for _, method := range methods {
				call(m, method, key)
			}
		}
		for _, tensor := range m.Tensors() {
			b, err := m.Data(tensor)
			if err != nil {
				t.Fatal(err)
			}
			if want := tensor.RowBytes() * int64(tensor.Rows()); int64(len(b)) != want {
				t.Fatalf("tensor %q: %d bytes, its rows are %d", tensor.Name, len(b), want)
			}
		}
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
	})
}
