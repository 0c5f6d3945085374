package prefix

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/calderaml/caldera/engine/state"
)

// The trie against a list of paths.
func TestTrie(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var tr trie
		type held struct {
			path []int32
			n    *node
		}
		var paths []held
		for range 60 {
			if len(paths) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(paths))
				tr.release(paths[i].n)
				paths = slices.Delete(paths, i, i+1)
			} else {
				p := randomTokens(r, 12)
				paths = append(paths, held{p, tr.hold(p)})
			}
			for _, p := range paths {
				if !slices.Equal(p.n.path(), p.path) || tr.find(p.path) != p.n {
					t.Fatalf("the node of %v is that of %v", p.path, p.n.path())
				}
			}
			q := randomTokens(r, 12)
			want := 0
			for _, p := range paths {
				want = max(want, common(p.path, q))
			}
			visited := map[*node]bool{}
			if got := tr.walk(q, func(n *node) { visited[n] = true }); got != want {
				t.Fatalf("%v shares %d tokens with %v, want %d", q, got, paths, want)
			}
			for _, p := range paths {
				if visited[p.n] != (common(p.path, q) == len(p.path)) {
					t.Fatalf("%v: visited %v: %t", q, p.path, visited[p.n])
				}
			}
		}
		for _, p := range paths {
			tr.release(p.n)
		}
		if tr.nodes != 0 || tr.tokens != 0 || len(tr.root.kids) != 0 {
			t.Fatalf("%d nodes and %d tokens are left", tr.nodes, tr.tokens)
		}
	}
}

func TestLookup(t *testing.T) {
	c := newCache(t, Config{RAM: 1 << 20})
	a := upTo(0, 100)
	insert(t, c, a, 16)
	insert(t, c, a, 40)
	insert(t, c, upTo(500, 50), 50)
	fork := append(slices.Clone(a[:30]), upTo(700, 10)...)
	for _, q := range []struct {
		name        string
		prompt      []int32
		pos, shared int
		reason      Reason
		says        string
	}{
		{"the deepest", a[:60], 40, 60, NoSnapshot, "60 are shared with an earlier prompt, and the nearest snapshot is at 40"},
		{"one token more", a[:41], 40, 41, None, "reused 40 of 41 tokens"},
		{"the last token is processed", a[:40], 16, 40, NoSnapshot, "nearest snapshot is at 16"},
		{"between", fork, 16, 30, NoSnapshot, "30 are shared"},
		{"parts at a snapshot", append(slices.Clone(a[:40]), 999), 40, 40, None, ""},
		{"before the first", a[:16], 0, 16, NoSnapshot, "16 are shared with an earlier prompt, and there is no snapshot of so many"},
		{"nothing", upTo(900, 9), 0, 0, NoSharedPrefix, "no earlier prompt"},
		{"one token", a[:1], 0, 1, TooShort, "the last token is always processed"},
		{"no token", nil, 0, 0, TooShort, ""},
	} {
		m := c.Lookup(q.prompt)
		if m.Pos != q.pos || m.Shared != q.shared || m.Reason != q.reason || !strings.Contains(m.String(), q.says) {
			t.Errorf("%s: %d of %d, %v: %s", q.name, m.Pos, m.Shared, m.Reason, m)
		}
		if (m.Snapshot != nil) != (q.pos > 0) {
			t.Errorf("%s: a snapshot: %t", q.name, m.Snapshot != nil)
		} else if q.pos > 0 && m.Snapshot.Hash() != snapshot(t, c.cfg.Layout, q.prompt[:q.pos], nil).Hash() {
			t.Errorf("%s: the snapshot is another", q.name)
		}
		m.Release()
		m.Release()
	}
	s := c.Stats()
	want := Stats{Hits: 2, PartialHits: 3, Misses: 4, Inserts: 3, Entries: 3, InMemory: 3, TokensReused: 152,
		TokensAsked: 60 + 41 + 40 + 40 + 41 + 16 + 9 + 1, RAMBytes: s.RAMBytes}
	want.Reasons[None], want.Reasons[NoSnapshot], want.Reasons[NoSharedPrefix], want.Reasons[TooShort] = 2, 4, 1, 2
	if s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	verify(t, c)
}

