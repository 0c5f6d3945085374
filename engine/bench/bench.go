// Package bench measures how fast a model runs: prompts of some length and generation of some number of tokens, at
// some depth of context, as llama-bench does, so that the results can be laid side by side. It excludes
// tokenizing and sampling and uses random tokens.
package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// A Test is one row of a benchmark: tokens of prompt and of generation, and tokens in the context before them, of
// each of some sequences. The sequences' prompts are processed one after the other, then all generate together.
type Test struct {
	Prompt, Gen, Depth int
	Sequences          int // 0 is one
}

// seqs is the number of sequences.
func (t Test) seqs() int { return max(1, t.Sequences) }

// Name is the test's name as llama-bench prints it: "pp512", "tg128", "pp512+tg128", "tg128 @ d4096"; of more
// sequences than one "tg128 x16".
func (t Test) Name() string {
	var s string
	switch {
	case t.Gen == 0:
		s = fmt.Sprintf("pp%d", t.Prompt)
	case t.Prompt == 0:
		s = fmt.Sprintf("tg%d", t.Gen)
	default:
		s = fmt.Sprintf("pp%d+tg%d", t.Prompt, t.Gen)
	}
	if t.Sequences > 1 {
		s += fmt.Sprintf(" x%d", t.Sequences)
	}
	if t.Depth > 0 {
		s += fmt.Sprintf(" @ d%d", t.Depth)
	}
	return s
}

// Tokens is how many tokens a repetition measures, of all sequences.
func (t Test) Tokens() int { return (t.Prompt + t.Gen) * t.seqs() }

// Context is how many tokens a sequence has at the end.
func (t Test) Context() int { return t.Depth + t.Prompt + t.Gen }

// Tests makes the list of tests that llama-bench would run: for each depth first the prompts, then the
// generations. Zeros are left out.
func Tests(prompts, gens, depths []int) []Test {
	var tests []Test
	for _, d := range depths {
		for _, p := range prompts {
			if p > 0 {
				tests = append(tests, Test{Prompt: p, Depth: d})
			}
		}
		for _, g := range gens {
			if g > 0 {
				tests = append(tests, Test{Gen: g, Depth: d})
			}
		}
	}
	return tests
}

// Options say how to measure.
type Options struct {
	Repetitions int
	NoWarmup    bool          // do not run once before measuring; plans are then made in the first repetition
	Delay       time.Duration // before each repetition
	Seed        uint64        // of the random tokens
	Progress    func(repetition, of int, took time.Duration)
}

// A Result is what a test took.
type Result struct {
	Test
	Start   time.Time
	Samples []time.Duration  // one a repetition
	Host    time.Duration    // of all samples: time outside of waiting for the device
	Steps   int              // of all samples
	Times   engine.StepTimes // of these steps
	Prefill time.Duration    // of all samples: until the logits after the prompt
	Cold    time.Duration    // the warm-up, in which plans are made; 0 without one
	Warm    bool             // a warm-up was run
	// Recorded is how many command buffers were recorded while measuring, which must be none after a warm-up.
	Recorded int
	Groups   int           // of the sequences that generate, each of which has steps of its own
	Decode   engine.Counts // what one decoded token of a group does by its plan
	Device   vk.Stats      // what the device did in all samples
}

// PerSecond are the samples as tokens per second.
func (r *Result) PerSecond() []float64 {
	v := make([]float64, len(r.Samples))
	for i, d := range r.Samples {
		v[i] = float64(r.Tokens()) / d.Seconds()
	}
	return v
}

// Unplanned is how many submissions more than planned the device got while a test that only generates was measured:
// copies between tokens, for instance. It is 0 for tests with a prompt, whose steps are not counted here.
func (r *Result) Unplanned() int64 {
	if r.Prompt > 0 {
		return 0
	}
	return r.Device.Submits - int64(r.Decode.Submits)*int64(r.Gen*len(r.Samples)*r.Groups)
}

// HostPerToken is the mean time per token that was spent on the host, outside of waiting for the device.
func (r *Result) HostPerToken() time.Duration {
	return r.Host / time.Duration(max(1, r.Tokens()*len(r.Samples)))
}

// PerStep is the mean of the times of a step.
func (r *Result) PerStep() engine.StepTimes {
	n := time.Duration(max(1, r.Steps))
	t := r.Times
	return engine.StepTimes{Form: t.Form / n, Write: t.Write / n, Submit: t.Submit / n, Wait: t.Wait / n, Read: t.Read / n}
}

// Run measures one test.
func Run(ctx context.Context, e *engine.Engine, t Test, o Options) (*Result, error) {
	if t.Tokens() == 0 || o.Repetitions < 1 {
		return nil, fmt.Errorf("a benchmark of %d tokens and %d repetitions", t.Tokens(), o.Repetitions)
	}
	l, err := newLoop(ctx, e, t, o)
	if err != nil {
		return nil, err
	}
	defer l.close()
	r := &Result{Test: t, Start: time.Now()}
	if !o.NoWarmup {
		if err := l.warmUp(); err != nil {
			return nil, fmt.Errorf("warm-up of %s: %w", t.Name(), err)
		}
		r.Cold, r.Warm = time.Since(r.Start), true
	}
	before := e.DeviceStats().Recordings
	for i := range o.Repetitions {
		if err := sleep(ctx, o.Delay); err != nil {
			return nil, err
		}
		if err := l.repetition(r); err != nil {
			return nil, fmt.Errorf("%s, repetition %d: %w", t.Name(), i+1, err)
		}
		if o.Progress != nil {
			o.Progress(i+1, o.Repetitions, r.Samples[i])
		}
	}
	r.Recorded = int(e.DeviceStats().Recordings - before)
	r.Groups = e.Groups(t.seqs())
	r.Decode, err = e.DecodeCounts((t.seqs() + r.Groups - 1) / r.Groups)
	return r, err
}

