package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/vk"
)

// verifyResult is what verify --json prints.
type verifyResult struct {
	Schema  string         `json:"schema"` // "caldera.verify/1"
	Model   string         `json:"model"`
	KV      string         `json:"kv"`
	Profile string         `json:"profile"`
	Tokens  int            `json:"tokens"`
	OK      bool           `json:"ok"`      // every device passed
	Results []deviceVerify `json:"results"` // one a device
}

// deviceVerify is the verdict on a device.
type deviceVerify struct {
	Device string       `json:"device"`
	OK     bool         `json:"ok"`
	First  *opVerify    `json:"first"` // where the device first parts from the reference; null when it does not
	Logits logitsVerify `json:"logits"`
	Ops    []opVerify   `json:"ops"` // in order
}

// opVerify compares an op on a device with the reference on the same inputs. A number that JSON does not have
// (not a number, infinite) is null.
type opVerify struct {
	Layer  int      `json:"layer"` // -1 before the first layer, their number after the last
	Op     string   `json:"op"`
	Kernel string   `json:"kernel"`
	Chunk  int      `json:"chunk"`   // step of the sequence
	MaxErr *float64 `json:"max_err"` // largest difference
	Scale  *float64 `json:"scale"`   // largest magnitude
	Rel    *float64 `json:"rel"`
	Tol    *float64 `json:"tol"` // null where an op is shown and not judged
	OK     bool     `json:"ok"`
}

// logitsVerify compares the logits after the last token, each side having run from the start by itself.
type logitsVerify struct {
	MaxErr *float64 `json:"max_err"`
	Scale  *float64 `json:"scale"`
	Argmax bool     `json:"argmax"` // the best token is the same
}

// finite is a number as JSON has it.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func newOpVerify(c engine.OpCheck) opVerify {
	return opVerify{c.Layer, c.Op, c.Kernel, c.Chunk, finite(c.MaxErr), finite(c.Scale), finite(c.Rel), finite(c.Tol), c.OK}
}

func newDeviceVerify(v *engine.Verification) deviceVerify {
	d := deviceVerify{
		Device: v.Device, OK: v.OK(), Ops: []opVerify{},
		Logits: logitsVerify{finite(v.Logits.MaxErr), finite(v.Logits.Scale), v.Logits.Argmax},
	}
	if v.First != nil {
		first := newOpVerify(*v.First)
		d.First = &first
	}
	for _, c := range v.Ops {
		d.Ops = append(d.Ops, newOpVerify(c))
	}
	return d
}

func (a *app) verifyCommand() *cobra.Command {
	var all, verbose bool
	var breakKernel string
	cmd := &cobra.Command{
		Use:   "verify [-m MODEL]",
		Short: "Check a device against the reference, op by op",
		Long: `Verify runs some tokens through a model on the device and, op by op on the same inputs, through plain Go, and
prints the largest differences. It ends with exit code 7 and names the first layer and op that differ if the
device computes wrongly.`,
		Example: `  caldera verify
  caldera verify -m model.gguf --all-devices
  caldera verify --profile floor -v`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n := a.cfg.Verify.Tokens; n < 2 || n > 512 {
				return usagef("--tokens is %d; use 2 to 512", n)
			}
			devices := []string{a.cfg.Device}
			if all {
				if a.cfg.Device != "" {
					return usagef("--device and --all-devices were both given; use one")
				}
				var err error
				if devices, err = a.usableDevices(); err != nil {
					return err
				}
			}
			return a.verify(cmd.Context(), devices, breakKernel, verbose)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all-devices", false, "check every usable device")
	f.BoolVarP(&verbose, "verbose", "v", false, "print every op instead of the worst of each kernel")
	f.StringVar(&breakKernel, "break", "", "run this `kernel` from damaged code, to see it found")
	_ = f.MarkHidden("break")
	a.addJSON(cmd, "caldera.verify/1")
	addSettings(f, "model", "device", "split", "device-memory", "profile", "residency", "kv", "kv-sink", "kv-window", "batch", "activations", "matrices", "tuning", "self-test", "memory-limit", "verify.tokens")
	return cmd
}

// usableDevices lists the devices by index.
func (a *app) usableDevices() ([]string, error) {
	in, err := vk.Open(vk.Config{AppName: "caldera"})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if _, err := in.Select(""); err != nil {
		return nil, err
	}
	var list []string
	for _, d := range in.Devices() {
		if m := d.Missing(); len(m) > 0 {
			a.log.Warn().Str("device", d.String()).Strs("missing", m).Msg("device is left out")
			continue
		}
		list = append(list, strconv.Itoa(d.Index))
	}
	return list, nil
}

func (a *app) verify(ctx context.Context, devices []string, breakKernel string, verbose bool) error {
	r := verifyResult{Schema: "caldera.verify/1", Model: a.modelName(), KV: a.cfg.KV, Profile: a.cfg.Profile, Tokens: a.cfg.Verify.Tokens, OK: true}
	var failed *engine.Verification
	for _, d := range devices {
		v, err := a.verifyDevice(ctx, d, breakKernel)
		if err != nil {
			return err
		}
		r.Results = append(r.Results, newDeviceVerify(v))
		if !v.OK() {
			r.OK = false
			if failed == nil {
				failed = v
			}
		}
		if !a.json {
			if err := a.printVerification(v, verbose); err != nil {
				return err
			}
		}
	}
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	}
	if failed == nil {
		return nil
	}
	if f := failed.First; f != nil {
		return fmt.Errorf("%w: on %s, layer %d %s (kernel %s) differs from the reference by %.3g of its largest value, more than %.3g; update the driver, or try --profile floor",
			errCheck, failed.Device, f.Layer, f.Op, f.Kernel, f.Rel, f.Tol)
	}
	return fmt.Errorf("%w: on %s every op agrees by itself, but the best token after %d tokens is not the reference's; please report this with caldera verify --json", errCheck, failed.Device, r.Tokens)
}

