package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// Scores come back from their file as they were, and compare with themselves as equal; no other file is taken.
func TestScores(t *testing.T) {
	p := engine.Perplexity{NLL: []float32{1, 2.5, 0.25}, Best: []int32{7, 1 << 20, 0}, Chunk: 4, Chunks: 1}
	var b bytes.Buffer
	tokens := []int32{5, 6, 7, 8}
	if err := writeScores(&b, p, tokens); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	got, err := readScores(file("good", b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.of(append(tokens, 9)); err != nil { // of a chunk that is not full
		t.Error(err)
	}
	if err := got.of([]int32{5, 6, 7, 9}); err == nil {
		t.Error("scores of other tokens were taken")
	}
	c, err := got.Against(p)
	if err != nil || c != (engine.Comparison{Ratio: 1, SameBest: c.SameBest}) || c.SameBest < 1-1e-12 {
		t.Errorf("against itself: %+v, %v", c, err)
	}
	q := engine.Perplexity{NLL: []float32{1.5, 2, 0.25}, Best: []int32{7, 3, 0}, Chunk: 4}
	if c, err = q.Against(got.Perplexity); err != nil || c.MaxDiff != 0.5 || c.SameBest < 0.66 || c.SameBest > 0.67 || c.MeanDiff != 0 {
		t.Errorf("against others: %+v, %v", c, err)
	}
	q.NLL = q.NLL[:2]
	if _, err := q.Against(got.Perplexity); err == nil {
		t.Error("fewer scores were compared")
	}
	data := b.Bytes()
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 0x40
	for name, bad := range map[string][]byte{
		"empty": nil, "flipped": flipped, "short": data[:20], "long": append(bytes.Clone(data), 0), "other": []byte(strings.Repeat("x", len(data))),
		"many": append(append(bytes.Clone(data[:12]), 0xff, 0xff, 0xff, 0xff), data[16:]...),
	} {
		if _, err := readScores(file(name, bad)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
