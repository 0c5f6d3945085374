package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/sample"
)

// runResult is what run --json prints.
type runResult struct {
	Schema    string     `json:"schema"` // "caldera.run/1"
	Model     string     `json:"model"`  // path, or the demo's name
	Device    string     `json:"device"`
	Backend   string     `json:"backend"`  // "vulkan" or "reference"
	Software  bool       `json:"software"` // the device is a software implementation
	Prompt    string     `json:"prompt"`   // as the model got it
	PromptIDs []int32    `json:"prompt_ids"`
	Text      string     `json:"text"`          // what the model wrote
	IDs       []int32    `json:"ids"`           // its tokens, without the one that ended it
	Reason    string     `json:"finish_reason"` // "stop", "length" or "context"
	Reuse     string     `json:"reuse"`         // with a prefix cache: how much of the prompt was in it and, if little, why
	ReuseWord string     `json:"reuse_reason"`  // the reason in one word
	Seed      uint64     `json:"seed"`
	LoadMS    float64    `json:"load_ms"`
	Timings   runTimings `json:"timings"`
}

// runTimings has the names of llama-server's timings object.
type runTimings struct {
	CacheN             int     `json:"cache_n"`  // tokens of the prompt that the prefix cache had
	PromptN            int     `json:"prompt_n"` // tokens of the prompt that were computed
	PromptMS           float64 `json:"prompt_ms"`
	PromptPerSecond    float64 `json:"prompt_per_second"`
	PredictedN         int     `json:"predicted_n"`
	PredictedMS        float64 `json:"predicted_ms"`
	PredictedPerSecond float64 `json:"predicted_per_second"`
}

func newTimings(g engine.Result) runTimings {
	// The first token comes out of the prompt's step, and the token that ends an answer has one of its own.
	steps := g.Tokens
	if g.Reason != engine.ReasonStop {
		steps = max(steps-1, 0)
	}
	return runTimings{
		CacheN: g.Reused, PromptN: g.Processed, PromptMS: ms(g.PromptTime), PromptPerSecond: perSecond(g.Processed, g.PromptTime),
		PredictedN: g.Tokens, PredictedMS: ms(g.Time), PredictedPerSecond: perSecond(steps, g.Time),
	}
}

