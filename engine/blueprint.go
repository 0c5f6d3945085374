package engine

import (
	"fmt"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Blueprint is a model's header under a configuration: enough to build the graphs that an engine would, and to lower
// them for a device, present or not. Nothing of the model is loaded.
type Blueprint struct{ p planner }

// OpenBlueprint reads a model's header. The file's data need not be complete.
func OpenBlueprint(cfg Config) (*Blueprint, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	f, m, err := openHeader(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	if err = cfg.resolveContext(m); err == nil {
		err = cfg.checkKV(m)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Blueprint{planner{file: f, model: m, cfg: cfg}}, nil
}

// Close closes the file.
func (b *Blueprint) Close() error { return b.p.file.Close() }

// Model is the model's shape.
func (b *Blueprint) Model() *model.Model { return b.p.model }

// File is the open file.
func (b *Blueprint) File() *gguf.File { return b.p.file }

// Config is the configuration with its defaults filled in.
func (b *Blueprint) Config() Config { return b.p.cfg }

// Batch is the most rows of a step on a device.
func (b *Blueprint) Batch(software bool) int { return b.p.cfg.batch(software) }

// State lays out the state of the sequences for a context.
func (b *Blueprint) State(m *model.Model, context int) *model.State {
	p := b.p
	p.cfg.Context = context
	return m.NewState(p.shape())
}

// Graph builds the graph of a step that selects the best token of each sequence, as greedy decoding does, for a model that may
// be b's or a sample of it, on a device that offers kernels k: the next power of two of rows, and a context of so many tokens.
func (b *Blueprint) Graph(m *model.Model, k *shaders.Profile, rows, context int) (g *scheduler.Graph, err error) {
	if m.Packs, err = b.p.cfg.packs(k); err != nil {
		return nil, err
	}
	st := b.State(m, context)
	rows = bucket(rows)
	seqs := min(rows, st.Slots)
	g, _ = m.Graph(shaders.StepShape{Rows: rows, Seqs: seqs, Outs: seqs, Pages: pagesFor(context)}, st, model.GraphOptions{TopK: 1})
	return g, nil
}

// Kernels is what a device that is present offers to kernels once the model is loaded on it: where weights lie may
// bound what they bind. It refuses a device that cannot do what the configuration asks for.
func (b *Blueprint) Kernels(info vk.DeviceInfo) (shaders.Profile, error) {
	p := b.p
	if err := p.on(info); err != nil {
		return shaders.Profile{}, err
	}
	k := scheduler.Kernels(p.sites[0].profile)
	if _, _, binding := p.weights(nil); binding[0] > 0 {
		k.MaxBinding = min(k.MaxBinding, binding[0])
	}
	s := &p.sites[0]
	if _, err := s.packs(&p.cfg); err != nil {
		return k, err
	}
	var err error
	k.Matrices, err = s.matrices(&p.cfg, &k)
	return k, err
}
