package weights

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
)

// item is an item of size bytes whose content is data.
func item(name string, size int64, data []byte) Item {
	return Item{
		Buf:   &shaders.Buffer{Name: name, Kind: shaders.Weight, Size: size},
		Bytes: func() ([]byte, error) { return data, nil },
	}
}

// device is a Target that keeps what it is given and fails when told to.
type device struct {
	memory   map[*shaders.Buffer][]byte
	calls    []string
	allocate error // of the buffer named "bad"
	upload   error
}

func (d *device) Allocate(b *shaders.Buffer, zero bool) error {
	d.calls = append(d.calls, fmt.Sprintf("allocate %s %t", b.Name, zero))
	if b.Name == "bad" && d.allocate != nil {
		return d.allocate
	}
	d.memory[b] = bytes.Repeat([]byte{0xee}, int(b.Size)) // fresh memory holds anything
	return nil
}

func (d *device) Upload(v shaders.View, data []byte) error {
	d.calls = append(d.calls, fmt.Sprintf("upload %s %d+%d", v.Buf.Name, v.Off, v.Len))
	if v.Buf.Name == "bad" && d.upload != nil {
		return d.upload
	}
	if v.Len != int64(len(data)) {
		return fmt.Errorf("%d bytes for a view of %d", len(data), v.Len)
	}
	copy(d.memory[v.Buf][v.Off:], data)
	return nil
}

func TestUpload(t *testing.T) {
	items := []Item{
		item("a", 8, []byte{1, 2, 3, 4, 5, 6, 7, 8}),
		item("b", 12, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), // two bytes of padding
		item("c", 4, []byte{1}),
	}
	d := &device{memory: map[*shaders.Buffer][]byte{}}
	var done []int64
	if err := Upload(d, items, func(n int64) { done = append(done, n) }); err != nil {
		t.Fatal(err)
	}
	// One after the other, so that not all of a model's content is in memory at once.
	want := []string{"allocate a false", "upload a 0+8", "allocate b false", "upload b 0+10", "allocate c false", "upload c 0+1"}
	if !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
	if !slices.Equal(done, []int64{8, 20, 24}) || done[2] != Total(items) {
		t.Errorf("progress %v of %d", done, Total(items))
	}
	for _, it := range items {
		data, _ := it.Bytes()
		if !bytes.HasPrefix(d.memory[it.Buf], data) {
			t.Errorf("%s holds %v, want %v", it.Buf.Name, d.memory[it.Buf], data)
		}
	}
	if err := Upload(d, nil, nil); err != nil || Total(nil) != 0 {
		t.Errorf("nothing to do: %v, %d bytes", err, Total(nil))
	}
}

func TestUploadFaults(t *testing.T) {
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
		{"no device", item("bad", 4, make([]byte, 4)), device{upload: gone}, gone, "", 4},
		{"no content", broken, device{}, torn, "weights bad", 2},
		{"too long", item("bad", 8, make([]byte, 9)), device{}, nil, "weights bad: 9 bytes for a buffer of 8", 2},
		{"too short", item("bad", 8, make([]byte, 4)), device{}, nil, "weights bad: 4 bytes for a buffer of 8", 2},
		{"empty", item("bad", 4, nil), device{}, nil, "weights bad: 0 bytes for a buffer of 4", 2},
	} {
		d := c.device
		d.memory = map[*shaders.Buffer][]byte{}
		last := int64(-1)
		err := Upload(&d, []Item{item("good", 4, make([]byte, 4)), c.item, item("never", 4, make([]byte, 4))}, func(n int64) { last = n })
		if err == nil || !strings.Contains(err.Error(), c.text) || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		// What comes before is done and reported, what comes after is not begun.
		if len(d.calls) != c.calls || last != 4 {
			t.Errorf("%s: calls %q, progress %d", c.name, d.calls, last)
		}
		if c.device.allocate == nil && c.device.upload == nil {
			if _, err := Map([]Item{c.item}); err == nil || !strings.Contains(err.Error(), c.text) || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("%s: Map: %v", c.name, err)
			}
		}
	}
}

// Host memory is the content itself where words can be read from it, and a padded copy elsewhere.
func TestMap(t *testing.T) {
	raw := shaders.AlignedBytes(64)
	for i := range raw {
		raw[i] = byte(i + 1)
	}
	for _, c := range []struct {
		name    string
		size    int64
		data    []byte
		aliased bool
	}{
		{"aligned", 16, raw[8:24], true},
		{"aligned for words alone", 16, raw[4:20], true},
		{"unaligned", 16, raw[2:18], false},
		{"at an odd address", 16, raw[7:23], false},
		{"one byte short", 16, raw[8:23], false},
		{"three bytes short", 16, raw[8:21], false},
		{"nothing", 0, nil, false},
	} {
		it := item(c.name, c.size, c.data)
		m, err := Map([]Item{it})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := m[it.Buf]
		if int64(len(got)) != c.size || !bytes.HasPrefix(got, c.data) {
			t.Errorf("%s: %v, want %v", c.name, got, c.data)
		}
		if pad := got[len(c.data):]; bytes.Count(pad, []byte{0}) != len(pad) {
			t.Errorf("%s: padded with %v", c.name, pad)
		}
		if len(got) == 0 {
			continue
		}
		if uintptr(unsafe.Pointer(&got[0]))%4 != 0 {
			t.Errorf("%s: at %p", c.name, &got[0])
		}
		if aliased := &got[0] == unsafe.SliceData(c.data); aliased != c.aliased {
			t.Errorf("%s: aliased: %t", c.name, aliased)
		}
		// What twins see as words is all of it.
		if n := len(shaders.U32(m, it.Buf.View())); int64(n) != c.size/4 {
			t.Errorf("%s: %d words", c.name, n)
		}
	}
}

// Content that is read from a file whose tensors do not end at words: each is padded by itself, and the
// file's bytes stay as they are.
func TestMapFile(t *testing.T) {
	var w gguf.Writer
	tensors := map[string][]byte{}
	// Blocks of 34 bytes: the first and third tensor are whole words, the second is not.
	for i, n := range []int{64, 32, 96} {
		name := fmt.Sprintf("t%d", i)
		data := bytes.Repeat([]byte{byte(i + 1)}, n/32*34)
		tensors[name] = data
		if err := w.AddTensor(name, quant.Q8_0, []uint64{uint64(n)}, data); err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	if _, err := w.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(file.Bytes())
	f, err := gguf.OpenBytes("weights.gguf", file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var items []Item
	for _, x := range f.Tensors() {
		items = append(items, Item{
			Buf:    &shaders.Buffer{Name: x.Name, Kind: shaders.Weight, Size: (x.Size + 3) &^ 3},
			Tensor: x,
			Bytes:  func() ([]byte, error) { return f.Data(x) },
		})
	}
	m, err := Map(items)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{memory: map[*shaders.Buffer][]byte{}}
	if err := Upload(d, items, nil); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		want := tensors[it.Buf.Name]
		if got := m[it.Buf]; int64(len(got)) != it.Buf.Size || !bytes.HasPrefix(got, want) {
			t.Errorf("%s: mapped %v", it.Buf.Name, got)
		}
		if got := d.memory[it.Buf]; int64(len(got)) != it.Buf.Size || !bytes.HasPrefix(got, want) {
			t.Errorf("%s: uploaded %v", it.Buf.Name, got)
		}
	}
	if got := Total(items); got != 68+36+104 {
		t.Errorf("%d bytes in all", got)
	}
	if !bytes.Equal(file.Bytes(), before) {
		t.Error("the file's bytes changed")
	}
}
