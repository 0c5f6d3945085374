package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
)

const responsesTool = `{"type":"function","name":"add","description":"adds","strict":true,"parameters":{"type":"object",` +
	`"properties":{"a":{"type":"integer","minimum":0,"maximum":9}},"required":["a"],"additionalProperties":false}}`

// outputOf adds up the text of a response's messages.
func outputOf(t *testing.T, x object) (text string) {
	t.Helper()
	for _, item := range x["output"].([]any) {
		if at(t, item, "type") == "message" {
			text += at(t, item, "content", 0, "text").(string)
		}
	}
	return text
}

// A question is answered, and the answer repeats what was asked for.
func TestResponses(t *testing.T) {
	c := demoServer(t)
	x := c.post("/v1/responses", `{"model":"demo","input":"What is 12+7?","store":true,"metadata":{"run":"7"},"temperature":0,
		"max_output_tokens":64,"reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"],"truncation":"disabled"}`)
	if outputOf(t, x) != "12 + 7 = 19" || x["status"] != "completed" || x["object"] != "response" || x["model"] != "demo" {
		t.Errorf("%v", x)
	}
	for _, w := range []struct {
		want any
		path []any
	}{
		{false, []any{"store"}}, {false, []any{"background"}}, {nil, []any{"error"}}, {nil, []any{"incomplete_details"}},
		{nil, []any{"previous_response_id"}}, {"7", []any{"metadata", "run"}}, {64.0, []any{"max_output_tokens"}},
		{0.0, []any{"temperature"}}, {"low", []any{"reasoning", "effort"}}, {"text", []any{"text", "format", "type"}},
		{"auto", []any{"tool_choice"}}, {true, []any{"parallel_tool_calls"}}, {"assistant", []any{"output", 0, "role"}},
		{"completed", []any{"output", 0, "status"}}, {"output_text", []any{"output", 0, "content", 0, "type"}},
	} {
		if got := at(t, x, w.path...); got != w.want {
			t.Errorf("%v is %v and not %v", w.path, got, w.want)
		}
	}
	if !strings.HasPrefix(x["id"].(string), "resp_") || !strings.HasPrefix(at(t, x, "output", 0, "id").(string), "msg_") {
		t.Errorf("ids %v and %v", x["id"], at(t, x, "output", 0, "id"))
	}
	u := x["usage"].(object)
	if u["total_tokens"].(float64) != u["input_tokens"].(float64)+u["output_tokens"].(float64) || u["output_tokens"].(float64) == 0 {
		t.Errorf("usage %v", u)
	}
	at(t, u, "input_tokens_details", "cached_tokens")
	at(t, u, "output_tokens_details", "reasoning_tokens")
	if at(t, x, "timings", "predicted_n") != u["output_tokens"] {
		t.Errorf("timings %v", x["timings"])
	}
	y := c.post("/v1/responses/input_tokens", `{"model":"demo","input":[{"role":"user","content":[{"type":"input_text","text":"What is 12+7?"}]}]}`)
	if y["input_tokens"] != u["input_tokens"] || y["object"] != "response.input_tokens" {
		t.Errorf("%v tokens counted, %v used", y, u["input_tokens"])
	}
	x = c.post("/responses", `{"input":"What is 12+7?","max_output_tokens":2}`)
	if x["status"] != "incomplete" || at(t, x, "incomplete_details", "reason") != "max_output_tokens" || at(t, x, "output", 0, "status") != "incomplete" {
		t.Errorf("%v", x)
	}
}

// checkEvents checks what holds for every stream, and returns the types of its events without repetitions, and the last
// response. What the events say of items must add up to that response's output.
func checkEvents(t *testing.T, events []event) (types []string, last object) {
	t.Helper()
	var items []object
	texts := map[string]string{}
	for i, e := range events {
		kind := at(t, e.json, "type").(string)
		if e.name != kind || e.json["sequence_number"] != float64(i) {
			t.Errorf("event %d: %s, %v", i, e.name, e.data)
		}
		if len(types) == 0 || types[len(types)-1] != kind {
			types = append(types, kind)
		}
		if r, ok := e.json["response"].(object); ok {
			if last != nil && r["id"] != last["id"] {
				t.Errorf("response %v and %v", last["id"], r["id"])
			}
			last = r
			continue
		}
		if kind == "error" {
			continue
		}
		index := int(e.json["output_index"].(float64))
		if kind == "response.output_item.added" {
			if index != len(items) || at(t, e.json, "item", "status") != "in_progress" {
				t.Errorf("%s", e.data)
			}
			items = append(items, e.json["item"].(object))
			continue
		}
		id := items[index]["id"].(string)
		if kind == "response.output_item.done" {
			if at(t, e.json, "item", "id") != id {
				t.Errorf("item %s ends as %s", id, e.data)
			}
			items[index] = e.json["item"].(object)
			continue
		}
		if e.json["item_id"] != id || index != len(items)-1 {
			t.Errorf("item %d is %s, and an event says %s", index, id, e.data)
		}
		if d, ok := e.json["delta"].(string); ok {
			texts[id] += d
		}
		for _, name := range []string{"text", "arguments"} {
			if s, ok := e.json[name].(string); ok && s != texts[id] {
				t.Errorf("deltas of %q, and at the end %q", texts[id], s)
			}
		}
	}
	var list []any
	for _, x := range items {
		list = append(list, x)
		text, ok := x["arguments"].(string)
		if !ok {
			text = at(t, x, "content", 0, "text").(string)
		}
		if text != texts[x["id"].(string)] {
			t.Errorf("deltas of %q for %v", texts[x["id"].(string)], x)
		}
	}
	if as(list) != as(last["output"]) {
		t.Errorf("items %s\noutput %s", as(list), as(last["output"]))
	}
	return types, last
}

