package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/tuning"
	"github.com/calderaml/caldera/vk"
)

// tuneReport is what tune --json prints.
type tuneReport struct {
	Schema  string        `json:"schema"` // "caldera.tune/1"
	Model   string        `json:"model"`
	Device  string        `json:"device"`
	Profile string        `json:"profile"`
	Path    string        `json:"path"` // of the file
	Uses    []tunedUse    `json:"uses"`
	Steps   []tunedStep   `json:"steps"`
	Refused []string      `json:"refused"` // found fast, but not used
	Took    time.Duration `json:"took_ns"`
}

type tunedUse struct {
	Kernel string  `json:"kernel"`
	Type   string  `json:"type"`
	In     int     `json:"in"`
	Scheme string  `json:"scheme"`
	Group  int     `json:"group"`
	Tokens []int   `json:"tokens"` // at once, in steps of 1, 2, 4, .. rows
	Plain  bool    `json:"plain"`  // as without tuning
	Kept   bool    `json:"kept"`   // it will be used: it is not plain, and was not refused
	Gain   float64 `json:"gain"`   // time of the plain way over its
}

type tunedStep struct {
	Rows  int           `json:"rows"`
	Plain time.Duration `json:"plain_ns"`
	Tuned time.Duration `json:"tuned_ns"`
}

