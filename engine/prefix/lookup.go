package prefix

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/calderaml/caldera/engine/state"
)

// A Match is what the cache has for a prompt. It keeps its snapshot in the cache until Release.
type Match struct {
	Snapshot *state.Snapshot // to go on from; nil if nothing is reused
	Pos      int             // tokens reused; the prompt's others have to be processed, at least one
	Shared   int             // tokens that the prompt shares with what was seen before
	Reason   Reason          // why Pos is less than Shared, or 0
	FromDisk bool            // the snapshot was read from a file

	prompt  int // tokens asked for
	at      int // where the Reason's snapshot was
	release func()
}

// Release says that the snapshot has been restored or is not wanted. It may be called more than once.
func (m *Match) Release() { m.release() }

// Lookup finds the longest snapshot that a prompt begins with and that leaves at least one token to process.
func (c *Cache) Lookup(tokens []int32) *Match {
	c.mu.Lock()
	defer c.unlock()
	c.stats.TokensAsked += int64(len(tokens))
	fromDisk := false
	for {
		m, e := c.match(tokens)
		if e == nil {
			c.count(m)
			return m
		}
		s := e.snap
		if s == nil {
			if s = c.load(e); s == nil {
				continue // without it
			}
			fromDisk = true
		}
		// The trie has compared the tokens already. State must never reach a prompt that is not its own, so what was
		// found is compared once more by itself.
		if !slices.Equal(s.Tokens(), tokens[:m.Pos]) {
			c.warn(fmt.Errorf("prefix cache: the snapshot at %d is of other tokens", m.Pos))
			c.drop(e, Unreadable)
			continue
		}
		c.touch(e)
		e.pins++
		m.Snapshot, m.FromDisk = s, fromDisk
		m.release = sync.OnceFunc(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			e.pins--
			c.unpin(e)
		})
		c.count(m)
		return m
	}
}

// match finds the entry to use, and says what there is to say about the others.
func (c *Cache) match(tokens []int32) (*Match, *entry) {
	m := &Match{prompt: len(tokens), release: func() {}}
	var best *entry
	var gone *stone
	limit := len(tokens) - 1
	m.Shared = c.trie.walk(tokens, func(n *node) {
		if n.depth > limit {
			return
		}
		if n.entry != nil && n.entry.usable() {
			best, gone = n.entry, nil
		} else if n.gone != nil {
			gone = n.gone
		}
	})
	if best != nil {
		m.Pos = best.node.depth
	}
	switch {
	case c.cfg.RAM == 0 && c.disk == nil:
		m.Reason = Disabled
	case limit < 1:
		m.Reason = TooShort
	case m.Shared == 0:
		m.Reason = NoSharedPrefix
	case m.Pos == min(m.Shared, limit):
	case gone != nil:
		m.Reason, m.at = gone.why, gone.node.depth
	default:
		m.Reason = NoSnapshot
	}
	return m, best
}

// count adds a match to the counters.
func (c *Cache) count(m *Match) {
	c.stats.TokensReused += int64(m.Pos)
	c.stats.Reasons[m.Reason]++
	switch {
	case m.Pos == 0:
		c.stats.Misses++
	case m.Reason == None:
		c.stats.Hits++
	default:
		c.stats.PartialHits++
	}
}

// load reads an entry's snapshot from its file, and keeps it in memory if there is room, which is made before. It gives
// up the lock meanwhile. When nil is returned the entry is gone.
func (c *Cache) load(e *entry) *state.Snapshot {
	e.pins++
	name, size := e.name, e.size
	room := c.cfg.RAM > 0 && c.room(func() int64 { return size + entryBytes })
	if room {
		c.reserved += size + entryBytes
	}
	c.mu.Unlock()
	s, err := c.disk.read(name)
	if err == nil {
		_ = c.disk.fs.Touch(c.disk.path(name)) // only the order of what a later start evicts depends on it
	}
	c.mu.Lock()
	if room {
		c.reserved -= size + entryBytes
	}
	e.pins--
	if e.snap != nil { // somebody else was quicker
		return e.snap
	}
	if err == nil {
		c.stats.Loaded++
		if room && !e.dead && c.used()+c.need(s) <= c.cfg.RAM {
			c.attach(e, s)
		}
		return s
	}
	if e.dead {
		return nil // cleared, with its file
	}
	c.stats.Failures++
	why := Unreadable
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = Evicted // by another process
		c.stats.Evicted++
	case errors.Is(err, state.ErrCorrupt):
		c.warn(fmt.Errorf("%s is deleted: %w", c.disk.path(name), err))
		_ = c.disk.remove(name, size)
	default:
		c.warn(fmt.Errorf("%s: %w", c.disk.path(name), err))
		c.strays = append(c.strays, file{name: name, size: size})
	}
	c.remove(e, why)
	return nil
}

// drop removes an entry and its file.
func (c *Cache) drop(e *entry, why Reason) {
	if e.size > 0 {
		_ = c.disk.remove(e.name, e.size)
	}
	if !e.dead {
		c.remove(e, why)
	}
}
