package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
)

// allocated is what f allocates in all, in bytes, whether or not it is freed meanwhile.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Opening a file of n bytes, sound or not, allocates at most openCost(n): a table entry of 14 (a key) or 25 bytes (a
// tensor) at the least becomes an entry of a slice and one of a map. Reading a value of n bytes by any accessor
// allocates at most readCost(n): one byte can become an int of eight, and an empty string of eight bytes a header
// of sixteen. Rendering it as text takes four bytes for one that does not print.
func openCost(n int) uint64 { return 64<<10 + 32*uint64(n) }
func readCost(n int) uint64 { return 64<<10 + 16*uint64(n) }

// The files that cost most: many small entries, and headers that claim more than follows.
func TestOpenCost(t *testing.T) {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	header := func(tensors, keys uint64) []byte { return u64(u64(append([]byte("GGUF"), 3, 0, 0, 0), tensors), keys) }
	keys := header(0, MaxKeys)
	for i := range MaxKeys {
		keys = append(keys, 3, 0, 0, 0, 0, 0, 0, 0, byte(i>>16)+1, byte(i>>8), byte(i))
		keys = append(u32(keys, uint32(KindBool)), 1)
	}
	tensors := header(100000, 0)
	for i := range 100000 {
		tensors = append(append(tensors, 5, 0, 0, 0, 0, 0, 0, 0), fmt.Sprintf("%05x", i)...)
		tensors = u64(u32(u32(tensors, 0), 0), uint64(i*DefaultAlign)) // no dimension: one element
	}
	empty := header(0, 1)
	empty = append(append(u64(empty, 1), 'k'), byte(KindArray), 0, 0, 0, byte(KindString), 0, 0, 0)
	empty = append(u64(empty, 1<<17), make([]byte, 8<<17)...)
	if f, err := OpenHeaderBytes("many tensors", append(tensors, make([]byte, 64)...)); err != nil || len(f.Tensors()) != 100000 {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"many keys":        keys,
		"a key twice":      append(keys[:len(keys)-16:len(keys)-16], keys[24:40]...),
		"claims many keys": append(header(0, MaxKeys), make([]byte, MaxKeys*minKVBytes)...),
		"many tensors":     append(tensors, make([]byte, 64)...), "claims many tensors": append(header(1<<17, 0), make([]byte, minTensorBytes<<17)...),
		"claims all keys": header(0, MaxKeys), "claims all tensors": header(MaxTensors, 0),
		"empty strings": empty,
	} {
		for how, open := range map[string]func(string, []byte) (*File, error){"whole": OpenBytes, "header": OpenHeaderBytes} {
			var f *File
			n := allocated(func() { f, _ = open(name, data) })
			t.Logf("%s, %s: %d bytes, %d allocated, %.1f a byte", name, how, len(data), n, float64(n)/float64(len(data)))
			if n > openCost(len(data)) || name == "empty strings" && n > openCost(0) { // the elements of an array cost nothing
				t.Errorf("%s, %s: %d bytes, %d allocated", name, how, len(data), n)
			}
			if f != nil {
				f.Close()
			}
		}
	}
}

// Every accessor costs by the bytes of its value, and so does text.
func TestReadCost(t *testing.T) {
	w := new(Writer)
	const n = 1 << 18
	strs := make([]string, n)
	values := map[string]any{
		"u8": make([]uint8, n), "i8": make([]int8, n), "bool": make([]bool, n), "u16": make([]uint16, n), "f32": make([]float32, n),
		"f64": make([]float64, n), "str": strs, "text": string(make([]byte, n)),
	}
	for key, v := range values {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "cost.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for key, v := range f.KeyValues() {
		for _, method := range methods {
			if got := allocated(func() { call(f, method, key) }); got > readCost(len(v.raw)) {
				t.Errorf("%s of %s: %d bytes, %d allocated", method, key, len(v.raw), got)
			}
		}
		// The first elements do not cost the rest.
		if got := allocated(func() { _ = v.Text(8, 120) }); got > 16<<10 {
			t.Errorf("the beginning of %s as text: %d allocated", key, got)
		}
		if got := allocated(func() {
			for range v.Elements() {
				break
			}
		}); key != "text" && got > 1<<10 {
			t.Errorf("the first element of %s: %d allocated", key, got)
		}
	}
}

func TestElements(t *testing.T) {
	w := new(Writer)
	want := map[string][]any{}
	for key, v := range map[string]any{
		"u64": []uint64{0, 1 << 63, math.MaxUint64}, "i8": []int8{-128, 127}, "b": []bool{true, false}, "f": []float32{0.1, float32(math.Inf(1))},
		"d": []float64{0.1, math.Copysign(0, -1)}, "s": []string{"", "a\x00b", "é"}, "none": []string{}, "scalar": uint16(65535), "flag": true, "text": "x", "neg": int64(-5),
	} {
		if err := w.Set(key, v); err != nil {
			t.Fatal(err)
		}
		r := reflect.ValueOf(v)
		if r.Kind() != reflect.Slice {
			r = reflect.Append(reflect.MakeSlice(reflect.SliceOf(r.Type()), 0, 1), r)
		}
		want[key] = nil
		for i := range r.Len() {
			x := r.Index(i)
			switch {
			case x.CanInt():
				want[key] = append(want[key], x.Int())
			case x.CanUint() && x.Uint() > math.MaxInt64:
				want[key] = append(want[key], x.Uint())
			case x.CanUint():
				want[key] = append(want[key], int64(x.Uint()))
			default:
				want[key] = append(want[key], x.Interface())
			}
		}
	}
	path := filepath.Join(t.TempDir(), "elements.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for key, v := range f.KeyValues() {
		var got []any
		for x := range v.Elements() {
			got = append(got, x)
		}
		if !reflect.DeepEqual(got, want[key]) {
			t.Errorf("%s: %v, want %v", key, got, want[key])
		}
	}
}

// What a part has and what it needs, for whole files and for one cut short.
func TestExtent(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join("testdata", "gguf-neg", "ok_two_tensors_full.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenBytes("whole", whole)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Tensors()[1]
	end := last.Offset + last.Size
	for _, n := range []int64{f.DataStart(0), f.Tensors()[0].Offset + 1, end - 1, end, int64(len(whole))} {
		h, err := OpenHeaderBytes("cut", whole[:n])
		if err != nil {
			t.Fatal(err)
		}
		if have, need := h.Extent(0); have != n || need != end || (len(h.Missing()) > 0) != (n < end) {
			t.Errorf("%d bytes: has %d, needs %d, want %d; missing %v", n, have, need, end, h.Missing())
		}
	}
}
