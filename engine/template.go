package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/gguf"
)

// ErrNoTemplate reports that conversations cannot be put into a form that the model knows.
var ErrNoTemplate = errors.New("the model has no chat template")

// OpenTemplate compiles a chat template: the source if it is not empty, else the model file's, else ChatML where the vocabulary
// has its markers. The error wraps [ErrNoTemplate] where there is none of them, and is the template's own where it does
// not compile.
func OpenTemplate(f *gguf.File, tok *tokenizer.Tokenizer, source string) (*chat.Template, error) {
	if tok == nil {
		return nil, fmt.Errorf("%w: it has no vocabulary", ErrNoTemplate)
	}
	name := "chat template"
	if source == "" {
		var err error
		if source, err = optional(f.String("tokenizer.chat_template")); err != nil {
			return nil, fmt.Errorf("tokenizer.chat_template: %w", err)
		}
		name = "tokenizer.chat_template"
	}
	if source == "" {
		_, start := tok.Added("<|im_start|>")
		_, end := tok.Added("<|im_end|>")
		if !start || !end {
			return nil, fmt.Errorf("%w, and its vocabulary lacks the markers of ChatML", ErrNoTemplate)
		}
		source, name = chat.ChatML, "ChatML"
	}
	var opts []chat.TemplateOption
	for name, id := range map[string]int32{"bos_token": tok.BOS(), "eos_token": tok.EOS(), "pad_token": tok.Pad()} {
		if id >= 0 {
			opts = append(opts, chat.WithToken(name, string(tok.Piece(id))))
		}
	}
	return chat.Compile(name, source, opts...)
}

// Template returns the model's chat template, or why there is none.
func (e *Engine) Template() (*chat.Template, error) { return e.template, e.templateErr }

// EncodePrompt returns the tokens of a rendered conversation, the vocabulary's first token included. Control tokens are what the
// template wrote and never what a client's text spells, unless trusted says that they may be. It stops soon after limit
// tokens unless that is negative.
func EncodePrompt(ctx context.Context, tok *tokenizer.Tokenizer, p *chat.Prompt, trusted bool, limit int) ([]int32, error) {
	stretches := make([]tokenizer.Stretch, len(p.Stretches))
	for i, s := range p.Stretches {
		stretches[i] = tokenizer.Stretch{Text: s.Text, Trusted: s.Trusted || trusted}
	}
	ids, err := tok.EncodeStretches(ctx, stretches, limit)
	if err == nil && tok.AddBOS() && (len(ids) == 0 || ids[0] != tok.BOS()) {
		ids = append([]int32{tok.BOS()}, ids...)
	}
	return ids, err
}
