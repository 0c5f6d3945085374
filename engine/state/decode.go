package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A Header is what the start of an encoded snapshot says about it.
type Header struct {
	Model  Digest
	Layout Digest
	Format string // name of the format
	Size   int64  // of the whole in bytes
	Pos    int    // tokens that the state holds
}

// ReadPrefix reads the header and the token ids of an encoded snapshot that is size bytes long, and nothing
// behind them. For a snapshot of another model or format it returns the header and tokens together with an
// error that wraps [ErrOtherModel] or [ErrOtherFormat]. A snapshot of more tokens than the layout's longest
// sequence, or of ids outside its vocabulary, comes as an error and without its tokens.
func ReadPrefix(r io.Reader, size int64, l *Layout) (Header, []int32, error) {
	d := &decoder{r: r, left: size}
	return d.prefix(size, l)
}

// Decode reads an encoded snapshot that is size bytes long. It allocates nothing that size and the layout do
// not both allow. Errors wrap [ErrCorrupt], [ErrVersion], [ErrOtherModel], [ErrOtherFormat] or [ErrPosition],
// or are the reader's own.
func Decode(r io.Reader, size int64, l *Layout) (*Snapshot, error) {
	d := &decoder{r: r, left: size}
	h, tokens, err := d.prefix(size, l)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{layout: l, tokens: tokens, pages: make([]*Page, l.PageCount(h.Pos))}
	for i := range s.pages {
		p := &Page{rows: l.rows(i, h.Pos)}
		p.data, err = d.section(kindPage, i, func(format int, n int64) error {
			if format >= len(l.cfg.Pages) {
				return fmt.Errorf("format %d of %d", format, len(l.cfg.Pages))
			}
			p.format = format
			return exactly(n, l.pageBytes(format, p.rows))
		})
		if err != nil {
			return nil, err
		}
		s.pages[i] = p
	}
	s.slots, err = d.section(kindSlots, 0, func(_ int, n int64) error { return exactly(n, l.slots) })
	if err != nil {
		return nil, err
	}
	for i, r := range l.cfg.Extra {
		x, err := d.section(kindExtra, i, func(_ int, n int64) error {
			if n > r.Bytes {
				return fmt.Errorf("%d bytes for %s, at most %d are possible", n, r.Name, r.Bytes)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		s.extra = append(s.extra, x)
	}
	total := d.total
	end, err := d.section(kindEnd, 0, func(_ int, n int64) error { return exactly(n, endBytes) })
	if err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(end) != total {
		return nil, fmt.Errorf("%w: its sections do not belong together", ErrCorrupt)
	}
	if d.left != 0 {
		return nil, fmt.Errorf("%w: %d bytes follow its end", ErrCorrupt, d.left)
	}
	return s, nil
}

// exactly checks the length of a section.
func exactly(n, want int64) error {
	if n != want {
		return fmt.Errorf("%d bytes where the layout has %d", n, want)
	}
	return nil
}

// A decoder reads sections.
type decoder struct {
	r     io.Reader
	left  int64  // bytes that have not been read
	total uint32 // CRC of the checksums so far
}

// full reads all of b. What ends early is damaged; another error is the reader's.
func (d *decoder) full(b []byte, what string) error {
	if int64(len(b)) > d.left {
		return fmt.Errorf("%w: truncated in %s: %d bytes are left of %d", ErrCorrupt, what, d.left, len(b))
	}
	n, err := io.ReadFull(d.r, b)
	d.left -= int64(n)
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: truncated in %s", ErrCorrupt, what)
	}
	if err != nil {
		return fmt.Errorf("reading %s of a snapshot: %w", what, err)
	}
	return nil
}

// section reads a section after check has agreed to its format and length. Nothing is allocated before.
func (d *decoder) section(kind string, index int, check func(format int, length int64) error) ([]byte, error) {
	what := fmt.Sprintf("section %s %d", kind, index)
	var f [frameBytes]byte
	if err := d.full(f[:], what); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	format := le.Uint32(f[8:])
	if string(f[:4]) != kind || le.Uint32(f[4:]) != uint32(index) || kind != kindPage && format != 0 {
		return nil, fmt.Errorf("%w: section %q %d where %s is expected", ErrCorrupt, f[:4], le.Uint32(f[4:]), what)
	}
	n := le.Uint64(f[16:])
	if n > uint64(d.left) {
		return nil, fmt.Errorf("%w: truncated in %s: %d bytes are left of %d", ErrCorrupt, what, d.left, n)
	}
	if err := check(int(format), int64(n)); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, what, err)
	}
	data := make([]byte, n)
	if err := d.full(data, what); err != nil {
		return nil, err
	}
	if frameSum(&f, data) != le.Uint32(f[12:]) {
		return nil, fmt.Errorf("%w: the checksum of %s is wrong", ErrCorrupt, what)
	}
	d.total = crc32.Update(d.total, castagnoli, f[12:16])
	return data, nil
}

