package state

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

const (
	magic       = "caldsnap"
	version     = 1
	headerBytes = 164
	frameBytes  = 24
	endBytes    = 4
)

// The kinds of sections.
const (
	kindTokens = "TOKN"
	kindPage   = "PAGE"
	kindSlots  = "SLOT"
	kindExtra  = "EXTR"
	kindEnd    = "END "
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodedBytes is the number of bytes that Encode writes.
func (s *Snapshot) EncodedBytes() int64 {
	sections := 3 + len(s.pages) + len(s.extra) // tokens, slots, end
	return headerBytes + int64(sections)*frameBytes + endBytes + s.Bytes()
}

// Encode writes the snapshot in the format that the package's comment describes.
func (s *Snapshot) Encode(w io.Writer) error {
	var h [headerBytes]byte
	copy(h[:], magic)
	le := binary.LittleEndian
	le.PutUint32(h[8:], version)
	le.PutUint32(h[12:], headerBytes)
	copy(h[16:], s.layout.cfg.Model[:])
	copy(h[48:], s.layout.digest[:])
	copy(h[80:144], s.layout.cfg.Format)
	le.PutUint64(h[144:], uint64(s.EncodedBytes()))
	le.PutUint64(h[152:], uint64(len(s.tokens)))
	le.PutUint32(h[160:], crc32.Checksum(h[:160], castagnoli))
	if _, err := w.Write(h[:]); err != nil {
		return err
	}
	e := encoder{w: w}
	e.sum(h[160:])
	tokens := make([]byte, 4*len(s.tokens))
	for i, t := range s.tokens {
		le.PutUint32(tokens[4*i:], uint32(t))
	}
	e.section(kindTokens, 0, 0, tokens)
	for i, p := range s.pages {
		e.section(kindPage, i, p.format, p.data)
	}
	e.section(kindSlots, 0, 0, s.slots)
	for i, x := range s.extra {
		e.section(kindExtra, i, 0, x)
	}
	e.section(kindEnd, 0, 0, le.AppendUint32(nil, e.total))
	return e.err
}

// An encoder writes sections until the first error.
type encoder struct {
	w     io.Writer
	total uint32 // CRC of the checksums so far
	err   error
}

func (e *encoder) sum(crc []byte) { e.total = crc32.Update(e.total, castagnoli, crc) }

func (e *encoder) section(kind string, index, format int, data []byte) {
	if e.err != nil {
		return
	}
	var f [frameBytes]byte
	copy(f[:], kind)
	binary.LittleEndian.PutUint32(f[4:], uint32(index))
	binary.LittleEndian.PutUint32(f[8:], uint32(format))
	binary.LittleEndian.PutUint64(f[16:], uint64(len(data)))
	binary.LittleEndian.PutUint32(f[12:], frameSum(&f, data))
	e.sum(f[12:16])
	if _, e.err = e.w.Write(f[:]); e.err == nil && len(data) > 0 {
		_, e.err = e.w.Write(data)
	}
}

// frameSum is the checksum of a section.
func frameSum(f *[frameBytes]byte, data []byte) uint32 {
	c := crc32.Checksum(f[:12], castagnoli)
	c = crc32.Update(c, castagnoli, f[16:])
	return crc32.Update(c, castagnoli, data)
}
