package server

import (
	"net/http"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

// chatWriter writes answers in the form of chat completions.
type chatWriter struct {
	head header
	q    *chatRequest
	m    *served
	t    *task
}

// A callMessage is a tool call of a message, or a part of one.
type callMessage struct {
	Index    *int     `json:"index,omitempty"` // in streams
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type,omitempty"`
	Function callText `json:"function"`
}

type callText struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// A chatMessage is the answer. Reasoning goes by two names, as clients know one or the other.
type chatMessage struct {
	Role             string        `json:"role"`
	Content          *string       `json:"content"`
	ReasoningContent *string       `json:"reasoning_content,omitempty"`
	Reasoning        *string       `json:"reasoning,omitempty"`
	ToolCalls        []callMessage `json:"tool_calls,omitempty"`
	Refusal          *string       `json:"refusal"`
}

type logprobs struct {
	Content []tokenLogprob `json:"content"`
	Refusal *string        `json:"refusal"`
}

type chatChoice struct {
	Index    int         `json:"index"`
	Message  chatMessage `json:"message"`
	Finish   string      `json:"finish_reason"`
	Logprobs *logprobs   `json:"logprobs"`
}

type chatCompletion struct {
	header
	Choices []chatChoice `json:"choices"`
	Usage   usage        `json:"usage"`
	Timings timings      `json:"timings"`
	Seed    uint64       `json:"seed"`
}

// message is an answer as a message.
func message(a *answer) chatMessage {
	msg := chatMessage{Role: chat.RoleAssistant, Content: a.Content, ReasoningContent: a.Reasoning, Reasoning: a.Reasoning}
	for _, c := range a.Calls {
		msg.ToolCalls = append(msg.ToolCalls, callMessage{ID: c.ID, Type: "function", Function: callText{c.Name, c.Arguments}})
	}
	if msg.Content == nil && len(msg.ToolCalls) == 0 && a.Reasoning == nil {
		msg.Content = new("") // an answer that is empty is one
	}
	return msg
}

// whole is a completion that is not a stream.
func (c *chatWriter) whole(answers []answer, probs [][]tokenLogprob) chatCompletion {
	x := chatCompletion{header: c.head, Usage: usageOf(c.t, answers), Timings: timingsOf(&answers[0].Result), Seed: c.t.request.Sample.Seed}
	for i := range answers {
		ch := chatChoice{Index: i, Message: message(&answers[i]), Finish: answers[i].finish()}
		if c.q.logprobs {
			ch.Logprobs = &logprobs{Content: append([]tokenLogprob{}, probs[i]...)}
		}
		x.Choices = append(x.Choices, ch)
	}
	return x
}

// A delta is what a chunk adds to a message.
type delta struct {
	Role             string        `json:"role,omitempty"`
	Content          *string       `json:"content,omitempty"`
	ReasoningContent *string       `json:"reasoning_content,omitempty"`
	Reasoning        *string       `json:"reasoning,omitempty"`
	ToolCalls        []callMessage `json:"tool_calls,omitempty"`
}

type chunkChoice struct {
	Index    int       `json:"index"`
	Delta    delta     `json:"delta"`
	Finish   *string   `json:"finish_reason"`
	Logprobs *logprobs `json:"logprobs"`
}

type promptProgress struct {
	Total     int     `json:"total"`
	Cache     int     `json:"cache"`
	Processed int     `json:"processed"`
	TimeMS    float64 `json:"time_ms"`
}

func progressOf(p *engine.PromptProgress) *promptProgress {
	return &promptProgress{p.Total, p.Cached, p.Done, ms(p.Time)}
}

type chunk struct {
	header
	Choices  []chunkChoice   `json:"choices"`
	Usage    *usage          `json:"usage,omitempty"`
	Timings  *timings        `json:"timings,omitempty"`
	Progress *promptProgress `json:"prompt_progress,omitempty"`
}

// stream writes a completion as it comes.
func (c *chatWriter) stream(s *Server, w http.ResponseWriter, r *http.Request) error {
	e := s.events(w)
	c.head.Object = "chat.completion.chunk"
	send := func(x chunk) error {
		x.header = c.head
		if x.Choices == nil {
			x.Choices = []chunkChoice{}
		}
		return e.data("", x)
	}
	begun := make([]bool, c.t.n)
	held := make([][]tokenLogprob, c.t.n) // of tokens whose text has not come out
	counts := make([]engine.Result, c.t.n)
	answers, err := s.run(r, c.m, c.t, func(u update) error {
		switch {
		case u.ping:
			return e.ping()
		case u.progress != nil:
			// With a choice, as clients that never asked for usage know no chunk without.
			return send(chunk{Choices: []chunkChoice{{Delta: delta{}}}, Progress: progressOf(u.progress)})
		}
		if !begun[u.index] {
			begun[u.index] = true
			if err := send(chunk{Choices: []chunkChoice{{Index: u.index, Delta: delta{Role: chat.RoleAssistant, Content: new("")}}}}); err != nil {
				return err
			}
		}
		if u.token != nil {
			counts[u.index].Tokens++
			if c.q.logprobs {
				held[u.index] = append(held[u.index], c.m.logprob(u.token))
			}
		}
		for _, ev := range u.events {
			d, ok := deltaOf(ev)
			if !ok {
				continue
			}
			x := chunk{Choices: []chunkChoice{{Index: u.index, Delta: d, Logprobs: c.take(held, u.index)}}}
			if c.q.timings {
				x.Timings = &timings{PredictedN: counts[u.index].Tokens}
			}
			if err := send(x); err != nil {
				return err
			}
		}
		if u.answer == nil {
			return nil
		}
		return send(chunk{Choices: []chunkChoice{{Index: u.index, Finish: new(u.answer.finish()), Logprobs: c.take(held, u.index)}}})
	})
	if err == nil {
		t := timingsOf(&answers[0].Result)
		if c.q.usage {
			u := usageOf(c.t, answers)
			err = send(chunk{Usage: &u, Timings: &t})
		}
		if err == nil {
			err = e.done()
		}
	}
	return e.end(s, r, err, func(form any) error { return e.data("", form) })
}

// take takes the log-probabilities that have come up to now.
func (c *chatWriter) take(held [][]tokenLogprob, i int) *logprobs {
	if !c.q.logprobs || len(held[i]) == 0 {
		return nil
	}
	p := &logprobs{Content: held[i]}
	held[i] = nil
	return p
}

// deltaOf is an event as a part of a message. The end of a call is none.
func deltaOf(ev chat.Event) (delta, bool) {
	switch ev.Kind {
	case chat.EventReasoning:
		return delta{ReasoningContent: &ev.Text, Reasoning: &ev.Text}, true
	case chat.EventContent:
		return delta{Content: &ev.Text}, true
	case chat.EventCallStart:
		return delta{ToolCalls: []callMessage{{Index: &ev.Index, ID: ev.ID, Type: "function", Function: callText{Name: ev.Name}}}}, true
	case chat.EventCallArguments:
		return delta{ToolCalls: []callMessage{{Index: &ev.Index, Function: callText{Arguments: ev.Text}}}}, true
	}
	return delta{}, false
}
