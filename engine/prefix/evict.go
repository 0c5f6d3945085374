package prefix

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/calderaml/caldera/engine/state"
)

// maxSkip bounds how many writes are not tried after some that failed.
const maxSkip = 64

// value is what an entry is worth if dropping it frees so many bytes; see the package's comment.
func value(e *entry, bytes int64) float64 {
	return e.clock + e.freq*float64(e.node.depth-e.node.shorter())/float64(max(1, bytes))
}

// less orders entries of the same value by their last use.
func less(v float64, e *entry, w float64, f *entry) bool { return v < w || v == w && e.used < f.used }

// room evicts snapshots from memory until need fits, and reports whether it does. It may give up the lock to write
// files.
func (c *Cache) room(need func() int64) bool {
	for c.used()+need() > c.cfg.RAM {
		if c.evict() {
			continue
		}
		if c.stones.Len() == 0 {
			return false
		}
		c.unmark(c.stones.Front().Value.(*stone))
	}
	return true
}

// evict drops the least valuable snapshot from memory, to disk if possible, and reports whether there was any. It may
// give up the lock.
func (c *Cache) evict() bool {
	var victim *entry
	var least float64
	busy := false
	for e := range c.entries {
		busy = busy || e.busy && e.snap != nil
		if e.snap == nil || e.pins > 0 || e.busy {
			continue
		}
		if v := value(e, c.frees(e)); victim == nil || less(v, e, least, victim) {
			victim, least = e, v
		}
	}
	if victim == nil {
		if busy {
			c.idle.Wait()
		}
		return busy
	}
	c.clock = max(c.clock, least)
	if victim.size == 0 && c.disk != nil {
		victim.busy = true
		c.save(victim, victim.snap)
	}
	if victim.pins > 0 || victim.dead {
		return true // somebody has found it meanwhile; try others
	}
	c.detach(victim)
	if victim.size == 0 {
		c.stats.Evicted++
		c.remove(victim, Evicted)
	}
	return true
}

// save writes the file of an entry that is marked busy. It gives up the lock meanwhile. Whether it succeeded shows in
// the entry's size.
func (c *Cache) save(e *entry, s *state.Snapshot) {
	defer func() {
		e.busy = false
		c.unpin(e)
		c.idle.Broadcast()
	}()
	if c.skip > 0 {
		c.skip--
		return
	}
	worth := value(e, s.EncodedBytes())
	c.mu.Unlock()
	name, size := fileName(c.cfg.Layout, s.Tokens()), s.EncodedBytes()
	c.disk.io.Lock()
	c.mu.Lock()
	dead := e.dead // by Clear, which cannot come while the file is written
	c.mu.Unlock()
	room, err := false, error(nil)
	if !dead {
		room, err = c.diskRoom(size, worth)
	}
	if err == nil && room {
		if err = c.disk.write(name, s); err == nil {
			c.disk.last.Add(size)
		}
	}
	c.mu.Lock()
	c.disk.io.Unlock()
	switch {
	case err != nil:
		c.stats.Failures++
		c.skip = min(maxSkip, 1<<min(c.failures, 10)-1)
		c.failures++
		c.warn(fmt.Errorf("prefix cache: writing %s: %w; the next %d snapshots are not written", c.disk.path(name), err, c.skip))
	case room:
		c.failures = 0
		if i := slices.IndexFunc(c.strays, func(f file) bool { return f.name == name }); i >= 0 {
			c.disk.last.Add(-c.strays[i].size) // it has been replaced
			c.strays = slices.Delete(c.strays, i, i+1)
		}
		c.stats.Demoted++
		e.name, e.size = name, size
	}
}

