package grammar

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// A Kind says what a token is to a grammar.
type Kind uint8

const (
	// Text is a token that stands for its bytes. Tokens such as <tool_call>, which a tokenizer finds in every text,
	// are of this kind.
	Text Kind = iota
	// Special is a control token. No grammar allows it.
	Special
	// End is a token that ends a generation. It is allowed where the text may end, whatever its bytes.
	End
)

// A Vocabulary is the tokens of a model in the form that masks are computed from. It does not change and can be
// shared by any number of grammars.
type Vocabulary struct {
	n      int
	end    []int32
	tokens [][]byte // of kind Text, by id; nil for others
	all    trie
	// Nearly all tokens consist of plain characters, which every JSON string may hold: plain is the set of them and
	// rest the trie of the others.
	plain      []uint64
	plainCount int
	rest       trie
}

// A trie holds byte strings in the order of a walk that visits a node before its children, and these by byte. That
// makes the walk a loop over arrays, and a subtree a range of them.
type trie struct {
	bytes []byte   // the byte that leads to the node
	depth []uint16 // of the node's parent; 0 is that of the root, which is no node itself
	skip  []uint32 // index of the first node that is not below this one
	first []uint32 // ids[first[i]:first[i+1]] are the tokens that end at node i
	ids   []int32
	deep  int // longest path
}

// maxToken is the length of the longest token that a grammar allows; longer ones are never chosen.
const maxToken = 1024

// NewVocabulary builds a vocabulary of n tokens. It keeps what token returns, without changing it. A token without
// bytes is never allowed unless it is of kind End.
func NewVocabulary(n int, token func(id int32) ([]byte, Kind)) (*Vocabulary, error) {
	if n <= 0 || n > 1<<24 {
		return nil, fmt.Errorf("a vocabulary of %d tokens is out of range", n)
	}
	v := &Vocabulary{n: n, tokens: make([][]byte, n), plain: make([]uint64, (n+63)/64)}
	var all, rest []int32
	for id := range int32(n) {
		p, kind := token(id)
		switch {
		case kind == End:
			v.end = append(v.end, id)
			continue
		case kind != Text || len(p) == 0 || len(p) > maxToken:
			continue
		}
		v.tokens[id] = p
		all = append(all, id)
		if isPlain(p) {
			v.plain[id>>6] |= 1 << (id & 63)
			v.plainCount++
		} else {
			rest = append(rest, id)
		}
	}
	v.all, v.rest = v.trie(all), v.trie(rest)
	return v, nil
}

// Len returns the number of tokens.
func (v *Vocabulary) Len() int { return v.n }

// Bytes returns the bytes of a token of kind Text, nil for others. The caller must not change them.
func (v *Vocabulary) Bytes(id int32) []byte {
	if id < 0 || int(id) >= v.n {
		return nil
	}
	return v.tokens[id]
}

// IsEnd reports whether a token ends a generation.
func (v *Vocabulary) IsEnd(id int32) bool {
	_, ok := slices.BinarySearch(v.end, id)
	return ok
}

func (v *Vocabulary) trie(ids []int32) trie {
	slices.SortFunc(ids, func(a, b int32) int { return bytes.Compare(v.tokens[a], v.tokens[b]) })
	t := trie{ids: ids}
	var path []uint32 // nodes of the token before
	var last []byte
	leave := func(depth int) {
		for _, i := range path[depth:] {
			t.skip[i] = uint32(len(t.bytes))
		}
		path = path[:depth]
	}
	for at, id := range ids {
		p := v.tokens[id]
		same := common(last, p) // all of p, when several ids have the same bytes
		leave(same)
		for d := same; d < len(p); d++ {
			path = append(path, uint32(len(t.bytes)))
			t.bytes = append(t.bytes, p[d])
			t.depth = append(t.depth, uint16(d))
			t.skip = append(t.skip, 0)
			t.first = append(t.first, uint32(at))
		}
		t.deep = max(t.deep, len(p))
		last = p
	}
	leave(0)
	t.first = append(t.first, uint32(len(ids)))
	return t
}

// maxPlain is the greatest number of characters of a plain token. States that count characters look as far ahead.
const maxPlain = 32

// isPlain reports whether a token consists of whole characters that need no escape in a JSON string.
func isPlain(p []byte) bool {
	n := 0
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 || r < 0x20 || r == '"' || r == '\\' {
			return false
		}
		p = p[size:]
		n++
	}
	return n <= maxPlain
}
