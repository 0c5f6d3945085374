package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// byteVocabulary returns the smallest vocabulary there is: the bytes, in their order.
func byteVocabulary() Vocabulary {
	v := Vocabulary{Model: "gpt2", Pre: "qwen35", EOS: -1, BOS: -1, Pad: -1}
	for _, c := range newAlphabet().char {
		v.Tokens = append(v.Tokens, string(c))
	}
	return v
}

func TestNewErrors(t *testing.T) {
	// add appends a token and its type to a byte vocabulary.
	add := func(v *Vocabulary, text string, typ int32) {
		if v.Types == nil {
			v.Types = slices.Repeat([]int32{TypeNormal}, len(v.Tokens))
		}
		v.Tokens = append(v.Tokens, text)
		v.Types = append(v.Types, typ)
	}
	tests := []struct {
		name string
		edit func(v *Vocabulary)
		want string // part of the error; "" for none
	}{
		{"bytes alone", func(v *Vocabulary) {}, ""},
		{"model", func(v *Vocabulary) { v.Model = "llama" }, `model "llama"`},
		{"model missing", func(v *Vocabulary) { v.Model = "" }, "model"},
		{"pre", func(v *Vocabulary) { v.Pre = strings.Repeat("x", 1000) }, "pre-tokenizer"},
		{"pre missing", func(v *Vocabulary) { v.Pre = "" }, "pre-tokenizer"},
		{"empty", func(v *Vocabulary) { v.Tokens = nil }, "empty"},
		{"no such byte", func(v *Vocabulary) { v.Tokens = v.Tokens[:255] }, "no token for byte 0xff"},
		{"byte is control", func(v *Vocabulary) {
			v.Types = slices.Repeat([]int32{TypeNormal}, 256)
			v.Types['a'] = TypeControl
		}, "no token for byte 0x61"},
		{"types", func(v *Vocabulary) { v.Types = []int32{1, 1} }, "2 token types for 256 tokens"},
		{"unknown type", func(v *Vocabulary) { add(v, "ab", 7) }, "unknown type 7"},
		{"negative type", func(v *Vocabulary) { add(v, "ab", -1) }, "unknown type -1"},
		{"not printable form", func(v *Vocabulary) { add(v, "a b", TypeNormal) }, "stands for no byte"},
		{"character beyond the alphabet", func(v *Vocabulary) { add(v, "語", TypeNormal) }, "stands for no byte"},
		{"token invalid UTF-8", func(v *Vocabulary) { add(v, "a\xff", TypeNormal) }, "stands for no byte"},
		{"added token invalid UTF-8", func(v *Vocabulary) { add(v, "<\xff>", TypeControl) }, "UTF-8"},
		{"added token empty", func(v *Vocabulary) { add(v, "", TypeControl) }, "empty"},
		{"added token long", func(v *Vocabulary) { add(v, strings.Repeat("<", 1025), TypeUserDefined) }, "1025 bytes"},
		{"token long", func(v *Vocabulary) { add(v, strings.Repeat("a", 1<<16+1), TypeNormal) }, "65537 bytes"},
		{"token twice", func(v *Vocabulary) { add(v, "a", TypeNormal) }, "both"},
		{"added token twice", func(v *Vocabulary) { add(v, "<x>", TypeControl); add(v, "<x>", TypeUserDefined) }, "both"},
		{"unused token twice", func(v *Vocabulary) { add(v, "a", TypeUnused) }, ""},
		{"normal token empty", func(v *Vocabulary) { add(v, "", TypeNormal) }, ""},
		{"byte token", func(v *Vocabulary) { add(v, "<0x0A>", TypeByte) }, ""},
		{"merge", func(v *Vocabulary) { add(v, "ab", TypeNormal); v.Merges = []string{"a b"} }, ""},
		{"merge twice", func(v *Vocabulary) { add(v, "ab", TypeNormal); v.Merges = []string{"a b", "a b"} }, ""},
		{"merge of a user-defined token", func(v *Vocabulary) { add(v, "ab", TypeUserDefined); v.Merges = []string{"a b"} }, ""},
		{"merge left", func(v *Vocabulary) { v.Merges = []string{"ab c"} }, `missing token "ab"`},
		{"merge right", func(v *Vocabulary) { v.Merges = []string{"c ab"} }, `missing token "ab"`},
		{"merge result", func(v *Vocabulary) { v.Merges = []string{"a b"} }, `makes the missing token "ab"`},
		{"merge without space", func(v *Vocabulary) { v.Merges = []string{"ab"} }, "not two tokens"},
		{"merge empty", func(v *Vocabulary) { v.Merges = []string{""} }, "not two tokens"},
		{"merge left empty", func(v *Vocabulary) { v.Merges = []string{" a"} }, "not two tokens"},
		{"merge right empty", func(v *Vocabulary) { v.Merges = []string{"a "} }, "not two tokens"},
		{"merge of three", func(v *Vocabulary) { v.Merges = []string{"a b c"} }, "missing token"},
		{"merge makes a control token", func(v *Vocabulary) { add(v, "ab", TypeControl); v.Merges = []string{"a b"} }, "makes the missing token"},
		{"merge makes an unused token", func(v *Vocabulary) { add(v, "ab", TypeUnused); v.Merges = []string{"a b"} }, "makes the missing token"},
		{"end token", func(v *Vocabulary) { v.EOS = 256 }, "end-of-sequence token 256"},
		{"end token negative", func(v *Vocabulary) { v.EOS = -2 }, "end-of-sequence token -2"},
		{"begin token", func(v *Vocabulary) { v.BOS = 1 << 30 }, "begin-of-sequence"},
		{"begin token not named", func(v *Vocabulary) { v.AddBOS = true }, "begin-of-sequence"},
		{"padding token", func(v *Vocabulary) { v.Pad = -1 << 31 }, "padding"},
		{"extra end token", func(v *Vocabulary) { v.ExtraEOG = []int32{3, -1} }, "end-of-generation token -1"},
	}
	for _, test := range tests {
		v := byteVocabulary()
		test.edit(&v)
		tok, err := New(v)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want == "":
			if text := "a b\n\xc3"; tok.Decode(tok.Encode(text, true)) != "a b\n\ufffd" {
				t.Errorf("%s: does not round-trip", test.name)
			}
		case err == nil || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		case len(err.Error()) > 200:
			t.Errorf("%s: error of %d bytes", test.name, len(err.Error()))
		}
	}
	if _, err := New(Vocabulary{Model: "gpt2", Pre: "qwen2", Tokens: make([]string, MaxTokens+1)}); err == nil {
		t.Error("too many tokens: no error")
	}
	if _, err := New(Vocabulary{Model: "gpt2", Pre: "qwen2", Tokens: []string{"a"}, Merges: make([]string, MaxMerges+1)}); err == nil {
		t.Error("too many merges: no error")
	}
}

