package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

const chatHelp = `/help            this list
/clear           begin a new conversation
/system [TEXT]   set the system prompt, or show it, and begin a new conversation if it changes
/think on|off    let the model think before it answers, or not
/undo            take back the last question and its answer
/exit            leave; so do an end of file (Ctrl-D) and an interrupt (Ctrl-C)

An interrupt while the model answers stops the answer. A line that ends with \ goes on in the next one.`

func (a *app) chatCommand() *cobra.Command {
	var system string
	cmd := &cobra.Command{
		Use:   "chat [-m MODEL]",
		Short: "Talk with a model",
		Long: `Chat is a conversation in the terminal. Answers go to stdout, thinking and all else to stderr. Each turn goes on from what was
computed for those before. Without a terminal, each line of stdin is a question.

` + chatHelp,
		Example: `  caldera chat -m model.gguf --system "Answer in one sentence."`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.chat(cmd.Context(), system) },
	}
	f := cmd.Flags()
	f.StringVar(&system, "system", "", "the system prompt, a `text`")
	addEngineSettings(f, "device", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty",
		"repeat-last-n", "seed", "run.predict", "run.no-think", "tokenizer-nfc", "chat-template-file", "trust-special-tokens",
		"cache-ram", "cache-disk", "cache-every")
	return cmd
}

// A talk is a conversation with a model.
type talk struct {
	a       *app
	e       *engine.Engine
	form    *chatForm
	req     engine.Request // all but the prompt
	system  string
	turns   []chat.Message // without the system prompt
	stopped *interrupts
}

func (a *app) chat(ctx context.Context, system string) (err error) {
	req, err := a.request()
	if err != nil {
		return err
	}
	c := a.engineConfig(0)
	c.Slots = 1
	a.addCache(&c, true)
	e, err := a.openEngine(c)
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	form, err := a.openForm(e)
	if err != nil {
		return err
	}
	if form == nil {
		return fmt.Errorf("%w: %s cannot chat; caldera run goes on from a text", engine.ErrModel, a.modelName())
	}
	a.noteDevice(e)
	lines := a.newLines(ctx)
	if lines.terminal != nil {
		a.note("/help says what else there is")
	}
	t := &talk{a: a, e: e, form: form, req: req, system: system, stopped: interruptsOf(ctx)}
	for {
		line, err := lines.read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch done, err := t.take(ctx, line); {
		case err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrClosed) && recoverable(err):
			a.note("%s", printable(err.Error()))
		case err != nil:
			return err
		case done:
			return nil
		}
	}
}

// recoverable reports whether a conversation can go on after an error: one that the question is to blame for.
func recoverable(err error) bool {
	bad := new(chat.RequestError)
	return errors.Is(err, engine.ErrContextFull) || errors.As(err, &bad)
}

// take does what a line asks for and reports whether it ends the conversation.
func (t *talk) take(ctx context.Context, line string) (done bool, err error) {
	text := strings.TrimSpace(line)
	if text == "" {
		return false, nil
	}
	command, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	switch command {
	case "/help", "/?":
		t.a.note("%s", chatHelp)
	case "/exit", "/quit", "/bye":
		return true, nil
	case "/clear":
		t.turns = nil
	case "/undo":
		t.turns = t.turns[:max(0, len(t.turns)-2)]
		t.a.note("the conversation has %d turns", len(t.turns)/2)
	case "/system":
		if rest == "" {
			t.a.note("system prompt: %s", cmpOr(t.system, "none"))
		} else if rest != t.system {
			t.system, t.turns = rest, nil
		}
	case "/think":
		if rest != "on" && rest != "off" {
			t.a.note("/think on, or /think off")
			break
		}
		if !t.form.template.Thinks() {
			t.a.note("this model's template does not switch thinking")
			break
		}
		t.form.options.Thinking = new(rest == "on")
	default:
		if strings.HasPrefix(text, "/") && !strings.Contains(command[1:], "/") {
			t.a.note("there is no command %s; /help lists them", printable(command))
			break
		}
		return false, t.ask(ctx, line)
	}
	return false, nil
}

