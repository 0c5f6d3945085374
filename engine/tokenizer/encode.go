package tokenizer

import (
	"context"
	"strings"
	"unicode/utf8"
)

// maxPiece is the longest piece, in bytes, that is merged as a whole; a longer one is
// cut, which bounds the memory that a text without any word boundary can take.
const maxPiece = 1 << 24

// Encode returns the tokens of a text. Control tokens in the text are recognised with
// parseSpecial and are plain text without it; user-defined tokens are always
// recognised. A byte that belongs to no valid UTF-8 sequence counts as U+FFFD.
//
// It is meant for text that is known to be short. Text from outside goes through EncodeLimit.
func (t *Tokenizer) Encode(text string, parseSpecial bool) []int32 {
	ids, _ := t.EncodeLimit(context.Background(), text, parseSpecial, -1)
	return ids
}

// EncodeLimit is Encode for text of any length. It stops as soon as there are
// limit+1 tokens, so a result longer than limit means that the text has more tokens
// than that; the last ones of such a result may not be those of the whole text. A
// negative limit is none. The only error is that of a context that ended.
func (t *Tokenizer) EncodeLimit(ctx context.Context, text string, parseSpecial bool, limit int) ([]int32, error) {
	e := encoder{Tokenizer: t, ctx: ctx, limit: limit}
	text = replaceInvalid(text)
	for from := 0; ; {
		start, end, id := t.added.find(text, from, parseSpecial)
		if err := e.text(text[from:start]); err != nil {
			return nil, err
		}
		if start == len(text) || e.full() {
			break
		}
		e.ids = append(e.ids, id)
		from = end
		if e.full() {
			break
		}
	}
	if e.full() {
		e.ids = e.ids[:limit+1]
	}
	return e.ids, nil
}

// An encoder is one call of Encode.
type encoder struct {
	*Tokenizer
	ctx    context.Context
	limit  int
	ids    []int32
	pieces int
}

func (e *encoder) full() bool { return e.limit >= 0 && len(e.ids) > e.limit }

// text encodes a stretch without added tokens.
func (e *encoder) text(s string) error {
	if e.nfc {
		s = normalize(s)
	}
	for len(s) > 0 && !e.full() {
		if e.pieces&1023 == 0 && e.ctx.Err() != nil {
			return e.ctx.Err()
		}
		e.pieces++
		n := e.split.next(s)
		if err := e.piece(s[:n]); err != nil {
			return err
		}
		s = s[n:]
	}
	return nil
}

// piece encodes a piece, which is never empty.
func (e *encoder) piece(s string) error {
	switch {
	case len(s) == 1:
		e.ids = append(e.ids, e.bytes[s[0]])
	case len(s) == 2 || e.words == nil && len(s) <= maxShort:
		e.ids = e.appendShort(e.ids, s)
	case e.words != nil && len(s) <= maxCacheWord:
		return e.word(s)
	default:
		return e.long(s)
	}
	return nil
}

// word encodes a piece through the cache.
func (e *encoder) word(s string) error {
	slot := e.words.slot(s)
	if w := slot.Load(); w != nil && w.word == s {
		e.ids = append(e.ids, w.ids...)
		return nil
	}
	from := len(e.ids)
	if len(s) <= maxShort {
		e.ids = e.appendShort(e.ids, s)
	} else {
		var err error
		if e.ids, err = e.appendLong(e.ctx, e.ids, s); err != nil {
			return err
		}
	}
	slot.Store(newCachedWord(s, e.ids[from:]))
	return nil
}

// long encodes a long piece.
func (e *encoder) long(s string) error {
	if e.limit >= 0 {
		// No token is longer than e.longest, so this much makes enough of them.
		if room := e.limit + 1 - len(e.ids); room <= len(s)/e.longest {
			s = s[:room*e.longest]
		}
	}
	for len(s) > 0 {
		n := min(len(s), maxPiece)
		var err error
		if e.ids, err = e.appendLong(e.ctx, e.ids, s[:n]); err != nil {
			return err
		}
		s = s[n:]
	}
	return nil
}

// replaceInvalid puts U+FFFD in place of each byte of no valid UTF-8 sequence. Unlike
// strings.ToValidUTF8 it does not join neighbouring ones.
func replaceInvalid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}
