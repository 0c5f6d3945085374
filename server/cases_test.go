package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/stop"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/internal/oracle"
)

// The cases are situations in which other servers failed their users; testdata/cases has their inputs.

// caseLines reads a file of JSON lines into values of a type.
func caseLines[T any](t *testing.T, name string) (list []T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(oracle.Root(), "testdata", "cases", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var x T
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	return list
}

// idle waits until no slot is busy and returns how long that took.
func (c *client) idle(limit time.Duration) time.Duration {
	c.t.Helper()
	start := time.Now()
	for {
		_, x := c.call("GET", "/slots", "")
		busy := 0
		for _, s := range x["list"].([]any) {
			if s.(object)["is_processing"] == true {
				busy++
			}
		}
		if busy == 0 {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			c.t.Fatalf("%d slots are busy after %s", busy, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A slot's state at some moment.
func (c *client) slotStates() (states []string, decoded float64) {
	_, x := c.call("GET", "/slots", "")
	for _, s := range x["list"].([]any) {
		states = append(states, s.(object)["state"].(string))
		decoded += at(c.t, s, "next_token", 0, "n_decoded").(float64)
	}
	return states, decoded
}

// counter reads a metric.
func (c *client) counter(name string) (v float64) {
	c.t.Helper()
	res := c.send("GET", "/metrics", "")
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			fmt.Sscan(rest, &v)
			return v
		}
	}
	c.t.Fatalf("no metric %s in\n%s", name, data)
	return 0
}

// A client that goes away in the queue, while its prompt is computed or while it is answered frees its slot, whether it reads a
// stream or waits for a whole answer.
func TestCaseC13(t *testing.T) {
	c := demoServer(t)
	const cancelled = `caldera_answers_total{reason="cancelled"}`
	long := strings.Repeat("word and ", 330)
	for _, phase := range []string{"queued", "prefill", "decode"} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", phase, stream), func(t *testing.T) {
				c.idle(20 * time.Second)
				before := c.counter(cancelled)
				ask := func(prompt string) (cancel func(), done chan struct{}) {
					ctx, cancel := context.WithCancel(t.Context())
					done = make(chan struct{})
					body := as(object{"prompt": prompt, "max_tokens": 100000, "ignore_eos": true, "stream": stream, "cache_prompt": false})
					go func() {
						defer close(done)
						r, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/v1/completions", strings.NewReader(body))
						r.Header.Set("Content-Type", "application/json")
						if res, err := http.DefaultClient.Do(r); err == nil {
							io.Copy(io.Discard, res.Body)
							res.Body.Close()
						}
					}()
					return cancel, done
				}
				until := func(what string, ok func() bool) {
					t.Helper()
					for start := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
						if time.Since(start) > 20*time.Second {
							t.Fatalf("not %s", what)
						}
					}
				}
				asked := 1.0
				var others []func()
				switch phase {
				case "queued":
					for range 2 { // the slots that there are
						cancel, done := ask("One two")
						others = append(others, func() { cancel(); <-done })
					}
					until("busy", func() bool { return c.counter("caldera_requests_running") == 2 })
					asked = 3
				}
				prompt := long
				if phase == "decode" {
					prompt = "One two"
				}
				cancel, done := ask(prompt)
				until("in its phase", func() bool {
					switch phase {
					case "queued":
						return c.counter("caldera_requests_waiting") == 1
					case "prefill":
						states, _ := c.slotStates()
						return strings.Contains(strings.Join(states, " "), "prefill")
					default:
						_, n := c.slotStates()
						return n >= 5
					}
				})
				cancel()
				<-done
				if phase == "queued" {
					until("out of the queue", func() bool { return c.counter("caldera_requests_waiting") == 0 })
				}
				for _, f := range others {
					f()
				}
				if took := c.idle(20 * time.Second); took > 5*time.Second {
					t.Errorf("the slot was free after %s", took)
				}
				until("counted", func() bool { return c.counter(cancelled) == before+asked })
				n := c.counter("caldera_generated_tokens_total")
				time.Sleep(50 * time.Millisecond)
				if m := c.counter("caldera_generated_tokens_total"); m != n {
					t.Errorf("%v tokens after the end", m-n)
				}
			})
		}
	}
}

