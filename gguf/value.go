package gguf

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"strings"
)

// Kind is the type of a metadata value or array element (weights.md 1.2).
type Kind uint32

// The kinds, by their id in the file.
const (
	KindUint8 Kind = iota
	KindInt8
	KindUint16
	KindInt16
	KindUint32
	KindInt32
	KindFloat32
	KindBool
	KindString
	KindArray
	KindUint64
	KindInt64
	KindFloat64
	numKinds
)

var kinds = [numKinds]struct {
	name string
	size int // bytes, 0 if they vary
}{
	{"uint8", 1}, {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"uint32", 4}, {"int32", 4},
	{"float32", 4}, {"bool", 1}, {"string", 0}, {"array", 0}, {"uint64", 8}, {"int64", 8}, {"float64", 8},
}

// String returns the name of the kind as in the tables of the format.
func (k Kind) String() string {
	if k < numKinds {
		return kinds[k].name
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

func (k Kind) size() int     { return kinds[k].size }
func (k Kind) integer() bool { return k <= KindInt32 || k == KindUint64 || k == KindInt64 }

// A Value is the value of a metadata key. It refers to the bytes of the file it
// came from and is valid until that is closed. The zero Value is not valid.
type Value struct {
	array bool
	elem  Kind   // of the elements of an array, or of the scalar
	n     int    // elements, 1 for a scalar
	raw   []byte // the elements as stored, checked
}

// Kind returns the kind of the value.
func (v Value) Kind() Kind {
	if v.array {
		return KindArray
	}
	return v.elem
}

// Elem returns the kind of an array's elements, of a scalar its own kind.
func (v Value) Elem() Kind { return v.elem }

// Len returns the number of elements of an array, 1 for a scalar.
func (v Value) Len() int { return v.n }

// describe says what the value is: "uint32" or "array of 3 string".
func (v Value) describe() string {
	if v.array {
		return fmt.Sprintf("array of %d %v", v.n, v.elem)
	}
	return v.elem.String()
}

// String renders the value for people: strings are quoted, and long strings
// and arrays elided.
func (v Value) String() string { return v.Text(8, 120) }

// Text renders the value with at most the given number of array elements and
// of bytes per string; negative means all.
func (v Value) Text(elements, length int) string {
	if !v.array {
		s, _ := v.text(v.raw, length)
		return s
	}
	var b strings.Builder
	b.WriteByte('[')
	rest := v.raw
	for i := range v.n {
		if i > 0 {
			b.WriteString(", ")
		}
		if elements >= 0 && i == elements {
			fmt.Fprintf(&b, "… %d in all", v.n)
			break
		}
		var s string
		s, rest = v.text(rest, length)
		b.WriteString(s)
	}
	b.WriteByte(']')
	return b.String()
}

// Elements yields the elements of an array one after the other, of a scalar its
// value: a bool, string, float32, float64, or an int64, or a uint64 where that
// is too large for one. Nothing is expanded in advance, so looking at the first
// few of a large array costs no more than they do.
func (v Value) Elements() iter.Seq[any] {
	return func(yield func(any) bool) {
		rest := v.raw
		for i := range v.n {
			var x any
			switch v.elem {
			case KindString:
				s, after, ok := cutString(rest)
				if !ok {
					return
				}
				x, rest = string(s), after
			case KindBool:
				x = v.raw[i] != 0
			case KindFloat32:
				x = math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))
			case KindFloat64:
				x = math.Float64frombits(binary.LittleEndian.Uint64(v.raw[8*i:]))
			default:
				u, neg := integerAt(v.elem, v.raw, i)
				if x = int64(u); !neg && u > math.MaxInt64 {
					x = u
				}
			}
			if !yield(x) {
				return
			}
		}
	}
}

// text renders the element at the start of raw and returns what follows it.
func (v Value) text(raw []byte, length int) (string, []byte) {
	switch {
	case v.elem == KindString:
		s, rest, ok := cutString(raw)
		if !ok {
			return "?", nil
		}
		if length >= 0 && len(s) > length {
			return fmt.Sprintf("%q… %d bytes", s[:length], len(s)), rest
		}
		return fmt.Sprintf("%q", s), rest
	case v.elem == KindBool:
		return fmt.Sprint(raw[0] != 0), raw[1:]
	case v.elem == KindFloat32:
		return fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(raw))), raw[4:]
	case v.elem == KindFloat64:
		return fmt.Sprint(math.Float64frombits(binary.LittleEndian.Uint64(raw))), raw[8:]
	}
	u, neg := integerAt(v.elem, raw, 0)
	rest := raw[v.elem.size():]
	if neg {
		return fmt.Sprint(int64(u)), rest
	}
	return fmt.Sprint(u), rest
}

// errLengths is what reading strings finds in a file that was changed since its lengths were checked.
var errLengths = fmt.Errorf("%w: the lengths of strings are not what they were", ErrChanged)

// cutString takes a length-prefixed string off raw. It has been checked, but raw
// may be a mapping that somebody writes to: ok says whether it still holds.
func cutString(raw []byte) (s, rest []byte, ok bool) {
	if len(raw) < 8 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint64(raw)
	if n > uint64(len(raw)-8) {
		return nil, nil, false
	}
	return raw[8 : 8+n], raw[8+n:], true
}

// integerAt returns element i of raw as 64 bits; neg says that they are those
// of a negative int64.
func integerAt(k Kind, raw []byte, i int) (u uint64, neg bool) {
	var s int64
	switch k {
	case KindUint8:
		return uint64(raw[i]), false
	case KindUint16:
		return uint64(binary.LittleEndian.Uint16(raw[2*i:])), false
	case KindUint32:
		return uint64(binary.LittleEndian.Uint32(raw[4*i:])), false
	case KindUint64:
		return binary.LittleEndian.Uint64(raw[8*i:]), false
	case KindInt8:
		s = int64(int8(raw[i]))
	case KindInt16:
		s = int64(int16(binary.LittleEndian.Uint16(raw[2*i:])))
	case KindInt32:
		s = int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
	case KindInt64:
		s = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return uint64(s), s < 0
}
