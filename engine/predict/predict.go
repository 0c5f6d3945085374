package predict

import (
	"fmt"
	"slices"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// Terms are where the time of a step goes, in seconds.
type Terms struct {
	Bytes      float64 `json:"bytes"`
	Arithmetic float64 `json:"arithmetic"`
	Serial     float64 `json:"serial"` // rows that wait for one another
	Dispatches float64 `json:"dispatches"`
	Barriers   float64 `json:"barriers"`
	Host       float64 `json:"host"`
}

// Total is the sum of the terms.
func (t Terms) Total() float64 {
	return t.Bytes + t.Arithmetic + t.Serial + t.Dispatches + t.Barriers + t.Host
}

// An Estimate is a prediction of one test on one device.
type Estimate struct {
	Device   string  `json:"device"`
	Test     string  `json:"test"`
	Measured bool    `json:"measured"` // from rates measured on the device, not from its published figures
	TS       float64 `json:"tokens_per_second"`
	Rows     int     `json:"rows"`         // of a step
	Step     float64 `json:"step_seconds"` // mean
	Terms    Terms   `json:"terms"`        // of a step; they sum up to it
	// What a step moves and computes.
	WeightBytes float64         `json:"step_weight_bytes"`
	OtherBytes  float64         `json:"step_other_bytes"`
	Flops       float64         `json:"step_flops"`
	Tally       scheduler.Tally `json:"step_counts"`
	// Short is how many bytes the model takes more than the device has, 0 when it fits. The speed is as if it did.
	Short int64 `json:"short_bytes"`
}

// finish computes the speed.
func (e *Estimate) finish(s *step, t Test) {
	e.Test, e.Rows, e.Step, e.Tally = t.Name(), s.rows, e.Terms.Total(), s.tally
	e.TS = float64(t.Prompt+t.Gen) / (float64(s.steps) * e.Step)
	for _, n := range s.nodes {
		e.WeightBytes += n.weights * n.share
		e.OtherBytes += n.bytes * n.share
		e.Flops += n.flops * n.share
	}
}

// How busy a dispatch keeps a device. Memory answers after latency; till then an invocation has inFlight bytes
// asked for, so that full bandwidth takes bandwidth x latency / inFlight invocations. An FP32 unit takes a new operation
// each cycle and gives its result after about pipeline of them.
const (
	latency  = 0.7e-6
	inFlight = 64
	pipeline = 4
)

// CheckConfig refuses what nothing can be said of for a device of the table: its figures and kernels are those without
// cooperative matrices.
func (d *Device) CheckConfig(c engine.Config) error {
	k := d.Kernels()
	switch {
	case c.Matrices && !slices.Contains(d.Features, "coopmat"):
		return fmt.Errorf("%s has no cooperative matrices; leave out --matrices", d.Name)
	case c.Matrices:
		return fmt.Errorf("%s: the table of devices does not say what cooperative matrices do; leave out --matrices", d.Name)
	case c.Activations == engine.ActivationsInt8 && !k.CanPack():
		return fmt.Errorf("%s: %w; use --activations %s", d.Name, shaders.ErrNotPacked, engine.ActivationsF32)
	}
	return nil
}

// Predict computes the speed of a test on a device of the table. Batch is the most rows of a step.
func (d *Device) Predict(b *engine.Blueprint, t Test, batch int) (*Estimate, error) {
	k := d.Kernels()
	if err := d.CheckConfig(b.Config()); err != nil {
		return nil, err
	}
	s, err := newStep(b, t, batch, &k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	e := &Estimate{Device: d.Name}
	for _, n := range s.nodes {
		d.add(&e.Terms, n)
	}
	e.Terms.Dispatches = float64(s.tally.Dispatches) * d.Dispatch * 1e-6
	e.Terms.Barriers = float64(s.tally.Barriers) * d.Barrier * 1e-6
	e.Terms.Host = d.Host * 1e-6
	e.finish(s, t)
	if n := d.need(b, t); n > int64(d.Memory*(1<<30)) {
		e.Short = n - int64(d.Memory*(1<<30))
	}
	return e, nil
}

// add adds a node's time to the term that bounds it.
func (d *Device) add(t *Terms, n node) {
	bandwidth := d.Bandwidth * 1e9 * d.BandwidthEfficiency
	if len(n.lowered) == 0 {
		t.Bytes += n.weights / bandwidth // read by others
		return
	}
	rate := d.FP32 * 1e12 * d.FP32Efficiency
	bandwidth *= min(1, n.invocations*inFlight/(d.Bandwidth*1e9*latency))
	rate *= min(1, n.invocations/(float64(d.Lanes)*pipeline))
	bytes := (n.weights + n.bytes) / bandwidth
	// The rate counts a multiply-add twice; what decodes weights is single operations.
	arithmetic := (n.flops + 2*n.decodes*n.decodeCost) / rate
	serial := n.serial * d.Row * 1e-6
	switch {
	case bytes >= arithmetic && bytes >= serial:
		t.Bytes += bytes * n.share
	case arithmetic >= serial:
		t.Arithmetic += arithmetic * n.share
	default:
		t.Serial += serial * n.share
	}
}

// need is what the model takes on a device: weights, state and scratch.
func (d *Device) need(b *engine.Blueprint, t Test) int64 {
	n := b.State(b.Model(), t.Context()).Bytes()
	for _, it := range b.Model().Weights {
		if !it.HostOnly {
			n += it.Buf.Size
		}
	}
	return n
}

// Counts are the dispatches and barriers of a decoded token.
type Counts struct {
	Device string          `json:"device"`
	Token  scheduler.Tally `json:"token"`
	// Of a layer, the mean of the model's; a delta-net layer and an attention layer each with its feed-forward block.
	DeltaNet  LayerCount `json:"delta_net_layer"`
	Attention LayerCount `json:"attention_layer"`
	Rest      LayerCount `json:"outside_layers"` // embedding and head
}

// CountGraph counts what a step of a graph takes.
func CountGraph(g *scheduler.Graph, k *shaders.Profile) (scheduler.Tally, error) {
	all, err := scheduler.Lower(g, k)
	if err != nil {
		return scheduler.Tally{}, err
	}
	return scheduler.Count(g, all, nil), nil
}

// Same reports whether counts are the same but for the device.
func (c *Counts) Same(d *Counts) bool {
	return c.Token == d.Token && c.DeltaNet == d.DeltaNet && c.Attention == d.Attention && c.Rest == d.Rest
}

// LayerCount is what layers of a kind have each, on average.
type LayerCount struct {
	Layers     int     `json:"layers"`
	Dispatches float64 `json:"dispatches"`
	Barriers   float64 `json:"barriers"`
}

// Count counts what a step of one token of each of so many sequences takes, for a device that offers kernels k.
func Count(b *engine.Blueprint, device string, k *shaders.Profile, seqs, context int) (*Counts, error) {
	m := b.Model()
	g, err := b.Graph(m, k, seqs, context)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	all, err := scheduler.Lower(g, k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	c := &Counts{Device: device, Token: scheduler.Count(g, all, nil)}
	fill := func(l *LayerCount, layers int, in func(layer int) bool) {
		if l.Layers = layers; layers == 0 {
			return
		}
		t := scheduler.Count(g, all, in)
		l.Dispatches, l.Barriers = float64(t.Dispatches)/float64(layers), float64(t.Barriers)/float64(layers)
	}
	inside := func(l int) bool { return l >= 0 && l < m.Layers }
	nets := 0
	for _, r := range m.Recurrent {
		if r {
			nets++
		}
	}
	fill(&c.DeltaNet, nets, func(l int) bool { return inside(l) && m.Recurrent[l] })
	fill(&c.Attention, m.Layers-nets, func(l int) bool { return inside(l) && !m.Recurrent[l] })
	fill(&c.Rest, 1, func(l int) bool { return !inside(l) })
	return c, nil
}