func (a *app) tuneCommand() *cobra.Command {
	var rows []int
	var reset bool
	cmd := &cobra.Command{
		Use:   "tune [-m MODEL]",
		Short: "Measure how a model's kernels are fastest on a device, and keep that",
		Long: `Tune tries every way that this device has for the kernels that read weights, in steps of a model, and keeps
the fastest in the cache folder (CALDERA_CACHE_DIR), under the device and its driver. Commands that begin later
use it, with any model that has matrices of the same types and widths; --tuning off leaves it out. A new driver or version
of Caldera needs a new tuning. Results change by rounding only: what was found is checked against the reference, and what
differs is not used. Nothing else should run meanwhile.

What is found holds for one device: name it with --device where there are several. Each way of each step is measured for
0.3 s or three steps, whichever is longer, after its kernels are compiled: that is some minutes, of which --rows saves most,
and many on a software device. An interrupt ends it, and nothing is kept.`,
		Example: `  caldera tune
  caldera tune -m model.gguf --rows 1,64
  caldera tune -m model.gguf --device nvidia
  caldera tune --reset`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opt := engine.TuneOptions{Rows: rows}
			if err := opt.Check(maxBatch); err != nil {
				return usagef("--rows: %w", err)
			}
			if vk.CacheDir() == "" {
				return usagef("a tuning has to be kept somewhere: set CALDERA_CACHE_DIR to a folder")
			}
			if reset {
				return a.resetTuning()
			}
			return a.tune(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&rows, "rows", nil, "measure steps of these numbers of `rows`, powers of two; default 1, 4, 16, .. up to the batch")
	f.BoolVar(&reset, "reset", false, "forget the device's tuning")
	a.addJSON(cmd, "caldera.tune/1")
	addSettings(f, "model", "device", "profile", "residency", "activations", "batch", "self-test", "memory-limit")
	return cmd
}

// resetTuning removes the tuning of the device that is chosen.
func (a *app) resetTuning() error {
	in, err := vk.Open(vk.Config{AppName: "caldera"})
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Select(a.cfg.Device)
	if err != nil {
		return err
	}
	p, err := vk.ProfileFor(info, a.cfg.Profile)
	if err != nil {
		return err
	}
	if err := tuning.Remove(vk.CacheDir(), tuning.For(info, p)); err != nil {
		return err
	}
	a.note("%s has no tuning now", printable(info.String()))
	return nil
}

func (a *app) tune(ctx context.Context, opt engine.TuneOptions) (err error) {
	c := a.engineConfig(0)
	c.Backend, c.TuningDir = engine.Vulkan, vk.CacheDir()
	if err := a.checkRows(c, opt); err != nil {
		return err
	}
	e, err := a.openEngine(c)
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	a.noteDevice(e)
	start := time.Now()
	p := a.newProgress()
	opt.Progress = func(x engine.TuneProgress) {
		p.update("tuning: step %d of %d (%d rows), %d of %d: %s", x.Step, x.Steps, x.Rows, x.Candidate, x.Candidates, x.What)
	}
	r, err := e.Tune(ctx, opt)
	p.done()
	if err != nil {
		if ctx.Err() != nil {
			a.note("nothing of this was kept; what was found before holds")
		}
		return fmt.Errorf("tuning: %w", err)
	}
	t := tuneReport{Schema: "caldera.tune/1", Model: a.modelName(), Device: e.Device(), Profile: a.cfg.Profile, Path: r.Path,
		Uses: []tunedUse{}, Steps: []tunedStep{}, Refused: append([]string{}, r.Refused...), Took: time.Since(start)}
	for _, u := range r.Uses {
		t.Uses = append(t.Uses, tunedUse{u.Use.Kernel, u.Use.Type.String(), u.Use.In, string(u.Way.Scheme), u.Way.Group, u.Way.Tokens, u.Plain, u.Kept, u.Gain})
	}
	for _, s := range r.Steps {
		t.Steps = append(t.Steps, tunedStep(s))
	}
	if a.json {
		return a.printJSON(t)
	}
	return a.printTuning(t)
}

// checkRows refuses rows that steps of the model cannot have on the device, before anything is loaded.
func (a *app) checkRows(c engine.Config, opt engine.TuneOptions) error {
	if len(opt.Rows) == 0 {
		return nil
	}
	if err := a.prepare(&c); err != nil {
		return err
	}
	b, err := engine.OpenBlueprint(c)
	if err != nil {
		return err
	}
	defer b.Close()
	in, err := vk.Open(vk.Config{AppName: "caldera"})
	if err != nil {
		return err
	}
	defer in.Close()
	infos, err := in.SelectAll(c.Device)
	if err != nil {
		return err
	}
	if err := opt.Check(min(b.Batch(infos[0].Software()), b.Config().Context)); err != nil {
		return usagef("--rows: %w", err)
	}
	return nil
}

func (a *app) printTuning(t tuneReport) error {
	if !slices.ContainsFunc(t.Uses, func(u tunedUse) bool { return u.Kept }) {
		for _, x := range t.Refused {
			fmt.Fprintf(a.out, "not used: %s\n", printable(x))
		}
		_, err := fmt.Fprintf(a.out, "nothing faster was found in %.0f s: the model's kernels go their plain ways\n", t.Took.Seconds())
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "KERNEL\tTYPE\tROW\tSCHEME\tGROUP\tTOKENS AT ONCE\tGAIN\t")
	for _, u := range t.Uses {
		var tokens []string
		for _, n := range u.Tokens {
			tokens = append(tokens, strconv.Itoa(n))
		}
		note := ""
		switch {
		case u.Plain:
			note = "as before"
		case !u.Kept:
			note = "not used"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%.2f\t%s\n", u.Kernel, u.Type, u.In, u.Scheme, u.Group, strings.Join(tokens, " "), u.Gain, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	fmt.Fprintln(w, "ROWS OF A STEP\tBEFORE\tTUNED\tRATIO")
	for _, s := range t.Steps {
		fmt.Fprintf(w, "%d\t%.2f ms\t%.2f ms\t%.2f\n", s.Rows, s.Plain.Seconds()*1e3, s.Tuned.Seconds()*1e3, s.Plain.Seconds()/max(s.Tuned.Seconds(), 1e-9))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, x := range t.Refused {
		fmt.Fprintf(a.out, "not used: %s\n", printable(x))
	}
	_, err := fmt.Fprintf(a.out, "kept in %s after %.0f s\n", printable(t.Path), t.Took.Seconds())
	return err
}
