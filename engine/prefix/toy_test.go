package prefix

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/calderaml/caldera/engine/state"
)

const toyPage = 8

// toyLayout is a small layout: 1024 bytes a page, 4000 of slots.
func toyLayout(t testing.TB, change func(*state.Config)) *state.Layout {
	t.Helper()
	cfg := state.Config{
		Model: state.DigestOf([]byte("toy")), Format: "toy", PageTokens: toyPage, MaxTokens: 1 << 16, Vocab: 1000,
		Pages: []state.PageFormat{{Name: "p", Regions: []state.Region{{Name: "k", Bytes: 128 * toyPage, Rows: true}}}},
		Slots: []state.Region{{Name: "s", Bytes: 4000}},
	}
	if change != nil {
		change(&cfg)
	}
	l, err := state.NewLayout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A toy is a sequence whose pages and slots follow from its tokens.
type toy []int32

func (toy) PageFormat(int) int { return 0 }

func (s toy) Download(parts []state.Part) error {
	for _, p := range parts {
		n := len(s)
		if p.Page >= 0 {
			n = min(n, (p.Page+1)*toyPage)
		}
		h := fnv.New64a()
		for _, t := range s[:n] {
			h.Write([]byte{byte(t), byte(t >> 8)})
		}
		for i := range p.Data {
			p.Data[i] = byte(h.Sum64()>>(i%8*8)) + byte(i)
		}
	}
	return nil
}

// snapshot is the snapshot after tokens. If prev is not nil its pages are shared.
func snapshot(t testing.TB, l *state.Layout, tokens []int32, prev *state.Snapshot) *state.Snapshot {
	t.Helper()
	s, err := state.Capture(l, tokens, toy(tokens), nil, prev)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// upTo is the tokens from, from+1, ... of a number.
func upTo(from, n int) []int32 {
	ts := make([]int32, n)
	for i := range ts {
		ts[i] = int32((from + i) % 1000)
	}
	return ts
}

func newCache(t testing.TB, cfg Config) *Cache {
	t.Helper()
	if cfg.Layout == nil {
		cfg.Layout = toyLayout(t, nil)
	}
	if cfg.Warn == nil {
		cfg.Warn = func(err error) { t.Errorf("warning: %v", err) }
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func insert(t testing.TB, c *Cache, tokens []int32, pos int) {
	t.Helper()
	if err := c.Insert(tokens, snapshot(t, c.cfg.Layout, tokens[:pos], nil)); err != nil {
		t.Fatal(err)
	}
}

// verify recomputes what the cache counts, and checks that it is within the budget.
func verify(t testing.TB, c *Cache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	held := int64(0)
	pages := map[*state.Page]bool{}
	for e := range c.entries {
		if e.node.entry != e || e.dead || !e.usable() {
			t.Fatalf("entry of %d tokens is not where it should be", e.node.depth)
		}
		if e.snap == nil {
			continue
		}
		if !slices.Equal(e.snap.Tokens(), e.node.path()) {
			t.Fatal("an entry holds the snapshot of other tokens")
		}
		held += e.snap.OwnBytes() + entryBytes
		for _, p := range e.snap.Pages() {
			if !pages[p] {
				held += p.Bytes()
			}
			pages[p] = true
		}
	}
	if held != c.held || len(pages) != len(c.pages) {
		t.Fatalf("%d bytes in %d pages are counted, there are %d in %d", c.held, len(c.pages), held, len(pages))
	}
	nodes, tokens, uses := 0, 0, 0
	var count func(n *node)
	count = func(n *node) {
		uses += n.uses
		for first, kid := range n.kids {
			if kid.edge[0] != first || kid.parent != n || kid.depth != n.depth+len(kid.edge) {
				t.Fatal("the trie is not well-formed")
			}
			if kid.uses == 0 && len(kid.kids) < 2 {
				t.Fatal("a node that nobody holds is in the trie")
			}
			nodes++
			tokens += len(kid.edge)
			count(kid)
		}
	}
	count(&c.trie.root)
	if nodes != c.trie.nodes || tokens != c.trie.tokens || uses != 2*len(c.entries)+c.stones.Len() {
		t.Fatalf("%d nodes, %d tokens, %d uses in the trie; counted are %d, %d, %d",
			nodes, tokens, uses, c.trie.nodes, c.trie.tokens, 2*len(c.entries)+c.stones.Len())
	}
	if c.cfg.RAM > 0 && c.used() > c.cfg.RAM {
		t.Fatalf("%d bytes of memory, the budget is %d", c.used(), c.cfg.RAM)
	}
	if c.disk != nil {
		if n := folderBytes(t, c.cfg.Dir); n > c.cfg.Disk || n != c.disk.last.Load() {
			t.Fatalf("%d bytes on disk, %d are counted, the budget is %d", n, c.disk.last.Load(), c.cfg.Disk)
		}
	}
}

// folderBytes is the size of the cache's files in a folder.
func folderBytes(t testing.TB, dir string) int64 {
	t.Helper()
	n := int64(0)
	for _, name := range folder(t, dir) {
		if isSnap(name) || isTemp(name) {
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().IsRegular() {
				n += info.Size()
			}
		}
	}
	return n
}

func folder(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// randomTokens is tokens of an alphabet of three, so that prefixes are shared often.
func randomTokens(r *rand.Rand, most int) []int32 {
	ts := make([]int32, 1+r.IntN(most))
	for i := range ts {
		ts[i] = int32(r.IntN(3))
	}
	return ts
}

// key is tokens as the key of a map.
func key(tokens []int32) string {
	b := make([]byte, 0, 2*len(tokens))
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint16(b, uint16(t))
	}
	return string(b)
}
