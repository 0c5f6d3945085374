package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/bench"
)

// compared is what compare --json prints.
type compared struct {
	Schema string             `json:"schema"`
	Peer   string             `json:"peer_command"`
	Rounds int                `json:"rounds"`
	Tests  []bench.Comparison `json:"tests"`
}

func needShell(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands are for sh")
	}
}

// Ours and the peer's run in turns, a round of each after the other, and what they print is set side by side.
func TestBenchCompare(t *testing.T) {
	needShell(t)
	log := filepath.Join(t.TempDir(), "log")
	peer := "echo peer >> " + log + `; echo 'tg2 run 0: 4 tok/s'; echo 'pp3 8 t/s'; echo 'tg2 run 1: 6 tok/s'`
	r := command(t, "", "bench", "compare", "--peer", peer, "--backend", "reference", "-p", "3", "-n", "2", "-r", "3", "--json", "-q")
	var c compared
	if err := json.Unmarshal([]byte(r.out), &c); r.code != 0 || err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if c.Schema != compareSchema || c.Peer != peer || c.Rounds != 3 || len(c.Tests) != 2 || c.Tests[0].Name != "pp3" || c.Tests[1].Name != "tg2" {
		t.Fatalf("%+v", c)
	}
	for i, peers := range []float64{8, 5} {
		x := c.Tests[i]
		if x.Peer.Median != peers || len(x.Peer.Samples) != 3 || len(x.Ours.Samples) != 3 || x.Ours.Min <= 0 || x.Ours.Median < x.Ours.Min ||
			x.Ours.Median > x.Ours.Max || x.Ratio != x.Ours.Median/peers || x.PairRatio != x.Ratio || x.PairMin > x.PairRatio || x.PairMax < x.PairRatio {
			t.Errorf("%+v", x)
		}
	}
	if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "peer") != 3 {
		t.Errorf("the peer ran: %q, %v", b, err)
	}

	// Two commands, in turns as well; the tests are those that ours prints.
	os.Remove(log)
	ours := "echo ours >> " + log + `; echo '[{"n_gen": 7, "avg_ts": 12}]'`
	peer = "echo peer >> " + log + `; echo 'tg7 4 t/s'; echo 'tg8 4 t/s'`
	r = command(t, "", "bench", "compare", "--ours", ours, "--peer", peer, "-r", "2", "-q")
	want := `| test | ours t/s |     min..max | peer t/s |     min..max | ratio | median of ratios |     min..max |
| ---- | -------: | -----------: | -------: | -----------: | ----: | ---------------: | -----------: |
| tg7  |    12.00 | 12.00..12.00 |    4.000 | 4.000..4.000 | 3.000 |            3.000 | 3.000..3.000 |
`
	if r.code != 0 || r.out != want {
		t.Errorf("%+v", r)
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != "ours\npeer\nours\npeer\n" {
		t.Errorf("the order: %q, %v", b, err)
	}
}

func TestBenchCompareErrors(t *testing.T) {
	needShell(t)
	ours := []string{"--ours", "echo tg7 4 t/s"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--peer", " "}, exitUsage, "--peer"},
		{[]string{"--peer", "true", "-r", "0"}, exitUsage, "--repetitions"},
		{[]string{"--peer", "true", "-p", "0", "-n", "0"}, exitUsage, "nothing to measure"},
		{[]string{"--peer", "true", "-b", "8,16"}, exitUsage, "one at a time"},
		{append(ours, "--peer", "true", "-n", "4"), exitUsage, "--n-gen says what is measured here"},
		{append(ours, "--peer", "echo tg8 4 t/s"), exitFailed, "round 1: --peer: it printed no test tg7, only tg8"},
		{append(ours, "--peer", "true"), exitFailed, `--peer "true": it printed nothing on stdout`},
		{append(ours, "--peer", "echo tg7 4 t/s; echo out of luck >&2; exit 3"), exitFailed, "exit status 3; it said at the end: out of luck"},
		{append(ours, "--peer", "echo tg7 1e300 t/s"), exitFailed, `round 1: --peer "echo tg7 1e300 t/s": it printed 1e+300 tokens per second for tg7`},
		{append(ours, "--peer", "yes tg7 4 t/s"), exitFailed, `--peer "yes tg7 4 t/s": it printed more than 16.00 MiB on stdout`},
		{append(ours, "--peer", "nosuchprogram"), exitFailed, "not found"},
		{[]string{"--ours", "exit 1", "--peer", "true"}, exitFailed, `--ours "exit 1": exit status 1; it said at the end: nothing`},
	} {
		if r := command(t, "", append([]string{"bench", "compare", "-q"}, c.args...)...); r.code != c.code || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("%q: %+v, want %d and %q", c.args, r, c.code, c.want)
		}
	}
}

// An interrupt ends the peer with what it has started, and what the whole rounds have shown is printed.
func TestBenchCompareInterrupted(t *testing.T) {
	needShell(t)
	isolate(t)
	dir := t.TempDir()
	first, child := filepath.Join(dir, "first"), filepath.Join(dir, "child")
	// In its second round the peer waits for a child, which tells its id.
	peer := fmt.Sprintf(`if [ -e %s ]; then sh -c 'echo $$ > %s.part; mv %[2]s.part %[2]s; sleep 600; :'; fi; touch %[1]s; echo tg7 4 t/s`, first, child)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(child); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	var out, errw bytes.Buffer
	code := execute(ctx, []string{"bench", "compare", "--ours", "echo tg7 8 t/s", "--peer", peer, "-r", "3", "--json", "-q"}, strings.NewReader(""), &out, &errw)
	var c compared
	if err := json.Unmarshal(out.Bytes(), &c); err != nil || code != exitInterrupted || c.Rounds != 1 || len(c.Tests) != 1 || c.Tests[0].Ratio != 2 {
		t.Errorf("code %d, %s%s, %v", code, out.String(), errw.String(), err)
	}
	text, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	if pid := strings.TrimSpace(string(text)); runtime.GOOS == "linux" {
		for range 100 {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil || strings.Contains(string(stat), ") Z ") {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("process %s, which the peer has started, goes on", pid)
	}
}

// The profile of ops comes as tables below llama-bench's, and in JSON in the record.
func TestBenchProfileOps(t *testing.T) {
	args := []string{"bench", "--backend", "reference", "-p", "3", "-n", "1", "-r", "1", "--profile-ops"}
	r := command(t, "", args...)
	for _, want := range []string{
		"\npp3, prefill step of 3 rows: ", "\ntg1, decode step of 1 row: ", "| gdn_in ", "q8_0 256x776", "\nbound: ",
	} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("no %q in %+v", want, r)
		}
	}
	if !strings.Contains(r.err, "of a step, forming it") {
		t.Errorf("%s", r.err)
	}
	r = command(t, "", append(args, "-o", "json", "-q")...)
	var list []bench.Record
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, step := range []string{bench.Prefill, bench.Decode} {
		x := list[i]
		if len(x.Profiles) != 1 || x.Profiles[0].Step != step || len(x.Profiles[0].Ops) == 0 || x.Profiles[0].CopyGBs <= 0 {
			t.Errorf("%+v", x.Profiles)
		}
		if x.Steps != 1 || x.StepForm <= 0 || x.StepWrite <= 0 || x.StepWait <= 0 || x.StepRead <= 0 {
			t.Errorf("steps %d, %d %d %d %d %d", x.Steps, x.StepForm, x.StepWrite, x.StepSubmit, x.StepWait, x.StepRead)
		}
	}
}
