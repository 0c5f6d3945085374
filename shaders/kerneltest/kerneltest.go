// Package kerneltest runs ops on every Vulkan device at hand, under every scheme their kernels have, and
// compares them with their twins.
package kerneltest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Case is ops to run in order, what memory holds before, and what to compare after.
type Case struct {
	Name  string
	Ops   []shaders.Op
	Fill  map[*shaders.Buffer][]byte // the step buffer among them; what is not filled is zero
	Check []Check
	// Same lists pairs of ranges that must be equal bit for bit after the ops on a device.
	Same [][2]shaders.View
	// Few runs the case once for each device and scheme, for kernels that differ from tested ones only in what
	// neither the floor profile nor the way lanes reduce has to do with: compiling them takes most of the time. Only
	// with CALDERA_LONG=1 has SwiftShader the lanes' scheme too, and have drivers the spread scheme that read slowly in it.
	Few bool
	// Turn, if not 0, runs the case on one of those rigs: many kernels alike, with turns of 1, 2, .., spread over
	// all of them.
	Turn int
	// Ways, if not nil, gives the weight kernels' ways on a device.
	Ways func(*shaders.Profile) map[shaders.Use]shaders.Way
	// Lanes runs the case only where the lanes of a subgroup share a row.
	Lanes bool
	// Packed runs the case only where inputs can be packed into whole numbers, once for each device.
	Packed bool
	// Matrices runs the case with cooperative matrices, once for each device that has them.
	Matrices bool
	// Binding, if not 0, is the largest binding that kernels get, so that larger matrices are read in windows.
	Binding int64
}

// A Check compares a range of memory after the ops with what the twins left there.
type Check struct {
	View shaders.View
	// Tol is the largest difference allowed, relative to the largest magnitude expected in the view.
	Tol float64
	// Exact compares words bit for bit instead.
	Exact bool
	// Tiny lets a device have zero instead of exact values of smaller magnitude: Vulkan leaves it to devices
	// whether a subnormal, and so what is computed from one, is zero.
	Tiny float32
}

// Limits of the floor rig on the loops of an invocation: few enough that ops which can be cut into several
// dispatches are, and what ops get that cannot do with that.
const (
	fewLoops  = 150
	moreLoops = 6000
)

// rig is a device under one profile and scheme.
type rig struct {
	name  string
	die   *scheduler.Die
	again bool // a device and scheme that an earlier rig has
	spare bool // a scheme for other devices on one that compiles each of its kernels for seconds
}

type rigSet struct {
	instance *vk.Instance
	rigs     []rig
	err      error
}

var open = sync.OnceValue(func() rigSet {
	in, err := vk.Open(vk.Config{AppName: "caldera kernel tests"})
	if err != nil {
		return rigSet{err: err}
	}
	set := rigSet{instance: in}
	for _, info := range in.Devices() {
		for _, name := range []string{"auto", "floor"} {
			p, err := vk.ProfileFor(info, name)
			if err != nil {
				set.err = err
				return set
			}
			type scheme struct {
				name                             string
				lanes, one, share, spread, texel bool
				alone                            bool // with what is left of the self-test's ladder
			}
			schemes := []scheme{{name: "row"}}
			if name == "floor" && os.Getenv("CALDERA_LONG") != "" {
				schemes = append(schemes, scheme{name: "alone", alone: true})
			}
			if name == "auto" {
				schemes = append(schemes, scheme{name: "lanes", lanes: true, one: true}, scheme{name: "lanes-shared", lanes: true})
				schemes[0].one = p.SubgroupFixed
				if scheduler.Broadcast(p) > 0 {
					schemes = append(schemes, scheme{name: "share", one: true, share: true})
				}
				if scheduler.CanTexels(p) {
					schemes = append(schemes, scheme{name: "texel", one: true, share: true, texel: true})
				}
				if scheduler.CanSpread(p) {
					schemes = append(schemes, scheme{name: "spread", one: true, share: true, spread: true})
				}
			}
			for _, s := range schemes {
				if s.one && !p.SubgroupFixed {
					continue
				}
				dev, err := in.NewDevice(info, p)
				if err != nil {
					set.err = fmt.Errorf("%s: %w", info.Name, err)
					return set
				}
				die := scheduler.NewDie(dev)
				used := s.share == (die.Kernels.Broadcast > 0) && s.spread == die.Kernels.Spread && s.texel == die.Kernels.Texels // by the engine
				if name == "auto" && !s.lanes && !s.share && !used {
					dev.Close() // the floor has this scheme
					continue
				}
				die.Kernels.LanesPerRow, die.Kernels.OneSubgroup, die.Kernels.Broadcast, die.Kernels.Spread, die.Kernels.Texels = s.lanes, s.one, 0, s.spread, s.texel
				die.Kernels.NoSubgroups, die.Kernels.NoHalves = s.alone, s.alone
				if s.share {
					die.Kernels.Broadcast = scheduler.Broadcast(p)
				}
				if name == "floor" {
					die.Kernels.MaxLoops = fewLoops
				}
				again := name == "floor" || s.lanes && !s.one && p.SubgroupFixed || !s.lanes && !used
				spare := (s.lanes && strings.HasPrefix(info.Name, "SwiftShader") || s.spread && !used) && os.Getenv("CALDERA_LONG") != "1"
				set.rigs = append(set.rigs, rig{fmt.Sprintf("%s/%s/%s", info.Name, name, s.name), die, again, spare})
			}
		}
	}
	return set
})