// Grammars, schemas and patterns that other engines died of are refused, soon and with little memory, and the next request
// is answered.
func TestCaseC16(t *testing.T) {
	c := demoServer(t)
	var alternatives strings.Builder
	for i := 0; alternatives.Len() < 1<<20-10; i++ {
		fmt.Fprintf(&alternatives, "a%d|", i)
	}
	schema := strings.Repeat(`{"type":"array","items":`, 50_000) + `{}` + strings.Repeat("}", 50_000)
	type attempt struct{ name, field, value string }
	list := []attempt{
		{"nested grammar", "grammar", as("root ::= " + strings.Repeat("(", 60_000) + `"a"` + strings.Repeat(")", 60_000))},
		{"nested schema", "json_schema", schema},
		{"nested schema of a tool", "tools", `[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":` + schema + `}}}}]`},
		{"alternatives", "grammar", as(`root ::= "` + strings.ReplaceAll(strings.TrimSuffix(alternatives.String(), "|"), "|", `"|"`) + `"`)},
	}
	for _, p := range []string{"^+a$", "^{2}x$", "(?<=a)b", "((((", "[z-a]", "a{1000000}", strings.TrimSuffix(alternatives.String(), "|")} {
		s := fmt.Sprintf(`{"type":"string","pattern":%s}`, as(p))
		list = append(list,
			attempt{"pattern " + p[:min(len(p), 12)], "response_format", `{"type":"json_schema","json_schema":{"name":"x","schema":` + s + `}}`},
			attempt{"pattern of a tool " + p[:min(len(p), 12)], "tools", `[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":` + s + `},"required":["a"]}}}]`})
	}
	for _, x := range list {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		status, a := c.call("POST", "/v1/chat/completions", `{`+question+`,"max_tokens":2,"`+x.field+`":`+x.value+`}`)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d in %s, %d MiB allocated: %.120s", x.name, status, took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, as(a))
		if status != 400 || at(t, a, "error", "message") == "" {
			t.Errorf("%s: %d %.200s", x.name, status, as(a))
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 64 {
			t.Errorf("%s: %d MiB allocated", x.name, n)
		}
		if len(as(a)) > 2000 {
			t.Errorf("%s: an error of %d bytes", x.name, len(as(a)))
		}
		if status, a := c.call("POST", "/v1/chat/completions", `{`+question+`,"max_tokens":2}`); status != 200 {
			t.Fatalf("after %s: %d %v", x.name, status, a)
		}
	}
}

// Whatever a request's body is, the answer is an error in JSON or a bounded result, and the server goes on.
func TestCaseC17(t *testing.T) {
	c := demoServer(t)
	type badBody struct{ Body, Want string }
	list := caseLines[badBody](t, "c17_bad_bodies.jsonl")
	if len(list) != 34 {
		t.Fatalf("%d bodies", len(list))
	}
	list = append(list, badBody{"", "4xx"}, badBody{`{"messages":[{"role":"us`, "4xx"}, badBody{`{"messages":[{"role":"user","content":"` + strings.Repeat("a", 64<<20) + `"}]}`, "413"})
	for i, x := range list {
		status, a := c.call("POST", "/v1/chat/completions", x.Body)
		ok := false
		for want := range strings.SplitSeq(x.Want, "|") {
			switch want {
			case "4xx":
				ok = ok || status >= 400 && status < 500
			case "2xx", "2xx-bounded", "ignored":
				ok = ok || status == 200
			default:
				ok = ok || fmt.Sprint(status) == want
			}
		}
		if !ok {
			t.Errorf("body %d %.80s: %d %.200s, want %s", i, x.Body, status, as(a), x.Want)
		}
		if status, _ := c.call("GET", "/health", ""); status != 200 {
			t.Fatalf("after body %d the health is %d", i, status)
		}
	}
	c.idle(20 * time.Second)
}

// A client that sends its headers a byte at a time is dropped, and holds up nobody.
func TestCaseC17SlowHeaders(t *testing.T) {
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln, nil, time.Second) }()
	slow, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprint(slow, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	dropped := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, slow)
		dropped <- err
	}()
	if res, err := http.Get("http://" + ln.Addr().String() + "/health"); err != nil || res.StatusCode != 503 {
		t.Errorf("another client got %v, %v", res, err)
	}
	select {
	case <-dropped:
	case <-time.After(headerTimeout + 20*time.Second):
		t.Error("the connection is still open")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// forced is a stream of tokens given by their bytes: the engine's own way from bytes to text, without its model.
type forced struct {
	pieces [][]byte
	stops  []string

	result engine.Result
}

func (f *forced) Tokens() iter.Seq2[engine.Token, error] {
	// Each piece is a token of a vocabulary made for it.
	v := tokenizer.Vocabulary{Model: "gpt2", Pre: "qwen2", EOS: -1, BOS: -1, Pad: -1}
	for b := range 256 {
		v.Tokens = append(v.Tokens, printable([]byte{byte(b)}))
	}
	at := map[string]int32{}
	var ids []int32
	for _, p := range f.pieces {
		s := printable(p)
		id, ok := at[s]
		if len(p) == 1 {
			id, ok = int32(p[0]), true
		}
		if !ok {
			id = int32(len(v.Tokens))
			v.Tokens = append(v.Tokens, s)
			at[s] = id
		}
		ids = append(ids, id)
	}
	tok, err := tokenizer.New(v)
	if err != nil {
		return func(yield func(engine.Token, error) bool) { yield(engine.Token{}, err) }
	}
	text := tok.NewStreamDecoder()
	stops, _ := stop.New(f.stops)
	f.result = engine.Result{PromptTokens: 1, Reason: engine.ReasonLength}
	return func(yield func(engine.Token, error) bool) {
		for _, id := range ids {
			f.result.Tokens++
			s, found := stops.Push(text.Push(id))
			if !yield(engine.Token{ID: id, Text: s}, nil) {
				return
			}
			if found {
				f.result.Reason, f.result.Stop = engine.ReasonStop, stops.Found()
				return
			}
		}
		s, found := stops.Push(text.Flush())
		if found {
			f.result.Reason, f.result.Stop = engine.ReasonStop, stops.Found()
		} else {
			s += stops.Flush()
		}
		yield(engine.Token{ID: -1, Text: s}, nil)
	}
}

func (f *forced) Result() (engine.Result, error)  { return f.result, nil }
func (f *forced) Progress() engine.PromptProgress { return engine.PromptProgress{Total: 1, Done: 1} }
func (f *forced) Cancel()                         {}

// printable is the form in which vocabularies have bytes (model-qwen35.md, byte-level BPE): those that print stand for
// themselves and the others follow at 256.
func printable(p []byte) string {
	var b strings.Builder
	for _, x := range p {
		n := rune(256)
		for y := range int(x) + 1 {
			if y >= '!' && y <= '~' || y >= 0xa1 && y <= 0xac || y >= 0xae {
				if y == int(x) {
					b.WriteRune(rune(x))
				}
			} else {
				if y == int(x) {
					b.WriteRune(n)
				}
				n++
			}
		}
	}
	return b.String()
}

// force makes a server's model say some tokens.
func (c *client) force(stops []string, pieces ...[]byte) {
	m := *c.s.model.Load()
	m.generate = func(context.Context, engine.Request) (stream, error) {
		f := &forced{pieces: pieces, stops: stops}
		return f, nil
	}
	c.s.model.Store(&m)
}

// Characters that come in parts are put together, in a stream as in a whole answer; what is broken is replaced once.
func TestCaseC19(t *testing.T) {
	c := demoServer(t)
	for _, x := range caseLines[struct {
		Name   string
		Pieces []string `json:"token_bytes_hex"`
		Want   string
	}](t, "c19_utf8.jsonl") {
		var pieces [][]byte
		for _, h := range x.Pieces {
			p, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			pieces = append(pieces, p)
		}
		more, want := "", x.Want
		var stops []string
		switch x.Name {
		case "tail then stop string END":
			stops = []string{"END"}
		case "tail then tool tag":
			// The case ends inside of a call: a whole one follows here.
			more = `,"tools":[{"type":"function","function":{"name":"f"}}]`
			pieces = append(pieces, []byte("\n<function=f>\n</function>\n</tool_call>"))
			want = "😀"
		}
		c.force(stops, pieces...)
		a := c.post("/v1/chat/completions", `{`+question+more+`}`)
		msg := at(t, a, "choices", 0, "message").(object)
		if msg["content"] != want {
			t.Errorf("%s: %q, want %q", x.Name, msg["content"], want)
		}
		if more != "" && at(t, msg, "tool_calls", 0, "function", "name") != "f" {
			t.Errorf("%s: no call in %v", x.Name, msg)
		}
		if n := at(t, a, "usage", "completion_tokens"); n != float64(len(pieces)) && stops == nil {
			t.Errorf("%s: %v tokens, want %d", x.Name, n, len(pieces))
		}
		text := ""
		for _, e := range c.stream("/v1/chat/completions", `{`+question+more+`,"stream":true}`) {
			if e.data == "[DONE]" {
				continue
			}
			if d, ok := at(t, e.json, "choices", 0, "delta").(object)["content"].(string); ok {
				if !utf8.ValidString(d) || strings.Contains(d, "�") && !strings.Contains(want, "�") {
					t.Errorf("%s: a delta of %q", x.Name, d)
				}
				text += d
			}
		}
		if text != want {
			t.Errorf("%s: a stream of %q, want %q", x.Name, text, want)
		}
	}
}

// Stop strings end answers before they begin, over all borders between tokens.
func TestCaseC20(t *testing.T) {
	c := demoServer(t)
	for i, x := range caseLines[struct {
		Pieces       []string `json:"forced_pieces"`
		Stop         []string
		Want, Finish string
	}](t, "c20_stops.jsonl") {
		var pieces [][]byte
		for _, p := range x.Pieces {
			pieces = append(pieces, []byte(p))
		}
		c.force(x.Stop, pieces...)
		body := object{"messages": []object{{"role": "user", "content": "x"}}, "stop": x.Stop, "enable_thinking": strings.HasPrefix(x.Pieces[0], "</thi")}
		a := c.post("/v1/chat/completions", as(body))
		content, _ := at(t, a, "choices", 0, "message", "content").(string)
		if content != x.Want || at(t, a, "choices", 0, "finish_reason") != x.Finish {
			t.Errorf("line %d: %q, %v; want %q, %s", i+1, content, at(t, a, "choices", 0, "finish_reason"), x.Want, x.Finish)
		}
	}
}

// slowPrompt is a stream whose prompt takes a while.
type slowPrompt struct {
	mu     sync.Mutex
	at     engine.PromptProgress
	fail   int // of the prompt's tokens, how many until it fails; 0 for never
	ctx    context.Context
	result engine.Result
	err    error
	ended  chan struct{}
}

var errInjected = errors.New("injected")

func newSlowPrompt(ctx context.Context, fail int) *slowPrompt {
	s := &slowPrompt{ctx: ctx, fail: fail, ended: make(chan struct{}), at: engine.PromptProgress{Total: 20_000}}
	return s
}

// Tokens takes a second for the prompt.
func (s *slowPrompt) Tokens() iter.Seq2[engine.Token, error] {
	return func(yield func(engine.Token, error) bool) {
		defer close(s.ended)
		for range 20 {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
				s.err = s.ctx.Err()
				return
			}
			s.mu.Lock()
			s.at.Done += 1000
			failed := s.fail > 0 && s.at.Done >= s.fail
			s.mu.Unlock()
			if failed {
				s.err = errInjected
				yield(engine.Token{}, s.err)
				return
			}
		}
		s.result = engine.Result{PromptTokens: 20_000, Tokens: 1, Reason: engine.ReasonLength}
		yield(engine.Token{ID: 1, Text: "x"}, nil)
	}
}

