package tokenizer

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// fuzzVocabulary makes a vocabulary of a script, a line for each change to the byte vocabulary: "T TYPE TEXT" adds a
// token, "M LEFT RIGHT" a merge, "B LEFT RIGHT" a merge and the token it makes, "X N" takes the last N tokens away,
// "E N", "P N", "S N", "A N" set the ids with a meaning, "Q" takes the other pre-tokenizer.
func fuzzVocabulary(script string) Vocabulary {
	v := byteVocabulary()
	v.Types = slices.Repeat([]int32{TypeNormal}, len(v.Tokens))
	number := func(s string) int32 {
		n, sign := int32(0), int32(1)
		for i, c := range []byte(s) {
			switch {
			case c == '-' && i == 0:
				sign = -1
			case c >= '0' && c <= '9':
				n = n*10 + int32(c-'0')
			}
		}
		return n * sign
	}
	for line := range strings.SplitSeq(script, "\n") {
		op, rest, _ := strings.Cut(line, " ")
		first, text, _ := strings.Cut(rest, " ")
		switch op {
		case "T":
			v.Tokens = append(v.Tokens, text)
			v.Types = append(v.Types, number(first))
		case "B":
			v.Tokens = append(v.Tokens, first+text)
			v.Types = append(v.Types, TypeNormal)
			v.Merges = append(v.Merges, rest)
		case "M":
			v.Merges = append(v.Merges, rest)
		case "X":
			n := min(max(int(number(rest)), 0), len(v.Tokens))
			v.Tokens, v.Types = v.Tokens[:len(v.Tokens)-n], v.Types[:len(v.Types)-n]
		case "E":
			v.EOS = number(rest)
		case "P":
			v.Pad = number(rest)
		case "S":
			v.BOS, v.AddBOS = number(rest), true
		case "A":
			v.ExtraEOG = append(v.ExtraEOG, number(rest))
		case "Q":
			v.Pre = "qwen2"
		}
	}
	return v
}

// FuzzNew builds tokenizers of any vocabularies. Building costs memory by the vocabulary's size alone; what is
// accepted encodes any text into its own ids and brings it back, the same with and without the cache, and stops
// when its context ends.
func FuzzNew(f *testing.F) {
	for _, script := range []string{
		"", "Q", "B a b\nB ab c\nM b c", "B a b\nB a b", "T 3 <|im_end|>\nT 4 <think>\nE 256", "T 4 <\nT 4 <<\nT 3 <<<\nB < <", "T 6 <0x41>\nT 6 <0xzz>",
		"T 5 x\nT 5 x\nT 2 unk\nT 9 y", "X 1", "X 300", "S 3\nP 256", "A 5\nA -3", "M a\nM  a\nM a ", "T 1 Ġ\nT 1 ĠĠ\nM Ġ Ġ", "T 3 \xff", "T 4 " + strings.Repeat("a", 1025),
		"B a a\nB aa aa\nB aaaa aaaa", "T 4 é\nT 4 e\u0301", "E 2147483648", "T 4 a\nM a b",
	} {
		for _, text := range []string{"", "ab abc aab", "<|im_end|><think><<<<", strings.Repeat("a", 100), "e\u0301 \xff\xfe Ġ 12345\r\n\t "} {
			f.Add(script, text)
		}
	}
	mustNew(f, byteVocabulary()) // makes the tables that all tokenizers share
	f.Fuzz(func(t *testing.T, script, text string) {
		if len(script) > 1<<14 || len(text) > 1<<12 {
			return
		}
		v := fuzzVocabulary(script)
		var plain, cached *Tokenizer
		var err error
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		plain, err = New(v, WithoutCache(), WithoutNFC())
		runtime.ReadMemStats(&after)
		// The cache is a constant of half a mebibyte that even a refused vocabulary costs. A byte of an added token can
		// be a node of 16 bytes in a table that grew by doubling.
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20+128*uint64(len(script)) {
			t.Fatalf("a vocabulary of %d bytes: %d allocated", len(script), n)
		}
		if err != nil {
			if plain != nil || len(err.Error()) > 1000 {
				t.Fatalf("%v, and a tokenizer %v", err, plain != nil)
			}
			return
		}
		if cached, err = New(v, WithoutNFC()); err != nil {
			t.Fatal(err)
		}
		for _, special := range []bool{false, true} {
			ids := plain.Encode(text, special)
			for _, id := range ids {
				if id < 0 || int(id) >= plain.Len() || !special && plain.Type(id) == TypeControl {
					t.Fatalf("%q: id %d of %d, type %d", text, id, plain.Len(), plain.Type(id))
				}
			}
			if got, want := plain.Decode(ids), replaceInvalid(text); got != want {
				t.Fatalf("%q: %v is %q", text, ids, got)
			}
			for range 2 { // the second time from the cache
				if got := cached.Encode(text, special); !slices.Equal(got, ids) {
					t.Fatalf("%q: %v with the cache, %v without", text, got, ids)
				}
			}
		}
		for _, id := range append(plain.EOG(), plain.EOS(), plain.BOS(), plain.Pad()) {
			if id < -1 || int(id) >= plain.Len() {
				t.Fatalf("id %d of %d", id, plain.Len())
			}
		}
		d := plain.NewStreamDecoder()
		for id := range int32(plain.Len()) {
			d.Push(id)
		}
		d.Flush()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := plain.EncodeLimit(ctx, text+"x", true, -1); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}
