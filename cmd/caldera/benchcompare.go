package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/bench"
)

// compareSchema names the JSON of a comparison.
const compareSchema = "caldera.compare/1"

// compareFlags are the flags of bench compare that are no settings.
type compareFlags struct {
	peer, ours string
	pairs      []string
	delay      int
}

// ownFlags say what is measured in this process, and mean nothing when ours is a command too.
var ownFlags = []string{"model", "backend", "profile", "residency", "ctx", "kv", "kv-sink", "kv-window", "memory-limit", "device",
	"n-prompt", "n-gen", "n-depth", "batch", "pg"}

func (a *app) compareCommand() *cobra.Command {
	var x compareFlags
	cmd := &cobra.Command{
		Use:   "compare --peer \"COMMAND\" [-m MODEL]",
		Short: "Measure against another program, in turns",
		Long: `Compare runs our tests and another program's in turns, -r rounds of each, and prints the medians, the spread
and the ratio, ours to the peer's. Ours run in this process, where the model stays loaded; with --ours they are a
command as well, such as another build of caldera bench.

A command is run by the shell once a round and must print on stdout what llama-bench prints (-o json, jsonl or md),
or lines with a test's name and a speed: "tg32 21.5 tok/s". An interrupt ends the command too, and what whole rounds have shown is printed.
docs/bench.md has the details.`,
		Example: `  caldera bench compare -m model.gguf -p 512 -n 32 --peer "llama-bench -m model.gguf -p 512 -n 32 -r 1 -o json"
  caldera bench compare --ours "./new bench -o json -r 1" --peer "./old bench -o json -r 1"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(x.peer) == "" {
				return usagef("compare with what? Give the command with --peer; see %s --help", cmd.CommandPath())
			}
			if a.cfg.Bench.Repetitions < 1 || x.delay < 0 {
				return usagef("--repetitions must be 1 or more and --delay 0 or more")
			}
			if x.ours != "" {
				for _, name := range ownFlags {
					if cmd.Flags().Changed(name) {
						return usagef("--%s says what is measured here, but --ours is a command: put it there", name)
					}
				}
			}
			return a.compare(cmd.Context(), x)
		},
	}
	f := cmd.Flags()
	f.StringVar(&x.peer, "peer", "", "the other program's `command`")
	f.StringVar(&x.ours, "ours", "", "a `command` to measure instead of this process")
	f.StringArrayVar(&x.pairs, "pg", nil, "also measure a prompt and a generation as one, `P,N`")
	f.IntVar(&x.delay, "delay", 0, "wait this many `seconds` before each run")
	a.addJSON(cmd, compareSchema)
	addSettings(f, "model", "backend", "profile", "residency", "ctx", "kv", "kv-sink", "kv-window", "activations", "matrices", "tuning", "self-test", "memory-limit", "device!",
		"bench.n-prompt", "bench.n-gen", "bench.n-depth", "bench.batch", "bench.repetitions")
	return cmd
}

// A side is one of the two that are compared.
type side struct {
	what string // for errors
	run  func(ctx context.Context) ([]bench.Rate, error)
}

// compare runs the rounds.
func (a *app) compare(ctx context.Context, x compareFlags) (err error) {
	var tests []bench.Test // nil: those that ours prints
	ours := shellSide("--ours", x.ours)
	if x.ours == "" {
		if tests, err = a.benchTests(x.pairs, []string{"1"}); err != nil {
			return err
		}
		var e *engine.Engine
		if e, err = a.openOurs(tests); err != nil {
			return err
		}
		defer closeEngine(e, &err)
		a.noteDevice(e)
		if ours, err = a.ours(ctx, e, tests); err != nil {
			return err
		}
	}
	peer := shellSide("--peer", x.peer)
	samples := map[bench.Test][2][]float64{}
	done := 0
	for err == nil && done < a.cfg.Bench.Repetitions {
		if tests, err = a.compareRound(ctx, done+1, x.delay, [2]side{ours, peer}, tests, samples); err == nil {
			done++
		}
	}
	if err == nil || ctx.Err() != nil && done > 0 {
		if perr := a.printComparison(x, done, tests, samples); err == nil {
			err = perr
		}
	}
	return err
}

// compareRound runs both sides once and adds the tests' speeds to samples, all or none. Tests are those that ours prints if
// there are none yet.
func (a *app) compareRound(ctx context.Context, n, delay int, sides [2]side, tests []bench.Test, samples map[bench.Test][2][]float64) ([]bench.Test, error) {
	p := a.newProgress()
	defer p.done()
	var rates [2][]bench.Rate
	for k, s := range sides {
		p.update("round %d of %d: %s", n, a.cfg.Bench.Repetitions, s.what)
		err := pause(ctx, delay)
		if err == nil {
			rates[k], err = s.run(ctx)
		}
		if err != nil {
			return tests, fmt.Errorf("round %d: %w", n, err)
		}
	}
	if tests == nil {
		for _, r := range rates[0] {
			tests = append(tests, r.Test)
		}
	}
	round := map[bench.Test][2]float64{}
	for _, t := range tests {
		var both [2]float64
		for k, s := range sides {
			var err error
			if both[k], err = bench.Find(rates[k], t); err != nil {
				return tests, fmt.Errorf("round %d: %s: %w", n, s.what, err)
			}
		}
		round[t] = both
	}
	for t, both := range round {
		all := samples[t]
		for k, v := range both {
			all[k] = append(all[k], v)
		}
		samples[t] = all
	}
	return tests, nil
}

// pause waits some seconds.
func pause(ctx context.Context, seconds int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(seconds) * time.Second):
		return nil
	}
}

// openOurs opens the model for the tests.
func (a *app) openOurs(tests []bench.Test) (*engine.Engine, error) {
	need := 0
	for _, t := range tests {
		need = max(need, t.Context())
	}
	if a.cfg.Ctx != 0 && a.cfg.Ctx < need {
		return nil, usagef("--ctx is %d, but the tests need %d tokens", a.cfg.Ctx, need)
	}
	batches, err := a.benchBatches()
	if err != nil {
		return nil, err
	}
	if len(batches) != 1 {
		return nil, usagef("--batch has %d values; compare one at a time", len(batches))
	}
	c := a.engineConfig(need)
	c.Batch, c.Slots = batches[0], 1
	return a.openEngine(c)
}

// ours measures in this process. Plans are made here, before the first round.
func (a *app) ours(ctx context.Context, e *engine.Engine, tests []bench.Test) (side, error) {
	opt := bench.Options{Repetitions: 1, NoWarmup: true, Seed: 1}
	run := func(ctx context.Context) ([]bench.Rate, error) {
		var rates []bench.Rate
		for _, t := range tests {
			r, err := bench.Run(ctx, e, t, opt)
			if err != nil {
				return nil, err
			}
			if r.Recorded > 0 {
				return nil, fmt.Errorf("%w: %s made plans while it was measured; please report this", errCheck, t.Name())
			}
			rates = append(rates, bench.Rate{Test: t, PerSecond: r.PerSecond()[0]})
		}
		return rates, nil
	}
	for _, t := range tests {
		if err := bench.WarmUp(ctx, e, t, opt); err != nil {
			return side{}, err
		}
	}
	return side{"ours", run}, nil
}

// maxPrinted is the most bytes that a command may print on stdout.
const maxPrinted = 16 << 20

// shellSide is a side that the shell runs.
func shellSide(flag, text string) side {
	return side{flag, func(ctx context.Context) ([]bench.Rate, error) {
		out, err := runShell(ctx, text)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var rates []bench.Rate
		if err == nil {
			rates, err = bench.ParseRates(out)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", flag, text, err)
		}
		return rates, nil
	}}
}

// runShell has the shell run a command and returns what it prints. The end of ctx ends it with all that it has started.
func runShell(ctx context.Context, text string) ([]byte, error) {
	shell, option := "sh", "-c"
	if runtime.GOOS == "windows" {
		shell, option = "cmd", "/C"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell, option, text)
	ownGroup(cmd)
	cmd.WaitDelay = 5 * time.Second // for what the shell has started
	out := &capped{most: maxPrinted, full: cancel}
	last := &tail{most: 500}
	cmd.Stdout, cmd.Stderr = out, last
	err := cmd.Run()
	late := errors.Is(err, exec.ErrWaitDelay)
	if cmd.Process != nil && (late || ctx.Err() != nil) {
		_ = killGroup(cmd) // what outlives the shell; mostly nothing
	}
	switch {
	case out.over:
		return nil, fmt.Errorf("it printed more than %s on stdout", size(maxPrinted))
	case late:
		return nil, fmt.Errorf("it ended, but something that it had started kept its output open for %v more", cmd.WaitDelay)
	case err != nil:
		said := strings.TrimSpace(string(last.b))
		if said == "" {
			said = "nothing"
		}
		return nil, fmt.Errorf("%w; it said at the end: %s", err, said)
	}
	return out.b, nil
}

// capped keeps what is written to it, up to most bytes. More calls full and is an error.
type capped struct {
	b    []byte
	most int
	over bool
	full func()
}

func (c *capped) Write(p []byte) (int, error) {
	if c.over = c.over || len(p) > c.most-len(c.b); c.over {
		c.full()
		return 0, io.ErrShortBuffer
	}
	c.b = append(c.b, p...)
	return len(p), nil
}

// A tail keeps the last bytes written to it.
type tail struct {
	b    []byte
	most int
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - t.most; n > 0 {
		t.b = slices.Delete(t.b, 0, n)
	}
	return len(p), nil
}

// printComparison prints what so many rounds have shown.
func (a *app) printComparison(x compareFlags, rounds int, tests []bench.Test, samples map[bench.Test][2][]float64) error {
	var list []bench.Comparison
	for _, t := range tests {
		c, err := bench.Compare(t, samples[t][0], samples[t][1])
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	if !a.json {
		return bench.PrintComparisons(a.out, list)
	}
	w := json.NewEncoder(a.out)
	w.SetIndent("", "  ")
	return w.Encode(struct {
		Schema string             `json:"schema"`
		Ours   string             `json:"ours_command,omitempty"`
		Peer   string             `json:"peer_command"`
		Model  string             `json:"model,omitempty"`
		Rounds int                `json:"rounds"`
		Tests  []bench.Comparison `json:"tests"`
	}{compareSchema, x.ours, x.peer, a.comparedModel(x), rounds, list})
}

// comparedModel names the model that was measured in this process.
func (a *app) comparedModel(x compareFlags) string {
	if x.ours != "" {
		return ""
	}
	return a.modelName()
}
