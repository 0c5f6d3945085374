package shaders_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/shaders/kerneltest"
)

// Every way that a device has for a kernel gives what its twin gives.
func TestWays(t *testing.T) {
	const in, out, rows, tokens, most = 512, 70, 16, 11, 6
	for typ, at := range map[quant.Type][]int{quant.F32: {2}, quant.Q8_0: {8}} {
		if os.Getenv("CALDERA_LONG") == "1" {
			at = []int{2, 8}
		}
		r := kerneltest.Rand(uint64(typ))
		fill := map[*shaders.Buffer][]byte{}
		step, data := kerneltest.Step(t, shaders.StepShape{Rows: rows, Seqs: 1, Outs: 1, Pages: 1}, []shaders.Run{{Tokens: kerneltest.Tokens(tokens), Pages: []int32{0}}}, nil)
		fill[step] = data
		x, y, h := paddedMat("x", rows, in, 1, 0, fill), paddedMat("y", rows, out, 0, 1, fill), paddedMat("h", rows, out, 1, 0, fill)
		setRows(x, kerneltest.Normal(r, rows*in), fill)
		gate, up := expertStack(r, "gate", typ, in, out, 1, fill), expertStack(r, "up", typ, in, out, 1, fill)
		product, _ := randomMatrix(r, typ, in, out, 0)
		fill[product.Buf] = randomTable(r, typ, out, in)
		ops := []shaders.Op{
			&shaders.MatMul{Step: step.View(), W: product, X: x, Y: y, Rows: rows, Count: shaders.CountRows},
			&shaders.ExpertGateUp{Step: step.View(), X: shaders.Plain(x), H: h, Rows: rows, K: 1, Gate: gate, Up: up},
		}
		for i := range most {
			for _, n := range at {
				ways := func(p *shaders.Profile) map[shaders.Use]shaders.Way {
					ws := p.Ways(shaders.Use{Kernel: "matmul", Type: typ, In: in})
					if len(ws) > most {
						t.Errorf("%d ways, of which %d are tested", len(ws), most)
					}
					w := ws[min(i, len(ws)-1)]
					w.Tokens = []int{1, n}
					set := map[shaders.Use]shaders.Way{}
					for _, kernel := range []string{"matmul", "expert_gate_up"} {
						u := shaders.Use{Kernel: kernel, Type: typ, In: in}
						if err := p.CheckWay(u, w); err != nil {
							t.Error(err)
						}
						set[u] = w
					}
					return set
				}
				kerneltest.Run(t, kerneltest.Case{Name: fmt.Sprintf("%v way %d, %d tokens", typ, i, n), Few: true, Ops: ops, Fill: fill, Ways: ways,
					Check: []kerneltest.Check{{View: y.View, Tol: 5e-6}, {View: h.View, Tol: 1e-5}}})
			}
		}
	}
}

// The first way is the plain one, no two are the same, and a device whose small steps use lanes has nothing else.
func TestWaysOfProfiles(t *testing.T) {
	for name, c := range map[string]struct {
		p    shaders.Profile
		want string // of Q8_0
	}{
		"row":    {shaders.Profile{Subgroup: 8}, "row/8 row/64"},
		"share":  {shaders.Profile{Subgroup: 8, OneSubgroup: true, Broadcast: 8, CanShare: 8}, "row/8 row/64"},
		"texel":  {shaders.Profile{Subgroup: 8, OneSubgroup: true, Broadcast: 8, CanShare: 8, Texels: true, CanTexels: true}, "texel/8 row/8 row/64"},
		"spread": {shaders.Profile{Subgroup: 8, OneSubgroup: true, Broadcast: 8, CanShare: 8, Spread: true, CanSpread: true}, "spread/8 row/8 row/64"},
		"could":  {shaders.Profile{Subgroup: 8, CanShare: 8, CanSpread: true}, "row/8 row/64 spread/8"},
		"lanes":  {shaders.Profile{LanesPerRow: true, Subgroup: 64}, "lanes/64 lanes/128 lanes/256 row/8 row/64"},
		"fused":  {shaders.Profile{LanesPerRow: true, Fuse: true, Subgroup: 32}, "lanes/32"},
	} {
		ways := func(kernel string) string {
			var all []string
			for _, w := range c.p.Ways(shaders.Use{Kernel: kernel, Type: quant.Q8_0}) {
				all = append(all, fmt.Sprintf("%s/%d", w.Scheme, w.Group))
			}
			return strings.Join(all, " ")
		}
		if got := ways("matmul"); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if got := ways("expert_down"); name == "fused" && got != "lanes/32 lanes/64 lanes/128 lanes/256" || name != "fused" && got != c.want {
			t.Errorf("%s, expert_down: %s", name, got)
		}
		plain := c.p.PlainWay(shaders.Use{Kernel: "matmul", Type: quant.Q8_0})
		if w := c.p.Ways(shaders.Use{Kernel: "matmul", Type: quant.Q8_0})[0]; w.Scheme != plain.Scheme || w.Group != plain.Group {
			t.Errorf("%s: %v is first, %v is plain", name, w, plain)
		}
		if slices.ContainsFunc(c.p.Ways(shaders.Use{Kernel: "matmul", Type: quant.F16}), func(w shaders.Way) bool { return w.Scheme == "spread" }) {
			t.Errorf("%s: F16 spreads", name)
		}
	}
}

func TestCheckWay(t *testing.T) {
	p := shaders.Profile{Subgroup: 8, CanShare: 8}
	use := shaders.Use{Kernel: "matmul", Type: quant.F16, In: 256}
	way := shaders.Way{Scheme: "share", Group: 8, Tokens: []int{1, 2, 8}}
	if err := p.CheckWay(use, way); err != nil {
		t.Error(err)
	}
	for i, n := range []int{1, 2, 8, 8, 8} {
		if got := way.TokensAt(1 << i); got != n {
			t.Errorf("%d tokens at once in steps of %d rows, want %d", got, 1<<i, n)
		}
	}
	if way.TokensAt(3) != 8 || way.TokensAt(0) != 1 {
		t.Error("tokens at once for 3 rows or none")
	}
	for name, spoil := range map[string]func(u *shaders.Use, w *shaders.Way){
		"kernel":    func(u *shaders.Use, w *shaders.Way) { u.Kernel = "rmsnorm" },
		"type":      func(u *shaders.Use, w *shaders.Way) { u.Type = quant.Q8_1 },
		"width":     func(u *shaders.Use, w *shaders.Way) { u.In = 0 },
		"scheme":    func(u *shaders.Use, w *shaders.Way) { w.Scheme = "spread" },
		"group":     func(u *shaders.Use, w *shaders.Way) { w.Group = 64 },
		"no tokens": func(u *shaders.Use, w *shaders.Way) { w.Tokens = nil },
		"tokens":    func(u *shaders.Use, w *shaders.Way) { w.Tokens = []int{1, 3} },
		"0 tokens":  func(u *shaders.Use, w *shaders.Way) { w.Tokens = []int{0} },
	} {
		u, w := use, way
		if spoil(&u, &w); p.CheckWay(u, w) == nil {
			t.Errorf("%s: %v with %v is taken", name, u, w)
		}
	}
}
