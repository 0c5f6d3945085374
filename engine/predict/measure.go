package predict

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/excerpt"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// budget bounds the time of one measured step's repetitions, of which there are at most most and at least one.
const (
	budget = 400 * time.Millisecond
	most   = 15
)

// hostTime is what an engine takes per step beside what a sample's steps take: forming the batch and reading the result.
const hostTime = 20e-6

// Measure predicts tests on a device that is present, from the rates of the kernels as they are: it runs steps of a sample
// of the model, a few layers with few experts and a short vocabulary, notes the time of each op, and puts the step of
// the whole model together from them. It takes a few seconds, and does not read more of the file than the
// sample. The end of ctx ends it between two pipelines or steps. Progress, which may be nil, is told what comes next.
func Measure(ctx context.Context, b *engine.Blueprint, in *vk.Instance, info vk.DeviceInfo, tests []Test, progress func(what string)) (_ []*Estimate, err error) {
	k, err := b.Kernels(info)
	if err != nil {
		return nil, err
	}
	var steps []*step
	var layers []int
	for _, t := range tests {
		s, err := newStep(b, t, b.Batch(info.Software()), &k)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
		for _, l := range pick(s, b.Model().Layers) {
			if !slices.Contains(layers, l) {
				layers = append(layers, l)
			}
		}
	}
	slices.Sort(layers)
	sm, err := newSample(b.File(), b.Model(), layers)
	if err != nil {
		return nil, err
	}
	defer sm.file.Close()
	r, err := newRig(ctx, b, in, info, sm)
	if err != nil {
		return nil, err
	}
	r.progress = progress
	defer func() { err = errors.Join(err, r.die.Close()) }()
	r.die.Kernels.Matrices = k.Matrices
	r.tell("dispatches and copies")
	if err := r.overheads(ctx); err != nil {
		return nil, fmt.Errorf("measuring dispatches and copies: %w", err)
	}
	var es []*Estimate
	for i, s := range steps {
		e := &Estimate{Device: info.Name, Measured: true}
		if err := r.estimate(ctx, e, s, tests[i]); err != nil {
			return nil, fmt.Errorf("measuring %s: %w", tests[i].Name(), err)
		}
		e.finish(s, tests[i])
		es = append(es, e)
	}
	return es, nil
}

// A rig is a sample on a device, with what was measured of the device.
type rig struct {
	b     *engine.Blueprint
	die   *scheduler.Die
	file  *gguf.File // of the sample
	model *model.Model
	rope  *model.Rope
	// Seconds of a dispatch that does nothing and of a barrier, and bytes per second of a copy.
	dispatch, barrier, copies float64
	one                       float64 // seconds of a step of one row, once that was measured
	progress                  func(what string)
}

// tell passes on what comes next.
func (r *rig) tell(format string, args ...any) {
	if r.progress != nil {
		r.progress(fmt.Sprintf(format, args...))
	}
}

// compile makes a graph's pipelines and plans it.
func (r *rig) compile(ctx context.Context, g *scheduler.Graph, stamp bool) (*scheduler.Plan, error) {
	err := scheduler.On(r.die).MakePipelines(ctx, []*scheduler.Graph{g}, func(done, total int) { r.tell("kernels, %d of %d", done, total) })
	if err != nil {
		return nil, err
	}
	return scheduler.Compile(g, scheduler.On(r.die), scheduler.Options{Stamp: stamp})
}

// newRig puts a sample's weights on a device.
func newRig(ctx context.Context, b *engine.Blueprint, in *vk.Instance, info vk.DeviceInfo, sm *sample) (_ *rig, err error) {
	p, err := vk.ProfileFor(info, b.Config().Profile)
	if err != nil {
		return nil, err
	}
	dev, err := in.NewDevice(info, p)
	if err != nil {
		return nil, err
	}
	r := &rig{b: b, die: scheduler.NewDie(dev), file: sm.file, model: sm.model, rope: model.NewRope(sm.model.Rope)}
	defer func() {
		if err != nil {
			r.die.Close()
		}
	}()
	if err := excerpt.Load(ctx, r.die, sm.model); err != nil {
		return nil, err
	}
	return r, nil
}

// measured is the times of a sample's step.
type measured struct {
	nodes []float64      // seconds of each node, median
	by    map[string]int // the node of a class
	step  *step
	rest  float64 // seconds of the step beside its nodes: writing, submitting and waking up
}

