package prefix

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/calderaml/caldera/engine/state"
)

const (
	// entryBytes is about what an entry takes beside its snapshot.
	entryBytes = 256
	// maxStones bounds for how many snapshots that are gone it is remembered why.
	maxStones = 1024
	// diskIndex bounds the bytes of the index when there is no budget for memory.
	diskIndex = 64 << 20
)

// ErrNoRoom is why a snapshot was not taken in: it is larger than the budgets, or what is in them is in use.
var ErrNoRoom = errors.New("no room in the prefix cache")

// A Config says what a cache may use.
type Config struct {
	Layout *state.Layout // of all snapshots
	RAM    int64         // bytes of memory
	Dir    string        // folder of files
	Disk   int64         // bytes of files; 0 for none
	FS     FS            // nil for the system's
	// Warn, if not nil, is told what went wrong with files. It must not call the cache.
	Warn func(error)
}

// A Cache keeps snapshots of one model and one format. Its methods may be called from several goroutines. Lookup,
// Insert, Reserve and Resize may read and write files of the size of snapshots, and should not hold up a step of
// other sequences.
type Cache struct {
	cfg  Config
	disk *store // nil for none

	mu       sync.Mutex
	idle     sync.Cond // an entry's file has been written
	trie     trie
	entries  map[*entry]struct{}
	pages    map[*state.Page]int // how many entries in memory have it
	stones   list.List           // of *stone, the oldest first
	strays   []file              // files that are no entries, the oldest first
	held     int64               // bytes of pages and snapshots
	reserved int64
	clock    float64
	tick     uint64
	stats    Stats
	warnings []error
	failures int // writes in a row that failed
	skip     int // writes not to try
	sweeper  sweeper
}

// An entry is a snapshot in memory, on disk or in both.
type entry struct {
	node *node // of its tokens
	end  *node // of the tokens that were seen to follow
	snap *state.Snapshot
	size int64 // of the file, 0 for none
	name string

	pins  int
	busy  bool // its file is being written
	dead  bool // removed while pinned or busy
	freq  float64
	clock float64
	used  uint64
}

// A stone marks where a snapshot was.
type stone struct {
	node *node
	why  Reason
	at   *list.Element
}

// usable reports whether the entry has a snapshot; one that is being written to disk past memory has none yet.
func (e *entry) usable() bool { return e.snap != nil || e.size > 0 }

// New makes a cache, and reads what its folder holds. If the folder cannot be used it says so to Warn and works without.
func New(cfg Config) (*Cache, error) {
	if cfg.Layout == nil || cfg.RAM < 0 || cfg.Disk < 0 {
		return nil, errors.New("a prefix cache needs a layout, and budgets of 0 or more")
	}
	// Files found are older than anything that happens from now on; the first is the newest.
	c := &Cache{cfg: cfg, entries: map[*entry]struct{}{}, pages: map[*state.Page]int{}, tick: maxFiles}
	c.idle.L = &c.mu
	if cfg.Disk == 0 || cfg.Dir == "" {
		return c, nil
	}
	st := &store{fs: cfg.FS, dir: cfg.Dir, budget: cfg.Disk, layout: cfg.Layout}
	if st.fs == nil {
		st.fs = osFS{}
	}
	st.io.Lock()
	defer st.io.Unlock()
	c.mu.Lock()
	defer c.unlock()
	err := st.open()
	if err == nil {
		err = st.scan(c.discovered, c.warn)
	}
	if err != nil {
		c.warn(fmt.Errorf("the prefix cache works without files: %w", err))
		return c, nil
	}
	slices.Reverse(c.strays)
	c.disk = st
	c.mu.Unlock()
	_, err = c.diskRoom(0, 0)
	c.mu.Lock()
	if err != nil {
		c.warn(fmt.Errorf("prefix cache: making room in %s: %w", st.dir, err))
	}
	return c, nil
}

// discovered takes in a file found at the start, and reports whether there is room in the index for more.
func (c *Cache) discovered(x found) bool {
	if c.trie.bytes()+4*int64(len(x.tokens)) > c.indexLimit() {
		x.tokens, x.why = nil, OtherFormat
	}
	if x.why != None {
		c.strays = append(c.strays, x.file)
		if len(x.tokens) > 0 {
			c.mark(x.tokens, x.why)
		}
		return c.trie.bytes() < c.indexLimit()
	}
	e := c.add(x.tokens)
	e.name, e.size = x.name, x.size
	e.used = uint64(maxFiles - len(c.entries))
	return true
}