const (
	eventsBegin   = "response.created response.in_progress "
	eventsMessage = "response.output_item.added response.content_part.added response.output_text.delta response.output_text.done " +
		"response.content_part.done response.output_item.done "
	eventsReasoning = "response.output_item.added response.reasoning_text.delta response.reasoning_text.done response.output_item.done "
	eventsCall      = "response.output_item.added response.function_call_arguments.delta response.function_call_arguments.done response.output_item.done "
)

// A stream says the same as an answer at once.
func TestResponsesStream(t *testing.T) {
	c := demoServer(t)
	types, x := checkEvents(t, c.stream("/v1/responses", `{"input":"What is 12+7?","stream":true}`))
	if got, want := strings.Join(types, " "), eventsBegin+eventsMessage+"response.completed"; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if outputOf(t, x) != "12 + 7 = 19" || at(t, x, "usage", "output_tokens").(float64) == 0 || at(t, x, "timings", "predicted_n").(float64) == 0 {
		t.Errorf("%v", x)
	}
	types, x = checkEvents(t, c.stream("/v1/responses", `{"input":"What is 12+7?","stream":true,"max_output_tokens":2}`))
	if types[len(types)-1] != "response.incomplete" || x["status"] != "incomplete" || at(t, x, "output", 0, "status") != "incomplete" {
		t.Errorf("%v %v", types, x)
	}
}

// A call goes to the client and its output comes back.
func TestResponsesTools(t *testing.T) {
	c := demoServer(t)
	const ask = `"tools":[` + responsesTool + `],"tool_choice":{"type":"function","name":"add"},"max_output_tokens":200`
	types, x := checkEvents(t, c.stream("/v1/responses", `{"input":"What is 12+7?","stream":true,`+ask+`}`))
	if got, want := strings.Join(types, " "), eventsBegin+eventsCall+"response.completed"; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if at(t, x, "tools", 0, "name") != "add" || at(t, x, "tool_choice", "name") != "add" {
		t.Errorf("%v", x)
	}
	whole := c.post("/v1/responses", `{"input":"What is 12+7?",`+ask+`}`)
	call := at(t, whole, "output", 0).(object)
	if call["type"] != "function_call" || call["arguments"] != at(t, x, "output", 0, "arguments") || call["name"] != "add" ||
		!strings.HasPrefix(call["id"].(string), "fc_") || !strings.HasPrefix(call["call_id"].(string), "call_") {
		t.Errorf("%v", call)
	}
	y := c.post("/v1/responses", fmt.Sprintf(`{"input":[{"role":"user","content":"What is 12+7?"},%s,
		{"type":"function_call_output","call_id":%q,"output":"19"}],"tools":[%s],"max_output_tokens":4}`, as(call), call["call_id"], responsesTool))
	if len(y["output"].([]any)) == 0 {
		t.Errorf("%v", y)
	}
}

// An answer keeps to text.format.
func TestResponsesFormat(t *testing.T) {
	x := demoServer(t).post("/v1/responses", `{"input":"What is 12+7?","max_output_tokens":64,"text":{"format":{"type":"json_schema","name":"n","strict":true,
		"schema":{"type":"object","properties":{"a":{"enum":[5]}},"required":["a"],"additionalProperties":false}}}}`)
	if got := outputOf(t, x); got != `{"a":5}` || at(t, x, "text", "format", "name") != "n" {
		t.Errorf("%q %v", got, x)
	}
}