// cmpOr is the first text that is not empty, escaped for the terminal.
func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return printable(a)
}

// ask puts a question and writes the answer as it comes. The question and what there is of an answer become part of the
// conversation, unless the question could not be put.
func (t *talk) ask(ctx context.Context, question string) error {
	messages := t.turns
	if t.system != "" {
		messages = append([]chat.Message{chat.NewMessage(chat.RoleSystem, t.system)}, messages...)
	}
	user := chat.NewMessage(chat.RoleUser, question)
	prompt, ids, err := t.form.prompt(ctx, append(messages[:len(messages):len(messages)], user), -1)
	if err != nil {
		return err
	}
	own, done := t.stopped.catch(ctx)
	defer done()
	req := t.req
	req.Prompt = ids
	stream, err := t.e.Generate(own, req)
	if errors.Is(err, engine.ErrContextFull) {
		return fmt.Errorf("%w; /clear begins a new conversation, /undo takes a turn back", err)
	}
	if err != nil {
		return err
	}
	answer, werr := t.write(stream, chat.NewParser(chat.ParserOptions{Think: prompt.Think}))
	g, err := stream.Result()
	if werr != nil {
		return werr
	}
	switch {
	case err != nil && own.Err() != nil && ctx.Err() == nil:
		t.a.note("stopped")
	case err != nil:
		return err
	case g.Reason == engine.ReasonLength:
		t.a.note("ended by --predict")
	case g.Reason == engine.ReasonContext:
		t.a.note("ended by a full context; raise --ctx, or /clear begins a new conversation")
	}
	reply := chat.NewMessage(chat.RoleAssistant, "")
	if answer.Content != nil {
		reply.Text = answer.Content
	}
	reply.Reasoning = answer.Reasoning
	t.turns = append(t.turns, user, reply)
	t.a.log.Debug().Int("prompt", g.PromptTokens).Int("reused", g.Reused).Int("tokens", g.Tokens).Str("reuse", g.Reuse).Msg("turn")
	return nil
}

// write writes an answer as it comes: reasoning to stderr, the rest to stdout.
func (t *talk) write(stream *engine.Stream, p *chat.Parser) (answer chat.Answer, err error) {
	out := textWriter{w: t.a.out, safe: isTerminal(t.a.out)}
	aside := textWriter{w: t.a.errw, safe: isTerminal(t.a.errw)}
	var thinking, last string
	put := func(events []chat.Event) {
		answer.Add(events)
		for _, e := range events {
			switch {
			case err != nil:
			case e.Kind == chat.EventReasoning && !t.a.cfg.Quiet:
				if thinking == "" && t.a.errColor {
					_, err = io.WriteString(t.a.errw, "\x1b["+dim+"m")
				}
				thinking = e.Text
				err = errors.Join(err, aside.write(e.Text))
			case e.Kind == chat.EventContent:
				if thinking != "" {
					err = t.endThinking(thinking)
					thinking = ""
				}
				last = e.Text
				err = errors.Join(err, out.write(e.Text))
			}
		}
	}
	for tok, terr := range stream.Tokens() {
		if terr != nil || err != nil {
			break // Result tells
		}
		put(p.Write(tok.Text))
	}
	put(p.Finish(false))
	if thinking != "" {
		err = errors.Join(err, t.endThinking(thinking))
	}
	if last != "" && !strings.HasSuffix(last, "\n") {
		err = errors.Join(err, out.write("\n"))
	}
	return answer, err
}

// endThinking sets what comes apart from the reasoning, which ended with a text.
func (t *talk) endThinking(last string) error {
	end := "\n"
	if strings.HasSuffix(last, "\n") {
		end = ""
	}
	if t.a.errColor {
		end += "\x1b[0m"
	}
	_, err := io.WriteString(t.a.errw, end)
	return err
}
