// Package kv hands out what sequences hold on a device: recurrent slots and pages of the KV cache. It counts and
// numbers; it knows nothing of the memory behind the numbers.
//
// A sequence takes a [Seat] of a [Pool], which reserves what the sequence will hold at most. Pages are handed out as
// it grows. A seat that has been granted never runs out of pages, so capacity is decided before a request is accepted.
//
// # Quantised pages
//
// With a quantised cache a page is written in the hot format and re-encoded in the cold one when it leaves the recent
// window; the first pages, where attention sinks lie, stay hot. Page j, which holds positions jP up to (j+1)P, is cold
// for a row at position p if
//
//	j >= ceil(Sink/P)  and  (j+1)P + Window <= p
//
// It depends on the row's position alone. Steps are cut where a page turns cold ([Policy.Cut]), so that no step holds
// rows that see a page differently, and results do not depend on how a prompt is divided into steps.
package kv
