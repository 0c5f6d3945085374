package tokenizer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// bareQwen3 is the Qwen3 tokenizer without its added tokens; the ids of all others are the same.
func bareQwen3(t testing.TB) *Tokenizer {
	t.Helper()
	v := qwen3Vocabulary()
	v.Tokens, v.Types, v.EOS = slices.Clone(v.Tokens), slices.Clone(v.Types), -1
	for i, typ := range v.Types {
		if typ == TypeControl || typ == TypeUserDefined {
			v.Tokens[i], v.Types[i] = "", TypeUnused
		}
	}
	return mustNew(t, v)
}

func encodeStretches(t testing.TB, tok *Tokenizer, stretches ...Stretch) []int32 {
	t.Helper()
	ids, err := tok.EncodeStretches(t.Context(), stretches, -1)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestEncodeStretches(t *testing.T) {
	tok, bare := qwen3(t), bareQwen3(t)
	id := func(name string) int32 {
		id, ok := tok.Added(name)
		if !ok {
			t.Fatalf("no token %s", name)
		}
		return id
	}
	start, end, think := id("<|im_start|>"), id("<|im_end|>"), id("<think>")
	ids := func(parts ...any) []int32 {
		var all []int32
		for _, p := range parts {
			switch p := p.(type) {
			case int32:
				all = append(all, p)
			case string:
				all = append(all, bare.Encode(p, true)...)
			}
		}
		return all
	}
	trusted := func(s string) Stretch { return Stretch{s, true} }
	user := func(s string) Stretch { return Stretch{s, false} }
	tests := []struct {
		name string
		in   []Stretch
		want []int32
	}{
		{"nothing", nil, nil},
		{"empty", []Stretch{trusted(""), user(""), trusted("")}, nil},
		{"template", []Stretch{trusted("<|im_start|>user\n"), user("hi"), trusted("<|im_end|>\n")}, ids(start, "user\nhi", end, "\n")},
		{"typed", []Stretch{trusted("<|im_start|>user\n"), user("a<|im_end|>b"), trusted("<|im_end|>\n")}, ids(start, "user\na<|im_end|>b", end, "\n")},
		{"typed, not special", []Stretch{user("a<think>b</think>")}, ids("a<think>b</think>")},
		{"trusted, not special", []Stretch{trusted("a<think>"), user("b")}, ids("a", think, "b")},
		{"across a mark", []Stretch{trusted("<|im_"), user("end|>")}, ids("<|im_end|>")},
		{"across the other mark", []Stretch{user("<|im_"), trusted("end|>")}, ids("<|im_end|>")},
		{"finished by the user", []Stretch{trusted("<|im_end|"), user(">")}, ids("<|im_end|>")},
		{"over trusted neighbours", []Stretch{trusted("<|im_"), trusted(""), trusted("end|>")}, []int32{end}},
		{"over an empty stretch of the user", []Stretch{trusted("<|im_"), user(""), trusted("end|>")}, []int32{end}},
		{"words join over marks", []Stretch{trusted("hel"), user("lo wor"), trusted("ld")}, ids("hello world")},
		{"newlines join over marks", []Stretch{trusted("a\n"), user("\n\nb")}, ids("a\n\n\nb")},
		{"normalised over marks", []Stretch{trusted("e"), user("\u0301")}, ids("é")},
		{"not normalised over tokens", []Stretch{trusted("e<|im_end|>"), user("\u0301")}, ids("e", end, "\u0301")},
		{"one character in two stretches", []Stretch{user("\xc3"), user("\xa9")}, ids("é")},
		{"broken character at a mark", []Stretch{trusted("\xc3"), user("\xa9")}, ids("\ufffd\ufffd")},
		{"tokens after each other", []Stretch{trusted("<|im_end|><|im_end|>"), user("<|im_end|>"), trusted("<|im_end|>")}, ids(end, end, "<|im_end|>", end)},
	}
	for _, test := range tests {
		if got := encodeStretches(t, tok, test.in...); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v (%q), want %v (%q)", test.name, got, tok.Decode(got), test.want, tok.Decode(test.want))
		}
	}
}

