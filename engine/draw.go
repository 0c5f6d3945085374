package engine

import (
	"errors"
	"fmt"
	"math"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/sample"
)

// ErrNoToken reports that a request's biases forbid every token that its grammar allows.
var ErrNoToken = errors.New("the biases forbid every token that the grammar allows")

// noToken is drawn where an answer is complete and the vocabulary has no token that ends one.
const noToken = -1

// GrammarVocabulary returns the model's tokens as grammars see them, built on first use.
func (e *Engine) GrammarVocabulary() (*grammar.Vocabulary, error) {
	e.words.once.Do(func() {
		if e.tok == nil {
			e.words.err = errors.New("a grammar for a model without a vocabulary")
			return
		}
		// Logits may go beyond the vocabulary; nothing allows those tokens.
		e.words.v, e.words.err = grammar.NewVocabulary(e.model.Vocab, func(id int32) ([]byte, grammar.Kind) { return grammarToken(e.tok, id) })
	})
	return e.words.v, e.words.err
}

// candidates is how many of the device's best tokens a job needs to draw one, 0 for all logits.
func (j *job) candidates() int {
	if j.req.Grammar != nil || j.req.Logprobs {
		return 0
	}
	return j.smp.CandidatesNeeded()
}

// wants adds what a job's tokens are drawn from to what a step delivers.
func (j *job) wants(o *model.GraphOptions) {
	if k := j.candidates(); k > 0 {
		o.TopK = max(o.TopK, bucket(k))
	} else {
		o.Logits = true
	}
}

// draw chooses a token from a row of a step's results, from the device's best candidates where those suffice.
func (b *batcher) draw(j *job, p *planned, row int) (t Token, err error) {
	k := j.candidates()
	if k == 0 {
		if b.row, err = p.readLogits(row, b.row); err != nil {
			return t, err
		}
		return b.drawFull(j)
	}
	if b.cand, err = p.readTop(row, k, b.cand[:0], &b.top, b.e.model.Vocab); err != nil {
		return t, err
	}
	if len(b.cand) == 0 {
		return t, errors.New("the model gave no usable logits")
	}
	b.ids, b.logit = b.ids[:0], b.logit[:0]
	for _, c := range b.cand {
		b.ids, b.logit = append(b.ids, c.ID), append(b.logit, c.Logit)
	}
	t.ID, err = j.smp.SampleTop(b.ids, b.logit)
	return t, explain(err)
}

// drawFull chooses a token from the whole row of logits.
func (b *batcher) drawFull(j *job) (t Token, err error) {
	if t.ID, err = j.smp.Sample(b.row); err != nil {
		return t, explain(err)
	}
	if j.req.Grammar != nil {
		if t.ID, err = b.constrain(j, t.ID); err != nil || t.ID == noToken {
			return t, err
		}
	}
	if j.req.Logprobs {
		t.Logprob, t.Top, err = sample.Logprobs(nil, b.row, t.ID, j.req.TopLogprobs)
	}
	return t, explain(err)
}

// constrain takes a token that was drawn from the row without regard to the grammar, and draws another if the grammar
// refuses it; see package grammar for the rule.
func (b *batcher) constrain(j *job, id int32) (int32, error) {
	g := j.req.Grammar
	v, err := b.e.GrammarVocabulary()
	if err != nil {
		return 0, err
	}
	if next, ok := g.AcceptToken(j.state, v, id); ok {
		j.state = next
		return id, nil
	}
	mask, err := g.Mask(j.state, v)
	switch {
	case errors.Is(err, grammar.ErrDeadEnd) && g.Accepting(j.state):
		return noToken, nil
	case err != nil:
		return 0, fmt.Errorf("after %d tokens of the answer: %w", j.result.Tokens, err)
	}
	b.masked = append(b.masked[:0], b.row...)
	for i := range b.masked {
		if !mask.Allows(int32(i)) {
			b.masked[i] = float32(math.Inf(-1))
		}
	}
	id, err = j.smp.Sample(b.masked)
	switch {
	case errors.Is(err, sample.ErrNoCandidates) && g.Accepting(j.state):
		return noToken, nil // only tokens that end the answer fit, and the request forbids those
	case errors.Is(err, sample.ErrNoCandidates):
		return 0, fmt.Errorf("%w: %w", ErrNoToken, err)
	case err != nil:
		return 0, explain(err)
	}
	j.state, _ = g.AcceptToken(j.state, v, id)
	return id, nil
}

// explain says what logits that cannot be sampled mean.
func explain(err error) error {
	if errors.Is(err, sample.ErrNaN) || errors.Is(err, sample.ErrInfinite) || errors.Is(err, sample.ErrNoCandidates) {
		return fmt.Errorf("the model's logits are not finite, its file may be damaged (caldera verify tells the device's part): %w", err)
	}
	return err
}
