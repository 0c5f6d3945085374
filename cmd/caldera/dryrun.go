package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/bench"
	"github.com/calderaml/caldera/engine/predict"
	"github.com/calderaml/caldera/vk"
)

// A dryTest is what the steps of a test would do, as bench --dry-run -o json prints it.
type dryTest struct {
	Test        string `json:"test"`
	Batch       int    `json:"n_batch"`
	Rows        int    `json:"step_rows"` // that a step has room for
	Ops         int    `json:"ops"`
	Dispatches  int    `json:"dispatches"`
	Barriers    int    `json:"barriers"`
	WeightBytes int64  `json:"step_weight_bytes"` // at most
	StepFlops   int64  `json:"step_flops"`
}

// dryResult is what bench --dry-run -o json prints.
type dryResult struct {
	Schema string          `json:"schema"` // "caldera.bench-dry-run/1"
	Model  string          `json:"model"`
	Token  *predict.Counts `json:"decoded_token"`
	Tests  []dryTest       `json:"tests"`
}

// addDryRun defines the flag --dry-run, whose value is the device to count for.
func addDryRun(f *pflag.FlagSet, device *string) {
	f.StringVar(device, "dry-run", "", "count what the tests' steps would do instead, without loading weights, on the device that would be used or on a `device` of docs/devices.md")
	f.Lookup("dry-run").NoOptDefVal = thisDevice
}

// dryRun counts what the steps of tests would do.
func (a *app) dryRun(device string, tests []bench.Test, batches []int, format string) error {
	if format != "md" && format != "json" {
		return usagef("--dry-run prints md or json, not %s", format)
	}
	need, slots := 0, 1
	for _, t := range tests {
		need, slots = max(need, t.Context()), max(slots, t.Sequences)
	}
	if a.cfg.Ctx != 0 && a.cfg.Ctx < need {
		return usagef("--ctx is %d, but the tests need %d tokens", a.cfg.Ctx, need)
	}
	c := a.engineConfig(need)
	c.Slots = slots
	if err := a.prepare(&c); err != nil {
		return err
	}
	b, err := engine.OpenBlueprint(c)
	if err != nil {
		return err
	}
	defer b.Close()
	d, err := dryDevice(device, c)
	if err != nil {
		return err
	}
	k := d.Kernels()
	if d.present != nil {
		if k, err = b.Kernels(*d.present); err != nil {
			return err
		}
	} else if err := d.CheckConfig(c); err != nil {
		return err
	}
	r := dryResult{Schema: "caldera.bench-dry-run/1", Model: a.modelName(), Tests: []dryTest{}}
	if r.Token, err = predict.Count(b, d.Name, &k, 1, b.Config().Context); err != nil {
		return err
	}
	for _, batch := range batches {
		for _, t := range tests {
			x := dryTest{Test: t.Name(), Batch: batch, Rows: min(t.Prompt, batch)}
			if t.Gen > 0 {
				x.Rows = max(1, t.Sequences)
			}
			g, err := b.Graph(b.Model(), &k, x.Rows, b.Config().Context)
			if err != nil {
				return err
			}
			n, err := predict.CountGraph(g, &k)
			if err != nil {
				return err
			}
			cost := g.Cost()
			x.Rows, x.Ops, x.Dispatches, x.Barriers = g.Shape.Rows, n.Ops, n.Dispatches, n.Barriers
			x.WeightBytes, x.StepFlops = cost.Weights, cost.Flops
			r.Tests = append(r.Tests, x)
		}
	}
	if format == "json" {
		return a.printJSON(r)
	}
	return a.printDryRun(&r)
}

// printDryRun prints counts as a table.
func (a *app) printDryRun(r *dryResult) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tBATCH\tROWS\tOPS\tDISPATCHES\tBARRIERS\tWEIGHTS AT MOST\tGFLOP")
	for _, t := range r.Tests {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%.2f\n", t.Test, t.Batch, t.Rows, t.Ops, t.Dispatches, t.Barriers, size(t.WeightBytes), float64(t.StepFlops)/1e9)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.out, countLine(r.Token, []string{r.Token.Device}))
	return err
}

// counted is a device to count for.
type counted struct {
	predict.Device
	present *vk.DeviceInfo // nil for one of the table
}

// dryDevice finds a device by name: one of the table, a GPU as such, or one that is present.
func dryDevice(name string, c engine.Config) (counted, error) {
	if slices.Contains([]string{"gpu", "a gpu"}, name) {
		return counted{Device: predict.Generic()}, nil
	}
	ts, err := targetsOf([]string{name})
	if err != nil {
		return counted{}, err
	}
	switch {
	case len(ts) != 1:
		return counted{}, usagef("--dry-run counts for one device, %q names %d", name, len(ts))
	case ts[0].table != nil:
		return counted{Device: *ts[0].table}, nil
	case c.Backend == engine.Reference:
		return counted{}, usagef("the reference backend has no dispatches; name a device, as in --dry-run=gpu")
	}
	in, err := vk.Open(vk.Config{AppName: "caldera"})
	if err != nil {
		return counted{}, err
	}
	defer in.Close()
	info, err := ts[0].find(in, c)
	if err != nil {
		return counted{}, err
	}
	return counted{predict.Device{Name: info.Name}, &info}, nil
}
