package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quantize"
)

// quantizeResult is what quantize --json prints.
type quantizeResult struct {
	Schema      string           `json:"schema"` // "caldera.quantize/1"
	Input       string           `json:"input"`
	Output      string           `json:"output"`
	Type        string           `json:"type"` // of the mix
	Pure        bool             `json:"pure"`
	DryRun      bool             `json:"dry_run"` // nothing was written
	Imatrix     *imatrixInfo     `json:"imatrix"` // null without one
	Parameters  uint64           `json:"parameters"`
	BytesBefore int64            `json:"tensor_bytes_before"`
	Bytes       int64            `json:"tensor_bytes"`
	BitsBefore  float64          `json:"bits_per_weight_before"`
	Bits        float64          `json:"bits_per_weight"`
	FileSize    int64            `json:"file_size"`
	Seconds     float64          `json:"seconds"` // 0 in a dry run
	Types       []quantizeType   `json:"types"`   // the largest first
	Tensors     []quantizeTensor `json:"tensors"` // in the order of the file
	Notes       []string         `json:"notes"`
}

type imatrixInfo struct {
	File    string `json:"file"`
	Dataset string `json:"dataset"`
	Chunks  uint32 `json:"chunks"`
	Entries int    `json:"entries"`
	Tensors int    `json:"tensors"` // that have an entry and are quantized by it
}

type quantizeType struct {
	Type          string `json:"type"`
	TensorsBefore int    `json:"tensors_before"`
	BytesBefore   int64  `json:"bytes_before"`
	Tensors       int    `json:"tensors"`
	Bytes         int64  `json:"bytes"`
}

type quantizeTensor struct {
	Name        string   `json:"name"`
	Shape       []uint64 `json:"shape"` // the contiguous dimension first
	From        string   `json:"from"`
	To          string   `json:"to"` // empty if the tensor is dropped
	BytesBefore int64    `json:"bytes_before"`
	Bytes       int64    `json:"bytes"`
	Imatrix     bool     `json:"imatrix"` // quantized by the importance matrix
	Reason      string   `json:"reason"`
}

// maxThreads is the most threads that may be asked for.
const maxThreads = 1024

// quantizeFlags are the flags of quantize, as given.
type quantizeFlags struct {
	rules                 []string
	output, embedding     string
	imatrix               string
	pure, requantize      bool
	dryRun, force         bool
	threads               int
	input, target, mixing string
}

