package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on what a vocabulary may hold. They are far above what any known model
// has; the first two are what fits a slot of the merge table.
const (
	MaxTokens     = 1 << idBits
	MaxMerges     = 1<<rankBits - 1
	maxTokenBytes = 1 << 16
	maxAddedBytes = 1 << 10 // a longer one could make splitting slow
	maxAddedNodes = 1 << 22 // bytes of all added tokens, less shared beginnings
	maxVocabBytes = 1 << 30
)

// alphabet maps bytes to the characters that stand for them in a vocabulary and back.
//
// Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68, in ascending
// order, are U+0100, U+0101 and so on (the byte alphabet of GPT-2).
type alphabet struct {
	char [256]rune
	byte [0x144]int16 // -1 where a character stands for no byte
}

func newAlphabet() *alphabet {
	a := new(alphabet)
	for i := range a.byte {
		a.byte[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		c := rune(b)
		if b < 33 || b > 126 && b < 161 || b == 173 {
			c = next
			next++
		}
		a.char[b] = c
		a.byte[c] = int16(b)
	}
	return a
}

// appendBytes appends the bytes that a token in printable form stands for.
func (a *alphabet) appendBytes(dst []byte, token string) ([]byte, error) {
	for i, c := range token {
		if c == utf8.RuneError || int(c) >= len(a.byte) || a.byte[c] < 0 {
			return dst, fmt.Errorf("character %q at byte %d stands for no byte", c, i)
		}
		dst = append(dst, byte(a.byte[c]))
	}
	return dst, nil
}

// load fills the tokenizer's tables from a vocabulary.
func (t *Tokenizer) load(v *Vocabulary) error {
	if len(v.Tokens) == 0 {
		return errors.New("the vocabulary is empty")
	}
	if len(v.Tokens) > MaxTokens {
		return fmt.Errorf("%d tokens, more than the %d supported", len(v.Tokens), MaxTokens)
	}
	if len(v.Merges) > MaxMerges {
		return fmt.Errorf("%d merges, more than the %d supported", len(v.Merges), MaxMerges)
	}
	if len(v.Types) != 0 && len(v.Types) != len(v.Tokens) {
		return fmt.Errorf("%d token types for %d tokens", len(v.Types), len(v.Tokens))
	}
	abc := newAlphabet()
	ids, err := t.loadTokens(v, abc)
	if err != nil {
		return err
	}
	for b, c := range abc.char {
		id, ok := ids[string(c)]
		if !ok {
			return fmt.Errorf("no token for byte 0x%02x (%q)", b, c)
		}
		t.bytes[b] = id
	}
	if err := t.loadMerges(v, ids); err != nil {
		return err
	}
	return t.loadIDs(v)
}

// loadTokens takes over the token texts and types. It returns the ids, by printable
// form, of the tokens that ordinary text may become.
func (t *Tokenizer) loadTokens(v *Vocabulary, abc *alphabet) (map[string]int32, error) {
	total := 0
	for id, s := range v.Tokens {
		if len(s) > maxTokenBytes {
			return nil, fmt.Errorf("token %d has %d bytes, more than the %d supported", id, len(s), maxTokenBytes)
		}
		total += len(s)
	}
	if total > maxVocabBytes {
		return nil, fmt.Errorf("the tokens have %d bytes, more than the %d supported", total, maxVocabBytes)
	}
	ids := make(map[string]int32, len(v.Tokens))
	t.types = make([]int32, len(v.Tokens))
	t.starts = make([]uint32, 1, len(v.Tokens)+1)
	t.pieces = make([]byte, 0, total)
	for i, s := range v.Tokens {
		id, typ := int32(i), int32(TypeNormal)
		if len(v.Types) != 0 {
			typ = v.Types[i]
		}
		t.types[i] = typ
		mergeable := false
		switch typ {
		case TypeUndefined, TypeNormal, TypeByte:
			if b, ok := byteToken(s); ok && typ == TypeByte {
				t.pieces = append(t.pieces, b)
				break
			}
			var err error
			if t.pieces, err = abc.appendBytes(t.pieces, s); err != nil {
				return nil, fmt.Errorf("token %d: %w", id, err)
			}
			mergeable = s != ""
		case TypeControl, TypeUserDefined, TypeUnknown:
			if !utf8.ValidString(s) {
				return nil, fmt.Errorf("token %d: not valid UTF-8", id)
			}
			if err := t.added.insert(s, id, typ != TypeUserDefined); err != nil {
				return nil, err
			}
			t.pieces = append(t.pieces, s...)
			// A user-defined token is matched in any text anyway, so a merge may
			// make it too. A control token must never come from plain text.
			mergeable = typ == TypeUserDefined && isVisibleASCII(s)
		case TypeUnused:
			// Never encoded, and decoded to nothing.
		default:
			return nil, fmt.Errorf("token %d has the unknown type %d", id, typ)
		}
		if mergeable {
			if other, ok := ids[s]; ok {
				return nil, fmt.Errorf("tokens %d and %d are both %.40q", other, id, s)
			}
			ids[s] = id
		}
		t.starts = append(t.starts, uint32(len(t.pieces)))
	}
	return ids, nil
}

// loadMerges takes over the merges. Of two equal ones the first counts.
func (t *Tokenizer) loadMerges(v *Vocabulary, ids map[string]int32) error {
	t.longest = 1
	t.merges = newMergeTable(len(v.Merges))
	var both []byte
	for rank, m := range v.Merges {
		left, right, ok := strings.Cut(m, " ")
		if !ok || left == "" || right == "" {
			return fmt.Errorf("merge %d is %.40q, not two tokens with a space between", rank, m)
		}
		l, ok := ids[left]
		if !ok {
			return fmt.Errorf("merge %d names the missing token %.40q", rank, left)
		}
		r, ok := ids[right]
		if !ok {
			return fmt.Errorf("merge %d names the missing token %.40q", rank, right)
		}
		both = append(append(both[:0], left...), right...)
		id, ok := ids[string(both)]
		if !ok {
			return fmt.Errorf("merge %d makes the missing token %.40q", rank, both)
		}
		t.merges.insert(l, r, uint32(rank), id)
		t.longest = max(t.longest, len(t.Piece(id)))
	}
	return nil
}

// byteToken reads the form <0xNN>.
func byteToken(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	var b byte
	for _, c := range []byte(s[3:5]) {
		switch {
		case c >= '0' && c <= '9':
			b = b<<4 | (c - '0')
		case c >= 'A' && c <= 'F':
			b = b<<4 | (c - 'A' + 10)
		case c >= 'a' && c <= 'f':
			b = b<<4 | (c - 'a' + 10)
		default:
			return 0, false
		}
	}
	return b, true
}

// isVisibleASCII reports whether text and its printable byte form are the same.
func isVisibleASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 33 || s[i] > 126 {
			return false
		}
	}
	return s != ""
}
