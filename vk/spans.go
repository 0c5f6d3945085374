package vk

import "slices"

// A span is a range of bytes.
type span struct{ off, size int64 }

// spans is the free space of a block: sorted, disjoint, not touching.
type spans []span

// take cuts size bytes at a multiple of align out of the first span that holds
// them, and returns their offset, or -1.
func (s *spans) take(size, align int64) int64 {
	for i, f := range *s {
		off := roundUp(f.off, align)
		end := off + size
		if end > f.off+f.size {
			continue
		}
		var rest []span
		if off > f.off {
			rest = append(rest, span{f.off, off - f.off})
		}
		if end < f.off+f.size {
			rest = append(rest, span{end, f.off + f.size - end})
		}
		*s = slices.Replace(*s, i, i+1, rest...)
		return off
	}
	return -1
}

// give returns a range that take handed out, joining it with its neighbours.
func (s *spans) give(off, size int64) {
	i, _ := slices.BinarySearchFunc(*s, off, func(f span, off int64) int {
		if f.off < off {
			return -1
		}
		return 1
	})
	n := span{off, size}
	from, to := i, i
	if i > 0 && (*s)[i-1].off+(*s)[i-1].size == off {
		from--
		n = span{(*s)[from].off, (*s)[from].size + n.size}
	}
	if i < len(*s) && (*s)[i].off == off+size {
		n.size += (*s)[i].size
		to++
	}
	*s = slices.Replace(*s, from, to, n)
}

// roundUp returns the least multiple of align that is at least n.
func roundUp(n, align int64) int64 {
	if align <= 1 {
		return n
	}
	return (n + align - 1) / align * align
}
