package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// MaxDevices bounds the devices of an engine.
const MaxDevices = 16

// SplitAuto divides the layers by what the devices are measured to do and by what fits them.
const SplitAuto = "auto"

// lanes is how many steps are under way together, at most one for each device.
func (c *Config) lanes(s scheduler.Split) int {
	if c.UnderWay > 0 {
		return min(c.UnderWay, s.Dies())
	}
	return s.Dies()
}

// deviceLimit is the most bytes that device i may take, its pages of the model file among them; 0 for no limit.
func (c *Config) deviceLimit(i int) int64 {
	if i < len(c.DeviceLimits) {
		return c.DeviceLimits[i]
	}
	return 0
}

// homes says which devices read and write each weight and state buffer; see [scheduler.Split.Homes].
func homes(m *model.Model, st *model.State, s scheduler.Split) map[*shaders.Buffer][]int {
	g, _ := m.Graph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1}, st, model.GraphOptions{TopK: 1})
	return s.Homes(g)
}

// itemsOf are the weights that device i has. What no kernel reads is the first's.
func itemsOf(items []weights.Item, homes map[*shaders.Buffer][]int, i int) (mine []weights.Item) {
	for _, it := range items {
		if at := homes[it.Buf]; i == 0 && len(at) == 0 || slices.Contains(at, i) {
			mine = append(mine, it)
		}
	}
	return mine
}

// place makes the planner plan for the devices that the configuration names, with the split that it asks for.
func (p *planner) place(in *vk.Instance) error {
	infos, err := in.SelectAll(p.cfg.Device)
	if err != nil {
		return err
	}
	if len(infos) > MaxDevices {
		return fmt.Errorf("%d devices: use at most %d", len(infos), MaxDevices)
	}
	p.sites = nil
	for _, info := range infos {
		profile, err := vk.ProfileFor(info, p.cfg.Profile)
		if err != nil {
			return err
		}
		p.sites = append(p.sites, site{info, profile})
	}
	p.devices = in.Devices()
	if len(p.cfg.DeviceLimits) > len(infos) {
		return fmt.Errorf("memory limits of %d devices, and %d devices", len(p.cfg.DeviceLimits), len(infos))
	}
	if len(infos) > p.model.Layers {
		return fmt.Errorf("%d devices for %d layers", len(infos), p.model.Layers)
	}
	switch {
	case len(infos) == 1:
		if p.cfg.Split != "" && p.cfg.Split != SplitAuto {
			return fmt.Errorf("split %q: there is one device; name several, as in --device A,B", p.cfg.Split)
		}
		p.split = nil
	case p.cfg.Split == "" || p.cfg.Split == SplitAuto:
		p.split, err = p.balance(in)
	default:
		p.split, err = parseSplit(p.cfg.Split, len(infos), p.model.Layers)
	}
	return err
}

// parseSplit reads a split of so many layers: the first layer of each device but the first ("20"), or the share of each ("0.5,0.5").
func parseSplit(text string, devices, layers int) (scheduler.Split, error) {
	bad := func(why string) (scheduler.Split, error) {
		return nil, fmt.Errorf("split %q: %s; give the first layer of each device but the first (as in 20), the share of each device (as in 0.5,0.5), or %s",
			text, why, SplitAuto)
	}
	fields := strings.Split(text, ",")
	var values []float64
	shares := strings.Contains(text, ".")
	for _, f := range fields {
		v, err := strconv.ParseFloat(strings.TrimSpace(f), 64)
		if err != nil || math.IsNaN(v) || v < 0 || v > 1e6 {
			return bad(fmt.Sprintf("%q is not a number of layers, nor a share", f))
		}
		values = append(values, v)
	}
	var s scheduler.Split
	switch {
	case shares && len(fields) == devices:
		sum, at := 0.0, 0.0
		for _, v := range values {
			sum += v
		}
		if sum <= 0 {
			return bad("the shares add up to nothing")
		}
		for _, v := range values[:devices-1] {
			at += v / sum * float64(layers)
			s = append(s, int(math.Round(at)))
		}
	case !shares && len(fields) == devices-1:
		for _, v := range values {
			s = append(s, int(v))
		}
	default:
		return bad(fmt.Sprintf("it does not suit %d devices", devices))
	}
	if err := s.Check(layers); err != nil {
		return bad(err.Error())
	}
	return s, nil
}