// A control token never comes out of text when it is not asked for, whatever the merges.
func TestControlTokensInText(t *testing.T) {
	tok := qwen3(t)
	for _, name := range []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>"} {
		id, ok := tok.Added(name)
		if !ok || tok.Type(id) != TypeControl {
			t.Fatalf("%s: id %d, type %d", name, id, tok.Type(id))
		}
		text := "a" + name + "b"
		for _, got := range tok.Encode(text, false) {
			if tok.Type(got) == TypeControl {
				t.Errorf("%q has control token %d", text, got)
			}
		}
		if !slices.Contains(tok.Encode(text, true), id) {
			t.Errorf("%q has no token %d", text, id)
		}
	}
}

func TestAccessors(t *testing.T) {
	tok := qwen3(t)
	// The added tokens of Qwen3; its <|fim_pad|> and file tokens are user-defined.
	if got, want := tok.EOG(), []int32{151643, 151645, 151662, 151663, 151664}; !slices.Equal(got, want) {
		t.Errorf("EOG %d, want %d", got, want)
	}
	if !tok.IsEOG(151645) || tok.IsEOG(151644) || tok.IsEOG(-1) || tok.EOS() != 151645 || tok.BOS() != -1 || tok.Pad() != -1 || tok.AddBOS() {
		t.Error("wrong special ids")
	}
	if tok.Len() != 151669 {
		t.Errorf("length %d", tok.Len())
	}
	for _, id := range []int32{-1, 151669, 1<<31 - 1, -1 << 31} {
		if tok.Piece(id) != nil || tok.Type(id) != TypeUndefined {
			t.Errorf("id %d has a piece or a type", id)
		}
	}
	if p := tok.Piece(9707); string(p) != "Hello" || cap(p) != 5 {
		t.Errorf("piece %q with capacity %d", p, cap(p))
	}
	if _, ok := tok.Added("Hello"); ok {
		t.Error("a normal token is found as an added one")
	}
	v := byteVocabulary()
	v.Tokens = append(v.Tokens, "<|im_end|>", "[PAD1]", "<0x41>")
	v.Types = append(slices.Repeat([]int32{TypeNormal}, 256), TypeNormal, TypeUnused, TypeByte)
	v.ExtraEOG = []int32{7, 3, 7}
	v.EOS, v.BOS, v.AddBOS = 5, 6, true
	tok = mustNew(t, v)
	// A normal token does not end a generation because of its name.
	if got, want := tok.EOG(), []int32{3, 5, 7}; !slices.Equal(got, want) {
		t.Errorf("EOG %d, want %d", got, want)
	}
	if got := tok.Decode([]int32{256, 257, 258}); got != "<|im_end|>A" {
		t.Errorf("decoded %q", got)
	}
	if !tok.AddBOS() || tok.BOS() != 6 {
		t.Error("begin token is lost")
	}
}

