package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// ErrDoesNotFit reports that a model needs more memory than there is. Nothing has been allocated then.
var ErrDoesNotFit = errors.New("not enough memory")

// ErrContext reports a context that the model is not made for.
var ErrContext = errors.New("context")

// referenceName is what stands for a device on the reference backend.
const referenceName = "reference (plain Go)"

// A MemoryPlan is what running a model takes, computed from its header alone. Sizes are bytes. It covers what
// generation uses; logits of every row of a step (perplexity, caldera logits) take more, see [MemoryPlan.AllLogits].
type MemoryPlan struct {
	Model    string `json:"model"` // file
	Arch     string `json:"arch"`
	Layers   int    `json:"layers"`
	Backend  string `json:"backend"` // "vulkan" or "reference"
	Device   string `json:"device"`
	Software bool   `json:"software"` // the device is the CPU
	Unified  bool   `json:"unified"`  // device and host share their memory

	Context      int    `json:"context"` // most tokens of a sequence
	ModelContext int    `json:"model_context"`
	Slots        int    `json:"slots"` // sequences at once
	Batch        int    `json:"batch"` // most rows of a step
	KVType       string `json:"kv_type"`

	Weights WeightMemory `json:"weights"`
	Dies    []DieMemory  `json:"devices"` // what lies on each device; none with the reference
	KV      KVMemory     `json:"kv"`
	State   StateMemory  `json:"state"`

	Scratch   int64 `json:"scratch"`    // intermediate values of a step, shared by all steps
	Snapshots int64 `json:"snapshots"`  // budget of the prefix cache, on the host
	Step      int64 `json:"step"`       // what the host tells a step
	Results   int64 `json:"results"`    // what the host reads after one
	Staging   int64 `json:"staging"`    // for transfers to a device with memory of its own, while loading
	AllLogits int64 `json:"all_logits"` // more, once logits of every row are asked for; in no sum

	Needed int64 `json:"needed"` // all of it but the file's own pages
	Total  int64 `json:"total"`

	Pools      []MemoryPool `json:"pools"`
	Fits       bool         `json:"fits"`
	MaxContext int          `json:"max_context"` // the largest context that fits with everything else as it is, 0 for none
	Notes      []string     `json:"notes"`       // what is worth knowing about a plan that fits
	Advice     []string     `json:"advice"`      // what would make it fit
}

// DieMemory is what lies on one device. Its layers are [FirstLayer, EndLayer); the first device has the embedding too, and the last
// the head.
type DieMemory struct {
	Device     string `json:"device"`
	FirstLayer int    `json:"first_layer"`
	EndLayer   int    `json:"end_layer"`

	Imported int64 `json:"imported"` // weights, as in WeightMemory
	Copied   int64 `json:"copied"`
	Uploaded int64 `json:"uploaded"`
	Host     int64 `json:"host"`
	KV       int64 `json:"kv"`
	State    int64 `json:"state"`
	Scratch  int64 `json:"scratch"`
	Step     int64 `json:"step"`
	Results  int64 `json:"results"`
	In       int64 `json:"rows_in"`  // hidden rows from the device before, in the host's reach
	Out      int64 `json:"rows_out"` // and for the one after
}

// Weights is the sum of the weights that the device reads.
func (d *DieMemory) Weights() int64 { return d.Imported + d.Copied + d.Uploaded }

// Total is all that the device reads and writes, pages of the file among it.
func (d *DieMemory) Total() int64 {
	return d.Weights() + d.KV + d.State + d.Scratch + d.Step + d.Results + d.In + d.Out
}

// needs takes in what steps need on each device.
func (m *MemoryPlan) needs(ns []scheduler.Needs) {
	m.Scratch, m.Step, m.Results = 0, 0, 0
	for i, n := range ns {
		m.Scratch, m.Step, m.Results = m.Scratch+n.Scratch, m.Step+n.Step+n.In, m.Results+n.Results+n.Out
		if i < len(m.Dies) {
			d := &m.Dies[i]
			d.Scratch, d.Step, d.Results, d.In, d.Out = n.Scratch, n.Step, n.Results, n.In, n.Out
		}
	}
}

// placeState takes in what state is on each device.
func (m *MemoryPlan) placeState(st *model.State, homes map[*shaders.Buffer][]int) {
	if len(m.Dies) == 0 {
		return
	}
	kv := map[*shaders.Buffer]bool{}
	for _, p := range append(st.PageViews(0), coldViews(st)...) {
		kv[p.Buf] = true
	}
	for _, b := range st.Buffers() {
		for _, i := range homes[b] {
			if kv[b] {
				m.Dies[i].KV += b.Size
			} else {
				m.Dies[i].State += b.Size
			}
		}
	}
}

