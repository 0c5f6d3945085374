package scheduler

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/shaders"
)

// moduleCode returns a module's SPIR-V.
func moduleCode(t testing.TB, name string) []byte {
	t.Helper()
	_, b, err := shaders.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// valid runs spirv-val on a module, where there is one.
func valid(t *testing.T, m shaders.Module, code []byte) {
	t.Helper()
	val, err := exec.LookPath("spirv-val")
	if err != nil || m.Matrices { // which only newer validators know
		return
	}
	path := filepath.Join(t.TempDir(), "module.spv")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(val, "--target-env", m.Target(), path).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", m.Name, err, out)
	}
}

// count returns how many instructions of a module satisfy is.
func count(t testing.TB, code []byte, is func(instruction) bool) (n int) {
	t.Helper()
	m, err := parseModule(code)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range m.list {
		if is(i) {
			n++
		}
	}
	return n
}

func crossLane(i instruction) bool {
	op := i.op()
	return op == opBroadcast || op == opBroadcastFirst || op >= opShuffle && op <= opQuadSwap
}

// A module that is read and written is the same, and one that a fault does not concern is not touched.
func TestRewriteNothing(t *testing.T) {
	for _, x := range shaders.Modules() {
		code := moduleCode(t, x.Name)
		m, err := parseModule(code)
		if err != nil {
			t.Fatalf("%s: %v", x.Name, err)
		}
		if !bytes.Equal(m.bytes(), code) {
			t.Errorf("%s changes by being read", x.Name)
		}
		if got, err := NoFault.rewrite(code); err != nil || !bytes.Equal(got, code) {
			t.Errorf("%s without a fault: changed, %v", x.Name, err)
		}
	}
	for name, f := range map[string]Fault{"matmul.q8_0.row": FaultShuffle, "topk": FaultFlush, "rmsnorm": FaultInt16, "matmul.q4_k.lanes": FaultInt16} {
		if got, err := f.rewrite(moduleCode(t, name)); err != nil || !bytes.Equal(got, moduleCode(t, name)) {
			t.Errorf("%s with the fault %s: changed, %v", name, f, err)
		}
	}
}

// With FaultShuffle nothing takes a value of another lane, and no instruction has moved.
func TestFaultShuffle(t *testing.T) {
	for _, x := range shaders.Modules() {
		code := moduleCode(t, x.Name)
		before := count(t, code, crossLane)
		bad, err := FaultShuffle.rewrite(code)
		if err != nil {
			t.Fatal(err)
		}
		if n := count(t, bad, crossLane); n != 0 {
			t.Errorf("%s: %d of %d operations are left", x.Name, n, before)
		}
		if len(bad) != len(code) {
			t.Errorf("%s: %d bytes of %d", x.Name, len(bad), len(code))
		}
		copies := count(t, bad, func(i instruction) bool { return i.op() == opCopyObject }) - count(t, code, func(i instruction) bool { return i.op() == opCopyObject })
		if copies != before {
			t.Errorf("%s: %d copies for %d operations", x.Name, copies, before)
		}
		if x.Name == "rmsnorm" || x.Name == "matmul.q4_k.spread" {
			valid(t, x, bad)
		}
	}
}

// FaultInt16 concerns the products of the packed scheme, two in its loop.
func TestFaultInt16(t *testing.T) {
	clamps := func(i instruction) bool { return i.op() == opExtInst && len(i) == 8 && i[4] == extSClamp }
	for _, x := range shaders.Modules() {
		code := moduleCode(t, x.Name)
		bad, err := FaultInt16.rewrite(code)
		if err != nil {
			t.Fatal(err)
		}
		before, n := count(t, code, clamps), count(t, bad, clamps)
		products := func(i instruction) bool { return i.op() == opIMul }
		if count(t, code, products) != count(t, bad, products) {
			t.Errorf("%s: the number of products has changed", x.Name)
		}
		if strings.HasSuffix(x.Name, ".packed") {
			if n-before != 2 {
				t.Errorf("%s: %d products saturate", x.Name, n-before)
			}
			if strings.HasPrefix(x.Name, "matmul.") {
				valid(t, x, bad)
			}
		}
	}
}

// With FaultFlush and with wholeHalves modules that convert halves are others, and valid ones; those with conversions of their
// own have none that the fault concerns.
func TestHalves(t *testing.T) {
	some := []string{"matmul.q8_0.row", "matmul.f16.row", "matmul.q4_k.texel", "matmul.q6_k.spread", "attention", "attention.cold", "embed.q8_0"}
	found := 0
	for _, x := range shaders.Modules() {
		code := moduleCode(t, x.Name)
		bad, err := FaultFlush.rewrite(code)
		if err != nil {
			t.Fatal(err)
		}
		own, err := wholeHalves(code)
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseModule(code)
		if err != nil {
			t.Fatal(err)
		}
		if converts := slices.ContainsFunc(m.list, m.unpacks); converts == bytes.Equal(bad, code) || converts == bytes.Equal(own, code) {
			t.Errorf("%s: converts halves %t, changed by the fault %t, by conversions of its own %t", x.Name, converts, !bytes.Equal(bad, code), !bytes.Equal(own, code))
		} else if !converts {
			continue
		}
		set := m.set
		if n := count(t, own, func(i instruction) bool { return i.op() == opExtInst && i[3] == set && i[4] == extUnpackHalf }); n > 0 {
			t.Errorf("%s: %d of the driver's conversions are left", x.Name, n)
		}
		if again, err := FaultFlush.rewrite(own); err != nil || !bytes.Equal(again, own) {
			t.Errorf("%s: conversions of its own are concerned by the fault, %v", x.Name, err)
		}
		if slices.Contains(some, x.Name) {
			found++
			valid(t, x, bad)
			valid(t, x, own)
		}
	}
	if found < len(some)-1 {
		t.Errorf("%d of %v are there and convert halves", found, some)
	}
}

// Damaged modules are refused.
func TestRewriteDamaged(t *testing.T) {
	code := moduleCode(t, "rmsnorm")
	zero := slices.Clone(code)
	clear(zero[4*spirvHeader+4*10:][:4]) // in the middle of an instruction, or its length
	for name, bad := range map[string][]byte{"empty": nil, "cut off": code[:4*spirvHeader+4], "odd": code[:len(code)-3], "other": append([]byte("GGUF"), code[4:]...)} {
		if _, err := FaultShuffle.rewrite(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := wholeHalves(bad); err == nil {
			t.Errorf("%s: no error for halves", name)
		}
	}
	if _, err := FaultShuffle.rewrite(zero); err != nil && !strings.Contains(err.Error(), "SPIR-V") {
		t.Errorf("%v", err)
	}
	if _, err := Fault("other").rewrite(code); err == nil {
		t.Error("an unknown fault is injected")
	}
	if _, err := ParseFault("other"); err == nil || !strings.Contains(err.Error(), string(FaultInt16)) {
		t.Errorf("an unknown fault: %v", err)
	}
	for _, f := range append(Faults(), NoFault) {
		if got, err := ParseFault(string(f)); got != f || err != nil {
			t.Errorf("%q: %q, %v", f, got, err)
		}
	}
}
