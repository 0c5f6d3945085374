package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/calderaml/caldera/engine"
)

// status returns the status of a request with some headers, given in pairs.
func (c *client) status(method, path, body string, header ...string) (int, http.Header) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Header
}

// With keys, nothing but the health of the server is told without one, in whichever header it comes; and the log never has it.
func TestKeys(t *testing.T) {
	var log bytes.Buffer
	const key, other = "sk-secret-number-one", "sk-secret-number-two"
	c := demoServer(t, func(c *Config) { c.Keys = []string{key, other}; c.Log = zerolog.New(&log) })
	for _, x := range []struct {
		path   string
		header []string
		want   int
	}{
		{"/health", nil, 200},
		{"/v1/models", nil, 401},
		{"/slots", nil, 401},
		{"/props", nil, 401},
		{"/metrics", nil, 401},
		{"/v1/models", []string{"Authorization", "Bearer " + key}, 200},
		{"/v1/models", []string{"Authorization", "bearer " + other}, 200},
		{"/v1/models", []string{"X-Api-Key", key}, 200},
		{"/v1/models", []string{"Authorization", "Bearer " + key + "x"}, 401},
		{"/v1/models", []string{"Authorization", "Bearer "}, 401},
		{"/v1/models", []string{"Authorization", "Basic " + key}, 401},
		{"/slots", []string{"X-Api-Key", other}, 200},
	} {
		status, h := c.status("GET", x.path, "", x.header...)
		if status != x.want {
			t.Errorf("%s with %v: %d, want %d", x.path, x.header, status, x.want)
		}
		if status == 401 && h.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: WWW-Authenticate %q", x.path, h.Get("WWW-Authenticate"))
		}
	}
	if strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), `"status":401`) {
		t.Errorf("the log is %s", log.String())
	}
	if _, err := New(Config{Models: []string{"m"}, Keys: []string{"short"}}); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key: %v", err)
	}
}

