package engine

import (
	"fmt"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/vk"
)

// Held says what sequences and requests hold, in words; empty if nothing.
func Held(e *Engine) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.seqs); n > 0 {
		return fmt.Sprintf("%d sequences have seats", n)
	}
	if x := e.pool.Reserved(); x != (kv.Need{}) {
		return fmt.Sprintf("%+v is reserved", x)
	}
	if x := e.pool.InUse(); x != (kv.Need{}) {
		return fmt.Sprintf("%+v is in use", x)
	}
	e.batcher.mu.Lock()
	defer e.batcher.mu.Unlock()
	if n := len(e.batcher.queue); n > 0 {
		return fmt.Sprintf("%d requests wait", n)
	}
	if c := e.cache.Load(); c != nil {
		if s := c.Stats(); s.Pinned > 0 {
			return fmt.Sprintf("%d snapshots are pinned", s.Pinned)
		}
	}
	return ""
}

// Identity tells apart engines whose snapshots do not fit each other.
func Identity(e *Engine) (state.Digest, error) { return e.identity() }

// Restricted is a configuration that leaves out the first n rungs of the self-test's ladder.
func Restricted(cfg Config, n int) Config {
	cfg.rungs = n
	return cfg
}

// NextToken waits for a token of a stream and takes it. It returns false at the end.
func NextToken(s *Stream) (Token, bool) {
	t, ok, _ := s.next()
	return t, ok
}

// Delivered is how many tokens of a stream wait to be read.
func Delivered(s *Stream) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens) - s.taken
}

// Ended reports whether a request has ended.
func Ended(s *Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// WithFaults arms faults in the device that a configuration leads to, before it is made, and has open called with it once
// it is there and nothing is loaded.
func WithFaults(cfg Config, faults []vk.Fault, open func(*vk.Device)) Config {
	cfg.faults, cfg.inject = faults, open
	return cfg
}

// DropPlans frees the plans, so that they are made anew. Nothing may run.
func DropPlans(e *Engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, p := range e.plans {
		p.runner.Close()
		delete(e.plans, k)
	}
}
