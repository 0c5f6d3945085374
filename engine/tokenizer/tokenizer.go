// Package tokenizer turns text into token ids and back, for the byte-level BPE
// vocabularies of the Qwen models.
//
// Encoding has four steps, in this order:
//
//  1. the text is split at added tokens such as <|im_start|> or <think>, the
//     longest one first;
//  2. each stretch between them is brought into Unicode normalisation form C;
//  3. a pre-tokenizer cuts the stretch into pieces (words, numbers, runs of
//     punctuation or space);
//  4. inside each piece byte-level BPE merges the adjacent pair with the lowest
//     rank, leftmost first among equals, until no pair has a rank.
//
// The letters, marks, numbers and spaces of step 3 are those of the standard
// library's unicode tables. A letter assigned in a later Unicode version than
// theirs counts as punctuation.
package tokenizer

import (
	"fmt"
	"slices"
)

// Token types, as numbered by the GGUF key tokenizer.ggml.token_type.
const (
	TypeUndefined   = 0
	TypeNormal      = 1
	TypeUnknown     = 2
	TypeControl     = 3 // matched in text only when special tokens are parsed
	TypeUserDefined = 4 // matched in every text
	TypeUnused      = 5 // filler up to a padded vocabulary size
	TypeByte        = 6
)

// A Vocabulary is what a model file says about its tokenizer. New only reads it.
type Vocabulary struct {
	// Model is the kind of tokenizer; the only one known is "gpt2", byte-level BPE.
	Model string
	// Pre names the pre-tokenizer: "qwen35" or "qwen2".
	Pre string
	// Tokens holds the text of each token, by id. Normal tokens are in the
	// printable byte form, in which every byte is one character (a space is
	// U+0120); control and user-defined tokens are plain text.
	Tokens []string
	// Types holds the type of each token. Empty means that all are normal.
	Types []int32
	// Merges holds the BPE merges in rank order, each "left right".
	Merges []string

	// EOS, BOS and Pad are token ids, or -1.
	EOS, BOS, Pad int32
	// ExtraEOG are more ids that end a generation.
	ExtraEOG []int32
	// AddBOS says that a prompt starts with BOS. Encode never adds it.
	AddBOS bool
}

// An Option changes how a Tokenizer works.
type Option func(*Tokenizer)

// WithoutNFC leaves text in the normalisation form it comes in. The ids then
// differ from those the model was trained on wherever text is not in form C;
// it is meant for comparisons with programs that do not normalise.
func WithoutNFC() Option { return func(t *Tokenizer) { t.nfc = false } }

// WithoutCache encodes every word afresh instead of remembering recent ones.
func WithoutCache() Option { return func(t *Tokenizer) { t.words = nil } }

// A Tokenizer encodes and decodes text. It is safe for concurrent use.
type Tokenizer struct {
	split splitter
	added addedTokens
	nfc   bool

	bytes  [256]int32 // token of each single byte
	merges mergeTable
	words  *wordCache // nil when switched off
	// longest is the length in bytes of the longest token a merge can make.
	longest int

	types  []int32
	pieces []byte   // the bytes of all tokens, one after the other
	starts []uint32 // len(types)+1 offsets into pieces

	eos, bos, pad int32
	addBOS        bool
	eog           []int32 // sorted
}

// eogNames are the tokens that end a generation wherever a vocabulary has them
// as control or user-defined tokens. Qwen models stop a turn with <|im_end|> and a
// document with <|endoftext|>; the others separate files in code completion.
var eogNames = []string{"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}

// New checks a vocabulary and builds a tokenizer from it.
//
// It fails for an unknown model or pre-tokenizer, for an incomplete byte alphabet,
// for a merge that names a missing token or makes one, for a token that is not
// in printable byte form, for ambiguous tokens and for ids out of range.
func New(v Vocabulary, opts ...Option) (*Tokenizer, error) {
	t := &Tokenizer{nfc: true, words: newWordCache(), addBOS: v.AddBOS}
	for _, o := range opts {
		o(t)
	}
	if v.Model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: model %.40q is not supported (only gpt2 is)", v.Model)
	}
	switch v.Pre {
	case "qwen35":
		t.split = newSplitter(true)
	case "qwen2":
		t.split = newSplitter(false)
	default:
		return nil, fmt.Errorf("tokenizer: pre-tokenizer %.40q is not supported (qwen35 and qwen2 are)", v.Pre)
	}
	if err := t.load(&v); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// loadIDs takes over the ids with a meaning of their own.
func (t *Tokenizer) loadIDs(v *Vocabulary) error {
	for _, x := range []struct {
		name string
		id   int32
		dst  *int32
	}{{"end-of-sequence", v.EOS, &t.eos}, {"begin-of-sequence", v.BOS, &t.bos}, {"padding", v.Pad, &t.pad}} {
		if x.id < -1 || int(x.id) >= len(v.Tokens) {
			return fmt.Errorf("%s token %d is outside the vocabulary of %d", x.name, x.id, len(v.Tokens))
		}
		*x.dst = x.id
	}
	if v.AddBOS && v.BOS < 0 {
		return fmt.Errorf("a begin-of-sequence token is asked for but not named")
	}
	if t.eos >= 0 {
		t.eog = append(t.eog, t.eos)
	}
	for _, id := range v.ExtraEOG {
		if id < 0 || int(id) >= len(v.Tokens) {
			return fmt.Errorf("end-of-generation token %d is outside the vocabulary of %d", id, len(v.Tokens))
		}
		t.eog = append(t.eog, id)
	}
	for _, name := range eogNames {
		if id, ok := t.added.lookup(name); ok {
			t.eog = append(t.eog, id)
		}
	}
	slices.Sort(t.eog)
	t.eog = slices.Compact(t.eog)
	return nil
}

// Len returns the number of tokens; ids are below it.
func (t *Tokenizer) Len() int { return len(t.types) }

// EOS returns the end-of-sequence token, or -1.
func (t *Tokenizer) EOS() int32 { return t.eos }

// BOS returns the begin-of-sequence token, or -1.
func (t *Tokenizer) BOS() int32 { return t.bos }

// Pad returns the padding token, or -1.
func (t *Tokenizer) Pad() int32 { return t.pad }

// AddBOS reports whether a prompt starts with BOS.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// IsEOG reports whether a token ends a generation.
func (t *Tokenizer) IsEOG(id int32) bool {
	_, ok := slices.BinarySearch(t.eog, id)
	return ok
}

// EOG returns the tokens that end a generation, in ascending order.
func (t *Tokenizer) EOG() []int32 { return slices.Clone(t.eog) }

// Type returns the type of a token, and TypeUndefined for an id out of range.
func (t *Tokenizer) Type(id int32) int32 {
	if id < 0 || int(id) >= len(t.types) {
		return TypeUndefined
	}
	return t.types[id]
}

// Added returns the id of a control or user-defined token by its text.
func (t *Tokenizer) Added(text string) (id int32, ok bool) { return t.added.lookup(text) }
