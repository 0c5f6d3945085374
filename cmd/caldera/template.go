package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

// templateResult is what template --json prints.
type templateResult struct {
	Schema string `json:"schema"` // "caldera.template/1"
	Model  string `json:"model"`
	Prompt string `json:"prompt"`
	// Stretches are the parts of the prompt by who wrote them: the template, whose control tokens count, or the client.
	Stretches []templateStretch `json:"stretches"`
	IDs       []int32           `json:"ids"`
	Thinking  bool              `json:"thinking"` // the model was asked to think
}

type templateStretch struct {
	Text     string `json:"text"`
	Template bool   `json:"template"`
}

// A conversation is what template reads: a request of chat completions, as far as the template sees it.
type conversation struct {
	Messages  json.RawMessage `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Kwargs    json.RawMessage `json:"chat_template_kwargs"`
	Thinking  *bool           `json:"enable_thinking"`
	Effort    string          `json:"reasoning_effort"`
	Generates *bool           `json:"add_generation_prompt"`
}

func (a *app) templateCommand() *cobra.Command {
	var file string
	var ids bool
	cmd := &cobra.Command{
		Use:   "template [-m MODEL] [TEXT|-]",
		Short: "Show what a model's chat template makes of a conversation",
		Long: `Template prints the prompt that a model gets for a conversation, to its last character. The conversation is a question,
as an argument or from stdin, or with --messages a JSON file: a list of messages, or a whole request with messages,
tools, chat_template_kwargs, enable_thinking, reasoning_effort and add_generation_prompt. No device is needed.`,
		Example: `  caldera template -m model.gguf "Why is the sky blue?"
  caldera template -m model.gguf --messages request.json --ids`,
		Args: upToArgs(1, "put the text in quotes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := a.openFile(a.cfg.Model)
			if err != nil {
				return err
			}
			defer f.Close()
			tok, err := a.tokenizerOf(f)
			if err != nil {
				return err
			}
			source, err := a.templateSource()
			if err != nil {
				return err
			}
			t, err := engine.OpenTemplate(f, tok, source)
			if err != nil {
				return fmt.Errorf("%w: %s: %w", engine.ErrModel, a.modelName(), err)
			}
			form := a.chatForm(tok, t)
			var messages []chat.Message
			if file != "" {
				if len(args) > 0 {
					return usagef("--messages takes the conversation, and there is a text too")
				}
				messages, err = a.conversation(file, &form.options)
			} else {
				var text string
				text, err = a.textArgument(args)
				messages = []chat.Message{chat.NewMessage(chat.RoleUser, text)}
			}
			if err != nil {
				return err
			}
			p, tokens, err := form.prompt(cmd.Context(), messages, -1)
			if bad := new(chat.RequestError); errors.As(err, &bad) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			return a.printPrompt(p, tokens, ids)
		},
	}
	f := cmd.Flags()
	addSettings(f, "model", "tokenizer-nfc", "chat-template-file", "trust-special-tokens", "run.no-think")
	f.StringVar(&file, "messages", "", "read the conversation from a JSON `file`; - reads stdin")
	f.BoolVar(&ids, "ids", false, "print the prompt's token ids, separated by commas")
	a.addJSON(cmd, "caldera.template/1")
	return cmd
}

// conversation reads a list of messages, or a request that has one, and what else it says.
func (a *app) conversation(file string, o *chat.Options) ([]chat.Message, error) {
	text, err := a.readText(file)
	if err != nil {
		return nil, err
	}
	fail := func(err error) error { return usageError{fmt.Errorf("%s: %w", file, err)} }
	c := conversation{Messages: json.RawMessage(text)}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		c.Messages = nil
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return nil, fail(err)
		}
	}
	messages, err := chat.ParseMessages(string(c.Messages))
	if err != nil {
		return nil, fail(err)
	}
	if len(c.Tools) > 0 {
		if o.Tools, err = chat.ParseTools(string(c.Tools)); err != nil {
			return nil, fail(err)
		}
	}
	if len(c.Kwargs) > 0 {
		if o.Kwargs, err = chat.ParseKwargs(string(c.Kwargs)); err != nil {
			return nil, fail(err)
		}
	}
	if c.Thinking != nil {
		o.Thinking = c.Thinking
	}
	o.ReasoningEffort, o.GenerationPrompt = c.Effort, c.Generates
	return messages, nil
}

func (a *app) printPrompt(p *chat.Prompt, ids []int32, idsOnly bool) error {
	if a.json {
		r := templateResult{Schema: "caldera.template/1", Model: a.modelName(), Prompt: p.Text(), IDs: ids, Thinking: p.Thinking, Stretches: []templateStretch{}}
		for _, s := range p.Stretches {
			r.Stretches = append(r.Stretches, templateStretch{s.Text, s.Trusted})
		}
		return a.printJSON(r)
	}
	if idsOnly {
		_, err := fmt.Fprintln(a.out, joinIDs(ids))
		return err
	}
	w := textWriter{w: a.out, safe: isTerminal(a.out)}
	return w.write(p.Text())
}
