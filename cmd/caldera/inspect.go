package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
)

// inspectResult is what inspect --json prints.
type inspectResult struct {
	Schema      string         `json:"schema"` // "caldera.inspect/1"
	File        string         `json:"file"`
	Parts       []string       `json:"parts"`   // files of the model, one unless it is split
	Version     int            `json:"version"` // of the container
	Alignment   int64          `json:"alignment"`
	Size        int64          `json:"size"`          // bytes of all files
	Expected    int64          `json:"expected_size"` // bytes that the files need for their tensors, at least Size; parts that are absent do not count
	Missing     []string       `json:"missing"`       // what is incomplete, empty for a whole model
	Metadata    []metadataInfo `json:"metadata"`
	Tensors     []tensorInfo   `json:"tensors"`
	Totals      []typeTotal    `json:"totals"` // by type, the largest first
	Parameters  uint64         `json:"parameters"`
	TensorBytes int64          `json:"tensor_bytes"`
	Model       *modelInfo     `json:"model"`       // null when the file is no model of a supported family
	Unsupported string         `json:"unsupported"` // why this version does not run it, empty when it does
}

// metadataInfo is a key of the metadata. Value is a JSON value of the key's kind; an array holds the first elements
// only unless --full is given, and a number that JSON does not have is a string.
type metadataInfo struct {
	Key   string        `json:"key"`
	Kind  string        `json:"kind"`           // "uint32", "string", "array", ...
	Elem  string        `json:"elem,omitempty"` // kind of an array's elements
	Len   int           `json:"len,omitempty"`  // elements of an array
	Value any           `json:"value"`
	text  func() string // for people
}

// tensorInfo is an entry of the tensor table.
type tensorInfo struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	Dims   []uint64 `json:"dims"`   // elements, the contiguous dimension first
	Size   int64    `json:"size"`   // bytes
	Part   int      `json:"part"`   // index into parts
	Offset int64    `json:"offset"` // bytes from the start of that file
}

// typeTotal sums up the tensors of a type.
type typeTotal struct {
	Type     string `json:"type"`
	Tensors  int    `json:"tensors"`
	Elements uint64 `json:"elements"`
	Bytes    int64  `json:"bytes"`
}

// modelInfo is the shape of a model that Caldera runs.
type modelInfo struct {
	Arch            string `json:"arch"`
	Name            string `json:"name"`
	Layers          int    `json:"layers"`
	AttentionLayers int    `json:"attention_layers"` // the others are delta nets
	MTPBlocks       int    `json:"mtp_blocks"`
	Context         int    `json:"context"`
	Embed           int    `json:"embedding_length"`
	Vocab           int    `json:"vocab"`
	Heads           int    `json:"heads"`
	KVHeads         int    `json:"kv_heads"`
	HeadDim         int    `json:"head_dim"`
	FFN             int    `json:"feed_forward_length"` // of a dense model
	Experts         int    `json:"experts"`
	ExpertsUsed     int    `json:"experts_used"`
	ExpertFFN       int    `json:"expert_feed_forward_length"`
}

// arrayElements is how many elements of a metadata array are shown.
const arrayElements = 8

func (a *app) inspectCommand() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "inspect MODEL",
		Short: "Show the metadata and tensors of a GGUF file",
		Long: `Inspect shows what a GGUF file holds, whether Caldera runs it or not: the metadata, the tensors with types, shapes
and sizes, and for a supported model its shape. A file that is cut short, such as a download under way, is
shown as far as its header goes, and how much of it is missing. The model is named as for run: a file, a folder, or
user/repo[:quant] in the Hugging Face cache. No device is needed.`,
		Example: `  caldera inspect model.gguf
  caldera inspect model.gguf --json | jq .totals`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("inspect takes one file, but was given %d; see caldera inspect --help", len(args))
			}
			if args[0] == "" {
				return usagef("the file's name is empty")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := a.openFile(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			r := newInspectResult(f, full)
			if len(r.Missing) > 0 {
				a.log.Warn().Str("file", r.File).Msg("the model is incomplete: " + r.shortfall())
			}
			if a.json {
				return a.printJSON(r)
			}
			return printInspect(a.out, r)
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "show arrays and strings in full")
	a.addJSON(cmd, "caldera.inspect/1")
	return cmd
}

func newInspectResult(f *gguf.File, full bool) inspectResult {
	r := inspectResult{
		Schema: "caldera.inspect/1", File: f.Name(), Parts: f.Parts(), Version: f.Version(), Alignment: f.Alignment(0), Size: f.Size(),
		Missing: []string{}, Metadata: []metadataInfo{}, Tensors: []tensorInfo{}, Totals: []typeTotal{},
	}
	for i := range r.Parts {
		have, need := f.Extent(i)
		r.Expected += max(have, need)
	}
	for _, err := range f.Missing() {
		r.Missing = append(r.Missing, err.Error())
	}
	for key, v := range f.KeyValues() {
		r.Metadata = append(r.Metadata, newMetadataInfo(f, key, v, full))
	}
	for _, t := range f.Tensors() {
		name := t.Type.String()
		r.Tensors = append(r.Tensors, tensorInfo{t.Name, name, append([]uint64{}, t.Dims...), t.Size, t.Part, t.Offset})
		i := slices.IndexFunc(r.Totals, func(x typeTotal) bool { return x.Type == name })
		if i < 0 {
			i = len(r.Totals)
			r.Totals = append(r.Totals, typeTotal{Type: name})
		}
		r.Totals[i].Tensors++
		r.Totals[i].Elements += t.Elements()
		r.Totals[i].Bytes += t.Size
		r.Parameters += t.Elements()
		r.TensorBytes += t.Size
	}
	slices.SortStableFunc(r.Totals, func(a, b typeTotal) int { return int(max(min(b.Bytes-a.Bytes, 1), -1)) })
	if c, err := model.ReadConfig(f); err == nil {
		r.Model = newModelInfo(f, c)
	}
	// What the metadata allows the tensors may not: a block type without a kernel, a shape that is off.
	if _, err := model.New(f); err != nil {
		r.Unsupported = err.Error()
	}
	return r
}

