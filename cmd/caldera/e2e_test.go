package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/demo"
)

// builtPath is where the command is built, once for all end-to-end tests.
var builtPath string

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(servedEnv); ok {
		os.Exit(servedMain(text))
	}
	dir, err := os.MkdirTemp("", "caldera-test")
	if err != nil {
		panic(err)
	}
	builtPath = filepath.Join(dir, "caldera")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// built returns the path of the built command.
func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the command")
	}
	if _, err := os.Stat(builtPath); err == nil {
		return builtPath
	}
	out, err := exec.Command("go", "build", "-o", builtPath, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return builtPath
}

// program runs the built command.
func program(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := exec.Command(built(t), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+cmd.Dir)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errw bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errw
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errw.String()}
}

// needDevice skips a test where there is no Vulkan device.
func needDevice(t *testing.T) {
	t.Helper()
	if r := program(t, "", "devices"); r.code == exitNoDevice {
		t.Skipf("no Vulkan device: %s", r.err)
	}
}

// demoFile writes the demo model to a file, cut to n bytes if n is positive.
func demoFile(t *testing.T, n int) string {
	t.Helper()
	data := demo.Model()
	if n > 0 {
		data = data[:n]
	}
	path := filepath.Join(t.TempDir(), "demo.gguf")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func decode[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("stdout is no such JSON: %v\n%s\n%s", err, r.out, r.err)
	}
	return v
}

const answer = "12 + 7 = 19"

// The first thing that a newcomer types.
func TestRun(t *testing.T) {
	needDevice(t)
	r := program(t, "", "run")
	if r.code != exitDone || r.out != answer+"\n" {
		t.Fatalf("code %d, stdout %q, stderr %s", r.code, r.out, r.err)
	}
	for _, want := range []string{demo.DefaultPrompt, "device: ", "memory: weights ", "loaded in ", "prompt: ", "generation: ", "tokens/s"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("stderr lacks %q: %s", want, r.err)
		}
	}
	if strings.ContainsAny(r.out+r.err, "\x1b\r") {
		t.Error("escapes without a terminal")
	}
}

func TestRunJSON(t *testing.T) {
	x := decode[runResult](t, program(t, "", "run", "--backend", "reference", "--json"))
	if x.Schema != "caldera.run/1" || x.Text != answer || x.Reason != "stop" || len(x.IDs) != x.Timings.PredictedN || len(x.PromptIDs) != x.Timings.PromptN {
		t.Errorf("%+v", x)
	}
}

// The same seed gives the same text, with every way to hand over the prompt.
func TestRunPrompt(t *testing.T) {
	flags := []string{"run", "--backend", "reference", "--raw", "-q", "-n", "12", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--seed", "7"}
	want := program(t, "", append(flags, "Once upon a time")...)
	if want.code != exitDone || want.out == "" || want.err != "" {
		t.Fatalf("%+v", want)
	}
	if r := program(t, "Once upon a time\n", flags...); r != want {
		t.Errorf("from a pipe: %+v, want %+v", r, want)
	}
	if r := program(t, "Once upon a time\n", append(flags, "-")...); r != want {
		t.Errorf("from -: %+v, want %+v", r, want)
	}
	if r := program(t, "", append(flags, "-p", "Once upon a time")...); r != want {
		t.Errorf("from -p: %+v, want %+v", r, want)
	}
	flags[len(flags)-1] = "8"
	if r := program(t, "", append(flags, "Once upon a time")...); r == want {
		t.Errorf("another seed gives the same text: %+v", r)
	}
}

// A signal ends a generation cleanly.
func TestRunInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
	}
	cmd := exec.Command(built(t), "run", "--backend", "reference", "--raw", "--ignore-eos", "Once")
	cmd.Dir = t.TempDir()
	var errw bytes.Buffer
	cmd.Stderr = &errw
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	buf := make([]byte, 1)
	if _, err := out.Read(buf); err != nil {
		t.Errorf("no text: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var rest bytes.Buffer
	_, _ = rest.ReadFrom(out)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.HasSuffix(errw.String(), "caldera: interrupted\n") {
		t.Errorf("code %d, stderr %q", code, errw.String())
	}
}

func floats(t *testing.T, path string) []float32 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return f
}

