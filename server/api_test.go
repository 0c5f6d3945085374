package server

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// The messages API gives the answer of the others, at once and in events that a client can put together.
func TestMessages(t *testing.T) {
	c := demoServer(t)
	const ask = `"model":"demo","max_tokens":20,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"What is 12+7?"}]}]`
	x := c.post("/v1/messages", `{`+ask+`}`)
	if x["type"] != "message" || x["role"] != "assistant" || x["stop_reason"] != "end_turn" || at(t, x, "content", 0, "type") != "text" {
		t.Errorf("%v", x)
	}
	want := at(t, x, "content", 0, "text")
	in := at(t, x, "usage", "input_tokens").(float64) + at(t, x, "usage", "cache_read_input_tokens").(float64)
	if n := c.post("/v1/messages/count_tokens", `{`+ask+`}`)["input_tokens"]; n != in {
		t.Errorf("%v tokens counted, %v used", n, in)
	}
	events := c.stream("/v1/messages", `{`+ask+`,"stream":true}`)
	text, open, names := "", -1.0, []string{}
	for _, e := range events {
		if e.name != e.json["type"] {
			t.Errorf("the event %s holds a %v", e.name, e.json["type"])
		}
		if len(names) == 0 || names[len(names)-1] != e.name {
			names = append(names, e.name)
		}
		switch e.name {
		case "content_block_start":
			open = e.json["index"].(float64)
		case "content_block_delta":
			if e.json["index"] != open {
				t.Errorf("a delta of block %v in block %v", e.json["index"], open)
			}
			text += at(t, e.json, "delta", "text").(string)
		}
	}
	if got := strings.Join(names, " "); got != "message_start content_block_start content_block_delta content_block_stop message_delta message_stop" {
		t.Errorf("events %s", got)
	}
	if text != want {
		t.Errorf("a stream of %q, and %q at once", text, want)
	}
	end := events[len(events)-2].json
	if at(t, end, "delta", "stop_reason") != "end_turn" || at(t, end, "usage", "output_tokens") != at(t, x, "usage", "output_tokens") {
		t.Errorf("the end is %v", end)
	}

	// Thinking, text and calls are blocks of their own.
	c.force(nil, []byte("let me see</think>Here:"), []byte("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"))
	const tools = `{` + ask + `,"thinking":{"type":"enabled","budget_tokens":100},"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}]`
	x = c.post("/v1/messages", tools+`}`)
	blocks := x["content"].([]any)
	if len(blocks) != 3 || at(t, blocks, 0, "thinking") != "let me see" || at(t, blocks, 1, "text") != "Here:" || at(t, blocks, 2, "input", "a") != 1.0 || x["stop_reason"] != "tool_use" {
		t.Errorf("%s", as(x))
	}
	kinds, arguments := "", ""
	for _, e := range c.stream("/v1/messages", tools+`,"stream":true}`) {
		switch e.name {
		case "content_block_start":
			kinds += " " + at(t, e.json, "content_block", "type").(string)
		case "content_block_delta":
			if s, ok := at(t, e.json, "delta").(object)["partial_json"].(string); ok {
				arguments += s
			}
		}
	}
	var v object
	if kinds != " thinking text tool_use" || json.Unmarshal([]byte(arguments), &v) != nil || v["a"] != 1.0 {
		t.Errorf("blocks%s, arguments %q", kinds, arguments)
	}
}

// A conversation with results of tools comes to the model as one in OpenAI's form does.
func TestMessagesPrompt(t *testing.T) {
	c := demoServer(t)
	n := c.post("/v1/messages/count_tokens", `{"model":"demo","messages":[
		{"role":"user","content":"Weather?"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"I look."},{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"rain"}]},{"type":"text","text":"So?"}]}]}`)
	m := c.post("/v1/chat/completions/input_tokens", `{"model":"demo","messages":[
		{"role":"user","content":"Weather?"},
		{"role":"assistant","reasoning_content":"hm","content":"I look.","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
		{"role":"tool","tool_call_id":"1","content":"rain"},
		{"role":"user","content":"So?"}]}`)
	if n["input_tokens"] != m["input_tokens"] || n["input_tokens"].(float64) < 20 {
		t.Errorf("%v and %v", n, m)
	}
}