func (a *app) quantizeCommand() *cobra.Command {
	var q quantizeFlags
	cmd := &cobra.Command{
		Use:   "quantize IN OUT TYPE",
		Short: "Make a GGUF model smaller",
		Long: `Quantize writes a copy of a model whose matrices have fewer bits. TYPE is a mix as llama-quantize names them,
which gives the tensors that matter most better types than the rest:
  ` + strings.Join(quantize.MixNames(), ", ") + `
COPY changes no type: it makes one file of a split model. Norms, routers, convolutions and vectors always stay
as they are. IN should be an F32, F16 or BF16 file; of a split model name any part, and OUT is one file.

OUT gets its name when it is complete and on disk; until then, and when quantize fails or is interrupted, nothing
there changes. --dry-run shows what every tensor would become and the size of the file.`,
		Example: `  caldera quantize model-f16.gguf model-q4.gguf Q4_K_M
  caldera quantize model-f16.gguf model-q4.gguf Q4_K_M --imatrix imatrix.gguf --tensor-type ffn_down=q6_k
  caldera quantize model-f16.gguf out.gguf Q4_K_S --pure --tensor-type 'attn_|ssm_=q8_0' --dry-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 4:
				return usagef("quantize takes IN, OUT and TYPE, but was given %q too; the number of threads is --threads", args[3])
			case len(args) != 3:
				return usagef("quantize takes IN, OUT and TYPE, but was given %d arguments; see caldera quantize --help", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.input, q.target, q.mixing = args[0], args[1], args[2]
			return a.quantize(cmd.Context(), q)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&q.rules, "tensor-type", nil,
		"`PATTERN=TYPE`: tensors whose name the regular expression matches somewhere get this type, or keep theirs with =keep; the first that matches decides")
	f.StringVar(&q.output, "output-tensor-type", "", "`type` of the output matrix, or keep")
	f.StringVar(&q.embedding, "token-embedding-type", "", "`type` of the token embedding, or keep")
	f.BoolVar(&q.pure, "pure", false, "one type for every matrix without a --tensor-type, instead of a mix")
	f.StringVar(&q.imatrix, "imatrix", "", "importance matrix `file`, GGUF or .dat: which columns may lose less")
	f.BoolVar(&q.requantize, "allow-requantize", false, "quantize what is quantized already, which loses more than quantizing the original")
	f.IntVarP(&q.threads, "threads", "t", 0, "`N` threads; 0 is one for each processor")
	f.BoolVar(&q.dryRun, "dry-run", false, "show what would be done and write nothing")
	f.BoolVar(&q.force, "force", false, "replace OUT if it exists")
	a.addJSON(cmd, "caldera.quantize/1")
	return cmd
}

func (a *app) quantize(ctx context.Context, q quantizeFlags) error {
	o, err := q.options()
	if err != nil {
		return asUsage(err)
	}
	if q.threads < 0 || q.threads > maxThreads {
		return usagef("--threads is %d; use 1 to %d, or 0 for one for each processor", q.threads, maxThreads)
	}
	if q.threads == 0 {
		q.threads = runtime.GOMAXPROCS(0)
	}
	path, err := a.resolveModel(q.input)
	if err != nil {
		return err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	defer f.Close()
	if err := checkOutput(q.target, q.force, append(f.Parts(), q.imatrix)); err != nil {
		return err
	}
	if q.imatrix != "" {
		if o.Imatrix, err = quantize.ReadImatrix(q.imatrix); err != nil {
			return refused(err)
		}
	}
	p, err := quantize.NewPlan(f, o)
	if err != nil {
		return refused(err)
	}
	for _, n := range p.Notes {
		a.note("note: %s", printable(n))
	}
	var took time.Duration
	if !q.dryRun {
		start, bar := time.Now(), a.newProgress()
		p.KeepExisting = !q.force
		err := p.WriteFile(ctx, q.target, q.threads, quantizeProgress(bar, start))
		bar.done()
		if err != nil {
			return refused(err)
		}
		took = time.Since(start)
	}
	r := newQuantizeResult(p, q, took)
	if a.json {
		return a.printJSON(r)
	}
	return printQuantize(a.out, r)
}

// quantizeProgress shows how far the conversion is.
func quantizeProgress(p *progress, start time.Time) quantize.Progress {
	return func(done, total int64, tensor string) {
		rate := float64(done) / max(time.Since(start).Seconds(), 1e-3)
		p.update("quantizing: %s of %s (%d%%), %s/s, %s",
			size(done), size(total), 100*done/max(total, 1), size(int64(rate)), printable(tensor))
	}
}

// options turns flags into what is wanted.
func (q *quantizeFlags) options() (o quantize.Options, err error) {
	o = quantize.Options{Pure: q.pure, AllowRequantize: q.requantize}
	if o.Mix, err = quantize.ParseMix(q.mixing); err != nil {
		return o, err
	}
	for _, s := range q.rules {
		r, err := quantize.ParseRule(s)
		if err != nil {
			return o, fmt.Errorf("--tensor-type %w", err)
		}
		o.Rules = append(o.Rules, r)
	}
	for _, g := range []struct {
		name, value string
		to          *quantize.Target
	}{{"output-tensor-type", q.output, &o.Output}, {"token-embedding-type", q.embedding, &o.Embedding}} {
		if g.value == "" {
			continue
		}
		if *g.to, err = quantize.ParseTarget(g.value); err != nil {
			return o, fmt.Errorf("--%s: %w", g.name, err)
		}
	}
	return o, nil
}

// refused gives an error of package quantize its exit code and says what to do.
func refused(err error) error {
	switch {
	case errors.Is(err, quantize.ErrQuantized):
		return fmt.Errorf("%w: %w; start from an F32, F16 or BF16 file, or give --allow-requantize and lose a little more", engine.ErrModel, err)
	case errors.Is(err, quantize.ErrInput):
		return fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	return err
}

// checkOutput reports whether a file may be written at path: there is none yet, or it may be replaced, and it is
// none of the inputs, under whatever name.
func checkOutput(path string, force bool, inputs []string) error {
	if path == "-" {
		return usagef("the output cannot be a pipe: name a file")
	}
	if path == "" {
		return usagef("the output has no name")
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return usagef("the folder %s does not exist", dir)
	} else if err != nil {
		return err
	} else if !info.IsDir() {
		return usagef("%s is no folder", dir)
	}
	// A file takes the name in the end: a link would be lost, and what it leads to would stay as it is.
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return usagef("%s is a link; name the file that is to be written", path)
	}
	out, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case out.IsDir():
		return usagef("%s is a folder; name a file in it", path)
	case !out.Mode().IsRegular():
		return usagef("%s is no regular file", path)
	}
	for _, in := range inputs {
		if in == "" {
			continue
		}
		if info, err := os.Stat(in); err == nil && os.SameFile(info, out) {
			return usagef("%s and %s are the same file; name another output", in, path)
		}
	}
	if !force {
		return usagef("%s exists; give --force to replace it", path)
	}
	return nil
}

func newQuantizeResult(p *quantize.Plan, q quantizeFlags, took time.Duration) quantizeResult {
	o := p.Options()
	r := quantizeResult{
		Schema: "caldera.quantize/1", Input: q.input, Output: q.target, Type: o.Mix.Name, Pure: o.Pure, DryRun: q.dryRun,
		FileSize: p.Size(), Seconds: took.Seconds(), Types: []quantizeType{}, Tensors: []quantizeTensor{},
		Notes: append([]string{}, p.Notes...),
	}
	if im := o.Imatrix; im != nil {
		r.Imatrix = &imatrixInfo{im.Name, im.Dataset, im.Chunks, len(im.Entries), p.Covered}
	}
	add := func(name string) *quantizeType {
		i := slices.IndexFunc(r.Types, func(t quantizeType) bool { return t.Type == name })
		if i < 0 {
			i = len(r.Types)
			r.Types = append(r.Types, quantizeType{Type: name})
		}
		return &r.Types[i]
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		t := quantizeTensor{
			Name: d.Tensor.Name, Shape: append([]uint64{}, d.Tensor.Dims...), From: d.Tensor.Type.String(),
			BytesBefore: d.Tensor.Size, Bytes: d.Size, Imatrix: d.Measured(), Reason: d.Reason,
		}
		h := add(t.From)
		h.TensorsBefore++
		h.BytesBefore += t.BytesBefore
		r.Parameters += d.Tensor.Elements()
		r.BytesBefore += t.BytesBefore
		r.Bytes += t.Bytes
		if !d.Drop {
			t.To = d.Type.String()
			h = add(t.To)
			h.Tensors++
			h.Bytes += t.Bytes
		}
		r.Tensors = append(r.Tensors, t)
	}
	slices.SortStableFunc(r.Types, func(a, b quantizeType) int {
		return int(max(min(max(b.Bytes, b.BytesBefore)-max(a.Bytes, a.BytesBefore), 1), -1))
	})
	if r.Parameters > 0 {
		r.BitsBefore = 8 * float64(r.BytesBefore) / float64(r.Parameters)
		r.Bits = 8 * float64(r.Bytes) / float64(r.Parameters)
	}
	return r
}

// printQuantize prints the result for people.
func printQuantize(out io.Writer, r quantizeResult) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if r.DryRun {
		fmt.Fprintf(w, "TENSOR\tSHAPE\tFROM\tTO\tSIZE\tWHY\n")
		for _, t := range r.Tensors {
			dims := make([]string, len(t.Shape))
			for i, d := range t.Shape {
				dims[i] = fmt.Sprint(d)
			}
			to := t.To
			if to == "" {
				to = "-"
			}
			why := t.Reason
			if t.Imatrix {
				why += "; by the importance matrix"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", printable(t.Name), strings.Join(dims, " x "), t.From, to, size(t.Bytes), printable(why))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	w = tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "TYPE\tTENSORS BEFORE\tSIZE BEFORE\tTENSORS\tSIZE\n")
	for _, t := range r.Types {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\n", t.Type, t.TensorsBefore, size(t.BytesBefore), t.Tensors, size(t.Bytes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	verb := "wrote"
	if r.DryRun {
		verb = "would write"
	}
	took := ""
	if !r.DryRun {
		took = fmt.Sprintf(" in %.1f s", r.Seconds)
	}
	_, err := fmt.Fprintf(out, "\n%s parameters, %s of weights at %.2f bits each, were %s at %.2f\n%s %s: %s, %s%s\n",
		count(r.Parameters), size(r.Bytes), r.Bits, size(r.BytesBefore), r.BitsBefore,
		verb, printable(r.Output), r.Type, size(r.FileSize), took)
	return err
}
