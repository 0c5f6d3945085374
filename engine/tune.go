package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/tuning"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A way must be this much faster than the plain one to be worth a change of a sequence's bits.
const tuneGain = 0.97

// How often a candidate is run: as often as tuneLeast, and on while it is quick.
const (
	tuneLeast = 3
	tuneMost  = 30
)

// verifyRows is the length of the sequence that a tuning is verified with.
const verifyRows = 9

// TuneOptions say what to measure.
type TuneOptions struct {
	Rows     []int              // of the steps, powers of two; default 1, 4, 16, .. up to the batch
	Time     time.Duration      // for each candidate, at least; default 0.3 s
	Progress func(TuneProgress) // may be nil
}

// Check refuses steps that cannot be measured, where a step has at most so many rows.
func (o *TuneOptions) Check(most int) error {
	for _, n := range o.Rows {
		if n < 1 || n > most || bucket(n) != n {
			return fmt.Errorf("steps of %d rows: use powers of two up to %d", n, most)
		}
	}
	return nil
}

// A TuneProgress is a candidate that will be measured next.
type TuneProgress struct {
	Rows                  int
	Step, Steps           int // which of the steps, from 1
	Candidate, Candidates int // which of its candidates, from 1
	What                  string
}

// A TunedUse is what was found for a use of a weight kernel.
type TunedUse struct {
	Use   shaders.Use
	Way   shaders.Way
	Plain bool    // it is the plain way
	Kept  bool    // it is another, and neither differed from the kernels' twins nor made steps slower
	Gain  float64 // how much faster than the plain way the use is, the mean over the steps
}

// A TunedStep is a step with the plain ways and with those that were found, the shortest of runs in turn.
type TunedStep struct {
	Rows         int
	Plain, Tuned time.Duration
}

// A TuneResult is what a device was found to run best with.
type TuneResult struct {
	Uses    []TunedUse
	Steps   []TunedStep
	Refused []string // what differed from the kernels' twins, or made steps slower, and is not used
	Path    string   // of the file
}

// tuned is the tuning of a device that there is, if any.
func (c *Config) tuned(info vk.DeviceInfo, p vk.Profile, k *shaders.Profile) (map[shaders.Use]shaders.Way, error) {
	if c.TuningDir == "" || c.untuned {
		return nil, nil
	}
	ways, err := tuning.Load(c.TuningDir, tuning.For(info, p))
	if err != nil {
		return nil, err
	}
	for u, w := range ways {
		if err := k.CheckWay(u, w); err != nil {
			return nil, err
		}
	}
	return ways, nil
}

// Tuned is the number of uses of weight kernels that do not go their plain way.
func (e *Engine) Tuned() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.die == nil {
		return 0
	}
	return len(e.die.Kernels.Tuned)
}

// Tune measures how the weight kernels of the model are fastest on the device and keeps that in the configuration's TuningDir
// for engines that are opened later; this one stays as it is, since another way gives other bits. Every way gives what
// the kernels' twins give, but for rounding: a step with all that was found is compared with them op by op. Others wait
// meanwhile. On an error the folder is unchanged.
func (e *Engine) Tune(ctx context.Context, o TuneOptions) (*TuneResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone()
	switch {
	case e.plans == nil:
		return nil, ErrClosed
	case e.die == nil:
		return nil, errors.New("tuning measures a device; choose a Vulkan device")
	case len(e.where.Dies) > 1:
		return nil, errors.New("tuning measures one device at a time; choose one")
	case e.cfg.TuningDir == "":
		return nil, errors.New("tuning needs a folder to keep what it finds")
	}
	// Steps of many rows that take cooperative matrices have one way.
	defer func(s shaders.MatrixShape) { e.die.Kernels.Matrices = s }(e.die.Kernels.Matrices)
	e.die.Kernels.Matrices = shaders.MatrixShape{}
	t := &tuner{e: e, ctx: ctx, opt: o, before: e.die.Kernels.Tuned, times: map[shaders.Use]map[tried]time.Duration{}}
	if err := t.defaults(); err != nil {
		return nil, err
	}
	err := t.search()
	if err == nil {
		err = t.confirm()
	}
	if err == nil {
		err = t.keep()
	}
	e.die.Kernels.Tuned = t.before
	return &t.result, err
}

