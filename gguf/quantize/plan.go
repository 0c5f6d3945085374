// Package quantize makes GGUF models smaller: it decides which type every
// tensor gets (recipe.go, plan.go), reads importance matrices (imatrix.go), and
// converts on all processors in memory that does not grow with the model
// (convert.go). The encoders themselves are those of package quant.
package quantize

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

var (
	// ErrInput is in the chain of the error for a model or importance matrix
	// that cannot be worked with.
	ErrInput = errors.New("input refused")

	// ErrQuantized is in the chain of the error for a model whose tensors are
	// quantized already, when quantizing again was not allowed.
	ErrQuantized = errors.New("quantized already")
)

// An inputError is an error with ErrInput in its chain, whose text says enough
// without that.
type inputError struct{ error }

func (e inputError) Unwrap() []error { return []error{ErrInput, e.error} }

func inputf(format string, args ...any) error { return inputError{fmt.Errorf(format, args...)} }

// maxRow is the most elements of a row that is converted: a worker holds one as
// float32. Rows of models have some ten thousand.
const maxRow = 1 << 26

// Options say what is wanted of a conversion.
type Options struct {
	Mix       Mix
	Pure      bool     // the mix's base type for every tensor without a rule
	Rules     []Rule   // the first that matches a tensor decides, before the mix
	Output    Target   // of output.weight, or of the token embedding that serves as one, before any rule
	Embedding Target   // of token_embd.weight and per_layer_token_embd.weight, before any rule
	Imatrix   *Imatrix // or nil

	AllowRequantize bool // tensors that are quantized already may be changed
}

// A Decision is what happens to one tensor.
type Decision struct {
	Tensor *gguf.Tensor
	Type   quant.Type // of the result
	Size   int64      // bytes of the result; 0 for one that is dropped
	Reason string     // for people
	Drop   bool       // its values go into another tensor

	importance []float32 // ne0, or ne0 for each matrix of a stack; nil for none
	factors    []float32 // what values are multiplied with: one, or one for each matrix of a stack; nil for none
}

// Copied reports whether the tensor's bytes stay as they are.
func (d *Decision) Copied() bool { return !d.Drop && d.Type == d.Tensor.Type }

// Measured reports whether an importance matrix has a part in the conversion.
func (d *Decision) Measured() bool { return d.importance != nil }

// A Plan is a decision for every tensor of a model.
type Plan struct {
	// KeepExisting makes WriteFile fail with an fs.ErrExist rather than replace a file.
	KeepExisting bool

	Decisions []Decision // in the order of the file
	Notes     []string   // what somebody should know
	Covered   int        // tensors that the importance matrix has a part in

	file *gguf.File
	o    Options
	size int64
}

// Size returns the size in bytes of the file that the plan makes.
func (p *Plan) Size() int64 { return p.size }

// Options returns what the plan was made for.
func (p *Plan) Options() Options { return p.o }

// A planner decides about the tensors of one file.
type planner struct {
	f     *gguf.File
	o     Options
	shape shape
	turns map[string]int // place among the tensors of class value
	used  []bool         // rules that matched
}

// NewPlan decides about every tensor of f, which must stay open while the plan
// is used. Nothing but headers, scales and the importance matrix is read.
func NewPlan(f *gguf.File, o Options) (*Plan, error) {
	if kind, err := f.String("general.type"); err == nil && kind == "imatrix" {
		return nil, inputf("%s is an importance matrix, not a model", f.Name())
	}
	w := &planner{f: f, o: o, used: make([]bool, len(o.Rules))}
	w.survey()
	p := &Plan{file: f, o: o}
	var requantized []*Decision
	for _, t := range f.Tensors() {
		d, err := w.decide(t)
		if err != nil {
			return nil, err
		}
		p.Decisions = append(p.Decisions, d)
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if d.Copied() || d.Drop {
			continue
		}
		if d.Tensor.Type.BlockSize() > 1 {
			requantized = append(requantized, d)
		}
		if err := p.prepare(d); err != nil {
			return nil, err
		}
	}
	if n := len(requantized); n > 0 && !o.AllowRequantize {
		t := requantized[0].Tensor
		return nil, inputf("%s: %w: %d tensors, such as %s (%v)", f.Name(), ErrQuantized, n, t.Name, t.Type)
	}
	p.note(w)
	writer, err := p.writer(func(*Decision) func(io.Writer) error { return nil })
	if err != nil {
		return nil, err
	}
	if p.size, err = writer.Size(); err != nil {
		return nil, err
	}
	return p, nil
}

// blockOf returns the layer in a name such as blk.12.attn_v.weight, or -1.
func blockOf(name string) int {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return -1
	}
	digits, _, ok := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil {
		return -1
	}
	return int(n)
}