// A row for each token, the same however the tokens are cut into steps and wherever they run.
func TestLogits(t *testing.T) {
	model, dir := demoFile(t, 0), t.TempDir()
	ids := filepath.Join(dir, "ids.u16")
	write(t, ids, "\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00")
	want := filepath.Join(dir, "want.f32")
	if r := program(t, "", "logits", "-m", model, "--tokens-file", ids, "--out", want, "--backend", "reference", "--kv", "f32"); r.code != exitDone || r.out != "" {
		t.Fatalf("%+v", r)
	}
	reference := floats(t, want)
	if len(reference) != 5*4096 {
		t.Fatalf("%d logits, want 5 rows of 4096", len(reference))
	}
	runs := [][]string{{"--backend", "reference", "--batch", "2"}}
	if program(t, "", "devices").code == exitDone {
		runs = append(runs, []string{"--batch", "2"}, []string{"--profile", "floor"})
	}
	for _, flags := range runs {
		got := filepath.Join(dir, "got.f32")
		args := append([]string{"logits", "-m", model, "--tokens", "1,2,3,4,5", "--kv", "f32", "--out", got}, flags...)
		if r := program(t, "", args...); r.code != exitDone {
			t.Fatalf("%v: %+v", flags, r)
		}
		worst := 0.0
		for i, v := range floats(t, got) {
			worst = max(worst, math.Abs(float64(v-reference[i])))
		}
		if worst > 1e-2 {
			t.Errorf("%v: logits differ by %g", flags, worst)
		}
	}
	bad := filepath.Join(dir, "bad.f32")
	r := program(t, "", "logits", "-m", model, "--tokens", "1,4096", "--out", bad, "--backend", "reference")
	if r.code != exitFailed || !strings.Contains(r.err, "outside the vocabulary") {
		t.Errorf("%+v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*bad*")); len(left) > 0 {
		t.Errorf("a failure leaves %v", left)
	}
}

func TestPerplexity(t *testing.T) {
	text := strings.Repeat("The old man went to the sea, and the sea was calm. ", 12)
	nll := filepath.Join(t.TempDir(), "nll.f32")
	x := decode[perplexityResult](t, program(t, text, "perplexity", "--backend", "reference", "--file", "-", "--chunk", "32", "--nll-out", nll, "--json"))
	values := floats(t, nll)
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	if x.Chunks < 2 || x.Scored != 31*x.Chunks || len(values) != x.Scored || math.Abs(sum/float64(len(values))-x.NLLMean) > 1e-6 || math.Abs(math.Exp(x.NLLMean)-x.PPL) > 1e-6 {
		t.Errorf("%+v with %d values of mean %g", x, len(values), sum/float64(len(values)))
	}
	if r := program(t, "short", "perplexity", "--backend", "reference", "--file", "-"); r.code != exitUsage {
		t.Errorf("too short a text: %+v", r)
	}
}

func TestDevices(t *testing.T) {
	r := program(t, "", "devices", "--json")
	x := decode[devicesResult](t, r)
	if x.Schema != "caldera.devices/1" || x.Devices == nil {
		t.Errorf("%+v", x)
	}
	if (len(x.Devices) == 0) != (r.code == exitNoDevice) || r.code == exitNoDevice != (x.Error != "") {
		t.Errorf("code %d with %+v", r.code, x)
	}
	for _, d := range x.Devices {
		if d.Name == "" || len(d.UUID) != 32 || d.Usable != (d.Profile != nil) || d.Usable != (len(d.Missing) == 0) {
			t.Errorf("%+v", d)
		}
	}
}

