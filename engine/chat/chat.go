// Package chat stands between a conversation and a model. In one direction it turns a client's messages and tools into the
// prompt that the model's own template makes of them; in the other it reads the model's text as it comes and takes it apart
// into reasoning, content and tool calls.
//
// Messages: [ParseMessages], [ParseTools] and [ParseKwargs] read what clients send. A [Template] renders them with [Options]; the
// [Prompt] comes in stretches that say whether the template or the client wrote them, and knows whether thinking is open at its end.
// Which sampling to use when the client asks for none follows from [Prompt.Thinking], see sample.Defaults.
//
// Answers: a [Parser] is fed pieces of text and gives events; [ParseAnswer] does it in one go.
package chat

import (
	"fmt"

	"github.com/calderaml/caldera/engine/chat/jinja"
)

// A Stretch is a part of a prompt: Trusted when the template wrote it. Added tokens such as <|im_end|> are meant only there.
type Stretch = jinja.Stretch

// A Kind says what is wrong with a request.
type Kind uint8

const (
	Invalid      Kind = iota // it must be changed (invalid_request_error)
	NotSupported             // it asks for something that is not built (not_supported_error)
)

// A RequestError is a request that cannot be rendered. Its text says where, what, and what to do about it.
type RequestError struct {
	Kind  Kind
	Field string // as in the request, such as messages[2].content
	What  string
	Err   error // the template's, if that is where it comes from
}

func (e *RequestError) Error() string { return e.Field + ": " + e.What }

func (e *RequestError) Unwrap() error { return e.Err }

func invalid(field, format string, args ...any) error {
	return &RequestError{Kind: Invalid, Field: field, What: fmt.Sprintf(format, args...)}
}

func notSupported(field, format string, args ...any) error {
	return &RequestError{Kind: NotSupported, Field: field, What: fmt.Sprintf(format, args...)}
}
