package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/mapping"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A planner computes plans of a model on devices.
type planner struct {
	file    *gguf.File
	model   *model.Model
	cfg     Config // with a context
	slots   int
	info    vk.DeviceInfo // of the device, if vulkan
	profile vk.Profile
	devices []vk.DeviceInfo // that could be used instead
	vulkan  bool
}

// on makes the planner plan for a device.
func (p *planner) on(info vk.DeviceInfo) (err error) {
	p.vulkan, p.info = true, info
	p.profile, err = vk.ProfileFor(info, p.cfg.Profile)
	return err
}

// software reports whether the processor computes.
func (p *planner) software() bool { return !p.vulkan || p.profile.Software }

// plan computes the plan without advice.
func (p *planner) plan() *MemoryPlan {
	pages := pagesFor(p.cfg.Context)
	batch := p.cfg.batch(p.software())
	st := p.model.NewState(p.slots, p.slots*pages, p.cfg.KV == "f16")
	m := &MemoryPlan{
		Model: p.file.Name(), Arch: p.model.Arch, Layers: p.model.Layers, Backend: p.cfg.Backend, Device: referenceName,
		Software: p.software(), Unified: !p.vulkan || p.profile.Unified,
		Context: p.cfg.Context, ModelContext: p.model.Context, Slots: p.slots, Batch: batch, KVType: p.cfg.KV,
		Notes: []string{}, Advice: []string{},
	}
	var binding int64
	m.Weights, binding = p.weights()
	m.KV, m.State = p.state(pages, binding)
	need := stepNeeds(p.model, st, p.slots, pages, batch, p.vulkan)
	m.Scratch, m.Step, m.Results = need.Scratch, need.Step, need.Results
	m.AllLogits = logitNeeds(p.model, st, p.slots, pages, batch, p.vulkan).Total()
	if p.vulkan {
		m.Device = p.info.String()
		m.Staging = scheduler.LoadStaging(m.Weights.Uploaded)
	}
	w := &m.Weights
	m.Needed = w.Copied + w.Uploaded + w.Host + m.KV.Bytes + m.State.Bytes + m.Scratch + m.Step + m.Results + m.Staging
	m.Total = m.Needed + w.Imported
	m.Pools = p.pools(m)
	m.Fits = !slices.ContainsFunc(m.Pools, func(x MemoryPool) bool { return !x.fits() }) && m.reachable()
	m.MaxContext = m.maxContext()
	if m.Fits && w.Imported > 0 {
		if free := m.Pools[len(m.Pools)-1]; free.Available >= 0 && m.Total > free.Available {
			m.Notes = append(m.Notes, fmt.Sprintf(
				"the file's pages (%s) and the rest do not all fit in the %s that are available: pages will be read again from the disk",
				FormatBytes(w.Imported), FormatBytes(free.Available)))
		}
	}
	if miss := p.file.Missing(); len(miss) > 0 {
		m.Notes = append(m.Notes, "the model is incomplete: "+miss[0].Error())
	}
	return m
}

// reachable reports whether kernels can bind the state.
func (m *MemoryPlan) reachable() bool {
	return (m.KV.MaxPages == 0 || m.KV.Pages <= m.KV.MaxPages) && (m.State.MaxSlots == 0 || m.Slots <= m.State.MaxSlots)
}

// weights sums up the weights, and returns the most bytes that kernels can bind at once, 0 for no limit.
func (p *planner) weights() (WeightMemory, int64) {
	items := p.model.Weights
	var w WeightMemory
	var where []weights.Residency
	binding := int64(0)
	if p.vulkan {
		d := weights.Decide(p.file, items, p.cfg.caps(p.info, p.profile))
		where, binding = d.Residency, d.Binding()
	} else {
		where = mapped(items)
	}
	classes := map[model.Class]*WeightClass{}
	types := map[model.Class]map[string]int64{}
	for i, it := range items {
		n := it.Buf.Size
		w.Total += n
		switch where[i] {
		case weights.Imported:
			w.Imported += n
		case weights.Copied:
			w.Copied += n
		case weights.Uploaded:
			w.Uploaded += n
		case weights.HostOnly:
			w.Host += n
		}
		// A buffer that is made of parts of a tensor has its name and, in brackets, which part.
		name, _, _ := strings.Cut(it.Buf.Name, "[")
		c := model.ClassOf(name)
		if classes[c] == nil {
			classes[c], types[c] = &WeightClass{Class: string(c)}, map[string]int64{}
		}
		classes[c].Tensors++
		classes[c].Bytes += n
		types[c][typeName(p.file, name)] += n
	}
	for _, c := range model.Classes() {
		if classes[c] == nil {
			continue
		}
		for name, n := range types[c] {
			classes[c].Types = append(classes[c].Types, WeightType{name, n})
		}
		slices.SortFunc(classes[c].Types, func(a, b WeightType) int {
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Type, b.Type))
		})
		w.Classes = append(w.Classes, *classes[c])
	}
	for _, name := range p.model.Unused {
		if t, ok := p.file.Tensor(name); ok {
			w.NotUsed += t.Size
		}
	}
	return w, binding
}