// Without any driver there is a hint, and the code for it.
func TestNoDevice(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("the loader can be a driver itself")
	}
	none := filepath.Join(t.TempDir(), "none.json")
	t.Setenv("VK_DRIVER_FILES", none)
	t.Setenv("VK_ICD_FILENAMES", none)
	for _, args := range []string{"devices", "devices --json", "run hello", "bench", "verify --all-devices"} {
		r := program(t, "", strings.Fields(args)...)
		if r.code != exitNoDevice || !strings.Contains(r.err, "install") {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

func TestInspect(t *testing.T) {
	x := decode[inspectResult](t, program(t, "", "inspect", demoFile(t, 0), "--json"))
	if x.Schema != "caldera.inspect/1" || len(x.Tensors) == 0 || x.Model == nil || x.Model.Arch != "qwen35moe" || x.Model.Vocab != 4096 || x.Unsupported != "" || len(x.Missing) > 0 {
		t.Errorf("%+v", x.Model)
	}
	bytes, params := int64(0), uint64(0)
	for _, total := range x.Totals {
		bytes, params = bytes+total.Bytes, params+total.Elements
	}
	if bytes != x.TensorBytes || params != x.Parameters {
		t.Errorf("totals are %d bytes of %d, %d parameters of %d", bytes, x.TensorBytes, params, x.Parameters)
	}
	for _, m := range x.Metadata {
		if m.Key == "tokenizer.ggml.tokens" {
			if list, ok := m.Value.([]any); !ok || len(list) != arrayElements || m.Len != 4096 || m.Elem != "string" {
				t.Errorf("%+v", m)
			}
		}
	}
	if r := program(t, "", "inspect", demoFile(t, 0)); r.code != exitDone || !strings.Contains(r.out, "token_embd.weight") || !strings.Contains(r.out, "8 layers (2 attention, 6 delta net)") {
		t.Errorf("%+v", r)
	}
}

// A damaged file is refused with its name; one that is cut short can still be looked at.
func TestCorruptFile(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage.gguf")
	write(t, garbage, "GGUF\x03\x00\x00\x00 and nothing that makes sense after it")
	short := demoFile(t, 1<<20)
	for _, args := range [][]string{
		{"run", "-m", garbage, "hello"}, {"run", "-m", short, "hello"}, {"inspect", garbage}, {"tokenize", "-m", garbage, "x"},
		{"logits", "-m", short, "--tokens", "1", "--out", "-"}, {"inspect", "nosuch.gguf"}, {"bench", "-m", garbage, "--backend", "reference"},
	} {
		r := program(t, "", args...)
		if r.code != exitModel || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, ".gguf") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	x := decode[inspectResult](t, program(t, "", "inspect", short, "--json"))
	if len(x.Missing) != 1 || len(x.Tensors) == 0 {
		t.Errorf("a short file: %v missing, %d tensors", x.Missing, len(x.Tensors))
	}
}

func TestTokenize(t *testing.T) {
	const text = "Hello <|im_end|>\u00e9 \U0001F30B"
	x := decode[tokenizeResult](t, program(t, text, "tokenize", "--json", "--parse-special"))
	if x.Schema != "caldera.tokenize/1" || len(x.IDs) != len(x.Tokens) || x.Text != text {
		t.Errorf("%+v", x)
	}
	ids := strings.TrimSpace(program(t, "", "tokenize", "--ids", "--parse-special", text).out)
	if r := program(t, "", "tokenize", "--decode", ids); r.out != text+"\n" {
		t.Errorf("%s decodes to %q", ids, r.out)
	}
	plain := decode[tokenizeResult](t, program(t, "", "tokenize", "--json", text))
	if len(plain.IDs) <= len(x.IDs) {
		t.Errorf("the control token is recognised without --parse-special: %v", plain.IDs)
	}
	// A token of some bytes of a character has them as a list.
	list := false
	for _, k := range plain.Tokens {
		if _, ok := k.Piece.([]any); ok {
			list = true
		}
	}
	if !list {
		t.Errorf("no piece is a list of bytes: %+v", plain.Tokens)
	}
	const combining = "e\u0301"
	nfc := program(t, "", "tokenize", "--ids", combining).out
	raw := program(t, "", "tokenize", "--ids", "--no-nfc", combining).out
	if nfc == raw || raw != program(t, "", "tokenize", "--ids", "--tokenizer-nfc=false", combining).out {
		t.Errorf("with NFC %s, without %s", nfc, raw)
	}
}

func TestBench(t *testing.T) {
	r := program(t, "", "bench", "--backend", "reference", "-p", "4", "-n", "2", "-r", "2", "-o", "json", "-q")
	var records []map[string]any
	if err := json.Unmarshal([]byte(r.out), &records); err != nil || len(records) != 2 || r.code != exitDone {
		t.Fatalf("%v: %+v", err, r)
	}
	needDevice(t)
	r = program(t, "", "bench", "-p", "4", "-n", "2", "-r", "1")
	if r.code != exitDone || !strings.Contains(r.out, "|             pp4 |") || !strings.Contains(r.out, "|             tg2 |") || !strings.Contains(r.err, "dispatches") || !strings.Contains(r.err, "memory used: ") {
		t.Errorf("%+v", r)
	}
}

// The device agrees with the reference, and a broken kernel is named.
func TestTune(t *testing.T) {
	needDevice(t)
	dir := t.TempDir()
	t.Setenv("CALDERA_CACHE_DIR", dir)
	r := program(t, "", "tune", "--json", "--rows", "1")
	x := decode[tuneReport](t, r)
	if r.code != exitDone || len(x.Uses) < 5 || len(x.Steps) != 1 || x.Steps[0].Rows != 1 || filepath.Dir(x.Path) != dir {
		t.Fatalf("code %d: %s%s", r.code, r.out, r.err)
	}
	if _, err := os.Stat(x.Path); err != nil {
		t.Error(err)
	}
	// A file that is not for these kernels is told of, unless it is not wanted.
	if err := os.WriteFile(x.Path, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	if r := program(t, "", "run", "-n", "1", "Hi"); r.code != exitDone || !strings.Contains(r.err, "run caldera tune again") {
		t.Errorf("%+v", r)
	}
	if r := program(t, "", "run", "-n", "1", "--tuning", "off", "Hi"); r.code != exitDone || strings.Contains(r.err, "caldera tune") {
		t.Errorf("%+v", r)
	}
	if r := program(t, "", "tune", "--reset"); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(x.Path); err == nil {
		t.Error("the tuning is still there")
	}
	for _, args := range [][]string{{"--rows", "3"}, {"--rows", "0"}, {"--rows", "x"}, {"--rows", "1,512", "--batch", "256"}, {"more"}} {
		if r := program(t, "", append([]string{"tune"}, args...)...); r.code != exitUsage || strings.Contains(r.err, "loaded in") || r.out != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	t.Setenv("CALDERA_CACHE_DIR", "off")
	if r := program(t, "", "tune"); r.code != exitUsage || !strings.Contains(r.err, "CALDERA_CACHE_DIR") {
		t.Errorf("%+v", r)
	}
}

func TestVerify(t *testing.T) {
	needDevice(t)
	r := program(t, "", "verify", "--json", "--tokens", "6")
	x := decode[verifyResult](t, r)
	if r.code != exitDone || !x.OK || len(x.Results) != 1 || len(x.Results[0].Ops) == 0 || x.Results[0].First != nil {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	r = program(t, "", "verify", "--tokens", "6", "--break", "rmsnorm")
	if r.code != exitCheck || !strings.Contains(r.err, "layer 0 attn_norm (kernel rmsnorm)") || !strings.Contains(r.out, "FAILED") {
		t.Errorf("%+v", r)
	}
}
