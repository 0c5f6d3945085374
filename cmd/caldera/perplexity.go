package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine"
)

// perplexityResult is what perplexity --json prints.
type perplexityResult struct {
	Schema   string             `json:"schema"` // "caldera.perplexity/1"
	Model    string             `json:"model"`
	Device   string             `json:"device"`
	Backend  string             `json:"backend"`
	KV       string             `json:"kv"`
	KVSink   int                `json:"kv_sink"`   // tokens that stay F16 of a quantised cache
	KVWindow int                `json:"kv_window"` // likewise
	Tokens   int                `json:"tokens"`    // of the text
	Scored   int                `json:"scored"`    // tokens with a likelihood: all of a chunk but its first
	Chunk    int                `json:"chunk"`     // tokens of a chunk
	Chunks   int                `json:"chunks"`    // full chunks; what is left over is not scored
	NLLMean  float64            `json:"nll_mean"`  // nats
	PPL      float64            `json:"ppl"`
	Seconds  float64            `json:"seconds"`
	TokensPS float64            `json:"tokens_per_second"`
	Base     string             `json:"base,omitempty"` // file of the scores that Against compares with
	Against  *engine.Comparison `json:"against,omitempty"`
}

// perplexityFlags are the flags of perplexity that are no settings.
type perplexityFlags struct {
	file, tokens    string
	nll, save, base string
	chunks          int
}

func (a *app) perplexityCommand() *cobra.Command {
	var x perplexityFlags
	cmd := &cobra.Command{
		Use:   "perplexity [-m MODEL] (--file TEXT | --tokens-file FILE)",
		Short: "Measure how well a model predicts a text",
		Long: `Perplexity cuts a text into chunks, feeds each from an empty state, and scores every token of a chunk but the
first given those before it. A last chunk that is not full is left out. Lower is better; compare only results
with the same text, vocabulary and chunk.

--save keeps the scores of every token, and --base compares with scores that were saved: how much the perplexity
and the tokens' likelihoods differ, and how often the most likely token is the same.`,
		Example: `  caldera perplexity --file val.txt
  caldera perplexity -m model.gguf --tokens-file val.u16 --chunk 512 --nll-out nll.f32 --json
  caldera perplexity -m model.gguf --file val.txt --chunk 2048 --save f16.scores
  caldera perplexity -m model.gguf --file val.txt --chunk 2048 --kv q4_0 --base f16.scores`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (x.file == "") == (x.tokens == "") {
				return usagef("perplexity needs a text: --file TEXT or --tokens-file FILE")
			}
			if n := a.cfg.Perplexity.Chunk; n < 2 {
				return usagef("--chunk is %d; use 2 or more", n)
			} else if a.cfg.Ctx > 0 && n > a.cfg.Ctx {
				return usagef("--chunk is %d, more than the --ctx of %d; leave --ctx out to have what the chunk needs", n, a.cfg.Ctx)
			}
			return a.perplexity(cmd.Context(), x)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&x.file, "file", "f", "", "text `file`, - for stdin; special tokens in it are plain text")
	f.StringVar(&x.tokens, "tokens-file", "", "`file` of token ids: text, or little-endian numbers in a .u16 or .i32 file")
	f.IntVar(&x.chunks, "chunks", 0, "score only the first `number` of chunks, 0 for all")
	f.StringVar(&x.save, "save", "", "write the scores of every token to this `file`, for --base")
	f.StringVar(&x.base, "base", "", "compare with scores from this `file`")
	f.StringVar(&x.nll, "nll-out", "", "write the negative log-likelihood of each scored token, float32 little-endian, to this `file`")
	a.addJSON(cmd, "caldera.perplexity/1")
	addEngineSettings(f, "device", "perplexity.chunk", "tokenizer-nfc")
	return cmd
}

