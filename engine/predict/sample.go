package predict

import (
	"github.com/calderaml/caldera/engine/excerpt"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/scheduler"
)

const (
	sampleVocab   = 8192 // entries of the vocabulary
	sampleExperts = 4    // experts, in multiples of those that a row chooses
	sampleLayers  = 8    // layers at most
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

// newSample makes a sample of the given layers.
func newSample(f *gguf.File, m *model.Model, layers []int) (*sample, error) {
	file, small, err := excerpt.New(f, m, excerpt.Options{Layers: layers, Vocab: sampleVocab, Experts: sampleExperts})
	if err != nil {
		return nil, err
	}
	return &sample{file, small}, nil
}