func TestInsertRefuses(t *testing.T) {
	l := toyLayout(t, nil)
	c := newCache(t, Config{RAM: 20000})
	s := snapshot(t, l, upTo(0, 20), nil)
	for name, q := range map[string]struct {
		tokens []int32
		snap   *state.Snapshot
		want   error
	}{
		"other tokens": {upTo(1, 20), s, state.ErrOtherTokens},
		"fewer tokens": {upTo(0, 19), s, state.ErrOtherTokens},
		"model": {upTo(0, 20), snapshot(t, toyLayout(t, func(c *state.Config) { c.Model[0]++ }), upTo(0, 20), nil),
			state.ErrOtherModel},
		"format": {upTo(0, 20), snapshot(t, toyLayout(t, func(c *state.Config) { c.Format = "x" }), upTo(0, 20), nil),
			state.ErrOtherFormat},
		"too large": {upTo(0, 200), snapshot(t, l, upTo(0, 200), nil), ErrNoRoom},
	} {
		if err := c.Insert(q.tokens, q.snap); !errors.Is(err, q.want) {
			t.Errorf("%s: %v, want %v", name, err, q.want)
		}
		verify(t, c)
	}
	if m := c.Lookup(upTo(0, 300)); m.Reason != TooLarge || m.Shared != 200 || m.Pos != 0 {
		t.Errorf("after a snapshot that was too large: %s", m)
	}
	off := newCache(t, Config{})
	if err := off.Insert(upTo(0, 20), s); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
	if m := off.Lookup(upTo(0, 20)); m.Reason != Disabled {
		t.Error(m)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a cache without a layout")
	}
}

