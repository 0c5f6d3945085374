package load

import (
	"strings"
	"unicode"
)

// Kinds of faults.
const (
	FaultStatus     = "status"     // an HTTP status that is no answer: 5xx, a redirect
	FaultRejected   = "rejected"   // 4xx to a request in order
	FaultAccepted   = "accepted"   // success to a malformed request
	FaultNoObject   = "no-object"  // an error without OpenAI's error object
	FaultHeader     = "header"     // an answer that says it is no event stream
	FaultEvent      = "event"      // a line that is no event, or an event that is no chunk
	FaultError      = "error"      // an error object in a stream
	FaultCut        = "cut"        // a stream that ends before its finish_reason
	FaultNoFinish   = "no-finish"  // [DONE] without a finish_reason
	FaultNoDone     = "no-done"    // a finish_reason, but no [DONE]
	FaultTooMuch    = "too-much"   // more than was asked for, or than an answer may hold
	FaultStalled    = "stalled"    // no byte for the time allowed
	FaultConnection = "connection" // no connection, or lost before an answer
	FaultHealth     = "health"     // not healthy after the run
	FaultSlot       = "slot"       // a slot still busy after the run
	FaultShutdown   = "shutdown"   // not down when it should be
	FaultWarmup     = "warm-up"    // not one answer before the run
)

// A Fault is something that the client cannot be blamed for.
type Fault struct {
	Kind    string `json:"kind"`
	Request int    `json:"request"` // its index, -1 for none
	Detail  string `json:"detail"`

	errType string // of an error object in a stream
}

func (f *Fault) Error() string { return f.Detail }

// clip makes text of a server fit for a line.
func clip(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	return s
}
