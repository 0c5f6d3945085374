package quantize

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// FuzzReadImatrix reads any file as an importance matrix, in whichever container it is, at a cost bounded by its size:
// what is accepted holds finite numbers that are not negative, and no more of them than the file has bytes for.
func FuzzReadImatrix(f *testing.F) {
	for _, path := range []string{
		imatrixFile(f, "imatrix", imTensor{"a.in_sum2", []uint64{2}, []float32{8, 2}}, imTensor{"a.counts", []uint64{1, 1}, []float32{4}}),
		imatrixFile(f, "imatrix", imTensor{"b.sums", []uint64{2, 2}, []float32{8, 2, 1, 0}}, imTensor{"b.counts", []uint64{1, 2}, []float32{4, 0}}),
		imatrixFile(f, "imatrix", imTensor{"c.in_sum2", []uint64{0, 1}, nil}, imTensor{"c.counts", []uint64{1, 0}, nil}),
		imatrixFile(f, "model"),
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(dat(1, 3, "abc", 4, 2, float32(8), float32(2), 7, 4, "wiki"))
	f.Add(dat(2, 1, "a", 0, 1, float32(3), 1, "b", -2, 1, float32(5)))
	f.Add(dat(1<<30, 1, "a"))
	f.Add(dat(1, 1, "a", 1, 1<<30))
	path := filepath.Join(f.TempDir(), "im")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		im, err := ReadImatrix(path)
		runtime.ReadMemStats(&after)
		// The reader's buffer is a mebibyte.
		if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20+64*uint64(len(data)) {
			t.Fatalf("%d bytes: %d allocated", len(data), n)
		}
		if err != nil {
			if im != nil {
				t.Fatalf("%v, and a matrix", err)
			}
			return
		}
		size := 0
		for name, v := range im.Entries {
			size += len(name) + 4*len(v)
			for i, x := range v {
				if !(x >= 0) || !finite(x) {
					t.Fatalf("%q: value %d is %g", name, i, x)
				}
			}
		}
		if size > len(data) || len(im.Entries) == 0 {
			t.Fatalf("%d bytes of %d entries out of %d", size, len(im.Entries), len(data))
		}
	})
}
