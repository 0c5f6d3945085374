package gguf_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// A file with a hole opens, has what the file with data has, and zeros for its tensors.
func TestWriteHole(t *testing.T) {
	var w gguf.Writer
	if err := w.Set("general.name", "x"); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b"} {
		err := w.AddTensorFunc(name, quant.Q8_0, []uint64{32, uint64(3 + i)}, func(io.Writer) error { return errors.New("called") })
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "hole.gguf")
	if err := w.WriteHole(path); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if size, err := w.Size(); err != nil || f.Size() != size {
		t.Errorf("%d bytes, want %d, %v", f.Size(), size, err)
	}
	for _, x := range f.Tensors() {
		data, err := f.Data(x)
		if err != nil || len(bytes.Trim(data, "\x00")) > 0 || int64(len(data)) != x.Size {
			t.Errorf("%s: %d bytes, %v", x.Name, len(data), err)
		}
	}
	if err := w.WriteHole(filepath.Join(path, "below")); err == nil {
		t.Error("written below a file")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
