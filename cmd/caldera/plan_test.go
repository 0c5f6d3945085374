package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// plan agrees with itself: classes and residencies both sum up to the weights, parts to the total.
func TestPlan(t *testing.T) {
	backends := []string{"reference"}
	if program(t, "", "devices").code != exitNoDevice {
		backends = append(backends, "vulkan")
	}
	for _, backend := range backends {
		r := program(t, "", "plan", "--backend", backend, "--json", "--slots", "3", "--ctx", "600")
		x := decode[planResult](t, r)
		if r.code != exitDone || x.Schema != "caldera.plan/1" || !x.Fits || x.Slots != 3 || x.Context != 600 || x.Backend != backend {
			t.Errorf("%s: code %d, %+v", backend, r.code, x)
		}
		sum := int64(0)
		for _, c := range x.Weights.Classes {
			types := int64(0)
			for _, y := range c.Types {
				types += y.Bytes
			}
			if types != c.Bytes {
				t.Errorf("%s: types of %s sum up to %d of %d", backend, c.Class, types, c.Bytes)
			}
			sum += c.Bytes
		}
		w := x.Weights
		if sum != w.Total || w.Imported+w.Copied+w.Uploaded+w.Host != w.Total || w.Total == 0 {
			t.Errorf("%s: classes sum up to %d, weights are %+v", backend, sum, w)
		}
		rest := x.KV.Bytes + x.State.Bytes + x.Scratch + x.Step + x.Results + x.Staging + x.Snapshots
		if x.Total != w.Total+rest || x.Needed != x.Total-w.Imported {
			t.Errorf("%s: total %d, needed %d, parts %d", backend, x.Total, x.Needed, w.Total+rest)
		}
		if x.KV.Pages != 9 || x.State.Bytes != 3*x.State.SlotBytes {
			t.Errorf("%s: %+v %+v", backend, x.KV, x.State)
		}
	}
	r := program(t, "", "plan", "--backend", "reference")
	for _, want := range []string{"WEIGHTS", "routed experts", "attention cache", "recurrent state", "scratch", "POOL", "fits;"} {
		if r.code != exitDone || !strings.Contains(r.out, want) {
			t.Errorf("code %d, %q is missing: %s%s", r.code, want, r.out, r.err)
		}
	}
	if strings.Contains(r.out, `\t`) {
		t.Errorf("tabs are printed: %s", r.out)
	}
}

// A plan that does not fit is printed with what would help, and refused with the numbers.
func TestPlanDoesNotFit(t *testing.T) {
	m := &engine.MemoryPlan{
		Model: "big.gguf", Context: 8192, Slots: 2, Batch: 64, KVType: "f32", MaxContext: 512, Advice: []string{"--kv f16"},
		Pools: []engine.MemoryPool{
			{Name: "device heap 0", Size: 8 << 30, Available: 6 << 30, Needed: 7 << 30, Source: "budget of the driver"},
			{Name: "memory of the machine", Size: -1, Available: 16 << 30, Needed: 1 << 30},
		},
	}
	var b strings.Builder
	if err := printPlan(&b, m); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"does not fit\n", "would help: --kv f16\n", "budget of the driver, of 8.00 GiB", "2 sequences of up to 8192 tokens"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing: %s", want, b.String())
		}
	}
	err := m.Refusal()
	if exitCode(err) != exitMemory {
		t.Errorf("exit code %d for %v", exitCode(err), err)
	}
	for _, want := range []string{"7.00 GiB of the device heap 0", "6.00 GiB is available", "largest context that fits is 512", "--kv f16"} {
		if !strings.Contains(message(err), want) {
			t.Errorf("%q is missing: %s", want, message(err))
		}
	}
}

func TestPlanUsage(t *testing.T) {
	for args, want := range map[string]string{
		"plan --slots -1": "--slots is -1", "plan --slots 65": "--slots is 65", "plan a b": "one argument", "plan a -m b": "given twice",
		"plan --ctx -1": "--ctx is -1", "plan -b 513": "use 1 to 512", "plan --kv q4": "use f16, f32",
	} {
		if r := command(t, "", strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: code %d, %s", args, r.code, r.err)
		}
	}
	if r := command(t, "", "plan", "nosuch.gguf"); r.code != exitModel {
		t.Errorf("a missing file: code %d, %s", r.code, r.err)
	}
}

// A quantised cache has pages of two kinds, a limit is a pool, and sequences that have no whole context each share.
func TestPlanSlots(t *testing.T) {
	args := []string{"plan", "--backend", "reference", "--kv", "q4_0", "--ctx", "2048", "--slots", "4", "--cache-ram", "8M"}
	x := decode[planResult](t, program(t, "", append(args, "--json")...))
	if x.Slots != 4 || x.KV.ColdPages == 0 || x.KV.Bytes != x.KV.PageBytes*int64(x.KV.Pages)+x.KV.ColdPageBytes*int64(x.KV.ColdPages) || x.Snapshots != 8<<20 || x.KV.Contexts != 4 {
		t.Errorf("%+v %+v", x.KV, x)
	}
	r := program(t, "", args...)
	for _, want := range []string{"f16 (the beginning and recent tokens)", "q4_0\n", "prefix cache", "4 sequences run at a time; there is room for 4.0 whole contexts"} {
		if r.code != exitDone || !strings.Contains(r.out, want) {
			t.Errorf("code %d, %q is missing: %s%s", r.code, want, r.out, r.err)
		}
	}
	limit := x.Needed - x.KV.Bytes/2
	args = append(args, "--memory-limit", strconv.FormatInt(limit, 10))
	x = decode[planResult](t, program(t, "", append(args, "--json")...))
	if !x.Fits || x.Slots != 4 || x.KV.Contexts >= 4 || x.KV.Contexts < 1 || x.Needed > limit || x.Pools[0].Available != limit {
		t.Errorf("with a limit of %d: %+v %+v", limit, x.KV, x)
	}
	if r := program(t, "", append(args, "--cache-ram", "0", "--memory-limit", "2M")...); r.code != exitMemory || !strings.Contains(r.out, "does not fit") {
		t.Errorf("with 2 MiB: %+v", r)
	}
}
