package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/predict"
	"github.com/calderaml/caldera/vk"
)

// predictFlags are the flags of plan that ask for speeds.
type predictFlags struct {
	devices []string
	depth   int
}

// Tokens of what is predicted, as bench measures by default.
const (
	predictPrompt = 512
	predictGen    = 128
)

// thisDevice stands for the device that would be used.
const thisDevice = "this"

// Outlook is what can be said of a model's speed from its header.
type Outlook struct {
	Counts      []*predict.Counts   `json:"counts"`
	Predictions []*predict.Estimate `json:"predictions,omitempty"`
}

// outlook counts what a decoded token takes on the device that would be used, and on a GPU where that is none, and
// predicts speeds on the devices asked for.
func (a *app) outlook(ctx context.Context, c engine.Config, x predictFlags) (o Outlook, err error) {
	b, err := engine.OpenBlueprint(c)
	if err != nil {
		return o, err
	}
	defer b.Close()
	tests, err := predictTests(b, x.depth)
	if err != nil {
		return o, err
	}
	targets, err := targetsOf(x.devices)
	if err != nil {
		return o, err
	}
	var in *vk.Instance
	if c.Backend != engine.Reference {
		if in, err = vk.Open(vk.Config{AppName: "caldera"}); err != nil {
			return o, err
		}
		defer in.Close()
	}
	if o.Counts, err = a.counts(b, in, c, targets); err != nil {
		return o, err
	}
	for _, t := range targets {
		es, err := a.predict(ctx, b, in, c, t, tests)
		if err != nil {
			return o, err
		}
		o.Predictions = append(o.Predictions, es...)
	}
	return o, nil
}

// predictTests are the tests, as long as the model's context allows.
func predictTests(b *engine.Blueprint, depth int) ([]predict.Test, error) {
	room := b.Model().Context - depth
	if depth < 0 || room < 1 {
		return nil, usagef("--depth is %d; the model's context is %d", depth, b.Model().Context)
	}
	return []predict.Test{{Gen: min(predictGen, room), Depth: depth}, {Prompt: min(predictPrompt, room), Depth: depth}}, nil
}

// A target is a device to predict for: one of the table, or one that is present.
type target struct {
	table   *predict.Device
	present string // name, or thisDevice
}

// targetsOf reads names of devices, "all" for the whole table, and files of devices, @file.json.
func targetsOf(names []string) ([]target, error) {
	var ts []target
	for _, name := range names {
		name = strings.TrimSpace(name)
		path, isFile := strings.CutPrefix(name, "@")
		var ds []predict.Device
		switch {
		case name == "":
			return nil, usagef("--predict lacks the name of a device; use %s, all, %s, or @file.json", strings.Join(tableNames(), ", "), thisDevice)
		case isFile:
			var err error
			if ds, err = predict.ReadFile(path); err != nil {
				return nil, usagef("--predict: %w", err)
			}
		case strings.EqualFold(name, "all"):
			ds = predict.Devices()
		default:
			d, err := predict.Find(predict.Devices(), name)
			if errors.Is(err, predict.ErrUnknown) {
				ts = append(ts, target{present: name})
				continue
			}
			ds = []predict.Device{d}
		}
		for i := range ds {
			ts = append(ts, target{table: &ds[i]})
		}
	}
	return ts, nil
}

func tableNames() []string {
	var names []string
	for _, d := range predict.Devices() {
		names = append(names, d.Name)
	}
	return names
}

// find returns the present device of a target.
func (t target) find(in *vk.Instance, c engine.Config) (vk.DeviceInfo, error) {
	if in == nil {
		return vk.DeviceInfo{}, usagef("device %q: the reference backend has none; use one of the table: %s", t.present, strings.Join(tableNames(), ", "))
	}
	name := t.present
	if strings.EqualFold(name, thisDevice) {
		name = c.Device
	}
	if name == c.Device && strings.Contains(name, ",") {
		return vk.DeviceInfo{}, usagef("--predict %s: --device names several; predict for each by its name", t.present)
	}
	info, err := in.Select(name)
	if err != nil && name != c.Device {
		err = usagef("device %q is neither in the table of devices (%s) nor present: %w", t.present, strings.Join(tableNames(), ", "), err)
	}
	return info, err
}

