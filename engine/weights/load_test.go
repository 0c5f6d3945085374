package weights

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// device is a Target that keeps what it is given and fails when told to.
type device struct {
	memory   map[*shaders.Buffer][]byte
	imported map[*shaders.Buffer][]scheduler.Bind // with Off counted in the file that pages is of
	pages    []byte
	calls    []string
	binding  int64
	settled  bool
	refuse   func(import_ int) error // of the n-th import
	imports  int
	allocate error // of the buffer named "bad"
	stream   error
	settle   error
}

func newDevice() *device {
	return &device{memory: map[*shaders.Buffer][]byte{}, imported: map[*shaders.Buffer][]scheduler.Bind{}}
}

func (d *device) Allocate(b *shaders.Buffer, zero bool) error {
	d.calls = append(d.calls, fmt.Sprintf("allocate %s %t", b.Name, zero))
	if b.Name == "bad" && d.allocate != nil {
		return d.allocate
	}
	d.memory[b] = bytes.Repeat([]byte{0xee}, int(b.Size)) // fresh memory holds anything
	return nil
}

func (d *device) Import(mem []byte, binds []scheduler.Bind) error {
	d.imports++
	if d.refuse != nil {
		if err := d.refuse(d.imports - 1); err != nil {
			return err
		}
	}
	base := int64(0)
	for &d.pages[base] != &mem[0] {
		base += int64(os.Getpagesize())
	}
	for _, b := range binds {
		if b.Off < 0 || b.Off+b.N > int64(len(mem)) {
			return fmt.Errorf("%s at %d..%d of %d imported bytes", b.Buf.Name, b.Off, b.Off+b.N, len(mem))
		}
		b.Off += base
		d.imported[b.Buf] = append(d.imported[b.Buf], b)
	}
	return nil
}

func (d *device) Free(b *shaders.Buffer) { delete(d.imported, b) }

func (d *device) LimitBinding(n int64) { d.binding = n }

func (d *device) Stream(v shaders.View, data []byte) error {
	d.calls = append(d.calls, fmt.Sprintf("write %s %d+%d", v.Buf.Name, v.Off, v.Len))
	if v.Buf.Name == "bad" && d.stream != nil {
		return d.stream
	}
	if v.Len != int64(len(data)) {
		return fmt.Errorf("%d bytes for a view of %d", len(data), v.Len)
	}
	copy(d.memory[v.Buf][v.Off:], data)
	return nil
}

func (d *device) Settle() error {
	d.settled = true
	return d.settle
}

// copying is a device that cannot import.
var copying = Caps{NoImport: "no import", Unified: true, Align: 4096, Window: 1 << 30, Binding: 1 << 27}

// load decides and loads without a file.
func load(d *device, items []Item, progress func(int64)) (Report, error) {
	return Load(nil, items, Decide(nil, items, copying), d, progress)
}

func TestCopy(t *testing.T) {
	items := []Item{
		item("a", 8, []byte{1, 2, 3, 4, 5, 6, 7, 8}),
		item("b", 12, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), // two bytes of padding
		item("c", 4, []byte{1}),
		{Buf: &shaders.Buffer{Name: "h", Kind: shaders.Weight, Size: 16}, HostOnly: true},
	}
	d := newDevice()
	var done []int64
	r, err := load(d, items, func(n int64) { done = append(done, n) })
	if err != nil {
		t.Fatal(err)
	}
	// One after the other, so that not all of a model's content is in memory at once.
	want := []string{"allocate a false", "write a 0+8", "allocate b false", "write b 0+10", "allocate c false", "write c 0+1"}
	if !slices.Equal(d.calls, want) || !d.settled {
		t.Errorf("calls %q, want %q; settled %v", d.calls, want, d.settled)
	}
	if !slices.Equal(done, []int64{16, 24, 36, 40}) || done[3] != Total(items) {
		t.Errorf("progress %v of %d", done, Total(items))
	}
	for _, it := range items[:3] {
		data, _ := it.Bytes()
		if !bytes.HasPrefix(d.memory[it.Buf], data) {
			t.Errorf("%s holds %v, want %v", it.Buf.Name, d.memory[it.Buf], data)
		}
	}
	if want := (Report{Copied: 24, Host: 16, Fallbacks: []Fallback{{"no import", 3, 24, "a"}}}); !reflect.DeepEqual(r, want) {
		t.Errorf("report %+v", r)
	}
	if r, err := load(d, nil, nil); err != nil || !reflect.DeepEqual(r, Report{}) || Total(nil) != 0 {
		t.Errorf("nothing to do: %v, %+v", err, r)
	}
}

