package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/engine/tokenizer"
)

// tokenizeResult is what tokenize --json prints. With --decode, Text is what the tokens say.
type tokenizeResult struct {
	Schema string      `json:"schema"` // "caldera.tokenize/1"
	Model  string      `json:"model"`
	Text   string      `json:"text"`
	IDs    []int32     `json:"ids"`
	Tokens []tokenInfo `json:"tokens"`
}

// tokenInfo is a token. Piece is a string when its bytes are valid UTF-8, else a list of byte values.
type tokenInfo struct {
	ID    int32 `json:"id"`
	Piece any   `json:"piece"`
}

func newTokenInfo(t *tokenizer.Tokenizer, id int32) tokenInfo {
	p := t.Piece(id)
	if utf8.Valid(p) {
		return tokenInfo{id, string(p)}
	}
	bytes := make([]int, len(p)) // a []byte would become base64
	for i, b := range p {
		bytes[i] = int(b)
	}
	return tokenInfo{id, bytes}
}

func (a *app) tokenizeCommand() *cobra.Command {
	var special, idsOnly, noNFC bool
	var decode string
	cmd := &cobra.Command{
		Use:   "tokenize [-m MODEL] [TEXT|-]",
		Short: "Turn text into token ids and back",
		Long: `Tokenize prints the tokens of a text, one a line: the id and its bytes. The text is the argument, or stdin when
there is none or it is "-". No device is needed.`,
		Example: `  caldera tokenize "Hello, world"
  caldera tokenize -m model.gguf --ids - < prompt.txt
  caldera tokenize --decode 1,2,3`,
		Args: upToArgs(1, "put the text in quotes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if noNFC {
				a.cfg.TokenizerNFC = false
			}
			t, err := a.openTokenizer()
			if err != nil {
				return err
			}
			r := tokenizeResult{Schema: "caldera.tokenize/1", Model: a.modelName(), IDs: []int32{}, Tokens: []tokenInfo{}}
			if cmd.Flags().Changed("decode") {
				if len(args) > 0 {
					return usagef("--decode takes ids and no text")
				}
				if r.IDs, err = parseTokens(decode); err != nil {
					return err
				}
				for _, id := range r.IDs {
					if int(id) >= t.Len() {
						return usagef("token %d is outside the vocabulary of %d", id, t.Len())
					}
				}
				r.Text = t.Decode(r.IDs)
			} else {
				if r.Text, err = a.textArgument(args); err != nil {
					return err
				}
				ids, err := t.EncodeLimit(cmd.Context(), r.Text, special, -1)
				if err != nil {
					return err
				}
				r.IDs = append(r.IDs, ids...)
			}
			if a.json {
				for _, id := range r.IDs {
					r.Tokens = append(r.Tokens, newTokenInfo(t, id))
				}
				return a.printJSON(r)
			}
			return a.printTokens(t, r, idsOnly, cmd.Flags().Changed("decode"))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&special, "parse-special", false, "recognise control tokens such as <|im_start|> in the text")
	f.BoolVar(&idsOnly, "ids", false, "print only the ids, separated by commas")
	f.BoolVar(&noNFC, "no-nfc", false, "the same as --tokenizer-nfc=false")
	f.StringVar(&decode, "decode", "", "print the text of these token `ids` instead")
	a.addJSON(cmd, "caldera.tokenize/1")
	addSettings(f, "model", "tokenizer-nfc")
	return cmd
}

// textArgument returns the argument, or stdin.
func (a *app) textArgument(args []string) (string, error) {
	if len(args) == 1 && args[0] != "-" {
		return args[0], nil
	}
	if len(args) == 0 && !isPiped(a.in) {
		return "", usagef("no text: give it as an argument, or - to type it")
	}
	return a.readText("-")
}

// joinIDs is token ids with commas between them.
func joinIDs(ids []int32) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(id)))
	}
	return b.String()
}

func (a *app) printTokens(t *tokenizer.Tokenizer, r tokenizeResult, idsOnly, decoded bool) error {
	var b strings.Builder
	switch {
	case decoded:
		b.WriteString(r.Text)
		b.WriteByte('\n')
	case idsOnly:
		b.WriteString(joinIDs(r.IDs) + "\n")
	default:
		for _, id := range r.IDs {
			fmt.Fprintf(&b, "%d\t%s\n", id, strconv.Quote(string(t.Piece(id))))
		}
		a.note("%d tokens", len(r.IDs))
	}
	return textWriter{w: a.out, safe: isTerminal(a.out)}.write(b.String())
}
