package tokenizer

import "unicode/utf8"

// Piece returns the bytes of a token: the text of a control or user-defined one, none
// for an unused token or an id out of range. They may be part of a UTF-8 sequence. The
// caller must not change them.
func (t *Tokenizer) Piece(id int32) []byte {
	if id < 0 || int(id) >= len(t.starts)-1 {
		return nil
	}
	from, to := t.starts[id], t.starts[id+1]
	return t.pieces[from:to:to]
}

// AppendBytes appends the bytes of tokens.
func (t *Tokenizer) AppendBytes(dst []byte, ids []int32) []byte {
	for _, id := range ids {
		dst = append(dst, t.Piece(id)...)
	}
	return dst
}

// Decode returns the text of tokens. Where their bytes are not valid UTF-8 it has
// U+FFFD: one for a sequence that breaks off, one for any other byte. (Encode takes
// invalid input byte by byte; here a cut character should show as one.)
func (t *Tokenizer) Decode(ids []int32) string {
	p := t.AppendBytes(nil, ids)
	if utf8.Valid(p) {
		return string(p)
	}
	text, rest := appendValid(make([]byte, 0, len(p)+16), p)
	if len(rest) > 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	return string(text)
}

// appendValid appends bytes as valid UTF-8, except for an incomplete sequence at the
// end, at most 3 bytes long, which it returns.
func appendValid(dst, p []byte) (text, rest []byte) {
	for len(p) > 0 {
		if p[0] < utf8.RuneSelf {
			dst = append(dst, p[0])
			p = p[1:]
			continue
		}
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			if !utf8.FullRune(p) {
				return dst, p
			}
			// The longest start of a valid sequence, at least one byte.
			for n < len(p) && !utf8.FullRune(p[:n+1]) {
				n++
			}
		}
		dst = utf8.AppendRune(dst, r)
		p = p[n:]
	}
	return dst, nil
}

// A StreamDecoder decodes tokens one at a time. What it returns is always valid UTF-8,
// and all of it together is what Decode returns for all tokens.
type StreamDecoder struct {
	t       *Tokenizer
	pending []byte // at most 3 bytes between calls
	text    []byte
}

// NewStreamDecoder returns a decoder at the start of a text.
func (t *Tokenizer) NewStreamDecoder() *StreamDecoder { return &StreamDecoder{t: t} }

// Push takes the next token and returns the text that is complete with it, which
// can be empty.
func (d *StreamDecoder) Push(id int32) string { return d.PushBytes(d.t.Piece(id)) }

// PushBytes is Push for the bytes of a token.
func (d *StreamDecoder) PushBytes(p []byte) string {
	if len(d.pending) == 0 && utf8.Valid(p) {
		return string(p)
	}
	d.pending = append(d.pending, p...)
	text, rest := appendValid(d.text[:0], d.pending)
	d.text = text
	d.pending = append(d.pending[:0], rest...)
	return string(text)
}

// Pending returns the number of bytes held back, at most 3.
func (d *StreamDecoder) Pending() int { return len(d.pending) }

// Flush ends the text: it returns U+FFFD for an incomplete sequence held back, and
// nothing otherwise. The decoder is then at the start of a new text.
func (d *StreamDecoder) Flush() string {
	if len(d.pending) == 0 {
		return ""
	}
	d.pending = d.pending[:0]
	return string(utf8.RuneError)
}
