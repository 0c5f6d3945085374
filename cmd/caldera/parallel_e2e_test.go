package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
)

// parallelRequests is the first n requests of testdata/cases/c10_parallel16.jsonl: different prompts and numbers of tokens, so that
// sequences join and leave at different steps.
func parallelRequests(t *testing.T, n int) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "cases", "c10_parallel16.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	return strings.Join(lines[:n], "")
}

// parallelResults reads the output of run --parallel, by index. It fails the test where a line has not the form of one.
func parallelResults(t *testing.T, r result) map[int]parallelResult {
	t.Helper()
	all := map[int]parallelResult{}
	for line := range strings.Lines(r.out) {
		var x parallelResult
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&x); err != nil {
			t.Fatalf("%v: %s\n%s", err, line, r.err)
		}
		if _, twice := all[x.Index]; twice || x.Schema != "caldera.parallel/1" {
			t.Fatalf("result %d is there twice, or of schema %q", x.Index, x.Schema)
		}
		all[x.Index] = x
	}
	return all
}

// The tokens of a request are the same however many run beside it, and the same as those of a run by itself.
func TestParallelIdentity(t *testing.T) {
	n := 4
	requests := parallelRequests(t, n)
	flags := []string{"run", "--backend", "reference", "--ignore-eos", "--cache-ram", "0", "--parallel", "-", "--slots"}
	var want map[int]parallelResult
	for _, slots := range []string{"1", "16"} {
		r := program(t, requests, append(flags, slots)...)
		got := parallelResults(t, r)
		if r.code != exitDone || len(got) != n {
			t.Fatalf("slots %s: code %d, %d results: %s", slots, r.code, len(got), r.err)
		}
		for i, x := range got {
			if x.Error != nil || x.Reason != "length" || len(x.IDs) != 9+11*i || x.Usage.Completion != len(x.IDs) || x.Usage.Prompt != x.Timings.PromptN || x.Text == "" {
				t.Errorf("slots %s: %+v", slots, x)
			}
			if want != nil && !slices.Equal(x.IDs, want[i].IDs) {
				t.Errorf("slots %s, request %d: %v, want %v", slots, i, x.IDs, want[i].IDs)
			}
		}
		if want == nil {
			want = got
		}
	}
	alone := decode[runResult](t, program(t, "", "run", "--backend", "reference", "--json", "--ignore-eos", "-n", "9", "Item 0: w0 w1 w2 w3 w4"))
	if !slices.Equal(alone.IDs, want[0].IDs) || alone.Text != want[0].Text {
		t.Errorf("alone: %v, beside others: %v", alone.IDs, want[0].IDs)
	}
	if want[0].Text == want[1].Text {
		t.Errorf("two prompts have one answer: %q", want[0].Text)
	}
}

// A device does as the reference: requests beside each other answer as each alone.
func TestParallelDevice(t *testing.T) {
	needDevice(t)
	requests := `{"prompt":"What is 12+7?","id":"a"}` + "\n" + `{"prompt":"Capital of France?"}` + "\n" + `{"prompt":"Count from 3 to 9.","id":3}` + "\n"
	for _, slots := range []string{"1", "3"} {
		r := program(t, requests, "run", "--parallel", "-", "--slots", slots)
		got := parallelResults(t, r)
		if r.code != exitDone || got[0].Text != answer || got[1].Text != "The capital of France is Paris." || got[2].Text != "3, 4, 5, 6, 7, 8, 9" ||
			string(got[0].ID) != `"a"` || string(got[1].ID) != "null" || string(got[2].ID) != "3" {
			t.Errorf("slots %s: code %d, %s, %s", slots, r.code, r.out, r.err)
		}
		for _, want := range []string{"device: ", "requests:   3 in ", "prompts:    57 tokens, 0 of them", "generation: 37 tokens, ", "between tokens: "} {
			if !strings.Contains(r.err, want) {
				t.Errorf("stderr lacks %q: %s", want, r.err)
			}
		}
		if strings.ContainsAny(r.err, "\x1b\r") {
			t.Error("escapes without a terminal")
		}
	}
}

