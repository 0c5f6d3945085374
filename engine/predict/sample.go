package predict

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
)

const (
	sampleVocab   = 8192 // entries of the vocabulary
	sampleExperts = 4    // experts, in multiples of those that a row chooses
	sampleLayers  = 8    // layers at most
	sampleRows    = 64   // different rows of an embedding that is made up
)

// A sample is a small model that has every kind of op of a large one, in the same shapes but for fewer layers, experts and
// entries of the vocabulary: what the rates of the large one can be measured with.
type sample struct {
	file  *gguf.File
	model *model.Model
}

// class is what ops have in common that take the same time for the same work: their place in a layer and their kernels.
func class(n scheduler.Node, ls []scheduler.Lowered) string {
	s := n.Name
	for _, l := range ls {
		s += " " + l.Dispatch.Module
	}
	return s
}

// pick chooses layers of a model such that every class of its ops is among them, as far as there is room.
func pick(s *step, layers int) []int {
	seen := map[string]bool{}
	var picked []int
	for i := range layers {
		fresh := false
		for _, n := range s.nodes {
			if c := class(n.Node, n.lowered); n.Layer == i && !seen[c] {
				fresh, seen[c] = true, true
			}
		}
		if fresh && len(picked) < sampleLayers {
			picked = append(picked, i)
		}
	}
	return picked
}

// newSample makes a sample of the given layers. Its weights are the first of the file's; where the file has none, as
// one that is a header and a hole, norms, routers and the embedding are made up, so that rows choose different
// experts.
func newSample(f *gguf.File, m *model.Model, layers []int) (*sample, error) {
	var w gguf.Writer
	if err := sampleKeys(&w, f, m, layers); err != nil {
		return nil, err
	}
	vocab, experts := min(m.Vocab, sampleVocab), min(m.Experts, sampleExperts*m.ExpertsUsed)
	for _, t := range f.Tensors() {
		name, ok := sampleName(t.Name, layers)
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
			dims[last] = uint64(experts)
		}
		data, err := sampleData(f, t, dims)
		if err != nil {
			return nil, err
		}
		if err := w.AddTensor(name, t.Type, dims, data); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	if n, err := w.Size(); err == nil {
		b.Grow(int(n))
	}
	if _, err := w.WriteTo(io.Writer(&b)); err != nil {
		return nil, err
	}
	file, err := gguf.OpenBytes("sample of "+f.Name(), b.Bytes())
	if err != nil {
		return nil, err
	}
	sm, err := model.New(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("sample of %s: %w", f.Name(), err)
	}
	return &sample{file, sm}, nil
}

// sampleKeys copies the metadata that shapes the graph.
func sampleKeys(w *gguf.Writer, f *gguf.File, m *model.Model, layers []int) error {
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
	recurrent := make([]bool, len(layers))
	for i, l := range layers {
		recurrent[i] = m.Recurrent[l]
	}
	keys := []struct {
		key   string
		value any
	}{
		{"block_count", uint32(len(layers))}, {"attention.recurrent_layers", recurrent}, {"attention.head_count_kv", uint32(m.KVHeads)},
	}
	if m.MoE() {
		keys = append(keys, struct {
			key   string
			value any
		}{"expert_count", uint32(min(m.Experts, sampleExperts*m.ExpertsUsed))})
	}
	for _, k := range keys {
		if err := w.Set(arch+k.key, k.value); err != nil {
			return err
		}
	}
	return nil
}

// sampleName is the name that a tensor has in a sample of layers, if it is in it.
func sampleName(name string, layers []int) (string, bool) {
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

// sampleData returns the first bytes of a tensor: those of the given dimensions.
func sampleData(f *gguf.File, t *gguf.Tensor, dims []uint64) ([]byte, error) {
	rows := uint64(1)
	for _, d := range dims[min(1, len(dims)):] {
		rows *= d
	}
	n := t.RowBytes() * int64(rows)
	if n < 0 || n > t.Size {
		return nil, fmt.Errorf("tensor %s: %d bytes of %d", t.Name, n, t.Size)
	}
	data, err := f.Data(t)
	if err == nil && slices.ContainsFunc(data[:min(len(data), 4096)], func(b byte) bool { return b != 0 }) {
		return data[:n], nil
	}
	out := make([]byte, n)
	single := t.Type == quant.F32 || t.Type == quant.F16 || t.Type == quant.BF16
	if !t.Type.CanQuantize() || !single && t.Name != "token_embd.weight" || strings.HasSuffix(t.Name, "ssm_a") {
		return out, nil
	}
	// Uniform in 0.5 to 1.5 for what is one row, else around 0.
	r := rand.New(rand.NewPCG(1, 2))
	width := int(t.Ne(0))
	values := make([]float32, width*int(min(rows, sampleRows)))
	for i := range values {
		values[i] = r.Float32() - 0.5
		if rows == 1 {
			values[i]++
		}
	}
	part := out[:int64(len(values)/max(width, 1))*t.RowBytes()]
	if err := quant.Quantize(t.Type, part, values); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	for at := len(part); at < len(out) && len(part) > 0; at += len(part) {
		copy(out[at:], part)
	}
	return out, nil
}