// balance divides the layers so that the slowest device is done as early as can be, by measured speed, with what it has of memory.
func (p *planner) balance(in *vk.Instance) (scheduler.Split, error) {
	if err := p.activations(); err != nil {
		return nil, err
	}
	speeds, err := p.speeds(in)
	if err != nil {
		return nil, err
	}
	work, bytes := p.layerCosts()
	room := make([]int64, len(p.sites))
	for i, s := range p.sites {
		room[i] = math.MaxInt64
		if h := s.info.HeapFor(vk.DeviceLocal); h >= 0 && (!s.profile.Software || s.info.Heaps[h].Budget > 0) {
			room[i] = max(0, s.info.Heaps[h].Free()-margin(s.info.Heaps[h].Size))
		}
		if limit := p.cfg.deviceLimit(i); limit > 0 {
			room[i] = min(room[i], limit)
		}
	}
	// Steps take memory too, about the same however the layers are divided.
	half := make(scheduler.Split, len(p.sites)-1)
	for i := range half {
		half[i] = (i + 1) * p.model.Layers / len(p.sites)
	}
	st := p.model.NewState(p.shape())
	for i, n := range stepNeeds(p.model, st, half, pagesFor(p.cfg.Context), p.cfg.batch(p.software()), true) {
		if room[i] < math.MaxInt64 {
			room[i] = max(0, room[i]-n.Total()-n.Beside().Total())
		}
	}
	if s := balanced(work, bytes, speeds, room); s != nil {
		return s, nil
	}
	// Nothing fits; the plan says what does not, and what would help.
	unbounded := slices.Repeat([]int64{math.MaxInt64}, len(p.sites))
	return balanced(work, bytes, speeds, unbounded), nil
}

// layerCosts is what each layer reads in a step of decoding and what it takes of memory, in bytes. The first layer has the embedding
// too, and the last one the head.
func (p *planner) layerCosts() (work []float64, bytes []int64) {
	n := p.model.Layers
	work, bytes = make([]float64, n), make([]int64, n)
	st := p.model.NewState(p.shape())
	g, _ := p.model.Graph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: pagesFor(p.cfg.Context)}, st, model.GraphOptions{TopK: 1})
	seen := map[int]map[*shaders.Buffer]bool{}
	for _, node := range g.Nodes {
		l := min(max(node.Layer, 0), n-1)
		c := node.Op.Cost()
		work[l] += float64(c.Weights + c.Bytes)
		if seen[l] == nil {
			seen[l] = map[*shaders.Buffer]bool{}
		}
		for _, o := range node.Op.Operands() {
			if k := o.Buf.Kind; (k == shaders.Weight || k == shaders.State) && !seen[l][o.Buf] {
				seen[l][o.Buf] = true
				bytes[l] += o.Buf.Size
			}
		}
	}
	return work, bytes
}

// balanced is the split with the shortest time of the slowest device among those that fit; nil if none does. Of splits that are as
// good the first devices get more.
func balanced(work []float64, bytes []int64, speeds []float64, room []int64) scheduler.Split {
	n, dies := len(work), len(speeds)
	// best[d][l] is the least time of the slowest when dies [0, d] have layers [0, l), and from[d][l] where die d begins.
	best, from := make([][]float64, dies), make([][]int, dies)
	for d := range dies {
		best[d], from[d] = make([]float64, n+1), make([]int, n+1)
		for l := range best[d] {
			best[d][l] = math.Inf(1)
		}
		for l := d + 1; l <= n; l++ {
			w, b := 0.0, int64(0)
			for first := l - 1; first >= d; first-- {
				w, b = w+work[first], b+bytes[first]
				if b > room[d] {
					break
				}
				before := 0.0
				switch {
				case d == 0 && first > 0:
					continue
				case d > 0:
					before = best[d-1][first]
				}
				if t := max(before, w/speeds[d]); t < best[d][l] {
					best[d][l], from[d][l] = t, first
				}
			}
		}
	}
	if math.IsInf(best[dies-1][n], 1) {
		return nil
	}
	s := make(scheduler.Split, dies-1)
	for d, l := dies-1, n; d > 0; d-- {
		l = from[d][l]
		s[d-1] = l
	}
	return s
}

// speeds measures the devices, in bytes of weights a second. Devices of a kind are measured once.
func (p *planner) speeds(in *vk.Instance) ([]float64, error) {
	speeds := make([]float64, len(p.sites))
	for i, s := range p.sites {
		if j := slices.IndexFunc(p.sites[:i], func(t site) bool { return t.info.UUID == s.info.UUID && t.info.Name == s.info.Name }); j >= 0 {
			speeds[i] = speeds[j]
			continue
		}
		v, err := weightRate(in, s, p.model)
		if err != nil {
			return nil, fmt.Errorf("measuring %s to divide the layers (--split says how, without): %w", s.info.Name, err)
		}
		speeds[i] = v
	}
	return speeds, nil
}
