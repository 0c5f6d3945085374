package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// coreTypes are the tensor types that the repository's own cases may use.
var coreTypes = []string{"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"}

// The cases in the repository are whole, use only types that Caldera runs, and cover the three architectures.
func TestCore(t *testing.T) {
	t.Setenv("CALDERA_ORACLE", filepath.Join(Root(), "testdata", "oracle"))
	cases := Cases(t)
	archs := map[string]int{}
	seen := map[string]bool{}
	for _, c := range cases {
		archs[c.Arch]++
		if !c.Supported(coreTypes...) {
			t.Errorf("%s has tensors of types %v", c.Name, c.Types())
		}
		for _, typ := range c.Types() {
			seen[typ] = true
		}
		b, err := os.ReadFile(c.Model())
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		if got := hex.EncodeToString(sum[:]); got != c.SHA256 {
			t.Errorf("%s: model.gguf has checksum %s, case.json says %s", c.Name, got, c.SHA256)
		}
	}
	for _, a := range []string{"qwen35moe", "qwen35", "qwen3next"} {
		if archs[a] < 2 {
			t.Errorf("%d cases of %s, want at least 2", archs[a], a)
		}
	}
	for _, typ := range []string{"F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"} {
		if !seen[typ] {
			t.Errorf("no case has tensors of type %s", typ)
		}
	}
}

// Every case of whatever set is in use agrees with itself.
func TestCases(t *testing.T) {
	for _, c := range Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			if c.LogitSD <= 0 || len(c.Tokenize) == 0 || len(c.Spread) == 0 {
				t.Errorf("incomplete: logit_sd %v, %d tokenizer entries, %d spread entries", c.LogitSD, len(c.Tokenize), len(c.Spread))
			}
			for _, want := range []struct {
				name string
				n    int
			}{{"p1", 1}, {"p7", 7}, {"p300", 300}} {
				p := c.Prompt(want.name)
				if p == nil || len(p.Tokens) != want.n {
					t.Fatalf("prompt %s is missing or has not %d tokens", want.name, want.n)
				}
				if got := argmax(p.LastLogits); got != p.Argmax[want.n-1] {
					t.Errorf("%s: last_logits peak at %d, argmax says %d", want.name, got, p.Argmax[want.n-1])
				}
			}
			g := c.Prompt("greedy")
			if g == nil || g.NPrompt == 0 || len(g.Continuation) != 32 {
				t.Fatal("no greedy prompt with 32 tokens")
			}
			// The continuation is what the argmax after each of its tokens says.
			if fed := g.Tokens[g.NPrompt:]; !slices.Equal(fed, g.Continuation[:31]) {
				t.Errorf("greedy tokens %v do not begin the continuation %v", fed, g.Continuation)
			}
			if got := g.Argmax[g.NPrompt-1:]; !slices.Equal(got, g.Continuation) {
				t.Errorf("greedy argmax %v, continuation %v", got, g.Continuation)
			}
		})
	}
}

func argmax(v []float32) int32 {
	best, at := float32(math.Inf(-1)), 0
	for i, x := range v {
		if x > best {
			best, at = x, i
		}
	}
	return int32(at)
}

func TestFilters(t *testing.T) {
	cases := []Case{
		{Name: "a", Arch: "qwen35", types: []string{"F32", "Q8_0"}},
		{Name: "b", Arch: "qwen35moe", types: []string{"F32", "IQ3_S"}},
		{Name: "c", Arch: "qwen35moe", types: []string{"F32"}},
	}
	names := func(cs []Case) (s []string) {
		for _, c := range cs {
			s = append(s, c.Name)
		}
		return s
	}
	if got := names(Supported(cases, "F32", "Q8_0")); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("Supported kept %v", got)
	}
	if got := names(OfArch(cases, "qwen35moe")); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("OfArch kept %v", got)
	}
	if cases[0].Prompt("none") != nil {
		t.Error("an unknown prompt was found")
	}
}

func TestDirs(t *testing.T) {
	t.Setenv("CALDERA_ORACLE", "/somewhere")
	if got := Dir(); got != "/somewhere" {
		t.Errorf("Dir() = %s with CALDERA_ORACLE set", got)
	}
	t.Setenv("CALDERA_ORACLE", "")
	t.Setenv("CALDERA_DEMO", "")
	for _, d := range []string{Dir(), DemoDir()} {
		if !exists(d) {
			t.Errorf("%s does not exist", d)
		}
	}
	// A repository without anything beside it uses its own files.
	repo := filepath.Join(t.TempDir(), "repo", "engine")
	if err := os.MkdirAll(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo, "..", "go.mod"), []byte("module x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(repo)
	root := filepath.Dir(mustGetwd(t))
	if got, want := Dir(), filepath.Join(root, "testdata", "oracle"); got != want {
		t.Errorf("Dir() = %s, want %s", got, want)
	}
	if got, want := DemoDir(), filepath.Join(root, "testdata", "demo"); got != want {
		t.Errorf("DemoDir() = %s, want %s", got, want)
	}
}

func mustGetwd(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return wd
}

// The demo model's results in testdata/demo, and the model itself, are found without any folder beside the repository.
func TestDemoFile(t *testing.T) {
	t.Setenv("CALDERA_DEMO", t.TempDir())
	for _, name := range []string{"demo-q8_0.gguf", "demo.json", "val_tokens.u16", "val_nll-q8_0.f32", "val.txt"} {
		if p := DemoFile(t, name); !exists(p) {
			t.Errorf("%s: no %s", name, p)
		}
	}
	skipped := true
	t.Run("absent", func(t *testing.T) {
		DemoFile(t, "demo-f16.gguf")
		skipped = false
	})
	if !skipped {
		t.Error("a test that asks for a missing file was not skipped")
	}
}

// Without the model file or with a broken case the reason is reported.
func TestReadFaults(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); err == nil {
		t.Error("an empty folder was read")
	}
	for _, text := range []string{"{", `{"format":2}`, `{"format":1,"prompts":[{"name":"p1","tokens":[1]}]}`, `{"format":1}`} {
		if err := os.WriteFile(filepath.Join(dir, "case.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil {
			t.Errorf("%s was read", text)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "model.gguf"), []byte("GGUF\x03\x00\x00\x00\x01"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a cut-off model file was read")
	}
}