// run measures a step of the sample of so many rows in a context of so many tokens, of which each row attends to attended on
// average. Without is whether ops on stacks of experts are left out.
func (r *rig) run(ctx context.Context, rows, tokens int, attended float64, without bool) (*measured, error) {
	st := r.b.State(r.model, tokens)
	g, err := r.b.Graph(r.model, &r.die.Kernels, rows, tokens)
	if err != nil {
		return nil, err
	}
	if without {
		g.Nodes = slices.DeleteFunc(g.Nodes, func(n scheduler.Node) bool { return routed(n, r.file) })
		if g.Check() != nil {
			// Something else reads what they write.
			return r.run(ctx, rows, tokens, attended, false)
		}
	}
	for _, buf := range g.Buffers() {
		if buf.Kind == shaders.State {
			if err := r.die.Allocate(buf, true); err != nil {
				return nil, err
			}
			defer r.die.Free(buf)
		}
	}
	// Timestamps take time too: the same step without them says how much.
	var plans [2]*scheduler.Plan
	for i := range plans {
		p, err := r.compile(ctx, g, i == 0)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		plans[i] = p
	}
	random := rand.New(rand.NewPCG(3, uint64(rows)))
	pos := max(0, min(tokens-rows, int(attended)-(rows+1)/2))
	x := shaders.Run{Pos: pos, Fresh: pos == 0, Outs: []int{rows - 1}}
	for range rows {
		x.Tokens = append(x.Tokens, int32(random.IntN(r.model.Vocab)))
	}
	for i := range min(g.Shape.Pages, st.Pages) {
		x.Pages = append(x.Pages, int32(i))
	}
	all, err := scheduler.Lower(g, &r.die.Kernels)
	if err != nil {
		return nil, err
	}
	m := &measured{by: map[string]int{}, step: &step{plan: plan{rows, 1, attended, 1}, graph: g, nodes: make([]node, len(g.Nodes))}}
	var samples [][]float64
	var totals [2][]float64 // of steps with timestamps and without
	var rest []float64
	var times scheduler.StepTimes
	for start := time.Now(); len(rest) < 2 || len(rest) <= most && time.Since(start) < budget; {
		r.tell("a %d-row step, run %d", rows, len(rest)+1)
		for i, p := range plans {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			t, err := p.Run([]shaders.Run{x}, r.rope)
			if err != nil {
				return nil, err
			}
			totals[i] = append(totals[i], t.Total().Seconds())
		}
		if err := plans[0].Times(&times); err != nil {
			return nil, err
		}
		nodes := make([]float64, len(times.Nodes))
		for i, d := range times.Nodes {
			nodes[i] = d.Seconds()
		}
		if samples == nil {
			start = time.Now() // the first run compiles
		}
		samples, rest = append(samples, nodes), append(rest, totals[0][len(rest)]-times.Total.Seconds())
	}
	samples, rest = samples[1:], rest[1:]
	m.rest = max(0, median(rest))
	stamp := max(0, slices.Min(totals[0][1:])-slices.Min(totals[1][1:])) / float64(len(all))
	for _, l := range all {
		m.step.nodes[l.Node].lowered = append(m.step.nodes[l.Node].lowered, l)
	}
	for i, n := range g.Nodes {
		column := make([]float64, len(samples))
		for j, s := range samples {
			column[j] = s[i]
		}
		seconds := median(column)
		// Never more than half is the timestamps', whatever noise says.
		m.nodes = append(m.nodes, max(seconds/2, seconds-stamp*float64(len(m.step.nodes[i].lowered))))
		m.step.nodes[i].Node = n
		m.step.measure(&m.step.nodes[i], r.file, r.model)
		c := class(n, m.step.nodes[i].lowered)
		if _, ok := m.by[c]; !ok {
			m.by[c] = i
		}
		if _, ok := m.by[n.Name]; !ok {
			m.by[n.Name] = i // for what the sample has no layer of its kind for
		}
	}
	return m, nil
}

// node finds what was measured of a node's class.
func (m *measured) node(n *node) (i int, ok bool) {
	if i, ok = m.by[class(n.Node, n.lowered)]; !ok {
		i, ok = m.by[n.Name]
	}
	return i, ok
}

// groupRows is the fewest rows for which ops on experts are measured where a step has as many: from there on steps
// sort their rows by expert.
const groupRows = 4

// Where a step of many rows would take longer than slow, as on a slow software device, fewer are measured, though not fewer
// than enough to fill the tiles of any kernel.
const (
	slow   = 1.0 // seconds
	enough = 16
)

