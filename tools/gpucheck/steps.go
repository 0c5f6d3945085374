package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// steps lists what is run, in order: what is quick and tells most comes first. The limits sum up to more than the
// budget on purpose: most steps end long before theirs.
func (c config) steps(temp string, r *results) []*step {
	program := func(name string) string { return filepath.Join(c.bin, name) }
	device := func(args ...string) []string {
		if c.device != "" {
			args = append(args, "--device", c.device)
		}
		return args
	}
	caldera := func(args ...string) []string { return append([]string{program("caldera")}, device(args...)...) }
	prompt, gen, reps := "512", "128", "3"
	if c.short {
		prompt, gen, reps = "16", "4", "1"
	}
	slice := filepath.Join(temp, "slice.gguf")
	made := false
	// withSlice skips a step when the slice could not be written.
	withSlice := func() string {
		if !made {
			return "there is no slice"
		}
		return ""
	}
	keep := func(in map[string]any, key string) func([]byte) error {
		return func(out []byte) error {
			var v any
			if err := json.Unmarshal(out, &v); err != nil {
				return fmt.Errorf("what it printed is no JSON: %w", err)
			}
			in[key] = v
			return nil
		}
	}
	bench := func(name string, model ...string) *step {
		args := append([]string{"bench", "-p", prompt, "-n", gen, "-r", reps, "--sequences", "1,8", "-o", "json", "--quiet"}, model...)
		return &step{Name: name, Command: caldera(args...), limit: 90 * time.Second, fix: withFlag("--profile-ops"), after: keep(r.Bench, strings.TrimPrefix(name, "bench "))}
	}
	predict := func(name string, model ...string) *step {
		args := append([]string{"plan", "--predict", "this,all", "--json", "--quiet"}, model...)
		if !c.short {
			args = append(args, "--batch", "512") // as bench has by default
		}
		return &step{Name: name, Command: caldera(args...), limit: 40 * time.Second, after: keep(r.Predictions, strings.TrimPrefix(name, "plan "))}
	}
	goTest := func(name, binary, dir string, limit time.Duration, args ...string) *step {
		args = append([]string{program(binary), "-test.v", "-test.timeout", limit.String()}, args...)
		return &step{Name: name, Command: args, dir: filepath.Join(c.root, dir), limit: limit + 5*time.Second, isGo: true, env: r.noSoftware}
	}
	mkmodel := []string{program("mkmodel"), "-o", slice, "-layers", "4"}
	kernels, vk := []string{}, []string{}
	if c.short {
		mkmodel = append(mkmodel, "-model", "0.8B", "-vocab", "8192")
		kernels, vk = []string{"-test.run", "TestRMSNorm|TestTopK|TestRouter"}, []string{"-test.run", "TestDispatch|TestTransfer"}
	}
	onSlice := func(s *step) *step { s.skip = withSlice; return s }
	return []*step{
		{Name: "devices", Command: caldera("devices", "--json"), limit: 20 * time.Second, after: func(out []byte) error { return r.takeDevices(out) }},
		{Name: "verify", Command: caldera("verify", "--json", "--quiet"), limit: 60 * time.Second},
		bench("bench demo"),
		{Name: "slice", Command: mkmodel, limit: 60 * time.Second, after: func([]byte) error { made = true; return nil }},
		onSlice(bench("bench slice", "-m", slice)),
		onSlice(predict("plan slice", slice)),
		predict("plan demo"),
		goTest("vk tests", "vk.test", "vk", 60*time.Second, vk...),
		goTest("kernel tests", "shaders.test", "shaders", 170*time.Second, kernels...),
	}
}

// takeDevices notes the devices and the one that is used.
func (r *results) takeDevices(out []byte) error {
	var v struct {
		Devices []map[string]any `json:"devices"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return fmt.Errorf("what it printed is no JSON: %w", err)
	}
	r.Devices = v.Devices
	for _, d := range v.Devices {
		if chosen, _ := d["default"].(bool); chosen {
			r.Device = d
		}
	}
	if r.Device == nil {
		return fmt.Errorf("none of %d devices is usable", len(v.Devices))
	}
	return nil
}

// noSoftware hides software drivers, which are installed beside those of GPUs on many machines and would take all the time of
// the tests, unless one of them is what is checked.
func (r *results) noSoftware() []string {
	if d, ok := r.Device.(map[string]any); ok {
		if software, _ := d["software"].(bool); !software {
			return []string{"VK_LOADER_DRIVERS_DISABLE=*lvp*,*swiftshader*"}
		}
	}
	return nil
}

// withFlag adds a flag to a command of caldera if that version knows it.
func withFlag(flag string) func([]string) []string {
	return func(command []string) []string {
		help, err := exec.Command(command[0], command[1], "--help").Output()
		if err == nil && bytes.Contains(help, []byte(flag)) {
			return append(command, flag)
		}
		return command
	}
}
