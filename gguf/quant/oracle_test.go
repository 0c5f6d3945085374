package quant

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vectorDirs returns the folders with reference vectors: the committed copy, in
// which many types have fewer blocks and only a digest of their values, and the
// full set where there is one.
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

// decoded returns the values of a type's blocks in dir, or nil and the sha256 of
// their bytes, which the committed copy has instead of most values.
func decoded(t testing.TB, dir string, typ Type) (values []float32, digest string) {
	t.Helper()
	name := filepath.Join(dir, typ.String()+".f32.bin")
	b, err := os.ReadFile(name)
	if err == nil {
		return toFloats(b), ""
	}
	digests, e := os.ReadFile(filepath.Join(dir, "digests.txt"))
	if e != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(digests)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == typ.String() {
			return nil, f[1]
		}
	}
	t.Fatalf("neither %s nor a line in digests.txt", name)
	return nil, ""
}

// floatDigest returns the sha256 of values as little-endian float32.
func floatDigest(values []float32) string {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return digest(b)
}

func toFloats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}
