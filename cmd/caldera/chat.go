package main

import (
	"context"
	"math"
	"strings"

	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/engine/tokenizer"
)

// A chatMessage is one turn of a conversation.
type chatMessage struct{ role, text string }

// hasChatMarkers reports whether a vocabulary has what ChatML is made of.
func hasChatMarkers(tok *tokenizer.Tokenizer) bool {
	_, start := tok.Added("<|im_start|>")
	_, end := tok.Added("<|im_end|>")
	return start && end
}

// renderChat puts a conversation into plain ChatML, up to where the model's answer begins.
func renderChat(messages []chatMessage, closeThinking bool) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString("<|im_start|>" + m.role + "\n" + m.text + "<|im_end|>\n")
	}
	b.WriteString("<|im_start|>assistant\n")
	if closeThinking {
		b.WriteString("<think>\n\n</think>\n\n")
	}
	return b.String()
}

// closesThinking reports whether the model's thinking is closed before it begins: where --no-think says so, and for
// the demo, which learned no thinking.
func (a *app) closesThinking(tok *tokenizer.Tokenizer) bool {
	_, thinks := tok.Added("<think>")
	return thinks && (a.cfg.Run.NoThink || a.isDemo())
}

// encodePrompt turns a prompt's text into tokens, the vocabulary's first token included. It stops soon after limit
// tokens unless that is negative.
func encodePrompt(ctx context.Context, tok *tokenizer.Tokenizer, text string, limit int) ([]int32, error) {
	ids, err := tok.EncodeLimit(ctx, text, true, limit)
	if err == nil && tok.AddBOS() {
		ids = append([]int32{tok.BOS()}, ids...)
	}
	return ids, err
}

// neverEnd keeps the tokens that end an answer from being drawn, as llama.cpp does: going on after an end would only
// repeat it.
func neverEnd(tok *tokenizer.Tokenizer, p *sample.Params) {
	for _, id := range tok.EOG() {
		p.LogitBias = append(p.LogitBias[:len(p.LogitBias):len(p.LogitBias)], sample.Bias{ID: id, Value: float32(math.Inf(-1))})
	}
}
