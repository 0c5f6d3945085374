package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/calderaml/caldera/engine/excerpt"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/selftest"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

const (
	testVocab   = 1100 // of the excerpt: more than one chunk of what selects the best, and no multiple
	testExperts = 2    // in multiples of those that a row chooses
	testRows    = 12   // tokens of a step at most
)

// A selfTester compares the kernels that a model uses on a device with their twins.
type selfTester struct {
	planner // of the model on the device; its model's Packs is left as the kernels that are chosen have it
	site
	in     *vk.Instance
	die    *scheduler.Die // with the pipelines that were made, which steps need too
	fault  scheduler.Fault
	known  *selftest.Verdicts
	report SelfTestReport
}

// setup is what a device uses with some rungs of the ladder left out.
type setup struct {
	cfg     Config
	profile vk.Profile
	kernels shaders.Profile
	packs   bool
	uses    map[selftest.Variant]bool
	layers  map[selftest.Variant]int // of the model, that have a variant first
}

// run goes down the ladder until all kernels that are used are right, and compares those of which nothing is known on
// its way. The error wraps ErrSelfTest if none are left.
func (t *selfTester) run(ctx context.Context, p vk.Profile) error {
	start := time.Now()
	r := &t.report
	r.Device, r.Profile = t.info.String(), p.Name
	defer func() { r.Took = time.Since(start) }()
	var last *setup
	var effective []bool
	for range t.cfg.rungs {
		effective = append(effective, true)
	}
	for n := t.cfg.rungs; n <= len(selftest.Ladder); n++ {
		s, err := t.setup(p, n)
		if err != nil {
			return err
		}
		if last != nil {
			changes := !reflect.DeepEqual(s.uses, last.uses)
			effective = append(effective, changes)
			if last = s; !changes {
				continue
			}
		}
		last = s
		without := selftest.Describe(n, effective)
		if s.wrong(t.known) {
			continue
		}
		todo := maps.Clone(s.uses)
		maps.DeleteFunc(todo, func(v selftest.Variant, _ bool) bool { return t.known.Passed[v] })
		var results []selftest.Result
		if len(todo) > 0 {
			if results, err = t.check(ctx, s, todo); err != nil {
				return fmt.Errorf("self-test of %s: %w", t.info.Name, err)
			}
		}
		t.known.Add(results)
		wrong := false
		for _, x := range results {
			r.Checks = append(r.Checks, SelfTestCheck{x, without})
			delete(todo, x.Variant)
			wrong = wrong || !x.OK
		}
		if wrong {
			continue
		}
		for _, x := range r.Checks {
			t.known.AddSuspects([]selftest.Result{x.Result})
		}
		for v := range todo {
			r.Untested = append(r.Untested, v.String())
		}
		slices.Sort(r.Untested)
		r.Without, r.Rungs = without, n
		if without == "" {
			r.Rungs = 0
		}
		return nil
	}
	worst := r.Failed()
	if len(worst) == 0 {
		return fmt.Errorf("%w: %s has no right kernels", ErrSelfTest, t.info)
	}
	w := worst[len(worst)-1] // of the last rung
	for _, c := range worst {
		if c.Without == w.Without && c.Rel > w.Rel {
			w = c
		}
	}
	r.err = fmt.Errorf("%w: on %s kernel %s %s, and nothing is left to do without: install another version of the driver, choose another device, or use --backend %s",
		ErrSelfTest, t.info, w.Variant, w.wrong(), Reference)
	return r.err
}

// wrong reports whether one of the variants in use is known to be.
func (s *setup) wrong(known *selftest.Verdicts) bool {
	for v := range s.uses {
		if _, ok := known.Failed[v]; ok {
			return true
		}
	}
	return false
}

// setup finds out what the model uses without the first n rungs.
func (t *selfTester) setup(p vk.Profile, n int) (*setup, error) {
	s := &setup{cfg: t.cfg, profile: selftest.Restrict(p, n), uses: map[selftest.Variant]bool{}, layers: map[selftest.Variant]int{}}
	s.cfg.restrict(n)
	s.kernels = scheduler.Kernels(s.profile)
	var err error
	if s.kernels.Matrices, err = s.cfg.matrices(&s.kernels); err != nil {
		return nil, err
	}
	// A tuning that cannot be used is said to be at open.
	s.kernels.Tuned, _ = s.cfg.tuned(t.info, p, &s.kernels)
	if s.packs, err = s.cfg.packs(&s.kernels); err != nil {
		return nil, err
	}
	t.model.Packs = s.packs
	plan := t.planner
	plan.cfg, plan.sites = s.cfg, []site{{t.info, s.profile}}
	st := t.model.NewState(plan.shape())
	add := func(g *scheduler.Graph) error {
		fresh, err := selftest.Variants(g, &s.kernels, s.uses)
		for v, node := range fresh {
			s.layers[v] = min(max(g.Nodes[node].Layer, 0), t.model.Layers-1)
		}
		return err
	}
	for rows := 1; rows <= bucket(s.cfg.batch(plan.software())); rows *= 2 {
		seqs := min(rows, st.Slots)
		shape := shaders.StepShape{Rows: rows, Seqs: seqs, Outs: seqs, Pages: pagesFor(s.cfg.Context)}
		g, _ := t.model.Graph(shape, st, model.GraphOptions{TopK: 1})
		if err := add(g); err != nil {
			return nil, err
		}
	}
	if st.ColdPages > 0 {
		return s, add(t.model.EncodeGraph(st.Slots, st))
	}
	return s, nil
}

