package gguf

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/gguf/quant"
)

// bigTensors writes a model of two tensors, each of several pages, as one file or as two parts, and returns the
// paths.
func bigTensors(t *testing.T, parts int) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i := range parts {
		var w Writer
		name := "model.gguf"
		if parts > 1 {
			name = []string{"model-00001-of-00002.gguf", "model-00002-of-00002.gguf"}[i]
			for key, v := range map[string]uint16{keySplitNo: uint16(i), keySplitCount: uint16(parts)} {
				if err := w.Set(key, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		for j := range 2 {
			data := bytes.Repeat([]byte{byte(1 + 2*i + j)}, 64<<10)
			if err := w.AddTensor(string(rune('a'+2*i+j)), quant.F32, []uint64{16 << 10}, data); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// A part that is truncated while the model is open is an error that names it, and the tensors' bytes can
// still be read, as zeros.
func TestIntact(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files are not mapped here")
	}
	for _, parts := range []int{1, 2} {
		paths := bigTensors(t, parts)
		f, err := Open(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Intact(); err != nil {
			t.Fatal(err)
		}
		for i := range parts {
			pages := f.Pages(i)
			if len(pages)%os.Getpagesize() != 0 || int64(len(pages)) < 128<<10 {
				t.Errorf("%d bytes of pages", len(pages))
			}
		}
		last := paths[parts-1]
		if err := os.Truncate(last, 1000); err != nil {
			t.Fatal(err)
		}
		err = f.Intact()
		if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), last) || !strings.Contains(err.Error(), "to 1000 bytes") {
			t.Errorf("%d parts: %v", parts, err)
		}
		lost := f.Tensors()[2*parts-1]
		if cgo {
			data, err := f.Data(lost)
			if err != nil || bytes.Count(data, []byte{0}) != len(data) {
				t.Errorf("%d parts: the lost tensor: %v", parts, err)
			}
		}
		if err := f.Close(); err != nil || f.Intact() != nil || f.Pages(0) != nil {
			t.Errorf("closed: %v", err)
		}
	}
	f, err := OpenBytes("memory", readFile(t, bigTensors(t, 1)[0]))
	if err != nil {
		t.Fatal(err)
	}
	if f.Intact() != nil || f.Pages(0) != nil || f.Pages(-1) != nil || f.Pages(1) != nil {
		t.Error("a model in memory has pages of a file")
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
