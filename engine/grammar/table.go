package grammar

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A frame is an open call or counted repetition. Within one table equal frames are one.
type frame struct {
	parent      *frame
	ret         uint32 // opCall: where it returns to; opLoop: the loop
	count       uint32 // opLoop: turns that have ended
	nest, depth uint16 // with those of the parents
	id          uint32
}

type frameKey struct {
	parent     *frame
	ret, count uint32
	nest       uint16
}

// A thread is one way to read the text so far: it waits at an opBytes or is at opMatch.
type thread struct {
	pc  uint32
	top *frame
}

// A config is the set of all ways. It does not change, and outlives the table that made it.
type config struct {
	g       *Grammar
	threads []thread
	accepts bool // one of them is at opMatch
}

// A state is a config in a table, with what has been found out about it.
type state struct {
	cfg   *config
	id    uint32
	next  []atomic.Pointer[state] // by byte class; nil is not known yet
	mask  atomic.Pointer[Mask]
	plain atomic.Pointer[state] // where every plain character leads, see plain.go
}

// Where a byte that is refused leads: because no text goes on so, or because a limit was met.
var (
	dead = &state{cfg: &config{}}
	over = &state{cfg: &config{}}
)

func (s *state) refuses() bool { return s == dead || s == over }

// A table remembers states and the transitions between them. It only grows; a full one is replaced as a whole, so
// that nothing has to be freed singly. Looking up takes no lock.
type table struct {
	gen    uint32 // of all tables of all grammars, from 1
	states atomic.Pointer[[]*state]
	bytes  atomic.Int64

	mu      sync.Mutex
	frames  map[frameKey]*frame
	configs map[string]*state

	// Scratch space.
	stack   []thread
	visited map[thread]struct{}
	key     []byte
	chain   []*frame
}

var generation atomic.Uint32

func newTable() *table {
	t := &table{
		gen:    generation.Add(1),
		frames: map[frameKey]*frame{}, configs: map[string]*state{},
		visited: map[thread]struct{}{},
	}
	t.states.Store(&[]*state{dead})
	return t
}

// full reports whether the table should be replaced.
func (t *table) full(g *Grammar) bool { return t.bytes.Load() > int64(g.limits.CacheBytes) }

// frame returns the frame of a key. The lock is held.
func (t *table) frame(k frameKey) *frame {
	f, ok := t.frames[k]
	if !ok {
		f = &frame{parent: k.parent, ret: k.ret, count: k.count, nest: k.nest, depth: 1, id: uint32(len(t.frames) + 1)}
		if k.parent != nil {
			f.depth += k.parent.depth
		}
		t.frames[k] = f
		// The frame and its entry in a map that is on average three quarters full.
		t.bytes.Add(int64(unsafe.Sizeof(*f)) + 4*int64(unsafe.Sizeof(k))/3 + 16)
	}
	return f
}

// intern returns the state of a set of threads, which it keeps no reference to. The lock is held.
func (t *table) intern(g *Grammar, threads []thread) *state {
	if len(threads) == 0 {
		return dead
	}
	sortThreads(threads)
	key := t.key[:0]
	for _, th := range threads {
		id := uint32(0)
		if th.top != nil {
			id = th.top.id
		}
		key = binary.NativeEndian.AppendUint32(key, th.pc)
		key = binary.NativeEndian.AppendUint32(key, id)
	}
	t.key = key
	if s, ok := t.configs[string(key)]; ok {
		return s
	}
	cfg := &config{g: g, threads: append([]thread(nil), threads...)}
	for _, th := range threads {
		cfg.accepts = cfg.accepts || g.prog.insts[th.pc].op == opMatch
	}
	old := *t.states.Load()
	s := &state{cfg: cfg, id: uint32(len(old)), next: make([]atomic.Pointer[state], len(g.prog.first))}
	t.configs[string(key)] = s
	// The backing array is shared with readers, who look at no index that they have not been given.
	all := append(old, s)
	t.states.Store(&all)
	t.bytes.Add(int64(len(key)) + 200 + int64(len(threads))*int64(unsafe.Sizeof(thread{})) + 8*int64(len(s.next)))
	return s
}