// indexLimit is how large the trie may become by what is not in memory.
func (c *Cache) indexLimit() int64 {
	if c.cfg.RAM > 0 {
		return c.cfg.RAM / 8
	}
	return diskIndex
}

// add makes an entry for tokens.
func (c *Cache) add(tokens []int32) *entry {
	e := &entry{node: c.trie.hold(tokens), end: c.trie.hold(tokens), freq: 1, clock: c.clock}
	c.tick++
	e.used = c.tick
	if s := e.node.gone; s != nil {
		c.unmark(s)
	}
	e.node.entry = e
	c.entries[e] = struct{}{}
	return e
}

// touch notes a use.
func (c *Cache) touch(e *entry) {
	c.tick++
	e.used, e.clock, e.freq = c.tick, c.clock, e.freq+1
}

// mark remembers why there is no snapshot of tokens.
func (c *Cache) mark(tokens []int32, why Reason) {
	n := c.trie.hold(tokens)
	if n.entry != nil {
		c.trie.release(n)
		return
	}
	if n.gone != nil {
		c.unmark(n.gone)
	}
	s := &stone{node: n, why: why}
	s.at = c.stones.PushBack(s)
	n.gone = s
	for c.stones.Len() > maxStones || c.stones.Len() > 0 && (c.trie.bytes() > c.indexLimit() || c.over()) {
		c.unmark(c.stones.Front().Value.(*stone))
	}
}

func (c *Cache) unmark(s *stone) {
	c.stones.Remove(s.at)
	s.node.gone = nil
	c.trie.release(s.node)
}

// attach puts a snapshot into an entry, and counts it.
func (c *Cache) attach(e *entry, s *state.Snapshot) {
	c.held += c.need(s)
	e.snap = s
	for _, p := range s.Pages() {
		c.pages[p]++
	}
}

// detach drops an entry's snapshot from memory.
func (c *Cache) detach(e *entry) {
	if e.snap == nil {
		return
	}
	c.held -= e.snap.OwnBytes() + entryBytes
	for _, p := range e.snap.Pages() {
		if c.pages[p]--; c.pages[p] == 0 {
			delete(c.pages, p)
			c.held -= p.Bytes()
		}
	}
	e.snap = nil
}

// need is what a snapshot would add to the memory in use.
func (c *Cache) need(s *state.Snapshot) int64 {
	n := s.OwnBytes() + entryBytes
	for _, p := range s.Pages() {
		if c.pages[p] == 0 {
			n += p.Bytes()
		}
	}
	return n
}

// frees is what dropping an entry's snapshot would take from the memory in use.
func (c *Cache) frees(e *entry) int64 {
	n := e.snap.OwnBytes() + entryBytes
	for _, p := range e.snap.Pages() {
		if c.pages[p] == 1 {
			n += p.Bytes()
		}
	}
	return n
}

// used is how much of the memory budget is taken.
func (c *Cache) used() int64 { return c.held + c.reserved + c.trie.bytes() }

// over reports whether more than the memory budget is taken, if there is one.
func (c *Cache) over() bool { return c.cfg.RAM > 0 && c.used() > c.cfg.RAM }

// growth is how much larger the index gets with a path, at most.
func (c *Cache) growth(tokens []int32) int64 {
	return 2*nodeBytes + 4*int64(len(tokens)-c.trie.walk(tokens, func(*node) {}))
}

// remove takes an entry out of the cache. A pinned one's memory is counted until it is released.
func (c *Cache) remove(e *entry, why Reason) {
	tokens := e.node.path()
	e.dead = true
	e.node.entry = nil
	delete(c.entries, e)
	if e.pins == 0 && !e.busy {
		c.detach(e)
	}
	if why != None {
		c.mark(tokens, why)
	}
	c.trie.release(e.end)
	c.trie.release(e.node)
}

// unpin gives up a pin or the end of a write.
func (c *Cache) unpin(e *entry) {
	if e.dead && e.pins == 0 && !e.busy {
		c.detach(e)
	}
}