// What slots and properties show of a request holds nothing of its text.
func TestNoPromptShown(t *testing.T) {
	var log bytes.Buffer
	c := demoServer(t, func(c *Config) { c.Log = zerolog.New(&log).Level(zerolog.DebugLevel) })
	const secret = "xylophone"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/v1/completions", strings.NewReader(`{"prompt":"`+secret+` `+secret+`","max_tokens":400,"ignore_eos":true}`))
		if res, err := http.DefaultClient.Do(r); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	seen := false
	for !seen && t.Context().Err() == nil {
		_, x := c.call("GET", "/slots", "")
		for _, sl := range x["list"].([]any) {
			seen = seen || sl.(object)["is_processing"] == true
		}
		if strings.Contains(as(x), secret) {
			t.Fatalf("/slots: %s", as(x))
		}
		_, p := c.call("GET", "/props", "")
		if strings.Contains(as(p), secret) {
			t.Fatalf("/props: %s", as(p))
		}
	}
	cancel()
	<-done
	c.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"`+secret+`"}],"max_tokens":1,"strange":1}`)
	if strings.Contains(log.String(), secret) {
		t.Errorf("the log is %s", log.String())
	}
}

// A page elsewhere cannot use a server on this machine, by its name or from the browser.
func TestHostAndOrigin(t *testing.T) {
	c := demoServer(t, func(c *Config) {
		c.CheckHost, c.Hosts, c.Origins = true, []string{"box.local"}, []string{"https://app.example"}
	})
	for _, x := range []struct {
		header []string
		want   int
	}{
		{nil, 200},
		{[]string{"Host", "localhost:8080"}, 200},
		{[]string{"Host", "[::1]:8080"}, 200},
		{[]string{"Host", "127.0.0.1"}, 200},
		{[]string{"Host", "box.local:80"}, 200},
		{[]string{"Host", "evil.example"}, 403},
		{[]string{"Host", "localhost.evil.example:8080"}, 403},
		{[]string{"Origin", "https://app.example"}, 200},
		{[]string{"Origin", "https://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", c.url}, 200},
	} {
		status, h := c.status("GET", "/health", "", x.header...)
		if status != x.want {
			t.Errorf("%v: %d, want %d", x.header, status, x.want)
		}
		if allowed := h.Get("Access-Control-Allow-Origin"); allowed == "*" || (allowed != "" && allowed != "https://app.example") {
			t.Errorf("%v: Access-Control-Allow-Origin %q", x.header, allowed)
		}
	}
	status, h := c.status("OPTIONS", "/v1/chat/completions", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-stainless-os")
	if status != 204 || h.Get("Access-Control-Allow-Headers") != "authorization,x-stainless-os" {
		t.Errorf("preflight: %d %v", status, h)
	}
}

// Every error is JSON with the status and type of the specification's table.
func TestErrors(t *testing.T) {
	c := demoServer(t, func(c *Config) { c.MaxBody = 20_000 })
	long := `{"messages":[{"role":"user","content":"` + strings.Repeat("word ", 3000) + `"}]}`
	for _, x := range []struct {
		method, path, body string
		status             int
		kind, param        string
	}{
		{"POST", "/v1/chat/completions", `{"messages":[]}`, 400, typeInvalid, "messages"},
		{"POST", "/v1/chat/completions", `{"messages":`, 400, typeInvalid, ""},
		{"POST", "/v1/chat/completions", ``, 400, typeInvalid, ""},
		{"POST", "/v1/chat/completions", `{` + question + `,"temperature":3}`, 400, typeInvalid, "temperature"},
		{"POST", "/v1/chat/completions", `{` + question + `,"temperature":"hot"}`, 400, typeInvalid, "temperature"},
		{"POST", "/v1/chat/completions", `{` + question + `,"max_tokens":1.5}`, 400, typeInvalid, "max_tokens"},
		{"POST", "/v1/chat/completions", `{` + question + `,"n":9}`, 400, typeInvalid, "n"},
		{"POST", "/v1/chat/completions", `{` + question + `,"stop":["a",7]}`, 400, typeInvalid, "stop"},
		{"POST", "/v1/chat/completions", `{` + question + `,"logit_bias":{"x":1}}`, 400, typeInvalid, "logit_bias"},
		{"POST", "/v1/chat/completions", `{` + question + `,"stream_options":{"include_usage":1}}`, 400, typeInvalid, "stream_options.include_usage"},
		{"POST", "/v1/chat/completions", `{` + question + `,"top_logprobs":2}`, 400, typeInvalid, "top_logprobs"},
		{"POST", "/v1/chat/completions", `{` + question + `,"audio":{}}`, 400, typeNotSupported, "audio"},
		{"POST", "/v1/chat/completions", `{` + question + `,"tool_choice":"required"}`, 400, typeInvalid, "tool_choice"},
		{"POST", "/v1/chat/completions", `{` + question + `,"response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}}}`, 400, typeInvalid, "response_format.json_schema.schema"},
		{"POST", "/v1/chat/completions", `{` + question + `,"grammar":"root ::= ("}`, 400, typeInvalid, "grammar"},
		{"POST", "/v1/chat/completions", `{` + question + `,"model":"gpt"}`, 404, typeNotFound, "model"},
		{"POST", "/v1/chat/completions", long, 400, typeContext, ""},
		{"POST", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 30_000) + `"}`, 413, typeInvalid, ""},
		{"POST", "/v1/completions", `{"prompt":[1,999999]}`, 400, typeInvalid, "prompt"},
		{"POST", "/v1/completions", `{}`, 400, typeInvalid, "prompt"},
		{"GET", "/v1/models/none", ``, 404, typeNotFound, "model"},
		{"GET", "/nowhere", ``, 404, typeNotFound, ""},
		{"DELETE", "/v1/models", ``, 405, typeInvalid, ""},
		{"POST", "/v1/embeddings", `{"input":"a"}`, 501, typeNotSupported, ""},
		{"POST", "/v1/images/generations", `{}`, 501, typeNotSupported, ""},
		{"POST", "/detokenize", `{"tokens":[-1]}`, 400, typeInvalid, "tokens"},
	} {
		status, a := c.call(x.method, x.path, x.body)
		e, _ := a["error"].(object)
		param, _ := e["param"].(string)
		if status != x.status || e["type"] != x.kind || param != x.param || e["message"] == "" {
			t.Errorf("%s %s %.80s: %d %v, want %d %s about %q", x.method, x.path, x.body, status, a, x.status, x.kind, x.param)
		}
		if x.kind == typeContext && (e["n_ctx"] != 1024.0 || e["n_prompt_tokens"].(float64) < 3000 || e["code"] != 400.0) {
			t.Errorf("the error of a long prompt is %v", e)
		}
	}
	if status, h := c.status("PUT", "/tokenize", ""); status != 405 || h.Get("Allow") != "POST" {
		t.Errorf("%d, Allow %q", status, h.Get("Allow"))
	}
	if status, _ := c.status("POST", "/v1/chat/completions", "{"+question+"}", "Content-Type", "text/plain"); status != 415 {
		t.Errorf("text/plain: %d, want 415", status)
	}
	// Anthropic's and Ollama's clients know other forms.
	if _, a := c.call("POST", "/v1/messages", `{"model":"demo"}`); a["type"] != "error" || at(t, a, "error", "type") != typeInvalid {
		t.Errorf("an error of the messages API: %v", a)
	}
	if _, a := c.call("POST", "/api/chat", `{"model":"demo"}`); a["error"] == nil || strings.Contains(as(a), "type") {
		t.Errorf("an error of Ollama's API: %v", a)
	}
}

// An id of the client's comes back, and one that could do harm does not.
func TestRequestID(t *testing.T) {
	c := demoServer(t)
	for given, same := range map[string]bool{"abc-1.2:3_4": true, "": false, "a b": false, "x\"y": false, strings.Repeat("a", 65): false} {
		_, h := c.status("GET", "/health", "", "X-Request-Id", given)
		if id := h.Get("X-Request-Id"); (id == given) != same || id == "" {
			t.Errorf("%q became %q", given, id)
		}
	}
}

