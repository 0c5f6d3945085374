package tokenizer

import (
	"fmt"
	"strings"
)

// addedTokens finds the added tokens of a vocabulary in text. It is a trie of their
// bytes, so that one pass over the text finds all of them.
type addedTokens struct {
	nodes []addedNode // nodes[0] is the root
	// firsts says which bytes an added token can start with; only is that byte when
	// there is just one, as in the Qwen vocabularies, and -1 otherwise.
	firsts [256]bool
	only   int
}

type addedNode struct {
	child, sibling int32 // 0 for none
	id             int32 // -1 where no token ends
	char           byte
	control        bool
}

// insert adds a token. A control token is one that is found only on demand.
func (a *addedTokens) insert(text string, id int32, control bool) error {
	if text == "" {
		return fmt.Errorf("token %d is matched in text but is empty", id)
	}
	if len(text) > maxAddedBytes {
		return fmt.Errorf("token %d is matched in text and has %d bytes, more than the %d supported", id, len(text), maxAddedBytes)
	}
	if len(a.nodes) == 0 {
		a.nodes = append(a.nodes, addedNode{id: -1})
		a.only = int(text[0])
	}
	if a.only != int(text[0]) {
		a.only = -1
	}
	a.firsts[text[0]] = true
	at := int32(0)
	for _, c := range []byte(text) {
		next := a.step(at, c)
		if next == 0 {
			if len(a.nodes) >= maxAddedNodes {
				return fmt.Errorf("token %d: the tokens matched in text are too many or too long", id)
			}
			next = int32(len(a.nodes))
			a.nodes = append(a.nodes, addedNode{id: -1, char: c, sibling: a.nodes[at].child})
			a.nodes[at].child = next
		}
		at = next
	}
	n := &a.nodes[at]
	if n.id >= 0 {
		return fmt.Errorf("tokens %d and %d are both %.40q", n.id, id, text)
	}
	n.id, n.control = id, control
	return nil
}

// step returns the child of a node for a byte, 0 when there is none.
func (a *addedTokens) step(at int32, c byte) int32 {
	for at = a.nodes[at].child; at != 0; at = a.nodes[at].sibling {
		if a.nodes[at].char == c {
			return at
		}
	}
	return 0
}

// lookup returns the token with exactly this text.
func (a *addedTokens) lookup(text string) (int32, bool) {
	if len(a.nodes) == 0 {
		return -1, false
	}
	at := int32(0)
	for i := range len(text) {
		if at = a.step(at, text[i]); at == 0 {
			return -1, false
		}
	}
	return a.nodes[at].id, a.nodes[at].id >= 0
}

// find returns the first added token in text[from:], the longest of those that start
// there, as the range of its bytes and its id. Without one, start is len(text).
func (a *addedTokens) find(text string, from int, control bool) (start, end int, id int32) {
	if len(a.nodes) == 0 {
		return len(text), len(text), -1
	}
	for i := from; i < len(text); i++ {
		if a.only >= 0 {
			k := strings.IndexByte(text[i:], byte(a.only))
			if k < 0 {
				break
			}
			i += k
		} else if !a.firsts[text[i]] {
			continue
		}
		end, id = 0, -1
		at := int32(0)
		for j := i; j < len(text); j++ {
			if at = a.step(at, text[j]); at == 0 {
				break
			}
			if n := &a.nodes[at]; n.id >= 0 && (control || !n.control) {
				end, id = j+1, n.id
			}
		}
		if id >= 0 {
			return i, end, id
		}
	}
	return len(text), len(text), -1
}