// Bad lines fail by themselves.
func TestParallelBadLines(t *testing.T) {
	requests := strings.Join([]string{
		`{"prompt":"What is 12+7?","id":"good"}`,
		``,
		`{"prompt":"x","id":"b","stop":[""]}`,
		`{"prompt":"x"`,
		"{\"prompt\":\"\xff\xfe\"}",
		`{"prompt":"` + strings.Repeat("x", maxLine) + `"}`,
		`{"prompt_ids":[4096]}`,
		`{"prompt_ids":[` + strings.Repeat("1,", 2048) + `1],"id":"long"}`,
		`{"prompt":"x","top_p":2}`,
		`{"prompt":"` + strings.Repeat("long ", 3000) + `"}`,
		`{"prompt":"Count from 3 to 9.","max_tokens":100000,"ignore_eos":true,"deadline_ms":3000,"id":"late"}`,
		`{"messages":[{"role":"user","content":"Capital of France?"}],"id":"last"}`,
	}, "\n")
	r := program(t, requests, "run", "--backend", "reference", "--parallel", "-", "-q")
	got := parallelResults(t, r)
	if r.code != exitFailed || r.err != "caldera: 9 of 11 requests failed; their lines of the output say why\n" || len(got) != 11 {
		t.Fatalf("code %d, %d results, %s", r.code, len(got), r.err)
	}
	for i, want := range map[int]struct{ kind, message string }{
		1: {"invalid_request_error", "line 3: stop: "},
		2: {"invalid_request_error", "line 4: not JSON"},
		3: {"invalid_request_error", "line 5: the line is not UTF-8"},
		4: {"invalid_request_error", "line 6: it has more than 16 MiB"},
		5: {"invalid_request_error", "line 7: token 0 is 4096, outside the vocabulary of 4096"},
		6: {"exceed_context_size_error", "line 8: context is full: the prompt has 2049 tokens, 1 more than the context of 2048"},
		7: {"invalid_request_error", "line 9: sample: top_p is 2"},
		8: {"exceed_context_size_error", "line 10: context is full: the prompt has "},
		9: {"timeout_error", "the deadline of 3s has passed"},
	} {
		if x := got[i]; x.Error == nil || x.Error.Type != want.kind || !strings.HasPrefix(x.Error.Message, want.message) {
			t.Errorf("request %d: %+v, want %v", i, x.Error, want)
		}
	}
	if got[0].Text != answer || got[0].Error != nil || got[10].Text != "The capital of France is Paris." || got[10].Error != nil {
		t.Errorf("good requests: %+v, %+v", got[0], got[10])
	}
	if late := got[9]; late.Reason != "cancelled" || len(late.IDs) == 0 || len(late.IDs) != late.Usage.Completion || late.Text == "" {
		t.Errorf("what there is of a late answer: %+v", late)
	}
	if string(got[1].ID) != `"b"` || string(got[6].ID) != `"long"` {
		t.Errorf("ids of failures: %s, %s", got[1].ID, got[6].ID)
	}
}

