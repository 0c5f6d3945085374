package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
)

// planResult is what plan --json prints. Its exit code is 5 when the model does not fit.
type planResult struct {
	Schema string `json:"schema"` // "caldera.plan/1"
	*engine.MemoryPlan
	Outlook
}

func (a *app) planCommand() *cobra.Command {
	var x predictFlags
	cmd := &cobra.Command{
		Use:   "plan [MODEL]",
		Short: "Show how much memory a model takes and how fast it would be, before it is loaded",
		Long: `Plan shows what a model would take on a device: weights by where they live and by what they are, the attention
cache, the recurrent state, and the memory of a step. It says whether that fits what is available and, if it does
not, what would. Only the file's header is read and nothing is loaded. run and bench make the same plan and
refuse with it.

Imported weights are the file's own pages, read in place: they take no memory of their own, but are fast only
while the system can keep them in memory. The exit code is 5 when the model does not fit.`,
		Example: `  caldera plan model.gguf
  caldera plan model.gguf --ctx 65536 --slots 4 --device nvidia
  caldera plan model.gguf --ctx 262144 --kv q4_0 --memory-limit 12G
  caldera plan model.gguf --device 0,1 --split auto --device-memory 12G,8G
  caldera plan model.gguf --predict "RTX 4090,RX 7900 XTX" --depth 4096
  caldera plan model.gguf --predict this
  caldera plan model.gguf --json | jq .max_context`,
		Args: upToArgs(1, "see caldera plan --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if a.settings.source["model"] == "flag" {
					return usagef("the model was given twice, as an argument and with --model")
				}
				if a.cfg.Model = args[0]; args[0] == "" {
					return usagef("the model's name is empty; leave it out for the built-in demo")
				}
			}
			if cmd.Flags().Changed("predict") && len(x.devices) == 0 {
				x.devices = []string{""} // what the flag makes of an empty value
			}
			return a.plan(cmd.Context(), x)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&x.devices, "predict", nil, "predict the speed on `devices`: names from docs/devices.md, all, @file.json, this, or the name of a present one")
	f.IntVar(&x.depth, "depth", 0, "`tokens` in the context before those that --predict is about")
	a.addJSON(cmd, "caldera.plan/1")
	addEngineSettings(cmd.Flags(), "device", "slots", "cache-ram")
	return cmd
}

func (a *app) plan(ctx context.Context, x predictFlags) error {
	c := a.engineConfig(0)
	c.Slots = a.cfg.Slots
	a.addCache(&c, c.Slots > 1)
	if err := a.prepare(&c); err != nil {
		return err
	}
	m, err := engine.PlanMemory(c)
	if err != nil {
		return err
	}
	// Kernels may not reach what does not fit, and then cannot be counted.
	o, err := a.outlook(ctx, c, x)
	if err != nil && (m.Fits || len(x.devices) > 0) {
		return err
	}
	if a.json {
		err = a.printJSON(planResult{"caldera.plan/1", m, o})
	} else if err = printPlan(a.out, m); err == nil {
		err = o.print(a.out)
	}
	if err != nil {
		return err
	}
	return m.Refusal()
}

