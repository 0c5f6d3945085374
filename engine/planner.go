package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/ladder"
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
	cfg     Config        // with a context
	held    *MemoryPlan   // what the engine takes now and gives back first, or nil
	share   int           // of pages for all sequences together, in parts of a context; 0 for a whole one each
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
	shape := p.shape()
	st := p.model.NewState(shape)
	m := &MemoryPlan{
		Model: p.file.Name(), Arch: p.model.Arch, Layers: p.model.Layers, Backend: p.cfg.Backend, Device: referenceName,
		Software: p.software(), Unified: !p.vulkan || p.profile.Unified,
		Context: p.cfg.Context, ModelContext: p.model.Context, Slots: shape.Slots, Batch: batch, KVType: p.cfg.KV,
		Notes: []string{}, Advice: []string{},
	}
	var binding int64
	m.Weights, binding = p.weights()
	m.KV, m.State = p.state(shape, binding)
	need := stepNeeds(p.model, st, pages, batch, p.vulkan)
	if shape.ColdPages > 0 {
		need = need.Add(needsOf(p.model.EncodeGraph(st.Slots, st), p.vulkan))
	}
	m.Scratch, m.Step, m.Results = need.Scratch, need.Step, need.Results
	m.AllLogits = logitNeeds(p.model, st, pages, batch, p.vulkan).Total()
	m.Snapshots = p.cfg.CacheRAM
	if p.vulkan {
		m.Device = p.info.String()
		m.Staging = scheduler.LoadStaging(m.Weights.Uploaded)
	}
	w := &m.Weights
	m.Needed = w.Copied + w.Uploaded + w.Host + m.KV.Bytes + m.State.Bytes + m.Scratch + m.Step + m.Results + m.Staging + m.Snapshots
	m.Total = m.Needed + w.Imported
	m.Pools = p.pools(m)
	if p.held != nil {
		for i := range m.Pools {
			for _, x := range p.held.Pools {
				if y := &m.Pools[i]; x.Name == y.Name && y.Available >= 0 && y.Source != configured {
					y.Available += x.Needed
				}
			}
		}
	}
	m.Fits = !slices.ContainsFunc(m.Pools, func(x MemoryPool) bool { return !x.fits() }) && m.reachable()
	m.MaxContext = p.maxContext(m)
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
	return (m.KV.MaxPages == 0 || m.KV.Pages <= m.KV.MaxPages) && (m.KV.MaxColdPages == 0 || m.KV.ColdPages <= m.KV.MaxColdPages) &&
		(m.State.MaxSlots == 0 || m.Slots <= m.State.MaxSlots)
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

// configured is the source of what is available by the configuration.
const configured = "as configured"

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

// contextParts is how finely pages are shared out where there are not enough for a whole context of every sequence.
const contextParts = 16

// shape is how much state there is.
func (p *planner) shape() model.StateShape {
	need := p.cfg.kvPolicy().Need(p.cfg.Context)
	share := p.share
	if share == 0 {
		share = p.cfg.Slots * contextParts
	}
	part := func(pages int) int { return (pages*share + contextParts - 1) / contextParts }
	hot, cold := p.cfg.formats()
	return model.StateShape{Slots: p.cfg.Slots, Pages: part(need.Hot), ColdPages: part(need.Cold), KV: hot, ColdKV: cold}
}

// state sizes the state of all sequences, of which kernels bind a layer's buffers whole.
func (p *planner) state(shape model.StateShape, binding int64) (KVMemory, StateMemory) {
	most := func(views []shaders.View) int {
		largest := int64(0)
		for _, v := range views {
			largest = max(largest, v.Len)
		}
		if binding == 0 || largest == 0 {
			return 0
		}
		return int(binding / largest)
	}
	one := shape
	one.Slots, one.Pages = 1, 1
	if shape.ColdPages > 0 {
		one.ColdPages = 1
	}
	st := p.model.NewState(one)
	k := KVMemory{
		PageTokens: shaders.PageTokens, PageBytes: p.model.PageBytes(shape.KV), Format: shape.KV.String(), Pages: shape.Pages, MaxPages: most(st.PageViews(0)),
		Contexts: float64(shape.Pages) / float64(max(1, p.cfg.kvPolicy().Need(p.cfg.Context).Hot)),
	}
	k.Bytes = k.PageBytes * int64(shape.Pages)
	if shape.ColdPages > 0 {
		k.ColdPageBytes, k.ColdPages, k.MaxColdPages = p.model.PageBytes(shape.ColdKV), shape.ColdPages, most(st.PageViews(kv.Cold))
		k.Bytes += k.ColdPageBytes * int64(shape.ColdPages)
	}
	slot := p.model.SlotBytes()
	return k, StateMemory{SlotBytes: slot, Bytes: slot * int64(shape.Slots), MaxSlots: most(st.SlotViews(0))}
}