// rows is how many rows to measure for steps of n.
func (r *rig) rows(n int) int {
	// A row among many takes about half of what it takes alone.
	for n > enough && r.one*float64(n)/2 > slow {
		n = max(enough, (n+1)/2)
	}
	return n
}

// estimate fills in the terms of a step from steps of the sample.
func (r *rig) estimate(ctx context.Context, e *Estimate, s *step, t Test) error {
	full := r.b.Model()
	fewer := s.rows > 1 && r.model.Experts < full.Experts
	main, err := r.run(ctx, r.rows(s.rows), t.Context(), s.attended, fewer)
	if err != nil {
		return err
	}
	if s.rows == 1 {
		r.one = 0
		for _, seconds := range main.nodes {
			r.one += seconds
		}
	}
	// With fewer experts as many fewer rows give each expert as many, and each tile.
	experts := main
	if fewer {
		rows := max((s.rows*r.model.Experts+full.Experts-1)/full.Experts, min(s.rows, groupRows))
		if experts, err = r.run(ctx, rows, max(rows, t.Context()), s.attended, false); err != nil {
			return err
		}
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		from := main
		if routed(n.Node, r.b.File()) {
			from = experts
		}
		at, ok := from.node(n)
		if !ok {
			if at, ok = experts.node(n); !ok {
				return fmt.Errorf("%s has no like in the sample", n.Label())
			}
			from = experts
		}
		r.add(&e.Terms, n, from.nodes[at]*scale(n, &from.step.nodes[at]))
	}
	e.Terms.Host = main.rest + hostTime
	return nil
}

// scale is how much more a node does than one of the sample.
func scale(n, like *node) float64 {
	if n.flops > 0 && like.flops > 0 {
		return n.flops / like.flops
	}
	if m := like.weights + like.bytes; m > 0 {
		return (n.weights + n.bytes) / m
	}
	return 1
}

// add splits a node's time: its dispatches and barriers, what a copy of its bytes would take, and the rest, which is
// arithmetic.
func (r *rig) add(t *Terms, n *node, seconds float64) {
	seconds *= n.share
	take := func(most float64) float64 {
		most = min(most, seconds)
		seconds -= most
		return most
	}
	barriers := 0
	for _, l := range n.lowered {
		if l.Barrier {
			barriers++
		}
	}
	t.Dispatches += take(float64(len(n.lowered)) * r.dispatch)
	t.Barriers += take(float64(barriers) * r.barrier)
	t.Bytes += take((n.weights + n.bytes) * n.share / r.copies)
	t.Arithmetic += seconds
}

// overheads measures a dispatch, a barrier and the copy bandwidth.
func (r *rig) overheads(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.copies, err = r.die.CopyRate(); err != nil {
		return err
	}
	apart, err := r.chain(ctx, false)
	if err != nil {
		return err
	}
	after, err := r.chain(ctx, true)
	r.dispatch, r.barrier = apart, max(0, after-apart)
	return err
}

// chainLength is how many dispatches make a chain.
const chainLength = 64

// chain measures a dispatch of next to no work, each after the one before it or independent of it.
func (r *rig) chain(ctx context.Context, after bool) (float64, error) {
	const width = 32
	g := scheduler.NewGraph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1})
	w := &shaders.Buffer{Name: "chain weights", Kind: shaders.Weight, Size: 4 * width}
	if err := r.die.Allocate(w, true); err != nil {
		return 0, err
	}
	defer r.die.Free(w)
	x := shaders.NewMat("chain input", shaders.State, 1, width)
	if err := r.die.Allocate(x.Buf, true); err != nil {
		return 0, err
	}
	defer r.die.Free(x.Buf)
	y := shaders.NewMat("chain", shaders.Scratch, chainLength, width)
	for i := range chainLength {
		out := shaders.Mat{View: y.Slice(0, 4*width), Width: width, Stride: width}
		if !after {
			out.View = y.Slice(int64(4*width*i), 4*width)
		}
		g.Add("chain", &shaders.RMSNorm{Step: g.Step.View(), X: x, Y: out, Weight: w.View(), Rows: 1, Count: shaders.CountRows, Eps: 1e-6})
	}
	p, err := r.compile(ctx, g, true)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	var times []float64
	var t scheduler.StepTimes
	for range most + 1 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if _, err := p.Run([]shaders.Run{{Tokens: []int32{0}, Pages: []int32{0}, Fresh: true}}, nil); err != nil {
			return 0, err
		}
		if err := p.Times(&t); err != nil {
			return 0, err
		}
		times = append(times, t.Total.Seconds()/chainLength)
	}
	return median(times[1:]), nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
