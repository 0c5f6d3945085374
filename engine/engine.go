// Package engine is Caldera's Go API: it opens a model on a device, holds sequences, and generates.
package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Backends.
const (
	Vulkan    = "vulkan"    // recorded kernels on a device
	Reference = "reference" // the kernels' twins in plain Go
)

// maxRows is the largest row bucket, and the default batch.
const maxRows = 512

// softwareRows is the default batch where the processor computes: larger steps are not faster there (the demo
// model's prefill ran at 104 tokens/s with 512 rows and at 108 with 64), and a step cannot be interrupted.
const softwareRows = 64

// A Config says what to open and how to run it. The zero value of every field but the model is a default.
type Config struct {
	Path string // model file; a part of a split file stands for the whole
	Data []byte // or the file's bytes, named Name
	Name string

	Backend string // Vulkan (default) or Reference
	Device  string // name, UUID or index; empty picks the best
	Profile string // restricts the device, see vk.ProfileFor
	Context int    // most tokens of a sequence; default min(4096, the model's)
	KV      string // "f16" (default) or "f32"
	Batch   int    // most rows of a step, 1..512; default 512, or 64 on software devices
	// Residency is where weights live on a device: "auto" (default), "import" or "copy", see package weights.
	Residency string

	// Check makes every plan look for missing barriers in what it recorded.
	Check bool
	// BreakKernel names a kernel to run from damaged code, to show that Verify finds it.
	BreakKernel string
	// Progress is told how loading goes.
	Progress func(Progress)
	// WithoutNFC leaves text as it is before tokenizing, as llama.cpp does.
	WithoutNFC bool

	window int64            // most bytes of one import, 0 is the device's limit; tests make it small
	inject func(*vk.Device) // called with the device before anything is loaded, in tests
}

// ErrContextFull reports that a sequence has reached the context; a recurrent model cannot drop its oldest
// tokens, so there is no sliding on.
var ErrContextFull = errors.New("context is full")

// ErrModel marks a model file that was refused.
var ErrModel = errors.New("model refused")

// An Engine is a model on a device. Its methods must not be called concurrently.
type Engine struct {
	cfg      Config
	file     *gguf.File
	model    *model.Model
	tok      *tokenizer.Tokenizer
	rope     *model.Rope
	state    *model.State
	instance *vk.Instance
	die      *scheduler.Die     // nil on the reference backend
	memory   shaders.HostMemory // nil on a device
	plans    map[planKey]*planned
	session  *Session // the one sequence in use
	load     time.Duration

	resident weights.Report
	prefault *prefault

	room  *MemoryPlan
	works [2]*scheduler.Workspace // of generation, and of steps that deliver all their rows' logits
}

