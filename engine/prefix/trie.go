package prefix

import "slices"

// nodeBytes is about what a node takes beside its tokens.
const nodeBytes = 160

// A node of the trie is a sequence of tokens: those of the edges from the root to it.
type node struct {
	parent *node
	edge   []int32 // tokens from the parent, never empty but at the root
	depth  int     // tokens from the root
	kids   map[int32]*node
	uses   int    // how often the path is held
	entry  *entry // the snapshot here
	gone   *stone // why there is none
}

// A trie is a radix tree over token ids. Paths stay in it as long as somebody holds them.
type trie struct {
	root   node
	nodes  int
	tokens int
}

// bytes is about what the trie takes.
func (t *trie) bytes() int64 { return int64(t.nodes)*nodeBytes + int64(t.tokens)*4 }

// common is the length of the longest common prefix.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// walk calls visit for every node whose path is a prefix of tokens, the shortest first, and returns how many tokens
// are shared with any path.
func (t *trie) walk(tokens []int32, visit func(*node)) int {
	n := &t.root
	for {
		rest := tokens[n.depth:]
		if len(rest) == 0 {
			return n.depth
		}
		kid := n.kids[rest[0]]
		if kid == nil {
			return n.depth
		}
		if k := common(kid.edge, rest); k < len(kid.edge) {
			return n.depth + k
		}
		visit(kid)
		n = kid
	}
}

// find is the node of a path, or nil.
func (t *trie) find(tokens []int32) *node {
	var last *node
	t.walk(tokens, func(n *node) { last = n })
	if last == nil || last.depth != len(tokens) {
		return nil
	}
	return last
}

// hold adds a path that is not empty and holds it until release.
func (t *trie) hold(tokens []int32) *node {
	n := &t.root
	for n.depth < len(tokens) {
		rest := tokens[n.depth:]
		kid := n.kids[rest[0]]
		if kid == nil {
			kid = &node{parent: n, edge: slices.Clone(rest), depth: len(tokens)}
			n.adopt(kid)
			t.nodes++
			t.tokens += len(rest)
		} else if k := common(kid.edge, rest); k < len(kid.edge) {
			kid = t.split(kid, k)
		}
		n = kid
	}
	n.uses++
	return n
}

func (n *node) adopt(kid *node) {
	if n.kids == nil {
		n.kids = map[int32]*node{}
	}
	n.kids[kid.edge[0]] = kid
	kid.parent = n
}

// split puts a new node k tokens down the edge that leads to n, and returns it. n stays the node of its path.
func (t *trie) split(n *node, k int) *node {
	mid := &node{edge: slices.Clone(n.edge[:k]), depth: n.depth - len(n.edge) + k}
	n.parent.adopt(mid)
	n.edge = slices.Clone(n.edge[k:])
	mid.adopt(n)
	t.nodes++
	return mid
}

// release gives up a path, and removes what nobody holds.
func (t *trie) release(n *node) {
	n.uses--
	for n.uses == 0 && n != &t.root {
		up := n.parent
		switch len(n.kids) {
		case 0:
			delete(up.kids, n.edge[0])
			t.nodes--
			t.tokens -= len(n.edge)
		case 1:
			for _, kid := range n.kids {
				kid.edge = slices.Concat(n.edge, kid.edge)
				up.adopt(kid)
			}
			t.nodes--
			return
		default:
			return
		}
		n = up
	}
}

// path is the node's tokens.
func (n *node) path() []int32 {
	tokens := make([]int32, n.depth)
	for ; n.parent != nil; n = n.parent {
		copy(tokens[n.depth-len(n.edge):], n.edge)
	}
	return tokens
}

// shorter is the depth of the nearest snapshot above the node, 0 for none.
func (n *node) shorter() int {
	for n = n.parent; n != nil; n = n.parent {
		if n.entry != nil && n.entry.usable() {
			return n.depth
		}
	}
	return 0
}
