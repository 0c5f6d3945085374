package engine

import "slices"

// Stats are what an engine is doing.
type Stats struct {
	Slots   int         // sequences that can run at a time
	Running []SlotStats // of requests that have a slot
	Waiting int         // requests that have none yet
	// KV pages of all sequences: those there are and those that hold something.
	Pages, PagesUsed int
}

// SlotStats are about a request that runs.
type SlotStats struct {
	Slot      int // 0 to Slots-1
	Tag       any // of the request
	Prompt    int // tokens
	Cached    int // of them, from the prefix cache
	Done      int // of them, those in the sequence
	Generated int // tokens
	MaxTokens int // as the request says, 0 for no limit
}

// Stats returns what the engine is doing. It does not wait for the step that runs.
func (e *Engine) Stats() Stats {
	b := e.batcher
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Running, s.Waiting = slices.Clone(b.slots), len(b.queue)
	return s
}

// publish makes what the goroutine knows of its jobs and of the pool known to others. It is called between steps.
func (b *batcher) publish() {
	b.e.mu.Lock()
	size, used := b.e.pool.Size(), b.e.pool.InUse()
	b.e.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats = Stats{Slots: size.Slots, Pages: size.Hot + size.Cold, PagesUsed: used.Hot + used.Cold}
	clear(b.slots) // tags are not to be kept
	b.slots = b.slots[:0]
	for _, j := range b.live {
		b.slots = append(b.slots, SlotStats{
			Slot: j.seq.seat.Slot(), Tag: j.req.Tag, Prompt: len(j.req.Prompt), Cached: j.result.Reused,
			Done: min(len(j.req.Prompt), len(j.seq.tokens)), Generated: j.result.Tokens, MaxTokens: j.req.MaxTokens,
		})
	}
}