func (a *app) perplexity(ctx context.Context, f perplexityFlags) (err error) {
	chunk := a.cfg.Perplexity.Chunk
	if f.chunks < 0 {
		return usagef("--chunks is %d; use 1 or more, or 0 for all", f.chunks)
	}
	var base baseScores
	if f.base != "" {
		if base, err = readScores(f.base); err != nil {
			return err
		}
	}
	var tokens []int32
	text := ""
	if f.file != "" {
		text, err = a.readText(f.file)
	} else {
		tokens, err = a.readTokens(f.tokens)
	}
	if err != nil {
		return err
	}
	for _, name := range []string{f.save, f.nll} {
		if info, err := os.Stat(filepath.Dir(name)); name != "" && name != "-" && (err != nil || !info.IsDir()) {
			return usagef("%s: there is no folder %s", name, filepath.Dir(name)) // rather now than after hours
		}
	}
	e, err := a.openEngine(a.engineConfig(chunk))
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	if f.file != "" {
		if e.Tokenizer() == nil {
			return fmt.Errorf("%w: %s has no vocabulary; use --tokens-file", engine.ErrModel, a.modelName())
		}
		if tokens, err = e.Tokenizer().EncodeLimit(ctx, text, false, -1); err != nil {
			return err
		}
	}
	if len(tokens) < chunk {
		return usagef("the text has %d tokens, less than a chunk of %d: give more text or a smaller --chunk", len(tokens), chunk)
	}
	if f.chunks > 0 {
		tokens = tokens[:min(len(tokens), f.chunks*chunk)]
	}
	if f.base != "" {
		if err := base.of(tokens); err != nil {
			return usagef("--base %s: %w", f.base, err)
		}
	}
	a.noteDevice(e)
	start := time.Now()
	p := a.newProgress()
	x, err := e.Perplexity(ctx, tokens, chunk, func(done, total int, soFar engine.Perplexity) {
		p.update("chunk %d of %d: perplexity %.4f", done, total, soFar.PPL())
	})
	p.done()
	if err != nil {
		return err
	}
	took := time.Since(start)
	// What goes wrong from here on does not keep the result from being printed.
	var lost error
	if f.save != "" {
		if err := a.writeFile(f.save, func(w io.Writer) error { return writeScores(w, x, tokens) }); err != nil {
			lost = fmt.Errorf("scores: %w", err)
		}
	}
	if f.nll != "" {
		if err := a.writeFile(f.nll, func(w io.Writer) error { return writeFloats(w, x.NLL) }); err != nil {
			lost = errors.Join(lost, fmt.Errorf("likelihoods: %w", err))
		}
	}
	r := perplexityResult{
		Schema: "caldera.perplexity/1", Model: a.modelName(), Device: e.Device(), Backend: a.cfg.Backend,
		KV: a.cfg.KV, KVSink: a.cfg.KVSink, KVWindow: a.cfg.KVWindow,
		Tokens: len(tokens), Scored: len(x.NLL), Chunk: chunk, Chunks: x.Chunks, NLLMean: x.Mean(), PPL: x.PPL(),
		Seconds: took.Seconds(), TokensPS: perSecond(x.Chunks*chunk, took),
	}
	if f.base != "" {
		if c, err := x.Against(base.Perplexity); err != nil {
			lost = errors.Join(lost, fmt.Errorf("--base %s: %w", f.base, err))
		} else {
			r.Base, r.Against = f.base, &c
		}
	}
	a.note("%d tokens in %d chunks of %d in %.1f s, %.1f tokens/s", r.Tokens, r.Chunks, r.Chunk, r.Seconds, r.TokensPS)
	if a.json {
		return errors.Join(a.printJSON(r), lost)
	}
	if _, err = fmt.Fprintf(a.out, "perplexity %.4f  nll %.6f  tokens %d\n", r.PPL, r.NLLMean, r.Scored); err != nil || r.Against == nil {
		return errors.Join(err, lost)
	}
	c := r.Against
	_, err = fmt.Fprintf(a.out, "against the base: perplexity %+.3f %%  same best token %.2f %%  nll differs by %.5f on average, by %.4f at most\n",
		100*(c.Ratio-1), 100*c.SameBest, c.AbsDiff, c.MaxDiff)
	return errors.Join(err, lost)
}
