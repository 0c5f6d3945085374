package quant

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// vectorDirs returns the folders with reference vectors: the committed copy of
// those for the implemented types, and the full set where there is one.
func vectorDirs() []string {
	dirs := []string{"testdata/quant"}
	if d := oracle("quant"); d != "" {
		dirs = append(dirs, d)
	}
	return dirs
}

// oracle returns a folder of the reference data, or "". It is looked for in
// $CALDERA_ORACLE and then in shared/oracle beside the repository.
func oracle(name string) string {
	root := os.Getenv("CALDERA_ORACLE")
	if root == "" {
		dir, err := os.Getwd()
		for err == nil {
			if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
				root = filepath.Join(dir, "..", "shared", "oracle")
				break
			}
			if dir == filepath.Dir(dir) {
				return ""
			}
			dir = filepath.Dir(dir)
		}
	}
	dir := filepath.Join(root, name)
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
		return ""
	}
	return dir
}

// read returns the contents of a vector, or skips the test if there is none.
func read(t testing.TB, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		t.Skipf("no vector: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func toFloats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}
