package engine

import (
	"testing"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/internal/oracle"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// The workspace that is made for generation has room for every step of it: of all sizes, for as many sequences as there
// are, with candidates, with logits or with both.
func TestEveryStepFits(t *testing.T) {
	for _, arch := range []string{"qwen35", "qwen35moe", "qwen3next", demo.Name} {
		cfg := Config{Data: demo.Model(), Name: demo.Name} // whose logits are larger than what else a row takes
		if arch != demo.Name {
			cfg = Config{Path: oracle.OfArch(oracle.Cases(t), arch)[0].Model()}
		}
		f, m, err := openHeader(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, slots := range []int{1, 3, 16, 64} {
			for _, batch := range []int{1, 20, 128} {
				st := m.NewState(model.StateShape{Slots: slots, Pages: 8 * slots, KV: shaders.KVF16})
				room := stepNeeds(m, st, nil, 8, batch, true)[0]
				for rows := 1; rows <= bucket(batch); rows *= 2 {
					n := min(rows, slots)
					for _, opt := range []model.GraphOptions{{}, {TopK: 1}, {TopK: 20}, {TopK: shaders.TopKMax}, {Logits: true}, {TopK: 1, Logits: true}} {
						g, _ := m.Graph(shaders.StepShape{Rows: rows, Seqs: n, Outs: n, Pages: 8}, st, opt)
						if need := scheduler.NeedsOf(g, nil)[0]; room.Max(need) != room {
							t.Errorf("%s, %d slots, batch %d: a step of %d rows with %+v needs %+v, there is %+v", arch, slots, batch, rows, opt, need, room)
						}
					}
				}
			}
		}
	}
}
