package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/hub"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/vk"
)

// maxBatch is the most rows of a step.
const maxBatch = 512

// maxQueue is the most requests that wait.
const maxQueue = 1 << 16

// addEngineSettings defines the flags of a command that computes.
func addEngineSettings(f *pflag.FlagSet, keys ...string) {
	addSettings(f, append([]string{"model", "backend", "split", "device-memory", "profile", "residency", "ctx", "kv", "kv-sink", "kv-window", "batch", "submit-budget", "hang-timeout", "activations", "matrices", "tuning", "self-test", "memory-limit"}, keys...)...)
}

// isDemo reports whether the built-in model is used.
func (a *app) isDemo() bool { return a.cfg.Model == "" }

// modelName is what the user calls the model, or the demo's name.
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
		Path:        a.cfg.Model,
		Backend:     a.cfg.Backend,
		Device:      a.cfg.Device,
		Split:       a.cfg.Split,
		Profile:     a.cfg.Profile,
		Residency:   a.cfg.Residency,
		Activations: a.cfg.Activations,
		Matrices:    a.cfg.Matrices,
		Context:     a.cfg.Ctx,
		KV:          a.cfg.KV,
		KVSink:      a.cfg.KVSink,
		KVWindow:    a.cfg.KVWindow,
		Batch:       a.cfg.Batch,
		SelfTest:    a.cfg.SelfTest,
		SelfTestDir: vk.CacheDir(),
		WithoutNFC:  !a.cfg.TokenizerNFC,
		Warn:        func(err error) { a.log.Warn().Msg(printable(err.Error())) },
	}
	c.MemoryLimit, _ = parseSize(a.cfg.MemoryLimit) // checked with the configuration
	c.DeviceLimits, _ = parseSizes(a.cfg.DeviceMemory)
	c.SubmitBudget, _ = parseBudget(a.cfg.SubmitBudget)
	c.HangTimeout, _ = parseBudget(a.cfg.HangTimeout)
	if a.cfg.Tuning == "auto" {
		c.TuningDir = vk.CacheDir()
	}
	if a.isDemo() {
		c.Data, c.Name = demo.Model(), a.modelName()
	}
	if c.Context == 0 {
		c.Context = context
	}
	return c
}

// defaultCache is the most memory that the prefix cache takes unless told.
const defaultCache = 1 << 30

// addCache puts the settings of the prefix cache into an engine's. Many is whether there will be many requests.
func (a *app) addCache(c *engine.Config, many bool) {
	c.CacheDir, c.CacheDisk, _ = parseFolderSize(a.cfg.CacheDisk) // checked with the configuration
	if c.CacheEvery = a.cfg.CacheEvery; c.CacheEvery == 0 {
		c.CacheEvery = -1
	}
	switch {
	case a.cfg.CacheRAM != autoSize:
		c.CacheRAM, _ = parseSize(a.cfg.CacheRAM)
	case many:
		c.CacheRAM, c.CacheMayShrink = defaultCache, true
		for _, room := range []int64{c.MemoryLimit, mapping.Available()} {
			if room > 0 {
				c.CacheRAM = min(c.CacheRAM, room/4)
			}
		}
	}
}

// prepare checks a configuration and finds the model's file.
func (a *app) prepare(c *engine.Config) (err error) {
	if c.Batch < 0 || c.Batch > maxBatch {
		return usagef("--batch is %d; use 1 to %d, or 0 for the default", c.Batch, maxBatch)
	}
	for _, x := range []struct {
		name        string
		value, most int
	}{
		{"ctx", a.cfg.Ctx, 0}, {"kv-sink", a.cfg.KVSink, 0}, {"kv-window", a.cfg.KVWindow, 0}, {"cache-every", a.cfg.CacheEvery, 0},
		{"queue", a.cfg.Queue, maxQueue}, {"slots", a.cfg.Slots, engine.MaxSlots},
	} {
		switch {
		case x.value < 0:
			return usagef("--%s is %d; use 0 or more", x.name, x.value)
		case x.most > 0 && x.value > x.most:
			return usagef("--%s is %d; use at most %d", x.name, x.value, x.most)
		}
	}
	switch {
	case c.Matrices && c.Activations == engine.ActivationsInt8:
		return usagef("--matrices takes float32: use --activations %s with it", engine.ActivationsF32)
	case c.Matrices && c.Backend == engine.Reference:
		return usagef("the %s backend has no cooperative matrices; leave out --matrices", engine.Reference)
	}
	if (c.KV == "f16" || c.KV == "f32") && !(a.isDefault("kv-sink") && a.isDefault("kv-window")) {
		a.note("--kv-sink and --kv-window change nothing with --kv %s: all of it stays as it is", c.KV)
	}
	if a.isDemo() && !a.isDefault("model") { // a variable of a script that was not set, say
		return usagef("--model is empty; leave it out for the built-in demo")
	}
	if c.ChatTemplate, err = a.templateSource(); err != nil {
		return err
	}
	if c.Data == nil {
		c.Path, err = a.resolveModel(c.Path)
	}
	return err
}

