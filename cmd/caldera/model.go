package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/gguf"
)

// maxBatch is the most rows of a step.
const maxBatch = 512

// addEngineSettings defines the flags of a command that computes.
func addEngineSettings(f *pflag.FlagSet, keys ...string) {
	addSettings(f, append([]string{"model", "backend", "profile", "ctx", "kv", "batch"}, keys...)...)
}

// isDemo reports whether the built-in model is used.
func (a *app) isDemo() bool { return a.cfg.Model == "" }

// modelName is the file's path, or the demo's name.
func (a *app) modelName() string {
	if a.isDemo() {
		return demo.Name + ".gguf"
	}
	return a.cfg.Model
}

// engineConfig turns settings into the engine's. Context is what the command needs, used where the user does
// not say; 0 leaves it to the engine.
func (a *app) engineConfig(context int) engine.Config {
	c := engine.Config{
		Path:       a.cfg.Model,
		Backend:    a.cfg.Backend,
		Device:     a.cfg.Device,
		Profile:    a.cfg.Profile,
		Context:    a.cfg.Ctx,
		KV:         a.cfg.KV,
		Batch:      a.cfg.Batch,
		WithoutNFC: !a.cfg.TokenizerNFC,
	}
	if a.isDemo() {
		c.Data, c.Name = demo.Model(), a.modelName()
	}
	if c.Context == 0 {
		c.Context = context
	}
	return c
}

// openEngine opens the model on the device, showing progress, and tells about oddities.
func (a *app) openEngine(c engine.Config) (*engine.Engine, error) {
	if c.Batch < 0 || c.Batch > maxBatch {
		return nil, usagef("--batch is %d; use 1 to %d, or 0 for the default", c.Batch, maxBatch)
	}
	if a.cfg.Ctx < 0 {
		return nil, usagef("--ctx is %d; use 1 or more, or 0 for the default", a.cfg.Ctx)
	}
	p := a.newProgress()
	c.Progress = func(done, total int64) {
		p.update("loading %s: %s of %s", filepath.Base(a.modelName()), size(done), size(total))
	}
	e, err := engine.Open(c)
	p.done()
	if err != nil {
		return nil, err
	}
	for _, w := range e.Model().Warnings {
		a.log.Warn().Str("model", a.modelName()).Msg(printable(w))
	}
	if n := len(e.Model().Unused); n > 0 {
		a.log.Debug().Int("tensors", n).Strs("names", e.Model().Unused).Msg("tensors without a use")
	}
	return e, nil
}

// closeEngine closes an engine and keeps the first error.
func closeEngine(e *engine.Engine, err *error) {
	if cerr := e.Close(); *err == nil {
		*err = cerr
	}
}

// noteDevice tells what a model runs on and how long loading took.
func (a *app) noteDevice(e *engine.Engine) {
	a.note("model:  %s", printable(a.describeModel(e)))
	a.note("device: %s", printable(e.Device()))
	if e.Software() && a.cfg.Backend == engine.Vulkan {
		a.note("        this is a software implementation of Vulkan: it computes on the CPU, and a GPU is many times faster")
	}
	a.note("loaded in %.2f s", e.LoadTime().Seconds())
}

func (a *app) describeModel(e *engine.Engine) string {
	m := e.Model()
	s := fmt.Sprintf("%s (%s, %d layers)", a.modelName(), m.Arch, m.Layers)
	if a.isDemo() {
		s = fmt.Sprintf("%s, the built-in demo (%s, %d layers, %s)", demo.Name, m.Arch, m.Layers, demo.Licence)
	}
	return s
}

// openFile opens a model's header only; the built-in demo when no model is named.
func (a *app) openFile(path string) (f *gguf.File, err error) {
	if path == "" {
		f, err = gguf.OpenHeaderBytes(a.modelName(), demo.Model())
	} else {
		f, err = gguf.OpenHeader(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	return f, nil
}

// openTokenizer opens the tokenizer of the model without touching a device.
func (a *app) openTokenizer() (*tokenizer.Tokenizer, error) {
	f, err := a.openFile(a.cfg.Model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := engine.OpenTokenizer(f, !a.cfg.TokenizerNFC)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", engine.ErrModel, a.modelName(), err)
	}
	if t == nil {
		return nil, fmt.Errorf("%w: %s has no vocabulary", engine.ErrModel, a.modelName())
	}
	return t, nil
}
