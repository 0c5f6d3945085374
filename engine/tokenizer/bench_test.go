package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// texts returns about 1 MiB of ordinary text of several kinds: Go source of the standard library, and
// the words of the test vectors in a fixed shuffled order.
func texts(tb testing.TB) map[string]string {
	const size = 1 << 20
	fill := func(parts []string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(parts[i%len(parts)])
		}
		return b.String()
	}
	all := make(map[string]string)
	// Code and prose of the repository itself: what is always there.
	var code []string
	files, _ := filepath.Glob("../../*/*.go")
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		code = append(code, string(data))
	}
	all["code"] = fill(code)
	prose, err := os.ReadFile("../../LICENSE")
	if err != nil {
		tb.Fatal(err)
	}
	all["english"] = fill([]string{string(prose)})
	var cjk, mixed []string
	for _, v := range readLines[vector](tb, "vectors.jsonl") {
		if strings.HasPrefix(v.Cat, "fuzz") || v.Cat == "special" || v.Hex != "" {
			continue
		}
		mixed = append(mixed, v.Text+" ")
		if v.Cat == "cjk" {
			cjk = append(cjk, v.Text)
		}
	}
	all["cjk"], all["mixed"] = fill(cjk), fill(mixed)
	return all
}

func names(m map[string]string) []string {
	var all []string
	for n := range m {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

func benchEncode(b *testing.B, tok *Tokenizer) {
	all := texts(b)
	for _, n := range names(all) {
		b.Run(n, func(b *testing.B) {
			b.SetBytes(int64(len(all[n])))
			for b.Loop() {
				tok.Encode(all[n], true)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) { benchEncode(b, qwen3(b)) }

func BenchmarkEncodeNoCache(b *testing.B) {
	benchEncode(b, mustNew(b, qwen3Vocabulary(), WithoutCache()))
}

func BenchmarkSplit(b *testing.B) {
	split := newSplitter(true)
	all := texts(b)
	for _, n := range names(all) {
		b.Run(n, func(b *testing.B) {
			b.SetBytes(int64(len(all[n])))
			for b.Loop() {
				for s := all[n]; s != ""; {
					s = s[split.next(s):]
				}
			}
		})
	}
}

// Hostile input: the time for each must be far below a second at 1 MiB and grow in
// proportion from there.
func BenchmarkRepeated(b *testing.B) {
	tok := qwen3(b)
	units := []string{"a", " ", "\n", "!", "=", "中", "ab", " \n", "'s", "0", "\u0301", "e\u0301", "\u0301\u0323", "\u1161", "<|im_end", "<|im_end|>", "\xff", "aB3 é"}
	for _, u := range units {
		for _, mib := range []int{1, 4} {
			if mib > 1 && len(u) > 1 && u != "中" {
				continue
			}
			text := strings.Repeat(u, mib<<20/len(u))
			b.Run(fmt.Sprintf("%+q/%dMiB", u, mib), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tok.Encode(text, true)
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := qwen3(b)
	ids := tok.Encode(texts(b)["mixed"], true)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			tok.Decode(ids)
		}
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			d := tok.NewStreamDecoder()
			for _, id := range ids {
				d.Push(id)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/token")
	})
}

func BenchmarkNew(b *testing.B) {
	v := qwen3Vocabulary()
	for b.Loop() {
		mustNew(b, v)
	}
}
