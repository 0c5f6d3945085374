package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// A chunk is what an event of either endpoint may hold.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"` // of a completion
		Delta struct {
			Content   string            `json:"content"`
			Reasoning string            `json:"reasoning_content"`
			Same      string            `json:"reasoning"` // repeats reasoning_content
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Timings *struct {
		Cache     int `json:"cache_n"` // tokens of the prompt that were cached
		Prompt    int `json:"prompt_n"`
		Predicted int `json:"predicted_n"`
	} `json:"timings"`
	Error json.RawMessage `json:"error"`
}

// A reading is what a stream has shown.
type reading struct {
	first, last, end time.Time // the first and last delta with something in it, and [DONE]
	deltas           int
	finish           string
	input, cached    int  // tokens of the prompt; input is 0 when the server does not say
	output           int  // tokens of the answer
	counted          bool // output is a count of deltas: the server does not say
}

// errLeft ends the reading of a stream that the client leaves.
var errLeft = errors.New("the client left the stream")

// readStream reads a stream to its end, which must be orderly: chunks, one of them with a finish_reason and none with a delta
// after it, [DONE], and nothing more. The error is a *Fault, errLeft, or that of the reader. Delta is called for each delta with
// something in it, with how many there are and the time since the one before (0 for the first), and may leave the stream.
func readStream(r io.Reader, alive func(), delta func(n int, gap time.Duration) (leave bool)) (x reading, err error) {
	events := newEventReader(r, alive)
	var usage, timings bool
	for {
		data, err := events.next()
		var syntax syntaxError
		switch {
		case err == io.EOF && x.finish == "":
			return x, fault(FaultCut, "the stream ended after %d deltas without a finish_reason", x.deltas)
		case err == io.EOF:
			return x, fault(FaultNoDone, "the stream ended after its finish_reason without [DONE]")
		case errors.Is(err, errLine), errors.Is(err, errStream):
			return x, fault(FaultTooMuch, "%v", err)
		case errors.As(err, &syntax):
			return x, fault(FaultEvent, "%v", err)
		case err != nil:
			return x, err
		}
		if string(data) == "[DONE]" {
			x.end = time.Now()
			break
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil || data[0] != '{' {
			return x, fault(FaultEvent, "the event %q is no chunk", clip(string(data)))
		}
		if c.Error != nil && string(c.Error) != "null" {
			e, err := parseError(data)
			if err != nil {
				return x, fault(FaultNoObject, "in a stream: %v", err)
			}
			if err := drain(events); err != nil {
				return x, fault(FaultCut, "after the error object %q: %v", e, err)
			}
			return x, &Fault{Kind: FaultError, Request: -1, Detail: e.String(), errType: e.Type}
		}
		if u := c.Usage; u != nil {
			x.input, x.cached, x.output, usage = u.Prompt, u.Details.Cached, u.Completion, true
		}
		if t := c.Timings; t != nil && !usage {
			x.input, x.cached, x.output, timings = t.Cache+t.Prompt, t.Cache, t.Predicted, true
		}
		some := false
		for _, choice := range c.Choices {
			d := choice.Delta
			if d.Content != "" || d.Reasoning != "" || d.Same != "" || len(d.ToolCalls) > 0 || choice.Text != "" {
				some = true
			}
		}
		if some {
			if x.finish != "" {
				return x, fault(FaultEvent, "a delta after the finish_reason: %q", clip(string(data)))
			}
			now := time.Now()
			gap := time.Duration(0)
			if x.deltas++; x.deltas == 1 {
				x.first = now
			} else {
				gap = now.Sub(x.last)
			}
			x.last = now
			if delta(x.deltas, gap) {
				return x, errLeft
			}
		}
		for _, choice := range c.Choices {
			if choice.FinishReason != "" {
				x.finish = choice.FinishReason
			}
		}
	}
	if x.finish == "" {
		return x, fault(FaultNoFinish, "[DONE] after %d deltas without a finish_reason", x.deltas)
	}
	switch data, err := events.next(); {
	case err == nil:
		return x, fault(FaultEvent, "an event after [DONE]: %q", clip(string(data)))
	case err != io.EOF:
		// The answer was complete, but the connection is not in order.
		return x, fault(FaultCut, "after [DONE]: %v", err)
	}
	if !usage && !timings {
		x.output, x.counted = x.deltas, true
	}
	if x.deltas == 0 { // an answer without text was seen when it ended
		x.first, x.last = x.end, x.end
	}
	return x, nil
}

// drain reads what is left of a stream, which must end.
func drain(events *eventReader) error {
	for {
		switch _, err := events.next(); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

func fault(kind, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Request: -1, Detail: fmt.Sprintf(format, args...)}
}

// An apiError is OpenAI's error object.
type apiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
}

func (e apiError) String() string { return clip(e.Type + ": " + e.Message) }

// unavailable is the type of the error of a server that goes down.
const unavailable = "unavailable_error"

// parseError reads an error object.
func parseError(b []byte) (apiError, error) {
	var x struct {
		Error json.RawMessage `json:"error"`
	}
	var e apiError
	if json.Unmarshal(b, &x) != nil || !bytes.HasPrefix(x.Error, []byte("{")) || json.Unmarshal(x.Error, &e) != nil {
		return e, fmt.Errorf("%q has no error object", clip(string(b)))
	}
	if e.Message == "" || e.Type == "" {
		return e, fmt.Errorf("the error object in %q lacks message or type", clip(string(b)))
	}
	return e, nil
}