// warn keeps a warning until the lock is given up.
func (c *Cache) warn(err error) { c.warnings = append(c.warnings, err) }

// unlock gives up the lock and then says what went wrong.
func (c *Cache) unlock() {
	warnings := c.warnings
	c.warnings = nil
	c.mu.Unlock()
	if c.cfg.Warn != nil {
		for _, err := range warnings {
			c.cfg.Warn(err)
		}
	}
}

// Insert takes in a snapshot of a sequence that has been fed tokens, of which the snapshot holds the first. What
// follows helps to say later how much of a prompt was shared. An error means that the snapshot was not kept, which
// wraps [ErrNoRoom] if nothing else is wrong with it.
func (c *Cache) Insert(tokens []int32, s *state.Snapshot) error {
	if l := s.Layout(); l.Model() != c.cfg.Layout.Model() {
		return state.ErrOtherModel
	} else if l.Digest() != c.cfg.Layout.Digest() {
		return state.ErrOtherFormat
	}
	if len(tokens) < s.Pos() || !slices.Equal(tokens[:s.Pos()], s.Tokens()) {
		return state.ErrOtherTokens
	}
	c.mu.Lock()
	defer c.unlock()
	if c.cfg.RAM == 0 && c.disk == nil {
		return fmt.Errorf("%w: it is off", ErrNoRoom)
	}
	if n := c.trie.find(s.Tokens()); n != nil && n.entry != nil && n.entry.snap != nil {
		e := n.entry
		c.touch(e)
		c.extend(e, tokens)
		return nil
	}
	if !c.room(func() int64 { return c.need(s) + c.growth(s.Tokens()) }) {
		return c.insertOnDisk(tokens, s)
	}
	n := c.trie.find(s.Tokens()) // room may have given up the lock
	var e *entry
	if n != nil && n.entry != nil {
		e = n.entry
		c.touch(e)
	} else {
		e = c.add(s.Tokens())
	}
	if e.snap == nil {
		c.attach(e, s)
	}
	c.extend(e, tokens)
	c.stats.Inserts++
	c.sweeper.look(c.held, c.cfg.RAM)
	return nil
}

// extend remembers the tokens that followed an entry's, if there is room for them.
func (c *Cache) extend(e *entry, tokens []int32) {
	if c.used()+c.growth(tokens) > c.cfg.RAM {
		return
	}
	old := e.end
	e.end = c.trie.hold(tokens)
	c.trie.release(old)
}

// insertOnDisk takes in a snapshot for which there is no room in memory.
func (c *Cache) insertOnDisk(tokens []int32, s *state.Snapshot) error {
	if n := c.trie.find(s.Tokens()); n != nil && n.entry != nil {
		return nil // on disk already
	}
	if c.disk != nil && (c.cfg.RAM == 0 || c.used()+c.growth(s.Tokens()) <= c.cfg.RAM) {
		e := c.add(s.Tokens())
		e.busy = true
		c.save(e, s)
		if e.dead || e.usable() {
			c.stats.Inserts++
			return nil
		}
		c.remove(e, TooLarge)
	} else {
		c.mark(s.Tokens(), TooLarge)
	}
	c.stats.Refused++
	return fmt.Errorf("%w: the snapshot has %d bytes, and the budget is %d in memory and %d on disk",
		ErrNoRoom, s.Bytes(), c.cfg.RAM, c.cfg.Disk)
}

// Stats are the cache's counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries, s.RAMBytes = len(c.entries), c.used()
	for e := range c.entries {
		if e.snap != nil {
			s.InMemory++
		}
		if e.size > 0 {
			s.OnDisk++
		}
		if e.pins > 0 {
			s.Pinned++
		}
	}
	if c.disk != nil {
		s.DiskBytes = c.disk.last.Load()
	}
	return s
}

// Audit adds up RAMBytes of [Stats] again from what the cache has, for tests and diagnosis.
func (c *Cache) Audit() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.reserved + c.trie.bytes()
	seen := map[*state.Page]bool{}
	for e := range c.entries {
		if e.snap == nil {
			continue
		}
		n += e.snap.OwnBytes() + entryBytes
		for _, p := range e.snap.Pages() {
			if !seen[p] {
				seen[p] = true
				n += p.Bytes()
			}
		}
	}
	return n
}
