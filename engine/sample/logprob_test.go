package sample

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestLogprobs(t *testing.T) {
	logits := []float32{0, float32(math.Log(2)), float32(math.Log(5)), -inf}
	for id, want := range []float64{1. / 8, 2. / 8, 5. / 8, 0} {
		got, top, err := Logprobs(nil, logits, int32(id), 0)
		if err != nil || len(top) != 0 || math.Abs(math.Exp(got)-want) > 1e-7 {
			t.Errorf("token %d: %v (%v), want the logarithm of %v", id, got, err, want)
		}
	}
	_, top, err := Logprobs(nil, logits, 0, 20)
	if err != nil || len(top) != 3 || top[0].ID != 2 || top[1].ID != 1 || top[2].ID != 0 {
		t.Errorf("top %v (%v)", top, err)
	}
	sum := 0.0
	for _, p := range top {
		sum += math.Exp(p.Value)
	}
	if math.Abs(sum-1) > 1e-12 {
		t.Errorf("probabilities add up to %v", sum)
	}
	// A long row, against a plain sum.
	long := row(20_000, 7)
	long[100] = 300 // too large to exponentiate in float32
	exact := 0.0
	for _, l := range long {
		exact += math.Exp(float64(l) - 300)
	}
	got, top, err := Logprobs(top[:0], long, 5, 3)
	if want := float64(long[5]) - 300 - math.Log(exact); err != nil || math.Abs(got-want) > 1e-9 {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
	if ids, _ := best(long, 3); len(top) != 3 || top[0].ID != ids[0] || top[1].ID != ids[1] || top[2].ID != ids[2] {
		t.Errorf("top %v, want %d", top, ids)
	}
	for _, id := range []int32{-1, 4, 1 << 30} {
		if _, _, err := Logprobs(nil, logits, id, 2); err == nil {
			t.Errorf("token %d: no error", id)
		}
	}
	if _, _, err := Logprobs(nil, []float32{1, nan}, 0, 2); !errors.Is(err, ErrNaN) {
		t.Errorf("error %v", err)
	}
	if _, _, err := Logprobs(nil, []float32{-inf}, 0, 2); !errors.Is(err, ErrNoCandidates) {
		t.Errorf("error %v", err)
	}
}

func TestCandidateOrder(t *testing.T) {
	values := []float32{-math.MaxFloat32, -1, -math.SmallestNonzeroFloat32, 0, math.SmallestNonzeroFloat32, 1, math.MaxFloat32, inf}
	var all []candidate
	for _, v := range values {
		for _, id := range []int32{math.MaxInt32, 7, 0} {
			c := makeCandidate(v, id)
			if c.id() != id || c.logit() != v {
				t.Errorf("%v %d became %v %d", v, id, c.logit(), c.id())
			}
			all = append(all, c)
		}
	}
	if !slices.IsSorted(all) {
		t.Error("candidates are not in order")
	}
	if makeCandidate(float32(math.Copysign(0, -1)), 3) != makeCandidate(0, 3) {
		t.Error("minus zero is not zero")
	}
}
