package tokenizer

import (
	"context"
	"strings"
)

// A Stretch is a part of a text with one origin.
type Stretch struct {
	Text string
	// Trusted says that added tokens are meant where their text stands, as in what a chat template writes. In text that a
	// user typed they are not.
	Trusted bool
}

// EncodeStretches returns the tokens of a text that comes in stretches. Added tokens of every kind, control and user-defined,
// are found inside of trusted text only; neighbours that are both trusted count as one. Nothing else stops at the border of a
// stretch: what lies between two added tokens is normalised and cut into pieces as one text, so the ids are those of the whole
// text wherever the untrusted stretches hold no added token.
//
// With trusted text alone it is EncodeLimit with parseSpecial. With untrusted text alone it is not EncodeLimit without
// parseSpecial, which finds user-defined tokens such as <think>. limit and the error are those of EncodeLimit.
func (t *Tokenizer) EncodeStretches(ctx context.Context, stretches []Stretch, limit int) ([]int32, error) {
	e := encoder{Tokenizer: t, ctx: ctx, limit: limit}
	text, trusted := joinStretches(stretches)
	from := 0 // everything before is encoded
	for _, run := range trusted {
		for at := run.start; !e.full(); {
			start, end, id := t.added.find(text[:run.end], at, true)
			if start == run.end {
				break
			}
			if err := e.text(text[from:start]); err != nil {
				return nil, err
			}
			if e.full() {
				break
			}
			e.ids = append(e.ids, id)
			from, at = end, end
		}
	}
	if !e.full() {
		if err := e.text(text[from:]); err != nil {
			return nil, err
		}
	}
	if e.full() {
		e.ids = e.ids[:limit+1]
	}
	return e.ids, nil
}

// A span is a part of a text, in bytes.
type span struct{ start, end int }

// joinStretches returns the whole text, valid UTF-8, and which parts of it are trusted. Text with one origin is made valid as
// one, so a character may be cut between two stretches.
func joinStretches(stretches []Stretch) (string, []span) {
	size := 0
	for _, s := range stretches {
		size += len(s.Text)
	}
	var text, same strings.Builder
	text.Grow(size)
	var trusted []span
	for i := 0; i < len(stretches); {
		same.Reset()
		mark := stretches[i].Trusted
		for ; i < len(stretches) && (stretches[i].Trusted == mark || stretches[i].Text == ""); i++ {
			same.WriteString(stretches[i].Text)
		}
		start := text.Len()
		text.WriteString(replaceInvalid(same.String()))
		if mark {
			trusted = append(trusted, span{start, text.Len()})
		}
	}
	return text.String(), trusted
}
