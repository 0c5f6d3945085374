package engine

import (
	"errors"
	"fmt"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/state"
)

// reshape gives the engine's state and workspaces other sizes while sequences live: how many of them there may be, how
// many pages they share and of what type, and how large a step may be, as far as memory allows. Their state goes
// through the host's memory; every snapshot in the prefix cache stays valid unless the type of the cache changes. If
// there is no room for the new shape, the old one is put back. e.mu is held and no step is in flight.
//
// It refuses with ErrBusy, and nothing has changed, when what the sequences have reserved does not fit the new shape.
func (e *Engine) reshape(slots, batch int, format string) error {
	p := e.planner
	p.cfg, p.held = e.cfg, e.room
	p.cfg.Slots, p.cfg.Batch, p.cfg.KV = slots, batch, format
	room := p.planToFit()
	if e.die != nil {
		room.loaded(e.resident)
	}
	if err := room.Refusal(); err != nil {
		return err
	}
	st := room.newState(e.model, &p.cfg)
	var need kv.Need
	for seq := range e.seqs {
		need = need.Add(p.cfg.kvPolicy().Need(seq.seat.Tokens()))
	}
	if size := (kv.Need{Slots: st.Slots, Hot: st.Pages, Cold: st.ColdPages}); !need.Within(size) {
		return fmt.Errorf("%w: sequences have reserved %+v and %+v would be left", ErrBusy, need, size)
	}
	if err := e.needLayout(); err != nil {
		return err
	}
	type held struct {
		seq  *sequence
		most int
		snap *state.Snapshot
	}
	var all []held
	for seq := range e.seqs {
		h := held{seq: seq, most: seq.seat.Tokens()}
		if seq.failed == nil && len(seq.tokens) > 0 {
			snap, err := e.capture(seq)
			if err != nil {
				return err
			}
			h.snap = snap
		}
		all = append(all, h)
	}
	oldRoom, oldCfg, old := e.room, e.cfg, e.pageFormats()
	err := e.rebuild(room, p.cfg)
	if err != nil {
		// What was there before fits again, unless somebody else has taken the memory meanwhile.
		if back := e.rebuild(oldRoom, oldCfg); back != nil {
			err = fmt.Errorf("%w; and putting back what was there: %w", err, back)
			for _, h := range all {
				h.seq.failed = err
			}
			return err
		}
	}
	rerr := e.reformat(oldCfg.KV, func() error {
		for i, h := range all {
			if h.snap == nil {
				continue
			}
			snap, err := recode(h.snap, old, e.pageFormats(), e.cfg.kvPolicy())
			if err != nil {
				return err
			}
			all[i].snap = snap
		}
		return nil
	})
	for _, h := range all {
		if h.seq.failed = rerr; rerr != nil {
			continue
		}
		seat, serr := e.pool.Seat(h.most)
		if serr != nil {
			h.seq.failed = serr // cannot be: all of it was reserved before
			continue
		}
		h.seq.seat = seat
		if h.snap != nil {
			h.seq.failed = e.put(h.seq, h.snap)
		}
	}
	return errors.Join(err, rerr)
}

// reformat makes what depends on the type of the KV cache anew, if it has changed: the layout and the prefix cache. It
// then calls snapshots to bring those of live sequences into the new form.
func (e *Engine) reformat(before string, snapshots func() error) error {
	if e.cfg.KV == before {
		return nil
	}
	e.layout = nil
	e.cache.Store(nil)
	if err := e.needLayout(); err != nil {
		return err
	}
	if err := e.openCache(); err != nil {
		return err
	}
	return snapshots()
}

// pageFormats is how pages are stored now. The layout has been made.
func (e *Engine) pageFormats() pageFormats {
	return pageFormats{e.layout, e.state.KV, e.state.ColdKV, e.model.KVHeads * e.model.HeadDim}
}

// rebuild frees state, workspaces and plans, and makes them as a plan says. Sequences have no seats afterwards.
func (e *Engine) rebuild(room *MemoryPlan, cfg Config) error {
	for k, p := range e.plans {
		p.runner.Close()
		delete(e.plans, k)
	}
	e.freeWorkspaces()
	for _, b := range e.state.Buffers() {
		if e.die != nil {
			e.dieOf(b).Free(b)
		} else {
			delete(e.memory, b)
		}
	}
	// The rest of the configuration never changes, and is read without the lock.
	e.room, e.cfg.Slots, e.cfg.Batch, e.cfg.KV = room, room.Slots, cfg.Batch, cfg.KV
	e.newState()
	return e.allocateState()
}
