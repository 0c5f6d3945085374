// Package demo carries a small trained model inside the program, so that Caldera can show and measure itself without a download.
//
// The model is of the qwen35moe architecture: 11.6 million weights in Q8_0, eight layers (two of them attention) and a multi-token
// prediction block, a vocabulary of 4096. It learned English prose of the public domain and synthetic dialogues, and it
// answers small sums and simple facts in its chat form; its free prose has the shape of English and no sense.
// LICENSE.md says where it comes from: it is offered as CC0-1.0. The programs that made it are in tools/demo.
package demo

import _ "embed"

// Name is what the model is called where one would name a file.
const Name = "demo-q8_0"

// DefaultPrompt is a question that the model answers rightly ("12 + 7 = 19"), as a user would type it. [Chat] puts it
// into the form that the model was trained on.
const DefaultPrompt = "What is 12+7?"

// EndOfTurn is the text of the special token that ends an answer; it is the file's end-of-sequence token.
const EndOfTurn = "<|im_end|>"

// Questions are further prompts that the model answers well: sums, facts, counting, a story. [DefaultPrompt] is the first.
var Questions = []string{
	DefaultPrompt,
	"Capital of France?",
	"Count from 3 to 9.",
	"Reverse abc",
	"Tell me a story about a fox.",
}

// Licence is the SPDX identifier of the model's licence.
const Licence = "CC0-1.0"

//go:embed demo-q8_0.gguf
var model []byte

// Model is the model as a GGUF file, 12.6 MB. The bytes are the program's own and are shared by all callers: they must not be changed.
func Model() []byte { return model }

// Chat renders one question in the model's chat form, up to where the answer begins, as the file's chat template does
// with thinking switched off. The markers in it are special tokens of the model's tokenizer.
func Chat(question string) string {
	return "<|im_start|>user\n" + question + EndOfTurn + "\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
}
