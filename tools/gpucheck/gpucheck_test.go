package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A step notes how its program ended, the end of its output if that was not well, and verdicts of tests; what has no time left
// is skipped.
func TestStep(t *testing.T) {
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	spent, stop := context.WithCancel(context.Background())
	stop()
	var took string
	for _, c := range []struct {
		name    string
		step    step
		ctx     context.Context
		rc      int
		timeout bool
		line    string // in String
		tail    string // in Tail
	}{
		{name: "well", step: step{Command: sh("echo out; echo err >&2")}, line: "ok"},
		{name: "badly", step: step{Command: sh("echo first >&2; echo last >&2; exit 7")}, rc: 7, line: "FAILED (7)", tail: "first\nlast\nexit status 7"},
		{name: "forever", step: step{Command: sh("echo begun; exec sleep 60"), limit: 200 * time.Millisecond}, rc: -1, timeout: true, line: "took too long", tail: "begun"},
		{name: "nowhere", step: step{Command: []string{"/nosuch/program"}}, rc: -1, line: "FAILED (-1)", tail: "/nosuch/program"},
		{name: "skipped", step: step{Command: sh("exit 7"), skip: func() string { return "no model" }}, rc: -1, line: "skipped: no model"},
		{name: "late", step: step{Command: sh("exit 7")}, ctx: spent, rc: -1, line: "was spent"},
		{name: "refused", step: step{Command: sh("echo no json"), after: func([]byte) error { return errors.New("not JSON") }}, rc: -1, tail: "no json\nnot JSON"},
		{name: "taken", step: step{Command: sh("echo out; echo err >&2"), after: func(b []byte) error { took = string(b); return nil }}, line: "ok"},
		{name: "environment", step: step{Command: sh("test \"$GPUCHECK_X\" = 1"), env: func() []string { return []string{"GPUCHECK_X=1"} }}, line: "ok"},
		{name: "changed", step: step{Command: sh("exit 7"), fix: func(c []string) []string { return sh("exit 0") }}, line: "ok"},
		{
			name: "tests", rc: 1, line: "2 tests passed, 1 failed, 1 skipped", tail: "--- FAIL: TestB\n        b_test.go:1: wrong",
			step: step{isGo: true, Command: sh(`printf '%s\n' '=== RUN   TestA' '--- PASS: TestA (0.1s)' '=== RUN   TestB' '    --- PASS: TestB/x (0.1s)' \
				'--- FAIL: TestB' '        b_test.go:1: wrong' '--- SKIP: TestC (0s)' FAIL; exit 1`)},
		},
	} {
		s := c.step
		if s.limit == 0 {
			s.limit = time.Minute
		}
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		s.run(c.ctx)
		if s.RC != c.rc || s.ok() != (c.rc == 0) || s.TimedOut != c.timeout || !strings.Contains(s.String(), c.line) || !strings.Contains(s.Tail, c.tail) {
			t.Errorf("%s: %+v, %s", c.name, s, &s)
		}
		if c.rc == 0 && s.Tail != "" {
			t.Errorf("%s: has the tail %q", c.name, s.Tail)
		}
	}
	if took != "out\n" {
		t.Errorf("a step's stdout is %q", took)
	}
}

// tail keeps the end.
func TestTail(t *testing.T) {
	long := strings.Repeat("x", tailBytes) + "end"
	if got := tail(long, false); len(got) != tailBytes+3 || !strings.HasSuffix(got, "end") || !strings.HasPrefix(got, "...") {
		t.Errorf("%d bytes, %.10q", len(got), got)
	}
}

// A check without a device runs what it can, says that it was not passed, and writes everything to one file.
func TestCheck(t *testing.T) {
	bin, folder := t.TempDir(), filepath.Join(t.TempDir(), "results")
	script := `#!/bin/sh
case "$1 $2" in
"devices --json") echo '{"devices": [{"name": "A GPU/1", "default": true, "software": false}]}' ;;
*" --help") echo "flags: --profile-ops" ;;
bench*) echo '[{"avg_ts": 1}]' ;;
plan*) echo '{"predictions": []}' ;;
verify*) echo bad >&2; exit 7 ;;
esac
`
	for name, text := range map[string]string{"caldera": script, "mkmodel": "#!/bin/sh\nexit 1\n", "vk.test": "#!/bin/sh\nenv\nexit 3\n", "shaders.test": "#!/bin/sh\necho '--- PASS: TestX (0s)'\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	for _, dir := range []string{"vk", "shaders"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	path, ok, err := check(t.Context(), config{bin: bin, root: root, commit: "abc", budget: time.Minute, device: "nv"}, folder)
	if err != nil || ok {
		t.Fatalf("ok %t, %v", ok, err)
	}
	if !strings.HasSuffix(path, "-a-gpu-1.json") {
		t.Errorf("results are in %s", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	got := map[string]*step{}
	for _, s := range r.Steps {
		got[s.Name] = s
	}
	for name, rc := range map[string]int{"devices": 0, "verify": 7, "bench demo": 0, "slice": 1, "bench slice": -1, "plan slice": -1, "plan demo": 0, "vk tests": 3, "kernel tests": 0} {
		if s := got[name]; s == nil || s.RC != rc {
			t.Errorf("%s: %+v, want %d", name, s, rc)
		}
	}
	if s := got["bench slice"]; s.Skipped != "there is no slice" {
		t.Errorf("without a slice: %+v", s)
	}
	if c := strings.Join(got["bench demo"].Command, " "); !strings.HasPrefix(c, "caldera bench -p 512 -n 128") || !strings.HasSuffix(c, "--device nv --profile-ops") {
		t.Errorf("bench ran as %s", c)
	}
	if !strings.Contains(got["vk tests"].Tail, "VK_LOADER_DRIVERS_DISABLE=*lvp*") || got["kernel tests"].Tests.Passed != 1 {
		t.Errorf("tests: %+v %+v", got["vk tests"], got["kernel tests"].Tests)
	}
	if r.Commit != "abc" || r.OK || r.Bench["demo"] == nil || r.Bench["slice"] != nil || r.Predictions["demo"] == nil || r.Machine.CPUs < 1 {
		t.Errorf("%+v", r)
	}
}
