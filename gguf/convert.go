package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// This file turns Values into Go values. Writers disagree on widths and on
// scalar or array for the same key (weights.md 1.2), so integers of any width
// convert as long as the number fits, and a scalar can stand for an array of
// one. Nothing else converts: not a float to an integer, and an integer to a
// float only if it is exactly that float.

type signedInt interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64
}

type anyInt interface {
	signedInt | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// mismatch is the error for a value of the wrong type. %T of a nil []T prints
// the wanted type without any reflection of ours.
func (v Value) mismatch(want any) error {
	return fmt.Errorf("is %s, want %T", v.describe(), want)
}

// integer converts element i.
func integer[T anyInt](v Value, i int) (T, error) {
	u, neg := integerAt(v.elem, v.raw, i)
	r := T(u)
	if (r < 0) != neg || uint64(r) != u {
		if neg {
			return 0, fmt.Errorf("is %d, out of the range of %T", int64(u), r)
		}
		return 0, fmt.Errorf("is %d, out of the range of %T", u, r)
	}
	return r, nil
}

func scalarInteger[T anyInt](v Value) (T, error) {
	if v.array || !v.elem.integer() {
		return 0, v.mismatch(T(0))
	}
	return integer[T](v, 0)
}

func integers[T anyInt](v Value) ([]T, error) {
	if !v.elem.integer() {
		return nil, v.mismatch([]T(nil))
	}
	s := make([]T, v.n)
	for i := range s {
		x, err := integer[T](v, i)
		if err != nil {
			return nil, v.element(i, err)
		}
		s[i] = x
	}
	return s, nil
}

// element adds the index of an array's element to an error about it.
func (v Value) element(i int, err error) error {
	if !v.array {
		return err
	}
	return fmt.Errorf("element %d %w", i, err)
}

type anyFloat interface{ ~float32 | ~float64 }

// float converts element i. A float64 narrows to the nearest float32, an
// integer must be exact.
func float[T anyFloat](v Value, i int) (T, error) {
	switch v.elem {
	case KindFloat32:
		return T(math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))), nil
	case KindFloat64:
		x := math.Float64frombits(binary.LittleEndian.Uint64(v.raw[8*i:]))
		r := T(x)
		if math.IsInf(float64(r), 0) && !math.IsInf(x, 0) {
			return 0, fmt.Errorf("is %g, out of the range of %T", x, r)
		}
		return r, nil
	}
	// All integers up to 2^53 (2^24) are floats; larger ones are refused
	// even where they happen to be, since no such key exists.
	u, neg := integerAt(v.elem, v.raw, i)
	limit := uint64(1) << 53
	if unsafe.Sizeof(T(0)) == 4 {
		limit = 1 << 24
	}
	r, mag := T(u), u
	if neg {
		r, mag = T(int64(u)), -u
	}
	if mag > limit {
		return 0, fmt.Errorf("is an integer of magnitude %d, which %T cannot hold exactly", mag, r)
	}
	return r, nil
}

func (v Value) number() bool {
	return v.elem.integer() || v.elem == KindFloat32 || v.elem == KindFloat64
}

func scalarFloat[T anyFloat](v Value) (T, error) {
	if v.array || !v.number() {
		return 0, v.mismatch(T(0))
	}
	return float[T](v, 0)
}

func floats[T anyFloat](v Value) ([]T, error) {
	if !v.number() {
		return nil, v.mismatch([]T(nil))
	}
	s := make([]T, v.n)
	for i := range s {
		x, err := float[T](v, i)
		if err != nil {
			return nil, v.element(i, err)
		}
		s[i] = x
	}
	return s, nil
}

func scalarBool(v Value) (bool, error) {
	if v.array || v.elem != KindBool {
		return false, v.mismatch(false)
	}
	return v.raw[0] != 0, nil
}

func bools(v Value) ([]bool, error) {
	if v.elem != KindBool {
		return nil, v.mismatch([]bool(nil))
	}
	s := make([]bool, v.n)
	for i := range s {
		s[i] = v.raw[i] != 0
	}
	return s, nil
}

func scalarString(v Value) (string, error) {
	if v.array || v.elem != KindString {
		return "", v.mismatch("")
	}
	s, _, ok := cutString(v.raw)
	if !ok {
		return "", errLengths
	}
	return string(s), nil
}

// stringSlice copies the whole array once and cuts the strings from the copy:
// a vocabulary has hundreds of thousands of short ones. Lengths were checked when
// the file was parsed, but somebody may have written to the mapped file since.
func stringSlice(v Value) ([]string, error) {
	if !v.array || v.elem != KindString {
		return nil, v.mismatch([]string(nil))
	}
	text := string(v.raw)
	s := make([]string, v.n)
	at := 0
	for i := range s {
		if len(text)-at < 8 {
			return nil, errLengths
		}
		var length uint64
		for k := range 8 {
			length |= uint64(text[at+k]) << (8 * k)
		}
		if length > uint64(len(text)-at-8) {
			return nil, errLengths
		}
		n := int(length)
		s[i] = text[at+8 : at+8+n]
		at += 8 + n
	}
	return s, nil
}