// survey finds what the rules of mixes need to know about the model.
func (w *planner) survey() {
	s := &w.shape
	s.tied, s.measured = true, w.o.Imatrix != nil
	var values []string
	for _, t := range w.f.Tensors() {
		s.blocks = max(s.blocks, blockOf(t.Name)+1)
		switch classOf(t.Name) {
		case output:
			s.tied = false
		case value:
			values = append(values, t.Name)
		}
	}
	// The order of tensors in the file must not matter.
	slices.SortFunc(values, func(a, b string) int {
		return cmp.Or(cmp.Compare(blockOf(a), blockOf(b)), cmp.Compare(a, b))
	})
	s.values, w.turns = len(values), make(map[string]int, len(values))
	for i, name := range values {
		w.turns[name] = i
	}
	arch, err := w.f.String("general.architecture")
	if err != nil {
		return // the rules then go by the tensors alone
	}
	if n, err := w.f.Int(arch + ".block_count"); err == nil && n <= gguf.MaxBlockCount {
		s.blocks = max(s.blocks, n)
	}
	if n, err := w.f.Int(arch + ".expert_count"); err == nil {
		s.experts = n
	}
	s.gqa = w.grouping(arch)
}

// grouping returns the query heads for each key head of the first layer with
// attention, 0 if the metadata does not say.
func (w *planner) grouping(arch string) int {
	heads, err := w.f.Uint32s(arch + ".attention.head_count")
	if err != nil {
		return 0
	}
	keys, err := w.f.Uint32s(arch + ".attention.head_count_kv")
	if err != nil {
		return 0
	}
	for i, k := range keys {
		if k > 0 && len(heads) > 0 {
			return int(heads[min(i, len(heads)-1)] / k)
		}
	}
	return 0
}

// decide returns what happens to a tensor, without preparing it.
func (w *planner) decide(t *gguf.Tensor) (Decision, error) {
	target, reason := w.target(t)
	d := Decision{Tensor: t, Type: t.Type, Size: t.Size, Reason: reason}
	if target.keep || target.typ == t.Type {
		return d, nil
	}
	d.Type = fit(target.typ, t.Ne(0))
	if d.Type != target.typ {
		d.Reason += fmt.Sprintf("; rows of %d are no whole blocks of %v", t.Ne(0), target.typ)
	}
	row, err := d.Type.RowBytes(t.Ne(0))
	if err != nil || row > 0 && t.Rows() > math.MaxInt64/row {
		return d, inputf("%s: tensor %s is too large as %v", w.f.Name(), t.Name, d.Type)
	}
	d.Size = int64(row * t.Rows())
	return d, nil
}

// target applies the rules in their order (weights.md 10.3).
func (w *planner) target(t *gguf.Tensor) (Target, string) {
	switch {
	case w.o.Mix.copies:
		return Keep(), "copied"
	case !t.Type.CanDequantize() && t.Type.BlockSize() == 1:
		return Keep(), "integers" // and F64, which no model has
	case t.Rows() <= 1:
		return Keep(), "vector"
	case !strings.HasSuffix(t.Name, "weight"):
		return Keep(), "no weight matrix"
	case slices.ContainsFunc(keptNames, func(part string) bool { return strings.Contains(t.Name, part) }):
		return Keep(), "never quantized"
	}
	c := classOf(t.Name)
	if c == embedding && w.o.Embedding.set {
		return w.o.Embedding, "embedding type"
	}
	if (c == output || w.shape.tied && t.Name == "token_embd.weight") && w.o.Output.set {
		return w.o.Output, "output type"
	}
	first := -1
	for i, r := range w.o.Rules {
		if r.Pattern.MatchString(t.Name) {
			w.used[i] = true
			if first < 0 {
				first = i
			}
		}
	}
	if first >= 0 {
		return w.o.Rules[first].Target, "rule " + w.o.Rules[first].String()
	}
	if w.o.Pure {
		return To(w.o.Mix.Base), "pure " + w.o.Mix.Name
	}
	typ := w.o.Mix.choose(w.shape, t.Name, blockOf(t.Name), w.turns[t.Name], t.Ne(0), t.Ne(2) > 1)
	return To(typ), "mix " + w.o.Mix.Name
}

