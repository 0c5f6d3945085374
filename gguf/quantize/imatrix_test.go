package quantize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// dat makes an importance matrix in the older container out of int32, float32
// and string pieces, written one after another.
func dat(pieces ...any) []byte {
	var b []byte
	for _, p := range pieces {
		switch p := p.(type) {
		case int:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(p)))
		case float32:
			b = append(b, f32(p)...)
		case string:
			b = append(b, p...)
		}
	}
	return b
}

func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "im")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLegacyImatrix(t *testing.T) {
	entry := []any{"abc", 4, 2, float32(8), float32(2)}
	tests := []struct {
		name string
		data []byte
		want Imatrix
	}{
		{"no tail", dat(append([]any{1, 3}, entry...)...), Imatrix{Entries: map[string][]float32{"abc": {2, 0.5}}}},
		{"chunks", dat(append(append([]any{1, 3}, entry...), 7)...), Imatrix{Chunks: 7, Entries: map[string][]float32{"abc": {2, 0.5}}}},
		{"dataset", dat(append(append([]any{1, 3}, entry...), 7, 4, "wiki")...),
			Imatrix{Chunks: 7, Dataset: "wiki", Entries: map[string][]float32{"abc": {2, 0.5}}}},
		{"never called", dat(2, 1, "a", 0, 1, float32(3), 1, "b", -2, 1, float32(5)),
			Imatrix{Entries: map[string][]float32{"a": {3}, "b": {5}}}},
	}
	for _, tt := range tests {
		path := write(t, tt.data)
		tt.want.Name = path
		got, err := ReadImatrix(path)
		if err != nil || !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestLegacyImatrixMalformed(t *testing.T) {
	whole := dat(2, 3, "abc", 1, 2, float32(1), float32(2), 1, "d", 1, 1, float32(4), 7, 4, "wiki")
	if _, err := ReadImatrix(write(t, whole)); err != nil {
		t.Fatal(err)
	}
	// Where the optional tail may end, the file may.
	sound := map[int]bool{len(whole): true, len(whole) - 8: true, len(whole) - 12: true}
	for n := range len(whole) {
		_, err := ReadImatrix(write(t, whole[:n]))
		if (err == nil) != sound[n] {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
		if err != nil && !errors.Is(err, ErrInput) {
			t.Errorf("cut to %d bytes: %v is no ErrInput", n, err)
		}
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	tests := []struct {
		data []byte
		want string
	}{
		{dat(0, 1, "a"), "0 entries"},
		{dat(-1, 1, "a"), "-1 entries"},
		{dat(math.MaxInt32, 1, "a", 1, 1, float32(1)), "2147483647 entries"},
		{dat(1, 0, 1, 1, float32(1)), "0 bytes, want 1 to 63"},
		{dat(1, 64, strings.Repeat("x", 64), 1, 1, float32(1)), "64 bytes, want 1 to 63"},
		{dat(1, -5, 1, 1, float32(1)), "-5 bytes"},
		{dat(1, 13, 1, 1, float32(1)), "a name would be 13 bytes, but 12 are left"},
		{dat(1, 1, "a", 1, 0, 0), "0 values"},
		{dat(1, 1, "a", 1, -1, 0), "-1 values"},
		{dat(1, 1, "a", 1, math.MaxInt32, 0), "would be 8589934588 bytes"},
		{dat(1, 1, "a", 1, 1, inf), "value 0 is +Inf"},
		{dat(1, 1, "a", 1, 1, nan), "value 0 is NaN"},
		{dat(1, 1, "a", 1, 2, float32(1), float32(-1)), "value 1 is -1"},
		{dat(2, 1, "a", 1, 1, float32(1), 1, "a", 1, 1, float32(1)), "two entries for a"},
		{dat(1, 1, "a", 1, 1, float32(1), 1, 100), "dataset's name would be 100"},
		{dat(1, 1, "a", 1, 1, float32(1), 1, -1), "dataset's name would be -1"},
	}
	for _, tt := range tests {
		_, err := ReadImatrix(write(t, tt.data))
		if !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
	if _, err := ReadImatrix(t.TempDir()); !errors.Is(err, ErrInput) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := ReadImatrix(filepath.Join(t.TempDir(), "nosuch")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

type imTensor struct {
	name string
	dims []uint64
	v    []float32
}

func imatrixFile(t testing.TB, kind string, tensors ...imTensor) string {
	t.Helper()
	w := new(gguf.Writer)
	for _, kv := range []struct {
		key   string
		value any
	}{{"general.type", kind}, {"imatrix.datasets", []string{"wiki", "code"}}, {"imatrix.chunk_count", uint32(5)}, {"imatrix.chunk_size", uint32(512)}} {
		if err := w.Set(kv.key, kv.value); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range tensors {
		if err := w.AddTensor(x.name, quant.F32, x.dims, f32(x.v...)); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return write(t, b.Bytes())
}

func TestGGUFImatrix(t *testing.T) {
	path := imatrixFile(t, "imatrix",
		imTensor{"blk.0.attn_v.weight.in_sum2", []uint64{3, 1}, []float32{2, 4, 0}},
		imTensor{"blk.0.attn_v.weight.counts", []uint64{1, 1}, []float32{4}},
		imTensor{"blk.0.attn_v.weight.in_sum", []uint64{3, 1}, []float32{-1, 0, 0}},
		imTensor{"blk.0.ffn_up_exps.weight.counts", []uint64{1, 3}, []float32{2, 0, 4}},
		imTensor{"blk.0.ffn_up_exps.weight.in_sum2", []uint64{2, 3}, []float32{2, 4, 0, 0, 4, 8}},
		imTensor{"output.weight.sums", []uint64{2}, []float32{6, 9}},
		imTensor{"output.weight.counts", []uint64{1}, []float32{3}},
	)
	got, err := ReadImatrix(path)
	want := &Imatrix{Name: path, Dataset: "wiki", Chunks: 5, Entries: map[string][]float32{
		"blk.0.attn_v.weight":      {0.5, 1, 0},
		"blk.0.ffn_up_exps.weight": {1, 2, 1, 1, 1, 2}, // the second expert was never used
		"output.weight":            {2, 3},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestGGUFImatrixMalformed(t *testing.T) {
	inf := float32(math.Inf(1))
	one := imTensor{"a.counts", []uint64{1, 1}, []float32{1}}
	tests := []struct {
		path string
		want string
	}{
		{imatrixFile(t, "model", imTensor{"a.in_sum2", []uint64{1}, []float32{1}}, one), `type "model"`},
		{imatrixFile(t, "imatrix", one), "no entries"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{1}}), "no a.counts"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1, 2}, []float32{1, 1}}, one), "one count for each row"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{0, 1}, nil}, one), "one count for each row"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{inf}}, one), "value 0 is +Inf"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{-1}}, one), "value 0 is -1"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{1}}, imTensor{"a.counts", []uint64{1}, []float32{-1}}), "count 0 is -1"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{1}}, imTensor{"a.counts", []uint64{1}, []float32{inf}}), "count 0 is +Inf"},
		{imatrixFile(t, "imatrix", imTensor{"a.in_sum2", []uint64{1}, []float32{1}}, imTensor{"a.sums", []uint64{1}, []float32{1}}, one), "two entries for a"},
		{write(t, []byte("GGUF\x03\x00")), "GGUF"},
	}
	for _, tt := range tests {
		if _, err := ReadImatrix(tt.path); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}