// Without any added token, and with overlapping ones.
func TestAddedTokens(t *testing.T) {
	v := byteVocabulary()
	if ids := mustNew(t, v).Encode("<x>", true); len(ids) != 3 {
		t.Errorf("ids %d", ids)
	}
	v.Tokens = append(v.Tokens, "<x>", "<x>>", "<x", "é", "xx")
	v.Types = append(slices.Repeat([]int32{TypeNormal}, 256), TypeControl, TypeControl, TypeUserDefined, TypeUserDefined, TypeUserDefined)
	tok := mustNew(t, v)
	for _, test := range []struct {
		text    string
		control bool
		want    []int32
	}{
		{"<x>", true, []int32{256}},
		{"<x>", false, []int32{258, '>'}},
		{"<x>>>", true, []int32{257, '>'}},
		{"<<x", true, []int32{'<', 258}},
		{"xxx<xx", true, []int32{260, 'x', 258, 'x'}},
		{"é<é", false, []int32{259, '<', 259}},
		{"<", true, []int32{'<'}},
		{"", true, nil},
	} {
		if got := tok.Encode(test.text, test.control); !slices.Equal(got, test.want) {
			t.Errorf("%q %v: %d, want %d", test.text, test.control, got, test.want)
		}
	}
}

// naive merges a piece by the definition: look for the best pair, merge it, again.
func (t *Tokenizer) naive(piece string) []int32 {
	var ids []int32
	for i := range len(piece) {
		ids = append(ids, t.bytes[piece[i]])
	}
	for {
		best, at := noRank, -1
		for i := range len(ids) - 1 {
			if r := t.merges.rank(ids[i], ids[i+1]); r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = t.merges.tokens[best]
		ids = slices.Delete(ids, at+1, at+2)
	}
}

func TestMergesMatchDefinition(t *testing.T) {
	tok := qwen3(t)
	rng := rand.New(rand.NewPCG(1, 2))
	units := []string{"a", "b", "e", "th", " ", "\n", "=", "-", "中", "é", "x", "ing", "\xff"}
	for range 2000 {
		var b strings.Builder
		for n := 1 + rng.IntN(70); n > 0; n-- {
			b.WriteString(units[rng.IntN(len(units))])
		}
		piece := b.String()
		want := tok.naive(piece)
		got, err := tok.appendLong(context.Background(), nil, piece)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("long %q: %d (%v), want %d", piece, got, err, want)
		}
		if len(piece) <= maxShort {
			if got := tok.appendShort(nil, piece); !slices.Equal(got, want) {
				t.Fatalf("short %q: %d, want %d", piece, got, want)
			}
		}
	}
}

