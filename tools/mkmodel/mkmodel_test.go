package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
)

// small are options for a file of some megabytes.
func small(name, mix string) options {
	return options{Model: name, Layers: 4, Experts: 2, Vocab: 2048, Mix: mix, Seed: 7}
}

// every architecture's file binds as a model, has a tokenizer, and decodes what it encodes.
func TestFilesOpen(t *testing.T) {
	for _, name := range []string{"35B-A3B", "80B-A3B", "0.8B"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			o := small(name, "Q4_K_M")
			if err := write(path, o); err != nil {
				t.Fatal(err)
			}
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			m, err := model.New(f)
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Warnings) > 0 || len(m.Unused) > 0 {
				t.Errorf("warnings %q, unused tensors %q", m.Warnings, m.Unused)
			}
			if m.Layers != 4 || m.Vocab != 2048 || m.Recurrent[2] != true || m.Recurrent[3] != false {
				t.Errorf("%d layers, vocabulary %d, recurrent %v", m.Layers, m.Vocab, m.Recurrent)
			}
			tok, err := engine.OpenTokenizer(f, false)
			if err != nil {
				t.Fatal(err)
			}
			const text = "<|im_start|>user\nhello  wörld 3\x00<|im_end|>"
			ids := tok.Encode(text, true)
			d := tok.NewStreamDecoder()
			var got strings.Builder
			for _, id := range ids {
				got.WriteString(d.Push(id))
			}
			got.WriteString(d.Flush())
			if want := "user\nhello  wörld 3\x00"; !strings.Contains(got.String(), want) {
				t.Errorf("%q decodes to %q", text, got.String())
			}
			if len(ids) >= len(text) {
				t.Errorf("%d tokens for %d bytes: nothing was merged", len(ids), len(text))
			}
		})
	}
}

// The real vocabulary's well-known ids are those of model-qwen35.md section 8.
func TestVocabularyIDs(t *testing.T) {
	v := newVocabulary(shape{arch: "qwen35moe", vocab: 248320})
	if len(v.tokens) != 248320 || len(v.types) != 248320 || v.eos != 248046 || v.pad != 248044 {
		t.Errorf("%d tokens, %d types, end %d, padding %d", len(v.tokens), len(v.types), v.eos, v.pad)
	}
	for id, want := range map[int]string{
		198: "\u010a", 248044: "<|endoftext|>", 248045: "<|im_start|>", 248046: "<|im_end|>", 248058: "<tool_call>",
		248068: "<think>", 248076: "<|audio_pad|>", 248319: "[PAD248319]",
	} {
		if v.tokens[id] != want {
			t.Errorf("token %d is %q, want %q", id, v.tokens[id], want)
		}
	}
}

// The same options give the same bytes and another seed gives others.
func TestDeterministic(t *testing.T) {
	dir := t.TempDir()
	read := func(name string, o options) []byte {
		path := filepath.Join(dir, name)
		if err := write(path, o); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	o := small("0.8B", "Q8_0")
	a, b := read("a", o), read("b", o)
	o.Seed++
	c := read("c", o)
	if !bytes.Equal(a, b) {
		t.Error("two files of the same options differ")
	}
	same := 0
	for i := range a {
		if i < len(c) && a[i] == c[i] {
			same++
		}
	}
	if same > len(a)/4 {
		t.Errorf("%d of %d bytes do not depend on the seed", same, len(a))
	}
}

// Blocks of every type that can be decoded have the standard deviation asked for, and no mean to speak of.
func TestBlockScales(t *testing.T) {
	const std, blocks = 1.0 / 45, 512
	seen := 0
	for typ := range fileTypes {
		if typ == quant.F32 || typ == quant.F16 || typ == quant.BF16 || !typ.CanDequantize() {
			continue
		}
		seen++
		b, err := newBlock(typ, std)
		if err != nil {
			t.Errorf("%v: %v", typ, err)
			continue
		}
		raw := make([]byte, blocks*b.bytes)
		b.fill(raw, 99)
		values := make([]float32, blocks*typ.BlockSize())
		if err := quant.Dequantize(typ, values, raw); err != nil {
			t.Errorf("%v: %v", typ, err)
			continue
		}
		mean, sum := 0.0, 0.0
		for _, v := range values {
			mean += float64(v)
			sum += float64(v) * float64(v)
		}
		n := float64(len(values))
		mean, got := mean/n, math.Sqrt(sum/n)
		tol := 0.15
		if typ == quant.MXFP4 {
			tol = 0.42 // its scales are powers of two
		}
		if !(math.Abs(got/std-1) < tol) {
			t.Errorf("%v: standard deviation %.4g, want %.4g", typ, got, std)
		}
		if !(math.Abs(mean) < std/4) {
			t.Errorf("%v: mean %.4g with a standard deviation of %.4g", typ, mean, std)
		}
	}
	if seen < 5 {
		t.Errorf("only %d types were looked at", seen)
	}
}

// The Q4_K_M mix of the whole 35B-A3B has the size that the reference quantiser's rules give (model-qwen35.md 3.4:
// 19.70 GiB) and its number of tensors (3.2: 733, 301 of them F32).
func TestMixSize(t *testing.T) {
	for _, x := range []struct {
		model, mix   string
		gib          float64
		tensors, f32 int
	}{
		{"35B-A3B", "Q4_K_M", 19.70, 733, 301}, {"35B-A3B", "Q8_0", 34.36, 733, 301}, {"35B-A3B", "MXFP4_MOE", 18.42, 733, 301},
		{"27B", "Q4_K_M", 15.40, 851, 353}, {"9B", "Q4_K_M", 5.23, 427, 177}, {"0.8B", "Q4_K_M", 0.48, 320, 133},
		{"80B-A3B", "Q4_K_M", 45.15, 843, 361},
	} {
		s, err := find(options{Model: x.model})
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMix(x.mix)
		if err != nil {
			t.Fatal(err)
		}
		bytes, f32 := uint64(0), 0
		for _, tn := range s.tensors() {
			typ := quant.F32
			if tn.kind == matrix {
				if typ, err = m.pick(tn, s); err != nil {
					t.Fatal(err)
				}
			} else {
				f32++
			}
			rows := uint64(1)
			for _, d := range tn.dims[1:] {
				rows *= d
			}
			row, err := typ.RowBytes(tn.dims[0])
			if err != nil {
				t.Fatal(err)
			}
			bytes += rows * row
		}
		if gib := float64(bytes) / (1 << 30); math.Abs(gib-x.gib) > 0.006 {
			t.Errorf("%s %s: %.3f GiB, want %.2f", x.model, x.mix, gib, x.gib)
		}
		if n := len(s.tensors()); n != x.tensors || f32 != x.f32 {
			t.Errorf("%s: %d tensors, %d F32, want %d and %d", x.model, n, f32, x.tensors, x.f32)
		}
	}
}
