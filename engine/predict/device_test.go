package predict

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table has the devices that documents speak of, under the names people type.
func TestFind(t *testing.T) {
	for name, want := range map[string]string{
		"RTX 4090": "RTX 4090", "rtx4090": "RTX 4090", "4090": "RTX 4090", "rx-7900_xtx": "RX 7900 XTX", "m3max": "M3 Max",
		"k80": "K80", "h200": "H200", "8060S": "Strix Halo 8060S", "strix halo": "Strix Halo 8060S",
	} {
		if d, err := Find(Devices(), name); err != nil || d.Name != want {
			t.Errorf("%q is %q, %v", name, d.Name, err)
		}
	}
	_, err := Find(Devices(), "rtx")
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "RTX 4090, ") {
		t.Errorf("rtx: %v", err)
	}
}

// Figures agree with each other: a unit does a multiply-add each cycle, two where two are issued at once, at a clock that
// there is.
func TestTable(t *testing.T) {
	for _, d := range Devices() {
		clock := d.FP32 * 1e12 / float64(2*d.Lanes) / 1e9
		if clock > 3 {
			clock /= 2 // dual issue
		}
		if clock < 0.5 || clock > 3 {
			t.Errorf("%s: %g TFLOPS of %d lanes are %.2f GHz", d.Name, d.FP32, d.Lanes, clock)
		}
		if d.Sources == "" || d.Barrier < d.Dispatch {
			t.Errorf("%s: %+v", d.Name, d)
		}
		k := d.Kernels()
		if !k.LanesPerRow || int(k.Subgroup) != d.Subgroup || !k.OneSubgroup || k.MaxLoops != 0 || k.MaxBinding != 1<<32-1 {
			t.Errorf("%s: kernels %+v", d.Name, k)
		}
	}
	g := Generic()
	if k := g.Kernels(); !k.LanesPerRow || k.MaxBinding != 1<<32-1 {
		t.Errorf("a GPU: %+v", k)
	}
}

const good = `{"name": "X", "memory_gib": 8, "bandwidth_gb_s": 100, "bandwidth_efficiency": 0.8, "fp32_tflops": 1, "fp32_efficiency": 0.5,
	"lanes": 512, "dispatch_us": 1, "barrier_us": 2, "host_us": 50, "row_us": 1, "subgroup": 32, "binding_mib": 128, "sources": "none"}`

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.json")
	read := func(text string) ([]Device, error) {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return ReadFile(path)
	}
	for _, text := range []string{good, " [" + good + "]\n"} {
		ds, err := read(text)
		if err != nil || len(ds) != 1 || ds[0].Name != "X" || ds[0].Bandwidth != 100 {
			t.Errorf("%+v, %v", ds, err)
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{`"X"`, `" - "`, "without a name"}, {`"bandwidth_gb_s": 100`, `"bandwidth_gb_s": 0`, "bandwidth_gb_s is 0"},
		{`"bandwidth_efficiency": 0.8`, `"bandwidth_efficiency": 1.2`, "use 0.01 to 1"}, {`"lanes": 512`, `"lanes": 0`, "lanes is 0"},
		{`"subgroup": 32`, `"subgroup": 48`, "no power of two"}, {`"binding_mib": 128`, `"binding_mib": 64`, "binding_mib is 64"},
		{`"sources"`, `"source"`, "unknown field"}, {`"sources": "none"}`, `"sources": "none"`, "invalid character"},
		{`"sources": "none"`, `"features": ["warp"], "sources": "none"`, `unknown feature "warp"`},
		{`"fp32_tflops": 1`, `"fp32_tflops": "1"`, "cannot unmarshal"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%q is not in the file", c.from)
		}
		if ds, err := read(text); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "d.json") {
			t.Errorf("%s: %+v, %v", c.to, ds, err)
		}
	}
	for text, want := range map[string]string{
		"[]": "no device", "": "EOF", "[" + good + "," + good + "]": "two devices", "[" + good + "] 1": "follows", "[" + good + "]]": "follows", good + "]": "follows",
		strings.Replace(good, "{", `{"`+strings.Repeat("x", 5000)+`": 1, `, 1): "unknown field", strings.Replace(good, `"name": "`, `"name": "`+strings.Repeat("x", 5000), 1): "a name of",
		strings.Replace(good, "{", `{"aliases": [" "], `, 1): "without a name",
		strings.Repeat(" ", maxFile+1):                       "more than",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if _, err := ReadFile(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// The number of experts that rows choose: k of one row, all of very many, and what counting gives.
func TestDistinct(t *testing.T) {
	for _, c := range []struct{ rows, k, experts, want float64 }{
		{1, 8, 256, 8}, {1, 10, 512, 10}, {64, 8, 256, 222.4}, {512, 8, 256, 256}, {2, 1, 2, 1.5}, {3, 1, 3, 19.0 / 9},
	} {
		if got := Distinct(c.rows, c.k, c.experts); math.Abs(got-c.want) > 0.1 && math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("%+v: %g", c, got)
		}
	}
}