// Large items are written piece by piece, and progress counts pieces.
func TestCopyPieces(t *testing.T) {
	const size = 2*piece + 10
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i >> 12)
	}
	items := []Item{item("a", size+2, data), item("b", 4, make([]byte, 4))}
	d := newDevice()
	var done []int64
	if _, err := load(d, items, func(n int64) { done = append(done, n) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(done, []int64{piece, 2 * piece, size + 2, size + 6}) {
		t.Errorf("progress %v", done)
	}
	if got := d.memory[items[0].Buf]; !bytes.Equal(got[:size], data) {
		t.Error("the bytes arrive differently")
	}
}

func TestCopyFaults(t *testing.T) {
	full, gone, torn := errors.New("out of memory"), errors.New("device lost"), errors.New("disk error")
	broken := item("bad", 8, nil)
	broken.Bytes = func() ([]byte, error) { return nil, torn }
	for _, c := range []struct {
		name   string
		item   Item
		device device
		want   error  // in the chain
		text   string // in the message
		calls  int
	}{
		{"no memory", item("bad", 4, make([]byte, 4)), device{allocate: full}, full, "", 3},
		{"no device", item("bad", 4, make([]byte, 4)), device{stream: gone}, gone, "weights bad", 4},
		{"no content", broken, device{}, torn, "weights bad", 2},
		{"too long", item("bad", 8, make([]byte, 9)), device{}, nil, "weights bad: 9 bytes for a buffer of 8", 2},
		{"too short", item("bad", 8, make([]byte, 4)), device{}, nil, "weights bad: 4 bytes for a buffer of 8", 2},
		{"empty", item("bad", 4, nil), device{}, nil, "weights bad: 0 bytes for a buffer of 4", 2},
	} {
		d := c.device
		d.memory = map[*shaders.Buffer][]byte{}
		last := int64(-1)
		_, err := load(&d, []Item{item("good", 4, make([]byte, 4)), c.item, item("never", 4, make([]byte, 4))}, func(n int64) { last = n })
		if err == nil || !strings.Contains(err.Error(), c.text) || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		// What comes before is done and reported, what comes after is not begun.
		if len(d.calls) != c.calls || last != 4 {
			t.Errorf("%s: calls %q, progress %d", c.name, d.calls, last)
		}
		if c.device.allocate == nil && c.device.stream == nil {
			if _, err := Map([]Item{c.item}); err == nil || !strings.Contains(err.Error(), c.text) || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("%s: Map: %v", c.name, err)
			}
		}
	}
	d := newDevice()
	d.settle = gone
	if _, err := load(d, []Item{item("good", 4, make([]byte, 4))}, nil); !errors.Is(err, gone) {
		t.Errorf("a write that fails late: %v", err)
	}
}

// model writes a file with tensors of the given numbers of bytes, opens it and returns its items.
func model(t *testing.T, align uint32, sizes ...int) (*gguf.File, []Item) {
	t.Helper()
	var w gguf.Writer
	if err := w.Set("general.alignment", align); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, uint64(align)))
	for i, n := range sizes {
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		if err := w.AddTensor(fmt.Sprintf("t%d", i), quant.Q8_0, []uint64{uint64(n / 34 * 32)}, data); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var items []Item
	for _, x := range f.Tensors() {
		items = append(items, Item{
			Buf:    &shaders.Buffer{Name: x.Name, Kind: shaders.Weight, Size: (x.Size + 3) &^ 3},
			Tensor: x,
			Bytes:  func() ([]byte, error) { return f.Data(x) },
		})
	}
	return f, items
}

