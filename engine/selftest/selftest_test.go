package selftest

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

var testID = For(vk.DeviceInfo{Name: "a device", UUID: "00ff", DriverName: "driver", DriverVersion: 7}, vk.Profile{Name: "auto"})

func TestVariant(t *testing.T) {
	v := Of(shaders.Dispatch{Module: "matmul.q8_0.row", Spec: []uint32{64, 2}}, &shaders.Profile{})
	if v.Kernel() != "matmul" || v.Type() != "q8_0" || v.Scheme() != "row" || v.String() != "matmul.q8_0.row(64,2)" {
		t.Errorf("%s: kernel %q, type %q, scheme %q", v, v.Kernel(), v.Type(), v.Scheme())
	}
	plain := Of(shaders.Dispatch{Module: "rmsnorm", Spec: []uint32{8, 1}}, &shaders.Profile{})
	if plain.Kernel() != "rmsnorm" || plain.Type() != "" || plain.Scheme() != "" {
		t.Errorf("%s: kernel %q, type %q, scheme %q", plain, plain.Kernel(), plain.Type(), plain.Scheme())
	}
	if s := Of(shaders.Dispatch{Module: "delta_rule.lanes"}, &shaders.Profile{}); s.Type() != "" || s.Scheme() != "lanes" {
		t.Errorf("%s: type %q, scheme %q", s, s.Type(), s.Scheme())
	}
	other := Of(shaders.Dispatch{Module: "rmsnorm", Spec: []uint32{8, 1}}, &shaders.Profile{NoHalves: true})
	if other == plain {
		t.Error("other conversions of halves are the same variant")
	}
	for _, v := range []Variant{v, plain, other} {
		if got, err := ParseVariant(v.String()); got != v || err != nil {
			t.Errorf("%s is read as %+v, %v", v, got, err)
		}
	}
	for _, s := range []string{"", "matmul", "(1)", "matmul(1", "matmul(1)x"} {
		if v, err := ParseVariant(s); err == nil {
			t.Errorf("%q is read as %+v", s, v)
		}
	}
}

// Each rung leaves out what its name says, keeps what those before it left out, and no rung adds anything.
func TestLadder(t *testing.T) {
	p := vk.Profile{
		Lanes: true, Broadcast: true, SlowLoads: true, FreeReads: true, FastTexels: true, MaxTexels: 1 << 27, MaxBinding: 1 << 27, MaxBuffers: 32,
		SubgroupSize: 8, SubgroupFixed: true, MaxInvocations: 1024, SharedMemory: 64 << 10,
		Features: vk.Features{CooperativeMatrix: true, Float16: true, MemoryModel: true, BufferAddress: true, Int64: true, Int8: true, Storage8: true},
		Matrices: []vk.Matrix{{M: 8, N: 8, K: 8, A: vk.ComponentFloat16, B: vk.ComponentFloat16, C: vk.ComponentFloat32, Result: vk.ComponentFloat32, Subgroup: true}},
	}
	software := p
	software.Lanes = false
	has := []func(shaders.Profile) bool{
		nil, // what was tuned is no part of a profile
		func(k shaders.Profile) bool { return k.CanMatrices != shaders.MatrixShape{} },
		func(k shaders.Profile) bool { k.LanesPerRow = false; return k.CanPack() },
		func(k shaders.Profile) bool { return k.Fuse },
		func(k shaders.Profile) bool {
			return k.CanSpread || k.CanTexels || k.CanShare > 0 || k.Spread || k.Texels || k.Broadcast > 0
		},
		func(k shaders.Profile) bool { return k.LanesPerRow },
		func(k shaders.Profile) bool { return !k.NoSubgroups },
		func(k shaders.Profile) bool { return !k.NoHalves },
	}
	if len(has) != len(Ladder) {
		t.Fatalf("%d rungs", len(Ladder))
	}
	for n := 0; n <= len(Ladder); n++ {
		k := scheduler.Kernels(Restrict(p, n))
		for i, h := range has {
			if h != nil && h(k) != (i >= n) {
				t.Errorf("without %d rungs: %q is %t", n, Ladder[i].Name, h(k))
			}
		}
		if Tuned(n) != (n == 0) {
			t.Errorf("without %d rungs: tuned %t", n, Tuned(n))
		}
	}
	if got := Describe(3, []bool{false, true, true}); got != "without cooperative matrices, packed int8 inputs" {
		t.Errorf("%q", got)
	}
	if got := Describe(2, []bool{false, false}); got != "" || Describe(0, nil) != "" {
		t.Errorf("%q", got)
	}
}

