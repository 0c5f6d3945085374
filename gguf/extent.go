package gguf

import (
	"fmt"

	"github.com/calderaml/caldera/gguf/quant"
)

// Extent returns the bytes that a part's file has, and the bytes it needs to hold all of its tensors.
func (f *File) Extent(part int) (have, need int64) {
	p := f.parts[part]
	need = int64(p.dataStart)
	for i := range p.tensors {
		need = max(need, p.tensors[i].Offset+p.tensors[i].Size)
	}
	return int64(len(p.data)), need
}

// checkExtents reports the first tensor whose bytes are not all in the file.
// The padding after the last tensor need not be there.
func (p *part) checkExtents() error {
	size := int64(len(p.data))
	for i := range p.tensors {
		t := &p.tensors[i]
		if t.Offset+t.Size <= size {
			continue
		}
		err := fmt.Errorf("gguf: %s: %w%s", p.name, p.truncated(t), p.legacyHint(i+1, uint64(size)-p.dataStart))
		if more := len(p.tensors) - i - 1; more > 0 {
			err = fmt.Errorf("%w (and %d tensors after it)", err, more)
		}
		return err
	}
	return nil
}

// truncated is the error for a tensor that lies outside the file.
func (p *part) truncated(t *Tensor) error {
	return fmt.Errorf("tensor %q is %d bytes at offset %d, but the file is %d bytes long: %w; download or copy it again",
		t.Name, t.Size, t.Offset, len(p.data), ErrTruncated)
}

// legacyHint explains a wrong offset of tensor i, or a wrong end of the data if
// i is their number, by the one other layout that files with type id 42 have:
// blocks of 128 elements in 34 bytes instead of Q2_0's 64 in 18 (weights.md
// 2.1). It returns nothing if the bytes do not fit that layout either.
func (p *part) legacyHint(i int, offset uint64) string {
	var next uint64
	found := false
	for k := range p.tensors[:min(i, len(p.tensors))] {
		t := &p.tensors[k]
		size := uint64(t.Size)
		if t.Type == quant.Q2_0 {
			if t.Ne(0)%128 != 0 {
				return ""
			}
			found = true
			size = size / 36 * 34
		}
		end, ok := addTo(next, size)
		if ok && i == len(p.tensors) && end == offset {
			next = end // the last padding may be absent
			break
		}
		if next, ok = padTo(end, p.align); !ok {
			return ""
		}
	}
	if !found || next != offset {
		return ""
	}
	return "; the layout is that of a fork's legacy Q2_0 with 128-element blocks: get the model in another format"
}