// diskRoom deletes files until need fits the disk's budget, and reports whether it does: first those that are no use,
// then entries worth less. The store's lock must be held, and the cache's not.
func (c *Cache) diskRoom(need int64, worth float64) (bool, error) {
	if need > c.disk.budget {
		return false, nil
	}
	_, _, total, _, err := c.disk.list()
	if err != nil {
		return false, err
	}
	for total+need > c.disk.budget {
		name, size := c.diskVictim(need > 0, worth)
		if name == "" {
			return false, nil
		}
		switch err := c.disk.remove(name, size); {
		case err == nil:
			total -= size
		case !errors.Is(err, fs.ErrNotExist): // what another process has deleted is not in the total
			return false, err
		}
	}
	return true, nil
}

// diskVictim takes the next file to delete out of the cache. If bounded, entries worth more than so much are none.
func (c *Cache) diskVictim(bounded bool, worth float64) (string, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.strays) > 0 {
		f := c.strays[0]
		c.strays = slices.Delete(c.strays, 0, 1)
		return f.name, f.size
	}
	var victim *entry
	var least float64
	for e := range c.entries {
		if e.size == 0 || e.pins > 0 {
			continue
		}
		if v := value(e, e.size); victim == nil || less(v, e, least, victim) {
			victim, least = e, v
		}
	}
	if victim == nil || bounded && least > worth {
		return "", 0
	}
	c.clock = max(c.clock, least)
	name, size := victim.name, victim.size
	victim.name, victim.size = "", 0
	if victim.snap == nil && !victim.busy {
		c.stats.Evicted++
		c.remove(victim, Evicted)
	}
	return name, size
}

// Reserve makes room in memory for a snapshot that is about to be captured after tokens, see [state.Layout.CaptureBytes].
// It reports whether there is; then the room is kept until release is called, which is due just before Insert. Where there is
// none, and no disk either, it remembers why there is no snapshot there.
func (c *Cache) Reserve(tokens []int32, bytes int64) (release func(), ok bool) {
	c.mu.Lock()
	defer c.unlock()
	if bytes < 0 || !c.room(func() int64 { return bytes }) {
		if c.disk == nil && c.cfg.RAM > 0 && len(tokens) > 0 {
			c.mark(tokens, TooLarge)
		}
		return nil, false
	}
	c.reserved += bytes
	done := false
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !done {
			done = true
			c.reserved -= bytes
		}
	}, true
}

// Resize changes the budget of memory, and evicts what does not fit. It reports whether what is left does: what is in
// use stays.
func (c *Cache) Resize(ram int64) bool {
	c.mu.Lock()
	defer c.unlock()
	c.cfg.RAM = max(0, ram)
	return c.room(func() int64 { return 0 })
}

// Flush writes what is in memory alone to disk, the most valuable first, as far as the budget goes.
func (c *Cache) Flush() {
	if c.disk == nil {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.skip = 0
	var todo []*entry
	for e := range c.entries {
		if e.snap != nil && e.size == 0 && !e.busy {
			todo = append(todo, e)
		}
	}
	slices.SortFunc(todo, func(e, f *entry) int {
		if less(value(e, e.snap.EncodedBytes()), e, value(f, f.snap.EncodedBytes()), f) {
			return 1
		}
		return -1
	})
	for _, e := range todo {
		if !e.dead && !e.busy && e.snap != nil && e.size == 0 {
			e.busy = true
			c.save(e, e.snap)
		}
	}
}

// Clear forgets all snapshots, in memory and on disk. The memory of those in use is counted until they are released.
func (c *Cache) Clear() {
	if c.disk != nil {
		c.disk.io.Lock()
		defer c.disk.io.Unlock()
	}
	c.mu.Lock()
	defer c.unlock()
	for e := range c.entries {
		if e.size > 0 {
			if err := c.disk.remove(e.name, e.size); err != nil && !errors.Is(err, fs.ErrNotExist) {
				c.warn(fmt.Errorf("%s: %w", c.disk.path(e.name), err))
			}
		}
		c.remove(e, None)
	}
	for c.stones.Len() > 0 {
		c.unmark(c.stones.Front().Value.(*stone))
	}
}