// shortfall says how much of an incomplete model is here.
func (r *inspectResult) shortfall() string {
	if r.Expected <= r.Size {
		return printable(r.Missing[0])
	}
	return fmt.Sprintf("%s of %s are here (%d of %d bytes, %.0f %%)",
		size(r.Size), size(r.Expected), r.Size, r.Expected, math.Floor(100*float64(r.Size)/float64(r.Expected)))
}

func newModelInfo(f *gguf.File, c *model.Config) *modelInfo {
	m := &modelInfo{
		Arch: c.Arch, Name: c.Name, Layers: c.Layers, MTPBlocks: c.MTP, Context: c.Context, Embed: c.Embed,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, FFN: c.FFN,
		Experts: c.Experts, ExpertsUsed: c.ExpertsUsed, ExpertFFN: c.ExpertFFN,
	}
	for _, recurrent := range c.Recurrent {
		if !recurrent {
			m.AttentionLayers++
		}
	}
	if t, ok := f.Tensor("token_embd.weight"); ok {
		m.Vocab = int(t.Ne(1))
	}
	return m
}

func newMetadataInfo(f *gguf.File, key string, v gguf.Value, full bool) metadataInfo {
	elements, length := arrayElements, 120
	if full {
		elements, length = -1, -1
	}
	m := metadataInfo{Key: key, Kind: v.Kind().String(), Value: jsonValue{v, elements}}
	m.text = func() string {
		s := v.Text(elements, length)
		if key == "general.file_type" {
			if id, err := f.Uint32(key); err == nil {
				s += " (" + gguf.FileTypeName(id) + ")"
			}
		}
		return s
	}
	if v.Kind() == gguf.KindArray {
		m.Elem, m.Len = v.Elem().String(), v.Len()
	}
	return m
}

// A jsonValue is what JSON has for a metadata value, with at most so many elements of an array; a negative number
// means all. It is written from the file's bytes, so that a large array is never there twice.
type jsonValue struct {
	gguf.Value
	elements int
}

func (v jsonValue) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	array := v.Kind() == gguf.KindArray
	if array {
		b.WriteByte('[')
	}
	n := 0
	for x := range v.Elements() {
		if v.elements >= 0 && n == v.elements {
			break
		}
		if n++; n > 1 {
			b.WriteByte(',')
		}
		if e.Encode(x) != nil { // NaN or an infinity
			e.Encode(fmt.Sprint(x))
		}
		b.Truncate(b.Len() - 1) // the encoder ends lines
	}
	if array {
		b.WriteByte(']')
	}
	return b.Bytes(), nil
}

// printInspect prints the result for people.
func printInspect(out io.Writer, r inspectResult) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "file\t%s\n", printable(r.File))
	if len(r.Parts) > 1 {
		fmt.Fprintf(w, "parts\t%d\n", len(r.Parts))
	}
	fmt.Fprintf(w, "container\tGGUF version %d, alignment %d, %s\n", r.Version, r.Alignment, size(r.Size))
	fmt.Fprintf(w, "weights\t%d tensors, %s parameters, %s\n", len(r.Tensors), count(r.Parameters), size(r.TensorBytes))
	if r.Expected > r.Size {
		fmt.Fprintf(w, "incomplete\t%s\n", r.shortfall())
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "missing\t%s\n", printable(m))
	}
	if m := r.Model; m != nil {
		fmt.Fprintf(w, "model\t%s %s: %s\n", m.Arch, printable(m.Name), m.describe())
	}
	if r.Unsupported != "" {
		fmt.Fprintf(w, "refused\tnot one that caldera runs: %s\n", printable(r.Unsupported))
	}
	fmt.Fprintf(w, "\nMETADATA\tKIND\tVALUE\n")
	for _, m := range r.Metadata {
		kind := m.Kind
		if m.Elem != "" {
			kind = fmt.Sprintf("%s[%d]", m.Elem, m.Len)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(m.Key), kind, printable(m.text()))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "\nTENSOR\tTYPE\tSHAPE\tSIZE\n")
	for _, t := range r.Tensors {
		dims := make([]string, len(t.Dims))
		for i, d := range t.Dims {
			dims[i] = fmt.Sprint(d)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(t.Name), t.Type, strings.Join(dims, " x "), size(t.Size))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "\nTYPE\tTENSORS\tELEMENTS\tSIZE\n")
	for _, t := range r.Totals {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", t.Type, t.Tensors, count(t.Elements), size(t.Bytes))
	}
	return w.Flush()
}

// describe is the model's shape in one line.
func (m *modelInfo) describe() string {
	s := fmt.Sprintf("%d layers (%d attention, %d delta net), width %d, %d heads of %d (%d for keys), ",
		m.Layers, m.AttentionLayers, m.Layers-m.AttentionLayers, m.Embed, m.Heads, m.HeadDim, m.KVHeads)
	if m.Experts > 0 {
		s += fmt.Sprintf("%d of %d experts", m.ExpertsUsed, m.Experts)
	} else {
		s += fmt.Sprintf("feed-forward %d", m.FFN)
	}
	s += fmt.Sprintf(", vocabulary %d, context %d", m.Vocab, m.Context)
	if m.MTPBlocks > 0 {
		s += fmt.Sprintf(", %d MTP block(s) that are not run", m.MTPBlocks)
	}
	return s
}
