package prefix

import "fmt"

// A Reason says why a prompt reuses fewer tokens than it might.
type Reason int

// The reasons, from the least to the most to be said. Their names in metrics are those of String.
const (
	None           Reason = iota // everything is reused that could be
	Disabled                     // there is no budget
	TooShort                     // a prompt of one token has nothing to reuse: the last token is always processed
	NoSharedPrefix               // nothing that was seen begins as this prompt
	NoSnapshot                   // prompts share more, but no snapshot was taken there
	Evicted                      // there was a snapshot, and it made room for others
	TooLarge                     // there was a snapshot, and the budget had no room for it
	OtherFormat                  // there is a snapshot, and the formats of the cache have changed since
	OtherModel                   // there is a snapshot, and it belongs to another model
	Unreadable                   // there was a snapshot, and its file cannot be read
	reasons
)

var reasonNames = [reasons]string{"none", "disabled", "too_short", "no_shared_prefix", "no_snapshot", "evicted", "too_large",
	"other_format", "other_model", "unreadable"}

// String is the reason in one word.
func (r Reason) String() string {
	if r < 0 || r >= reasons {
		return fmt.Sprintf("reason %d", int(r))
	}
	return reasonNames[r]
}

// String is a sentence for logs and users.
func (m *Match) String() string {
	s := fmt.Sprintf("reused %d of %d tokens", m.Pos, m.prompt)
	switch m.Reason {
	case None:
		return s
	case Disabled:
		return s + ": the prefix cache is off"
	case TooShort:
		return s + ": the last token is always processed"
	case NoSharedPrefix:
		return s + ": no earlier prompt begins like this one"
	}
	s += fmt.Sprintf(": %d are shared with an earlier prompt", m.Shared)
	switch m.Reason {
	case Evicted:
		s += fmt.Sprintf(", and the snapshot at %d was evicted", m.at)
	case TooLarge:
		s += fmt.Sprintf(", and the snapshot at %d did not fit the budget", m.at)
	case OtherFormat:
		s += fmt.Sprintf(", and the snapshot at %d has another KV format", m.at)
	case OtherModel:
		s += fmt.Sprintf(", and the snapshot at %d belongs to another model", m.at)
	case Unreadable:
		s += fmt.Sprintf(", and the file of the snapshot at %d cannot be read", m.at)
	default:
		if m.Pos == 0 {
			return s + ", and there is no snapshot of so many"
		}
		return s + fmt.Sprintf(", and the nearest snapshot is at %d", m.Pos)
	}
	return s
}

// Stats are counters since the cache was made, and what it holds now.
type Stats struct {
	Hits         int64 // lookups that reused all they could
	PartialHits  int64 // lookups that reused less than is shared
	Misses       int64 // lookups that reused nothing
	Reasons      [reasons]int64
	TokensReused int64
	TokensAsked  int64

	Inserts  int64 // snapshots taken in
	Refused  int64 // snapshots for which there was no room
	Evicted  int64 // snapshots dropped from the cache
	Demoted  int64 // snapshots written to disk
	Loaded   int64 // snapshots read from disk
	Failures int64 // reads and writes of files that failed

	Entries   int   // snapshots in the cache
	InMemory  int   // of these in memory
	OnDisk    int   // and on disk
	Pinned    int   // in use
	RAMBytes  int64 // taken of the memory budget, with the index
	DiskBytes int64 // taken of the disk budget when the folder was last listed, with files of other models
}