// Spreads reports whether some device is made for the spread scheme.
func Spreads() bool {
	return slices.ContainsFunc(open().rigs, func(r rig) bool { return r.die.Kernels.Spread && r.die.Device.Profile().FreeReads })
}

// Main runs a package's tests and fails them if the validation layers said anything. Call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if s := open(); s.err == nil {
		for _, r := range s.rigs {
			if err := r.die.Close(); err != nil {
				fmt.Fprintln(os.Stderr, r.name, err)
				code = 1
			}
		}
		if n := s.instance.ValidationCount(); n > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: %d validation messages:\n", n)
			for _, msg := range s.instance.ValidationMessages() {
				fmt.Fprintln(os.Stderr, msg)
			}
			code = 1
		}
		s.instance.Close()
	}
	os.Exit(code)
}

// Run performs a case on every rig.
func Run(t *testing.T, c Case) {
	t.Helper()
	set := open()
	if set.err != nil {
		t.Skipf("no Vulkan device to test on: %v", set.err)
	}
	step := c.separate()
	if step == nil {
		t.Fatal("no op of the case reads a step buffer")
	}
	g := &scheduler.Graph{Step: step}
	for i, o := range c.Ops {
		g.Add(fmt.Sprintf("op %d", i), o)
	}
	want := shaders.HostMemory{}
	for b, data := range c.Fill {
		want[b] = append(shaders.AlignedBytes(b.Size)[:0], data...)
		if int64(len(data)) != b.Size {
			t.Fatalf("buffer %s of %d bytes is filled with %d", b.Name, b.Size, len(data))
		}
	}
	for i, o := range c.Ops {
		if err := o.Twin(want); err != nil {
			t.Fatalf("twin of op %d: %v", i, err)
		}
	}
	rigs := c.rigs(set.rigs)
	if c.Matrices && len(rigs) == 0 {
		t.Skip("no device has cooperative matrices that kernels can use")
	}
	for _, r := range rigs {
		t.Run(c.Name+"/"+r.name, func(t *testing.T) { c.run(t, g, r, want) })
	}
}

// rigs are those that a case runs on.
func (c Case) rigs(all []rig) []rig {
	all = slices.DeleteFunc(slices.Clone(all), func(r rig) bool { return r.again && r.die.Kernels.Spread && !c.spreads(&r.die.Kernels) })
	if c.Lanes {
		all = slices.DeleteFunc(all, func(r rig) bool { return !r.die.Kernels.LanesPerRow })
	}
	if c.Matrices {
		seen := map[string]bool{}
		return slices.DeleteFunc(all, func(r rig) bool {
			device, _, _ := strings.Cut(r.name, "/")
			again := r.again || r.die.Kernels.CanMatrices == (shaders.MatrixShape{}) || seen[device]
			seen[device] = seen[device] || !again
			return again
		})
	}
	if c.Packed {
		return slices.DeleteFunc(all, func(r rig) bool { return !r.die.Kernels.Spread || !r.die.Kernels.CanPack() })
	}
	if !c.Few && c.Turn == 0 {
		return all
	}
	few := slices.DeleteFunc(slices.Clone(all), func(r rig) bool { return r.again && !r.die.Kernels.Spread || r.spare && !c.Lanes })
	if c.Turn == 0 || len(few) == 0 {
		return few
	}
	n := c.Turn % len(few)
	return few[n : n+1]
}

// spreads reports whether the case has kernels of the spread scheme, which only some block types have.
func (c Case) spreads(p *shaders.Profile) bool {
	for _, o := range c.Ops {
		ds, _ := o.Lower(p) // an error shows when the case runs
		for _, d := range ds {
			if m, err := shaders.Describe(d.Module); err == nil && len(m.Addresses) > 0 {
				return true
			}
		}
	}
	return false
}

// separate makes every buffer outlive the ops with memory of its own, so that any of them can be filled and
// looked at, and returns the step buffer.
func (c Case) separate() (step *shaders.Buffer) {
	for _, o := range c.Ops {
		for _, v := range o.Operands() {
			switch v.Buf.Kind {
			case shaders.StepInput:
				step = v.Buf
			case shaders.Scratch, shaders.Result:
				v.Buf.Kind = shaders.State
			}
		}
	}
	return step
}