// Ollama's lines end with the one that says so, and nothing after it.
func TestOllama(t *testing.T) {
	c := demoServer(t)
	for path, ask := range map[string]string{
		"/api/chat":     `{"model":"demo:latest",` + question + `,"options":{"num_predict":20}`,
		"/api/generate": `{"model":"demo","prompt":"What is 12+7?","options":{"num_predict":20}`,
	} {
		text := func(line object) string {
			if path == "/api/chat" {
				return at(t, line, "message", "content").(string)
			}
			return line["response"].(string)
		}
		whole := c.post(path, ask+`,"stream":false}`)
		if whole["done"] != true || whole["done_reason"] != "stop" || text(whole) != "12 + 7 = 19" {
			t.Errorf("%s: %v", path, whole)
		}
		res := c.send("POST", path, ask+`}`)
		data, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("%s: %v, %q", path, err, res.Header.Get("Content-Type"))
		}
		all, last := "", object{}
		for line := range strings.Lines(string(data)) {
			if last["done"] == true {
				t.Errorf("%s: after the end comes %s", path, line)
			}
			last = object{}
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Fatal(err)
			}
			all += text(last)
		}
		if all != text(whole) || last["done"] != true || last["eval_count"] != whole["eval_count"] {
			t.Errorf("%s: %q, %v", path, all, last)
		}
	}
	if x := c.post("/api/show", `{"model":"demo"}`); at(t, x, "details", "family") != "qwen35moe" {
		t.Errorf("%v", x)
	}
	for _, path := range []string{"/api/tags", "/api/ps"} {
		if _, x := c.call("GET", path, ""); at(t, x, "models", 0, "name") != "demo:latest" {
			t.Errorf("%s: %v", path, x)
		}
	}
}

// What llama-server's tools ask for.
func TestLlama(t *testing.T) {
	c := demoServer(t)
	x := c.post("/tokenize", `{"content":"Hello €","with_pieces":true}`)
	var ids []any
	for _, p := range x["tokens"].([]any) {
		ids = append(ids, p.(object)["id"])
	}
	if y := c.post("/detokenize", as(object{"tokens": ids})); y["content"] != "Hello €" {
		t.Errorf("%v became %v", x, y)
	}
	p := c.post("/apply-template", `{`+question+`}`)["prompt"].(string)
	if !strings.HasPrefix(p, "<|im_start|>user\nWhat is 12+7?<|im_end|>\n<|im_start|>assistant\n") {
		t.Errorf("%q", p)
	}
	whole := c.post("/completion", as(object{"prompt": p, "n_predict": 20}))
	if whole["content"] != "12 + 7 = 19" || whole["stop"] != true || whole["stop_type"] != "eos" {
		t.Errorf("%v", whole)
	}
	text, tokens := "", 0
	events := c.stream("/completion", as(object{"prompt": p, "n_predict": 20, "stream": true}))
	for _, e := range events {
		text += e.json["content"].(string)
		tokens += len(e.json["tokens"].([]any))
	}
	if text != whole["content"] || events[len(events)-1].json["stop"] != true || float64(tokens) != whole["tokens_predicted"] {
		t.Errorf("%q, %d tokens", text, tokens)
	}
	limited := c.post("/completion", as(object{"prompt": p, "n_predict": 2, "n_probs": 2}))
	if limited["stop_type"] != "limit" || len(limited["completion_probabilities"].([]any)) != 2 {
		t.Errorf("%v", limited)
	}
	if status, x := c.call("POST", "/completion", `{"prompt":"x","n_predict":0}`); status != 400 {
		t.Errorf("%d %v", status, x)
	}
	_, props := c.call("GET", "/props", "")
	if props["total_slots"] != 2.0 || at(t, props, "default_generation_settings", "n_ctx") != 1024.0 || strings.Contains(props["model_path"].(string), "/") {
		t.Errorf("%v", props)
	}
}

