// Package state keeps what a sequence needs to go on: a [Snapshot] holds the token ids, the KV pages of the attention
// layers, the recurrent slots of the delta-net layers and whatever else a family carries, and is bound to the model
// and the formats it was computed with.
//
// A recurrent state cannot be rolled back to an earlier token, and it says nothing about where it stands. So a
// snapshot restores to exactly the tokens it was taken after, or is refused with an error that says why:
// [ErrOtherModel], [ErrOtherFormat], [ErrPosition], [ErrOtherTokens], [ErrVersion], [ErrCorrupt].
//
// # Layout
//
// A [Layout] names the regions that make up a sequence's state and their sizes; the package knows nothing else about
// them. [Capture] and [Restore] move them through small interfaces, in one call, with one copy of the bytes.
//
// A page that is full does not change any more unless it is encoded in another format, so snapshots of one sequence
// share such pages: a capture that names the snapshot before it copies only the pages since then and the recurrent
// slots. Pages are immutable and are freed by the garbage collector; who has a budget to keep counts each page once,
// by its address (see [Snapshot.Pages]).
//
// # Encoding, version 1
//
// All numbers are little-endian. A header of 164 bytes is followed by sections.
//
//	offset size  header
//	     0    8  "caldsnap"
//	     8    4  version, 1
//	    12    4  size of the header, 164
//	    16   32  digest of the model
//	    48   32  digest of the layout: formats, page size, regions
//	    80   64  name of the format, padded with zeros; for messages only
//	   144    8  size of the whole in bytes
//	   152    8  position: the number of tokens that the state holds
//	   160    4  CRC-32C of the 160 bytes before
//
//	offset size  section
//	     0    4  kind: "TOKN", "PAGE", "SLOT", "EXTR" or "END "
//	     4    4  index of the page or extra, else 0
//	     8    4  page format, else 0
//	    12    4  CRC-32C of bytes 0 to 11, 16 to 23 and the payload
//	    16    8  length of the payload
//	    24       payload
//
// The sections are TOKN (token ids, 4 bytes each), the pages in order (their regions one after the other in the
// layout's order; of a page that is not full, the rows in use), SLOT, the extras in order, and END, whose payload is
// the CRC-32C of the checksums of the header and of all sections before. Every section can be checked by itself, so
// reading header and tokens ([ReadPrefix]) touches nothing else.
//
// The checksum is CRC-32C because it is in the standard library, detects every burst of up to 32 bits, and runs at 8
// GB/s on one core where SHA-256 without its instructions reaches 0.5: it guards against accidents of storage, and a
// page is small enough for 32 bits. Identities, which must not collide, are SHA-256 over a few kilobytes.
package state
