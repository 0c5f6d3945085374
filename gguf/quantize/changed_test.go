//go:build cgo

package quantize

import (
	"errors"
	"fmt"
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
