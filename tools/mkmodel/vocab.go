package main

import (
	"fmt"
)

// A vocabulary is a synthetic byte-level BPE one with the special tokens of the real one at their ids.
type vocabulary struct {
	pre      string
	tokens   []string
	types    []int32
	merges   []string
	eos, pad uint32
}

// Token types of tokenizer.ggml.token_type.
const (
	normal      = 1
	control     = 3
	userDefined = 4
	unused      = 5
)

const (
	minVocab = 1024
	maxVocab = 1 << 20
)

// specials are the added tokens of the vocabulary of 248320 in order, from id 248044 on (model-qwen35.md section
// 8), and of that of 151936, from 151643 on. The user-defined ones are those without bars.
var specials = map[string][]string{
	"qwen35": {
		"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
		"<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
		"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
		"<tool_response>", "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<|tts_0|>", "<|tts_1|>",
		"<|tts_2|>", "<|tts_3|>", "<|audio_pad|>",
	},
	"qwen2": {
		"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
		"<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
		"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
		"<tool_response>", "</tool_response>", "<think>", "</think>",
	},
}

// padding is how many ids the specials and the fillers after them take in the real vocabularies.
var padding = map[string]int{"qwen35": 248320 - 248044, "qwen2": 151936 - 151643}

// newVocabulary makes a vocabulary of the shape's size. Its plain tokens are the 256 bytes in GPT-2's order and
// then the words over a to z, shortest first, each also with a space before it; a merge makes each of them.
func newVocabulary(s shape) *vocabulary {
	v := &vocabulary{pre: "qwen35"}
	if s.arch == "qwen3next" {
		v.pre = "qwen2"
	}
	plain := s.vocab - padding[v.pre]
	v.bytes()
	v.words(plain)
	v.eos, v.pad = uint32(plain)+2, uint32(plain)
	for _, name := range specials[v.pre] {
		typ := int32(control)
		if name[1] != '|' {
			typ = userDefined
		}
		v.add(name, typ)
	}
	for len(v.tokens) < s.vocab {
		v.add(fmt.Sprintf("[PAD%d]", len(v.tokens)), unused)
	}
	return v
}

func (v *vocabulary) add(text string, typ int32) {
	v.tokens, v.types = append(v.tokens, text), append(v.types, typ)
}

// bytes adds a token for each byte: first those that stand for themselves, then the others as U+0100 and up.
func (v *vocabulary) bytes() {
	printable := func(b int) bool { return b >= 33 && b <= 126 || b >= 161 && b <= 172 || b >= 174 }
	for b := range 256 {
		if printable(b) {
			v.add(string(rune(b)), normal)
		}
	}
	for c := rune(0x100); len(v.tokens) < 256; c++ {
		v.add(string(c), normal)
	}
}

// words adds merges until there are n tokens.
func (v *vocabulary) words(n int) {
	const space = "\u0120"
	merge := func(left, right string) bool {
		if len(v.tokens) == n {
			return false
		}
		v.merges = append(v.merges, left+" "+right)
		v.add(left+right, normal)
		return true
	}
	letters := make([]string, 26)
	for i := range letters {
		letters[i] = string(rune('a' + i))
		if !merge(space, letters[i]) {
			return
		}
	}
	for shorter := letters; ; {
		var longer []string
		for _, w := range shorter {
			for _, c := range letters {
				if !merge(w, c) || !merge(space, w+c) {
					return
				}
				longer = append(longer, w+c)
			}
		}
		shorter = longer
	}
}