// Where a line says nothing the flags hold, and where it does they do not.
func TestParallelDefaults(t *testing.T) {
	requests := `{"prompt":"Once"}
{"prompt":"Once"}
{"prompt":"Once","seed":8}
{"prompt":"Once","temperature":0}
{"prompt":"Once","max_tokens":3}
{"messages":[{"role":"user","content":"Once"}],"max_tokens":12}
`
	messages := `[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"},
		{"role":"assistant","content":"Hello!","reasoning_content":"A greeting."},{"role":"user","content":"What is 12+7?"}]`
	rendered, _ := json.Marshal("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n" + demo.Chat("What is 12+7?"))
	requests += fmt.Sprintf(`{"messages":%s,"max_tokens":12}`+"\n"+`{"prompt":%s,"max_tokens":12}`+"\n", strings.ReplaceAll(messages, "\n", ""), rendered)
	r := program(t, requests, "run", "--backend", "reference", "--parallel", "-", "--raw", "-n", "12", "--ignore-eos", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--seed", "7")
	got := parallelResults(t, r)
	if r.code != exitDone || len(got) != 8 {
		t.Fatalf("%+v", r)
	}
	if got[0].Seed != 7 || got[2].Seed != 8 || len(got[0].IDs) != 12 || !slices.Equal(got[0].IDs, got[1].IDs) {
		t.Errorf("the same seed: %+v, %+v", got[0], got[1])
	}
	for i := 2; i < 6; i++ {
		if i != 4 && slices.Equal(got[0].IDs, got[i].IDs) {
			t.Errorf("request %d is as the first: %v", i, got[i].IDs)
		}
	}
	if !slices.Equal(got[4].IDs, got[0].IDs[:3]) || got[4].Reason != "length" {
		t.Errorf("three tokens: %+v", got[4])
	}
	if got[5].Usage.Prompt <= got[0].Usage.Prompt {
		t.Errorf("messages are not in the chat form with --raw: %+v", got[5].Usage)
	}
	if got[6].Usage.Prompt != got[7].Usage.Prompt || !slices.Equal(got[6].IDs, got[7].IDs) {
		t.Errorf("a conversation is not its rendered form: %+v, %+v", got[6], got[7])
	}
	alone := program(t, "", "run", "--backend", "reference", "--raw", "-q", "-n", "12", "--ignore-eos", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--seed", "7", "Once")
	if strings.TrimSuffix(alone.out, "\n") != strings.TrimSuffix(got[0].Text, "\n") {
		t.Errorf("alone %q, beside others %q", alone.out, got[0].Text)
	}
}

// Without a seed of its own or one for all a request takes a new one.
func TestParallelSeeds(t *testing.T) {
	requests := strings.Repeat(`{"prompt_ids":[1],"max_tokens":1}`+"\n", 2) + `{"prompt_ids":[1],"max_tokens":1,"seed":8}` + "\n"
	got := parallelResults(t, program(t, requests, "run", "--backend", "reference", "--parallel", "-", "-q"))
	if len(got) != 3 || got[0].Seed == got[1].Seed || got[2].Seed != 8 {
		t.Errorf("%+v", got)
	}
}

// What an earlier process computed is found on disk, and changes no token.
func TestCacheDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	requests := parallelRequests(t, 3)
	flags := []string{"run", "--backend", "reference", "--ignore-eos", "--parallel", "-", "--cache-disk", dir + ":64M"}
	first := parallelResults(t, program(t, requests, flags...))
	second := parallelResults(t, program(t, requests, flags...))
	if len(first) != 3 || len(second) != 3 {
		t.Fatalf("%d and %d results", len(first), len(second))
	}
	for i, x := range second {
		if x.Error != nil || x.Usage.Cached == 0 || x.Usage.Cached != x.Timings.CacheN || x.Usage.Cached+x.Timings.PromptN != x.Usage.Prompt ||
			!strings.HasPrefix(x.Reuse, fmt.Sprintf("reused %d of %d tokens", x.Usage.Cached, x.Usage.Prompt)) || x.ReuseWord == "" {
			t.Errorf("request %d: %+v", i, x)
		}
		if first[i].Usage.Cached != 0 || !slices.Equal(x.IDs, first[i].IDs) {
			t.Errorf("request %d: %v, and at first %v with %d from the cache", i, x.IDs, first[i].IDs, first[i].Usage.Cached)
		}
	}
	// A single prompt finds them too. Where there can be no folder the cache does without, and says so.
	args := []string{"run", "--backend", "reference", "--ignore-eos", "-n", "9", "--json", "--cache-disk", dir + ":64M", "Item 0: w0 w1 w2 w3 w4"}
	x := decode[runResult](t, program(t, "", args...))
	if x.Timings.CacheN == 0 || x.Timings.CacheN+x.Timings.PromptN != len(x.PromptIDs) || x.Reuse == "" || !slices.Equal(x.IDs, first[0].IDs) {
		t.Errorf("a single prompt: %+v", x)
	}
	args[len(args)-2] = demoFile(t, 0) + ":64M"
	if r := program(t, "", args...); r.code != exitDone || !strings.Contains(r.err, `"level":"warn"`) || !strings.Contains(r.err, "demo.gguf: not a directory") {
		t.Errorf("a file for a folder: %+v", r)
	}
}

// Under a limit of memory fewer sequences run at a time, and all requests are answered.
func TestParallelMemoryLimit(t *testing.T) {
	plan := decode[planResult](t, program(t, "", "plan", "--backend", "reference", "--slots", "1", "--json"))
	limit := plan.Needed + plan.State.SlotBytes + plan.KV.PageBytes
	requests := parallelRequests(t, 4)
	r := program(t, requests, "run", "--backend", "reference", "--parallel", "-", "--memory-limit", fmt.Sprint(limit), "--cache-ram", "0")
	if got := parallelResults(t, r); r.code != exitDone || len(got) != 4 || !strings.Contains(r.err, "there is no room for 16 whole contexts") {
		t.Errorf("code %d, %d results, %s", r.code, len(got), r.err)
	}
}

// A signal ends the run: what is complete has been written whole, and nothing else.
func TestParallelInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
	}
	cmd := exec.Command(built(t), "run", "--backend", "reference", "--parallel", "-", "--slots", "3", "--queue", "0")
	cmd.Dir = t.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errw bytes.Buffer
	cmd.Stderr = &errw
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	// The file is still being written: results come all the same.
	fmt.Fprintln(in, `{"prompt":"Once","ignore_eos":true}`)
	fmt.Fprintln(in, `{"prompt":"What is 12+7?","id":"short"}`)
	fmt.Fprintln(in, `{"prompt":"Twice","ignore_eos":true}`)
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Errorf("no result: %v, %s", err, errw.String())
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var rest bytes.Buffer
	_, _ = rest.ReadFrom(r)
	_ = cmd.Wait()
	got := parallelResults(t, result{out: line + rest.String()})
	if len(got) != 1 || got[1].Text != answer {
		t.Errorf("%+v", got)
	}
	code := cmd.ProcessState.ExitCode()
	if code != exitInterrupted || !strings.Contains(errw.String(), "requests:   3 in") || !strings.Contains(errw.String(), ", 2 not finished") || !strings.HasSuffix(errw.String(), "caldera: interrupted\n") {
		t.Errorf("code %d, stderr %q", code, errw.String())
	}
}

