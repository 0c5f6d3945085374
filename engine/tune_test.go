package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/tuning"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

func openTuned(t *testing.T, cfg Config) *Engine {
	t.Helper()
	cfg.Data, cfg.Name, cfg.Context, cfg.Device = demo.Model(), demo.Name, 64, "llvmpipe" // where kernels compile soonest
	e, err := Open(cfg)
	if err != nil {
		cfg.Device = ""
		e, err = Open(cfg)
	}
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// otherWays are ways that are not the plain ones, for the uses of a demo model's kernels.
func otherWays(k *shaders.Profile) map[shaders.Use]shaders.Way {
	ways := map[shaders.Use]shaders.Way{}
	for _, u := range []shaders.Use{
		{Kernel: "matmul", Type: quant.Q8_0, In: 256}, {Kernel: "matmul", Type: quant.F32, In: 256}, {Kernel: "expert_down", Type: quant.Q8_0, In: 64},
	} {
		w := k.Ways(u)[1]
		w.Tokens = []int{1, 2, 2, 8}
		ways[u] = w
	}
	return ways
}

// A tuned engine computes what an engine without tuning does, but for rounding, and what the twins do; its snapshots are
// not those of the other.
func TestTuned(t *testing.T) {
	dir := t.TempDir()
	plain := openTuned(t, Config{})
	d := plain.die.Device
	if _, err := tuning.Save(dir, tuning.For(d.Info(), d.Profile()), otherWays(&plain.die.Kernels)); err != nil {
		t.Fatal(err)
	}
	tuned := openTuned(t, Config{TuningDir: dir, Warn: func(err error) { t.Error(err) }})
	if n := tuned.Tuned(); n != 3 {
		t.Fatalf("%d uses are tuned", n)
	}
	ctx, tokens := context.Background(), []int32{2553, 558, 258, 586, 466, 309, 11, 12, 13, 14}
	v, err := tuned.Verify(ctx, tokens)
	if err != nil || !v.OK() {
		t.Errorf("%+v, %v", v.First, err)
	}
	a, err := tuned.identity()
	if err != nil {
		t.Fatal(err)
	}
	b, err := plain.identity()
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Error("snapshots of either would be taken for the other's")
	}
}

// A tuning that cannot be used is told of, and the engine runs without.
func TestTuningRefused(t *testing.T) {
	dir := t.TempDir()
	plain := openTuned(t, Config{})
	d := plain.die.Device
	ways := otherWays(&plain.die.Kernels)
	ways[shaders.Use{Kernel: "matmul", Type: quant.Q8_0, In: 64}] = shaders.Way{Scheme: "none", Group: 8, Tokens: []int{1}}
	if _, err := tuning.Save(dir, tuning.For(d.Info(), d.Profile()), ways); err != nil {
		t.Fatal(err)
	}
	var told []string
	e := openTuned(t, Config{TuningDir: dir, Warn: func(err error) { told = append(told, err.Error()) }})
	if e.Tuned() != 0 || len(told) != 1 || !strings.Contains(told[0], `matmul Q8_0 rows of 64: the device does not have scheme "none"`) {
		t.Errorf("%d uses are tuned, told: %q", e.Tuned(), told)
	}
}

