package shaders

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/calderaml/caldera/gguf/quant"
)

// A KVFormat is how pages of the KV cache store their elements.
//
// A page is one layer's keys, or values, of PageTokens tokens: rows of as many elements as the layer has KV heads
// times dimensions, one row after the other. F32 and F16 pages hold the elements in that order, two halves a word,
// the first in the low half. Q8_0 and Q4_0 pages cut the page into blocks of 32 elements and hold all blocks'
// scales, two halves a word, then all blocks' codes in the bytes of ggml's blocks (weights.md 2.2): the same
// blocks taken apart, so that everything begins at a word.
type KVFormat uint8

const (
	KVF32 KVFormat = iota
	KVF16
	KVQ8_0
	KVQ4_0
)

var kvFormats = [...]struct {
	name string
	typ  quant.Type
}{{"f32", quant.F32}, {"f16", quant.F16}, {"q8_0", quant.Q8_0}, {"q4_0", quant.Q4_0}}

// String returns the format's name, as users write it.
func (f KVFormat) String() string {
	if int(f) < len(kvFormats) {
		return kvFormats[f].name
	}
	return fmt.Sprintf("KVFormat(%d)", uint8(f))
}

// ParseKVFormat returns the format of a name.
func ParseKVFormat(name string) (KVFormat, error) {
	for f, k := range kvFormats {
		if k.name == name {
			return KVFormat(f), nil
		}
	}
	return 0, fmt.Errorf("KV cache type %q: use f32, f16, q8_0 or q4_0", name)
}

// Cold reports whether the format is one of blocks, which hold full pages only: tokens are never written to such
// pages one by one.
func (f KVFormat) Cold() bool { return f == KVQ8_0 || f == KVQ4_0 }

// PageBytes is the size of one layer's keys, or values, of a page whose tokens have width elements each.
func (f KVFormat) PageBytes(width int) int64 {
	t := kvFormats[f].typ
	return int64(PageTokens) * int64(width) / int64(t.BlockSize()) * int64(t.BlockBytes())
}

// CheckWidth refuses rows that the format cannot hold.
func (f KVFormat) CheckWidth(width int) error {
	if f.Cold() && width%kvBlock != 0 {
		return fmt.Errorf("a KV cache in %v needs keys of a multiple of %d elements, KV heads times dimensions; here they have %d: "+
			"use f16 or f32", f, kvBlock, width)
	}
	return nil
}

// kvBlock is the number of elements of a block.
const kvBlock = 32

// A KVPool is a layer's keys and values in pages of one format: [pages] of KVFormat's layout. The zero KVPool is
// none.
type KVPool struct {
	K, V   View
	Format KVFormat
}

// none reports whether there is no pool.
func (p KVPool) none() bool { return p.K.Buf == nil && p.V.Buf == nil }

// pages is how many pages of rows of width elements both views hold.
func (p KVPool) pages(width int) int64 { return min(p.K.Len, p.V.Len) / p.Format.PageBytes(width) }

// check refuses pools that a kernel cannot bind whole, or that are not of the kind wanted.
func (p KVPool) check(kernel string, width int, cold bool, prof *Profile) error {
	switch {
	case int(p.Format) >= len(kvFormats) || p.Format.Cold() != cold:
		return fmt.Errorf("%s: a pool of %v pages where another kind belongs", kernel, p.Format)
	case !p.K.Valid() || !p.V.Valid():
		return fmt.Errorf("%s: a page pool is outside its memory or not aligned to 4", kernel)
	}
	if n := max(p.K.Len, p.V.Len); n > prof.MaxBinding {
		return fmt.Errorf("%s: a page pool of %d bytes does not fit a binding of %d bytes", kernel, n, prof.MaxBinding)
	}
	if err := p.Format.CheckWidth(width); err != nil {
		return fmt.Errorf("%s: %w", kernel, err)
	}
	return nil
}

// kvWords are the words of a pool's keys or values, for twins.
type kvWords struct {
	words  []uint32
	format KVFormat
	width  int // elements of a token
}

// words returns the pool's keys and values.
func (p KVPool) words(m Memory, width int) [2]kvWords {
	return [2]kvWords{{U32(m, p.K), p.Format, width}, {U32(m, p.V), p.Format, width}}
}

// set stores element i of an F32 or F16 pool. Halves are limited to their largest finite value.
func (p kvWords) set(i int, x float32) {
	if p.format == KVF32 {
		p.words[i] = math.Float32bits(x)
		return
	}
	h := uint32(quant.F32ToF16(min(max(x, -65504), 65504)))
	sh := 16 * (i % 2)
	p.words[i/2] = p.words[i/2]&^(0xffff<<sh) | h<<sh
}

// load reads elements [col, col+len(dst)) of a token, which is numbered within the pool.
func (p kvWords) load(dst []float32, token, col int) error {
	switch p.format {
	case KVF32:
		copy(dst, castWords(p.words[token*p.width+col:][:len(dst)]))
		return nil
	case KVF16:
		for i := range dst {
			at := token*p.width + col + i
			dst[i] = quant.F16ToF32(uint16(p.words[at/2] >> (16 * (at % 2))))
		}
		return nil
	}
	page := p.page(token / PageTokens)
	var block [kvBlock]float32
	for n := 0; n < len(dst); {
		at := token%PageTokens*p.width + col + n
		if err := page.decode(&block, at/kvBlock); err != nil {
			return err
		}
		n += copy(dst[n:], block[at%kvBlock:])
	}
	return nil
}

// kvPage is a page of blocks: all scales, then all codes.
type kvPage struct {
	scales, codes []uint32
	typ           quant.Type
}

// page is page i of a pool of blocks.
func (p kvWords) page(i int) kvPage {
	n := int(p.format.PageBytes(p.width) / 4)
	w := p.words[i*n:][:n]
	scales := PageTokens * p.width / kvBlock / 2
	return kvPage{w[:scales], w[scales:], kvFormats[p.format].typ}
}

// block is block i as gguf/quant knows it.
func (p kvPage) block(i int) []byte {
	words := (p.typ.BlockBytes() - 2) / 4
	b := binary.LittleEndian.AppendUint16(nil, uint16(p.scales[i/2]>>(i%2*16)))
	for _, w := range p.codes[i*words:][:words] {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func (p kvPage) decode(dst *[kvBlock]float32, i int) error {
	return quant.Dequantize(p.typ, dst[:], p.block(i))
}

// encode stores block i. Values beyond what a half holds are taken for the largest half of their sign. A block with
// a scale that is zero as a half has the codes of zeros, whatever it was coded from, and one with a value that is
// not finite decodes to NaN.
func (p kvPage) encode(i int, src *[kvBlock]float32) error {
	b := make([]byte, p.typ.BlockBytes())
	finite := true
	var x [kvBlock]float32
	for j, v := range src {
		finite = finite && v-v == 0
		x[j] = min(max(v, -65504), 65504)
	}
	if !finite {
		x = [kvBlock]float32{}
	}
	if err := quant.Quantize(p.typ, b, x[:]); err != nil {
		return err
	}
	scale := binary.LittleEndian.Uint16(b)
	if scale&0x7fff == 0 {
		if err := quant.Quantize(p.typ, b, make([]float32, kvBlock)); err != nil {
			return err
		}
	}
	if !finite {
		scale = 0x7e00
	}
	sh := i % 2 * 16
	p.scales[i/2] = p.scales[i/2]&^(0xffff<<sh) | uint32(scale)<<sh
	words := (len(b) - 2) / 4
	for j := range words {
		p.codes[i*words+j] = binary.LittleEndian.Uint32(b[2+4*j:])
	}
	return nil
}
