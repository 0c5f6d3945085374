package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// results is the part of demo.json that this package's claims rest on.
type results struct {
	Files map[string]struct {
		Bytes  int
		Greedy []struct {
			Prompt string
			Text   string
		}
	}
}

func readResults(t *testing.T) results {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "demo", "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestModel(t *testing.T) {
	m := Model()
	if !strings.HasPrefix(string(m[:8]), "GGUF\x03\x00\x00\x00") {
		t.Errorf("the model begins with % x", m[:8])
	}
	if want := readResults(t).Files[Name+".gguf"].Bytes; len(m) != want {
		t.Errorf("the model has %d bytes, its results are those of a file with %d", len(m), want)
	}
}

// The prompts offered are ones whose answers are known, in exactly the form that they were asked in.
func TestChat(t *testing.T) {
	answers := map[string]string{}
	for _, g := range readResults(t).Files[Name+".gguf"].Greedy {
		answers[g.Prompt] = g.Text
	}
	for _, q := range Questions {
		a, ok := answers[Chat(q)]
		if !ok {
			t.Errorf("no known answer to %q", Chat(q))
		} else if !strings.HasSuffix(a, EndOfTurn) {
			t.Errorf("%s: the answer %q has no end", q, a)
		}
	}
	if got, want := answers[Chat(DefaultPrompt)], "12 + 7 = 19"+EndOfTurn; got != want {
		t.Errorf("%s: %q, want %q", DefaultPrompt, got, want)
	}
	if !slices.Contains(Questions, DefaultPrompt) {
		t.Error("the default prompt is not among the questions")
	}
}