// What several snapshots share counts once, and dropping one of them keeps it.
func TestSharedPages(t *testing.T) {
	l := toyLayout(t, nil)
	c := newCache(t, Config{RAM: 1 << 20})
	all := upTo(0, 800)
	first := snapshot(t, l, all[:400], nil)
	second := snapshot(t, l, all, first)
	for _, s := range []*state.Snapshot{first, second} {
		if err := c.Insert(all, s); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.held, first.OwnBytes()+second.Bytes()+2*entryBytes; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	verify(t, c)
	// The second saves as many tokens for many more bytes.
	c.Resize(second.Bytes() + 5000)
	verify(t, c)
	m := c.Lookup(upTo(0, 801))
	if m.Pos != 400 || m.Reason != Evicted || m.Snapshot.Hash() != snapshot(t, l, all[:400], nil).Hash() {
		t.Error(m)
	}
	m.Release()
	c.Clear()
	verify(t, c)
	if s := c.Stats(); s.Entries != 0 || s.RAMBytes != 0 {
		t.Errorf("after Clear: %+v", s)
	}
}

// What is used stays, what saves more per byte stays, and what was used once long ago goes.
func TestEvictionOrder(t *testing.T) {
	l := toyLayout(t, nil)
	size := snapshot(t, l, upTo(0, 80), nil).Bytes()
	c := newCache(t, Config{RAM: 4*(size+entryBytes) + 3000})
	for i := range 4 {
		insert(t, c, upTo(100*i, 80), 80)
	}
	for _, i := range []int{0, 0, 0, 1, 2, 3} {
		c.Lookup(upTo(100*i, 81)).Release()
	}
	insert(t, c, upTo(400, 80), 80)
	verify(t, c)
	if m := c.Lookup(upTo(100, 81)); m.Reason != Evicted || m.Pos != 0 || !strings.Contains(m.String(), "at 80 was evicted") {
		t.Errorf("the oldest of those used least: %s", m)
	}
	if m := c.Lookup(upTo(0, 81)); m.Pos != 80 {
		t.Errorf("the one in use: %s", m)
	} else {
		m.Release()
	}
	// However often it was used, it goes when it is not any more.
	for i := range 200 {
		insert(t, c, upTo(500+i, 80), 80)
		c.Lookup(upTo(500+i, 81)).Release()
		verify(t, c)
	}
	if m := c.Lookup(upTo(0, 81)); m.Pos != 0 {
		t.Errorf("one that has not been used for long: %s", m)
	}
}

// A snapshot that saves little over the next shorter one goes before one that saves much.
func TestEvictionSavings(t *testing.T) {
	c := newCache(t, Config{RAM: 1 << 20})
	a := upTo(0, 100)
	for _, n := range []int{80, 82, 96} {
		insert(t, c, a, n)
	}
	used := c.Stats().RAMBytes
	c.Resize(used - 10)
	if m := c.Lookup(a[:84]); m.Pos != 80 || m.Reason != Evicted {
		t.Errorf("the one that saves two tokens: %s", m)
	} else {
		m.Release()
	}
	// What is gone at a shorter prefix is no reason where a longer one is reused.
	if m := c.Lookup(a); m.Pos != 96 || m.Reason != NoSnapshot {
		t.Error(m)
	} else {
		m.Release()
	}
	verify(t, c)
}

func TestPins(t *testing.T) {
	l := toyLayout(t, nil)
	size := snapshot(t, l, upTo(0, 80), nil).Bytes()
	c := newCache(t, Config{RAM: 2*(size+entryBytes) + 2500})
	insert(t, c, upTo(0, 80), 80)
	insert(t, c, upTo(100, 80), 80)
	a, b := c.Lookup(upTo(0, 90)), c.Lookup(upTo(100, 90))
	if s := c.Stats(); s.Pinned != 2 {
		t.Errorf("%d pinned", s.Pinned)
	}
	if err := c.Insert(upTo(200, 80), snapshot(t, l, upTo(200, 80), nil)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("all is in use: %v", err)
	}
	if _, ok := c.Reserve(upTo(300, 80), size); ok {
		t.Error("room was reserved where all is in use")
	}
	if m := c.Lookup(upTo(300, 90)); m.Reason != TooLarge || m.Shared != 80 || !strings.Contains(m.String(), "the snapshot at 80 did not fit the budget") {
		t.Errorf("after a snapshot that was not taken: %v", m)
	}
	verify(t, c)
	a.Release()
	release, ok := c.Reserve(nil, size)
	if !ok {
		t.Fatal("no room where one is not in use")
	}
	if used := c.Stats().RAMBytes; used < 2*size {
		t.Errorf("%d bytes with a reservation of %d", used, size)
	}
	release()
	release()
	if err := c.Insert(upTo(200, 80), snapshot(t, l, upTo(200, 80), nil)); err != nil {
		t.Error(err)
	}
	// What is cleared while it is in use is counted until it is released.
	c.Clear()
	if s := c.Stats(); s.RAMBytes < size || s.Entries != 0 {
		t.Errorf("%+v", s)
	}
	b.Release()
	if s := c.Stats(); s.RAMBytes != 0 {
		t.Errorf("%d bytes are left", s.RAMBytes)
	}
	verify(t, c)
}

// Random operations against a list of everything that was inserted. In memory, on disk and both, with restarts.
func TestAgainstModel(t *testing.T) {
	l := toyLayout(t, nil)
	for name, budget := range map[string]struct{ ram, disk int64 }{
		"all fits":     {1 << 24, 0},
		"memory":       {60000, 0},
		"disk":         {0, 200000},
		"both":         {100000, 200000},
		"disk fits":    {1500000, 1 << 24},
		"small memory": {10000, 100000},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(budget.ram)))
			cfg := Config{RAM: budget.ram, Disk: budget.disk, Layout: l}
			if budget.disk > 0 {
				cfg.Dir = t.TempDir()
			}
			c := newCache(t, cfg)
			known := map[string]bool{} // what was inserted
			var pinned []*Match
			hits := 0
			for op := range 300 {
				switch r.IntN(12) {
				case 0, 1, 2, 3, 4:
					tokens := randomTokens(r, 40)
					pos := 1 + r.IntN(len(tokens))
					var prev *state.Snapshot
					if m := c.Lookup(tokens[:pos]); m.Snapshot != nil {
						prev = m.Snapshot
						m.Release()
					}
					if err := c.Insert(tokens, snapshot(t, l, tokens[:pos], prev)); err == nil {
						known[key(tokens[:pos])] = true
					} else if !errors.Is(err, ErrNoRoom) {
						t.Fatal(err)
					}
				case 5, 6, 7, 8:
					tokens := randomTokens(r, 60)
					want := 0
					for e := range c.entries {
						if p := e.node.path(); len(p) < len(tokens) && common(p, tokens) == len(p) {
							want = max(want, len(p))
						}
					}
					m := c.Lookup(tokens)
					if m.Pos != want {
						t.Fatalf("op %d: reused %d, want %d", op, m.Pos, want)
					}
					if m.Pos > 0 && (!known[key(tokens[:m.Pos])] || m.Snapshot.Hash() != snapshot(t, l, tokens[:m.Pos], nil).Hash()) {
						t.Fatalf("op %d: a snapshot that was never inserted", op)
					}
					if name == "all fits" || name == "disk fits" {
						for n := len(tokens) - 1; n > m.Pos; n-- {
							if known[key(tokens[:n])] {
								t.Fatalf("op %d: reused %d, and %d was inserted", op, m.Pos, n)
							}
						}
					}
					if pinned = append(pinned, m); m.Pos > 0 {
						hits++
					}
				case 9, 10:
					if len(pinned) > 2 {
						pinned[0].Release()
						pinned = pinned[1:]
					}
				case 11:
					if r.IntN(20) > 0 {
						continue
					}
					for _, m := range pinned {
						m.Release()
					}
					pinned = nil
					if cfg.Disk > 0 {
						c.Flush()
						before := c.Stats()
						c = newCache(t, cfg)
						if after := c.Stats(); after.DiskBytes != before.DiskBytes || after.OnDisk != before.OnDisk && name != "small memory" {
							t.Fatalf("op %d: %+v before a restart, %+v after", op, before, after)
						}
					} else {
						c.Clear()
						clear(known)
					}
				}
				if op%10 == 0 {
					verify(t, c)
				}
			}
			for _, m := range pinned {
				m.Release()
			}
			verify(t, c)
			if s := c.Stats(); s.Pinned != 0 || hits < 10 {
				t.Errorf("%d hits: %+v", hits, s)
			}
		})
	}
}

// Many goroutines at once, for the race detector and for deadlocks.
func TestConcurrent(t *testing.T) {
	l := toyLayout(t, nil)
	c := newCache(t, Config{RAM: 40000, Dir: t.TempDir(), Disk: 90000, Layout: l})
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 5))
			for range 150 {
				tokens := randomTokens(r, 30)
				switch r.IntN(20) {
				case 0:
					c.Flush()
				case 1:
					c.Clear()
				case 2:
					c.Resize(int64(30000 + r.IntN(10000)))
				case 3:
					if release, ok := c.Reserve(nil, 500); ok {
						release()
					}
				case 4, 5, 6, 7, 8:
					if err := c.Insert(tokens, snapshot(t, l, tokens, nil)); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Error(err)
					}
				default:
					m := c.Lookup(tokens)
					if m.Snapshot != nil && !slices.Equal(m.Snapshot.Tokens(), tokens[:m.Pos]) {
						t.Error("the snapshot of another prompt")
					}
					c.Stats()
					m.Release()
				}
			}
		})
	}
	wg.Wait()
	verify(t, c)
	if s := c.Stats(); s.Pinned != 0 {
		t.Errorf("%+v", s)
	}
}