func (c Case) run(t *testing.T, g *scheduler.Graph, r rig, want shaders.HostMemory) {
	for _, b := range g.Buffers() {
		if b.Kind == shaders.StepInput {
			continue
		}
		if err := r.die.Allocate(b, true); err != nil {
			t.Fatal(err)
		}
		defer r.die.Free(b)
		if data := c.Fill[b]; data != nil {
			if err := r.die.Upload(b.View(), data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c.Ways != nil {
		r.die.Kernels.Tuned = c.Ways(&r.die.Kernels)
		defer func() { r.die.Kernels.Tuned = nil }()
	}
	if c.Binding > 0 {
		defer func(n int64) { r.die.Kernels.MaxBinding = n }(r.die.Kernels.MaxBinding)
		r.die.Kernels.MaxBinding = c.Binding
	}
	if c.Matrices {
		r.die.Kernels.Matrices = r.die.Kernels.CanMatrices
		defer func() { r.die.Kernels.Matrices = shaders.MatrixShape{} }()
	}
	p, err := compile(g, r.die)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Write(g.Step.View(), c.Fill[g.Step]); err != nil {
		t.Fatal(err)
	}
	if err := p.Replay(); err != nil {
		t.Fatal(err)
	}
	for i, k := range c.Check {
		got := shaders.AlignedBytes(k.View.Len)
		if err := r.die.Download(k.View, got); err != nil {
			t.Fatal(err)
		}
		if err := k.compare(got, want.Bytes(k.View)); err != nil {
			t.Errorf("check %d, %s: %v", i, k.View.Buf.Name, err)
		}
	}
	for _, pair := range c.Same {
		var data [2][]byte
		for i, v := range pair {
			data[i] = shaders.AlignedBytes(v.Len)
			if err := r.die.Download(v, data[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(data[0], data[1]) {
			t.Errorf("%s at %d and %s at %d: %v and %v", pair[0].Buf.Name, pair[0].Off, pair[1].Buf.Name, pair[1].Off,
				shaders.Floats(data[0]), shaders.Floats(data[1]))
		}
	}
}

// compile makes the plan of a case with as few loops as its ops can be cut to.
func compile(g *scheduler.Graph, die *scheduler.Die) (p *scheduler.Plan, err error) {
	limit := die.Kernels.MaxLoops
	defer func() { die.Kernels.MaxLoops = limit }()
	for _, n := range []int{limit, moreLoops, 0} {
		die.Kernels.MaxLoops = n
		p, err = scheduler.Compile(g, scheduler.On(die), scheduler.Options{Check: true})
		if !errors.Is(err, shaders.ErrLoops) {
			break
		}
	}
	return p, err
}

func (k Check) compare(got, want []byte) error {
	gw, ww := shaders.Words(got), shaders.Words(append(shaders.AlignedBytes(int64(len(want)))[:0], want...))
	if k.Exact {
		for i := range ww {
			if gw[i] != ww[i] && !(gw[i]<<1 == 0 && ww[i]<<1 < math.Float32bits(k.Tiny)<<1) {
				return fmt.Errorf("word %d is %#x, the twin has %#x", i, gw[i], ww[i])
			}
		}
		return nil
	}
	scale, worst, at := 0.0, 0.0, -1
	g, w := shaders.Floats(got), shaders.Floats(want)
	for i := range w {
		a, b := float64(g[i]), float64(w[i])
		if !math.IsNaN(b) && !math.IsInf(b, 0) {
			scale = max(scale, math.Abs(b)) // a NaN would let everything pass
		}
		d := math.Abs(a - b)
		if a == b || (math.IsNaN(a) && math.IsNaN(b)) {
			d = 0
		} else if math.IsNaN(d) {
			d = math.Inf(1)
		}
		if d > worst || at < 0 {
			worst, at = d, i
		}
	}
	if worst > k.Tol*scale {
		return fmt.Errorf("element %d is %g, the twin has %g; differs by %.3g of a scale of %.3g, allowed %.3g", at, g[at], w[at], worst, scale, k.Tol*scale)
	}
	return nil
}

// Rand returns a generator that repeats for a seed.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// Normal returns n normally distributed values.
func Normal(r *rand.Rand, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(r.NormFloat64())
	}
	return f
}

// Floats returns the bytes of values.
func Floats(f []float32) []byte {
	b := shaders.AlignedBytes(int64(len(f)) * 4)[:0]
	for _, v := range f {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// Words returns the bytes of words.
func Words(w []uint32) []byte {
	b := shaders.AlignedBytes(int64(len(w)) * 4)[:0]
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// Step returns a step buffer that describes runs, and its content.
func Step(t *testing.T, shape shaders.StepShape, runs []shaders.Run, rope shaders.RopeTable) (*shaders.Buffer, []byte) {
	t.Helper()
	b := shape.NewBuffer()
	data := shaders.AlignedBytes(b.Size)
	if err := shape.Write(shaders.Words(data), runs, rope); err != nil {
		t.Fatal(err)
	}
	return b, data
}

// Tokens returns n token ids, for runs whose ids do not matter.
func Tokens(n int) []int32 { return make([]int32, n) }