// coldViews are views of the pools of cold pages, if there are any.
func coldViews(st *model.State) []shaders.View {
	if st.ColdPages == 0 {
		return nil
	}
	return st.PageViews(kv.Cold)
}

// WeightMemory is the weights by where they live and by what they are.
type WeightMemory struct {
	Total    int64         `json:"total"`
	Imported int64         `json:"imported"` // pages of the file that the device, or the reference, reads in place
	Copied   int64         `json:"copied"`   // in memory that host and device share
	Uploaded int64         `json:"uploaded"` // in memory of the device
	Host     int64         `json:"host"`     // kept by the host alone
	NotUsed  int64         `json:"not_used"` // tensors of the file that are not loaded; in no sum
	Classes  []WeightClass `json:"classes"`
}

// WeightClass is the weights of one class.
type WeightClass struct {
	Class   string       `json:"class"`
	Tensors int          `json:"tensors"`
	Bytes   int64        `json:"bytes"`
	Types   []WeightType `json:"types"` // the largest first
}

// WeightType is the weights of one block type.
type WeightType struct {
	Type  string `json:"type"`
	Bytes int64  `json:"bytes"`
}

// KVMemory is the pages of the attention layers.
type KVMemory struct {
	PageTokens int    `json:"page_tokens"`
	PageBytes  int64  `json:"page_bytes"` // of all layers
	Format     string `json:"format"`     // of these pages; cold ones have the type of the cache
	Pages      int    `json:"pages"`
	MaxPages   int    `json:"max_pages"` // that a layer can have: kernels bind its keys, and its values, whole; 0 no limit
	// ColdPages are those of a quantised cache for what has left the window.
	ColdPageBytes int64   `json:"cold_page_bytes"`
	ColdPages     int     `json:"cold_pages"`
	MaxColdPages  int     `json:"max_cold_pages"`
	Bytes         int64   `json:"bytes"`    // of all pages
	Contexts      float64 `json:"contexts"` // how many sequences could have a whole context at once
}

// StateMemory is the recurrent state of the delta-net layers.
type StateMemory struct {
	SlotBytes int64 `json:"slot_bytes"` // of a sequence
	Bytes     int64 `json:"bytes"`
	MaxSlots  int   `json:"max_slots"` // that a layer can have, likewise
}

