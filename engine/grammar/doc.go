// Package grammar constrains generated text: it tells which tokens may come next so that the text matches a grammar.
//
// A grammar is an [Expr] over bytes with rules of a [Builder], compiled to a pushdown automaton ([Grammar]). Front ends
// make expressions from GBNF (package gbnf), JSON Schemas (package schema), regular expressions (package pattern),
// the tools of a request (package toolcall) and lists of strings ([Choice]); as they all add to one builder, their
// results can be put together, for example after </think> ([Builder.After]) or once a tool call begins
// ([Builder.Lazy]).
//
// A [State] is how far a text has come. It is a small value: copying it forks the sequence, keeping an old one rolls
// it back. [Grammar.Accept] walks over bytes, [Grammar.Mask] computes the set of tokens of a [Vocabulary] that may
// come next. Both remember what they find out, within a bound of bytes.
//
// Tokens count by their bytes. Control tokens are never allowed, not even in the free part of Lazy and After, except
// that those that end the generation are allowed where the text may end.
//
// # How a sampler uses it
//
// Computing a mask takes from a fraction of a millisecond to some ten, following one token's bytes some
// nanoseconds, and a model that was asked for JSON mostly writes it by itself. So a sampler draws as if there were no
// grammar, and builds the mask only when the token is refused:
//
//	id, err := sampler.Sample(logits)                 // the first draw is unmasked
//	next, ok := g.AcceptToken(state, vocabulary, id)
//	if !ok {
//		mask, err := g.Mask(state, vocabulary)        // ErrDeadEnd ends the request
//		for i := range logits {
//			if !mask.Allows(int32(i)) {
//				logits[i] = float32(math.Inf(-1))     // restored after the draw
//			}
//		}
//		id, err = sampler.Sample(logits)              // with the next random number
//		next, _ = g.AcceptToken(state, vocabulary, id)
//	}
//	state = next
//
// This rule holds at every position, whether or not a mask is at hand, so that results depend on the request alone: a
// refused draw is drawn again from the masked distribution with the next random number. Greedy sampling gives the
// best allowed token, as with a mask from the start. Without top-k, top-p and min-p the distribution is also that of
// masking first; with them the second draw applies them to the allowed tokens.
//
// The redraw needs the whole row of logits, also where the first draw was made from a few candidates. Instead of
// overwriting logits, a sampler may take the mask's words and skip tokens while it collects candidates. A draft of
// several tokens is checked by walking from state to state, and nothing needs to be undone when some are thrown away.
//
// # Limits
//
// [Limits] bounds the size of grammars, nesting and memory. Left recursion, rules that match nothing and counted
// repetition of what may be empty (above 64 times) are refused when a grammar is compiled. An ambiguous grammar is
// read in all ways at once, up to Limits.Threads; a byte that leads to more is refused, and ErrDeadEnd says so where
// nothing else is left. The automaton never promises what it cannot keep: a branch is taken only when its nesting
// still fits the limit.
package grammar
