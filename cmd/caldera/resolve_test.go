package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/demo"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// cachedDemo makes a Hugging Face cache that holds the demo model as u/demo:Q8_0 and links to a model that is gone, and
// says so in the environment. It returns the model's path there.
func cachedDemo(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "models--u--demo")
	snapshot := filepath.Join(dir, "snapshots", commit)
	for _, d := range []string{snapshot, filepath.Join(dir, "blobs"), filepath.Join(dir, "refs")} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "refs", "main"), commit)
	write(t, filepath.Join(dir, "blobs", "1234"), string(demo.Model()))
	path := filepath.Join(snapshot, "demo-Q8_0.gguf")
	for link, target := range map[string]string{path: "1234", filepath.Join(snapshot, "demo-BF16.gguf"): "5678"} {
		if err := os.Symlink(filepath.Join("..", "..", "blobs", target), link); err != nil {
			t.Skip(err)
		}
	}
	t.Setenv("HF_HUB_CACHE", root)
	t.Setenv("LLAMA_CACHE", filepath.Join(root, "absent"))
	return path
}

// Every command takes a repository's name or a folder where it takes a file.
func TestModelNames(t *testing.T) {
	path := cachedDemo(t)
	root := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(path))))
	isolate(t)
	write(t, "tokens.u16", "\x01\x00\x02\x00\x03\x00")
	for _, args := range []string{
		"run -m u/demo:q8_0 --backend reference -n 1 hello", "run -hf u/demo --backend reference -n 1 hello", "run --hf-repo U/Demo --backend reference -n 1 hello",
		"tokenize -m u/demo hello", "inspect u/demo", "inspect hf.co/u/demo:Q8_0", "inspect " + filepath.Dir(path) + ":Q8_0", "inspect " + filepath.Join(root, "models--u--demo"),
		"plan u/demo --backend reference", "quantize u/demo out.gguf Q8_0 --dry-run --allow-requantize",
		"logits -m u/demo --backend reference --tokens 1,2 --out x.f32",
		"perplexity -m u/demo --backend reference --tokens-file tokens.u16 --chunk 3", "bench -m u/demo --backend reference -p 2 -n 0 -r 1",
	} {
		if r := commandHere(t, strings.Fields(args)...); r.code != exitDone || !strings.Contains(r.err, "file:   "+path) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	for args, want := range map[string]string{
		"run -m u/demo:Q4_K_M hello":        "which has BF16, Q8_0; Caldera downloads nothing yet",
		"run -m u/demo:BF16 hello":          "demo-BF16.gguf is a link to",
		"tokenize -m u/other hello":         "which has u/demo",
		"inspect u/demo:../../blobs/1234":   "may not leave",
		"bench -m nothing --backend vulkan": "nothing: no such file or folder",
		"inspect .":                         "holds no GGUF file",
	} {
		r := commandHere(t, strings.Fields(args)...)
		if r.code != exitModel || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
}

// Nothing is downloaded, and asking for it says so.
func TestOffline(t *testing.T) {
	isolate(t)
	for _, args := range []string{"tokenize --offline hello", "tokenize --offline=true hello"} {
		if r := commandHere(t, strings.Fields(args)...); r.code != exitDone {
			t.Errorf("%s: %+v", args, r)
		}
	}
	refused := func(want string, args ...string) {
		t.Helper()
		r := commandHere(t, args...)
		if r.code != exitUsage || !strings.Contains(r.err, want+" is false, but this version downloads nothing") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	refused("--offline", "tokenize", "--offline=false", "hello")
	write(t, "caldera.yaml", "offline: false\n")
	refused("offline in caldera.yaml", "tokenize", "hello")
	t.Setenv("CALDERA_OFFLINE", "false")
	refused("CALDERA_OFFLINE", "version")
}