// adopt returns this table's state for a config of another one.
func (t *table) adopt(g *Grammar, cfg *config) *state {
	t.mu.Lock()
	defer t.mu.Unlock()
	threads := make([]thread, len(cfg.threads))
	for i, th := range cfg.threads {
		chain := t.chain[:0]
		for f := th.top; f != nil; f = f.parent {
			chain = append(chain, f)
		}
		var top *frame
		for j := len(chain) - 1; j >= 0; j-- {
			f := chain[j]
			top = t.frame(frameKey{top, f.ret, f.count, f.nest})
		}
		t.chain = chain
		threads[i] = thread{th.pc, top}
	}
	return t.intern(g, threads)
}

// A budget is what a walk may still cost.
type budget struct {
	work  int // instructions
	bytes int // of new states
}

func (b *budget) spent() bool { return b.work < 0 || b.bytes < 0 }

// expand finds out where a byte class leads from a state of this table. The result is over, and not remembered, when
// the budget is spent.
func (t *table) expand(g *Grammar, s *state, class uint8, left *budget) *state {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next := s.next[class].Load(); next != nil {
		return next
	}
	if left.spent() {
		return over
	}
	before := t.bytes.Load()
	defer func() { left.bytes -= int(t.bytes.Load() - before) }()
	work := &left.work
	p, b := g.prog, g.prog.first[class]
	t.stack = t.stack[:0]
	for _, th := range s.cfg.threads {
		i := &p.insts[th.pc]
		if i.op != opBytes {
			continue
		}
		*work -= int(i.to - i.from)
		for _, a := range p.arms[i.from:i.to] {
			if p.sets[a.set].Has(b) {
				t.stack = append(t.stack, thread{a.next, th.top})
			}
		}
	}
	threads, ok := t.closure(g, work)
	if *work < 0 {
		return over
	}
	next := over
	if ok {
		next = t.intern(g, threads)
	}
	s.next[class].Store(next)
	return next
}

// closure runs the threads on t.stack up to where they need a byte. It returns false when there are too many ways.
func (t *table) closure(g *Grammar, work *int) ([]thread, bool) {
	p, limits := g.prog, &g.limits
	if len(t.visited) > 4096 {
		t.visited = map[thread]struct{}{} // a map keeps its size, and clearing takes as long
	}
	clear(t.visited)
	var done []thread
	push := func(pc uint32, top *frame) { t.stack = append(t.stack, thread{pc, top}) }
	for len(t.stack) > 0 {
		th := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		if _, ok := t.visited[th]; ok {
			continue
		}
		t.visited[th] = struct{}{}
		*work--
		if len(done) > limits.Threads || len(t.visited) > 64*limits.Threads {
			return nil, false
		}
		nest, depth := 0, 0
		if th.top != nil {
			nest, depth = int(th.top.nest), int(th.top.depth)
		}
		i := &p.insts[th.pc]
		switch i.op {
		case opBytes, opMatch:
			done = append(done, th)
		case opFork:
			for _, to := range p.targets[i.from:i.to] {
				push(to, th.top)
			}
		case opNeed:
			if nest+int(i.from) <= limits.Nesting && depth+int(i.to) <= limits.Depth {
				push(i.next, th.top)
			}
		case opCall:
			if i.nested {
				nest++
			}
			if nest <= limits.Nesting && depth < limits.Depth {
				push(p.entry[i.from], t.frame(frameKey{th.top, i.next, 0, uint16(nest)}))
			}
		case opTail:
			push(p.entry[i.from], th.top)
		case opRet:
			push(th.top.ret, th.top.parent)
		case opLoop:
			if depth < limits.Depth {
				push(p.loops[i.from].body, t.frame(frameKey{th.top, i.from, 0, uint16(nest)}))
			}
		case opAgain:
			l, up := &p.loops[i.from], th.top.parent
			turns := int(th.top.count) + 1
			if turns >= l.least {
				push(l.next, up)
			}
			if l.most == Unbounded {
				turns = min(turns, l.least) // more make no difference
			}
			if turns != l.most {
				push(l.body, t.frame(frameKey{up, i.from, uint32(turns), uint16(nest)}))
			}
		}
	}
	// Asked again at the end: the last way may be the one too many, and which is the last depends on the frames' numbers.
	return done, len(done) <= limits.Threads
}
