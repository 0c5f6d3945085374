package prefix

import (
	"runtime"
	"runtime/metrics"
)

// A sweeper keeps what has been evicted from staying in memory. Go collects garbage when about as much has been
// allocated as was in use, so a heap that is mostly cache would grow to twice the budget before anything evicted is
// freed. Snapshots are large and have few pointers: a collection costs little, and it comes once for every part of the
// budget that has turned into garbage.
type sweeper struct {
	other   int64 // of the heap beside the cache, after the last collection; 0 before the first look
	running chan struct{}
	sample  [1]metrics.Sample
}

const (
	// sweepPart is the part of the budget that garbage may take beside it.
	sweepPart = 32
	// sweepLeast is the least garbage that is worth a collection.
	sweepLeast = 4 << 20
)

// look starts a collection if it is due; held is what the cache has in memory. It does not wait for it.
func (s *sweeper) look(held, budget int64) {
	s.sample[0].Name = "/memory/classes/heap/objects:bytes"
	metrics.Read(s.sample[:])
	other := int64(s.sample[0].Value.Uint64()) - held
	if s.running != nil {
		select {
		case <-s.running:
			s.running = nil
			s.other = other
		default:
			return
		}
	}
	if s.other == 0 || other < s.other { // Go has collected by itself
		s.other = other
	}
	if other-s.other < max(budget/sweepPart, sweepLeast) {
		return
	}
	s.running = make(chan struct{})
	go func(done chan struct{}) {
		runtime.GC()
		close(done)
	}(s.running)
}
