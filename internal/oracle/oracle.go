// Package oracle finds and reads the reference cases that tests and tools compare Caldera with.
//
// A case is a folder with a small model, model.gguf, and case.json, the numbers that an independent engine
// computes for it (testdata/oracle/README.md explains the fields). A core subset is part of the repository; a
// fuller set is used when there is one, see [Dir]. The package reads nothing through Caldera's own GGUF
// reader, so that a fault there cannot hide a case.
package oracle

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"
)

// Case is one model and what is known about it.
type Case struct {
	Name string // folder name, such as "qwen35moe-q4_k_m"
	Dir  string // folder
	Arch string // general.architecture of the model

	Generator Generator // how the model was made
	SHA256    string    // of model.gguf, in hexadecimal
	NVocab    int       // logits per token

	Reference string            // how the numbers were computed
	LogitSD   float64           // standard deviation of all reference logits
	Spread    map[string]Spread // other ways of computing the same numbers, by name
	Prompts   []Prompt          // p1, p7, p300 and greedy
	Tokenize  []Tokenized       // tokenizer results with the model's vocabulary

	types []string // tensor types in the file, sorted, each once
}

// Generator says how a model file was made.
type Generator struct {
	Program  string            `json:"program"`
	Seed     int64             `json:"seed"`
	Types    string            `json:"types"`
	Settings map[string]string `json:"settings"`
}

// Prompt is one token list, fed from position 0 on an empty state, and its results. For n tokens Argmax and Top2Margin have n
// entries and NextLogprob has n-1.
type Prompt struct {
	Name        string    `json:"name"`
	Tokens      []int32   `json:"tokens"`
	Argmax      []int32   `json:"argmax"`       // id of the largest logit after each token, the lowest on a tie
	Top2Margin  []float64 `json:"top2_margin"`  // largest minus second largest logit
	NextLogprob []float64 `json:"next_logprob"` // natural logarithm of the probability of Tokens[i+1]
	LastLogits  []float32 `json:"last_logits"`  // all logits after the last token

	// Only the prompt named "greedy" has these: its first NPrompt tokens are the prompt proper, and Continuation is the 32
	// tokens that greedy decoding adds to it (all but the last of them are in Tokens).
	NPrompt      int     `json:"n_prompt"`
	Continuation []int32 `json:"continuation"`

	// Only where block_cut.json replaces the results (sparse attention): the number of leading positions that
	// attend densely, and per position how close the first refused block came to the last selected one.
	DenseTokens int       `json:"dense_tokens"`
	CutGap      []float64 `json:"cut_gap"`
}

// Spread is the distance of another way of computing a case from the reference, over all positions of all prompts.
type Spread struct {
	MaxAbs      float64    `json:"max_abs"`             // largest difference of a logit
	MeanMaxAbs  float64    `json:"mean_max_abs"`        // mean over positions of the largest difference
	RMS         float64    `json:"rms"`                 // root mean square difference
	Quantiles   [3]float64 `json:"max_abs_q50_q90_q99"` // 50, 90 and 99 % of the positions' largest differences
	KLMax       float64    `json:"kl_max"`              // largest KL divergence from the reference, nats
	KLMean      float64    `json:"kl_mean"`             // its mean
	ArgmaxAgree float64    `json:"argmax_agree"`        // share of positions with an equal argmax
}

// Tokenized is a string and its token ids, special tokens recognised and no BOS added.
type Tokenized struct {
	Text string  `json:"text"`
	IDs  []int32 `json:"ids"`
}

// Model is the path of the case's model file.
func (c *Case) Model() string { return filepath.Join(c.Dir, "model.gguf") }

// Types lists the tensor types that occur in the model file, in GGML's names ("F32", "Q4_K"), sorted.
func (c *Case) Types() []string { return slices.Clone(c.types) }

// Supported reports whether every tensor of the model has one of the given types.
func (c *Case) Supported(types ...string) bool {
	for _, t := range c.types {
		if !slices.Contains(types, t) {
			return false
		}
	}
	return true
}

// Prompt returns the prompt of that name, or nil.
func (c *Case) Prompt(name string) *Prompt {
	for i := range c.Prompts {
		if c.Prompts[i].Name == name {
			return &c.Prompts[i]
		}
	}
	return nil
}