// WarmUp makes every plan that a test uses, as Run does unless Options.NoWarmup says otherwise.
func WarmUp(ctx context.Context, e *engine.Engine, t Test, o Options) error {
	l, err := newLoop(ctx, e, t, o)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.warmUp(); err != nil {
		return fmt.Errorf("warm-up of %s: %w", t.Name(), err)
	}
	return nil
}

// sleep waits, or ends early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A loop runs the repetitions of a test.
type loop struct {
	ctx    context.Context
	e      *engine.Engine
	seqs   []*engine.Session
	t      Test
	random *rand.Rand
	vocab  int
	top    []engine.Candidate
	ids    []int32
	steps  int // run, and where their time went
	times  engine.StepTimes
}

// newLoop opens the sessions of a test.
func newLoop(ctx context.Context, e *engine.Engine, t Test, o Options) (*loop, error) {
	l := &loop{ctx: ctx, e: e, t: t, random: rand.New(rand.NewPCG(o.Seed, uint64(t.Context()))), vocab: e.Model().Vocab}
	for range t.seqs() {
		s, err := e.NewSession()
		if err != nil {
			l.close()
			return nil, err
		}
		l.seqs = append(l.seqs, s)
	}
	return l, nil
}

func (l *loop) close() {
	for _, s := range l.seqs {
		s.Close()
	}
}

// tokens makes n random tokens, which last until the next.
func (l *loop) tokens(n int) []int32 {
	l.ids = l.ids[:0]
	for range n {
		l.ids = append(l.ids, int32(l.random.IntN(l.vocab)))
	}
	return l.ids
}

// count takes in the steps that a session has run since.
func (l *loop) count(s *engine.Session, steps int, times engine.StepTimes) {
	l.steps += s.Steps - steps
	l.times = l.times.Plus(s.Times.Minus(times))
}

// prompt runs a prompt of n random tokens in each sequence and selects the best next token on the device, which is
// what a greedy step does.
func (l *loop) prompt(n int) (err error) {
	for _, s := range l.seqs {
		steps, times := s.Steps, s.Times
		if l.top, err = s.Top(l.ctx, l.tokens(n), 1, l.top[:0]); err != nil {
			return err
		}
		l.count(s, steps, times)
	}
	return nil
}

// generate runs n tokens of each sequence, all of them in one step, or in as many groups as there are devices to keep busy, likewise.
func (l *loop) generate(n int) error {
	steps, times := 0, engine.StepTimes{}
	for _, s := range l.seqs {
		steps, times = steps-s.Steps, times.Minus(s.Times)
	}
	err := l.e.Decode(l.ctx, l.seqs, n, func(int, engine.Candidate) int32 { return int32(l.random.IntN(l.vocab)) })
	for _, s := range l.seqs {
		steps, times = steps+s.Steps, times.Plus(s.Times)
	}
	l.steps, l.times = l.steps+steps, l.times.Plus(times)
	return err
}

// start brings the sequences to the test's depth.
func (l *loop) start() error {
	for _, s := range l.seqs {
		s.Reset()
		if l.t.Depth > 0 {
			if err := s.Prefill(l.ctx, l.tokens(l.t.Depth)); err != nil {
				return err
			}
		}
	}
	return nil
}

// warmUp makes every plan that a repetition uses.
func (l *loop) warmUp() error {
	if err := l.start(); err != nil {
		return err
	}
	if l.t.Prompt > 0 {
		if err := l.prompt(l.t.Prompt); err != nil {
			return err
		}
	}
	if l.t.Gen > 0 {
		return l.generate(1)
	}
	return nil
}

// repetition measures once.
func (l *loop) repetition(r *Result) error {
	if err := l.start(); err != nil {
		return err
	}
	l.steps, l.times = 0, engine.StepTimes{}
	before, start := l.e.DeviceStats(), time.Now()
	if l.t.Prompt > 0 {
		if err := l.prompt(l.t.Prompt); err != nil {
			return err
		}
		r.Prefill += time.Since(start)
	}
	if l.t.Gen > 0 {
		if err := l.generate(l.t.Gen); err != nil {
			return err
		}
	}
	took := time.Since(start)
	r.Samples = append(r.Samples, took)
	r.Host += max(0, took-l.times.Wait)
	r.Steps += l.steps
	r.Times = r.Times.Plus(l.times)
	d := l.e.DeviceStats().Sub(before)
	r.Device = d.Sub(vk.Stats{}.Sub(r.Device)) // the sum
	return nil
}
