// Package engine is Caldera's Go API: it opens a model on a device, holds sequences, and generates.
package engine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/ladder"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/prefix"
	"github.com/calderaml/caldera/engine/state"
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
	Device  string // name, UUID or index; empty picks the best; several, with commas between, share the layers
	// Split divides the layers among several devices: the first layer of each but the first ("20"), the share of each
	// ("0.5,0.5"), or SplitAuto (default). Tokens do not depend on it but for the rounding of other drivers.
	Split string
	// UnderWay is how many steps are under way together at most; default one for each device. With 1 one device works at a time.
	UnderWay int
	// DeviceLimits bounds what each device takes in bytes, the pages of the model file that it reads among it; 0 for no bound.
	DeviceLimits []int64
	Profile      string // restricts the device, see vk.ProfileFor
	Context      int    // most tokens of a sequence; default min(4096, the model's)
	Slots        int    // sequences that run at a time, 1 (default) to 64
	Batch        int    // most rows of a step, 1..512; default 512, or 64 on software devices
	// KV is the type of the KV cache: "f16" (default), "f32", "q8_0" or "q4_0". With the last two the first KVSink
	// tokens of a sequence, rounded up to whole pages, and the last KVWindow, beside the page being filled, stay F16.
	KV               string
	KVSink, KVWindow int // tokens; see [DefaultKVSink]
	// MemoryLimit bounds what the engine takes beside the pages of the model file, on device and host together, the
	// prefix cache included; 0 for what there is. Where it does not suffice, sequences share fewer pages, and fewer run.
	MemoryLimit int64
	// Queue is how many requests may wait for a slot; default 64, -1 for none.
	Queue int
	// MaxLatency bounds the time of a step in which some sequence decodes, and so the time between its tokens, by
	// feeding less of other prompts in it; 0 for no bound. It cannot be shorter than a step takes at least.
	MaxLatency time.Duration
	// SubmitBudget is how long a submission should occupy the device at most; default [DefaultSubmitBudget], or none on
	// software devices, -1 for none.
	SubmitBudget time.Duration
	// HangTimeout is how long a submission may take before the device counts as hanging and lost; default
	// [DefaultHangTimeout], or [SoftwareHangTimeout] on software devices.
	HangTimeout time.Duration
	// CacheRAM is the budget of the prefix cache in bytes, snapshots in use included; 0 for none.
	CacheRAM int64
	// CacheMayShrink lets a plan that does not fit otherwise give the prefix cache less.
	CacheMayShrink bool
	// CacheDir is a folder for CacheDisk bytes of snapshots, which outlive the process.
	CacheDir  string
	CacheDisk int64
	// CacheEvery is the number of tokens between snapshots inside a prompt; default 512, -1 for none.
	CacheEvery int
	// Warn, if not nil, is told what went wrong without harm to any request, and what is given up under memory
	// pressure. It must not call the engine.
	Warn func(error)
	// Residency is where weights live on a device: "auto" (default), "import" or "copy", see package weights.
	Residency string
	// Activations are what products of weights take: ActivationsAuto (default), ActivationsF32 or ActivationsInt8.
	Activations string
	// Matrices forms products with cooperative matrices in steps of many rows. Opening fails on devices without. Tokens may then
	// depend on how many rows a step has, within rounding. It takes activations of float32.
	Matrices bool

	// TuningDir is a folder with what [Engine.Tune] found for devices, see package tuning; empty for none. A tuning of
	// another version is not used, which Warn is told.
	TuningDir string
	// SelfTest says when kernels are compared with their twins before they are used: SelfTestAuto, SelfTestAlways or
	// SelfTestOff (default). Where some are wrong the engine does without them, which Warn is told, and where no right ones are left
	// opening fails with [ErrSelfTest]. SelfTestDir is a folder that keeps what was found of devices; without one it
	// is known as long as the process lives.
	SelfTest    string
	SelfTestDir string

	// Trace, if not nil, is told what each device did and when, while steps are carried on. It must not call the engine.
	Trace func(Stretch)
	// Check makes every plan look for missing barriers in what it recorded.
	Check bool
	// BreakKernel names a kernel to run from damaged code, to show that Verify finds it.
	BreakKernel string
	// Fault injects a fault of drivers, to show that the self-test finds it and what it does then: one of
	// [scheduler.Faults], or "reject:" and features that the driver reports and then refuses, separated by commas.
	Fault string
	// Progress is told how loading goes.
	Progress func(Progress)
	// ChatTemplate is the source of a chat template to use in the place of the model's.
	ChatTemplate string
	// WithoutNFC leaves text as it is before tokenizing, as llama.cpp does.
	WithoutNFC bool

	window   int64                  // most bytes of one import, 0 is the device's limit; tests make it small
	pressure func() ladder.Pressure // instead of reading how much memory is left, in tests
	settle   time.Duration          // between steps of the memory ladder, 0 is its default; likewise
	inject   func(*vk.Device)       // called with the device before anything is loaded, in tests
	faults   []vk.Fault             // armed in the device before it is made, in tests
	untuned  bool                   // leaves out what TuningDir has
	rungs    int                    // of the self-test's ladder to begin with, in tests
}

