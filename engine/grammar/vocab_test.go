package grammar_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/calderaml/caldera/engine/grammar"
)

// qwen3 is the Qwen3 vocabulary: 151,643 tokens of text and 26 added ones.
var qwen3 = sync.OnceValues(func() ([][]byte, error) {
	data, err := os.ReadFile("../tokenizer/testdata/qwen3-meta.json")
	if err != nil {
		return nil, err
	}
	var meta struct {
		Order []int `json:"byte_order"`
		Added []struct {
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, err
	}
	var tokens [][]byte
	for _, b := range meta.Order {
		tokens = append(tokens, []byte{byte(b)})
	}
	f, err := os.Open("../tokenizer/testdata/qwen3-merges.txt.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		a, b, _ := strings.Cut(lines.Text(), " ")
		l, err1 := strconv.Atoi(a)
		r, err2 := strconv.Atoi(b)
		if err1 == nil && err2 == nil {
			tokens = append(tokens, append(append([]byte{}, tokens[l]...), tokens[r]...))
		}
	}
	for _, a := range meta.Added {
		tokens = append(tokens, []byte(a.Content))
	}
	return tokens, lines.Err()
})

func kindOf(text string) grammar.Kind {
	switch {
	case text == "<|im_end|>" || text == "<|endoftext|>":
		return grammar.End
	case strings.HasPrefix(text, "<|") && strings.HasSuffix(text, "|>") && len(text) > 4:
		return grammar.Special
	}
	return grammar.Text
}

func newVocabulary(tb testing.TB, tokens [][]byte) *grammar.Vocabulary {
	tb.Helper()
	v, err := grammar.NewVocabulary(len(tokens), func(id int32) ([]byte, grammar.Kind) {
		return tokens[id], kindOf(string(tokens[id]))
	})
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func realVocabulary(tb testing.TB) *grammar.Vocabulary {
	tb.Helper()
	tokens, err := qwen3()
	if err != nil {
		tb.Skip(err)
	}
	return newVocabulary(tb, tokens)
}

// smallVocabulary has every byte, some longer tokens and some odd ones.
func smallVocabulary(tb testing.TB) *grammar.Vocabulary {
	tb.Helper()
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, s := range []string{
		"{\"", "\"}", "\":", "\":\"", "\",\"", "\", \"", "},{", "[[", "]]", "]}", "}}", "true", "false", "null", "tr", "12", "-1",
		"0.5", "\\n", "\\u", "\\\"", "00", "ab", "abc", "the", " the", "hello world", "é", "日本", "\xe6\x97", "\xa5", "🌋",
		"\xf0\x9f", "\n", "\n\n", "  ", "    ", "", "ab", "<tool_call>", "</think>", "</", "think>", "\n</", "parameter>",
		"<|im_start|>", "<|im_end|>", "<|endoftext|>", strings.Repeat("x", 32), strings.Repeat("x", 33), strings.Repeat("é", 40),
		strings.Repeat("y", 2000), "\x00", "\x7f", "a\"", "\"a", "\\", "a\\", "\t", "name", "value",
	} {
		tokens = append(tokens, []byte(s))
	}
	return newVocabulary(tb, tokens)
}
