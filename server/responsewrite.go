package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

// What states a response and its items are in.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

// A response is the object that the responses API answers with.
type response struct {
	ID           string              `json:"id"`
	Object       string              `json:"object"`
	Created      int64               `json:"created_at"` // Unix time
	Completed    *int64              `json:"completed_at"`
	Status       string              `json:"status"`
	Background   bool                `json:"background"`
	Error        *responseError      `json:"error"`
	Incomplete   *responseIncomplete `json:"incomplete_details"`
	Instructions *string             `json:"instructions"`
	MaxTokens    *int                `json:"max_output_tokens"`
	Model        string              `json:"model"`
	Output       []*responseItem     `json:"output"`
	Parallel     bool                `json:"parallel_tool_calls"`
	Previous     *string             `json:"previous_response_id"`
	Reasoning    responseReasoning   `json:"reasoning"`
	Store        bool                `json:"store"` // never
	Temperature  float32             `json:"temperature"`
	Text         responseText        `json:"text"`
	ToolChoice   json.RawMessage     `json:"tool_choice"`
	Tools        json.RawMessage     `json:"tools"`
	TopP         float32             `json:"top_p"`
	Truncation   string              `json:"truncation"`
	Usage        *responseUsage      `json:"usage"`
	Metadata     map[string]string   `json:"metadata"`
	// What OpenAI's have not.
	Seed    uint64   `json:"seed"`
	Timings *timings `json:"timings,omitempty"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type responseIncomplete struct {
	Reason string `json:"reason"`
}

type responseReasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

type responseText struct {
	Format json.RawMessage `json:"format"`
}

// responseUsage is a usage by the names of this API.
type responseUsage struct {
	Input     int `json:"input_tokens"`
	InputMore struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output     int `json:"output_tokens"`
	OutputMore struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// start fills in what is known before there is an answer.
func (x *response) start(q *chatRequest, t *task, now time.Time) {
	x.ID, x.Object, x.Created, x.Model = newID("resp_"), "response", now.Unix(), q.model
	x.Status, x.Output, x.Truncation = statusInProgress, []*responseItem{}, "disabled"
	p := t.request.Sample
	x.Temperature, x.TopP, x.Seed = p.Temperature, p.TopP, p.Seed
	if q.maxTokens > 0 {
		x.MaxTokens = &q.maxTokens
	}
}

// A responseItem is a part of the output: a message, reasoning, or a call.
type responseItem struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Status    string          `json:"status"`
	Role      string          `json:"role,omitempty"`
	Summary   *[]responsePart `json:"summary,omitempty"`
	Content   *[]responsePart `json:"content,omitempty"`
	CallID    string          `json:"call_id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments *string         `json:"arguments,omitempty"`
}

// Types of items.
const (
	itemMessage   = "message"
	itemReasoning = "reasoning"
	itemCall      = "function_call"
)

// A responsePart is a text of an item.
type responsePart struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Empty lists in messages' text, which clients walk through.
	Annotations *[]string `json:"annotations,omitempty"`
	Logprobs    *[]string `json:"logprobs,omitempty"`
}

// outputText is a text of a message.
func outputText(text string) *responsePart {
	return &responsePart{Type: "output_text", Text: text, Annotations: &[]string{}, Logprobs: &[]string{}}
}

// A responseEvent is one of a stream.
type responseEvent struct {
	Type      string        `json:"type"`
	Sequence  int           `json:"sequence_number"`
	Response  *response     `json:"response,omitempty"`
	ItemID    string        `json:"item_id,omitempty"`
	Output    *int          `json:"output_index,omitempty"`
	Content   *int          `json:"content_index,omitempty"`
	Item      *responseItem `json:"item,omitempty"`
	Part      *responsePart `json:"part,omitempty"`
	Delta     *string       `json:"delta,omitempty"`
	Text      *string       `json:"text,omitempty"`
	Name      string        `json:"name,omitempty"`
	Arguments *string       `json:"arguments,omitempty"`
	Logprobs  *[]string     `json:"logprobs,omitempty"`
}

// A responseFault is the event after which a stream ends because of an error. Clients read it in one of two forms.
type responseFault struct {
	Type     string         `json:"type"`
	Sequence int            `json:"sequence_number"`
	Code     string         `json:"code"`
	Message  string         `json:"message"`
	Param    any            `json:"param"`
	Error    map[string]any `json:"error"`
}

// A responseWriter makes items of what comes of an answer, and tells of each step where the answer is streamed.
type responseWriter struct {
	response response
	events   *events // nil without a stream
	sequence int
	err      error // of the stream; nothing is sent after one
	begun    bool
	item     *responseItem   // the last one of the output while it grows
	text     strings.Builder // of the item
}

// send sends an event.
func (c *responseWriter) send(e responseEvent) {
	if c.events == nil || c.err != nil {
		return
	}
	e.Sequence = c.sequence
	c.sequence++
	c.err = c.events.data(e.Type, e)
}

// sendItem sends an event about the item that grows, or about its only content.
func (c *responseWriter) sendItem(e responseEvent) {
	e.Output = new(len(c.response.Output) - 1)
	if e.Item == nil {
		e.ItemID = c.item.ID
		if c.item.Type != itemCall {
			e.Content = new(0)
		}
	}
	c.send(e)
}

// begin sends the first events.
func (c *responseWriter) begin() {
	if !c.begun {
		c.begun = true
		c.send(responseEvent{Type: "response.created", Response: &c.response})
		c.send(responseEvent{Type: "response.in_progress", Response: &c.response})
	}
}