// counts are those of the device that would be used, of a GPU if that is none, and of the devices asked for that
// differ from it.
func (a *app) counts(b *engine.Blueprint, in *vk.Instance, c engine.Config, targets []target) ([]*predict.Counts, error) {
	cs := []*predict.Counts{}
	add := func(x *predict.Counts, err error) error {
		if err == nil && !slices.ContainsFunc(cs, func(y *predict.Counts) bool { return y.Device == x.Device }) {
			cs = append(cs, x)
		}
		return err
	}
	present := func(info vk.DeviceInfo) error {
		k, err := b.Kernels(info)
		if err != nil {
			return err
		}
		return add(predict.Count(b, info.Name, &k, 1, b.Config().Context))
	}
	gpu := true
	if in != nil {
		// Of several devices each is counted as if it had all layers.
		infos, err := in.SelectAll(c.Device)
		for _, info := range infos {
			if err == nil {
				gpu, err = gpu && info.Software(), present(info)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	table := func(d predict.Device) error {
		if err := d.CheckConfig(c); err != nil {
			return err
		}
		k := d.Kernels()
		return add(predict.Count(b, d.Name, &k, 1, b.Config().Context))
	}
	// Nobody asked for that GPU: it is left out if it cannot do what was asked for.
	if g := predict.Generic(); gpu && g.CheckConfig(c) == nil {
		if err := table(g); err != nil {
			return nil, err
		}
	}
	for _, t := range targets {
		if t.table != nil {
			if err := table(*t.table); err != nil {
				return nil, err
			}
			continue
		}
		info, err := t.find(in, c)
		if err == nil {
			err = present(info)
		}
		if err != nil {
			return nil, err
		}
	}
	return cs, nil
}

// predict predicts the tests for one target.
func (a *app) predict(ctx context.Context, b *engine.Blueprint, in *vk.Instance, c engine.Config, t target, tests []predict.Test) ([]*predict.Estimate, error) {
	if t.table == nil {
		info, err := t.find(in, c)
		if err != nil {
			return nil, err
		}
		p := a.newProgress()
		defer p.done()
		return predict.Measure(ctx, b, in, info, tests, func(what string) {
			p.update("%s", printable("measuring a sample of the model on "+info.Name+": "+what))
		})
	}
	var es []*predict.Estimate
	for _, x := range tests {
		e, err := t.table.Predict(b, x, b.Batch(false))
		if err != nil {
			return nil, err
		}
		es = append(es, e)
	}
	return es, nil
}

// countLine is what a decoded token takes on devices, in a sentence.
func countLine(c *predict.Counts, devices []string) string {
	s := fmt.Sprintf("a decoded token on %s: %d ops, %d dispatches, %d barriers", strings.Join(devices, ", "), c.Token.Ops, c.Token.Dispatches, c.Token.Barriers)
	for i, l := range []predict.LayerCount{c.DeltaNet, c.Attention, c.Rest} {
		if l.Layers > 0 {
			s += fmt.Sprintf("%s %s dispatches and %s barriers", []string{"; a delta-net layer", ", an attention layer", ", embedding and head"}[i],
				short(l.Dispatches), short(l.Barriers))
		}
	}
	return printable(s)
}

// short is a number with a digit after the point unless that is zero.
func short(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// print prints counts as sentences and predictions as a table.
func (o *Outlook) print(out io.Writer) error {
	for i, c := range o.Counts {
		if j := slices.IndexFunc(o.Counts, func(x *predict.Counts) bool { return x.Same(c) }); j < i {
			continue // told with the first
		}
		var names []string
		for _, x := range o.Counts[i:] {
			if x.Same(c) {
				names = append(names, x.Device)
			}
		}
		fmt.Fprintln(out, countLine(c, names))
	}
	if len(o.Predictions) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PREDICTION\tTEST\tTOK/S\tA STEP\tBYTES\tARITHMETIC\tSERIAL\tDISPATCHES\tBARRIERS\tHOST")
	for _, e := range o.Predictions {
		share := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v/e.Step) }
		x := e.Terms
		fmt.Fprintf(w, "%s\t%s\t%.4g\t%.3g ms\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(e.Device), e.Test, e.TS, 1e3*e.Step,
			share(x.Bytes), share(x.Arithmetic), share(x.Serial), share(x.Dispatches), share(x.Barriers), share(x.Host))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	last := ""
	for _, e := range o.Predictions {
		if e.Short > 0 && e.Device != last {
			fmt.Fprintf(out, "note: the model takes %s more than the memory of %s; the prediction is as if it fitted\n", size(e.Short), printable(e.Device))
			last = e.Device
		}
	}
	return nil
}