// mapped says where weights.Map has items: in the file's pages where those serve.
func mapped(items []weights.Item) []weights.Residency {
	where := make([]weights.Residency, len(items))
	for i, it := range items {
		if it.Tensor == nil || it.Tensor.Size != it.Buf.Size || it.Tensor.Offset%4 != 0 {
			where[i] = weights.Copied
		}
	}
	return where
}

// typeName is the block type of a tensor of the file.
func typeName(f *gguf.File, name string) string {
	if t, ok := f.Tensor(name); ok {
		return t.Type.String()
	}
	return quant.F32.String()
}

// state sizes the state of all sequences, of which kernels bind a layer's buffers whole.
func (p *planner) state(pages int, binding int64) (KVMemory, StateMemory) {
	f16, all := p.cfg.KV == "f16", p.slots*pages
	page, slot := p.model.NewState(0, 1, f16), p.model.NewState(1, 0, f16)
	most := func(one *model.State) int {
		largest := int64(0)
		for _, b := range one.Buffers() {
			largest = max(largest, b.Size)
		}
		if binding == 0 || largest == 0 {
			return 0
		}
		return int(binding / largest)
	}
	return KVMemory{PageTokens: shaders.PageTokens, PageBytes: page.Bytes(), Pages: all, Bytes: page.Bytes() * int64(all), MaxPages: most(page)},
		StateMemory{SlotBytes: slot.Bytes(), Bytes: slot.Bytes() * int64(p.slots), MaxSlots: most(slot)}
}

// pagesFor is the number of pages that a sequence of n tokens takes.
func pagesFor(n int) int { return (n + shaders.PageTokens - 1) / shaders.PageTokens }

// availableMemory is mapping.Available, except in tests.
var availableMemory = mapping.Available

// pools finds out about the memory there is and what the plan takes of it. The last pool is the host's.
func (p *planner) pools(m *MemoryPlan) []MemoryPool {
	host := MemoryPool{Name: "memory of the machine", Size: -1, Available: availableMemory(), Source: "free or cached"}
	if host.Available < 0 {
		host.Source = "unknown"
	}
	if !p.vulkan {
		host.Needed = m.Needed
		return []MemoryPool{host}
	}
	local := m.Weights.Copied + m.Weights.Uploaded + m.KV.Bytes + m.State.Bytes + m.Scratch
	heaps := make([]int64, len(p.info.Heaps))
	for _, x := range []struct {
		use vk.MemoryUse
		n   int64
	}{{vk.DeviceLocal, local}, {vk.HostVisible, m.Step + m.Staging}, {vk.Readback, m.Results}} {
		if h := p.info.HeapFor(x.use); h >= 0 {
			heaps[h] += x.n
		}
	}
	host.Needed = m.Weights.Host
	var pools []MemoryPool
	for i, h := range p.info.Heaps {
		if p.info.Unified() || !h.DeviceLocal {
			host.Needed += heaps[i]
		}
		// A software device's heap is the machine's memory, and its size an invention: Mesa's says 2 GiB.
		if heaps[i] == 0 || p.profile.Software && h.Budget <= 0 {
			continue
		}
		x := MemoryPool{Name: fmt.Sprintf("device heap %d", i), Size: h.Size, Available: h.Free(), Source: "size of the heap", Needed: heaps[i]}
		if h.Budget > 0 {
			x.Source = "budget of the driver"
		}
		if !h.DeviceLocal {
			x.Name = fmt.Sprintf("host heap %d", i)
		}
		pools = append(pools, x)
	}
	return append(pools, host)
}

// loaded takes over where weights really went: what could not be imported was copied.
func (m *MemoryPlan) loaded(r weights.Report) {
	w := &m.Weights
	m.Needed += w.Imported - r.Imported
	w.Imported, w.Copied, w.Uploaded, w.Host = r.Imported, r.Copied, r.Uploaded, r.Host
}

