package quantize

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/oracle"
)

// convertTo carries a plan out and opens the result, whose size must be as
// announced.
func convertTo(t testing.TB, p *Plan, threads int) (*gguf.File, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out.gguf")
	if err := p.WriteFile(t.Context(), path, threads, nil); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(data)) != p.Size() {
		t.Errorf("the file has %d bytes, announced were %d", len(data), p.Size())
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, data
}

func bytesOf(t testing.TB, f *gguf.File, name string) []byte {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	data, err := f.Data(x)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Every tensor of a converted model holds what its encoder makes of the rows,
// untouched tensors their bytes, in the order of the input, and metadata stays
// but for what is known to change.
func TestConvert(t *testing.T) {
	in := hybrid(t, 4, 3, 16, false)
	for _, mix := range MixNames() {
		t.Run(mix, func(t *testing.T) {
			p := plan(t, in, mix)
			out, first := convertTo(t, p, 1)
			if _, again := convertTo(t, p, 7); !bytes.Equal(first, again) {
				t.Error("the result depends on the number of threads")
			}
			if len(out.Tensors()) != len(in.Tensors()) {
				t.Fatalf("%d tensors, want %d", len(out.Tensors()), len(in.Tensors()))
			}
			for i, x := range in.Tensors() {
				y := out.Tensors()[i]
				d := p.Decisions[i]
				if x.Name != y.Name || !reflect.DeepEqual(x.Dims, y.Dims) || y.Type != d.Type || y.Size != d.Size {
					t.Errorf("tensor %d is %+v, planned was %+v", i, *y, d)
					continue
				}
				want := bytesOf(t, in, x.Name)
				if x.Type != y.Type {
					v := make([]float32, x.Elements())
					if err := quant.Dequantize(x.Type, v, want); err != nil {
						t.Fatal(err)
					}
					want = make([]byte, y.Size)
					if err := quant.Quantize(y.Type, want, v); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(bytesOf(t, out, x.Name), want) {
					t.Errorf("%s (%v): the bytes differ", x.Name, y.Type)
				}
			}
			if mix == "COPY" {
				return
			}
			if id, err := out.Uint32("general.file_type"); err != nil || id != p.o.Mix.FileType {
				t.Errorf("file type %d, %v", id, err)
			}
			if v, err := out.Uint32("general.quantization_version"); err != nil || v != 2 {
				t.Errorf("quantization version %d, %v", v, err)
			}
			var keys []string
			for k := range out.KeyValues() {
				keys = append(keys, k)
			}
			want := "general.architecture general.file_type qwen35moe.block_count qwen35moe.expert_count qwen35moe.attention.head_count" +
				" qwen35moe.attention.head_count_kv general.quantization_version"
			if got := strings.Join(keys, " "); got != want {
				t.Errorf("keys %s, want %s", got, want)
			}
		})
	}
}

// Each matrix of a stack is encoded with its own part of the importance, or with
// the one there is for all.
func TestConvertImatrix(t *testing.T) {
	const ne0, rows, experts = 256, 3, 4
	in := open(t, build(t, []testTensor{
		{"blk.0.ffn_up_exps.weight", quant.F32, []uint64{ne0, rows, experts}}, {"blk.0.ffn_gate_exps.weight", quant.F32, []uint64{ne0, rows, experts}},
		{"blk.0.ffn_down.weight", quant.F32, []uint64{ne0, rows}},
	}))
	im := &Imatrix{Name: "dir/im.gguf", Dataset: "wiki", Chunks: 9, Entries: make(map[string][]float32)}
	for name, n := range map[string]int{"blk.0.ffn_up_exps.weight": ne0 * experts, "blk.0.ffn_gate_exps.weight": ne0} {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32((i*7919)%101) / 10 * float32(1+i/ne0)
		}
		im.Entries[name] = v
	}
	out, _ := convertTo(t, plan(t, in, "Q4_K_S", func(o *Options) { o.Imatrix = im }), 3)
	plain, _ := convertTo(t, plan(t, in, "Q4_K_S"), 3)
	for _, x := range in.Tensors() {
		src := make([]float32, x.Elements())
		if err := quant.Dequantize(x.Type, src, bytesOf(t, in, x.Name)); err != nil {
			t.Fatal(err)
		}
		got := bytesOf(t, out, x.Name)
		size := len(got) / int(x.Rows())
		entry := im.Entries[x.Name]
		for r := range int(x.Rows()) {
			part := entry
			if len(entry) > ne0 {
				e := r / rows
				part = entry[e*ne0 : (e+1)*ne0]
			}
			want := make([]byte, size)
			if err := quant.QuantizeRow(quant.Q4_K, want, src[r*ne0:(r+1)*ne0], part); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[r*size:(r+1)*size], want) {
				t.Errorf("%s: row %d differs", x.Name, r)
			}
		}
		if same := bytes.Equal(got, bytesOf(t, plain, x.Name)); same != (entry == nil) {
			t.Errorf("%s: with and without importance equal: %v", x.Name, same)
		}
	}
	for key, want := range map[string]string{"quantize.imatrix.file": "im.gguf", "quantize.imatrix.dataset": "wiki"} {
		if got, err := out.String(key); err != nil || got != want {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}
	for key, want := range map[string]uint32{"quantize.imatrix.entries_count": 2, "quantize.imatrix.chunks_count": 9} {
		if got, err := out.Uint32(key); err != nil || got != want {
			t.Errorf("%s is %d, %v", key, got, err)
		}
	}
}

// A split model becomes one file without the keys of the split.
func TestConvertSplit(t *testing.T) {
	dir := t.TempDir()
	names := []string{"blk.0.ffn_up.weight", "blk.1.ffn_up.weight"}
	for i, name := range names {
		meta := []any{"split.no", uint16(i), "split.count", uint16(2), "split.tensors.count", int32(2)}
		if i == 0 {
			meta = append([]any{"general.architecture", "qwen35"}, meta...)
		}
		data := build(t, []testTensor{{name, quant.F32, []uint64{256, uint64(2 + i)}}}, meta...)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", i+1)), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, mix := range []string{"Q8_0", "COPY"} {
		in, err := gguf.Open(filepath.Join(dir, "m-00002-of-00002.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := convertTo(t, plan(t, in, mix), 2)
		for i, name := range names {
			if got := out.Tensors()[i].Name; got != name {
				t.Errorf("tensor %d is %s, want %s", i, got, name)
			}
			if mix == "COPY" && !bytes.Equal(bytesOf(t, in, name), bytesOf(t, out, name)) {
				t.Errorf("%s is not copied", name)
			}
		}
		for key := range out.KeyValues() {
			if strings.HasPrefix(key, "split.") {
				t.Errorf("%s is still there", key)
			}
		}
		in.Close()
	}
}

// nvfp4 makes a model with an NVFP4 stack of two matrices, whose factors are in
// a tensor of their own.
func nvfp4(t testing.TB, factors ...float32) *gguf.File {
	t.Helper()
	blocks := make([]byte, 36*2*2)
	for b := range 4 {
		for i := range 36 {
			blocks[36*b+i] = byte(37*b + 11*i)
			if i < 4 {
				blocks[36*b+i] = byte(48 + 5*b + i) // scales around 1
			}
		}
	}
	w := new(gguf.Writer)
	err := errors.Join(
		w.AddTensor("blk.0.ffn_up_exps.weight", quant.NVFP4, []uint64{64, 2, 2}, blocks),
		w.AddTensor("blk.0.ffn_up_exps.scale", quant.F32, []uint64{uint64(len(factors))}, f32(factors...)),
		w.AddTensor("blk.0.ffn_up_exps.input_scale", quant.F32, []uint64{1}, f32(3)),
		w.AddTensor("blk.0.ffn_gate.scale", quant.F32, []uint64{1}, f32(4)),
	)
	var b bytes.Buffer
	if err == nil {
		_, err = w.WriteTo(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return open(t, b.Bytes())
}

// The factors of NVFP4 go into the values when these become another type.
func TestConvertNVFP4(t *testing.T) {
	again := func(o *Options) { o.AllowRequantize = true }
	for _, factors := range [][]float32{{0.5}, {0.5, -4}} {
		in := nvfp4(t, factors...)
		out, _ := convertTo(t, plan(t, in, "F32", again), 2)
		if n := len(out.Tensors()); n != 2 {
			t.Errorf("%d tensors, want the stack and the factor of another", n)
		}
		want := make([]float32, 64*4)
		if err := quant.Dequantize(quant.NVFP4, want, bytesOf(t, in, "blk.0.ffn_up_exps.weight")); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] *= factors[i/128%len(factors)]
		}
		if !bytes.Equal(bytesOf(t, out, "blk.0.ffn_up_exps.weight"), f32(want...)) {
			t.Errorf("factors %v: the values differ", factors)
		}
		kept, _ := convertTo(t, plan(t, in, "F32", again, rules(t, "exps=keep")), 2)
		if n := len(kept.Tensors()); n != 4 {
			t.Errorf("kept: %d tensors, want 4", n)
		}
	}
	for _, factors := range [][]float32{{1, 2, 3}, {float32(math.Inf(1))}} {
		m, _ := ParseMix("F32")
		if _, err := NewPlan(nvfp4(t, factors...), Options{Mix: m, AllowRequantize: true}); !errors.Is(err, ErrInput) {
			t.Errorf("factors %v: error %v", factors, err)
		}
	}
}

// bad makes a model whose tensor of four matrices has a value that is not finite
// in row 2 of matrix 1, with many good tensors before it.
func bad(t testing.TB, v float32, name string, dims ...uint64) *gguf.File {
	t.Helper()
	w := new(gguf.Writer)
	for i := range 20 {
		good := []uint64{256, 64}
		if err := w.AddTensor(fmt.Sprintf("blk.%d.ffn_up.weight", i), quant.F32, good, random(t, quant.F32, good, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	data := random(t, quant.F32, dims, 99)
	copy(data[4*(256*(1*4+2)+17):], f32(v))
	if err := w.AddTensor(name, quant.F32, dims, data); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return open(t, b.Bytes())
}

// leftovers lists a folder.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A value that is not finite is an error that names tensor and row, whether the
// tensor is converted or copied, and so is one that the new type cannot hold.
// The file of that name stays as it was, and no other is left behind.
func TestBadValues(t *testing.T) {
	nan := float32(math.NaN())
	tests := []struct {
		f    *gguf.File
		mix  string
		want []string
	}{
		{bad(t, nan, "blk.30.ffn_up_exps.weight", 256, 4, 4), "Q4_K_M", []string{"blk.30.ffn_up_exps.weight", "row 2 of matrix 1", "element 17 is NaN"}},
		{bad(t, nan, "blk.30.ffn_up.weight", 256, 16), "Q8_0", []string{"blk.30.ffn_up.weight", "row 6:", "element 17 is NaN"}},
		{bad(t, float32(math.Inf(-1)), "blk.30.ffn_gate_inp.weight", 256, 16), "Q8_0", []string{"blk.30.ffn_gate_inp.weight", "row 6:", "-Inf"}},
		{bad(t, 1e6, "blk.30.ffn_up.weight", 256, 16), "F16", []string{"blk.30.ffn_up.weight", "row 6:", "as F16"}},
		{bad(t, 1e30, "blk.30.ffn_up.weight", 256, 16), "Q8_0", []string{"blk.30.ffn_up.weight", "row 6:", "half float"}},
	}
	for _, tt := range tests {
		for _, before := range []string{"", "old"} {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.gguf")
			if before != "" {
				if err := os.WriteFile(path, []byte(before), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			err := plan(t, tt.f, tt.mix).WriteFile(t.Context(), path, 3, nil)
			if !errors.Is(err, ErrInput) {
				t.Errorf("error %v", err)
				continue
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %v, want %q in it", err, part)
				}
			}
			data, _ := os.ReadFile(path)
			if got := leftovers(t, dir); string(data) != before || len(got) > 1 || len(got) == 1 && before == "" {
				t.Errorf("left behind: %v, %q", got, data)
			}
		}
	}
}

// A conversion that is cancelled half way leaves nothing behind.
func TestCancel(t *testing.T) {
	in := hybrid(t, 24, 8, 16, false)
	p := plan(t, in, "Q4_K_M")
	for _, at := range []int{0, 1, 20, 150} {
		dir := t.TempDir()
		path := filepath.Join(dir, "out.gguf")
		if err := os.WriteFile(path, []byte("old"), 0o666); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		calls, temp := 0, 0
		if at == 0 {
			cancel()
		}
		err := p.WriteFile(ctx, path, 4, func(done, total int64, _ string) {
			if calls++; calls == at {
				temp = len(leftovers(t, dir))
				cancel()
			}
			if done > total {
				t.Errorf("%d of %d bytes done", done, total)
			}
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("at %d: error %v", at, err)
		}
		if at > 0 && temp != 2 {
			t.Errorf("at %d: %d files while it wrote, want the old one and the temporary one", at, temp)
		}
		data, _ := os.ReadFile(path)
		if got := leftovers(t, dir); string(data) != "old" || len(got) != 1 {
			t.Errorf("at %d: left behind: %v, %q", at, got, data)
		}
	}
}

// Nothing reads the input any more once a conversion has returned, however it
// ended: a file may be unmapped then, and reading it would end the process.
func TestCancelThenClose(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "in.gguf")
	data := build(t, []testTensor{{"blk.0.ffn_up.weight", quant.F32, []uint64{256, 8192}}})
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		in, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = plan(t, in, "Q4_K_M").WriteFile(ctx, filepath.Join(dir, "out"), 4, func(int64, int64, string) { cancel() })
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Progress ends at the whole.
func TestProgress(t *testing.T) {
	var last, total int64
	p := plan(t, nvfp4(t, 2), "F32", func(o *Options) { o.AllowRequantize = true })
	err := p.WriteFile(t.Context(), filepath.Join(t.TempDir(), "x"), 2, func(done, all int64, _ string) {
		if done <= last {
			t.Errorf("done went from %d to %d", last, done)
		}
		last, total = done, all
	})
	if err != nil || last != total || total != 36*4+4 {
		t.Errorf("%v: ended at %d of %d", err, last, total)
	}
}

// zeros is a reader of a large sparse tensor's bytes.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// The memory of a conversion does not grow with the tensor: a stack of 256 MiB
// takes a few MiB for each thread.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 400 MB")
	}
	dir := t.TempDir()
	dims := []uint64{4096, 1024, 16}
	w := new(gguf.Writer)
	err := w.AddTensorFunc("blk.0.ffn_up_exps.weight", quant.F32, dims, func(out io.Writer) error {
		_, err := io.CopyN(out, zeros{}, 4*4096*1024*16)
		return err
	})
	if err == nil {
		err = w.WriteFile(filepath.Join(dir, "in"))
	}
	if err != nil {
		t.Fatal(err)
	}
	in, err := gguf.Open(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p := plan(t, in, "Q8_0")
	const threads = 4
	var most uint64
	runtime.GC()
	var start, now runtime.MemStats
	runtime.ReadMemStats(&start)
	calls := 0
	err = p.WriteFile(t.Context(), filepath.Join(dir, "out"), threads, func(int64, int64, string) {
		if calls++; calls%16 == 0 {
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapSys-min(start.HeapSys, now.HeapSys))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 100 || most > 8<<20*threads {
		t.Errorf("%d MiB more of memory at most in %d chunks on %d threads", most>>20, calls, threads)
	}
}

// A disk that is too small is found before anything is written.
func TestSpace(t *testing.T) {
	dir := t.TempDir()
	free, ok := freeBytes(dir)
	if !ok {
		t.Skip("the free space is not known here")
	}
	if err := checkSpace(filepath.Join(dir, "x"), 1); err != nil && free > 1 {
		t.Error(err)
	}
	err := checkSpace(filepath.Join(dir, "x"), math.MaxInt64)
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "9223372036854775807") {
		t.Errorf("error %v", err)
	}
	p := plan(t, hybrid(t, 1, 0, 16, false), "Q8_0")
	p.size = math.MaxInt64
	if err := p.WriteFile(t.Context(), filepath.Join(dir, "x"), 1, nil); err == nil || len(leftovers(t, dir)) > 0 {
		t.Errorf("error %v, left behind %v", err, leftovers(t, dir))
	}
}

// The demo model in some mixes: values stay near those of the original, and files
// are smaller with fewer bits.
func TestDemo(t *testing.T) {
	in, err := gguf.Open(oracle.DemoFile(t, "demo-f16.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	// Root mean square error over root mean square, of all matrices together.
	limits := map[string]float64{
		"Q8_0": 0.01, "Q4_K_M": 0.06, "Q2_K": 0.25,
	}
	size := in.Size()
	for _, mix := range []string{"Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M"} {
		p := plan(t, in, mix)
		if p.Size() >= size {
			t.Errorf("%s: %d bytes are no less than %d", mix, p.Size(), size)
		}
		size = p.Size()
	}
	for mix, limit := range limits {
		p := plan(t, in, mix)
		out, _ := convertTo(t, p, 2)
		var diff, all float64
		for i, x := range in.Tensors() {
			if p.Decisions[i].Copied() {
				continue
			}
			a, b := make([]float32, x.Elements()), make([]float32, x.Elements())
			if err := errors.Join(quant.Dequantize(x.Type, a, bytesOf(t, in, x.Name)),
				quant.Dequantize(out.Tensors()[i].Type, b, bytesOf(t, out, x.Name))); err != nil {
				t.Fatal(err)
			}
			for k := range a {
				diff += float64(a[k]-b[k]) * float64(a[k]-b[k])
				all += float64(a[k]) * float64(a[k])
			}
		}
		if e := math.Sqrt(diff / all); e > limit || e < limit/10 {
			t.Errorf("%s: relative error %.4f, want at most %.2f", mix, e, limit)
		} else {
			t.Logf("%s: relative error %.4f", mix, e)
		}
	}
}

// The length of a row is bounded before it sizes an allocation.
func TestHugeRow(t *testing.T) {
	header := headerOf("blk.0.ffn_up.weight", quant.Q8_0, maxRow+32, 2)
	f, err := gguf.OpenHeaderBytes("huge", header)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := ParseMix("F16")
	if _, err := NewPlan(f, Options{Mix: m, AllowRequantize: true}); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), "rows of") {
		t.Errorf("error %v", err)
	}
}

// headerOf is the header of a file with one tensor.
func headerOf(name string, typ quant.Type, dims ...uint64) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(append([]byte("GGUF"), 3, 0, 0, 0), 1)
	b = le.AppendUint64(b, 0)
	b = append(le.AppendUint64(b, uint64(len(name))), name...)
	b = le.AppendUint32(b, uint32(len(dims)))
	for _, d := range dims {
		b = le.AppendUint64(b, d)
	}
	b = le.AppendUint32(b, uint32(typ))
	b = le.AppendUint64(b, 0)
	return append(b, make([]byte, 64-len(b)%32)...)
}