// Output that nobody takes ends the run.
func TestParallelBrokenOutput(t *testing.T) {
	isolate(t)
	write(t, "requests.jsonl", strings.Repeat(`{"prompt":"Once","max_tokens":2}`+"\n", 500))
	var errw bytes.Buffer
	w := &failingWriter{}
	code := execute(t.Context(), []string{"run", "--backend", "reference", "-q", "--parallel", "requests.jsonl"}, nil, w, &errw)
	if code != exitFailed || !strings.Contains(errw.String(), "writing results: no more") || w.calls != 2 {
		t.Errorf("code %d after %d writes: %s", code, w.calls, errw.String())
	}
}

// A failingWriter takes one write.
type failingWriter struct{ calls int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.calls++; w.calls > 1 {
		return 0, fmt.Errorf("no more")
	}
	return len(b), nil
}

// Requests beyond the slots and the queue are not even read, and wait without being refused; a reader that does not take
// results holds up the rest. The file here has no end.
func TestParallelBackPressure(t *testing.T) {
	isolate(t)
	r, w := io.Pipe()
	in := &countingReader{line: `{"prompt_ids":[1],"max_tokens":1` + strings.Repeat(" ", 1<<16) + "}\n"}
	var errw bytes.Buffer
	done := make(chan int)
	go func() {
		done <- execute(t.Context(), []string{"run", "--backend", "reference", "--slots", "2", "--queue", "1", "--cache-ram", "0", "--parallel", "-"}, in, w, &errw)
		w.Close()
	}()
	results := bufio.NewReader(r)
	for i := range 40 {
		line, err := results.ReadString('\n')
		if err != nil || strings.Contains(line, `"error"`) {
			t.Fatalf("result %d: %v, %s", i, err, line)
		}
	}
	time.Sleep(200 * time.Millisecond)
	// Taken are 40; in the engine or finished 3; then one result is being written, two lines wait and one is being read.
	if n := in.lines.Load(); n > 40+3+5 {
		t.Errorf("%d lines were read for 40 results", n)
	}
	r.Close()
	if code := <-done; code != exitFailed || !strings.Contains(errw.String(), "writing results") {
		t.Errorf("code %d: %s", code, errw.String())
	}
}

// A countingReader repeats a line.
type countingReader struct {
	line  string
	rest  string
	lines atomic.Int64
}

func (r *countingReader) Read(b []byte) (int, error) {
	if r.rest == "" {
		r.rest = r.line
		r.lines.Add(1)
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// A file without requests is no mistake.
func TestParallelNothing(t *testing.T) {
	r := program(t, "\n", "run", "--backend", "reference", "--parallel", "-")
	if got := parallelResults(t, r); r.code != exitDone || !reflect.DeepEqual(got, map[int]parallelResult{}) || !strings.Contains(r.err, "requests:   0 in") {
		t.Errorf("%+v", r)
	}
}
