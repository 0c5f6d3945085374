package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/scheduler"
)

// A Progress is how far loading is.
type Progress struct {
	Done, Total int64  // bytes of weights in place, of all
	Device      string // what they are loaded to
}

// loadWeights brings the weights of device i to it.
func (e *Engine) loadWeights(i int, s site) (err error) {
	die := e.where.Dies[i]
	if e.cfg.inject != nil {
		e.cfg.inject(die.Device)
	}
	items, before := itemsOf(e.model.Weights, e.homes, i), int64(0)
	total := int64(0)
	for j := range e.where.Dies {
		n := weights.Total(itemsOf(e.model.Weights, e.homes, j))
		if total += n; j < i {
			before += n
		}
	}
	r, err := weights.Load(e.file, items, weights.Decide(e.file, items, e.cfg.caps(s.info, s.profile)), die, func(done int64) {
		if e.cfg.Progress != nil {
			e.cfg.Progress(Progress{before + done, total, s.info.Name})
		}
	})
	e.resident = append(e.resident, r)
	return err
}

// Weights says where the weights live, on all devices together; zero on the reference backend.
func (e *Engine) Weights() (sum weights.Report) {
	for _, r := range e.resident {
		sum = sum.Add(r)
	}
	return sum
}

// readsFile reports whether steps read the model file's pages.
func (e *Engine) readsFile() bool {
	for _, r := range e.resident {
		if r.Imported > 0 {
			return true
		}
	}
	return e.die == nil
}

// intact returns an error once the file that steps read is no longer the one that was opened. It is asked before a
// step and, as the file may change during the step, before its results are used.
func (e *Engine) intact() error {
	if !e.readsFile() {
		return nil
	}
	if err := e.file.Intact(); err != nil {
		return fmt.Errorf("%w: %w", ErrModel, err)
	}
	return nil
}

// reachThreads makes the driver's threads survive the loss of pages that they read.
func (e *Engine) reachThreads() {
	// Of a GPU beside a software device the threads do no harm.
	if slices.ContainsFunc(e.where.Dies, func(d *scheduler.Die) bool { return d.Device.Profile().Software }) && e.readsFile() {
		mapping.ReachThreads()
	}
}

// A prefault brings the file's pages into memory in the background, so that the first tokens do not wait for
// them one by one.
type prefault struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startPrefault begins it, if steps read the file and memory has room to spare: less would push out pages that
// are in use, its own among them.
func (e *Engine) startPrefault() {
	if !e.readsFile() || len(e.file.Pages(0)) == 0 || e.file.Size() > mapping.Available()/4*3 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &prefault{cancel, make(chan struct{})}
	e.prefault = f
	file, parts := e.file, len(e.file.Parts())
	go func() {
		defer close(f.done)
		for i := range parts {
			mapping.Populate(ctx, file.Pages(i))
		}
	}()
}

// stop ends it and waits until it has: the pages may be unmapped then.
func (f *prefault) stop() {
	if f != nil {
		f.cancel()
		<-f.done
	}
}
