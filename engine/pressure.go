package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/ladder"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/vk"
)

// coldest lists the types of KV cache from the warmest to the coldest.
var coldest = []string{"f32", "f16", "q8_0", "q4_0"}

// How often memory is looked at, between steps and while nothing runs.
const (
	observeEvery = 250 * time.Millisecond
	idleEvery    = time.Second
)

// relief gives things up under memory pressure, and takes them back. It belongs to the batcher's goroutine.
type relief struct {
	ladder *ladder.Ladder
	limits ladder.Limits
	last   time.Time // of observation
	// start is what the engine was opened with.
	kv    []string
	slots int
	batch int
	todo  bool // the engine has not the shape that the limits ask for
}

// newRelief sets the ladder up from the engine's shape.
func (e *Engine) newRelief() (*relief, error) {
	r := &relief{slots: e.cfg.Slots, batch: e.cfg.Batch}
	for _, f := range coldest[slices.Index(coldest, e.cfg.KV):] {
		// F32 is asked for by those who compare numbers.
		if f == e.cfg.KV || e.cfg.KV != "f32" && e.model.CheckKV(formatOf(f)) == nil {
			r.kv = append(r.kv, f)
		}
	}
	var err error
	r.ladder, err = ladder.New(ladder.Config{
		Slots: r.slots, Formats: r.kv, Chunk: r.batch, SnapshotBytes: e.cfg.CacheRAM,
		Settle: e.cfg.settle, Urgent: e.cfg.settle, Calm: e.cfg.settle, MaxCalm: 4 * e.cfg.settle,
	})
	if err != nil {
		return nil, err
	}
	r.limits = r.ladder.Limits()
	return r, nil
}

// memory reads how much memory is left.
func (e *Engine) memoryPressure() ladder.Pressure {
	if e.cfg.pressure != nil {
		return e.cfg.pressure()
	}
	var p ladder.Pressure
	for i, d := range e.where.Dies {
		// Two logical devices of one report the same.
		if d.Device.Profile().Software || slices.ContainsFunc(e.where.Dies[:i], func(x *scheduler.Die) bool { return x.Device.Info().UUID == d.Device.Info().UUID }) {
			continue
		}
		local := d.Device.Info().HeapFor(vk.DeviceLocal)
		for j, h := range d.Device.Heaps() {
			if j == local && h.Budget > 0 {
				p = append(p, ladder.Reading{Source: ladder.Device, Used: h.Usage, Limit: h.Budget, Available: -1})
			}
		}
	}
	if limit := e.cfg.MemoryLimit; limit > 0 {
		used := e.MemoryInUse().Own()
		if c := e.cache.Load(); c != nil {
			used += c.Stats().RAMBytes
		}
		// A plan may fill the limit, and then nothing more comes. Only what was not planned is pressure.
		if used > e.room.Needed {
			p = append(p, ladder.Reading{Source: ladder.Own, Used: used, Limit: limit, Available: -1})
		}
	}
	return append(p, ladder.Reading{Source: ladder.Host, Used: -1, Limit: totalMemory(), Available: availableMemory()})
}

// relieve looks at memory now and then, and does what the ladder says, once no step is under way.
func (b *batcher) relieve() {
	r, e := b.relief, b.e
	now := time.Now()
	if now.Sub(r.last) >= observeEvery || e.cfg.pressure != nil {
		r.last = now
		e.mu.Lock()
		p := e.memoryPressure()
		e.mu.Unlock()
		limits, events := r.ladder.Observe(now, p)
		for _, ev := range events {
			e.warn(fmt.Errorf("%v", ev))
		}
		if len(events) > 0 {
			r.limits, r.todo = limits, true
			b.mu.Lock()
			b.refuse = limits.Refuse
			b.mu.Unlock()
		}
	}
	if !r.todo {
		return
	}
	b.settle()
	e.mu.Lock()
	defer e.mu.Unlock()
	l := r.limits
	if c := e.cache.Load(); c != nil {
		c.Resize(l.SnapshotBytes)
	}
	e.pool.SetLive(l.Slots)
	if kv := r.kv[l.Cold]; e.cfg.Slots != l.Slots || e.cfg.Batch != l.Chunk || e.cfg.KV != kv {
		switch err := e.reshape(l.Slots, l.Chunk, kv); {
		case errors.Is(err, ErrBusy):
			return // again when a sequence has ended
		case errors.Is(err, ErrDoesNotFit):
			// On the way down there may not be room yet for what was given up; it is tried again at the next change.
		case err != nil:
			e.warn(fmt.Errorf("giving memory back: %w", err))
		}
		e.pool.SetLive(l.Slots)
	}
	r.todo = false
}

// warn tells whoever wants to know.
func (e *Engine) warn(err error) {
	if e.cfg.Warn != nil {
		e.cfg.Warn(err)
	}
}