func (s *slowPrompt) Result() (engine.Result, error) {
	<-s.ended
	return s.result, s.err
}

func (s *slowPrompt) Progress() engine.PromptProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}
func (s *slowPrompt) Cancel() {}

// While a long prompt is computed there are signs of life and rising progress, and an error then is an event and no end that
// looks like a good one.
func TestCaseC28(t *testing.T) {
	for _, fail := range []int{0, 10_000} {
		c := demoServer(t)
		m := *c.s.model.Load()
		m.generate = func(ctx context.Context, _ engine.Request) (stream, error) { return newSlowPrompt(ctx, fail), nil }
		c.s.model.Store(&m)
		res := c.send("POST", "/v1/chat/completions", `{`+question+`,"max_tokens":4,"stream":true,"return_progress":true,"sse_ping_interval":1}`)
		defer res.Body.Close()
		var all bytes.Buffer
		pings, last := 0, time.Now()
		lines := bufio.NewReader(res.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			if gap := time.Since(last); gap > 2*time.Second {
				t.Errorf("nothing for %s", gap)
			}
			last = time.Now()
			if strings.HasPrefix(line, ":") {
				pings++
			}
			all.WriteString(line)
		}
		events := readEvents(t, &all)
		done := 0.0
		end := events[len(events)-1]
		for _, e := range events {
			if p, ok := e.json["prompt_progress"].(object); ok {
				if p["processed"].(float64) <= done || p["total"] != 20000.0 {
					t.Errorf("progress %v after %v", p, done)
				}
				done = p["processed"].(float64)
			}
		}
		if pings == 0 {
			t.Error("no sign of life")
		}
		if fail == 0 && (done != 20_000 || end.data != "[DONE]") {
			t.Errorf("progress ended at %v, the stream with %q", done, end.data)
		}
		if fail > 0 && (done < 8000 || at(t, end.json, "error", "type") != typeServer || strings.Contains(end.data, "injected")) {
			t.Errorf("progress ended at %v, the stream with %q", done, end.data)
		}
	}
}

