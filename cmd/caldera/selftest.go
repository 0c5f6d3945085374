package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// selfTestResult is what selftest --json prints.
type selfTestResult struct {
	Schema  string           `json:"schema"` // "caldera.selftest/1"
	Model   string           `json:"model"`
	Fault   string           `json:"fault,omitempty"` // that was injected
	OK      bool             `json:"ok"`              // every device has right kernels
	Results []deviceSelfTest `json:"results"`         // one a device
}

// deviceSelfTest is what was found of a device.
type deviceSelfTest struct {
	Device   string        `json:"device"`
	Profile  string        `json:"profile"`
	OK       bool          `json:"ok"`
	Error    string        `json:"error,omitempty"` // why the device has no right kernels
	Rejected []string      `json:"rejected"`        // features that the driver reports, and refuses
	Without  string        `json:"without"`         // what is left out in the end, "" for nothing
	Untested []string      `json:"untested"`        // kernels in use that were not compared
	Checks   []kernelCheck `json:"checks"`          // in order
	Took     time.Duration `json:"took_ns"`
}

// kernelCheck compares a kernel, as the device compiles it, with its twin. A number that JSON does not have (infinite) is null.
type kernelCheck struct {
	Kernel  string   `json:"kernel"`
	Type    string   `json:"type"`   // block type, "" for kernels without weights
	Scheme  string   `json:"scheme"` // "" for kernels that have one alone
	Spec    string   `json:"spec"`   // specialization constants
	Op      string   `json:"op"`     // where it was worst
	Rows    int      `json:"rows"`
	MaxErr  *float64 `json:"max_err"`
	Scale   *float64 `json:"scale"`
	Rel     *float64 `json:"rel"`
	Tol     *float64 `json:"tol"`
	OK      bool     `json:"ok"`
	Error   string   `json:"error,omitempty"`
	Without string   `json:"without"` // what was left out at the time
}

func (a *app) selfTestCommand() *cobra.Command {
	var fault string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "selftest [MODEL]",
		Short: "Compare the kernels that a model would use on a device with plain Go",
		Long: `Selftest compiles every kernel that a model would use on a device, in every form, runs it on small made-up data and
compares it with the same in plain Go. Where some are wrong it shows what Caldera does without on this device, and where no right
ones are left it ends with exit code 7. Of the model only the header is read.

Every command that opens a model does the same for what has not passed on the device and its driver before, and keeps what
it finds (CALDERA_CACHE_DIR); --self-test says otherwise. Selftest compares all of it again.`,
		Example: `  caldera selftest
  caldera selftest model.gguf --device all
  caldera selftest --profile kepler`,
		Args: upToArgs(1, "see caldera selftest --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if a.settings.source["model"] == "flag" {
					return usagef("the model was given twice, as an argument and with --model")
				}
				if a.cfg.Model = args[0]; args[0] == "" {
					return usagef("the model's name is empty; leave it out for the built-in demo")
				}
			}
			devices := []string{a.cfg.Device}
			if strings.EqualFold(a.cfg.Device, "all") {
				var err error
				if devices, err = a.usableDevices(); err != nil {
					return err
				}
			}
			return a.selfTest(cmd.Context(), devices, fault, verbose)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&verbose, "verbose", "v", false, "print every form of every kernel instead of the worst of each")
	f.StringVar(&fault, "fault", "", "inject this `fault` of drivers, to see it found")
	_ = f.MarkHidden("fault")
	a.addJSON(cmd, "caldera.selftest/1")
	addSettings(f, "model", "device", "profile", "ctx", "kv", "kv-sink", "kv-window", "batch", "activations", "matrices", "tuning")
	return cmd
}

