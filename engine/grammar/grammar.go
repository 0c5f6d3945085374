package grammar

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
)

// A Grammar is a compiled grammar. It is safe for concurrent use, and is best shared by all sequences that have the
// same one, as they then share what it remembers.
type Grammar struct {
	prog   *program
	limits Limits
	tab    atomic.Pointer[table]
	start  *config
}

// A State says how far into a grammar a text has come. It is a small value to be copied at will, valid for ever and
// only for the grammar that it comes from. The zero State refuses everything.
type State struct {
	cfg     *config
	gen, id uint32 // where the state is found in the table of that generation
}

// Compile compiles the builder's rules into a grammar of the texts that e stands for. The error is a *LimitError, a
// *RecursionError, ErrUnsatisfiable, or that of a context that ended; it may be wrapped.
func (b *Builder) Compile(ctx context.Context, e Expr) (*Grammar, error) {
	root := b.Rule("the text")
	b.Define(root, e)
	if b.err != nil {
		return nil, b.err
	}
	a, err := analyse(ctx, b, root)
	if err != nil {
		return nil, err
	}
	p, err := emit(ctx, a, root)
	if err != nil {
		return nil, err
	}
	g := &Grammar{prog: p, limits: b.limits}
	t := newTable()
	t.stack = append(t.stack, thread{p.start, nil})
	work := g.limits.MaskWork
	threads, ok := t.closure(g, &work)
	if !ok {
		return nil, &LimitError{"ways to read a text at once", g.limits.Threads}
	}
	g.start = t.intern(g, threads).cfg
	g.tab.Store(t)
	return g, nil
}

// Start returns the state before the first byte.
func (g *Grammar) Start() State { return State{cfg: g.start} }

// Accepting reports whether the text may end here.
func (g *Grammar) Accepting(s State) bool { return s.cfg != nil && s.cfg.accepts }

// Accept returns the state after some bytes and how many of them fit. When that is not all of them, they are refused
// and the state is the old one.
//
// A byte is also refused when the limits on threads, nesting and depth leave no way to read it. What was accepted
// before is always accepted again.
func (g *Grammar) Accept(s State, p []byte) (State, int) {
	t, cur := g.enter(s)
	for n, b := range p {
		c := g.prog.class[b]
		var next *state
		if cur != dead {
			next = cur.next[c].Load()
			if next == nil {
				t, next = g.expand(t, cur, c)
			}
		}
		if next == nil || next.refuses() {
			return s, n
		}
		cur = next
	}
	return State{cur.cfg, t.gen, cur.id}, len(p)
}

// enter finds a state in the present table.
func (g *Grammar) enter(s State) (*table, *state) {
	t := g.tab.Load()
	if t.full(g) {
		t = g.renew(t)
	}
	switch {
	case s.cfg == nil || s.cfg.g != g:
		return t, dead
	case s.gen == t.gen:
		return t, (*t.states.Load())[s.id]
	}
	return t, t.adopt(g, s.cfg)
}

// expand is table.expand in a table that is not full: when t is, the state first moves into an empty one. It returns
// the table that the result is in.
func (g *Grammar) expand(t *table, s *state, class uint8) (*table, *state) {
	if t.full(g) {
		t = g.renew(t)
		s = t.adopt(g, s.cfg)
	}
	return t, t.expand(g, s, class, g.budget())
}

// renew puts an empty table in the place of a full one.
func (g *Grammar) renew(t *table) *table {
	fresh := newTable()
	if !g.tab.CompareAndSwap(t, fresh) {
		return g.tab.Load() // somebody else did so
	}
	return fresh
}

// walkBytes bounds the memory of states found by one walk. As a walk in progress does not change tables, it can
// overfill one by as much.
const walkBytes = 4 << 20

// budget returns what one walk may cost.
func (g *Grammar) budget() *budget { return &budget{g.limits.MaskWork, walkBytes} }

// Forced returns the bytes that every text goes on with from here, at most limit of them. It is empty where the text
// may end or there is a choice.
func (g *Grammar) Forced(s State, limit int) []byte {
	var out []byte
	t, cur := g.enter(s)
	for len(out) < limit && !cur.refuses() && !cur.cfg.accepts {
		// Only a class of one byte can be forced, and only one class may lead on.
		forced, ways := 0, 0
		var to *state
		for c := range g.prog.first {
			next := cur.next[c].Load()
			if next == nil {
				next = t.expand(g, cur, uint8(c), g.budget())
			}
			if next.refuses() {
				continue
			}
			ways++
			if forced, to = c, next; ways > 1 {
				return out
			}
		}
		if ways == 0 || g.prog.sizes[forced] > 1 {
			return out
		}
		out = append(out, g.prog.first[forced])
		t, cur = g.enter(State{cfg: to.cfg}) // the table can have changed since
	}
	return out
}

// CacheBytes returns about how much memory remembered states and masks take now.
func (g *Grammar) CacheBytes() int { return int(g.tab.Load().bytes.Load()) }

func sortThreads(threads []thread) {
	id := func(f *frame) uint32 {
		if f == nil {
			return 0
		}
		return f.id
	}
	slices.SortFunc(threads, func(a, b thread) int {
		return cmp.Or(cmp.Compare(a.pc, b.pc), cmp.Compare(id(a.top), id(b.top)))
	})
}
