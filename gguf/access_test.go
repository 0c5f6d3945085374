package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// build returns a File made of the metadata and tensors that fill gives a Writer.
func build(t testing.TB, fill func(w *Writer) error) *File {
	t.Helper()
	var w Writer
	if err := fill(&w); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	f, err := OpenBytes("test.gguf", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// call calls the accessor of a name on a key.
func call(f *File, method, key string) (any, error) {
	out := reflect.ValueOf(f).MethodByName(method).Call([]reflect.Value{reflect.ValueOf(key)})
	err, _ := out[1].Interface().(error)
	return out[0].Interface(), err
}

var accessTests = []struct {
	value  any
	method string
	want   any // nil: an error
}{
	{uint8(200), "Uint32", uint32(200)},
	{uint8(200), "Int64", int64(200)},
	{int8(-3), "Int32", int32(-3)},
	{int8(-3), "Uint32", nil},
	{int16(-300), "Int", -300},
	{uint16(65535), "Uint64", uint64(65535)},
	{int32(7), "Uint32", uint32(7)},
	{int32(-7), "Uint64", nil},
	{uint32(math.MaxUint32), "Uint32", uint32(math.MaxUint32)},
	{uint32(math.MaxUint32), "Int32", nil},
	{uint64(1) << 32, "Uint32", nil},
	{uint64(1)<<32 - 1, "Uint32", uint32(math.MaxUint32)},
	{uint64(math.MaxUint64), "Int64", nil},
	{uint64(math.MaxUint64), "Uint64", uint64(math.MaxUint64)},
	{int64(math.MinInt64), "Int64", int64(math.MinInt64)},
	{int64(math.MinInt64), "Int32", nil},
	{int64(-1), "Uint64", nil},
	{float32(2), "Uint32", nil},
	{float64(2), "Int", nil},
	{"2", "Int", nil},
	{true, "Int", nil},
	{[]uint32{2}, "Uint32", nil},

	{float32(0.5), "Float32", float32(0.5)},
	{float32(0.5), "Float64", 0.5},
	{0.1, "Float32", float32(0.1)},
	{1e300, "Float32", nil},
	{math.Inf(1), "Float32", float32(math.Inf(1))},
	{uint32(10000000), "Float32", float32(10000000)},
	{int64(-5), "Float32", float32(-5)},
	{uint32(1 << 24), "Float32", float32(1 << 24)},
	{uint32(1<<24 + 1), "Float32", nil},
	{uint32(1<<24 + 1), "Float64", float64(1<<24 + 1)},
	{int64(1<<53 + 1), "Float64", nil},
	{int64(math.MinInt64), "Float64", nil},
	{"1", "Float32", nil},
	{true, "Float64", nil},
	{[]float32{1}, "Float32", nil},

	{true, "Bool", true},
	{uint8(1), "Bool", nil},
	{[]bool{true}, "Bool", nil},
	{"text", "String", "text"},
	{"", "String", ""},
	{[]string{"a"}, "String", nil},
	{uint8(1), "String", nil},

	{[]string{"a", "", "ü\x00z"}, "Strings", []string{"a", "", "ü\x00z"}},
	{[]string{}, "Strings", []string{}},
	{"a", "Strings", nil},
	{[]uint8{97}, "Strings", nil},
	{[]uint32{1, 2, 3}, "Uint64s", []uint64{1, 2, 3}},
	{uint16(4), "Uint64s", []uint64{4}},
	{[]int32{1, -2}, "Uint64s", nil},
	{[]int32{1, 0, 2}, "Uint32s", []uint32{1, 0, 2}},
	{[]int32{1, -2}, "Ints", []int{1, -2}},
	{[]int8{1, -2}, "Int32s", []int32{1, -2}},
	{[]uint64{1 << 31}, "Int32s", nil},
	{[]uint64{}, "Int32s", []int32{}},
	{[]float32{1}, "Int32s", nil},
	{[]string{"a"}, "Int32s", nil},
	{[]bool{true}, "Ints", nil},
	{[]float32{1, 0.25}, "Float32s", []float32{1, 0.25}},
	{[]float64{1, 1e39}, "Float32s", nil},
	{float64(3), "Float32s", []float32{3}},
	{[]int16{-4, 5}, "Float32s", []float32{-4, 5}},
	{[]string{"1"}, "Float32s", nil},
	{[]bool{true, false}, "Bools", []bool{true, false}},
	{false, "Bools", []bool{false}},
	{[]uint8{1}, "Bools", nil},
}

func TestAccessors(t *testing.T) {
	f := build(t, func(w *Writer) error {
		for i, tt := range accessTests {
			if err := w.Set(fmt.Sprint("key.", i), tt.value); err != nil {
				return err
			}
		}
		return nil
	})
	defer f.Close()
	for i, tt := range accessTests {
		key := fmt.Sprint("key.", i)
		name := fmt.Sprintf("%s of %T %v", tt.method, tt.value, tt.value)
		got, err := call(f, tt.method, key)
		switch {
		case tt.want != nil && (err != nil || !reflect.DeepEqual(got, tt.want)):
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tt.want)
		case tt.want == nil && err == nil:
			t.Errorf("%s: got %v, want an error", name, got)
		case tt.want == nil:
			if !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "test.gguf") || errors.Is(err, ErrMissing) {
				t.Errorf("%s: an uninformative error: %v", name, err)
			}
			if v := reflect.ValueOf(got); !v.IsZero() {
				t.Errorf("%s: got %v beside an error", name, got)
			}
		}
		if _, err := call(f, tt.method, "other."+key); !errors.Is(err, ErrMissing) {
			t.Errorf("%s of an absent key: %v", tt.method, err)
		}
	}
	if !f.Has("key.0") || f.Has("key") {
		t.Error("Has is wrong")
	}
	_, err := f.Uint32("key.5")
	if _, e := f.Bool("key.0"); e == nil || e.Error() != `gguf: test.gguf: "key.0" is uint8, want bool` {
		t.Errorf("got %v, %v", e, err)
	}
	f.Close()
	if _, err := f.Uint32("key.0"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestValueText(t *testing.T) {
	tests := []struct {
		value any
		kind  Kind
		elem  Kind
		n     int
		text  string
	}{
		{uint8(3), KindUint8, KindUint8, 1, "3"},
		{int64(-3), KindInt64, KindInt64, 1, "-3"},
		{float32(1e-6), KindFloat32, KindFloat32, 1, "1e-06"},
		{2.5, KindFloat64, KindFloat64, 1, "2.5"},
		{true, KindBool, KindBool, 1, "true"},
		{"a\nb", KindString, KindString, 1, `"a\nb"`},
		{strings.Repeat("x", 200), KindString, KindString, 1, `"` + strings.Repeat("x", 120) + `"… 200 bytes`},
		{[]string{"a", "b"}, KindArray, KindString, 2, `["a", "b"]`},
		{[]bool{}, KindArray, KindBool, 0, `[]`},
		{[]int16{1, -2, 3, 4, 5, 6, 7, 8, 9}, KindArray, KindInt16, 9, `[1, -2, 3, 4, 5, 6, 7, 8, … 9 in all]`},
	}
	f := build(t, func(w *Writer) error {
		for i, tt := range tests {
			if err := w.Set(fmt.Sprint("k", i), tt.value); err != nil {
				return err
			}
		}
		return nil
	})
	defer f.Close()
	i := 0
	for key, v := range f.KeyValues() {
		tt := tests[i]
		if key != fmt.Sprint("k", i) || v.Kind() != tt.kind || v.Elem() != tt.elem || v.Len() != tt.n || v.String() != tt.text {
			t.Errorf("%s: got %v of %v, %d, %s; want %v of %v, %d, %s", key, v.Kind(), v.Elem(), v.Len(), v, tt.kind, tt.elem, tt.n, tt.text)
		}
		i++
	}
	if i != len(tests) {
		t.Errorf("%d keys, want %d", i, len(tests))
	}
	for range f.KeyValues() {
		break // must not go on
	}
	if s := FileTypeName(15) + " " + FileTypeName(1024+7) + " " + FileTypeName(77); s != "Q4_K_M Q8_0 (guessed) file type 77" {
		t.Error(s)
	}
}

// TestLongArrays reads a vocabulary of a quarter million tokens without an
// allocation for each.
func TestLongArrays(t *testing.T) {
	words := make([]string, 250000)
	for i := range words {
		words[i] = fmt.Sprint("token", i)
	}
	f := build(t, func(w *Writer) error { return w.Set("tokens", words) })
	defer f.Close()
	var got []string
	n := testing.AllocsPerRun(1, func() { got, _ = f.Strings("tokens") })
	if !slices.Equal(got, words) {
		t.Error("the strings differ")
	}
	if n > 10 {
		t.Errorf("%g allocations", n)
	}
}