// holds checks that every item has its bytes on the device: imported in places that cover it and overlap by a
// binding, or copied.
func (d *device) holds(t *testing.T, name string, items []Item, c Caps) {
	t.Helper()
	for _, it := range items {
		want, err := it.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		binds := d.imported[it.Buf]
		if (len(binds) > 0) == (d.memory[it.Buf] != nil) {
			t.Errorf("%s: %s is imported %d times and copied %v", name, it.Buf.Name, len(binds), d.memory[it.Buf] != nil)
			continue
		}
		if len(binds) == 0 {
			if !bytes.HasPrefix(d.memory[it.Buf], want) {
				t.Errorf("%s: the copy of %s differs", name, it.Buf.Name)
			}
			continue
		}
		end := int64(0)
		for i, b := range binds {
			n := min(b.N, int64(len(want))-b.From)
			if b.Off%4 != 0 || !bytes.Equal(d.pages[b.Off:b.Off+n], want[b.From:b.From+n]) {
				t.Errorf("%s: %s, bytes %d..%d lie elsewhere", name, it.Buf.Name, b.From, b.From+n)
			}
			if i > 0 && b.From > end-d.binding || i == 0 && b.From != 0 {
				t.Errorf("%s: %s: window %d begins at %d, the one before ends at %d and kernels bind %d", name, it.Buf.Name, i, b.From, end, d.binding)
			}
			end = b.From + b.N
		}
		if end != it.Buf.Size {
			t.Errorf("%s: %s ends at %d of %d", name, it.Buf.Name, end, it.Buf.Size)
		}
	}
	if d.binding > c.Binding || d.binding <= 0 {
		t.Errorf("%s: kernels bind %d of %d", name, d.binding, c.Binding)
	}
}

