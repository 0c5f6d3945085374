package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// C08: every type of KV cache works at every length and batch, with the same numbers in every batch; those of q8_0 are
// close to those of f16, and q4_0 with a sink and a window chooses the same tokens.
func TestCaseC08(t *testing.T) {
	serial(t)
	// The case's batch of 1536 is more than there is.
	if _, err := engine.Open(reference().config(func() engine.Config { c := t35.config(t); c.Batch = 1536; return c }())); err == nil {
		t.Error("a batch of 1536 was accepted")
	}
	lengths, batches, steps := []int{511, 512, 513, 700, 1023, 1024, 1025, 2047, 2048, 2049, 2051, 2052, 4095, 4096, 4097}, []int{512, 1, 7}, 32
	if !long() {
		lengths, batches, steps = []int{513, 700}, []int{512, 7}, 12
	}
	caches := []struct {
		kv           string
		sink, window int
		close        float64 // most that a logit may differ from f16
		agree        float64 // share of steps with the same best token
	}{
		{"f16", 0, 0, 0, 1},
		{"q8_0", 0, 0, 5e-2, 0},
		{"q4_0", 4, 64, 0, 0.99},
		{"q4_0", 0, 0, 0, 0},
	}
	rigs := []rig{reference()}
	if long() {
		rigs = append(rigs, oneDevice(t))
	}
	for _, r := range rigs {
		caches := caches
		if r.backend == engine.Vulkan && !long() {
			caches = slices.Delete(slices.Clone(caches), 1, 2)[:2]
		}
		ids := randomTokens(rand.New(rand.NewPCG(8, 35)), lengths[len(lengths)-1], 4096)
		var forced [][]int32   // by length, what f16 goes on with
		var base [][][]float32 // and its logits
		for _, c := range caches {
			t.Run(fmt.Sprintf("%s/%s sink %d window %d", r.name, c.kv, c.sink, c.window), func(t *testing.T) {
				cfg := t35.config(t)
				cfg.Context, cfg.Slots, cfg.KV, cfg.KVSink, cfg.KVWindow = lengths[len(lengths)-1]+steps, 2, c.kv, c.sink, c.window
				e := r.open(t, cfg)
				var first [][][]float32
				for i, batch := range batches {
					if i > 0 && r.backend == engine.Vulkan && !long() {
						break // one by one is slow there, and TestStateDependsOnTokensAlone has shown it
					}
					if err := e.SetBatch(batch); err != nil {
						t.Fatal(err)
					}
					got := walk(t, e, ids, lengths, steps, &forced)
					if i == 0 {
						first = got
					}
					for j := range got {
						for k := range got[j] {
							if !slices.Equal(got[j][k], first[j][k]) {
								t.Fatalf("length %d, step %d: logits in batches of %d are not those in batches of %d", lengths[j], k, batch, batches[0])
							}
						}
					}
				}
				if base == nil {
					base = first
				}
				same, all, worst := 0, 0, 0.0
				for j := range first {
					for k, row := range first[j] {
						all++
						if best(row) == best(base[j][k]) {
							same++
						}
						for n, v := range row {
							worst = max(worst, abs(v-base[j][k][n]))
						}
					}
				}
				t.Logf("%d of %d best tokens are those of f16, logits differ by at most %.3g", same, all, worst)
				if c.close > 0 && worst > c.close {
					t.Errorf("logits differ from f16's by %.3g, at most %g is due", worst, c.close)
				}
				if float64(same) < c.agree*float64(all) {
					t.Errorf("%d of %d best tokens are those of f16", same, all)
				}
				if c.kv != "f16" && worst == 0 {
					t.Error("logits are those of f16: nothing was quantised")
				}
			})
		}
	}
}

// walk feeds tokens, and at each length goes on for some steps in a fork: with the best tokens the first time, and with
// the same again after that. It returns the logits of all steps.
func walk(t *testing.T, e *engine.Engine, ids []int32, lengths []int, steps int, forced *[][]int32) [][][]float32 {
	t.Helper()
	ctx := context.Background()
	s := session(t, e)
	defer s.Close()
	var all [][][]float32
	for i, n := range lengths {
		row, err := s.Last(ctx, ids[s.Len():n])
		if err != nil {
			t.Fatalf("length %d: %v", n, err)
		}
		rows := [][]float32{slices.Clone(row)}
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		if len(*forced) <= i {
			*forced = append(*forced, nil)
		}
		for k := range steps {
			if len((*forced)[i]) <= k {
				(*forced)[i] = append((*forced)[i], best(rows[k]))
			}
			if row, err = f.Last(ctx, (*forced)[i][k:k+1]); err != nil {
				t.Fatalf("length %d, step %d: %v", n, k, err)
			}
			rows = append(rows, slices.Clone(row))
		}
		f.Close()
		all = append(all, rows)
	}
	return all
}

// best is the token of the largest logit.
func best(row []float32) int32 {
	b := 0
	for i, v := range row {
		if v > row[b] {
			b = i
		}
	}
	return int32(b)
}

func abs(x float32) float64 {
	if x < 0 {
		x = -x
	}
	return float64(x)
}