// write takes in what goes on the answer.
func (c *responseWriter) write(list []chat.Event) error {
	for _, ev := range list {
		switch ev.Kind {
		case chat.EventReasoning:
			c.grow(itemReasoning, ev.Text)
		case chat.EventContent:
			c.grow(itemMessage, ev.Text)
		case chat.EventCallStart:
			c.end(statusCompleted)
			c.add(&responseItem{ID: newID("fc_"), Type: itemCall, CallID: ev.ID, Name: ev.Name, Arguments: new("")})
		case chat.EventCallArguments:
			c.grow(itemCall, ev.Text)
		case chat.EventCallEnd:
			c.end(statusCompleted)
		}
	}
	return c.err
}

// grow makes an item of a type longer, a new one unless the last is of it.
func (c *responseWriter) grow(kind, text string) {
	if c.item == nil || c.item.Type != kind {
		c.end(statusCompleted)
		c.addText(kind)
	}
	c.text.WriteString(text)
	switch kind {
	case itemReasoning:
		c.sendItem(responseEvent{Type: "response.reasoning_text.delta", Delta: &text})
	case itemMessage:
		c.sendItem(responseEvent{Type: "response.output_text.delta", Delta: &text, Logprobs: &[]string{}})
	case itemCall:
		c.sendItem(responseEvent{Type: "response.function_call_arguments.delta", Delta: &text})
	}
}

// addText adds reasoning or a message. Reasoning has no event of its own for its part, which is there from the beginning: some
// clients put the text that comes into it.
func (c *responseWriter) addText(kind string) {
	if kind == itemReasoning {
		c.add(&responseItem{
			ID: newID("rs_"), Type: kind, Summary: &[]responsePart{}, Content: &[]responsePart{{Type: "reasoning_text"}},
		})
		return
	}
	c.add(&responseItem{ID: newID("msg_"), Type: kind, Role: chat.RoleAssistant, Content: &[]responsePart{}})
	c.sendItem(responseEvent{Type: "response.content_part.added", Part: outputText("")})
}

// add adds an item.
func (c *responseWriter) add(x *responseItem) {
	x.Status = statusInProgress
	c.item = x
	c.response.Output = append(c.response.Output, x)
	c.sendItem(responseEvent{Type: "response.output_item.added", Item: x})
}

// end ends the item that grows, if there is one.
func (c *responseWriter) end(status string) {
	x := c.item
	if x == nil {
		return
	}
	text := c.text.String()
	c.text.Reset()
	switch x.Type {
	case itemReasoning:
		x.Content = &[]responsePart{{Type: "reasoning_text", Text: text}}
		c.sendItem(responseEvent{Type: "response.reasoning_text.done", Text: &text})
	case itemMessage:
		part := outputText(text)
		x.Content = &[]responsePart{*part}
		c.sendItem(responseEvent{Type: "response.output_text.done", Text: &text, Logprobs: &[]string{}})
		c.sendItem(responseEvent{Type: "response.content_part.done", Part: part})
	case itemCall:
		x.Arguments = &text
		c.sendItem(responseEvent{Type: "response.function_call_arguments.done", Name: x.Name, Arguments: &text})
	}
	x.Status = status
	c.sendItem(responseEvent{Type: "response.output_item.done", Item: x})
	c.item = nil
}

// finish ends the response.
func (c *responseWriter) finish(t *task, a *answer) {
	x := &c.response
	if len(x.Output) == 0 {
		c.addText(itemMessage) // an answer that is empty is one
	}
	x.Status = statusCompleted
	if a.Reason != engine.ReasonStop {
		x.Status, x.Incomplete = statusIncomplete, &responseIncomplete{Reason: "max_output_tokens"}
	} else {
		x.Completed = new(time.Now().Unix())
	}
	c.end(x.Status)
	u, times := usageOf(t, []answer{*a}), timingsOf(&a.Result)
	x.Usage = &responseUsage{Input: u.Prompt, Output: u.Completion, Total: u.Total}
	x.Usage.InputMore.Cached, x.Usage.OutputMore.Reasoning = u.PromptMore.Cached, u.CompletionMore.Reasoning
	x.Timings = &times
	c.send(responseEvent{Type: "response." + x.Status, Response: x})
}

// stream answers as it comes.
func (c *responseWriter) stream(s *Server, w http.ResponseWriter, r *http.Request, m *served, t *task) error {
	c.events = s.events(w)
	answers, err := s.run(r, m, t, func(u update) error {
		c.begin() // also before a ping, as an error can have no status of its own after it
		if u.ping && c.err == nil {
			return c.events.ping()
		}
		return c.write(u.events)
	})
	if err == nil {
		c.finish(t, &answers[0])
		err = c.err
	}
	if err == nil || !c.events.sent {
		return err
	}
	if e := s.explain(r, err); e.Status != statusGone {
		c.fail(e)
	}
	return nil
}

// fail ends the response because of an error.
func (c *responseWriter) fail(e *apiError) {
	code, ok := e.Code.(string)
	if !ok {
		code = e.Type
	}
	c.end(statusIncomplete)
	x := &c.response
	x.Status, x.Error = statusFailed, &responseError{Code: code, Message: e.Message}
	c.send(responseEvent{Type: "response.failed", Response: x})
	if c.err != nil {
		return
	}
	body := e.body()
	// The stream ends here in any case.
	_ = c.events.data("error", responseFault{
		Type: "error", Sequence: c.sequence, Code: code, Message: e.Message, Param: body["param"], Error: body,
	})
}