// A Stretch is the time that a device was busy with a step.
type Stretch = scheduler.Stretch

// ErrContextFull reports that a sequence has reached the context; a recurrent model cannot drop its oldest
// tokens, so there is no sliding on.
var ErrContextFull = errors.New("context is full")

// ErrModel marks a model file that was refused.
var ErrModel = errors.New("model refused")

// What stays F16 of a quantised cache by default: the first page, where attention sinks lie, and the recent tokens.
const (
	DefaultKVSink   = 256
	DefaultKVWindow = 512
)

// MaxSlots bounds the sequences of an engine.
const MaxSlots = 64

// An Engine is a model on a device. It may be used by several goroutines: steps take turns.
type Engine struct {
	// mu guards the device's state and everything that steps use. Slow work outside of steps does not hold it.
	mu      sync.Mutex
	pool    *kv.Pool
	seqs    map[*sequence]struct{} // those with a seat
	layout  *state.Layout          // made on first use
	batcher *batcher
	cache   atomic.Pointer[prefix.Cache] // nil without one; made anew when the cache's format changes
	policy  prefix.Policy

	cfg         Config
	file        *gguf.File
	model       *model.Model
	tok         *tokenizer.Tokenizer
	template    *chat.Template // nil where templateErr says why
	templateErr error
	words       struct { // the vocabulary of grammars
		once sync.Once
		v    *grammar.Vocabulary
		err  error
	}
	rope     *model.Rope
	state    *model.State
	instance *vk.Instance
	where    scheduler.Placement       // the devices and which layers they have; no device on the reference backend
	die      *scheduler.Die            // the first of them, nil without
	machine  scheduler.Machine         // of the steps
	homes    map[*shaders.Buffer][]int // on which devices weights and state are
	memory   shaders.HostMemory        // nil on a device
	plans    map[planKey]*planned
	limit    rowLimit
	load     time.Duration
	loss     atomic.Pointer[error] // that of the device, see Lost
	tested   []SelfTestReport      // of the devices
	before   vk.Stats              // of them, of what self-tests did

	resident []weights.Report // by device
	prefault *prefault

	planner planner // of the memory
	room    *MemoryPlan
	works   [workspaces]*scheduler.Workspace
	under   underway // of step
	turns   turns
	runs    []shaders.Run // of the last step, used again for the next
}

