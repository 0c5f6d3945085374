package bench

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// sampleProfile is of a step of two layers with figures that are easy to check.
func sampleProfile() *engine.Profile {
	op := func(layer int, name, kernel, detail string, us, weights, bytes, flops int64) engine.OpTime {
		return engine.OpTime{
			Layer: layer, Name: name, Kernel: kernel, Detail: detail, Time: time.Duration(us) * time.Microsecond,
			Cost: shaders.Cost{Weights: weights, Bytes: bytes, Flops: flops},
		}
	}
	return &engine.Profile{
		Counts:    engine.Counts{Stats: scheduler.Stats{Ops: 5, Dispatches: 10, Barriers: 4}},
		Sequences: 1, Rows: 1, Depth: 7, Repetitions: 9,
		Ops: []engine.OpTime{
			op(0, "attn_norm", "rmsnorm", "2048", 5, 0, 1000, 0),
			op(0, "attn_qkv", "matmul", "q5_k 2048x8192", 100, 900_000, 100_000, 4_000_000),
			op(1, "attn_norm", "rmsnorm", "2048", 15, 0, 1000, 0),
			op(1, "attn_qkv", "matmul", "q6_k 2048x8192", 60, 1_200_000, 0, 4_000_000),
			op(2, "attn_qkv", "matmul", "q5_k 2048x8192", 20, 900_000, 100_000, 4_000_000),
		},
		Device: 210 * time.Microsecond, Wait: 330 * time.Microsecond, Plain: 230 * time.Microsecond,
	}
}

// Ops are added up by name, kernel, type and shape over the layers, the longest first.
func TestStepProfile(t *testing.T) {
	s := newStepProfile(Decode, sampleProfile(), 40e9)
	if s.SumNS != 200_000 || s.DeviceNS != 210_000 || s.WaitNS != 330_000 || s.PlainNS != 230_000 || s.StampNS != 10_000 {
		t.Errorf("%+v", s)
	}
	// 3 202 000 bytes at 40 GB/s.
	if s.Bytes != 3_202_000 || s.Flops != 12_000_000 || s.BoundNS != 80_050 || math.Abs(s.BoundShare-80.05/230) > 1e-9 {
		t.Errorf("%d bytes, %d flops, bound %d ns, %g", s.Bytes, s.Flops, s.BoundNS, s.BoundShare)
	}
	want := []OpRow{
		{"attn_qkv", "matmul", "q5_k 2048x8192", 2, 120_000, 0.6, 2_000_000, 8_000_000, 16.667, 66.667, 0.41667},
		{"attn_qkv", "matmul", "q6_k 2048x8192", 1, 60_000, 0.3, 1_200_000, 4_000_000, 20, 66.667, 0.5},
		{"attn_norm", "rmsnorm", "2048", 2, 20_000, 0.1, 2000, 0, 0.1, 0, 0.0025},
	}
	if len(s.Ops) != len(want) {
		t.Fatalf("%+v", s.Ops)
	}
	for i, w := range want {
		g := s.Ops[i]
		for _, v := range []*float64{&g.Share, &g.GBs, &g.GFlops, &g.CopyShare} {
			*v = math.Round(*v*1e5) / 1e5
		}
		for _, v := range []*float64{&g.GBs, &g.GFlops} {
			*v = math.Round(*v*1e3) / 1e3
		}
		if g != w {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	want2 := `decode step of 1 row @ d7: 10 dispatches, 4 barriers; medians of 9

| op        | kernel  | shape          | count | µs/step |   share |  GB/s | GFLOP/s | of copy |
| --------- | ------- | -------------- | ----: | ------: | ------: | ----: | ------: | ------: |
| attn_qkv  | matmul  | q5_k 2048x8192 |     2 |   120.0 |  60.0 % | 16.67 |   66.67 |  41.7 % |
| attn_qkv  | matmul  | q6_k 2048x8192 |     1 |    60.0 |  30.0 % | 20.00 |   66.67 |  50.0 % |
| attn_norm | rmsnorm | 2048           |     2 |    20.0 |  10.0 % |  0.10 |    0.00 |   0.2 % |
| sum       |         |                |     5 |   200.0 | 100.0 % | 16.01 |   60.00 |  40.0 % |

ops: 95.2 % of the 210.0 µs from the first timestamp to the last
host: 330.0 µs from submitting this plan to its end and 230.0 µs for the ordinary one; a timestamp costs 10.0 µs
bound: 3.20 MB take 80.0 µs at the copy's 40.00 GB/s, 34.8 % of the ordinary step's time; it computes 0.012 GFLOP at 52.17 GFLOP/s
`
	var b strings.Builder
	if err := s.Print(&b); err != nil || b.String() != want2 {
		t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want2)
	}
}

// A step of no time and a device of no bandwidth give zeros and not NaN, which JSON cannot hold.
func TestStepProfileZero(t *testing.T) {
	p := sampleProfile()
	p.Plain, p.Device, p.Wait = 0, 0, 0
	for i := range p.Ops {
		p.Ops[i].Time = 0
	}
	s := newStepProfile(Prefill, p, 0)
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if s.BoundShare != 0 || s.Ops[0].GBs != 0 || s.Ops[0].Share != 0 {
		t.Errorf("%+v", s)
	}
}

// The steps that are profiled are the test's: the first of its prompt, and decoding after it.
func TestProfileSteps(t *testing.T) {
	e, err := engine.Open(engine.Config{Data: demo.Model(), Name: demo.Name, Backend: engine.Reference, Context: 16, Slots: 2, Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, c := range []struct {
		test Test
		want []string
	}{
		{Test{Prompt: 9}, []string{"prefill step of 4 rows"}},
		{Test{Prompt: 3, Depth: 2}, []string{"prefill step of 3 rows @ d2"}},
		{Test{Gen: 2, Depth: 5, Sequences: 2}, []string{"decode step of 2 rows @ d5"}},
		{Test{Prompt: 2, Gen: 1, Depth: 1}, []string{"prefill step of 2 rows @ d1", "decode step of 1 row @ d3"}},
	} {
		all, err := Profile(t.Context(), e, c.test, Options{Repetitions: 1}, 1e9)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range all {
			got = append(got, s.Title())
			if len(s.Ops) < 10 || s.SumNS <= 0 || s.Bytes <= 0 {
				t.Errorf("%s: %+v", s.Title(), s)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q, want %q", c.test.Name(), got, c.want)
		}
	}
	if _, err := Profile(t.Context(), e, Test{Gen: 1, Depth: 16}, Options{Repetitions: 1}, 1e9); err == nil || !strings.Contains(err.Error(), "tg1 @ d16") {
		t.Errorf("beyond the context: %v", err)
	}
}
