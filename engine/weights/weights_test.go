package weights

import (
	"bytes"
	"fmt"
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
	d := newDevice()
	if _, err := load(d, items, nil); err != nil {
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
