package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/bench"
	"github.com/calderaml/caldera/vk"
)

// benchFlags are the flags of bench that are no settings.
type benchFlags struct {
	pairs    []string
	seqs     []string
	noWarmup bool
	delay    int
	ops      bool
	trace    string
	underWay int
}

func (a *app) benchCommand() *cobra.Command {
	var x benchFlags
	var dry string
	cmd := &cobra.Command{
		Use:   "bench [-m MODEL]",
		Short: "Measure speed as llama-bench does",
		Long: `Bench measures prompt processing (pp) and generation (tg) in tokens per second with random tokens, without
tokenizing and sampling, and prints llama-bench's table. -o json, jsonl and csv have llama-bench's names, and
more (schema caldera.bench/1). What a decoded token costs in dispatches, barriers and submits follows on
stderr.`,
		Example: `  caldera bench
  caldera bench -m model.gguf -p 512,2048 -n 128 -d 0,4096 -r 10
  caldera bench -m model.gguf -p 0 -n 32 --sequences 1,4,16
  caldera bench -m model.gguf -p 0 -n 32 --profile-ops
  caldera bench -m model.gguf -o json > bench.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format := a.cfg.Bench.Output
			if a.json {
				format = "json"
			}
			a.json = format != "md"
			isDry := cmd.Flags().Changed("dry-run")
			if isDry && strings.TrimSpace(dry) == "" {
				return usagef("--dry-run= lacks the name of a device; use --dry-run for the one that would be used, or one of docs/devices.md")
			}
			tests, err := a.benchTests(x.pairs, x.seqs)
			if err != nil {
				return err
			}
			batches, err := a.benchBatches()
			if err != nil {
				return err
			}
			if isDry {
				return a.dryRun(dry, tests, batches, format)
			}
			if a.cfg.Bench.Repetitions < 1 || x.delay < 0 {
				return usagef("--repetitions must be 1 or more and --delay 0 or more")
			}
			return a.bench(cmd.Context(), tests, batches, format, x)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&x.pairs, "pg", nil, "also measure a prompt and a generation as one, `P,N`")
	f.StringSliceVar(&x.seqs, "sequences", []string{"1"}, "`numbers` of sequences that generate together, in tests that generate")
	f.BoolVar(&x.noWarmup, "no-warmup", false, "do not run each test once before measuring it")
	f.IntVar(&x.delay, "delay", 0, "wait this many `seconds` before each repetition")
	f.BoolVar(&x.ops, "profile-ops", false, "also time each op of a step of every test on the device, see docs/bench.md")
	f.IntVar(&x.underWay, "under-way", 0, "at most this many `steps` are under way together; 0 is one for each device")
	f.StringVar(&x.trace, "trace", "", "write what each device did and when to a `file`, for chrome://tracing or Perfetto")
	addDryRun(f, &dry)
	f.BoolVar(&a.json, "json", false, "the same as -o json")
	addSettings(f, "model", "backend", "split", "device-memory", "profile", "residency", "ctx", "kv", "kv-sink", "kv-window", "activations", "matrices", "tuning", "self-test", "memory-limit", "device!",
		"bench.n-prompt", "bench.n-gen", "bench.n-depth", "bench.batch", "bench.repetitions", "bench.output")
	cmd.AddCommand(a.compareCommand(), a.benchServeCommand())
	return cmd
}

// benchTests makes the list of tests.
func (a *app) benchTests(pairs, seqs []string) ([]bench.Test, error) {
	var lists [3][]int
	for i, list := range [][]string{a.cfg.Bench.Prompt, a.cfg.Bench.Gen, a.cfg.Bench.Depth} {
		var err error
		if lists[i], err = bench.ParseInts(list); err != nil {
			return nil, usagef("--%s: %w", []string{"n-prompt", "n-gen", "n-depth"}[i], err)
		}
	}
	tests := bench.Tests(lists[0], lists[1], lists[2])
	for _, pair := range pairs {
		v, err := bench.ParseInts([]string{pair})
		if err != nil || len(v) != 2 {
			return nil, usagef("--pg %q: give two numbers, as in 512,128", pair)
		}
		for _, d := range lists[2] {
			tests = append(tests, bench.Test{Prompt: v[0], Gen: v[1], Depth: d})
		}
	}
	if len(tests) == 0 {
		return nil, usagef("nothing to measure: -p and -n are both 0")
	}
	return withSequences(tests, seqs)
}

// withSequences repeats the tests that generate for each number of sequences.
func withSequences(tests []bench.Test, seqs []string) ([]bench.Test, error) {
	numbers, err := bench.ParseInts(seqs)
	if err != nil {
		return nil, usagef("--sequences: %w", err)
	}
	var all []bench.Test
	for _, t := range tests {
		if t.Gen == 0 {
			all = append(all, t)
			continue
		}
		for _, n := range numbers {
			if n < 1 || n > engine.MaxSlots {
				return nil, usagef("--sequences is %d; use 1 to %d", n, engine.MaxSlots)
			}
			t.Sequences = n
			all = append(all, t)
		}
	}
	return all, nil
}

// benchBatches reads the list of batches.
func (a *app) benchBatches() ([]int, error) {
	batches, err := bench.ParseInts(a.cfg.Bench.Batch)
	if err != nil {
		return nil, usagef("--batch: %w", err)
	}
	for _, b := range batches {
		if b < 1 || b > maxBatch {
			return nil, usagef("--batch is %d; use 1 to %d", b, maxBatch)
		}
	}
	return batches, nil
}

// bench runs every test with every batch.
func (a *app) bench(ctx context.Context, tests []bench.Test, batches []int, format string, x benchFlags) (err error) {
	need, slots := 0, 1
	for _, t := range tests {
		need, slots = max(need, t.Context()), max(slots, t.Sequences)
	}
	if a.cfg.Ctx != 0 && a.cfg.Ctx < need {
		return usagef("--ctx is %d, but the tests need %d tokens", a.cfg.Ctx, need)
	}
	v := newVersion()
	setup := bench.Setup{
		Commit: v.Commit, Dirty: v.Dirty, Model: a.modelName(), Backend: a.cfg.Backend, Device: a.cfg.Device, Profile: a.cfg.Profile, KV: a.cfg.KV, Seed: 1,
	}
	w, err := bench.NewWriter(format, a.out, len(batches) > 1)
	if err != nil {
		return usageError{err}
	}
	c := a.engineConfig(need)
	c.Batch, c.Slots = max(slices.Max(batches), slots), slots
	c.UnderWay = x.underWay
	trace := bench.NewTrace()
	if x.trace != "" {
		c.Trace = trace.Add
	}
	e, err := a.openEngine(c)
	if err != nil {
		return err
	}
	names := e.DeviceNames()
	defer closeEngine(e, &err)
	a.noteDevice(e)
	setup.Hardware = hardware(e.DeviceInfo())
	opt := bench.Options{Repetitions: a.cfg.Bench.Repetitions, NoWarmup: x.noWarmup, Delay: time.Duration(x.delay) * time.Second, Seed: setup.Seed}
	copyRate := 0.0
	if x.ops {
		if copyRate, err = e.CopyRate(); err != nil {
			return err
		}
	}
	var records []bench.Record
	for _, b := range batches {
		if err := e.SetBatch(b); err != nil {
			return err
		}
		for _, t := range tests {
			trace.Mark(t.Name())
			r, err := a.measure(ctx, e, t, opt)
			if err != nil {
				return err
			}
			rec := bench.NewRecord(e, setup, r)
			if x.ops {
				if rec.Profiles, err = bench.Profile(ctx, e, t, opt, copyRate); err != nil {
					return err
				}
			}
			records = append(records, rec)
			if err := w.Write(rec); err != nil {
				return err
			}
		}
	}
	err = w.Close()
	if x.trace != "" {
		err = errors.Join(err, a.writeFile(x.trace, func(w io.Writer) error { return trace.Write(w, names) }))
	}
	if format == "md" {
		err = errors.Join(err, a.printProfiles(records))
	}
	return errors.Join(err, a.noteCosts(records))
}

// printProfiles prints the ops of each test's steps.
func (a *app) printProfiles(records []bench.Record) error {
	for _, r := range records {
		for _, p := range r.Profiles {
			t := r.Test()
			if _, err := fmt.Fprintf(a.out, "\n%s, ", t.Name()); err != nil {
				return err
			}
			if err := p.Print(a.out); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure runs one test, showing progress.
func (a *app) measure(ctx context.Context, e *engine.Engine, t bench.Test, opt bench.Options) (*bench.Result, error) {
	p := a.newProgress()
	defer p.done()
	opt.Progress = func(i, of int, took time.Duration) { p.update("%s: %d of %d, %.3f s", t.Name(), i, of, took.Seconds()) }
	return bench.Run(ctx, e, t, opt)
}

// hardware describes the device of an engine.
func hardware(d vk.DeviceInfo) bench.Hardware {
	return bench.Hardware{
		Name: d.Name, Driver: strings.TrimSpace(d.DriverName + " " + d.DriverInfo), API: d.API.String(),
		VendorID: d.VendorID, DeviceID: d.DeviceID, SubgroupSize: d.Subgroup.Size,
	}
}

// noteWeights tells how much of the weights a step reads, where tests have more sequences than one.
func (a *app) noteWeights(records []bench.Record) {
	seen := map[int]bool{}
	for _, r := range records {
		if r.Gen > 0 && !seen[r.Sequences] && benchesSequences(records) {
			seen[r.Sequences] = true
			a.note("a step of %d sequences reads %s of the weights at most, and computes %.2f GFLOP",
				r.Sequences, size(r.WeightBytes), float64(r.StepFlops)/1e9)
		}
	}
}

// benchesSequences reports whether some test had several.
func benchesSequences(records []bench.Record) bool {
	return slices.ContainsFunc(records, func(r bench.Record) bool { return r.Sequences > 1 })
}

// noteCosts tells what a decoded token costs, and fails when work was recorded while measuring.
func (a *app) noteCosts(records []bench.Record) error {
	r := records[0]
	if r.MemoryUsed > 0 {
		a.note("memory used: %s beside the file's pages, planned %s", size(r.MemoryUsed), size(r.MemoryPlanned))
	}
	a.noteWeights(records)
	a.note("a decoded token: %d ops, %d dispatches, %d barriers, %d submits, %d command buffers", r.Ops, r.Dispatches, r.Barriers, r.Submits, r.CommandBuffers)
	for _, r := range records {
		name := r.Test().Name()
		if len(a.cfg.Bench.Batch) > 1 {
			name += fmt.Sprintf(", batch %d", r.Batch)
		}
		if r.Unplanned != 0 {
			a.note("%s: %d submits more than planned", name, r.Unplanned)
		}
		a.note("%s: host %.1f µs a token, recorded again: %d, cold start %.3f s", name, float64(r.HostNSPerToken)/1e3, r.RecordedAgain, float64(r.ColdNS)/1e9)
		us := func(ns int64) float64 { return float64(ns) / 1e3 }
		a.note("%s: of a step, forming it %.1f µs, writing it %.1f, submitting %.1f, waiting %.1f, reading results %.1f (means of %d)",
			name, us(r.StepForm), us(r.StepWrite), us(r.StepSubmit), us(r.StepWait), us(r.StepRead), r.Steps)
	}
	for _, r := range records {
		if r.Warmup && (r.RecordedAgain > 0 || r.PipelinesMade > 0) {
			t := r.Test()
			return fmt.Errorf("%w: %s made plans while it was measured (%d recordings, %d pipelines); please report this", errCheck, t.Name(), r.RecordedAgain, r.PipelinesMade)
		}
	}
	return nil
}