// prepare finds what the conversion of a tensor needs besides its bytes.
func (p *Plan) prepare(d *Decision) error {
	t := d.Tensor
	if !t.Type.CanDequantize() {
		return inputf("%s: tensor %s: %v cannot be read", p.file.Name(), t.Name, t.Type)
	}
	if !d.Type.CanQuantize() {
		return fmt.Errorf("tensor %s: %v cannot be written", t.Name, d.Type)
	}
	if t.Ne(0) > maxRow {
		return inputf("%s: tensor %s has rows of %d elements, the limit is %d", p.file.Name(), t.Name, t.Ne(0), maxRow)
	}
	if err := p.foldScale(d); err != nil {
		return err
	}
	if p.o.Imatrix == nil || d.Type.BlockSize() == 1 {
		return nil
	}
	im, ok := p.o.Imatrix.Entries[t.Name]
	if !ok {
		return nil
	}
	if n := uint64(len(im)); n != t.Ne(0) && n != t.Ne(0)*t.Ne(2) {
		return inputf("%s: has %d values for %s, whose shape in %s is %v: the importance matrix is of another model",
			p.o.Imatrix.Name, n, t.Name, p.file.Name(), t.Dims)
	}
	d.importance = im
	p.Covered++
	return nil
}

// foldScale takes the factor that NVFP4 matrices have in a tensor of its own
// (weights.md 6.5) into the values, when those become another type: the factor
// is not applied to other types.
func (p *Plan) foldScale(d *Decision) error {
	t := d.Tensor
	if t.Type != quant.NVFP4 {
		return nil
	}
	base := strings.TrimSuffix(t.Name, ".weight")
	for i := range p.Decisions {
		c := &p.Decisions[i]
		switch c.Tensor.Name {
		case base + ".scale":
			factors, err := p.readFactors(c.Tensor, t)
			if err != nil {
				return err
			}
			d.factors = factors
		case base + ".input_scale":
		default:
			continue
		}
		c.Drop, c.Size, c.Reason = true, 0, "goes into "+t.Name
	}
	return nil
}

func (p *Plan) readFactors(s, t *gguf.Tensor) ([]float32, error) {
	if n := s.Elements(); s.Type != quant.F32 || n != 1 && n != t.Ne(2) {
		return nil, inputf("%s: tensor %s is %d %v values; %s needs F32, one or %d of them",
			p.file.Name(), s.Name, n, s.Type, t.Name, t.Ne(2))
	}
	data, err := p.file.Data(s)
	if err != nil {
		return nil, inputf("%w", err)
	}
	factors := make([]float32, s.Elements())
	for i := range factors {
		factors[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		if !finite(factors[i]) {
			return nil, inputf("%s: tensor %s: value %d is %g", p.file.Name(), s.Name, i, factors[i])
		}
	}
	return factors, nil
}

// note collects what is odd about the plan.
func (p *Plan) note(w *planner) {
	for i, r := range p.o.Rules {
		if !w.used[i] && !p.o.Mix.copies {
			p.Notes = append(p.Notes, fmt.Sprintf("the rule %s matches no tensor that can be quantized", r))
		}
	}
	if p.o.Imatrix == nil {
		return
	}
	extra := 0
	for name := range p.o.Imatrix.Entries {
		if _, ok := p.file.Tensor(name); !ok {
			extra++
		}
	}
	if extra > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d entries of the importance matrix are for tensors that the model has not", extra))
	}
	without := 0
	for i := range p.Decisions {
		d := &p.Decisions[i]
		c := classOf(d.Tensor.Name)
		if !d.Copied() && !d.Drop && d.Type.BlockSize() > 1 && d.importance == nil && c != embedding && c != output {
			without++
		}
	}
	if without > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d quantized tensors have no entry in the importance matrix", without))
	}
}

// writer returns a Writer with the metadata and tensors of the result; content
// returns what writes a tensor's bytes.
func (p *Plan) writer(content func(*Decision) func(io.Writer) error) (*gguf.Writer, error) {
	w := new(gguf.Writer)
	for key, v := range p.file.KeyValues() {
		if strings.HasPrefix(key, "split.") {
			continue
		}
		if err := w.Set(key, v); err != nil {
			return nil, err
		}
	}
	type entry struct {
		key   string
		value any
	}
	entries := []entry{}
	if !p.o.Mix.copies {
		entries = append(entries, entry{"general.quantization_version", uint32(2)}, entry{"general.file_type", p.o.Mix.FileType})
	}
	if im := p.o.Imatrix; im != nil {
		entries = append(entries,
			entry{"quantize.imatrix.file", filepath.Base(im.Name)},
			entry{"quantize.imatrix.entries_count", uint32(len(im.Entries))})
		if im.Dataset != "" {
			entries = append(entries, entry{"quantize.imatrix.dataset", im.Dataset})
		}
		if im.Chunks > 0 {
			entries = append(entries, entry{"quantize.imatrix.chunks_count", im.Chunks})
		}
	}
	for _, e := range entries {
		if err := w.Set(e.key, e.value); err != nil {
			return nil, err
		}
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if d.Drop {
			continue
		}
		if err := w.AddTensorFunc(d.Tensor.Name, d.Type, d.Tensor.Dims, content(d)); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func finite(v float32) bool { return math.Float32bits(v)&0x7f800000 != 0x7f800000 }