// MemoryPool is one kind of memory, and what a plan takes of it.
type MemoryPool struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`      // -1 unknown
	Available int64  `json:"available"` // -1 unknown
	Source    string `json:"source"`    // where Available is from
	Margin    int64  `json:"margin"`    // of Available, to be left alone: below it there is memory pressure
	Needed    int64  `json:"needed"`
}

// fits reports whether what is needed is there. What is unknown is taken for enough.
func (p MemoryPool) fits() bool { return p.Available < 0 || p.Needed <= p.room() }

// room is what can be taken, if it is known.
func (p MemoryPool) room() int64 { return max(0, p.Available-p.Margin) }

// PlanMemory computes what opening a model with a configuration would take, and whether that fits. It reads the
// model's header and the properties of the devices, and allocates nothing of what it counts.
func PlanMemory(cfg Config) (*MemoryPlan, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	f, m, err := openHeader(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	defer f.Close()
	if err := cfg.resolveContext(m); err != nil {
		return nil, err
	}
	if err := cfg.checkKV(m); err != nil {
		return nil, err
	}
	p := planner{file: f, model: m, cfg: cfg}
	if cfg.Backend == Vulkan {
		in, err := vk.Open(vk.Config{AppName: "caldera"})
		if err != nil {
			return nil, err
		}
		defer in.Close()
		if err := p.place(in); err != nil {
			return nil, err
		}
	}
	if err := p.activations(); err != nil {
		return nil, err
	}
	if err := p.checkMatrices(); err != nil {
		return nil, err
	}
	return p.planToFit(), nil
}

// openHeader opens a model whose data need not be complete.
func openHeader(cfg Config) (*gguf.File, *model.Model, error) {
	var f *gguf.File
	var err error
	if cfg.Data != nil {
		f, err = gguf.OpenHeaderBytes(cfg.Name, cfg.Data)
	} else {
		f, err = gguf.OpenHeader(cfg.Path)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := model.New(f)
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, m, nil
}

// resolveContext fills in and checks the context for a model.
func (c *Config) resolveContext(m *model.Model) error {
	if c.Context == 0 {
		c.Context = min(4096, m.Context)
	}
	if c.Context < 1 || c.Context > m.Context {
		return fmt.Errorf("%w of %d tokens: the model is made for 1 to %d", ErrContext, c.Context, m.Context)
	}
	return nil
}

// batch is the most rows of a step, by default or as asked for.
func (c *Config) batch(software bool) int {
	switch {
	case c.Batch > 0:
		return c.Batch
	case software:
		return softwareRows
	}
	return maxRows
}

// caps is what deciding about weights has to know of a device.
func (c *Config) caps(info vk.DeviceInfo, p vk.Profile) weights.Caps {
	caps := weights.CapsOf(info, p, c.Residency)
	if c.window > 0 {
		caps.Window = min(caps.Window, c.window)
	}
	return caps
}

// fit plans the engine's memory with a planner that knows the device, and refuses what does not fit.
func (e *Engine) fit(p planner) error {
	p.file, p.model, p.cfg = e.file, e.model, e.cfg
	if err := p.activations(); err != nil {
		return err
	}
	if err := p.checkMatrices(); err != nil {
		return err
	}
	e.cfg.Batch = e.cfg.batch(p.software())
	e.planner = p
	e.room = p.planToFit()
	e.cfg.Slots, e.cfg.CacheRAM = e.room.Slots, e.room.Snapshots
	return e.room.Refusal()
}

// Memory returns the plan of the engine's memory, made before anything was allocated.
func (e *Engine) Memory() *MemoryPlan {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.room
}

// MemoryInUse returns what the devices' buffers use now, zero on the reference backend.
func (e *Engine) MemoryInUse() (sum vk.MemoryInUse) {
	for _, m := range e.MemoryByDevice() {
		sum = sum.Add(m)
	}
	return sum
}

// MemoryByDevice is MemoryInUse of each device.
func (e *Engine) MemoryByDevice() (all []vk.MemoryInUse) {
	for _, d := range e.where.Dies {
		all = append(all, d.Device.MemoryInUse())
	}
	return all
}

// Refusal is the error of a plan that does not fit, nil for one that does.
func (m *MemoryPlan) Refusal() error {
	if m.Fits {
		return nil
	}
	largest := "no context fits with these settings"
	if m.MaxContext > 0 {
		largest = fmt.Sprintf("the largest context that fits is %d", m.MaxContext)
	}
	i := slices.IndexFunc(m.Pools, func(x MemoryPool) bool { return !x.fits() })
	if i < 0 {
		return fmt.Errorf("%w: %s with %d times a context of %d needs %d pages of the attention cache and %d slots; kernels reach %d and %d on this device; %s; it would help: %s",
			ErrDoesNotFit, m.Model, m.Slots, m.Context, m.KV.Pages, m.Slots, m.KV.MaxPages, m.State.MaxSlots, largest, strings.Join(m.Advice, ", or "))
	}
	x := m.Pools[i]
	left := ""
	if x.Margin > 0 {
		left = fmt.Sprintf(", of which %s stay free", FormatBytes(x.Margin))
	}
	return fmt.Errorf("%w: %s with a context of %d needs %s of the %s and %s is available%s (%s); %s; it would help: %s",
		ErrDoesNotFit, m.Model, m.Context, FormatBytes(x.Needed), x.Name, FormatBytes(x.Available), left, m.parts(), largest, strings.Join(m.Advice, ", or "))
}

// Resident is what is needed once the model is loaded.
func (m *MemoryPlan) Resident() int64 { return m.Needed - m.Staging }

// parts lists what memory is needed for.
func (m *MemoryPlan) parts() string {
	var ws []string
	for _, x := range []struct {
		n    int64
		name string
	}{{m.Weights.Imported, "imported"}, {m.Weights.Copied, "copied"}, {m.Weights.Uploaded, "uploaded"}, {m.Weights.Host, "on the host"}} {
		if x.n > 0 {
			ws = append(ws, FormatBytes(x.n)+" "+x.name)
		}
	}
	s := fmt.Sprintf("weights %s, KV %s, state %s, scratch %s", strings.Join(ws, " and "),
		FormatBytes(m.KV.Bytes), FormatBytes(m.State.Bytes), FormatBytes(m.Scratch+m.Step+m.Results+m.Staging))
	if m.Snapshots > 0 && !m.Fits {
		s += ", prefix cache " + FormatBytes(m.Snapshots)
	}
	return s
}

// String is the plan in one line.
func (m *MemoryPlan) String() string {
	if !m.Fits {
		return "memory: " + m.parts() + "; does not fit"
	}
	x := m.Pools[0]
	for _, y := range m.Pools {
		if y.Available >= 0 && y.Needed > x.Needed {
			x = y
		}
	}
	if x.Available < 0 || len(m.Notes) > 0 {
		return "memory: " + m.parts() // the notes say what there is to say
	}
	return fmt.Sprintf("memory: %s; fits in %s", m.parts(), FormatBytes(x.Available))
}

// FormatBytes renders a number of bytes for people.
func FormatBytes(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}