// Windows of every size hold every tensor, those that are larger than a window in overlapping ones.
func TestImport(t *testing.T) {
	// From a few bytes to 1.3 MB, the last one to the end of the file.
	sizes := []int{34, 34 * 100, 34 * 3000, 34, 34 * 40000, 34 * 2, 34 * 7000, 34 * 2000}
	f, items := model(t, 32, sizes...)
	for _, c := range []struct {
		window, binding int64
		windows         int
	}{
		{1 << 30, 1 << 27, 1},
		{1 << 21, 1 << 27, 1},
		{1 << 20, 1 << 18, 0},
		{1 << 20, 1 << 27, 0}, // kernels could bind more than a window: they are told not to
		{1 << 18, 1 << 16, 0},
	} {
		name := fmt.Sprintf("window %d, binding %d", c.window, c.binding)
		caps := Caps{Unified: true, Align: 4096, Window: c.window, Binding: c.binding}
		d := newDevice()
		d.pages = f.Pages(0)
		r, err := Load(f, items, Decide(f, items, caps), d, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.holds(t, name, items, caps)
		if r.Imported != Total(items) || r.Copied != 0 || r.Uploaded != 0 || len(r.Fallbacks) != 0 || r.Windows != d.imports {
			t.Errorf("%s: %+v, %d imports", name, r, d.imports)
		}
		if c.windows > 0 && r.Windows != c.windows {
			t.Errorf("%s: %d windows", name, r.Windows)
		}
		dec := Decide(f, items, caps)
		for _, w := range dec.windows {
			if w.to-w.from > c.window || w.from%4096 != 0 || w.to%4096 != 0 || w.to > int64(len(f.Pages(0))) {
				t.Errorf("%s: window %d..%d", name, w.from, w.to)
			}
		}
		if dec.Windows() != r.Windows {
			t.Errorf("%s: %d windows planned, %d made", name, dec.Windows(), r.Windows)
		}
	}
}

// Whatever cannot be imported is copied, and the report says why.
func TestImportFallback(t *testing.T) {
	refused := errors.New("vk: vkAllocateMemory: refused")
	sizes := []int{34 * 100, 34 * 3001, 34 * 40000, 34 * 7000}
	f, items := model(t, 32, sizes...)
	odd, oddItems := model(t, 2, 34*101, 34*1000, 34)
	words := int64(0) // of tensors at whole words
	for _, it := range oddItems {
		if it.Tensor.Offset%4 == 0 {
			words += it.Buf.Size
		}
	}
	if words == 0 || words == Total(oddItems) {
		t.Fatalf("%d of %d bytes are at whole words", words, Total(oddItems))
	}
	small := Caps{Unified: true, Align: 4096, Window: 1 << 19, Binding: 1 << 17}
	discrete := small
	discrete.Unified = false
	coarse := small
	coarse.Align = 1 << 40 // pages of no machine
	rearranged := append(slices.Clone(items), item("rows", 8, make([]byte, 8)))
	for _, c := range []struct {
		name     string
		file     *gguf.File
		items    []Item
		caps     Caps
		refuse   func(int) error
		imported int64
		reasons  []string
	}{
		{"all refused", f, items, small, func(int) error { return refused }, 0, []string{"refused"}},
		{"the first window refused", f, items, small, func(n int) error {
			if n == 0 {
				return refused
			}
			return nil
		}, items[2].Buf.Size + items[3].Buf.Size, []string{"refused"}},
		{"a window inside a large tensor refused", f, items, small, func(n int) error {
			if n == 3 {
				return refused
			}
			return nil
		}, Total(items) - items[2].Buf.Size, []string{"refused"}},
		{"refused on a discrete device", f, items, discrete, func(int) error { return refused }, 0, []string{"refused"}},
		{"not at whole words", odd, oddItems, small, nil, words, []string{"whole word"}},
		{"rows in another order", f, rearranged, small, nil, Total(items), []string{"put together"}},
		{"alignment", f, items, coarse, nil, 0, []string{"edge"}},
	} {
		d := newDevice()
		d.pages, d.refuse = c.file.Pages(0), c.refuse
		r, err := Load(c.file, c.items, Decide(c.file, c.items, c.caps), d, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		d.holds(t, c.name, c.items, c.caps)
		rest := r.Copied
		if !c.caps.Unified {
			rest = r.Uploaded
		}
		if r.Imported != c.imported || rest != Total(c.items)-c.imported || r.Imported+r.Copied+r.Uploaded != Total(c.items) {
			t.Errorf("%s: %+v, want %d imported of %d", c.name, r, c.imported, Total(c.items))
		}
		var reasons []string
		bytes, n := int64(0), 0
		for _, x := range r.Fallbacks {
			reasons = append(reasons, x.Reason)
			bytes, n = bytes+x.Bytes, n+x.Items
		}
		if len(reasons) != len(c.reasons) || bytes != rest || n != len(d.memory) || !strings.Contains(strings.Join(reasons, ";"), c.reasons[0]) {
			t.Errorf("%s: reasons %+v", c.name, r.Fallbacks)
		}
		live := map[string]bool{}
		for b, binds := range d.imported {
			for _, x := range binds {
				if x.N < b.Size {
					live[fmt.Sprint(b.Name, x.From)] = true
				} else {
					live[fmt.Sprint(x.Off/c.caps.Window)] = true
				}
			}
		}
		if r.Windows > d.imports || (r.Windows == 0) != (len(live) == 0) {
			t.Errorf("%s: %d windows of %d imports, %d in use", c.name, r.Windows, d.imports, len(live))
		}
	}
	// A model that lies in memory.
	mem, err := gguf.OpenBytes("memory", slices.Clone(f.Pages(0)[:f.Size()]))
	if err != nil {
		t.Fatal(err)
	}
	dec := Decide(mem, items, small)
	if slices.Contains(dec.Residency, Imported) || len(dec.Fallbacks) != 1 || !strings.Contains(dec.Fallbacks[0].Reason, "mapped") {
		t.Errorf("in memory: %+v", dec)
	}
}

func TestCapsOf(t *testing.T) {
	info := vk.DeviceInfo{Limits: vk.Limits{MaxAllocation: 1 << 31, MaxBufferSize: 1 << 32, MinHostPointerAlignment: 4096}}
	unified := vk.Profile{Unified: true, MaxBinding: 1 << 27, Features: vk.Features{HostImport: true}}
	discrete := unified
	discrete.Unified = false
	without := unified
	without.Features.HostImport = false
	for _, c := range []struct {
		name string
		p    vk.Profile
		mode string
		ok   bool
	}{
		{"unified", unified, Auto, true},
		{"unified, import", unified, Import, true},
		{"unified, copy", unified, Copy, false},
		{"discrete", discrete, Auto, false},
		{"discrete, import", discrete, Import, true},
		{"no extension", without, Import, false},
		{"no extension", without, Auto, false},
	} {
		got := CapsOf(info, c.p, c.mode)
		if (got.NoImport == "") != c.ok || got.Unified != c.p.Unified || got.Window != maxWindow || got.Align != 4096 || got.Binding != 1<<27 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	info.Limits.MaxAllocation = 1 << 28
	if got := CapsOf(info, unified, Auto).Window; got != 1<<28 {
		t.Errorf("window %d", got)
	}
	for r, want := range []string{"imported", "copied", "uploaded", "host", "residency 4"} {
		if got := Residency(r).String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