func (a *app) verifyDevice(ctx context.Context, device, breakKernel string) (v *engine.Verification, err error) {
	n := a.cfg.Verify.Tokens
	c := a.engineConfig(n)
	c.Backend, c.Device, c.BreakKernel = engine.Vulkan, device, breakKernel
	c.Batch = max(c.Batch, n) // the tokens are one step
	e, err := a.openEngine(c)
	if err != nil {
		return nil, err
	}
	defer closeEngine(e, &err)
	return e.Verify(ctx, a.sampleTokens(e, n))
}

// sampleText is what verify runs: ordinary words and a little of everything else.
const sampleText = `The old ship lay at anchor, and 3 gulls sat on its mast. "Who goes there?" cried the boy; nobody answered him. `

// sampleTokens makes n token ids of ordinary text, or of numbers where the model has no vocabulary.
func (a *app) sampleTokens(e *engine.Engine, n int) []int32 {
	var ids []int32
	for len(ids) < n {
		if t := e.Tokenizer(); t != nil {
			ids = append(ids, t.Encode(sampleText, false)...)
		} else {
			ids = append(ids, int32((len(ids)*7919+1)%e.Model().Vocab))
		}
	}
	return ids[:n]
}

// printVerification prints the error table and the verdict of a device.
func (a *app) printVerification(v *engine.Verification, verbose bool) error {
	fmt.Fprintln(a.out, printable(v.Device))
	ops, header := v.Ops, "LAYER\tOP\tKERNEL\tSTEP\tMAX ERROR\tSCALE\tRELATIVE\tALLOWED\t"
	if !verbose {
		ops, header = worstOps(v.Ops), "KERNEL\tWORST AT\tSTEP\tMAX ERROR\tSCALE\tRELATIVE\tALLOWED\t"
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, c := range ops {
		where := fmt.Sprintf("%s\tlayer %d %s", c.Kernel, c.Layer, c.Op)
		if verbose {
			where = fmt.Sprintf("%d\t%s\t%s", c.Layer, c.Op, c.Kernel)
		}
		allowed := fmt.Sprintf("%.1e", c.Tol)
		if math.IsInf(c.Tol, 1) {
			allowed = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%.3g\t%.3g\t%.1e\t%s\t%s\n", where, c.Chunk, c.MaxErr, c.Scale, c.Rel, allowed, a.verdict(c.OK, "", "FAIL"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	best := "the same best token"
	if !v.Logits.Argmax {
		best = "another best token"
	}
	fmt.Fprintf(a.out, "logits: largest difference %.3g of %.3g, %s\n", v.Logits.MaxErr, v.Logits.Scale, best)
	return a.printVerdict(a.out, v)
}

func (a *app) printVerdict(w io.Writer, v *engine.Verification) error {
	_, err := fmt.Fprintf(w, "%s: %d ops checked\n\n", a.verdict(v.OK(), "ok", "FAILED"), len(v.Ops))
	return err
}

// verdict is one of two words, coloured.
func (a *app) verdict(ok bool, yes, no string) string {
	if ok {
		if yes == "" {
			return ""
		}
		return a.paint(a.outColor, green, yes)
	}
	return a.paint(a.outColor, red, no)
}

// worstOps keeps the worst op of each kernel, in order of first use: a failed one before one that passed, then
// the larger error relative to what is allowed.
func worstOps(ops []engine.OpCheck) []engine.OpCheck {
	var worst []engine.OpCheck
	index := map[string]int{}
	for _, c := range ops {
		i, seen := index[c.Kernel]
		if !seen {
			index[c.Kernel] = len(worst)
			worst = append(worst, c)
			continue
		}
		w := worst[i]
		if w.OK && !c.OK || w.OK == c.OK && (c.Rel/c.Tol > w.Rel/w.Tol || math.IsInf(c.Tol, 1) && c.Rel > w.Rel) {
			worst[i] = c
		}
	}
	return worst
}