func (a *app) selfTest(ctx context.Context, devices []string, fault string, verbose bool) error {
	c := a.engineConfig(0)
	c.Backend, c.Fault, c.SelfTestDir = engine.Vulkan, fault, vk.CacheDir()
	if err := a.prepare(&c); err != nil {
		return err
	}
	all := selfTestResult{Schema: "caldera.selftest/1", Model: a.modelName(), Fault: fault, OK: true}
	var failed error
	for _, d := range devices {
		c.Device = d
		r, err := engine.SelfTest(ctx, c)
		if err != nil {
			return err
		}
		if err := r.Err(); err != nil {
			all.OK, failed = false, errors.Join(failed, err)
		}
		all.Results = append(all.Results, newDeviceSelfTest(r))
		if !a.json {
			if err := a.printSelfTest(r, verbose); err != nil {
				return err
			}
		}
	}
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if failed != nil {
		return fmt.Errorf("%w: %w", errCheck, failed)
	}
	return nil
}

func newDeviceSelfTest(r *engine.SelfTestReport) deviceSelfTest {
	d := deviceSelfTest{
		Device: r.Device, Profile: r.Profile, OK: r.OK(), Without: r.Without, Took: r.Took,
		Rejected: append([]string{}, r.Rejected...), Untested: append([]string{}, r.Untested...), Checks: []kernelCheck{},
	}
	if err := r.Err(); err != nil {
		d.Error = err.Error()
	}
	for _, c := range r.Checks {
		d.Checks = append(d.Checks, kernelCheck{
			c.Kernel(), c.Type(), c.Scheme(), c.Spec, c.Op, c.Rows, finite(c.MaxErr), finite(c.Scale), finite(c.Rel), finite(c.Tol), c.OK, c.Err, c.Without,
		})
	}
	return d
}

// printSelfTest prints the table of a device and what follows from it.
func (a *app) printSelfTest(r *engine.SelfTestReport, verbose bool) error {
	fmt.Fprintln(a.out, printable(r.Device))
	if len(r.Rejected) > 0 {
		fmt.Fprintf(a.out, "the driver reports %s, and makes no device with it\n", strings.Join(r.Rejected, ", "))
	}
	checks := r.Checks
	if !verbose {
		checks = worstVariants(checks)
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "KERNEL\tTYPE\tSCHEME\tCONSTANTS\tROWS\tMAX ERROR\tRELATIVE\tALLOWED\t\tCHECKED")
	for _, c := range checks {
		without := c.Without
		if without == "" {
			without = "with all kernels"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.3g\t%.1e\t%.1e\t%s\t%s\n", c.Kernel(), dash(c.Type()), dash(c.Scheme()), dash(c.Spec), c.Rows, c.MaxErr, c.Rel, c.Tol,
			a.verdict(c.OK, "ok", "FAIL"), without)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, u := range r.Untested {
		fmt.Fprintf(a.out, "not compared: %s\n", u)
	}
	forms := fmt.Sprintf("%d forms of kernels compared in %.2f s", len(r.Checks), r.Took.Seconds())
	var err error
	switch {
	case !r.OK():
		_, err = fmt.Fprintf(a.out, "%s: no right kernels are left; %s\n\n", a.verdict(false, "", "FAILED"), forms)
	case r.Without != "":
		_, err = fmt.Fprintf(a.out, "%s: the device runs %s; %s\n\n", a.verdict(true, "ok", ""), r.Without, forms)
	default:
		_, err = fmt.Fprintf(a.out, "%s: %s\n\n", a.verdict(true, "ok", ""), forms)
	}
	return err
}

// dash stands for nothing in a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// worstVariants keeps the worst form of each kernel, block type and scheme, and all that failed.
func worstVariants(checks []engine.SelfTestCheck) []engine.SelfTestCheck {
	var worst []engine.SelfTestCheck
	index := map[string]int{}
	for _, c := range checks {
		key := c.Without + "/" + c.Module
		i, seen := index[key]
		switch {
		case !c.OK:
			worst = append(worst, c)
		case !seen:
			index[key] = len(worst)
			worst = append(worst, c)
		case c.Rel > worst[i].Rel:
			worst[i] = c
		}
	}
	return worst
}
