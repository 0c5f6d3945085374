package engine

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/gguf"
)

// OpenTokenizer makes the tokenizer of a model file. It returns nil for a file that says it has none.
func OpenTokenizer(f *gguf.File, withoutNFC bool) (*tokenizer.Tokenizer, error) {
	kind, err := f.String("tokenizer.ggml.model")
	if errors.Is(err, gguf.ErrMissing) || kind == "none" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := tokenizer.Vocabulary{Model: kind, EOS: -1, BOS: -1, Pad: -1}
	if v.Pre, err = optional(f.String("tokenizer.ggml.pre")); err != nil {
		return nil, err
	}
	// Limits come before the copies that they limit.
	for _, x := range []struct {
		key  string
		most int
	}{{"tokens", tokenizer.MaxTokens}, {"token_type", tokenizer.MaxTokens}, {"merges", tokenizer.MaxMerges}} {
		if val, ok := f.Value("tokenizer.ggml." + x.key); ok && val.Len() > x.most {
			return nil, fmt.Errorf("tokenizer.ggml.%s has %d entries, more than the %d supported", x.key, val.Len(), x.most)
		}
	}
	if v.Tokens, err = f.Strings("tokenizer.ggml.tokens"); err != nil {
		return nil, err
	}
	if v.Types, err = optional(f.Int32s("tokenizer.ggml.token_type")); err != nil {
		return nil, err
	}
	if v.Merges, err = f.Strings("tokenizer.ggml.merges"); err != nil {
		return nil, err
	}
	if v.AddBOS, err = optional(f.Bool("tokenizer.ggml.add_bos_token")); err != nil {
		return nil, err
	}
	for key, id := range map[string]*int32{"eos_token_id": &v.EOS, "bos_token_id": &v.BOS, "padding_token_id": &v.Pad} {
		key = "tokenizer.ggml." + key
		if !f.Has(key) {
			continue
		}
		if *id, err = f.Int32(key); err != nil {
			return nil, err
		}
	}
	var opts []tokenizer.Option
	if withoutNFC {
		opts = append(opts, tokenizer.WithoutNFC())
	}
	t, err := tokenizer.New(v, opts...)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// grammarToken returns a token as grammars see it. Control tokens end a generation or are not for answers.
func grammarToken(t *tokenizer.Tokenizer, id int32) ([]byte, grammar.Kind) {
	switch b := t.Piece(id); {
	case t.IsEOG(id):
		return b, grammar.End
	case t.Type(id) == tokenizer.TypeControl, t.Type(id) == tokenizer.TypeUnknown:
		return b, grammar.Special
	default:
		return b, grammar.Text
	}
}

// optional turns a missing key into a zero value.
func optional[T any](v T, err error) (T, error) {
	if errors.Is(err, gguf.ErrMissing) {
		var zero T
		return zero, nil
	}
	return v, err
}

// asBytes sees floats as bytes.
func asBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}
