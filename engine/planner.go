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
	cfg     Config          // with a context
	held    *MemoryPlan     // what the engine takes now and gives back first, or nil
	share   int             // of pages for all sequences together, in parts of a context; 0 for a whole one each
	sites   []site          // the devices; none is the reference
	split   scheduler.Split // of the layers among them
	devices []vk.DeviceInfo // that could be used instead
}

// A site is a device that a plan puts layers on.
type site struct {
	info    vk.DeviceInfo
	profile vk.Profile
}

// on makes the planner plan for a device.
func (p *planner) on(info vk.DeviceInfo) error {
	profile, err := vk.ProfileFor(info, p.cfg.Profile)
	p.sites, p.split = []site{{info, profile}}, nil
	return err
}

// vulkan reports whether the model will run on devices.
func (p *planner) vulkan() bool { return len(p.sites) > 0 }

// software reports whether the processor computes.
func (p *planner) software() bool {
	return !slices.ContainsFunc(p.sites, func(s site) bool { return !s.profile.Software })
}

// unified reports whether all devices share the host's memory.
func (p *planner) unified() bool {
	return !slices.ContainsFunc(p.sites, func(s site) bool { return !s.profile.Unified })
}

// plan computes the plan without advice.
func (p *planner) plan() *MemoryPlan {
	pages := pagesFor(p.cfg.Context)
	batch := p.cfg.batch(p.software())
	shape := p.shape()
	st := p.model.NewState(shape)
	m := &MemoryPlan{
		Model: p.file.Name(), Arch: p.model.Arch, Layers: p.model.Layers, Backend: p.cfg.Backend, Device: referenceName,
		Software: p.software(), Unified: p.unified(),
		Context: p.cfg.Context, ModelContext: p.model.Context, Slots: shape.Slots, Batch: batch, KVType: p.cfg.KV,
		Notes: []string{}, Advice: []string{},
	}
	homes := homes(p.model, st, p.split)
	var bindings []int64
	m.Weights, m.Dies, bindings = p.weights(homes)
	m.KV, m.State = p.state(shape, homes, bindings)
	needs := stepNeeds(p.model, st, p.split, pages, batch, p.vulkan())
	for i := range needs {
		for range p.cfg.lanes(p.split) - 1 {
			needs[i] = needs[i].Add(needs[i].Beside())
		}
	}
	if shape.ColdPages > 0 {
		needs = addNeeds(needs, needsOf(p.model.EncodeGraph(st.Slots, st), p.split, p.vulkan()))
	}
	m.needs(needs)
	m.AllLogits = totalNeeds(logitNeeds(p.model, st, p.split, pages, batch, p.vulkan()))
	m.Snapshots = p.cfg.CacheRAM
	m.placeState(st, homes)
	if p.vulkan() {
		m.Device = ""
		for i, s := range p.sites {
			if i > 0 {
				m.Device += " + "
			}
			m.Device += s.info.String()
			m.Staging += scheduler.LoadStaging(m.Dies[i].Uploaded)
		}
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

// weights sums up the weights, together and by device, and returns the most bytes that kernels can bind at once on each, 0 for no limit.
func (p *planner) weights(homes map[*shaders.Buffer][]int) (w WeightMemory, dies []DieMemory, bindings []int64) {
	items := p.model.Weights
	count := func(d *DieMemory, items []weights.Item, where []weights.Residency) {
		for i, it := range items {
			n := it.Buf.Size
			w.Total += n
			switch where[i] {
			case weights.Imported:
				d.Imported += n
			case weights.Copied:
				d.Copied += n
			case weights.Uploaded:
				d.Uploaded += n
			case weights.HostOnly:
				d.Host += n
			}
		}
		w.Imported, w.Copied, w.Uploaded, w.Host = w.Imported+d.Imported, w.Copied+d.Copied, w.Uploaded+d.Uploaded, w.Host+d.Host
	}
	for i, s := range p.sites {
		d := DieMemory{Device: s.info.String()}
		d.FirstLayer, d.EndLayer = p.split.Range(i, p.model.Layers)
		mine := itemsOf(items, homes, i)
		decision := weights.Decide(p.file, mine, p.cfg.caps(s.info, s.profile))
		count(&d, mine, decision.Residency)
		dies, bindings = append(dies, d), append(bindings, decision.Binding())
	}
	if !p.vulkan() {
		count(&DieMemory{}, items, mapped(items))
	}
	classes := map[model.Class]*WeightClass{}
	types := map[model.Class]map[string]int64{}
	for _, it := range items {
		n := it.Buf.Size
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
	return w, dies, bindings
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
func (p *planner) state(shape model.StateShape, homes map[*shaders.Buffer][]int, bindings []int64) (KVMemory, StateMemory) {
	// The largest of a layer bounds how many there may be, on the device that it is on.
	most := func(views []shaders.View) (n int) {
		for _, v := range views {
			for i, binding := range bindings {
				if at := homes[v.Buf]; binding == 0 || v.Len == 0 || len(at) > 0 && !slices.Contains(at, i) {
					continue
				}
				if k := int(binding / v.Len); n == 0 || k < n {
					n = k
				}
			}
		}
		return n
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
	if !p.vulkan() {
		host.Needed = m.Needed
		return append(pools, host)
	}
	host.Needed = m.Weights.Host + m.Snapshots
	var known []MemoryPool // heaps of devices, of which a device may be there twice
	for i, s := range p.sites {
		d := &m.Dies[i]
		if limit := p.cfg.deviceLimit(i); limit > 0 {
			pools = append(pools, MemoryPool{Name: fmt.Sprintf("limit of device %d", i), Size: limit, Available: limit, Source: configured, Needed: d.Total()})
		}
		heaps := make([]int64, len(s.info.Heaps))
		for _, x := range []struct {
			use vk.MemoryUse
			n   int64
		}{
			{vk.DeviceLocal, d.Copied + d.Uploaded + d.KV + d.State + d.Scratch},
			{vk.HostVisible, d.Step + d.In + scheduler.LoadStaging(d.Uploaded)}, {vk.Readback, d.Results + d.Out},
		} {
			if h := s.info.HeapFor(x.use); h >= 0 {
				heaps[h] += x.n
			}
		}
		for j, h := range s.info.Heaps {
			if s.info.Unified() || !h.DeviceLocal {
				host.Needed += heaps[j]
			}
			// A software device's heap is the machine's memory, and its size an invention: Mesa's says 2 GiB.
			if heaps[j] == 0 || s.profile.Software && h.Budget <= 0 {
				continue
			}
			x := MemoryPool{Name: fmt.Sprintf("device heap %d", j), Size: h.Size, Available: h.Free(), Source: "size of the heap", Needed: heaps[j]}
			if h.Budget > 0 {
				x.Source, x.Margin = "budget of the driver", margin(h.Budget)
			}
			if !h.DeviceLocal {
				x.Name = fmt.Sprintf("host heap %d", j)
			}
			if len(p.sites) > 1 {
				x.Name = fmt.Sprintf("device %d's %s", s.info.Index, x.Name)
			}
			if k := slices.IndexFunc(known, func(y MemoryPool) bool { return y.Name == x.Name }); k >= 0 {
				known[k].Needed += x.Needed
				continue
			}
			known = append(known, x)
		}
	}
	return append(append(pools, known...), host)
}

// loaded takes over where weights really went: what could not be imported was copied.
func (m *MemoryPlan) loaded(rs []weights.Report) {
	w := &m.Weights
	m.Needed += w.Imported
	w.Imported, w.Copied, w.Uploaded, w.Host = 0, 0, 0, 0
	for i, r := range rs {
		w.Imported, w.Copied, w.Uploaded, w.Host = w.Imported+r.Imported, w.Copied+r.Copied, w.Uploaded+r.Uploaded, w.Host+r.Host
		d := &m.Dies[i]
		d.Imported, d.Copied, d.Uploaded, d.Host = r.Imported, r.Copied, r.Uploaded, r.Host
	}
	m.Needed -= w.Imported
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
		if !slices.ContainsFunc(p.sites, func(s site) bool { return s.info.Index == d.Index }) && len(d.Missing()) == 0 && q.on(d) == nil && q.plan().Fits {
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

// logitRows is how many rows of a step can deliver their logits: a power of two, or the batch.
func logitRows(m *model.Model, batch int) int {
	rows := 1
	for 2*rows*4*m.Vocab <= maxLogitBytes {
		rows *= 2
	}
	return min(batch, rows)
}
