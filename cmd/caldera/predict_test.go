package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/bench"
	"github.com/calderaml/caldera/engine/predict"
)

// plan counts a decoded token, and predicts speeds on devices of the table, of a file, and all of them, with or without a
// device at hand.
func TestPlanPredict(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d.json")
	const device = `{"name": "Half GPU", "memory_gib": 0.001, "bandwidth_gb_s": 100, "bandwidth_efficiency": 0.8, "fp32_tflops": 1, "fp32_efficiency": 0.5,
		"lanes": 512, "dispatch_us": 1, "barrier_us": 2, "host_us": 50, "row_us": 1, "subgroup": 32, "binding_mib": 128, "sources": "none"}`
	if err := os.WriteFile(file, []byte(device), 0o666); err != nil {
		t.Fatal(err)
	}
	args := []string{"plan", "--backend", "reference", "--predict", "rtx 4090,@" + file, "--depth", "100"}
	r := program(t, "", args...)
	for _, want := range []string{
		"a decoded token on a GPU, RTX 4090", " dispatches, ", "; a delta-net layer ", ", an attention layer ", "PREDICTION", "ARITHMETIC",
		"RTX 4090", "Half GPU", "tg128 @ d100", "pp512 @ d100", "more than the memory of Half GPU",
	} {
		if r.code != exitDone || !strings.Contains(r.out, want) {
			t.Errorf("code %d, %q is missing: %s%s", r.code, want, r.out, r.err)
		}
	}
	x := decode[planResult](t, program(t, "", append(args, "--json")...))
	if len(x.Predictions) != 4 || len(x.Counts) != 3 || !x.Fits {
		t.Fatalf("%+v", x)
	}
	for _, e := range x.Predictions {
		if math.Abs(e.Terms.Total()/e.Step-1) > 1e-9 || e.TS <= 0 || (e.Short > 0) != (e.Device == "Half GPU") || e.Measured {
			t.Errorf("%+v", e)
		}
	}
	x = decode[planResult](t, program(t, "", "plan", "--backend", "reference", "--predict", "all", "--json"))
	if len(x.Predictions) != 2*len(predict.Devices()) {
		t.Errorf("%d predictions for all", len(x.Predictions))
	}
}

func TestPredictUsage(t *testing.T) {
	for args, want := range map[string]string{
		"plan --backend reference --predict nosuch":  "reference backend has none; use one of the table: RTX 4090",
		"plan --backend reference --predict this":    "reference backend has none",
		"plan --backend reference --predict @nosuch": "nosuch: no such file",
		"plan --backend reference --predict 4090,,":  "lacks the name of a device",
		"plan --backend reference --depth -1":        "--depth is -1",
		"plan --backend reference --depth 100000000": "--depth is 100000000",
		"bench --dry-run=":                           "--dry-run= lacks the name of a device",
		"bench --dry-run=all":                        "counts for one device",
		"bench --dry-run --backend reference":        "has no dispatches",
		"bench --dry-run=gpu -o csv":                 "prints md or json",
		"bench --dry-run=gpu --ctx 64":               "--ctx is 64, but the tests need 512",
		"bench --dry-run=gpu -p 0 -n 0":              "nothing to measure",
	} {
		if r := command(t, "", strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: code %d, %s", args, r.code, r.err)
		}
	}
	if r := command(t, "", "plan", "--backend", "reference", "--predict", ""); r.code != exitUsage || !strings.Contains(r.err, "--predict lacks the name of a device") {
		t.Errorf("an empty name: code %d, %s", r.code, r.err)
	}
}

// What bench counts without running is what it counts when it runs, and needs no device where a GPU is named.
func TestDryRun(t *testing.T) {
	r := program(t, "", "bench", "--dry-run=gpu", "--sequences", "1,8", "-p", "8", "-n", "4")
	for _, want := range []string{"STEP", "pp8 ", "tg4 ", "tg4 x8", "a decoded token on a GPU: "} {
		if r.code != exitDone || !strings.Contains(r.out, want) {
			t.Errorf("code %d, %q is missing: %s%s", r.code, want, r.out, r.err)
		}
	}
	if program(t, "", "devices").code == exitNoDevice {
		t.Skip("no Vulkan device")
	}
	args := []string{"bench", "-p", "0", "-n", "1", "-r", "1", "--no-warmup", "--sequences", "1,3", "-o", "json"}
	records := decode[[]bench.Record](t, program(t, "", args...))
	dry := decode[dryResult](t, program(t, "", append(args, "--dry-run")...))
	if len(records) != 2 || len(dry.Tests) != 2 {
		t.Fatalf("%d records, %+v", len(records), dry)
	}
	for i, x := range dry.Tests {
		got := fmt.Sprint(x.Ops, x.Dispatches, x.Barriers, x.WeightBytes, x.StepFlops)
		y := records[i]
		if want := fmt.Sprint(y.Ops, y.Dispatches, y.Barriers, y.WeightBytes, y.StepFlops); got != want {
			t.Errorf("%s: counted %s, was %s", x.Test, got, want)
		}
	}
	if x := dry.Tests[0]; dry.Token.Token.Dispatches != x.Dispatches || dry.Token.Token.Barriers != x.Barriers {
		t.Errorf("a token is %+v, the test %+v", dry.Token, x)
	}
}

// What a device cannot do is refused with its name where it was asked for; a GPU that nobody asked for is left out.
func TestPlanRefused(t *testing.T) {
	for args, want := range map[string]string{
		"plan --backend reference --activations int8 --predict rtx4090": "RTX 4090: the device has no kernels for int8",
		"bench --dry-run=gpu --activations int8":                        "a GPU: the device has no kernels for int8",
		"bench --dry-run=k80 --matrices":                                "K80 has no cooperative matrices",
		"bench --dry-run=rtx4090 --matrices":                            "RTX 4090: the table of devices does not say",
	} {
		if r := command(t, "", strings.Fields(args)...); r.code == exitDone || !strings.Contains(r.err, want) || r.out != "" {
			t.Errorf("%s: %+v", args, r)
		}
	}
	x := decode[planResult](t, program(t, "", "plan", "--backend", "reference", "--activations", "int8", "--json"))
	if x.Counts == nil || len(x.Counts) != 0 {
		t.Errorf("reference: %+v", x.Counts)
	}
	for i := range 16 {
		device := fmt.Sprint(i)
		r := program(t, "", "bench", "--dry-run", "--device", device, "--activations", "int8", "-o", "json")
		if r.code == exitNoDevice {
			break
		}
		p := program(t, "", "plan", "--device", device, "--activations", "int8", "--json")
		if r.code != p.code {
			t.Errorf("device %s: bench %+v, plan %+v", device, r, p)
			continue
		}
		if r.code == exitDone {
			dry, plan := decode[dryResult](t, r), decode[planResult](t, p)
			if len(plan.Counts) != 1 || plan.Counts[0].Device != dry.Token.Device {
				t.Errorf("device %s: %+v, %+v", device, dry.Token, plan.Counts)
			}
		}
	}
}