// Several prompts with several answers come by index, each prompt with its own, and echo and scores go before the answer.
func TestCompletions(t *testing.T) {
	c := demoServer(t)
	x := c.post("/v1/completions", `{"prompt":["One two","Once upon","a"],"n":2,"max_tokens":3,"echo":true,"logprobs":2}`)
	list := x["choices"].([]any)
	if len(list) != 6 {
		t.Fatalf("%d choices", len(list))
	}
	for i, begin := range []string{"One two", "One two", "Once upon", "Once upon", "a", "a"} {
		ch := list[i].(object)
		if ch["index"] != float64(i) || !strings.HasPrefix(ch["text"].(string), begin) || len(ch["text"].(string)) == len(begin) {
			t.Errorf("choice %d: %v", i, ch)
		}
		p := ch["logprobs"].(object)
		text := ""
		for k, tok := range p["tokens"].([]any) {
			if p["text_offset"].([]any)[k] != float64(len([]rune(text))) {
				t.Errorf("choice %d: offset %v of token %d", i, p["text_offset"].([]any)[k], k)
			}
			text += tok.(string)
		}
		if text != ch["text"] || p["token_logprobs"].([]any)[0] != nil || len(p["top_logprobs"].([]any)) != len(p["tokens"].([]any)) {
			t.Errorf("choice %d: %q of %v", i, text, p)
		}
	}
	// Scoring alone, as evaluation harnesses do, gives what scoring before an answer gives.
	only := c.post("/v1/completions", `{"prompt":"Once upon","max_tokens":0,"echo":true,"logprobs":2}`)
	a, b := at(t, only, "choices", 0, "logprobs", "token_logprobs").([]any), at(t, list, 2, "logprobs", "token_logprobs").([]any)
	if at(t, only, "choices", 0, "text") != "Once upon" || len(a) != len(b)-3 || as(a) != as(b[:len(a)]) {
		t.Errorf("%v, want the beginning of %v", a, b)
	}
	// A stream of the same puts the same together.
	texts := make([]string, 6)
	for _, e := range c.stream("/v1/completions", `{"prompt":["One two","Once upon","a"],"n":2,"max_tokens":3,"echo":true,"logprobs":2,"stream":true}`) {
		if e.data == "[DONE]" {
			continue
		}
		ch := at(t, e.json, "choices", 0).(object)
		texts[int(ch["index"].(float64))] += ch["text"].(string)
	}
	for i, s := range texts {
		if s != at(t, list, i, "text") {
			t.Errorf("choice %d: a stream of %q, and %q at once", i, s, at(t, list, i, "text"))
		}
	}
}

// The same seed gives the same answer, whatever else runs, and different ones differ.
func TestSeed(t *testing.T) {
	c := demoServer(t)
	ask := func(seed string) string {
		return at(t, c.post("/v1/completions", `{"prompt":"Once upon a time","max_tokens":12,"temperature":1.5`+seed+`}`), "choices", 0, "text").(string)
	}
	a, b, other := ask(`,"seed":5`), ask(`,"seed":5`), ask(`,"seed":6`)
	if a != b || a == other {
		t.Errorf("%q, %q, and %q", a, b, other)
	}
	x := c.post("/v1/completions", `{"prompt":"Once upon a time","max_tokens":12,"temperature":1.5}`)
	if again := ask(`,"seed":` + as(x["seed"])); again != at(t, x, "choices", 0, "text") {
		t.Errorf("the seed that was told gives %q, not %q", again, at(t, x, "choices", 0, "text"))
	}
}