// Open reads a model and puts it on a device.
func Open(cfg Config) (_ *Engine, err error) {
	start := time.Now()
	e := &Engine{cfg: cfg, plans: map[planKey]*planned{}}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if err := e.cfg.defaults(); err != nil {
		return nil, err
	}
	if err := e.openFile(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	if err := e.cfg.resolveContext(e.model); err != nil {
		return nil, err
	}
	e.rope = model.NewRope(e.model.Rope)
	e.state = e.model.NewState(1, pagesFor(e.cfg.Context), e.cfg.KV == "f16")
	if e.cfg.Backend == Reference {
		if err = e.fit(planner{}); err == nil {
			e.memory, err = weights.Map(e.model.Weights)
		}
	} else {
		err = e.openDevice()
	}
	if err != nil {
		return nil, err
	}
	e.load = time.Since(start)
	e.startPrefault()
	return e, nil
}

// defaults fills in and checks a configuration.
func (c *Config) defaults() error {
	if c.Backend == "" {
		c.Backend = Vulkan
	}
	if c.KV == "" {
		c.KV = "f16"
	}
	if c.Residency == "" {
		c.Residency = weights.Auto
	}
	switch {
	case c.Backend != Vulkan && c.Backend != Reference:
		return fmt.Errorf("backend %q: use %s or %s", c.Backend, Vulkan, Reference)
	case c.KV != "f16" && c.KV != "f32":
		return fmt.Errorf("KV cache type %q: use f16 or f32", c.KV)
	case c.Residency != weights.Auto && c.Residency != weights.Import && c.Residency != weights.Copy:
		return fmt.Errorf("residency %q: use %s, %s or %s", c.Residency, weights.Auto, weights.Import, weights.Copy)
	case c.Batch < 0 || c.Batch > maxRows:
		return fmt.Errorf("batch of %d rows: use 1 to %d", c.Batch, maxRows)
	case c.Path == "" && c.Data == nil:
		return errors.New("no model is named")
	}
	return nil
}

func (e *Engine) openFile() (err error) {
	if e.cfg.Data != nil {
		e.file, err = gguf.OpenBytes(e.cfg.Name, e.cfg.Data)
	} else {
		e.file, err = gguf.Open(e.cfg.Path)
	}
	if err != nil {
		return err
	}
	if e.model, err = model.New(e.file); err != nil {
		return fmt.Errorf("%s: %w", e.file.Name(), err)
	}
	if e.tok, err = OpenTokenizer(e.file, e.cfg.WithoutNFC); err != nil {
		return fmt.Errorf("%s: %w", e.file.Name(), err)
	}
	return nil
}

func (e *Engine) openDevice() (err error) {
	if e.instance, err = vk.Open(vk.Config{AppName: "caldera"}); err != nil {
		return err
	}
	info, err := e.instance.Select(e.cfg.Device)
	if err != nil {
		return err
	}
	p, err := vk.ProfileFor(info, e.cfg.Profile)
	if err != nil {
		return err
	}
	if err := e.fit(planner{vulkan: true, info: info, profile: p, devices: e.instance.Devices()}); err != nil {
		return err
	}
	dev, err := e.instance.NewDevice(info, p)
	if err != nil {
		return err
	}
	e.die = scheduler.NewDie(dev)
	e.die.Break = e.cfg.BreakKernel
	if err := e.loadWeights(info, p); err != nil {
		return fmt.Errorf("loading %s on %s: %w", e.file.Name(), info.Name, err)
	}
	for _, b := range e.state.Buffers() {
		// Neither pages nor slots need clearing: nothing reads a position or a slot before writing it.
		if err := e.die.Allocate(b, false); err != nil {
			return fmt.Errorf("state on %s (context %d): %w", info.Name, e.cfg.Context, err)
		}
	}
	_, err = e.workspace(generation)
	return err
}

// Close frees everything. It is safe on an engine that failed to open.
func (e *Engine) Close() error {
	for _, p := range e.plans {
		p.runner.Close()
	}
	e.plans = nil
	e.freeWorkspaces()
	var errs []error
	e.prefault.stop()
	if e.die != nil {
		// A cache that cannot be kept costs the next start some time, and is no reason to fail.
		_ = e.die.Device.SavePipelineCache()
		errs = append(errs, e.die.Close())
		e.die = nil
	}
	if e.instance != nil {
		if n := e.instance.ValidationCount(); n > 0 {
			errs = append(errs, fmt.Errorf("the validation layers reported %d messages, first: %s", n, e.instance.ValidationMessages()[0]))
		}
		e.instance.Close()
		e.instance = nil
	}
	if e.file != nil {
		errs = append(errs, e.file.Close())
		e.file = nil
	}
	return errors.Join(errs...)
}

// Model returns the model's shape.
func (e *Engine) Model() *model.Model { return e.model }

// File returns the open model file.
func (e *Engine) File() *gguf.File { return e.file }

// Tokenizer returns the model's tokenizer, or nil when the file has no vocabulary.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// Context is the most tokens a sequence may have.
func (e *Engine) Context() int { return e.cfg.Context }

// Batch is the most rows of a step.
func (e *Engine) Batch() int { return e.cfg.Batch }

// SetBatch changes the most rows of a step, 1 to 512. Results do not depend on it. A batch above any before needs
// more memory; if that does not fit, nothing is changed.
func (e *Engine) SetBatch(n int) error {
	if n < 1 || n > maxRows {
		return fmt.Errorf("batch of %d rows: use 1 to %d", n, maxRows)
	}
	if err := e.reserve(n); err != nil {
		return err
	}
	e.cfg.Batch = n
	return nil
}

// DeviceStats are the device's counters since it was opened, zero on the reference backend.
func (e *Engine) DeviceStats() vk.Stats {
	if e.die == nil {
		return vk.Stats{}
	}
	return e.die.Device.Stats()
}

// DeviceInfo describes the device, zero on the reference backend.
func (e *Engine) DeviceInfo() vk.DeviceInfo {
	if e.die == nil {
		return vk.DeviceInfo{}
	}
	return e.die.Device.Info()
}

// LoadTime is how long Open took.
func (e *Engine) LoadTime() time.Duration { return e.load }

// Device names what the model runs on.
func (e *Engine) Device() string {
	if e.die == nil {
		return referenceName
	}
	return e.die.Device.Info().String()
}

// Software reports whether the device is a software implementation, or none at all.
func (e *Engine) Software() bool { return e.die == nil || e.die.Device.Profile().Software }
