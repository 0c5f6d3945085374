package model

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A draft is a model file taken apart, to be changed in one place and put together again.
type draft struct {
	t       testing.TB
	arch    string
	prompt  []int32 // tokens to run
	keys    []string
	values  map[string]any
	tensors []*tensor
}

type tensor struct {
	name string
	typ  quant.Type
	dims []uint64
	data []byte // not to be changed: it may be a window of the file
}

// load takes one of the repository's oracle files apart. Tests count on their sizes, so a fuller set of
// cases elsewhere is not asked. The vocabulary's text is left out: nothing here reads it.
func load(t testing.TB, name string) *draft {
	t.Helper()
	c, err := oracle.Read(filepath.Join(oracle.Root(), "testdata", "oracle", name))
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(c.Model())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d := &draft{t: t, arch: c.Arch, prompt: c.Prompt("p300").Tokens[:20], values: map[string]any{}}
	for key, v := range f.KeyValues() {
		if !strings.HasPrefix(key, "tokenizer.") {
			d.set(key, v)
		}
	}
	for _, x := range f.Tensors() {
		data, err := f.Data(x)
		if err != nil {
			t.Fatal(err)
		}
		d.tensors = append(d.tensors, &tensor{x.Name, x.Type, x.Dims, data})
	}
	return d
}

// clone returns a copy whose tables can be changed by themselves.
func (d *draft) clone() *draft {
	c := *d
	c.keys = slices.Clone(d.keys)
	c.values = map[string]any{}
	for k, v := range d.values {
		c.values[k] = v
	}
	c.tensors = nil
	for _, x := range d.tensors {
		y := *x
		y.dims = slices.Clone(x.dims)
		c.tensors = append(c.tensors, &y)
	}
	return &c
}

// key completes the short name of one of the architecture's keys.
func (d *draft) key(key string) string {
	if strings.HasPrefix(key, "general.") || strings.HasPrefix(key, d.arch+".") {
		return key
	}
	return d.arch + "." + key
}

func (d *draft) set(key string, v any) {
	key = d.key(key)
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = v
}

func (d *draft) unset(key string) {
	key = d.key(key)
	i := slices.Index(d.keys, key)
	if i < 0 {
		d.t.Fatalf("there is no key %s to take away", key)
	}
	d.keys = slices.Delete(d.keys, i, i+1)
	delete(d.values, key)
}

func (d *draft) has(name string) bool {
	return slices.ContainsFunc(d.tensors, func(x *tensor) bool { return x.name == name })
}

func (d *draft) tensor(name string) *tensor {
	d.t.Helper()
	for _, x := range d.tensors {
		if x.name == name {
			return x
		}
	}
	d.t.Fatalf("there is no tensor %s", name)
	return nil
}

func (d *draft) add(name string, typ quant.Type, data []byte, dims ...uint64) {
	d.tensors = append(d.tensors, &tensor{name, typ, dims, data})
}

// remove takes tensors out and returns the last.
func (d *draft) remove(names ...string) *tensor {
	d.t.Helper()
	var x *tensor
	for _, name := range names {
		x = d.tensor(name)
		d.tensors = slices.DeleteFunc(d.tensors, func(y *tensor) bool { return y == x })
	}
	return x
}

// zeros gives a tensor another type or shape, and zeros for content.
func (d *draft) zeros(name string, typ quant.Type, dims ...uint64) {
	d.t.Helper()
	x := d.tensor(name)
	x.typ, x.dims = typ, dims
	n := uint64(1)
	for _, e := range dims {
		n *= e
	}
	size, err := typ.RowBytes(n)
	if err != nil {
		d.t.Fatal(err)
	}
	x.data = make([]byte, size)
}

// floats returns a copy of a tensor's values.
func (d *draft) floats(name string) []float32 {
	d.t.Helper()
	x := d.tensor(name)
	n := len(x.data) / x.typ.BlockBytes() * x.typ.BlockSize()
	f := make([]float32, n)
	if err := quant.Dequantize(x.typ, f, x.data); err != nil {
		d.t.Fatal(err)
	}
	return f
}

// encode stores values as a tensor's content in a type.
func (d *draft) encode(name string, typ quant.Type, f []float32) {
	d.t.Helper()
	size, err := typ.RowBytes(uint64(len(f)))
	if err != nil {
		d.t.Fatal(err)
	}
	x := d.tensor(name)
	x.typ, x.data = typ, make([]byte, size)
	if err := quant.Quantize(typ, x.data, f); err != nil {
		d.t.Fatalf("%s as %v: %v", name, typ, err)
	}
}

// writer puts the file together.
func (d *draft) writer() *gguf.Writer {
	d.t.Helper()
	var w gguf.Writer
	for _, key := range d.keys {
		if err := w.Set(key, d.values[key]); err != nil {
			d.t.Fatal(err)
		}
	}
	for _, x := range d.tensors {
		if err := w.AddTensor(x.name, x.typ, x.dims, x.data); err != nil {
			d.t.Fatal(err)
		}
	}
	return &w
}

func (d *draft) bytes() []byte {
	d.t.Helper()
	size := 1 << 16
	for _, x := range d.tensors {
		size += len(x.data) + 256
	}
	b := bytes.NewBuffer(make([]byte, 0, size))
	if _, err := d.writer().WriteTo(b); err != nil {
		d.t.Fatal(err)
	}
	return b.Bytes()
}

func (d *draft) open() *gguf.File {
	d.t.Helper()
	f, err := gguf.OpenBytes("draft.gguf", d.bytes())
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}

// model binds the file, which must be accepted.
func (d *draft) model() *Model {
	d.t.Helper()
	m, err := New(d.open())
	if err != nil {
		d.t.Fatal(err)
	}
	return m
}

// logits runs the prompt as one step and returns the logits of every token.
func (d *draft) logits() []float32 {
	d.t.Helper()
	return logits(d.t, d.model(), d.prompt, len(d.prompt), nil)
}

// logits runs tokens as one step of a graph for at least as many rows. Prepare, if set, may fill the
// memory of the graph's buffers.
func logits(t testing.TB, m *Model, tokens []int32, rows int, prepare func(*scheduler.Graph, shaders.HostMemory)) []float32 {
	t.Helper()
	st := m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF32})
	g, out := m.Graph(shaders.StepShape{Rows: rows, Seqs: 1, Outs: rows, Pages: 1}, st, GraphOptions{Logits: true})
	mem, err := weights.Map(m.Weights)
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(g, mem)
	}
	ref, err := scheduler.NewReference(g, mem)
	if err != nil {
		t.Fatal(err)
	}
	run := shaders.Run{Tokens: tokens, Pages: []int32{0}, Fresh: true}
	for i := range tokens {
		run.Outs = append(run.Outs, i)
	}
	if _, err := ref.Run([]shaders.Run{run}, NewRope(m.Rope)); err != nil {
		t.Fatal(err)
	}
	f := make([]float32, len(tokens)*m.Vocab)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
	if err := ref.Read(out.Logits.Slice(0, int64(len(b))), b); err != nil {
		t.Fatal(err)
	}
	return f
}