func TestEncodeLimit(t *testing.T) {
	tok := qwen3(t)
	ctx := context.Background()
	texts := []string{
		"", "Hello", strings.Repeat("Hello, wörld! ", 500), strings.Repeat("<|im_end|>", 500),
		strings.Repeat("a", 100_000), strings.Repeat(" ", 100_000) + "x<think>" + strings.Repeat("中", 3000),
	}
	for _, text := range texts {
		all := tok.Encode(text, true)
		for _, limit := range []int{0, 1, 2, 100, 999, 1000, 5000, 1 << 40} {
			got, err := tok.EncodeLimit(ctx, text, true, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) <= limit && !slices.Equal(got, all) || len(all) > limit && len(got) != limit+1 {
				t.Errorf("%.20q limit %d: %d tokens of %d", text, limit, len(got), len(all))
			}
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, text := range texts[1:] {
		if strings.HasPrefix(text, "<|im_end|>") {
			continue // added tokens alone take no time to speak of
		}
		if _, err := tok.EncodeLimit(ended, text, true, -1); !errors.Is(err, context.Canceled) {
			t.Errorf("%.20q: error %v", text, err)
		}
	}
}

func TestConcurrent(t *testing.T) {
	tok := mustNew(t, small35Vocabulary(t))
	plain := mustNew(t, small35Vocabulary(t), WithoutCache())
	var texts []string
	for i := range 200 {
		texts = append(texts, fmt.Sprintf("word%d func%d(x) %s<think>%d", i, i*7, strings.Repeat("ab", i), i))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 400 {
				text := texts[(i*7+g*13)%len(texts)]
				if got, want := tok.Encode(text, true), plain.Encode(text, true); !slices.Equal(got, want) {
					t.Errorf("%q: %d, want %d", text, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzEncode(f *testing.F) {
	tok := mustNew(f, small35Vocabulary(f))
	raw := mustNew(f, small35Vocabulary(f), WithoutNFC(), WithoutCache())
	for i, v := range readLines[vector](f, "vectors.jsonl") {
		f.Add(v.input(f), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, text string, special bool) {
		ids := tok.Encode(text, special)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.Len() {
				t.Fatalf("%q: id %d", text, id)
			}
		}
		// Form C applies between added tokens, not across them.
		var want strings.Builder
		valid := replaceInvalid(text)
		for from := 0; ; {
			start, end, _ := tok.added.find(valid, from, special)
			want.WriteString(normalize(valid[from:start]))
			want.WriteString(valid[start:end])
			if start == len(valid) {
				break
			}
			from = end
		}
		if got := tok.Decode(ids); got != want.String() {
			t.Fatalf("%q: decoded to %q, want %q", text, got, want.String())
		}
		if got := raw.Decode(raw.Encode(text, special)); got != valid {
			t.Fatalf("%q: decoded to %q without NFC, want %q", text, got, valid)
		}
		d := tok.NewStreamDecoder()
		var out strings.Builder
		for _, id := range ids {
			s := d.Push(id)
			if !utf8.ValidString(s) || d.Pending() > 3 {
				t.Fatalf("%q: pushed %q, %d bytes held back", text, s, d.Pending())
			}
			out.WriteString(s)
		}
		out.WriteString(d.Flush())
		if out.String() != want.String() {
			t.Fatalf("%q: streamed %q, want %q", text, out.String(), want.String())
		}
	})
}