// What cannot be done is refused, and the error names the field of the request.
func TestResponsesRefused(t *testing.T) {
	c := demoServer(t)
	const ask, user = `"input":"Hi"`, `{"role":"user","content":"Hi"}`
	for _, w := range []struct{ body, param, kind string }{
		{ask + `,"previous_response_id":"resp_1"`, "previous_response_id", typeNotSupported},
		{ask + `,"conversation":"conv_1"`, "conversation", typeNotSupported},
		{ask + `,"prompt":{"id":"p"}`, "prompt", typeNotSupported},
		{ask + `,"background":true`, "background", typeNotSupported},
		{ask + `,"truncation":"auto"`, "truncation", typeNotSupported},
		{ask + `,"truncation":"some"`, "truncation", typeInvalid},
		{ask + `,"top_logprobs":2`, "top_logprobs", typeNotSupported},
		{ask + `,"include":["message.output_text.logprobs"]`, "include", typeNotSupported},
		{ask + `,"n":2`, "n", typeInvalid},
		{ask + `,"store":"no"`, "store", typeInvalid},
		{ask + `,"metadata":{"a":1}`, "metadata", typeInvalid},
		{ask + `,"max_output_tokens":0`, "max_output_tokens", typeInvalid},
		{ask + `,"temperature":3`, "temperature", typeInvalid},
		{ask + `,"instructions":["Be brief"]`, "instructions", typeInvalid},
		{ask + `,"reasoning":{"effort":"some"}`, "reasoning.effort", typeInvalid},
		{ask + `,"reasoning":{"effort":1}`, "reasoning.effort", typeInvalid},
		{ask + `,"text":{"format":{"type":"xml"}}`, "text.format.type", typeInvalid},
		{ask + `,"text":{"format":{"type":"json_schema"}}`, "text.format.schema", typeInvalid},
		{ask + `,"text":{"format":{"type":"json_schema","schema":{"type":"object","$ref":"#/none"}}}`, "text.format.schema", typeInvalid},
		{ask + `,"tools":[{"type":"web_search"}]`, "tools[0].type", typeNotSupported},
		{ask + `,"tools":[` + responsesTool + `,{"type":"function"}]`, "tools[1].name", typeInvalid},
		{ask + `,"tools":[` + responsesTool + `,` + responsesTool + `]`, "tools[1].name", typeInvalid},
		{ask + `,"tools":[{"type":"function","name":"f","parameters":[]}]`, "tools[0].parameters", typeInvalid},
		{ask + `,"tool_choice":{"type":"allowed_tools"}`, "tool_choice.type", typeNotSupported},
		{ask + `,"tool_choice":"required"`, "tool_choice", typeInvalid},
		{`"model":"demo"`, "input", typeInvalid},
		{`"input":[]`, "input", typeInvalid},
		{`"input":7`, "input", typeInvalid},
		{`"input":["Hi"]`, "input[0]", typeInvalid},
		{`"input":[{"content":"Hi"}]`, "input[0].type", typeInvalid},
		{`"input":[{"type":"item_reference","id":"msg_1"}]`, "input[0].type", typeNotSupported},
		{`"input":[{"role":"robot","content":"Hi"}]`, "input[0].role", typeInvalid},
		{`"input":[` + user + `,{"role":"user"}]`, "input[1].content", typeInvalid},
		{`"input":[` + user + `,{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"x"}]}]`, "input[1].content[1].type", typeNotSupported},
		{`"input":[` + user + `,{"type":"function_call","name":"f","arguments":"{}"},` + user + `]`, "input[1].call_id", typeInvalid},
		{`"input":[` + user + `,{"type":"function_call","call_id":"c","name":"f","arguments":"{"},` + user + `]`, "input[1].arguments", typeInvalid},
		{`"input":[` + user + `,{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]`, "input[1]", typeInvalid},
		{`"input":[` + user + `,{"type":"function_call_output","output":"1"}]`, "input[1].call_id", typeInvalid},
		{`"model":"other",` + ask, "model", typeNotFound},
	} {
		for _, path := range []string{"/v1/responses", "/v1/responses/input_tokens"} {
			status, x := c.call("POST", path, "{"+w.body+"}")
			if strings.HasSuffix(path, "tokens") && (w.param == "text.format.schema" && !strings.HasSuffix(w.body, `"json_schema"}}`)) {
				continue // no grammar is made
			}
			if want := map[bool]int{true: 404, false: 400}[w.kind == typeNotFound]; status != want {
				t.Errorf("%s %s: %d %v", path, w.body, status, x)
			} else if at(t, x, "error", "param") != w.param || at(t, x, "error", "type") != w.kind {
				t.Errorf("%s %s: %v", path, w.body, x)
			} else if msg := at(t, x, "error", "message").(string); !strings.HasPrefix(msg, w.param+": ") {
				t.Errorf("%s %s: %s", path, w.body, msg)
			}
		}
	}
}

