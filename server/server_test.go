package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/sample"
)

// demoEngine is the demo model on the reference backend, shared by all tests.
var demoEngine = sync.OnceValues(func() (*engine.Engine, error) {
	return engine.Open(engine.Config{
		Data: demo.Model(), Name: "demo.gguf", Backend: engine.Reference, Context: 1024, Slots: 2, Queue: 4, CacheRAM: 64 << 20,
	})
})

// greedy takes the best token each time, as little models need it.
func greedy(bool) sample.Params {
	p := sample.Neutral()
	p.Temperature = 0
	return p
}

// demoConfig is a configuration for tests.
func demoConfig() Config {
	return Config{Models: []string{"demo"}, Sampling: greedy, Log: zerolog.Nop(), Version: "test"}
}

// demoServer serves the demo model.
func demoServer(t testing.TB, change ...func(*Config)) *client {
	t.Helper()
	e, err := demoEngine()
	if err != nil {
		t.Fatal(err)
	}
	cfg := demoConfig()
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Ready(e)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	return &client{t: t, s: s, url: h.URL, header: http.Header{"Content-Type": {"application/json"}}}
}

// A client talks to a server under test.
type client struct {
	t      testing.TB
	s      *Server
	url    string
	header http.Header
}

// send sends a request with a body, and none where it is empty.
func (c *client) send(method, path, body string) *http.Response {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header = c.header.Clone()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

// any is decoded JSON.
type object = map[string]any

// call sends a request and reads the answer's JSON.
func (c *client) call(method, path, body string) (status int, answer object) {
	c.t.Helper()
	res := c.send(method, path, body)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if got := res.Header.Get("Content-Type"); got != "application/json" {
		c.t.Errorf("%s %s: Content-Type %q", method, path, got)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		var list []any
		if json.Unmarshal(data, &list) != nil {
			c.t.Fatalf("%s %s: %v in %.200q", method, path, err, data)
		}
		answer = object{"list": list}
	}
	return res.StatusCode, answer
}

// post is call for a request that must succeed.
func (c *client) post(path, body string) object {
	c.t.Helper()
	status, x := c.call("POST", path, body)
	if status != 200 {
		c.t.Fatalf("POST %s %.200s: %d %v", path, body, status, x)
	}
	return x
}

// An event is one of a stream.
type event struct {
	name string
	data string
	json object
}

// stream sends a request and reads the events of the answer.
func (c *client) stream(path, body string) []event {
	c.t.Helper()
	res := c.send("POST", path, body)
	defer res.Body.Close()
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		data, _ := io.ReadAll(res.Body)
		c.t.Fatalf("POST %s: %d %q %s", path, res.StatusCode, res.Header.Get("Content-Type"), data)
	}
	return readEvents(c.t, res.Body)
}

// readEvents reads a stream to its end. Comments are events without data.
func readEvents(t testing.TB, r io.Reader) (list []event) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var now event
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "":
			list = append(list, now)
			now = event{}
		case strings.HasPrefix(line, "event: "):
			now.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			now.data = line[6:]
			if now.data != "[DONE]" {
				if err := json.Unmarshal([]byte(now.data), &now.json); err != nil {
					t.Fatalf("%v in %q", err, line)
				}
			}
		case strings.HasPrefix(line, ":"):
		default:
			t.Fatalf("a line of no stream of events: %q", line)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// at walks into decoded JSON by keys and indexes.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(object)
			if !ok {
				t.Fatalf("no object at %v: %v", path[:i], v)
			}
			v = m[p]
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("no item %d at %v: %v", p, path[:i], v)
			}
			v = l[p]
		}
	}
	return v
}

// as turns a value into JSON, for messages and bodies.
func as(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

const question = `"messages":[{"role":"user","content":"What is 12+7?"}]`

// A question is answered, whole and as a stream, with the same text and usage.
func TestChat(t *testing.T) {
	c := demoServer(t)
	x := c.post("/v1/chat/completions", `{"model":"demo",`+question+`}`)
	msg := at(t, x, "choices", 0, "message").(object)
	if msg["content"] != "12 + 7 = 19" || msg["role"] != "assistant" || at(t, x, "choices", 0, "finish_reason") != "stop" || x["object"] != "chat.completion" {
		t.Errorf("%v", x)
	}
	u := x["usage"].(object)
	if u["total_tokens"].(float64) != u["prompt_tokens"].(float64)+u["completion_tokens"].(float64) || u["completion_tokens"].(float64) == 0 {
		t.Errorf("usage %v", u)
	}
	events := c.stream("/v1/chat/completions", `{`+question+`,"stream":true,"stream_options":{"include_usage":true}}`)
	text := ""
	for i, e := range events[:len(events)-2] {
		d := at(t, e.json, "choices", 0, "delta").(object)
		if i == 0 && (d["role"] != "assistant" || d["content"] != "") {
			t.Errorf("the first chunk is %v", e.json)
		}
		if s, ok := d["content"].(string); ok {
			text += s
		}
	}
	if text != msg["content"] {
		t.Errorf("a stream of %q, and %q at once", text, msg["content"])
	}
	last := events[len(events)-2].json
	if len(last["choices"].([]any)) != 0 || at(t, last, "usage", "completion_tokens") != u["completion_tokens"] || at(t, last, "timings", "predicted_n") != u["completion_tokens"] {
		t.Errorf("the last chunk is %v", last)
	}
	if events[len(events)-1].data != "[DONE]" || at(t, events[len(events)-3].json, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("the end is %v", events[len(events)-3:])
	}
}