// Supported keeps the cases whose tensors all have one of the given types.
func Supported(cases []Case, types ...string) []Case {
	return filter(cases, func(c *Case) bool { return c.Supported(types...) })
}

// OfArch keeps the cases of the given architectures.
func OfArch(cases []Case, archs ...string) []Case {
	return filter(cases, func(c *Case) bool { return slices.Contains(archs, c.Arch) })
}

func filter(cases []Case, keep func(*Case) bool) []Case {
	var out []Case
	for i := range cases {
		if keep(&cases[i]) {
			out = append(out, cases[i])
		}
	}
	return out
}

// Cases reads every case of [Dir], sorted by name, and fails the test when one cannot be read or there is none.
func Cases(t testing.TB) []Case {
	t.Helper()
	cases, err := Load(Dir())
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("no oracle cases in %s", Dir())
	}
	return cases
}

// Load reads every case in dir, sorted by name. Folders without a case.json are something else and are passed over.
func Load(dir string) ([]Case, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "case.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var cases []Case
	for _, f := range files {
		c, err := Read(filepath.Dir(f))
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// Read reads the case in one folder.
func Read(dir string) (Case, error) {
	var f struct {
		Format    int               `json:"format"`
		Arch      string            `json:"arch"`
		Generator Generator         `json:"generator"`
		SHA256    string            `json:"model_sha256"`
		NVocab    int               `json:"n_vocab"`
		Reference string            `json:"reference"`
		LogitSD   float64           `json:"logit_sd"`
		Spread    map[string]Spread `json:"spread"`
		Prompts   []Prompt          `json:"prompts"`
		Tokenize  []Tokenized       `json:"tokenize"`
	}
	if err := readJSON(filepath.Join(dir, "case.json"), &f); err != nil {
		return Case{}, err
	}
	if f.Format != 1 {
		return Case{}, fmt.Errorf("oracle case %s: format %d, want 1", dir, f.Format)
	}
	c := Case{
		Name: filepath.Base(dir), Dir: dir, Arch: f.Arch,
		Generator: f.Generator, SHA256: f.SHA256, NVocab: f.NVocab,
		Reference: f.Reference, LogitSD: f.LogitSD, Spread: f.Spread,
		Prompts: f.Prompts, Tokenize: f.Tokenize,
	}
	if err := c.applyBlockCut(); err != nil {
		return Case{}, err
	}
	for i := range c.Prompts {
		if err := c.Prompts[i].check(c.NVocab); err != nil {
			return Case{}, fmt.Errorf("oracle case %s: prompt %s: %w", dir, c.Prompts[i].Name, err)
		}
	}
	types, err := tensorTypes(c.Model())
	if err != nil {
		return Case{}, fmt.Errorf("oracle case %s: %w", dir, err)
	}
	c.types = types
	return c, nil
}

// applyBlockCut replaces results that the independent engine computes with an inexact selection of blocks by those of the
// exact one, where the case has them.
func (c *Case) applyBlockCut() error {
	var f struct {
		Prompts []Prompt `json:"prompts"`
	}
	err := readJSON(filepath.Join(c.Dir, "block_cut.json"), &f)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	for _, r := range f.Prompts {
		p := c.Prompt(r.Name)
		if p == nil {
			return fmt.Errorf("%s: block_cut.json names the unknown prompt %q", c.Dir, r.Name)
		}
		p.Argmax, p.Top2Margin, p.NextLogprob, p.LastLogits = r.Argmax, r.Top2Margin, r.NextLogprob, r.LastLogits
		p.DenseTokens, p.CutGap = r.DenseTokens, r.CutGap
	}
	return nil
}

func (p *Prompt) check(nVocab int) error {
	n := len(p.Tokens)
	switch {
	case n == 0:
		return fmt.Errorf("no tokens")
	case len(p.Argmax) != n || len(p.Top2Margin) != n || len(p.NextLogprob) != n-1:
		return fmt.Errorf("%d tokens with %d argmax, %d margins, %d log probabilities",
			n, len(p.Argmax), len(p.Top2Margin), len(p.NextLogprob))
	case len(p.LastLogits) != nVocab:
		return fmt.Errorf("%d last logits, vocabulary of %d", len(p.LastLogits), nVocab)
	case p.NPrompt > n:
		return fmt.Errorf("n_prompt is %d of %d tokens", p.NPrompt, n)
	}
	return nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	return nil
}
