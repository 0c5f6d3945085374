package main

import (
	"context"
	"errors"
	"math"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/engine/tokenizer"
)

// A chatForm puts conversations into the form that a model was trained on.
type chatForm struct {
	tok      *tokenizer.Tokenizer
	template *chat.Template
	options  chat.Options
	trusted  bool // text of a client may spell control tokens
}

// chatForm is the form that settings ask for with a template.
func (a *app) chatForm(tok *tokenizer.Tokenizer, t *chat.Template) *chatForm {
	c := &chatForm{tok: tok, template: t, trusted: a.cfg.TrustSpecial}
	if a.cfg.Run.NoThink {
		c.options.Thinking = new(false)
	}
	return c
}

// prompt renders a conversation and turns it into tokens. It stops soon after limit tokens unless that is negative.
func (c *chatForm) prompt(ctx context.Context, messages []chat.Message, limit int) (*chat.Prompt, []int32, error) {
	p, err := c.template.Render(ctx, messages, c.options)
	if err != nil {
		return nil, nil, err
	}
	ids, err := engine.EncodePrompt(ctx, c.tok, p, c.trusted, limit)
	return p, ids, err
}

// openForm is the form of an engine's model, or nil with a note where it has none and prompts are used as they are.
func (a *app) openForm(e *engine.Engine) (*chatForm, error) {
	t, err := e.Template()
	switch {
	case errors.Is(err, engine.ErrNoTemplate):
		a.note("%s: the prompt is used as it is", err)
		return nil, nil
	case err != nil:
		return nil, usagef("%s: %s; give another with --chat-template-file, or the prompt as it is with --raw", a.modelName(), err)
	}
	return a.chatForm(e.Tokenizer(), t), nil
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