// A device that is lost is no end: the request is told, and so are those that come before there is a model again.
func TestLost(t *testing.T) {
	c := demoServer(t)
	old := c.s.model.Load()
	m := *old
	m.generate = func(ctx context.Context, _ engine.Request) (stream, error) {
		return lostStream{}, nil
	}
	c.s.model.Store(&m)
	if status, a := c.call("POST", "/v1/chat/completions", `{`+question+`}`); status != 503 || at(t, a, "error", "type") != typeUnavailable {
		t.Errorf("%d %v", status, a)
	}
	<-c.s.lost
	if status, a := c.call("GET", "/health", ""); status != 503 || !strings.Contains(as(a), "lost") {
		t.Errorf("%d %v", status, a)
	}
	if n := c.counter("caldera_device_lost_total"); n != 1 {
		t.Errorf("%v devices lost", n)
	}
	c.s.lose(&m, engine.ErrDeviceLost) // what comes late of it loses no other
	c.s.Ready(old.Engine)
	c.s.lose(&m, engine.ErrDeviceLost)
	c.post("/v1/chat/completions", `{`+question+`}`)
}

// lostStream is a request whose device is lost.
type lostStream struct{}

func (lostStream) Tokens() iter.Seq2[engine.Token, error] {
	return func(yield func(engine.Token, error) bool) { yield(engine.Token{}, engine.ErrDeviceLost) }
}
func (lostStream) Result() (engine.Result, error)  { return engine.Result{}, engine.ErrDeviceLost }
func (lostStream) Progress() engine.PromptProgress { return engine.PromptProgress{} }
func (lostStream) Cancel()                         {}