// Answers have the form that a request asks for, whichever field asks.
func TestFormats(t *testing.T) {
	c := demoServer(t)
	for field, want := range map[string]string{
		`"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object","properties":{"a":{"enum":["yes"]}},"required":["a"]}}}`: `{"a":"yes"}`,
		`"response_format":{"type":"json_object","schema":{"const":7}}`: `7`,
		`"json_schema":{"const":[1]}`:                                   `[1]`,
		`"grammar":"root ::= \"ab\" \"c\""`:                             `abc`,
		`"structured_outputs":{"regex":"x[y]z"}`:                        `xyz`,
		`"structured_outputs":{"choice":["only"]}`:                      `only`,
		`"structured_outputs":{"json":{"const":true}}`:                  `true`,
	} {
		for _, temperature := range []string{"0", "1.5"} {
			x := c.post("/v1/chat/completions", `{`+question+`,`+field+`,"max_tokens":200,"temperature":`+temperature+`}`)
			got, _ := at(t, x, "choices", 0, "message", "content").(string)
			if strings.Join(strings.Fields(got), "") != want || at(t, x, "choices", 0, "finish_reason") != "stop" {
				t.Errorf("%s: %q, want %q", field, got, want)
			}
		}
	}
	// With thinking, the form begins after it.
	x := c.post("/v1/chat/completions", `{`+question+`,"grammar":"root ::= \"abc\"","enable_thinking":true,"max_tokens":600}`)
	if got, _ := at(t, x, "choices", 0, "message", "content").(string); got != "abc" && at(t, x, "choices", 0, "finish_reason") != "length" {
		t.Errorf("after thinking: %v", x)
	}
}

// Requests that contradict themselves are told so, or do what can be done.
func TestContradictions(t *testing.T) {
	c := demoServer(t)
	id := at(t, c.post("/tokenize", `{"content":"a"}`), "tokens", 0)
	x := c.post("/v1/chat/completions", `{`+question+`,"grammar":"root ::= \"ab\"","ignore_eos":true,"max_tokens":20}`)
	if at(t, x, "choices", 0, "message", "content") != "ab" || at(t, x, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("%v", x)
	}
	var tools []string
	for i := range 300 {
		tools = append(tools, `{"type":"function","function":{"name":"f`+as(i)+`"}}`)
	}
	for body, param := range map[string]string{
		`"grammar":"root ::= \"a\"","logit_bias":[[` + as(id) + `,false]]`:    "logit_bias",
		`"tools":[` + strings.Join(tools, ",") + `],"tool_choice":"required"`: "tools",
		`"logit_bias":[[1,2,3]]`: "logit_bias",
		`"structured_outputs":{"` + strings.Repeat("k", 5000) + `":1}`:                                                               "",
		`"tools":[{"type":"function","function":{"name":"a","Name":"b"}}],"tool_choice":{"type":"function","function":{"name":"b"}}`: "tool_choice",
	} {
		status, a := c.call("POST", "/v1/chat/completions", `{`+question+`,`+body+`}`)
		if status != 400 || param != "" && at(t, a, "error", "param") != param || len(as(a)) > 1000 {
			t.Errorf("%.100s: %d %.300s", body, status, as(a))
		}
	}
	for path, body := range map[string]string{"/v1/completions": `{"prompt":[1,null]}`, "/detokenize": `{"tokens":[null]}`} {
		if status, a := c.call("POST", path, body); status != 400 {
			t.Errorf("%s %s: %d %v", path, body, status, a)
		}
	}
	offset := 0.0
	for _, e := range c.stream("/v1/completions", `{"prompt":"Once upon a time","logprobs":0,"max_tokens":4,"stream":true}`) {
		if e.data == "[DONE]" {
			continue
		}
		for _, o := range at(t, e.json, "choices", 0, "logprobs", "text_offset").([]any) {
			if o.(float64) < offset {
				t.Errorf("an offset of %v after %v", o, offset)
			}
			offset = o.(float64)
		}
	}
	if offset == 0 {
		t.Error("all tokens begin at 0")
	}
}
