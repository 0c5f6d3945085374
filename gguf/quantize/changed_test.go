//go:build cgo

package quantize

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// A file that is changed while it is converted gives an error and no result.
func TestChangedInput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "in")
	var tensors []testTensor
	for i := range 12 {
		tensors = append(tensors, testTensor{fmt.Sprintf("blk.%d.ffn_up.weight", i), quant.F32, []uint64{256, 64}})
	}
	if err := os.WriteFile(path, build(t, tensors), 0o666); err != nil {
		t.Fatal(err)
	}
	in, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	calls := 0
	err = plan(t, in, "Q8_0").WriteFile(t.Context(), filepath.Join(dir, "out"), 1, func(int64, int64, string) {
		if calls++; calls == 2 {
			if err := os.Truncate(path, 4096); err != nil {
				t.Fatal(err)
			}
		}
	})
	if !errors.Is(err, gguf.ErrChanged) || !errors.Is(err, ErrInput) {
		t.Errorf("error %v", err)
	}
	if got := leftovers(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// A file that gets the output's name while the conversion runs is kept, if that was asked for.
func TestKeepExisting(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	p := plan(t, open(t, build(t, []testTensor{{"a.weight", quant.F32, []uint64{256, 4}}})), "Q8_0")
	p.KeepExisting = true
	err := p.WriteFile(t.Context(), out, 1, func(int64, int64, string) {
		if err := os.WriteFile(out, []byte("precious"), 0o666); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file that appeared: %v", err)
	}
	if data, err := os.ReadFile(out); err != nil || string(data) != "precious" || len(leftovers(t, dir)) != 1 {
		t.Errorf("%q, %v, %q", data, err, leftovers(t, dir))
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteFile(t.Context(), out, 1, nil); err != nil {
		t.Error(err)
	}
}

// A tensor without elements takes no time, however many empty rows it claims.
func TestEmptyRows(t *testing.T) {
	in := open(t, build(t, []testTensor{{"x.weight", quant.F32, []uint64{0, 1 << 62}}, {"a.weight", quant.F32, []uint64{256, 4}}}))
	for _, mix := range []string{"COPY", "Q8_0"} {
		out := filepath.Join(t.TempDir(), "out")
		if err := plan(t, in, mix).WriteFile(t.Context(), out, 2, nil); err != nil {
			t.Errorf("%s: %v", mix, err)
		}
	}
}