// tried is a candidate for a use in a step.
type tried struct {
	scheme       shaders.Scheme
	group        int
	rows, tokens int
}

// tuner is a search on its way. e.mu is held as long as it lasts.
type tuner struct {
	e      *Engine
	ctx    context.Context
	opt    TuneOptions
	before map[shaders.Use]shaders.Way
	times  map[shaders.Use]map[tried]time.Duration // the shortest seen
	result TuneResult
}

func (t *tuner) defaults() error {
	if t.opt.Time == 0 {
		t.opt.Time = 300 * time.Millisecond
	}
	if len(t.opt.Rows) == 0 {
		for n := 1; n <= t.e.cfg.Batch; n *= 4 {
			t.opt.Rows = append(t.opt.Rows, n)
		}
	}
	slices.Sort(t.opt.Rows)
	t.opt.Rows = slices.Compact(t.opt.Rows)
	return t.opt.Check(min(t.e.cfg.Batch, t.e.cfg.Context))
}

// candidates are the ways of any block type with what they may take at once in a step, the plain one of each first.
func (t *tuner) candidates(uses []shaders.Use, rows int) (cs []tried) {
	k := &t.e.die.Kernels
	for _, u := range uses {
		for _, w := range k.Ways(u) {
			for _, n := range shaders.TokensAtOnce {
				c := tried{w.Scheme, w.Group, rows, n}
				if (n == 1) == (rows == 1) && n <= 2*rows && !slices.Contains(cs, c) {
					cs = append(cs, c)
				}
			}
		}
	}
	return cs
}