// templateSource is the chat template of --chat-template-file, empty without.
func (a *app) templateSource() (string, error) {
	if a.cfg.ChatTemplate == "" {
		return "", nil
	}
	s, err := a.readText(a.cfg.ChatTemplate)
	if err == nil && s == "" {
		err = usagef("--chat-template-file: %s is empty", a.cfg.ChatTemplate)
	}
	return s, err
}

// openEngine opens the model on the device, showing progress, and tells about oddities.
func (a *app) openEngine(c engine.Config) (*engine.Engine, error) {
	if err := a.prepare(&c); err != nil {
		return nil, err
	}
	p := a.newProgress()
	start := time.Now()
	c.Progress = func(x engine.Progress) {
		p.update("%s", loadLine(filepath.Base(a.modelName()), x, time.Since(start)))
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

// loadLine says how far loading is after some time.
func loadLine(model string, p engine.Progress, took time.Duration) string {
	percent, rate := 100.0, int64(0)
	if p.Total > 0 {
		percent = math.Floor(100 * float64(p.Done) / float64(p.Total))
	}
	if s := took.Seconds(); s > 0 {
		rate = int64(float64(p.Done) / s)
	}
	return printable(fmt.Sprintf("loading %s to %s: %s of %s, %.0f %%, %s/s", model, p.Device, size(p.Done), size(p.Total), percent, size(rate)))
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
	a.note("%s", printable(e.Memory().String()))
	for _, n := range e.Memory().Notes {
		a.note("        %s", printable(n))
	}
	for _, f := range e.Weights().Fallbacks {
		if a.cfg.Residency == weights.Import {
			a.note("        %d tensors (%s) are not imported: %s", f.Items, size(f.Bytes), printable(f.Reason))
		}
		a.log.Debug().Int("tensors", f.Items).Int64("bytes", f.Bytes).Str("first", f.First).Msg("not imported: " + printable(f.Reason))
	}
	if n := e.Tuned(); n > 0 {
		a.note("tuned:  %d uses of kernels", n)
	}
	if types := e.PackedTypes(); len(types) > 0 {
		var names []string
		for _, t := range types {
			names = append(names, t.String())
		}
		a.note("inputs: products with %s take whole numbers; --activations f32 does not", strings.Join(names, ", "))
	}
	if s := e.Matrices(); s.M > 0 {
		a.note("matrices: products in steps of %d rows and more take cooperative matrices, %v", s.MinRows(), s)
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

// resolveModel returns the file of a model that is named as hub.Places.Find understands it, and tells of choices made
// on the way. The error has engine.ErrModel in its chain.
func (a *app) resolveModel(name string) (string, error) {
	if path, ok := a.found[name]; ok {
		return path, nil
	}
	m, err := hub.Default().Find(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	for _, n := range m.Notes {
		a.note("%s", printable(n))
	}
	if m.Path != name {
		a.note("file:   %s", printable(m.Path))
	}
	if a.found == nil {
		a.found = map[string]string{}
	}
	a.found[name] = m.Path
	return m.Path, nil
}

// openFile opens a model's header only; the built-in demo when no model is named.
func (a *app) openFile(path string) (f *gguf.File, err error) {
	if path == "" {
		f, err = gguf.OpenHeaderBytes(a.modelName(), demo.Model())
	} else if path, err = a.resolveModel(path); err != nil {
		return nil, err
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
	return a.tokenizerOf(f)
}

// tokenizerOf is the tokenizer of a model's file.
func (a *app) tokenizerOf(f *gguf.File) (*tokenizer.Tokenizer, error) {
	t, err := engine.OpenTokenizer(f, !a.cfg.TokenizerNFC)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", engine.ErrModel, a.modelName(), err)
	}
	if t == nil {
		return nil, fmt.Errorf("%w: %s has no vocabulary", engine.ErrModel, a.modelName())
	}
	return t, nil
}
