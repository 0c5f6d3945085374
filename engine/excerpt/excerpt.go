// Package excerpt makes small models out of large ones: with all kinds of layers that the large one has and the shapes of its
// matrices, but with fewer layers, experts and entries of the vocabulary. Devices are measured and tested with them.
package excerpt

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
)

// Options say what is taken of a model.
type Options struct {
	Layers  []int // in ascending order
	Vocab   int   // most entries of the vocabulary
	Experts int   // most experts, in multiples of those that a row chooses
	// Invent makes up all weights, so that none are read, and such that every block type's kernels have something to get
	// wrong. Otherwise they are the first of the file's, and where the file has none, as one that is a header and a
	// hole, norms, routers and the embedding are made up, so that rows choose different experts.
	Invent bool
}

// experts is how many the excerpt has.
func (o Options) experts(m *model.Model) int { return min(m.Experts, o.Experts*m.ExpertsUsed) }

// New makes an excerpt. The model's weights lie in the file, which the caller closes.
func New(f *gguf.File, m *model.Model, o Options) (*gguf.File, *model.Model, error) {
	var w gguf.Writer
	if err := keys(&w, f, m, o); err != nil {
		return nil, nil, err
	}
	vocab := min(m.Vocab, o.Vocab)
	for _, t := range f.Tensors() {
		name, ok := TensorName(t.Name, o.Layers)
		if !ok {
			continue
		}
		dims := slices.Clone(t.Dims)
		last := len(dims) - 1
		switch {
		case last < 0:
		case (name == "token_embd.weight" || name == "output.weight") && dims[last] == uint64(m.Vocab):
			dims[last] = uint64(vocab)
		case m.Experts > 0 && dims[last] == uint64(m.Experts) && (strings.Contains(name, "_exps.") || strings.HasSuffix(name, ".ffn_gate_inp.weight")):
			dims[last] = uint64(o.experts(m))
		}
		bytesOf := data
		if o.Invent {
			bytesOf = invent
		}
		b, err := bytesOf(f, t, dims)
		if err != nil {
			return nil, nil, err
		}
		if err := w.AddTensor(name, t.Type, dims, b); err != nil {
			return nil, nil, err
		}
	}
	var b bytes.Buffer
	if n, err := w.Size(); err == nil {
		b.Grow(int(n))
	}
	if _, err := w.WriteTo(io.Writer(&b)); err != nil {
		return nil, nil, err
	}
	file, err := gguf.OpenBytes("excerpt of "+f.Name(), b.Bytes())
	if err != nil {
		return nil, nil, err
	}
	small, err := model.New(file)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("excerpt of %s: %w", f.Name(), err)
	}
	return file, small, nil
}

// keys copies the metadata that shapes the graph.
func keys(w *gguf.Writer, f *gguf.File, m *model.Model, o Options) error {
	arch := m.Arch + "."
	for key, v := range f.KeyValues() {
		switch {
		case strings.HasPrefix(key, "tokenizer."), strings.HasPrefix(key, "split."), key == arch+"nextn_predict_layers":
			continue
		}
		if err := w.Set(key, v); err != nil {
			return err
		}
	}
	recurrent := make([]bool, len(o.Layers))
	for i, l := range o.Layers {
		recurrent[i] = m.Recurrent[l]
	}
	type pair struct {
		key   string
		value any
	}
	own := []pair{
		{"block_count", uint32(len(o.Layers))}, {"attention.recurrent_layers", recurrent}, {"attention.head_count_kv", uint32(m.KVHeads)},
	}
	if m.MoE() {
		own = append(own, pair{"expert_count", uint32(o.experts(m))})
	}
	for _, k := range own {
		if err := w.Set(arch+k.key, k.value); err != nil {
			return err
		}
	}
	return nil
}

// TensorName is the name that a tensor has in an excerpt of layers, if it is in it.
func TensorName(name string, layers []int) (string, bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return name, true
	}
	number, rest, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return "", false
	}
	i := slices.Index(layers, n)
	return fmt.Sprintf("blk.%d.%s", i, rest), i >= 0
}