func TestVerdicts(t *testing.T) {
	a, b, c := Variant{"a.row", "1 2"}, Variant{"b", ""}, Variant{"c", "8"}
	v := NewVerdicts()
	v.Add([]Result{{Variant: a, OK: true}, {Variant: b, Rel: 0.5}, {Variant: c, Rel: math.Inf(1)}})
	want := &Verdicts{map[Variant]bool{a: true}, map[Variant]float64{b: 0.5, c: 0}}
	if !reflect.DeepEqual(v, want) {
		t.Fatalf("%+v", v)
	}
	// Who was wrong in company is not known to be, unless the others are right, or never was right.
	group := []Result{{Variant: a, OK: true}, {Variant: b, Rel: 1, With: []Variant{a, c}}, {Variant: c, Rel: 1, With: []Variant{a, b}}}
	w := NewVerdicts()
	w.Add(group)
	if len(w.Failed) > 0 || len(w.Passed) != 1 {
		t.Errorf("in company: %+v", w)
	}
	w.Add([]Result{{Variant: c, OK: true}})
	w.AddSuspects(group)
	if len(w.Failed) != 1 || w.Failed[b] != 1 || !w.Passed[c] {
		t.Errorf("with one of them right: %+v", w)
	}
	w = NewVerdicts()
	w.Passed[c] = true
	if w.Add(group[:2]); len(w.Failed) != 1 || w.Failed[b] != 1 {
		t.Errorf("among right ones: %+v", w)
	}
	dir := filepath.Join(t.TempDir(), "new", "folder")
	defer Forget("", testID)
	if err := Remember(dir, testID, v); err != nil {
		t.Fatal(err)
	}
	if err := Forget("", testID); err != nil {
		t.Fatal(err)
	}
	if got := Recall(dir, testID); !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %+v", got)
	}
	// What comes later holds, and the rest stays.
	later := NewVerdicts()
	later.Add([]Result{{Variant: a, Rel: 2}, {Variant: b, OK: true}})
	if err := Remember(dir, testID, later); err != nil {
		t.Fatal(err)
	}
	want = &Verdicts{map[Variant]bool{b: true}, map[Variant]float64{a: 2, c: 0}}
	if got := Recall("", testID); !reflect.DeepEqual(got, &Verdicts{map[Variant]bool{b: true}, map[Variant]float64{a: 2}}) {
		t.Errorf("of this process: %+v", got)
	}
	if err := Forget("", testID); err != nil {
		t.Fatal(err)
	}
	if got := Recall(dir, testID); !reflect.DeepEqual(got, want) {
		t.Errorf("after both: %+v", got)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	for range 2 {
		if err := Forget(dir, testID); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(testID.Path(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Forget: %v", err)
	}
}

// Whatever a file does not hold for is not used, and neither is one that is damaged.
func TestVerdictsOfOthers(t *testing.T) {
	defer Forget("", testID)
	dir := t.TempDir()
	v := NewVerdicts()
	v.Passed[Variant{"a", "1"}] = true
	if err := Remember(dir, testID, v); err != nil {
		t.Fatal(err)
	}
	if err := Forget("", testID); err != nil {
		t.Fatal(err)
	}
	path := testID.Path(dir)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ID){
		"device": func(id *ID) { id.UUID = "00fe" }, "driver": func(id *ID) { id.Driver = "driver 8" }, "profile": func(id *ID) { id.Profile = "floor" },
	} {
		id := testID
		if change(&id); id.Path(dir) == path {
			t.Errorf("another %s has the same file", name)
		}
	}
	other := testID
	other.Kernels = "other"
	if got := Recall(dir, other); len(got.Passed) > 0 {
		t.Errorf("other kernels: %+v", got)
	}
	for name, data := range map[string]string{
		"empty": "", "cut off": string(whole[:len(whole)/2]), "version": strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1),
		"no variant": strings.Replace(string(whole), "a(1)", "a(1", 1), "too large": string(whole) + strings.Repeat(" ", maxFile),
	} {
		if data == string(whole) {
			t.Fatalf("%s: the file is as before", name)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Recall(dir, testID); len(got.Passed) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Remember(dir, testID, v); err == nil {
		t.Error("a folder is replaced")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}
