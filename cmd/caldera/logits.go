package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) logitsCommand() *cobra.Command {
	var list, file, out string
	cmd := &cobra.Command{
		Use:   "logits -m MODEL (--tokens IDS | --tokens-file FILE) --out FILE.f32",
		Short: "Write the logits after each of some tokens",
		Long: `Logits feeds token ids to a model from an empty state and writes one row of float32 little-endian logits, as
wide as the vocabulary, for each. The file appears only when it is complete.`,
		Example: `  caldera logits -m model.gguf --tokens 1,2,3 --out logits.f32
  caldera logits -m model.gguf --tokens-file prompt.u16 --batch 7 --backend reference --out -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usagef("no output: name a file with --out FILE.f32, or - for stdout")
			}
			tokens, err := a.tokensFrom(list, file)
			if err != nil {
				return err
			}
			return a.logits(cmd.Context(), tokens, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&list, "tokens", "", "token `ids` separated by commas")
	f.StringVar(&file, "tokens-file", "", "`file` of token ids: text, or little-endian numbers in a .u16 or .i32 file; - is stdin")
	f.StringVar(&out, "out", "", "`file` to write, - for stdout")
	addEngineSettings(f, "device")
	return cmd
}

func (a *app) logits(ctx context.Context, tokens []int32, path string) (err error) {
	e, err := a.openEngine(a.engineConfig(len(tokens)))
	if err != nil {
		return err
	}
	defer closeEngine(e, &err)
	s, err := e.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	a.noteDevice(e)
	p := a.newProgress()
	err = a.writeFile(path, func(w io.Writer) error {
		defer p.done()
		return s.Logits(ctx, tokens, func(i int, logits []float32) error {
			p.update("%d of %d tokens", i+1, len(tokens))
			return writeFloats(w, logits)
		})
	})
	if err != nil {
		return fmt.Errorf("logits: %w", err)
	}
	a.note("%d rows of %d logits in %s", len(tokens), e.Model().Vocab, printable(path))
	return nil
}