// Items become messages: those of one answer become one.
func TestResponsesInput(t *testing.T) {
	b, err := parseBody("", []byte(`{"instructions":"Be brief.","input":[
		{"type":"message","role":"developer","content":"In English."},
		{"role":"user","content":[{"type":"input_text","text":"Hel"},{"type":"input_text","text":"lo"}]},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"Well"}]},
		{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]},
		{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{\"a\":1}"},
		{"type":"function_call","call_id":"call_2","name":"g","arguments":""},
		{"type":"function_call_output","call_id":"call_1","output":"one"},
		{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"two"}]},
		{"type":"reasoning","summary":[{"type":"summary_text","text":"So"}],"encrypted_content":"x"},
		{"role":"assistant","content":"A"},
		{"role":"assistant","content":"B"},
		{"type":"reasoning","summary":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	x := &responseRequest{}
	q, err := x.read(s, b)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range q.messages {
		line := m.Role
		if m.Reasoning != nil {
			line += " (" + *m.Reasoning + ")"
		}
		if m.Text != nil {
			line += " " + *m.Text
		}
		for _, c := range m.ToolCalls {
			line += fmt.Sprintf(" %s=%s/%d", c.ID, c.Name, c.Arguments.Len())
		}
		got = append(got, line+m.ToolCallID)
	}
	want := []string{
		"system Be brief.", "system In English.", "user Hello", "assistant (Well) Hi call_1=f/1 call_2=g/0",
		"tool onecall_1", "tool twocall_2", "assistant (So) A", "assistant B",
	}
	if as(got) != as(want) {
		t.Errorf("%s\nnot %s", as(got), as(want))
	}
	for name, want := range map[string]string{
		"messages": "input", "messages[0].content": "instructions", "messages[1].content": "input[0].content", "messages[3].reasoning_content": "input[2]",
		"messages[3].content": "input[3].content", "messages[3].tool_calls[1].function.arguments": "input[5].arguments",
		"messages[5].content": "input[7].output", "messages[6]": "input[10]", "messages[99].content": "input", "tools[2].function.name": "tools[2].name",
	} {
		if got := x.field(name); got != want {
			t.Errorf("%s is %s and not %s", name, got, want)
		}
	}
}

// Reasoning, text and calls are items of their own, in the order of the answer.
func TestResponsesItems(t *testing.T) {
	rec := httptest.NewRecorder()
	c := &responseWriter{events: (&Server{}).events(rec)}
	c.response.Output = []*responseItem{}
	c.begin()
	for _, ev := range []chat.Event{
		{Kind: chat.EventReasoning, Text: "We"}, {Kind: chat.EventReasoning, Text: "ll"}, {Kind: chat.EventContent, Text: "Hi"},
		{Kind: chat.EventCallStart, ID: "call_1", Name: "f"}, {Kind: chat.EventCallArguments, Text: `{"a":`}, {Kind: chat.EventCallArguments, Text: `1}`},
		{Kind: chat.EventCallEnd}, {Kind: chat.EventContent, Text: "Bye"},
	} {
		if err := c.write([]chat.Event{ev}); err != nil {
			t.Fatal(err)
		}
	}
	c.finish(&task{n: 1}, &answer{Result: engine.Result{Reason: engine.ReasonStop}})
	types, _ := checkEvents(t, readEvents(t, rec.Body))
	if got, want := strings.Join(types, " "), eventsBegin+eventsReasoning+eventsMessage+eventsCall+eventsMessage+"response.completed"; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
}

// faultyStream gives one token and fails.
type faultyStream struct{ err error }

func (f faultyStream) Tokens() iter.Seq2[engine.Token, error] {
	return func(yield func(engine.Token, error) bool) {
		if yield(engine.Token{ID: 1, Text: "Hi"}, nil) {
			yield(engine.Token{}, f.err)
		}
	}
}
func (f faultyStream) Result() (engine.Result, error) {
	return engine.Result{Reason: engine.ReasonError}, f.err
}
func (f faultyStream) Progress() engine.PromptProgress { return engine.PromptProgress{} }
func (f faultyStream) Cancel()                         {}

// A stream that fails ends with a failed response and an error; an answer at once has the error's status.
func TestResponsesFailed(t *testing.T) {
	c := demoServer(t)
	c.s.model.Load().generate = func(context.Context, engine.Request) (stream, error) {
		return faultyStream{errors.New("broken")}, nil
	}
	types, x := checkEvents(t, c.stream("/v1/responses", `{"input":"Hi","stream":true,"temperature":0}`))
	if got, want := strings.Join(types, " "), eventsBegin+eventsMessage+"response.failed error"; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if x["status"] != "failed" || at(t, x, "error", "code") != "server_error" || outputOf(t, x) != "Hi" || at(t, x, "output", 0, "status") != "incomplete" ||
		strings.Contains(as(x), "broken") {
		t.Errorf("%v", x)
	}
	if status, y := c.call("POST", "/v1/responses", `{"input":"Hi"}`); status != 500 || at(t, y, "error", "type") != typeServer {
		t.Errorf("%d %v", status, y)
	}
}
