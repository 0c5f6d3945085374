package gguf

import (
	"encoding/binary"
	"fmt"
)

// A cursor takes fields off the front of a header. After the first failure it
// takes nothing more and keeps that error, so that a parser reads a record and
// then asks once.
type cursor struct {
	data []byte
	pos  int
	err  error
}

func (c *cursor) left() uint64 { return uint64(len(c.data) - c.pos) }

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// take returns the next n bytes, or nil if there are fewer.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.left() {
		c.fail("%s needs %d bytes at offset %d, the file has %d more", what, n, c.pos, c.left())
		return nil
	}
	b := c.data[c.pos:][:n:n]
	c.pos += int(n)
	return b
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// text takes a length-prefixed string of at most max bytes.
func (c *cursor) text(max uint64, what string) []byte {
	if c.err == nil && c.left() < 8 {
		// Worded here: putting the words together for each string of a vocabulary would cost more than reading it.
		c.fail("the length of %s needs 8 bytes at offset %d, the file has %d more", what, c.pos, c.left())
	}
	n := c.u64("")
	if c.err == nil && n > max {
		c.fail("%s is %d bytes long, the limit is %d", what, n, max)
	}
	return c.take(n, what)
}

// value takes a metadata value of a kind.
func (c *cursor) value(k Kind) Value {
	v := Value{elem: k, n: 1}
	switch {
	case k >= numKinds:
		c.fail("value type %d is unknown", uint32(k))
	case k == KindArray:
		return c.array()
	default:
		v.raw = c.elements(k, 1)
	}
	return v
}

func (c *cursor) array() Value {
	k := Kind(c.u32("the element type of an array"))
	n := c.u64("the length of an array")
	switch {
	case c.err != nil:
	case k == KindArray:
		c.fail("an array of arrays is not supported")
	case k >= numKinds:
		c.fail("element type %d is unknown", uint32(k))
	case n > MaxArray:
		c.fail("an array has %d elements, the limit is %d", n, MaxArray)
	default:
		return Value{array: true, elem: k, n: int(n), raw: c.elements(k, n)}
	}
	return Value{}
}

// elements takes n ≤ MaxArray values of a kind that is not an array, and
// returns their bytes once every one of them is known to be sound.
func (c *cursor) elements(k Kind, n uint64) []byte {
	if k != KindString {
		raw := c.take(n*uint64(k.size()), "a value of type "+k.String())
		if k == KindBool {
			for _, b := range raw {
				if b > 1 {
					c.fail("a bool is %d, neither 0 nor 1", b)
				}
			}
		}
		return raw
	}
	if c.err == nil && 8*n > c.left() {
		c.fail("an array of %d strings does not fit in the %d bytes left", n, c.left())
	}
	start := c.pos
	for range n {
		if c.text(MaxString, "a string"); c.err != nil {
			return nil
		}
	}
	return c.data[start:c.pos:c.pos]
}