// newState lays out the state that the plan has room for.
func (m *MemoryPlan) newState(mod *model.Model, c *Config) *model.State {
	hot, cold := c.formats()
	return mod.NewState(model.StateShape{Slots: m.Slots, Pages: m.KV.Pages, ColdPages: m.KV.ColdPages, KV: hot, ColdKV: cold})
}

// pagesFor is the number of pages that a sequence of n tokens takes.
func pagesFor(n int) int { return (n + shaders.PageTokens - 1) / shaders.PageTokens }

// The memory of the machine, except in tests.
var (
	availableMemory = mapping.Available
	totalMemory     = mapping.Total
)

// margin is what is to be left of a limit for the memory ladder not to begin with giving things up.
func margin(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	return ladder.Marks{}.Low(limit)
}

// pools finds out about the memory there is and what the plan takes of it. The last pool is the host's.
func (p *planner) pools(m *MemoryPlan) []MemoryPool {
	host := MemoryPool{Name: "memory of the machine", Size: totalMemory(), Available: availableMemory(), Source: "free or cached"}
	host.Margin = margin(host.Size)
	if host.Available < 0 {
		host.Source = "unknown"
	}
	var pools []MemoryPool
	if limit := p.cfg.MemoryLimit; limit > 0 {
		pools = append(pools, MemoryPool{Name: "memory limit", Size: limit, Available: limit, Margin: margin(limit), Source: configured, Needed: m.Needed})
	}
	if !p.vulkan {
		host.Needed = m.Needed
		return append(pools, host)
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
	host.Needed = m.Weights.Host + m.Snapshots
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
			x.Source, x.Margin = "budget of the driver", margin(h.Budget)
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

// maxContext is the largest context that fits with everything else as it is, in whole pages: for every sequence, or
// for one where sequences share pages. A longer context takes
// pages, and words of the step buffer for each, which are taken to come from the same pool of memory.
func (p *planner) maxContext(m *MemoryPlan) int {
	if m.State.MaxSlots > 0 && m.Slots > m.State.MaxSlots {
		return 0
	}
	bytes := func(k kv.Need) int64 {
		return int64(k.Hot)*m.KV.PageBytes + int64(k.Cold)*m.KV.ColdPageBytes
	}
	fits := func(pages int) bool {
		k := p.cfg.kvPolicy().Need(min(pages*shaders.PageTokens, m.ModelContext))
		if p.share == 0 {
			k.Hot, k.Cold = k.Hot*m.Slots, k.Cold*m.Slots
		}
		if m.KV.MaxPages > 0 && k.Hot > m.KV.MaxPages || m.KV.MaxColdPages > 0 && k.Cold > m.KV.MaxColdPages {
			return false
		}
		more := bytes(k) - m.KV.Bytes + 4*int64(m.Slots)*int64(pages-pagesFor(m.Context))
		for _, x := range m.Pools {
			need := x.Needed
			if x.Needed >= m.KV.Bytes && m.KV.Bytes > 0 {
				need += more
			}
			if x.Available >= 0 && need > x.room() {
				return false
			}
		}
		return true
	}
	lo, hi := 0, pagesFor(m.ModelContext)+1 // lo fits, hi does not
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return min(m.ModelContext, lo*shaders.PageTokens)
}

// planToFit computes a plan that fits, if there is one: when there is not enough memory for what was asked, sequences
// share fewer pages, then fewer of them run at a time, and at last the prefix cache gets less, if it may. A context of
// one sequence, its type of cache and the batch are as asked for.
func (p *planner) planToFit() *MemoryPlan {
	m := p.planToShare()
	for q := *p; !m.Fits && q.cfg.CacheMayShrink && q.cfg.CacheRAM > 0; {
		if q.cfg.CacheRAM /= 2; q.cfg.CacheRAM < 1<<20 {
			q.cfg.CacheRAM = 0
		}
		if less := q.planToShare(); less.Fits {
			less.Notes = append(less.Notes, fmt.Sprintf("there is room for a prefix cache of %s, not of %s", FormatBytes(less.Snapshots), FormatBytes(m.Snapshots)))
			return less
		}
	}
	return m
}

// planToShare is planToFit with the prefix cache that was asked for.
func (p *planner) planToShare() *MemoryPlan {
	first := p.plan()
	if first.Fits || p.cfg.Slots == 1 {
		return p.planWithAdvice()
	}
	for q := *p; ; q.cfg.Slots = (q.cfg.Slots + 1) / 2 {
		lo, hi := contextParts-1, q.cfg.Slots*contextParts // hi is not known to fit
		fits := func(share int) bool { q.share = share; return q.plan().Fits }
		if fits(hi) {
			lo = hi
		}
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; fits(mid) {
				lo = mid
			} else {
				hi = mid
			}
		}
		if lo >= contextParts {
			q.share = lo
			m := q.plan()
			m.Notes = append(m.Notes, fmt.Sprintf("there is no room for %d whole contexts: %d sequences at a time share the pages of %.1f",
				p.cfg.Slots, m.Slots, m.KV.Contexts))
			return m
		}
		if q.cfg.Slots == 1 {
			return p.planWithAdvice()
		}
	}
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
	for _, f := range []string{"f16", "q8_0", "q4_0"} {
		if f != m.KVType && p.cfg.colder(f) && p.model.CheckKV(formatOf(f)) == nil && try(func(q *planner) { q.cfg.KV = f }) {
			advise("--kv %s", f)
			break
		}
	}
	for b := bucket(m.Batch) / 2; b >= 1; b /= 2 {
		if try(func(q *planner) { q.cfg.Batch = b }) {
			advise("--batch %d", b)
			break
		}
	}
	if m.Slots > 1 {
		n := m.Slots
		for n /= 2; n >= 1 && !try(func(q *planner) { q.cfg.Slots = n }); n /= 2 {
		}
		if n >= 1 {
			advise("--slots %d", n)
		}
	}
	if m.Snapshots > 0 && try(func(q *planner) { q.cfg.CacheRAM = 0 }) {
		advise("--cache-ram 0")
	}
	for _, d := range p.devices {
		q := *p
		if d.Index != p.info.Index && len(d.Missing()) == 0 && q.on(d) == nil && q.plan().Fits {
			advise("--device %d (%s)", d.Index, d.Name)
		}
	}
	if len(m.Advice) == 0 {
		if flags := p.together(); flags != "" {
			advise("%s", flags)
		} else {
			advise("a smaller model, or one in a smaller quantisation")
		}
	}
	return m
}

// together are flags that make the plan fit when no single one does, from what is missed the least on; empty if none do.
func (p *planner) together() string {
	q := *p
	var flags []string
	for _, x := range []struct {
		flag   string
		helps  bool
		change func()
	}{
		{"--cache-ram 0", q.cfg.CacheRAM > 0, func() { q.cfg.CacheRAM = 0 }},
		{"--slots 1", q.cfg.Slots > 1, func() { q.cfg.Slots, q.share = 1, 0 }},
		{"--batch 16", q.cfg.batch(q.software()) > 16, func() { q.cfg.Batch = 16 }},
	} {
		if !x.helps {
			continue
		}
		x.change()
		flags = append(flags, x.flag)
		switch m := q.plan(); {
		case m.Fits:
			return strings.Join(flags, " ")
		case m.MaxContext > 0:
			return fmt.Sprintf("%s --ctx %d", strings.Join(flags, " "), m.MaxContext)
		}
	}
	return ""
}

// formatOf is the format of a name that has been checked.
func formatOf(name string) shaders.KVFormat {
	f, _ := shaders.ParseKVFormat(name)
	return f
}

// colder reports whether a type of cache takes less memory than the configuration's.
func (c *Config) colder(name string) bool {
	return formatOf(name).PageBytes(32) < formatOf(c.KV).PageBytes(32)
}

// stepNeeds is what any step of at most batch rows takes, over all plans that generation makes.
func stepNeeds(m *model.Model, st *model.State, pages, batch int, aliased bool) scheduler.Needs {
	var n scheduler.Needs
	for rows := bucket(batch); rows >= 1; rows /= 2 {
		seqs := min(rows, st.Slots)
		shape := shaders.StepShape{Rows: rows, Seqs: seqs, Outs: seqs, Pages: pages}
		// Logits that nobody reads are scratch.
		for _, opt := range []model.GraphOptions{{Logits: true, TopK: shaders.TopKMax}, {TopK: shaders.TopKMax}, {Hidden: true}} {
			g, _ := m.Graph(shape, st, opt)
			n = n.Max(needsOf(g, aliased))
		}
	}
	return n
}

// logitNeeds is what steps that deliver the logits of all their rows take.
func logitNeeds(m *model.Model, st *model.State, pages, batch int, aliased bool) scheduler.Needs {
	var n scheduler.Needs
	for rows := bucket(logitRows(m, batch)); rows >= 1; rows /= 2 {
		shape := shaders.StepShape{Rows: rows, Seqs: min(rows, st.Slots), Outs: rows, Pages: pages}
		g, _ := m.Graph(shape, st, model.GraphOptions{Logits: true})
		n = n.Max(needsOf(g, aliased))
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

func needsOf(g *scheduler.Graph, aliased bool) scheduler.Needs {
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