// However a text is cut and marked, the tokens are those of the whole text where no added token is typed, and none where one is.
func TestEncodeStretchesRandom(t *testing.T) {
	tok, bare := qwen3(t), bareQwen3(t)
	words := []string{"<|im_end|>", "<think>", "</think>", "<|im_start|>", "<", "|>", "im_end", " ", "\n", "hello", "e\u0301", "\u0301", "日本", "12", "'s", "\xff", "\U0001f600", "<|im_"}
	plain := words[4:17]
	r := rand.New(rand.NewPCG(3, 4))
	text := func(from []string) string {
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteString(from[r.IntN(len(from))])
		}
		return b.String()
	}
	cut := func(s string, mark func() bool) []Stretch {
		var out []Stretch
		for s != "" {
			n := 1 + r.IntN(len(s))
			out, s = append(out, Stretch{s[:n], mark()}), s[n:]
		}
		return out
	}
	for range 3000 {
		s := text(words)
		if got, want := encodeStretches(t, tok, cut(s, func() bool { return true })...), tok.Encode(s, true); !slices.Equal(got, want) {
			t.Fatalf("%q, all trusted: %v, want %v", s, got, want)
		}
		if got, want := encodeStretches(t, tok, cut(s, func() bool { return false })...), bare.Encode(s, true); !slices.Equal(got, want) {
			t.Fatalf("%q, not trusted: %v, want %v", s, got, want)
		}
		// Without user-defined tokens that is what Encode does with its flag off.
		if !strings.Contains(s, "think>") {
			if got, want := encodeStretches(t, tok, Stretch{s, false}), tok.Encode(s, false); !slices.Equal(got, want) {
				t.Fatalf("%q, not trusted: %v, want %v", s, got, want)
			}
		}
		// A prompt: added tokens by the template, text without them by the user.
		var prompt []Stretch
		whole := ""
		for range r.IntN(6) {
			a, b := replaceInvalid(text(words)), replaceInvalid(text(plain))
			if strings.HasSuffix(a, "<") || strings.HasSuffix(a, "<|im_") || strings.HasSuffix(a, "im_end") {
				a += "."
			}
			if strings.Contains(b, "im_end") || strings.HasPrefix(b, "|>") {
				b = "."
			}
			prompt = append(prompt, Stretch{a, true}, Stretch{b, false}, Stretch{".", false})
			whole += a + b + "."
		}
		if got, want := encodeStretches(t, tok, prompt...), tok.Encode(whole, true); !slices.Equal(got, want) {
			t.Fatalf("%+v: %v, want %v", prompt, got, want)
		}
	}
}

// Added tokens that overlap are found as Encode finds them.
func TestEncodeStretchesOverlap(t *testing.T) {
	v := byteVocabulary()
	v.Types = slices.Repeat([]int32{TypeNormal}, len(v.Tokens))
	for i, text := range []string{"<a", "a>", "<<", "<<<", ">a<"} {
		v.Tokens, v.Types = append(v.Tokens, text), append(v.Types, []int32{TypeControl, TypeUserDefined}[i%2])
	}
	tok := mustNew(t, v)
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		var stretches []Stretch
		text := ""
		for range r.IntN(8) {
			s := ""
			for range r.IntN(4) {
				s += string("<a> "[r.IntN(4)])
			}
			stretches, text = append(stretches, Stretch{s, true}), text+s
		}
		if got, want := encodeStretches(t, tok, stretches...), tok.Encode(text, true); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", text, got, want)
		}
	}
}

// The limit and the context are those of EncodeLimit.
func TestEncodeStretchesLimit(t *testing.T) {
	tok := qwen3(t)
	in := []Stretch{{"<|im_start|>user\n", true}, {strings.Repeat("antidisestablishmentarianismus ", 100), false}, {"<|im_end|><|im_end|>", true}}
	all := encodeStretches(t, tok, in...)
	for _, limit := range []int{0, 1, 2, 3, 500, len(all) - 2, len(all) - 1, len(all), len(all) + 1} {
		ids, err := tok.EncodeStretches(t.Context(), in, limit)
		if err != nil || len(ids) != min(limit+1, len(all)) || len(all) <= limit && !slices.Equal(ids, all) {
			t.Errorf("limit %d: %d tokens, %v", limit, len(ids), err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tok.EncodeStretches(ctx, in, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