// check compares the variants in todo with their twins, in steps of an excerpt of the model.
func (t *selfTester) check(ctx context.Context, s *setup, todo map[selftest.Variant]bool) ([]selftest.Result, error) {
	var layers []int
	for v := range todo {
		layers = append(layers, s.layers[v])
	}
	slices.Sort(layers)
	file, small, err := excerpt.New(t.file, t.model, excerpt.Options{Layers: slices.Compact(layers), Vocab: testVocab, Experts: testExperts, Invent: true})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	small.Packs = s.packs
	die, err := t.dieFor(s.profile)
	if err != nil {
		return nil, err
	}
	die.Kernels = s.kernels
	defer excerpt.Unload(die, small)
	if err := excerpt.Load(ctx, die, small); err != nil {
		return nil, err
	}
	hot, cold := s.cfg.formats()
	shape := model.StateShape{Slots: 1, Pages: 2, KV: hot, ColdKV: cold}
	for v := range s.uses {
		if v.Module == "attention.cold" {
			shape.ColdPages = 1
		}
	}
	st := small.NewState(shape)
	for _, b := range st.Buffers() {
		if err := die.Allocate(b, true); err != nil {
			return nil, err
		}
		defer die.Free(b)
	}
	memory, err := weights.Map(small.Weights)
	if err != nil {
		return nil, err
	}
	var results []selftest.Result
	left := maps.Clone(todo)
	for range 2 {
		steps, err := testSteps(small, st, &die.Kernels, bucket(s.cfg.batch(t.software())), left)
		if err != nil {
			return nil, err
		}
		rs, err := selftest.Check(ctx, die, steps, memory, model.NewRope(small.Rope), left, verifyTolerance)
		if err != nil {
			return nil, err
		}
		results = append(results, rs...)
		for _, r := range rs {
			delete(left, r.Variant)
		}
		if len(left) == 0 || slices.ContainsFunc(rs, func(r selftest.Result) bool { return r.Err != "" }) {
			break
		}
		// Stacks of experts larger than what can be bound at once have kernels of their own. The excerpt's are as large for a
		// device that binds less.
		largest := int64(0)
		for _, it := range small.Weights {
			largest = max(largest, it.Buf.Size)
		}
		die.LimitBinding(largest / 2)
	}
	return results, nil
}

// dieFor is the die with a profile: the one that there is, or another in its place.
func (t *selfTester) dieFor(p vk.Profile) (*scheduler.Die, error) {
	if t.die != nil && reflect.DeepEqual(t.die.Device.Profile(), p) {
		return t.die, nil
	}
	if err := t.close(); err != nil {
		return nil, err
	}
	dev, err := t.in.NewDevice(t.info, p)
	if err != nil {
		return nil, err
	}
	t.die = scheduler.NewDie(dev)
	t.die.Fault = t.fault
	return t.die, nil
}

// close closes the die.
func (t *selfTester) close() error {
	if t.die == nil {
		return nil
	}
	err := t.die.Close()
	t.die = nil
	return err
}

// testSteps are the fewest steps that have the variants in todo: the largest first, so that the others have a state to go on
// from. With a quantised cache its first page is re-encoded in between.
func testSteps(m *model.Model, st *model.State, k *shaders.Profile, batch int, todo map[selftest.Variant]bool) ([]selftest.Step, error) {
	graph := func(rows int) *scheduler.Graph {
		g, _ := m.Graph(shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: st.Pages}, st, model.GraphOptions{TopK: 1})
		return g
	}
	seen := map[selftest.Variant]bool{}
	var sizes []int
	for rows := 1; rows <= batch; rows *= 2 {
		fresh, err := selftest.Variants(graph(rows), k, seen)
		if err != nil {
			return nil, err
		}
		maps.DeleteFunc(fresh, func(v selftest.Variant, _ int) bool { return !todo[v] })
		if len(fresh) > 0 || rows == 1 {
			sizes = append(sizes, rows)
		}
	}
	slices.Reverse(sizes)
	random := rand.New(rand.NewPCG(11, 13))
	pos, pages := 0, []int32{0}
	step := func(rows int) selftest.Step {
		// Some places of larger steps stay empty.
		n := min(max(rows-rows/4, 1), testRows)
		x := shaders.Run{Pos: pos, Fresh: pos == 0, Pages: slices.Clone(pages), Outs: []int{n - 1}}
		for range n {
			x.Tokens = append(x.Tokens, int32(random.IntN(m.Vocab)))
		}
		pos += n
		return selftest.Step{Graph: graph(rows), Run: x}
	}
	first := step(sizes[0])
	steps := []selftest.Step{first}
	rest := sizes[1:]
	if st.ColdPages > 0 {
		steps[0].Later = "attention"
		steps = append(steps, selftest.Step{Graph: m.EncodeGraph(1, st), Run: shaders.Run{Moves: []shaders.PageMove{{Hot: 0, Cold: 0}}}})
		pos, pages = shaders.PageTokens, []int32{shaders.PageCold, 1}
		rest = sizes
	}
	for _, rows := range rest {
		steps = append(steps, step(rows))
	}
	return steps, nil
}

// keep remembers what was found, unless a fault was injected or nothing is right: then the next start tries again.
func (t *selfTester) keep(dir string) error {
	if t.fault != scheduler.NoFault || !t.report.OK() || len(t.report.Checks) == 0 {
		return nil
	}
	return selftest.Remember(dir, selftest.For(t.info, t.profile), t.known)
}