// search measures all candidates.
func (t *tuner) search() error {
	k := &t.e.die.Kernels
	for i, rows := range t.opt.Rows {
		k.Tuned = nil
		uses, err := t.measure(rows, nil)
		if err != nil {
			return err
		}
		cs := t.candidates(uses, rows)
		for j, c := range cs {
			if t.opt.Progress != nil {
				t.opt.Progress(TuneProgress{rows, i + 1, len(t.opt.Rows), j + 1, len(cs),
					fmt.Sprintf("%s, groups of %d, %d tokens at once", c.scheme, c.group, c.tokens)})
			}
			k.Tuned = map[shaders.Use]shaders.Way{}
			for _, u := range uses {
				w := shaders.Way{Scheme: c.scheme, Group: c.group, Tokens: []int{c.tokens}}
				if k.CheckWay(u, w) == nil {
					k.Tuned[u] = w
				}
			}
			if _, err := t.measure(rows, &c); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure runs a step with the ways that are set, notes the times of the uses that go the candidate's way, and returns the
// uses. Without a candidate nothing is noted.
func (t *tuner) measure(rows int, c *tried) ([]shaders.Use, error) {
	x := &profiling{e: t.e, ctx: t.ctx, random: rand.New(rand.NewPCG(1, uint64(rows)))}
	defer x.close()
	if err := x.seat(ProfileOptions{Sequences: 1, Rows: rows}); err != nil {
		return nil, err
	}
	_, p, err := t.e.stamped(planKey{rows: rows, outs: t.e.outs(rows), opt: model.GraphOptions{TopK: 1}})
	if err != nil {
		return nil, fmt.Errorf("a plan of %d rows with timestamps: %w", rows, err)
	}
	defer p.Close()
	runs := appendRuns(nil, x.parts)
	var s scheduler.StepTimes
	best := map[shaders.Use]time.Duration{}
	start := time.Now()
	for i := -1; i < tuneLeast || i < tuneMost && time.Since(start) < t.opt.Time; i++ {
		if err := t.ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := x.run(p, runs); err != nil {
			return nil, err
		}
		if i < 0 {
			start = time.Now()
			if c != nil {
				continue // the first only warms up
			}
			i = tuneMost
		}
		if err := p.Times(&s); err != nil {
			return nil, err
		}
		for u, d := range s.Uses {
			if b, ok := best[u]; !ok || d < b {
				best[u] = d
			}
		}
	}
	for u, d := range best {
		if w, ok := t.e.die.Kernels.Tuned[u]; ok && c != nil && w.Scheme == c.scheme && w.Group == c.group {
			if t.times[u] == nil {
				t.times[u] = map[tried]time.Duration{}
			}
			t.times[u][*c] = d
		}
	}
	return slices.SortedFunc(maps.Keys(best), compareUses), t.e.intact()
}

func compareUses(a, b shaders.Use) int { return strings.Compare(a.String(), b.String()) }

// fastest is the shortest time of a way for a use in steps of so many rows, and how many tokens it took at once: as many as
// plain ways do but for a real gain. The time is 0 when it was not measured: not all steps have all uses.
func (t *tuner) fastest(u shaders.Use, w shaders.Way, rows int) (time.Duration, int) {
	c := tried{w.Scheme, w.Group, rows, t.e.die.Kernels.PlainWay(u).TokensAt(rows)}
	d, ok := t.times[u][c]
	limit := tuneGain * float64(d)
	for _, n := range shaders.TokensAtOnce {
		x := tried{w.Scheme, w.Group, rows, n}
		if v, measured := t.times[u][x]; measured && (!ok || float64(v) < limit) {
			d, c, ok, limit = v, x, true, float64(v)
		}
	}
	return d, c.tokens
}

// best is the way whose times for a use are the shortest in the mean over the steps, and the mean ratio of the plain
// way's times to its.
func (t *tuner) best(u shaders.Use) (way shaders.Way, gain float64) {
	ways := t.e.die.Kernels.Ways(u) // the plain one is the first
	for i, w := range ways {
		sum := 0.0
		for _, rows := range t.opt.Rows {
			p, _ := t.fastest(u, ways[0], rows)
			d, _ := t.fastest(u, w, rows)
			if p > 0 || d > 0 {
				sum += math.Log(float64(p) / float64(d)) // infinite for what was not measured, and then not the best
			}
		}
		g := math.Exp(sum / float64(len(t.opt.Rows)))
		if i == 0 || !math.IsInf(sum, 0) && g > gain && g > 1/tuneGain {
			way, gain = w, g
		}
	}
	// Steps that were not measured go by the next larger one, and those beyond by the largest.
	way.Tokens = []int{1}
	for _, rows := range t.opt.Rows {
		_, n := t.fastest(u, way, rows)
		for 1<<(len(way.Tokens)-1) < rows {
			way.Tokens = append(way.Tokens, n)
		}
	}
	if len(way.Tokens) == 1 {
		way.Tokens = append(way.Tokens, t.e.die.Kernels.PlainWay(u).TokensAt(2))
	}
	return way, gain
}

// confirm puts the best ways together and drops what differs from the twins; if steps are no faster, all.
func (t *tuner) confirm() error {
	k := &t.e.die.Kernels
	k.Tuned = maps.Clone(t.before)
	if k.Tuned == nil {
		k.Tuned = map[shaders.Use]shaders.Way{}
	}
	for _, u := range slices.SortedFunc(maps.Keys(t.times), compareUses) {
		way, gain := t.best(u)
		plain := k.PlainWay(u)
		x := TunedUse{Use: u, Way: way, Gain: gain, Plain: way.Scheme == plain.Scheme && way.Group == plain.Group}
		for i, n := range way.Tokens {
			x.Plain = x.Plain && n == plain.TokensAt(1<<i)
		}
		delete(k.Tuned, u)
		if !x.Plain {
			k.Tuned[u] = way
		}
		t.result.Uses = append(t.result.Uses, x)
	}
	if err := t.verify(); err != nil {
		return err
	}
	faster := 0.0
	for _, rows := range t.opt.Rows {
		s, err := t.compare(rows)
		if err != nil {
			return err
		}
		t.result.Steps = append(t.result.Steps, s)
		faster += math.Log(float64(max(s.Plain, 1)) / float64(max(s.Tuned, 1)))
	}
	kept := func(x *TunedUse) bool {
		_, ok := k.Tuned[x.Use]
		return ok
	}
	if faster < 0 && slices.ContainsFunc(t.result.Uses, func(x TunedUse) bool { return kept(&x) }) {
		t.result.Refused = append(t.result.Refused, "all together: steps are slower than with the plain ways")
		for u := range t.times {
			delete(k.Tuned, u)
		}
	}
	for i := range t.result.Uses {
		x := &t.result.Uses[i]
		x.Kept = kept(x)
	}
	return nil
}

// verify compares a step with its twins and drops the ways of the ops that differ.
func (t *tuner) verify() error {
	e, k := t.e, &t.e.die.Kernels
	tokens := make([]int32, min(verifyRows, e.cfg.Batch+1, e.cfg.Context))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range tokens {
		tokens[i] = int32(random.IntN(e.model.Vocab))
	}
	host, err := weights.Map(e.model.Weights)
	if err != nil {
		return err
	}
	for again := len(k.Tuned) > 0; again; {
		again = false
		steps, err := e.verifySteps(tokens)
		if err != nil {
			return err
		}
		for _, run := range steps {
			g, _ := e.graph(e.verifyKey(run, model.GraphOptions{Logits: true, TopK: 1}))
			err := scheduler.Verify(g, e.where, host, []shaders.Run{run}, e.rope, func(x scheduler.OpError) error {
				if x.Rel() <= verifyTolerance {
					return t.ctx.Err()
				}
				ds, err := g.Nodes[x.Node].Op.Lower(k)
				for _, d := range ds {
					if _, ok := k.Tuned[d.Use]; ok {
						delete(k.Tuned, d.Use)
						t.result.Refused = append(t.result.Refused, fmt.Sprintf("%s: %s differs from its twin by %.2g", d.Use, g.Nodes[x.Node].Label(), x.Rel()))
						again = true
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return e.file.Intact()
}

// compare runs a step with the plain ways and with those that are set, in turn.
func (t *tuner) compare(rows int) (s TunedStep, err error) {
	e, k := t.e, &t.e.die.Kernels
	x := &profiling{e: e, ctx: t.ctx, random: rand.New(rand.NewPCG(2, uint64(rows)))}
	defer x.close()
	if err := x.seat(ProfileOptions{Sequences: 1, Rows: rows}); err != nil {
		return s, err
	}
	var plans [2]scheduler.Runner
	set := k.Tuned
	for i, ways := range []map[shaders.Use]shaders.Way{nil, set} {
		k.Tuned = ways
		_, p, err := e.stamped(planKey{rows: rows, outs: e.outs(rows), opt: model.GraphOptions{TopK: 1}})
		k.Tuned = set
		if err != nil {
			return s, err
		}
		defer p.Close()
		plans[i] = p
	}
	runs := appendRuns(nil, x.parts)
	var took [2][]time.Duration
	for i := -1; i < 2*tuneLeast; i++ {
		for j, p := range plans {
			if err := t.ctx.Err(); err != nil {
				return s, err
			}
			d, err := x.run(p, runs)
			if err != nil {
				return s, err
			}
			if i >= 0 {
				took[j] = append(took[j], d.Submit+d.Wait)
			}
		}
	}
	return TunedStep{rows, slices.Min(took[0]), slices.Min(took[1])}, e.intact()
}

// keep writes what was found.
func (t *tuner) keep() (err error) {
	e := t.e
	t.result.Path, err = tuning.Save(e.cfg.TuningDir, tuning.For(e.die.Device.Info(), e.die.Device.Profile()), e.die.Kernels.Tuned)
	return err
}