// ms is a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// perSecond is a rate, 0 when nothing was measured.
func perSecond(n int, d time.Duration) float64 {
	if n == 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func (a *app) runCommand() *cobra.Command {
	var prompt, parallel string
	cmd := &cobra.Command{
		Use:   "run [PROMPT]",
		Short: "Generate text from a prompt",
		Long: `Run generates text. The prompt is the argument, or stdin when the argument is "-" or when stdin is a pipe or a
file; the built-in demo has a default prompt. It is put into the model's chat form unless --raw is given. The
text streams to stdout; the device, the load time and the speeds go to stderr.

With --parallel the prompts are the lines of a file, JSON objects with "prompt", "prompt_ids" or "messages" and, if
wanted, "id", "max_tokens", "temperature" and other fields of the OpenAI API. They run side by side in --slots
sequences, and what they share at their beginnings is computed once. Results are JSON lines (schema
caldera.parallel/1) in the order in which they finish. A line that fails has an "error" and the others go on; the exit
code is 1 then. docs/parallel.md lists the fields.`,
		Example: `  caldera run
  caldera run "Count from 3 to 9."
  caldera run -m model.gguf --temp 0 -n 200 "Why is the sky blue?"
  caldera run -m model.gguf --raw "Once upon a time"
  caldera run -m model.gguf --parallel requests.jsonl --slots 8 > results.jsonl
  caldera run -m model.gguf --kv q8_0 --ctx 65536 --cache-disk ~/.cache/caldera:20G - < question.txt`,
		Args: upToArgs(1, "put the prompt in quotes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if parallel != "" {
				if len(args) > 0 || prompt != "" {
					return usagef("a prompt and --parallel were both given; use one")
				}
				if a.json {
					return usagef("--parallel prints JSON lines without --json")
				}
				return a.parallel(cmd.Context(), parallel)
			}
			if len(args) == 1 {
				if prompt != "" {
					return usagef("the prompt was given twice, as an argument and with --prompt")
				}
				prompt = args[0]
				if prompt == "" {
					return usagef("the prompt is empty")
				}
			}
			text, err := a.prompt(prompt)
			if err != nil {
				return err
			}
			return a.run(cmd.Context(), text)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&prompt, "prompt", "p", "", "the prompt `text`, instead of an argument; - reads stdin")
	f.StringVar(&parallel, "parallel", "", "run the requests of a `file` side by side, one JSON object a line; - reads stdin")
	a.addJSON(cmd, "caldera.run/1")
	addEngineSettings(f, "device", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty",
		"repeat-last-n", "seed", "run.predict", "run.no-think", "run.raw", "run.ignore-eos", "tokenizer-nfc", "chat-template-file", "trust-special-tokens",
		"slots", "queue", "max-latency", "cache-ram", "cache-disk", "cache-every")
	return cmd
}

// prompt returns the prompt text: what was given, else stdin, else the demo's default.
func (a *app) prompt(given string) (string, error) {
	if given != "" && given != "-" {
		return given, nil
	}
	if given == "-" || isPiped(a.in) {
		if given == "" {
			// A pipe that somebody forgot about would otherwise look like a hang.
			t := time.AfterFunc(2*time.Second, func() { a.note("reading the prompt from standard input ...") })
			defer t.Stop()
		}
		text, err := a.readText("-")
		if err != nil {
			return "", fmt.Errorf("reading the prompt: %w", err)
		}
		if text = strings.TrimSuffix(text, "\n"); text != "" {
			return text, nil
		}
	}
	if given == "" && a.isDemo() {
		a.note("prompt: %s", demo.DefaultPrompt)
		return demo.DefaultPrompt, nil
	}
	return "", usagef(`the prompt is empty; give one, for instance: caldera run -m %s "Why is the sky blue?"`, a.cfg.Model)
}

func (a *app) run(ctx context.Context, question string) (err error) {
	req, err := a.request()
	if err != nil {
		return err
	}
	c := a.engineConfig(0)
	c.Slots = a.cfg.Slots
	a.addCache(&c, false)
	e, err := a.openEngine(c)
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	tok := e.Tokenizer()
	if tok == nil {
		return fmt.Errorf("%w: %s has no vocabulary; caldera logits runs it on token ids", engine.ErrModel, a.modelName())
	}
	var form *chatForm
	if !a.cfg.Run.Raw {
		if form, err = a.openForm(e); err != nil {
			return err
		}
	}
	text := question
	if form == nil {
		req.Prompt, err = encodePrompt(ctx, tok, question, -1)
	} else {
		var p *chat.Prompt
		if p, req.Prompt, err = form.prompt(ctx, []chat.Message{chat.NewMessage(chat.RoleUser, question)}, -1); err == nil {
			text = p.Text()
		}
	}
	if err != nil {
		return err
	}
	if req.IgnoreEOG {
		neverEnd(tok, &req.Sample)
	}
	a.noteDevice(e)
	a.log.Debug().Uint64("seed", req.Sample.Seed).Float32("temp", req.Sample.Temperature).Msg("sampling")
	r := runResult{
		Schema: "caldera.run/1", Model: a.modelName(), Device: e.Device(), Backend: a.cfg.Backend, Software: e.Software(),
		Prompt: text, PromptIDs: req.Prompt, IDs: []int32{}, Seed: req.Sample.Seed, LoadMS: e.LoadTime().Seconds() * 1e3,
	}
	w := textWriter{w: a.out, safe: isTerminal(a.out)}
	var written strings.Builder
	stream, err := e.Generate(ctx, req)
	if err != nil {
		return err
	}
	var werr error
	for t, err := range stream.Tokens() {
		if err != nil {
			break // Result tells
		}
		if t.ID >= 0 {
			r.IDs = append(r.IDs, t.ID)
		}
		written.WriteString(t.Text)
		if !a.json {
			if werr = w.write(t.Text); werr != nil {
				break
			}
		}
	}
	g, err := stream.Result()
	err = cmp.Or(werr, err)
	r.Text, r.Reason, r.Timings = written.String(), g.Reason, newTimings(g)
	r.Reuse, r.ReuseWord = g.Reuse, g.ReuseReason
	if !a.json && r.Text != "" && !strings.HasSuffix(r.Text, "\n") {
		fmt.Fprintln(a.out)
	}
	if g.PromptTime > 0 {
		a.noteSpeeds(r)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	return nil
}

// request turns settings into a request without a prompt.
func (a *app) request() (engine.Request, error) {
	c := &a.cfg
	p := sample.Params{
		Temperature: float32(c.Temp), TopK: c.TopK, TopP: float32(c.TopP), MinP: float32(c.MinP),
		RepetitionPenalty: float32(c.RepeatPenalty), PresencePenalty: float32(c.PresencePenalty), FrequencyPenalty: float32(c.FrequencyPenalty),
		RepeatLastN: c.RepeatLastN, Seed: uint64(c.Seed),
	}
	if a.isDemo() && a.isDefault("temp") {
		p.Temperature = 0 // the demo knows its answers, and is too small to survive a bad draw
	}
	if c.Seed < 0 {
		p.Seed = rand.Uint64() >> 11 // exact in any JSON reader
	}
	r := engine.Request{Sample: p, MaxTokens: max(c.Run.Predict, 0), IgnoreEOG: c.Run.IgnoreEOS}
	if c.Run.Predict == 0 || c.Run.Predict < -1 {
		return r, usagef("--predict is %d; use 1 or more, or -1 for no limit", c.Run.Predict)
	}
	return r, p.Validate()
}

// noteSpeeds tells how fast it was and why it ended.
func (a *app) noteSpeeds(r runResult) {
	t := r.Timings
	reused := ""
	if t.CacheN > 0 {
		reused = fmt.Sprintf(", %d more were in the prefix cache", t.CacheN)
	}
	a.note("prompt:     %d tokens in %.3f s, %s%s", t.PromptN, t.PromptMS/1e3, speed(t.PromptPerSecond), reused)
	end := map[string]string{
		engine.ReasonLength:  ", ended by --predict",
		engine.ReasonContext: ", ended by a full context: raise --ctx",
	}[r.Reason]
	a.note("generation: %d tokens in %.3f s, %s%s", t.PredictedN, t.PredictedMS/1e3, speed(t.PredictedPerSecond), end)
}

// speed renders tokens a second with digits that mean something.
func speed(v float64) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.2g tokens/s", v)
	}
	return fmt.Sprintf("%.1f tokens/s", v)
}
