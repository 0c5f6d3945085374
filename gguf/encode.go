package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ValueOf makes a metadata value of a Go value: an integer, float or bool of a
// fixed size, a string, or a slice of those. A Value is returned as it is. An
// int has no size in the format: convert it to one that has.
func ValueOf(x any) (Value, error) {
	switch x := x.(type) {
	case Value:
		if x.raw == nil && (!x.array || x.n > 0) {
			return Value{}, fmt.Errorf("an empty Value")
		}
		return x, nil
	case string:
		return stringValue(x)
	case []string:
		return stringsValue(x)
	case bool:
		return Value{elem: KindBool, n: 1, raw: appendBools(nil, x)}, nil
	case []bool:
		return arrayValue(KindBool, len(x), appendBools([]byte{}, x...))
	case float32:
		return scalar(KindFloat32, uint64(math.Float32bits(x))), nil
	case float64:
		return scalar(KindFloat64, math.Float64bits(x)), nil
	case uint8:
		return scalar(KindUint8, uint64(x)), nil
	case int8:
		return scalar(KindInt8, uint64(x)), nil
	case uint16:
		return scalar(KindUint16, uint64(x)), nil
	case int16:
		return scalar(KindInt16, uint64(x)), nil
	case uint32:
		return scalar(KindUint32, uint64(x)), nil
	case int32:
		return scalar(KindInt32, uint64(x)), nil
	case uint64:
		return scalar(KindUint64, x), nil
	case int64:
		return scalar(KindInt64, uint64(x)), nil
	case []uint8:
		return integersValue(KindUint8, x)
	case []int8:
		return integersValue(KindInt8, x)
	case []uint16:
		return integersValue(KindUint16, x)
	case []int16:
		return integersValue(KindInt16, x)
	case []uint32:
		return integersValue(KindUint32, x)
	case []int32:
		return integersValue(KindInt32, x)
	case []uint64:
		return integersValue(KindUint64, x)
	case []int64:
		return integersValue(KindInt64, x)
	case []float32:
		raw := make([]byte, 0, 4*len(x))
		for _, f := range x {
			raw = appendBits(raw, 4, uint64(math.Float32bits(f)))
		}
		return arrayValue(KindFloat32, len(x), raw)
	case []float64:
		raw := make([]byte, 0, 8*len(x))
		for _, f := range x {
			raw = appendBits(raw, 8, math.Float64bits(f))
		}
		return arrayValue(KindFloat64, len(x), raw)
	}
	return Value{}, fmt.Errorf("a %T is no metadata value", x)
}

// appendBits appends the low size bytes of u.
func appendBits(raw []byte, size int, u uint64) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], u)
	return append(raw, b[:size]...)
}

func appendBools(raw []byte, x ...bool) []byte {
	for _, b := range x {
		if b {
			raw = append(raw, 1)
		} else {
			raw = append(raw, 0)
		}
	}
	return raw
}

func appendString(raw []byte, s string) []byte {
	raw = binary.LittleEndian.AppendUint64(raw, uint64(len(s)))
	return append(raw, s...)
}

func scalar(k Kind, u uint64) Value {
	return Value{elem: k, n: 1, raw: appendBits(nil, k.size(), u)}
}

func arrayValue(k Kind, n int, raw []byte) (Value, error) {
	if n > MaxArray {
		return Value{}, fmt.Errorf("an array has %d elements, the limit is %d", n, MaxArray)
	}
	return Value{array: true, elem: k, n: n, raw: raw}, nil
}

func integersValue[T anyInt](k Kind, x []T) (Value, error) {
	raw := make([]byte, 0, k.size()*len(x))
	for _, v := range x {
		raw = appendBits(raw, k.size(), uint64(v))
	}
	return arrayValue(k, len(x), raw)
}

func stringValue(s string) (Value, error) {
	if len(s) > MaxString {
		return Value{}, fmt.Errorf("a string is %d bytes long, the limit is %d", len(s), MaxString)
	}
	return Value{elem: KindString, n: 1, raw: appendString(nil, s)}, nil
}

func stringsValue(x []string) (Value, error) {
	size := 0
	for _, s := range x {
		if len(s) > MaxString {
			return Value{}, fmt.Errorf("a string is %d bytes long, the limit is %d", len(s), MaxString)
		}
		size += 8 + len(s)
	}
	raw := make([]byte, 0, size)
	for _, s := range x {
		raw = appendString(raw, s)
	}
	return arrayValue(KindString, len(x), raw)
}
