package tokenizer

import (
	"sync"
	"unicode"
)

// A class is what a pre-tokenizer sees of a character, one bit each so that a
// class can also be a set of them.
type class uint8

const (
	letter  class = 1 << iota // \p{L}
	mark                      // \p{M}
	number                    // \p{N}
	space                     // White_Space other than newline
	newline                   // \r and \n
	other
)

// classTable gives the class of every code point: pages of 256, equal ones shared.
type classTable struct {
	ascii [128]class
	index [(unicode.MaxRune + 1) >> 8]uint16
	pages [][256]class
}

// of returns the class of a character.
func (t *classTable) of(r rune) class {
	return t.pages[t.index[uint32(r)>>8]][r&0xff]
}

// classes returns the table, which is built on first use from the standard
// library's ranges and then shared by all tokenizers.
var classes = sync.OnceValue(func() *classTable {
	flat := make([]class, unicode.MaxRune+1)
	for i := range flat {
		flat[i] = other
	}
	set := func(r *unicode.RangeTable, c class) {
		for _, x := range r.R16 {
			for i := int(x.Lo); i <= int(x.Hi); i += int(x.Stride) {
				flat[i] = c
			}
		}
		for _, x := range r.R32 {
			for i := int(x.Lo); i <= int(x.Hi); i += int(x.Stride) {
				flat[i] = c
			}
		}
	}
	set(unicode.L, letter)
	set(unicode.M, mark)
	set(unicode.N, number)
	set(unicode.White_Space, space)
	flat['\r'], flat['\n'] = newline, newline

	t := new(classTable)
	copy(t.ascii[:], flat)
	seen := make(map[[256]class]uint16)
	for i := range t.index {
		page := [256]class(flat[i<<8:])
		at, ok := seen[page]
		if !ok {
			at = uint16(len(t.pages))
			t.pages = append(t.pages, page)
			seen[page] = at
		}
		t.index[i] = at
	}
	return t
})