// maxContext is the largest context that fits. A page more takes its bytes and a word of the step buffer for each
// sequence, which is taken to come from the same pool.
func (m *MemoryPlan) maxContext() int {
	pages := pagesFor(m.ModelContext)
	if m.KV.MaxPages > 0 {
		pages = min(pages, m.KV.MaxPages/m.Slots)
	}
	if m.State.MaxSlots > 0 && m.Slots > m.State.MaxSlots {
		return 0
	}
	per := int64(m.Slots) * (m.KV.PageBytes + 4)
	used := int64(m.KV.Pages) * (m.KV.PageBytes + 4)
	for _, x := range m.Pools {
		holdsKV := x.Needed >= m.KV.Bytes && m.KV.Bytes > 0
		switch {
		case x.Available < 0:
		case !holdsKV && !x.fits():
			return 0
		case holdsKV:
			pages = int(min(int64(pages), max(0, x.Available-(x.Needed-used))/per))
		}
	}
	return min(m.ModelContext, pages*shaders.PageTokens)
}

// planWithAdvice adds to a plan that does not fit what would make it fit.
func (p *planner) planWithAdvice() *MemoryPlan {
	m := p.plan()
	if m.Fits {
		return m
	}
	advise := func(format string, args ...any) { m.Advice = append(m.Advice, fmt.Sprintf(format, args...)) }
	try := func(change func(q *planner)) bool {
		q := *p
		change(&q)
		return q.plan().Fits
	}
	if m.MaxContext > 0 {
		advise("--ctx %d", m.MaxContext)
	}
	if p.cfg.Residency == weights.Copy && try(func(q *planner) { q.cfg.Residency = weights.Auto }) {
		advise("--residency %s", weights.Auto)
	}
	if m.KVType == "f32" && try(func(q *planner) { q.cfg.KV = "f16" }) {
		advise("--kv f16")
	}
	for b := bucket(m.Batch) / 2; b >= 1; b /= 2 {
		if try(func(q *planner) { q.cfg.Batch = b }) {
			advise("--batch %d", b)
			break
		}
	}
	if m.Slots > 1 {
		n := m.Slots
		for n /= 2; n >= 1 && !try(func(q *planner) { q.slots = n }); n /= 2 {
		}
		if n >= 1 {
			advise("--slots %d", n)
		}
	}
	for _, d := range p.devices {
		q := *p
		if d.Index != p.info.Index && len(d.Missing()) == 0 && q.on(d) == nil && q.plan().Fits {
			advise("--device %d (%s)", d.Index, d.Name)
		}
	}
	if len(m.Advice) == 0 {
		advise("a smaller model, or one in a smaller quantisation")
	}
	return m
}

// stepNeeds is what any step of at most batch rows takes, over all plans that generation makes.
func stepNeeds(m *model.Model, st *model.State, seqs, pages, batch int, aliased bool) scheduler.Needs {
	var n scheduler.Needs
	for rows := bucket(batch); rows >= 1; rows /= 2 {
		shape := shaders.StepShape{Rows: rows, Seqs: seqs, Outs: min(rows, seqs), Pages: pages}
		for _, opt := range []model.GraphOptions{{TopK: shaders.TopKMax}, {Logits: true}} {
			n = n.Max(needsOf(m, shape, st, opt, aliased))
		}
	}
	return n
}

// logitNeeds is what steps that deliver the logits of all their rows take.
func logitNeeds(m *model.Model, st *model.State, seqs, pages, batch int, aliased bool) scheduler.Needs {
	var n scheduler.Needs
	for rows := bucket(logitRows(m, batch)); rows >= 1; rows /= 2 {
		shape := shaders.StepShape{Rows: rows, Seqs: seqs, Outs: rows, Pages: pages}
		n = n.Max(needsOf(m, shape, st, model.GraphOptions{Logits: true}, aliased))
	}
	return n
}

// logitRows is how many rows of a step can deliver their logits: a power of two, or the batch.
func logitRows(m *model.Model, batch int) int {
	rows := 1
	for 2*rows*4*m.Vocab <= maxLogitBytes {
		rows *= 2
	}
	return min(batch, rows)
}

func needsOf(m *model.Model, shape shaders.StepShape, st *model.State, opt model.GraphOptions, aliased bool) scheduler.Needs {
	g, _ := m.Graph(shape, st, opt)
	if aliased {
		return scheduler.NeedsOf(g)
	}
	var n scheduler.Needs
	for _, b := range g.Buffers() {
		switch b.Kind {
		case shaders.Scratch:
			n.Scratch += b.Size
		case shaders.StepInput:
			n.Step += b.Size
		case shaders.Result:
			n.Results += b.Size
		}
	}
	return n
}