func TestKeyRate(t *testing.T) {
	c := demoServer(t, func(c *Config) { c.KeyRate = 0.01; c.Keys = []string{"key-number-1", "key-number-2"} })
	post := func(key string) (int, http.Header) {
		return c.status("POST", "/tokenize", `{"content":"a"}`, "X-Api-Key", key)
	}
	if s, _ := post("key-number-1"); s != 200 {
		t.Errorf("first: %d", s)
	}
	if s, h := post("key-number-1"); s != 429 || h.Get("Retry-After") == "" {
		t.Errorf("second: %d, Retry-After %q", s, h.Get("Retry-After"))
	}
	if s, _ := post("key-number-2"); s != 200 {
		t.Errorf("another key: %d", s)
	}
	if s, _ := c.status("GET", "/slots", "", "X-Api-Key", "key-number-1"); s != 200 {
		t.Errorf("looking: %d", s)
	}
}

// A server without a model says so, and takes no request.
func TestLoading(t *testing.T) {
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	s.Load(Loading{Stage: "loading weights", Progress: 0.5})
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln, nil, time.Second) }()
	c := &client{t: t, s: s, url: "http://" + ln.Addr().String(), header: http.Header{"Content-Type": {"application/json"}}}
	for _, path := range []string{"/health", "/v1/health", "/slots", "/props"} {
		status, x := c.call("GET", path, "")
		if status != 503 || !strings.Contains(as(x), "loading weights, 50 %") {
			t.Errorf("%s: %d %v", path, status, x)
		}
	}
	if status, h := c.status("POST", "/v1/chat/completions", "{"+question+"}", "Content-Type", "application/json"); status != 503 || h.Get("Retry-After") == "" {
		t.Errorf("a request: %d", status)
	}
	if status, _ := c.call("GET", "/v1/models", ""); status != 200 {
		t.Errorf("/v1/models: %d", status)
	}
	e, err := demoEngine()
	if err != nil {
		t.Fatal(err)
	}
	s.Ready(e)
	if status, _ := c.call("GET", "/health", ""); status != 200 {
		t.Errorf("with a model /health is %d", status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A server that ends lets a stream run to its end within the grace.
func TestGrace(t *testing.T) {
	for _, x := range []struct {
		name   string
		grace  time.Duration
		tokens int
		whole  bool
	}{{"enough", time.Minute, 20, true}, {"none", time.Millisecond, 900, false}} {
		t.Run(x.name, func(t *testing.T) {
			e, err := demoEngine()
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(demoConfig())
			if err != nil {
				t.Fatal(err)
			}
			s.Ready(e)
			ln, err := Listen("unix:" + filepath.Join(t.TempDir(), "s"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Serve(ctx, ln, nil, x.grace) }()
			h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", ln.Addr().String())
			}}}
			body, _ := json.Marshal(object{"prompt": "One two", "max_tokens": x.tokens, "ignore_eos": true, "stream": true})
			res, err := h.Post("http://x/v1/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			cancel() // the answer has begun
			list := readEvents(t, res.Body)
			last := list[len(list)-1]
			if x.whole != (last.data == "[DONE]") {
				t.Errorf("the stream's last event is %q", last.data)
			}
			if !x.whole && at(t, last.json, "error", "type") != typeUnavailable {
				t.Errorf("the stream's last event is %q", last.data)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// endless is a stream that goes on as long as it is read.
type endless struct{ ctx context.Context }

func (e endless) Tokens() iter.Seq2[engine.Token, error] {
	text := strings.Repeat("x", 1<<16)
	return func(yield func(engine.Token, error) bool) {
		for e.ctx.Err() == nil && yield(engine.Token{ID: 1, Text: text}, nil) {
		}
	}
}

func (e endless) Result() (engine.Result, error) {
	<-e.ctx.Done()
	return engine.Result{Reason: engine.ReasonCancelled}, e.ctx.Err()
}
func (endless) Progress() engine.PromptProgress { return engine.PromptProgress{} }
func (endless) Cancel()                         {}

// A client that takes nothing of a stream is given up after a while, and its request ends.
func TestNoReader(t *testing.T) {
	c := demoServer(t, func(c *Config) { c.WriteTimeout = 100 * time.Millisecond })
	m := *c.s.model.Load()
	ended := make(chan struct{})
	m.generate = func(ctx context.Context, _ engine.Request) (stream, error) {
		context.AfterFunc(ctx, func() { close(ended) })
		return endless{ctx}, nil
	}
	c.s.model.Store(&m)
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"prompt":"x","stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the request goes on")
	}
}

// What comes without a body that was promised is answered at once, and its connection does not stay.
func TestUnreadBody(t *testing.T) {
	c := demoServer(t)
	for _, head := range []string{"POST /nope", "GET /health", "PUT /tokenize", "POST /v1/images/x"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", head)
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
			t.Errorf("%s: %v, %q", head, err, answer)
		}
		conn.Close()
	}
}