// printPlan prints a plan as tables.
func printPlan(out io.Writer, m *engine.MemoryPlan) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	sum := func(name string, n int64, about string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, size(n), printable(fmt.Sprintf(about, args...)))
	}
	fmt.Fprintf(w, "model\t%s\n", printable(fmt.Sprintf("%s (%s, %d layers)", m.Model, m.Arch, m.Layers)))
	fmt.Fprintf(w, "device\t%s\n", printable(m.Device))
	fmt.Fprintf(w, "for\t%s\n\n", printable(planFor(m)))
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line("WEIGHTS", "SIZE", "TYPES")
	for _, c := range m.Weights.Classes {
		var types []string
		for _, t := range c.Types {
			types = append(types, t.Type)
			if len(c.Types) > 1 {
				types[len(types)-1] += " " + size(t.Bytes)
			}
		}
		sum(c.Class, c.Bytes, "%s", strings.Join(types, ", "))
	}
	fmt.Fprintln(w)
	line("MEMORY", "SIZE", "")
	for _, x := range []struct {
		name, about string
		n           int64
	}{
		{"weights imported", "pages of the file, read in place", m.Weights.Imported},
		{"weights copied", "in memory that the device computes in", m.Weights.Copied},
		{"weights uploaded", "in memory of the device", m.Weights.Uploaded},
		{"weights on the host", "no kernel reads them", m.Weights.Host},
	} {
		if x.n > 0 {
			sum(x.name, x.n, "%s", x.about)
		}
	}
	hot, cold := m.KV.PageBytes*int64(m.KV.Pages), m.KV.ColdPageBytes*int64(m.KV.ColdPages)
	if m.KV.ColdPages == 0 {
		sum("attention cache", hot, "%s", kvPages(m.KV.Pages, m.KV.PageTokens, m.KV.PageBytes, m.KV.Format))
	} else {
		sum("attention cache", hot, "%s", kvPages(m.KV.Pages, m.KV.PageTokens, m.KV.PageBytes, m.KV.Format+" (the beginning and recent tokens)"))
		sum("attention cache", cold, "%s", kvPages(m.KV.ColdPages, m.KV.PageTokens, m.KV.ColdPageBytes, m.KVType))
	}
	sum("recurrent state", m.State.Bytes, "%s a sequence", size(m.State.SlotBytes))
	sum("scratch", m.Scratch, "shared by the steps, of up to %d rows", m.Batch)
	sum("step and results", m.Step+m.Results, "what the host writes and reads")
	if m.Snapshots > 0 {
		sum("prefix cache", m.Snapshots, "most that snapshots take, on the host")
	}
	if m.Staging > 0 {
		sum("staging", m.Staging, "on the host, while loading")
	}
	sum("total", m.Total, "%s of it beside the file's pages", size(m.Needed))
	if err := w.Flush(); err != nil {
		return err
	}
	if len(m.Dies) > 1 {
		w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w)
		line("LAYERS", "WEIGHTS", "CACHE", "STATE", "SCRATCH", "ROWS", "TOTAL", "DEVICE")
		for _, d := range m.Dies {
			line(fmt.Sprintf("%d-%d", d.FirstLayer, d.EndLayer-1), size(d.Weights()), size(d.KV), size(d.State), size(d.Scratch+d.Step+d.Results), size(d.In+d.Out),
				size(d.Total()), printable(d.Device))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w)
	line("POOL", "NEEDED", "AVAILABLE", "")
	for _, x := range m.Pools {
		available, about := "unknown", ""
		if x.Available >= 0 {
			available, about = size(x.Available), x.Source
		}
		if x.Size >= 0 && x.Size != x.Available {
			about += ", of " + size(x.Size)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(x.Name), size(x.Needed), available, printable(about))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if m.Fits && m.Slots > 1 && m.KV.Contexts > 0 {
		fmt.Fprintf(out, "%d sequences run at a time; there is room for %.1f whole contexts at once, and others wait\n", m.Slots, m.KV.Contexts)
	}
	if m.Fits && m.KV.Contexts < float64(m.Slots) {
		fmt.Fprintf(out, "fits; the sequences share pages, of which one alone could use a context of %d, of the model's %d\n", m.MaxContext, m.ModelContext)
	} else if m.Fits {
		fmt.Fprintf(out, "fits; the largest context that fits is %d of the model's %d\n", m.MaxContext, m.ModelContext)
	} else {
		fmt.Fprintln(out, "does not fit")
	}
	if m.AllLogits > 0 {
		fmt.Fprintf(out, "logits of every row (caldera perplexity, caldera logits) take %s more\n", size(m.AllLogits))
	}
	if m.Weights.NotUsed > 0 {
		fmt.Fprintf(out, "not loaded: %s of tensors without a use\n", size(m.Weights.NotUsed))
	}
	for _, s := range m.Notes {
		fmt.Fprintln(out, "note: "+printable(s))
	}
	for _, s := range m.Advice {
		fmt.Fprintln(out, "would help: "+printable(s))
	}
	return nil
}

// kvPages describes pages of the attention cache.
func kvPages(n, tokens int, each int64, format string) string {
	return fmt.Sprintf("%d pages of %d tokens, %s each, %s", n, tokens, size(each), format)
}

// planFor says what a plan is for.
func planFor(m *engine.MemoryPlan) string {
	s := fmt.Sprintf("a sequence of up to %d tokens", m.Context)
	if m.Slots > 1 {
		s = fmt.Sprintf("%d sequences of up to %d tokens", m.Slots, m.Context)
	}
	return s + fmt.Sprintf(", steps of up to %d rows, %s cache", m.Batch, m.KVType)
}
