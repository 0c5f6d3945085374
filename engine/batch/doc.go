// Package batch decides which sequences run in the next step of an engine, and with how many tokens each. It is
// policy alone: it knows numbers of tokens and measured times, and no device.
//
// A step is ragged: a run of tokens for each of several sequences, all rows through the weights together. Sequences
// that are decoding have one row each in every step; what rows are left feed prompts.
//
// # Order
//
// Prompts have known lengths, so the least mean wait would come from feeding the shortest first; but then a long one
// may never be fed. Half of the rows therefore go to the prompt with the fewest tokens left, and the other half go
// round among the rest in the order of their last service. A short prompt beside long ones takes at most about twice
// as long as alone, whatever their number, and every prompt is fed in at least one of any 2n steps that feed prompts,
// n being the number of prompts. A run carries its sequence's recurrent state in and out once, whatever its length,
// so rows are not divided into runs of less than [Former.MinChunk]; when there are too few rows for two such runs,
// the shortest prompt and the rotation take turns.
//
// With more sequences than a step holds, decoding ones go round in the order of their last service. Prompts together
// count as one more of them, so that neither side waits for the other to end.
//
// # Latency
//
// While somebody decodes beside a prompt, the duration of a step is the time between two of that client's tokens.
// [Former.MaxLatency] bounds it: the rows of such a step are limited to those whose predicted duration, with a margin
// for the noise seen, is below it. Predictions come from measured steps ([Former.Done]), one point for each power of
// two of rows with straight lines between. Where nothing was measured yet the first step takes 8 rows of prompt, and
// larger ones follow by at most doubling.
//
// The bound does not stop prompts altogether. They are owed two rows for each step, paid 8 at a time when fewer fit:
// with a bound that leaves them no room at all, every fourth step takes 8 rows and is longer than the bound.
package batch