// Open reads a model and puts it on a device.
func Open(cfg Config) (_ *Engine, err error) {
	start := time.Now()
	e := &Engine{cfg: cfg, plans: map[planKey]*planned{}, seqs: map[*sequence]struct{}{}}
	e.turns.changed.L = &e.mu
	e.machine.Trace = cfg.Trace
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
	if err := e.cfg.checkKV(e.model); err != nil {
		return nil, err
	}
	e.rope = model.NewRope(e.model.Rope)
	if e.cfg.Backend == Reference {
		if err = e.fit(planner{}); err == nil {
			e.newState()
			e.memory, err = weights.Map(e.model.Weights)
		}
	} else {
		err = e.openDevice()
	}
	if err != nil {
		return nil, err
	}
	if err := e.openCache(); err != nil {
		return nil, err
	}
	if e.batcher, err = newBatcher(e); err != nil {
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
	if c.Activations == "" {
		c.Activations = ActivationsAuto
	}
	if c.SelfTest == "" {
		c.SelfTest = SelfTestOff
	}
	if c.Slots == 0 {
		c.Slots = 1
	}
	switch c.Queue {
	case 0:
		c.Queue = defaultQueue
	case -1:
		c.Queue = 0
	}
	switch c.CacheEvery {
	case 0:
		c.CacheEvery = cacheEvery
	case -1:
		c.CacheEvery = 0
	}
	if _, err := shaders.ParseKVFormat(c.KV); err != nil {
		return err
	}
	switch {
	case c.Backend != Vulkan && c.Backend != Reference:
		return fmt.Errorf("backend %q: use %s or %s", c.Backend, Vulkan, Reference)
	case c.KVSink < 0 || c.KVWindow < 0:
		return fmt.Errorf("a KV cache with a sink of %d tokens and a window of %d", c.KVSink, c.KVWindow)
	case c.UnderWay < 0:
		return fmt.Errorf("%d steps under way", c.UnderWay)
	case c.Slots < 1 || c.Slots > MaxSlots:
		return fmt.Errorf("%d sequences at once: use 1 to %d", c.Slots, MaxSlots)
	case c.SubmitBudget < -1 || c.Queue < -1 || c.MaxLatency < 0 || c.CacheRAM < 0 || c.CacheDisk < 0 || c.CacheEvery < -1 || c.MemoryLimit < 0 || c.HangTimeout < 0:
		return errors.New("a queue, latency or budget below 0")
	case c.CacheDisk > 0 && c.CacheDir == "":
		return errors.New("a prefix cache on disk without a folder")
	case c.Residency != weights.Auto && c.Residency != weights.Import && c.Residency != weights.Copy:
		return fmt.Errorf("residency %q: use %s, %s or %s", c.Residency, weights.Auto, weights.Import, weights.Copy)
	case c.Activations != ActivationsAuto && c.Activations != ActivationsF32 && c.Activations != ActivationsInt8:
		return fmt.Errorf("activations %q: use %s, %s or %s", c.Activations, ActivationsAuto, ActivationsF32, ActivationsInt8)
	case c.SelfTest != SelfTestAuto && c.SelfTest != SelfTestAlways && c.SelfTest != SelfTestOff:
		return fmt.Errorf("self-test %q: use %s, %s or %s", c.SelfTest, SelfTestAuto, SelfTestAlways, SelfTestOff)
	case c.Matrices && c.Activations == ActivationsInt8:
		return fmt.Errorf("cooperative matrices take float32: use --activations %s with --matrices", ActivationsF32)
	case c.Batch < 0 || c.Batch > maxRows:
		return fmt.Errorf("batch of %d rows: use 1 to %d", c.Batch, maxRows)
	case c.Path == "" && c.Data == nil:
		return errors.New("no model is named")
	}
	return nil
}

// defaultQueue is how many requests may wait.
const defaultQueue = 64

// formats are the types of pages that new tokens are written to, and of those that have left the window.
func (c *Config) formats() (hot, cold shaders.KVFormat) {
	f, _ := shaders.ParseKVFormat(c.KV) // checked by defaults
	if f.Cold() {
		return shaders.KVF16, f
	}
	return f, f
}

// kvPolicy says which pages of a sequence are cold.
func (c *Config) kvPolicy() kv.Policy {
	_, cold := c.formats()
	// More than the context makes no difference.
	sink, window := min(c.KVSink, c.Context), min(c.KVWindow, c.Context)
	return kv.Policy{PageTokens: shaders.PageTokens, Quantised: cold.Cold(), Sink: sink, Window: window}
}

// checkKV refuses a type of KV cache that does not suit the model.
func (c *Config) checkKV(m *model.Model) error {
	_, cold := c.formats()
	return m.CheckKV(cold)
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
	if e.tok != nil && e.tok.Len() > e.model.Vocab {
		return fmt.Errorf("%s: the vocabulary has %d tokens, but the embedding only %d rows", e.file.Name(), e.tok.Len(), e.model.Vocab)
	}
	// A template that does not compile leaves a model that can be used without one.
	e.template, e.templateErr = OpenTemplate(e.file, e.tok, e.cfg.ChatTemplate)
	return nil
}

func (e *Engine) openDevice() (err error) {
	if err := e.openInstance(); err != nil {
		return err
	}
	p := planner{model: e.model, file: e.file, cfg: e.cfg}
	if err := p.place(e.instance); err != nil {
		return err
	}
	if err := e.fit(p); err != nil {
		return err
	}
	fitted := p.sites
	for _, s := range fitted {
		tested, err := e.openDie(s)
		if err != nil {
			return err
		}
		p.sites = append(p.sites[:0:0], p.sites...)
		p.sites[len(e.where.Dies)-1] = tested
	}
	if !reflect.DeepEqual(p.sites, fitted) {
		// Less is used of a device than was planned.
		if err := e.fit(p); err != nil {
			return err
		}
	}
	e.newState()
	e.where.Split = p.split
	e.homes = homes(e.model, e.state, p.split)
	if e.limit.budget = max(e.cfg.SubmitBudget, 0); e.cfg.SubmitBudget == 0 && !p.software() {
		e.limit.budget = DefaultSubmitBudget
	}
	for i, d := range e.where.Dies {
		if err := e.setUp(d, p.sites[i]); err != nil {
			return err
		}
	}
	for i, s := range p.sites {
		if err := e.loadWeights(i, s); err != nil {
			return fmt.Errorf("loading %s on %s: %w", e.file.Name(), s.info.Name, err)
		}
	}
	e.room.loaded(e.resident)
	e.reachThreads()
	// What was copied from a file that changed meanwhile is worth nothing.
	if err := e.file.Intact(); err != nil {
		return fmt.Errorf("loading %s: %w", e.file.Name(), err)
	}
	return e.allocateState()
}

// openDie opens a device and adds it to those that run the model. It returns what of the device is used.
func (e *Engine) openDie(s site) (site, error) {
	die, profile, err := e.openTested(s)
	if err != nil {
		return s, err
	}
	e.where.Dies = append(e.where.Dies, die)
	e.die = e.where.Dies[0]
	return site{s.info, profile}, nil
}

// setUp makes a die as the configuration has it.
func (e *Engine) setUp(die *scheduler.Die, s site) (err error) {
	die.Device.SetLimit(e.cfg.hangTimeout(s.profile))
	die.Break = e.cfg.BreakKernel
	if die.Kernels.Matrices, err = s.matrices(&e.cfg, &die.Kernels); err != nil {
		return err
	}
	if die.Kernels.Tuned, err = e.cfg.tuned(s.info, s.profile, &die.Kernels); err != nil {
		e.warn(fmt.Errorf("%s runs without its tuning: %w", s.info.Name, err))
	}
	return nil
}

// dieOf is the device of a state buffer.
func (e *Engine) dieOf(b *shaders.Buffer) *scheduler.Die {
	if at := e.homes[b]; len(at) > 0 {
		return e.where.Dies[at[0]]
	}
	return e.die
}

// allocateState gives the state and the steps of generation their memory.
func (e *Engine) allocateState() error {
	if e.die == nil {
		return nil
	}
	e.homes = homes(e.model, e.state, e.where.Split)
	for _, b := range e.state.Buffers() {
		// Neither pages nor slots need clearing: nothing reads a position or a slot before writing it.
		die := e.dieOf(b)
		if err := die.Allocate(b, false); err != nil {
			return fmt.Errorf("state on %s (%d sequences, context %d): %w", die.Device.Info().Name, e.cfg.Slots, e.cfg.Context, err)
		}
	}
	if _, err := e.workspace(generation); err != nil {
		return err
	}
	for lane := 1; lane < e.cfg.lanes(e.where.Split); lane++ {
		if _, err := e.workspace(behind + lane - 1); err != nil {
			return err
		}
	}
	return nil
}

// newState lays out the state that the plan of the engine's memory has room for.
func (e *Engine) newState() {
	e.state = e.room.newState(e.model, &e.cfg)
	e.pool = kv.NewPool(e.cfg.kvPolicy(), kv.Need{Slots: e.state.Slots, Hot: e.state.Pages, Cold: e.state.ColdPages})
}

// Close ends all requests and frees everything. It is safe on an engine that failed to open.
func (e *Engine) Close() error {
	if e.batcher != nil {
		e.batcher.close()
	}
	if c := e.cache.Load(); c != nil {
		c.Flush()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	quiet := e.quiesce() == nil // else the device may still use whatever there is, the file's pages included
	if quiet {
		for _, p := range e.plans {
			p.runner.Close()
		}
		e.freeWorkspaces()
	}
	e.plans = nil
	var errs []error
	e.prefault.stop()
	for _, d := range e.where.Dies {
		// A cache that cannot be kept costs the next start some time, and is no reason to fail.
		_ = d.Device.SavePipelineCache()
		errs = append(errs, d.Close())
	}
	e.where.Dies, e.die = nil, nil
	if e.instance != nil {
		if n := e.instance.ValidationCount(); n > 0 {
			errs = append(errs, fmt.Errorf("the validation layers reported %d messages, first: %s", n, e.instance.ValidationMessages()[0]))
		}
		e.instance.Close()
		e.instance = nil
	}
	if e.file != nil && quiet {
		errs = append(errs, e.file.Close())
	}
	e.file = nil
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
func (e *Engine) Batch() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.Batch
}

// SetBatch changes the most rows of a step, 1 to 512. Results do not depend on it. A batch above any before needs
// more memory; if that does not fit, nothing is changed.
func (e *Engine) SetBatch(n int) error {
	if n < 1 || n > maxRows {
		return fmt.Errorf("batch of %d rows: use 1 to %d", n, maxRows)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	if err := e.reserve(n); err != nil {
		return err
	}
	e.cfg.Batch = n
	return nil
}

// DeviceStats are the devices' counters since they were opened, summed up; zero on the reference backend.
func (e *Engine) DeviceStats() (sum vk.Stats) {
	for _, d := range e.where.Dies {
		sum = sum.Add(d.Device.Stats())
	}
	return sum.Sub(e.before)
}

// DeviceInfo describes the device, the first of several; zero on the reference backend.
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
	return strings.Join(e.DeviceNames(), " + ")
}

// DeviceNames names the devices, none on the reference backend.
func (e *Engine) DeviceNames() (names []string) {
	for _, d := range e.where.Dies {
		names = append(names, d.Device.Info().String())
	}
	return names
}

// Split says where the layers are divided among several devices: the first layer of each but the first.
func (e *Engine) Split() []int { return slices.Clone(e.where.Split) }

// Software reports whether all devices are software implementations, or there is none.
func (e *Engine) Software() bool {
	return !slices.ContainsFunc(e.where.Dies, func(d *scheduler.Die) bool { return !d.Device.Profile().Software })
}
