package engine

import (
	"context"
	"fmt"

	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/vk"
)

// A Progress is how far loading is.
type Progress struct {
	Done, Total int64  // bytes of weights in place, of all
	Device      string // what they are loaded to
}

// loadWeights brings the weights to the die.
func (e *Engine) loadWeights(info vk.DeviceInfo, p vk.Profile) (err error) {
	caps := e.cfg.caps(info, p)
	if e.cfg.inject != nil {
		e.cfg.inject(e.die.Device)
	}
	total := weights.Total(e.model.Weights)
	e.resident, err = weights.Load(e.file, e.model.Weights, weights.Decide(e.file, e.model.Weights, caps), e.die, func(done int64) {
		if e.cfg.Progress != nil {
			e.cfg.Progress(Progress{done, total, info.Name})
		}
	})
	if err != nil {
		return err
	}
	e.room.loaded(e.resident)
	e.reachThreads()
	// What was copied from a file that changed meanwhile is worth nothing.
	return e.file.Intact()
}

// Weights says where the weights live, zero on the reference backend.
func (e *Engine) Weights() weights.Report { return e.resident }

// readsFile reports whether steps read the model file's pages.
func (e *Engine) readsFile() bool { return e.die == nil || e.resident.Imported > 0 }

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
	if e.resident.Imported > 0 && e.Software() {
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
