package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStreamDecoder(t *testing.T) {
	tok := mustNew(t, byteVocabulary())
	for _, test := range []struct {
		tokens []string // bytes of each token
		want   []string // text after each, and at the end
	}{
		{[]string{"\xf0", "\x9f\x98\x80"}, []string{"", "😀", ""}},
		{[]string{"\xf0\x9f", "\x98\x80"}, []string{"", "😀", ""}},
		{[]string{"\xf0\x9f\x98", "\x80"}, []string{"", "😀", ""}},
		{[]string{"\xf0", "\x9f", "\x98", "\x80"}, []string{"", "", "", "😀", ""}},
		{[]string{"\xec", "\x82\xbc\xec\x82", "\xbc"}, []string{"", "삼", "삼", ""}},
		{[]string{"a\xf0\x9f", "\x98\x80 b"}, []string{"a", "😀 b", ""}},
		{[]string{"ok", "\xf0\x9f"}, []string{"ok", "", "\ufffd"}},
		{[]string{"ok\xf0\x9f\x98"}, []string{"ok", "\ufffd"}},
		{[]string{"a\xffb"}, []string{"a\ufffdb", ""}},
		{[]string{"\xf0\x9f", "a"}, []string{"", "\ufffda", ""}},
		{[]string{"\xf0\x9f", "\xf0\x9f", "\x98\x80"}, []string{"", "\ufffd", "😀", ""}},
		{[]string{"\xe0", "\x80"}, []string{"", "\ufffd\ufffd", ""}}, // no sequence starts so
		{[]string{"\xed\xa0\x80"}, []string{"\ufffd\ufffd\ufffd", ""}},
		{[]string{"\xc0", "\xf5"}, []string{"\ufffd", "\ufffd", ""}},
		{[]string{"", "a", ""}, []string{"", "a", "", ""}},
	} {
		d := tok.NewStreamDecoder()
		for range 2 { // the second time after a Flush
			for i, s := range test.tokens {
				if got := d.PushBytes([]byte(s)); got != test.want[i] {
					t.Errorf("%q: push %d gave %q, want %q", test.tokens, i, got, test.want[i])
				}
			}
			if got, want := d.Flush(), test.want[len(test.tokens)]; got != want {
				t.Errorf("%q: flush gave %q, want %q", test.tokens, got, want)
			}
		}
		var ids []int32
		for _, c := range []byte(strings.Join(test.tokens, "")) {
			ids = append(ids, int32(c))
		}
		if got, want := tok.Decode(ids), strings.Join(test.want, ""); got != want {
			t.Errorf("%q: decoded to %q, want %q", test.tokens, got, want)
		}
	}
}

// Whatever the bytes and wherever they are cut, the stream is the decoding of the whole.
func TestStreamDecoderMatchesDecode(t *testing.T) {
	tok := mustNew(t, byteVocabulary())
	rng := rand.New(rand.NewPCG(7, 8))
	pool := []byte("a\x80\xbf\xc3\xa9\xe0\xa0\xe4\xb8\xad\xed\xf0\x90\x9f\x98\xf4\x8f\xff")
	for range 30_000 {
		var ids []int32
		for n := rng.IntN(12); n > 0; n-- {
			ids = append(ids, int32(pool[rng.IntN(len(pool))]))
		}
		want := tok.Decode(ids)
		d := tok.NewStreamDecoder()
		var got strings.Builder
		for i := 0; i < len(ids); {
			n := 1 + rng.IntN(len(ids)-i)
			s := d.PushBytes(tok.AppendBytes(nil, ids[i:i+n]))
			if !utf8.ValidString(s) || d.Pending() > 3 {
				t.Fatalf("%x: %q, %d bytes held back", ids, s, d.Pending())
			}
			got.WriteString(s)
			i += n
		}
		got.WriteString(d.Flush())
		if got.String() != want {
			t.Fatalf("%x: streamed %q, want %q", ids, got.String(), want)
		}
	}
}
