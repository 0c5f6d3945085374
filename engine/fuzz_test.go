package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/internal/oracle"
)

// vocabularyFile is a model file with nothing but the smallest vocabulary, changed by edit.
func vocabularyFile(t testing.TB, edit func(w *gguf.Writer)) []byte {
	t.Helper()
	var tokens []string
	next := rune(0x100)
	for b := range rune(256) {
		c := b
		if b < 33 || b > 126 && b < 161 || b == 173 {
			c = next
			next++
		}
		tokens = append(tokens, string(c))
	}
	tokens = append(tokens, "ab", "<|im_end|>", "<think>")
	w := new(gguf.Writer)
	for key, v := range map[string]any{
		"model": "gpt2", "pre": "qwen35", "tokens": tokens, "merges": []string{"a b"}, "eos_token_id": uint32(257), "add_bos_token": false,
		"token_type": append(slices.Repeat([]int32{1}, 257), 3, 4),
	} {
		if err := w.Set("tokenizer.ggml."+key, v); err != nil {
			t.Fatal(err)
		}
	}
	if edit != nil {
		edit(w)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzVocabulary makes the tokenizer of any file, at a cost bounded by the file's size, and what is accepted takes
// text to ids of its own and back.
func FuzzVocabulary(f *testing.F) {
	set := func(key string, v any) func(*gguf.Writer) {
		return func(w *gguf.Writer) {
			if err := w.Set("tokenizer.ggml."+key, v); err != nil {
				f.Fatal(err)
			}
		}
	}
	for _, edit := range []func(*gguf.Writer){
		nil, set("model", "none"), set("model", uint32(1)), set("pre", "qwen2"), set("tokens", []uint32{1}), set("tokens", "x"), set("token_type", make([]uint8, 259)),
		set("token_type", make([]float32, 259)), set("merges", []string{}), set("merges", make([]string, 100)), set("eos_token_id", int64(-1)),
		set("bos_token_id", uint64(1<<40)), set("padding_token_id", true), set("add_bos_token", true), set("token_type", int32(1)),
	} {
		f.Add(vocabularyFile(f, edit), "ab <think><|im_end|>\xff")
	}
	models, _ := filepath.Glob(filepath.Join(oracle.Dir(), "*", "model.gguf"))
	for _, path := range models {
		m, err := gguf.OpenHeader(path)
		if err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:m.DataStart(0)], "Hello")
		m.Close()
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if len(text) > 1<<12 {
			return
		}
		m, err := gguf.OpenHeaderBytes("fuzz", data)
		if err != nil {
			return
		}
		defer m.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tok, err := OpenTokenizer(m, true)
		runtime.ReadMemStats(&after)
		// What all tokenizers share and the cache of words are about three mebibytes.
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20+128*uint64(len(data)) {
			t.Fatalf("the vocabulary of %d bytes: %d allocated", len(data), n)
		}
		if err != nil || tok == nil {
			if err != nil && (tok != nil || len(err.Error()) < 10) {
				t.Fatalf("%v, and a tokenizer %v", err, tok != nil)
			}
			return
		}
		for _, special := range []bool{false, true} {
			ids := tok.Encode(text, special)
			for _, id := range ids {
				if id < 0 || int(id) >= tok.Len() {
					t.Fatalf("%q: id %d of %d", text, id, tok.Len())
				}
			}
			if got := tok.Decode(ids); utf8.ValidString(text) && got != text {
				t.Fatalf("%q: %v is %q", text, ids, got)
			}
		}
		for _, id := range append(tok.EOG(), tok.EOS(), tok.BOS(), tok.Pad()) {
			if id < -1 || int(id) >= tok.Len() {
				t.Fatalf("id %d of %d", id, tok.Len())
			}
		}
	})
}