// prefix reads the header and the tokens.
func (d *decoder) prefix(size int64, l *Layout) (Header, []int32, error) {
	var b [headerBytes]byte
	if err := d.full(b[:], "the header"); err != nil {
		return Header{}, nil, err
	}
	le := binary.LittleEndian
	if string(b[:8]) != magic {
		return Header{}, nil, fmt.Errorf("%w: it does not begin as one", ErrCorrupt)
	}
	if v, n := le.Uint32(b[8:]), le.Uint32(b[12:]); v != version || n != headerBytes {
		return Header{}, nil, fmt.Errorf("%w: %d with a header of %d bytes, this program reads %d with %d",
			ErrVersion, v, n, version, headerBytes)
	}
	if crc32.Checksum(b[:160], castagnoli) != le.Uint32(b[160:]) {
		return Header{}, nil, fmt.Errorf("%w: the checksum of the header is wrong", ErrCorrupt)
	}
	d.total = crc32.Update(d.total, castagnoli, b[160:])
	h := Header{
		Model:  Digest(b[16:48]),
		Layout: Digest(b[48:80]),
		Format: string(bytes.TrimRight(b[80:144], "\x00")),
	}
	if n := le.Uint64(b[144:]); n != uint64(size) {
		return h, nil, fmt.Errorf("%w: it says %d bytes and has %d", ErrCorrupt, n, size)
	}
	h.Size = size
	pos := le.Uint64(b[152:])
	if pos == 0 || pos > uint64(d.left)/4 {
		return h, nil, fmt.Errorf("%w: %d tokens in %d bytes", ErrCorrupt, pos, size)
	}
	if pos > maxTokens {
		return h, nil, fmt.Errorf("%w: %d tokens", ErrPosition, pos)
	}
	h.Pos = int(pos)
	var other error
	if h.Model != l.cfg.Model {
		other = fmt.Errorf("%w: its digest begins with %.8s, this one's with %.8s", ErrOtherModel, h.Model, l.cfg.Model)
	} else if h.Layout != l.digest {
		other = fmt.Errorf("%w: it has %q, this is %q", ErrOtherFormat, h.Format, l.cfg.Format)
	} else if h.Format != l.cfg.Format {
		return h, nil, fmt.Errorf("%w: the format's name is %q, not %q", ErrCorrupt, h.Format, l.cfg.Format)
	}
	if h.Pos > l.cfg.MaxTokens {
		err := fmt.Errorf("%w: it holds %d tokens, and the context has %d", ErrPosition, h.Pos, l.cfg.MaxTokens)
		return h, nil, errors.Join(other, err)
	}
	data, err := d.section(kindTokens, 0, func(_ int, n int64) error { return exactly(n, 4*int64(h.Pos)) })
	if err != nil {
		return h, nil, err
	}
	tokens := make([]int32, h.Pos)
	for i := range tokens {
		tokens[i] = int32(le.Uint32(data[4*i:]))
	}
	if other == nil {
		if err := l.checkTokens(tokens); err != nil {
			return h, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	return h, tokens, other
}