func TestTune(t *testing.T) {
	e := openTuned(t, Config{TuningDir: t.TempDir()})
	steps := map[int]bool{}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Tune(ctx, TuneOptions{Rows: []int{1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for _, rows := range [][]int{{3}, {0}, {128}} {
		if _, err := e.Tune(context.Background(), TuneOptions{Rows: rows}); err == nil {
			t.Errorf("steps of %v rows are taken", rows)
		}
	}
	o := TuneOptions{Rows: []int{1}, Time: time.Millisecond, Progress: func(x TuneProgress) {
		steps[x.Rows] = true
		if x.Candidate < 1 || x.Candidate > x.Candidates || x.Step < 1 || x.Step > x.Steps || x.Steps != 1 {
			t.Errorf("%+v", x)
		}
	}}
	r, err := e.Tune(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 1 || len(r.Steps) != 1 || r.Steps[0].Rows != 1 || r.Steps[0].Plain <= 0 || r.Steps[0].Tuned <= 0 || len(r.Uses) < 5 {
		t.Errorf("steps %v: %+v", steps, r)
	}
	if e.Tuned() != 0 || Held(e) != "" {
		t.Errorf("%d uses are tuned in the engine that measured; held: %s", e.Tuned(), Held(e))
	}
	want := 0
	for _, u := range r.Uses {
		if err := e.die.Kernels.CheckWay(u.Use, u.Way); err != nil || !slices.Equal(u.Way.Tokens, []int{1, 4}) || !(u.Gain > 0) {
			t.Errorf("%+v: %v", u, err)
		}
		if u.Kept {
			want++
		}
		if u.Kept && u.Plain || !u.Kept && !u.Plain && len(r.Refused) == 0 {
			t.Errorf("%+v, refused: %q", u, r.Refused)
		}
	}
	again := openTuned(t, Config{TuningDir: e.cfg.TuningDir, Warn: func(err error) { t.Error(err) }})
	if n := again.Tuned(); n != want {
		t.Errorf("%d uses are tuned afterwards, %d were found, refused: %q", n, want, r.Refused)
	}
}

// What differs from its twin is not used, however fast.
func TestTuneDropsBroken(t *testing.T) {
	e := openTuned(t, Config{TuningDir: t.TempDir(), BreakKernel: "matmul.q8_0.row"})
	k := &e.die.Kernels
	if k.PlainWay(shaders.Use{Type: quant.Q8_0}).Scheme == "row" {
		t.Skip("the device's plain kernel would be broken")
	}
	good := shaders.Use{Kernel: "expert_down", Type: quant.Q8_0, In: 64}
	bad := shaders.Use{Kernel: "matmul", Type: quant.Q8_0, In: 256}
	k.Tuned = map[shaders.Use]shaders.Way{}
	for _, u := range []shaders.Use{good, bad} {
		k.Tuned[u] = shaders.Way{Scheme: "row", Group: 8, Tokens: []int{1, 4}}
	}
	defer func() { k.Tuned = nil }()
	x := &tuner{e: e, ctx: context.Background()}
	if err := x.verify(); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Tuned[good]; len(k.Tuned) != 1 || !ok || !slices.ContainsFunc(x.result.Refused, func(s string) bool { return strings.HasPrefix(s, bad.String()) }) {
		t.Errorf("left: %v, refused: %q", k.Tuned, x.result.Refused)
	}
}

// The choice of the fastest: by the mean over steps, the plain way and its tokens at once but for a real gain.
func TestTuneBest(t *testing.T) {
	e := openTuned(t, Config{})
	k := &e.die.Kernels
	u := shaders.Use{Kernel: "matmul", Type: quant.Q8_0, In: 256}
	ways := k.Ways(u)
	plain, other := ways[0], ways[1]
	ms := func(way shaders.Way, rows, tokens int) tried { return tried{way.Scheme, way.Group, rows, tokens} }
	for _, c := range []struct {
		name  string
		times map[tried]time.Duration
		want  shaders.Way
		gain  float64
	}{
		{"plain is faster", map[tried]time.Duration{ms(plain, 1, 1): 100, ms(plain, 4, 4): 100, ms(other, 1, 1): 120, ms(other, 4, 4): 90},
			shaders.Way{Scheme: plain.Scheme, Group: plain.Group, Tokens: []int{1, 4, 4}}, 1},
		{"hardly faster", map[tried]time.Duration{ms(plain, 1, 1): 100, ms(plain, 4, 4): 100, ms(plain, 4, 8): 98, ms(other, 1, 1): 98, ms(other, 4, 4): 98},
			shaders.Way{Scheme: plain.Scheme, Group: plain.Group, Tokens: []int{1, 4, 4}}, 1},
		{"other tokens", map[tried]time.Duration{ms(plain, 1, 1): 100, ms(plain, 4, 4): 100, ms(plain, 4, 8): 80, ms(plain, 4, 2): 90, ms(other, 1, 1): 100, ms(other, 4, 4): 90},
			shaders.Way{Scheme: plain.Scheme, Group: plain.Group, Tokens: []int{1, 8, 8}}, 1},
		{"another scheme", map[tried]time.Duration{ms(plain, 1, 1): 100, ms(plain, 4, 4): 100, ms(other, 1, 1): 60, ms(other, 4, 4): 110, ms(other, 4, 2): 80},
			shaders.Way{Scheme: other.Scheme, Group: other.Group, Tokens: []int{1, 2, 2}}, 1.443},
	} {
		x := &tuner{e: e, opt: TuneOptions{Rows: []int{1, 4}}, times: map[shaders.Use]map[tried]time.Duration{u: {}}}
		for _, w := range ways[2:] {
			x.times[u][ms(w, 1, 1)], x.times[u][ms(w, 4, 4)] = 1000, 1000
		}
		for k, d := range c.times {
			x.times[u][k] = d
		}
		if len(ways) > 3 {
			delete(x.times[u], ms(ways[3], 4, 4)) // it has not been measured everywhere
			x.times[u][ms(ways[3], 1, 1)] = 1
		}
		way, gain := x.best(u)
		if way.Scheme != c.want.Scheme || way.Group != c.want.Group || !slices.Equal(way.Tokens, c.want.Tokens) || gain < c.gain-0.001 || gain > c.gain+0.001 {
			t.Errorf("%s: %+v, gain %.3f; want %+v, %.3f", c.name, way, gain, c.want, c.gain)
		}
	}
}
