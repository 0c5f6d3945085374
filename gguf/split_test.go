package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
)

// writeSplit writes a model of n parts, the first without tensors and the
// others with two each, and returns its paths. Each edit may change a part.
func writeSplit(t *testing.T, n int, edit func(part int, w *Writer)) []string {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, n)
	for i := range n {
		var w Writer
		if i == 0 {
			w.Set("general.architecture", "qwen35")
		} else {
			w.Set("general.alignment", uint32(32<<i)) // each part has its own
		}
		w.Set("split.no", uint16(i))
		w.Set("split.count", uint16(n))
		w.Set("split.tensors.count", int32(2*(n-1)))
		if i > 0 {
			for k := range 2 {
				w.AddTensor(fmt.Sprintf("t.%d.%d", i, k), quant.I8, []uint64{3}, []byte{byte(i), byte(k), 7})
			}
		}
		if edit != nil {
			edit(i, &w)
		}
		paths[i] = filepath.Join(dir, fmt.Sprintf("model-x-%05d-of-%05d.gguf", i+1, n))
		if err := w.WriteFile(paths[i]); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

func TestSplit(t *testing.T) {
	paths := writeSplit(t, 3, nil)
	for _, path := range paths {
		for name, open := range map[string]func(string) (*File, error){"Open": Open, "OpenHeader": OpenHeader} {
			f, err := open(path)
			if err != nil {
				t.Fatalf("%s %s: %v", name, path, err)
			}
			if arch, err := f.String("general.architecture"); arch != "qwen35" {
				t.Errorf("architecture %q, %v", arch, err)
			}
			if len(f.Parts()) != 3 || f.Parts()[0] != paths[0] || f.Name() != path || len(f.Missing()) != 0 {
				t.Errorf("parts %v of %s, missing %v", f.Parts(), f.Name(), f.Missing())
			}
			if len(f.Tensors()) != 4 {
				t.Errorf("%d tensors", len(f.Tensors()))
			}
			for i := 1; i < 3; i++ {
				for k := range 2 {
					tensor, ok := f.Tensor(fmt.Sprintf("t.%d.%d", i, k))
					if !ok || tensor.Part != i {
						t.Fatalf("tensor %d.%d: %v, %v", i, k, tensor, ok)
					}
					data, err := f.Data(tensor)
					if err != nil || !bytes.Equal(data, []byte{byte(i), byte(k), 7}) {
						t.Errorf("tensor %d.%d: %v, %v", i, k, data, err)
					}
					if f.Alignment(i) != int64(32<<i) || tensor.Offset%f.Alignment(i) != 0 {
						t.Errorf("tensor %d.%d: offset %d, alignment %d", i, k, tensor.Offset, f.Alignment(i))
					}
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(part int, w *Writer)
		want string
	}{
		"duplicate tensor": {func(i int, w *Writer) {
			if i == 2 {
				w.AddTensor("t.1.0", quant.I8, nil, []byte{1})
			}
			w.Set("split.tensors.count", int32(5))
		}, "t.1.0"},
		"total": {func(i int, w *Writer) { w.Set("split.tensors.count", int32(9)) }, "split.tensors.count"},
		"count of another": {func(i int, w *Writer) {
			if i == 1 {
				w.Set("split.count", uint16(2))
			}
		}, "part 2 of 2"},
		"number of another": {func(i int, w *Writer) {
			if i == 1 {
				w.Set("split.no", uint16(2))
			}
		}, "part 3 of 3"},
		"number out of range": {func(i int, w *Writer) { w.Set("split.no", uint16(3)) }, "split.no"},
		"negative count":      {func(i int, w *Writer) { w.Set("split.count", int32(-1)) }, "split.count"},
		"count is a string":   {func(i int, w *Writer) { w.Set("split.count", "3") }, "split.count"},
		"huge count":          {func(i int, w *Writer) { w.Set("split.count", uint64(1<<60)) }, "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			paths := writeSplit(t, 3, tt.edit)
			f, err := Open(paths[0])
			if err == nil {
				f.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}

	paths := writeSplit(t, 3, nil)
	renamed := filepath.Join(filepath.Dir(paths[0]), "model.gguf")
	if err := os.Rename(paths[1], renamed); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(renamed); err == nil || !strings.Contains(err.Error(), "-00002-of-00003.gguf") {
		t.Errorf("renamed: %v", err)
	}
	if _, err := Open(paths[2]); !errors.Is(err, ErrTruncated) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), paths[1]) {
		t.Errorf("a part is absent: %v", err)
	}
	h, err := OpenHeader(paths[2])
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if len(h.Missing()) != 1 || len(h.Tensors()) != 2 {
		t.Errorf("%d tensors, missing %v", len(h.Tensors()), h.Missing())
	}
	if data, err := h.Data(h.Tensors()[1]); err != nil || data[0] != 2 {
		t.Errorf("data of the part that is there: %v, %v", data, err)
	}
	whole, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBytes("part", whole); err == nil || !strings.Contains(err.Error(), "split") {
		t.Errorf("from memory: %v", err)
	}
}

// TestLegacyQ2 lays Q2_0 tensors out as one fork did, in blocks of 128 elements
// and 34 bytes.
func TestLegacyQ2(t *testing.T) {
	// The last tensor: 512 elements are 144 bytes, or 136 the old way.
	var one Writer
	one.AddTensor("q", quant.Q2_0, []uint64{512}, make([]byte, 144))
	var b bytes.Buffer
	if _, err := one.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	f, err := OpenBytes("q", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for size, legacy := range map[int64]bool{136: true, 140: false} {
		_, err := OpenBytes("q", b.Bytes()[:f.DataStart(0)+size])
		if err == nil || strings.Contains(err.Error(), "legacy Q2_0") != legacy {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	// With a tensor after it: 1152 elements are 324 bytes, padded to 352,
	// or 306, padded to 320.
	var w Writer
	w.AddTensor("q", quant.Q2_0, []uint64{1152}, make([]byte, 324))
	w.AddTensor("z", quant.F32, []uint64{8}, make([]byte, 32))
	b.Reset()
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for offset, legacy := range map[byte]bool{0x40: true, 0x80: false} { // 320, 384
		data := bytes.Replace(b.Bytes(), []byte{0x60, 1, 0, 0, 0, 0, 0, 0}, []byte{offset, 1, 0, 0, 0, 0, 0, 0}, 1)
		_, err := OpenBytes("q", data)
		if err == nil || strings.Contains(err.Error(), "legacy Q2_0") != legacy {
			t.Errorf("offset %#x: %v", offset, err)
		}
	}
}
