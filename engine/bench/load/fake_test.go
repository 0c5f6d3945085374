package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A fake is a server whose connections are in memory, so that it runs in a bubble, where time is what the test makes it.
type fake struct {
	first, gap time.Duration // of an answer: its first token, and between two
	answer     func(f *fake, w http.ResponseWriter, r *http.Request, n int) (done bool)
	metrics    func(running int) string
	tokens     int // of a word; 0 is no /tokenize

	mu       sync.Mutex
	slots    string // what /slots answers; empty is 404
	health   int    // status; 0 is 200
	n        int    // requests for answers so far, malformed ones too
	running  int
	most     int
	left     int // requests whose client left
	leftLong int // of them in a stream
	keys     map[string]bool

	server *http.Server
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newFake() *fake {
	f := &fake{first: 100 * time.Millisecond, gap: 10 * time.Millisecond, keys: map[string]bool{}, conns: make(chan net.Conn), closed: make(chan struct{})}
	f.server = &http.Server{Handler: f}
	return f
}

// Accept, Close and Addr make the fake a listener.
func (f *fake) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

func (f *fake) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *fake) Addr() net.Addr { return &net.TCPAddr{} }

func (f *fake) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("connection refused")}
	select {
	case <-f.closed:
		return nil, refused
	default:
	}
	ours, theirs := net.Pipe()
	select {
	case f.conns <- theirs:
		return ours, nil
	case <-f.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start runs the server until the test ends.
func (f *fake) start(t *testing.T) {
	go f.server.Serve(f)
	t.Cleanup(func() { f.server.Close() })
}

// run puts load on the fake.
func (f *fake) run(t *testing.T, ctx context.Context, o Options) *Report {
	t.Helper()
	f.start(t)
	o.dial = f.dial
	rep, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	f.keys[r.Header.Get("Authorization")] = true
	health, slots, running := f.health, f.slots, f.running
	f.mu.Unlock()
	switch r.URL.Path {
	case "/health":
		if health != 0 {
			sendError(w, health, "sick")
		}
	case "/v1/models":
		io.WriteString(w, `{"data":[{"id":"fake"},{"id":"other"}]}`)
	case "/slots":
		if slots == "" {
			sendError(w, 404, "no such thing")
			return
		}
		io.WriteString(w, slots)
	case "/metrics":
		if f.metrics == nil {
			sendError(w, 404, "no such thing")
			return
		}
		io.WriteString(w, f.metrics(running))
	case "/tokenize":
		if f.tokens == 0 {
			sendError(w, 404, "no such thing")
			return
		}
		fmt.Fprintf(w, `{"tokens":[%s0]}`, repeat("0,", 512*f.tokens-1))
	case "/v1/chat/completions", "/v1/completions":
		f.generate(w, r, body)
	default:
		sendError(w, 404, "no such thing")
	}
}

func repeat(s string, n int) string {
	b := make([]byte, 0, n*len(s))
	for range n {
		b = append(b, s...)
	}
	return string(b)
}

// set changes what the server answers.
func (f *fake) set(slots string, health int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots, f.health = slots, health
}

// generate answers a request.
func (f *fake) generate(w http.ResponseWriter, r *http.Request, body []byte) {
	f.mu.Lock()
	n := f.n
	f.n++
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		if r.Context().Err() != nil {
			f.left++
		}
		f.mu.Unlock()
	}()
	endpoint := Chat
	if r.URL.Path == "/v1/completions" {
		endpoint = Completions
	}
	if f.answer != nil && f.answer(f, w, r, n) {
		return
	}
	if why := refusal(endpoint, body); why != "" {
		sendError(w, 400, why)
		return
	}
	var q sent
	if json.Unmarshal(body, &q) != nil {
		sendError(w, 400, "no JSON")
		return
	}
	text := textChunk
	if endpoint == Completions {
		text = oldChunk
	}
	f.stream(w, r, text, q.Max, fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", 20, q.Max))
}

// stream writes an orderly answer.
func (f *fake) stream(w http.ResponseWriter, r *http.Request, text string, tokens int, usage string) {
	if !sleep(r.Context(), f.first) {
		return
	}
	send(w, roleChunk)
	for i := range tokens {
		if i > 0 && !sleep(r.Context(), f.gap) {
			f.mu.Lock()
			f.leftLong++
			f.mu.Unlock()
			return
		}
		send(w, text)
	}
	send(w, finishChunk+usage+doneChunk)
}

// send writes and flushes a part of a stream.
func send(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	io.WriteString(w, text)
	http.NewResponseController(w).Flush()
}

func sendError(w http.ResponseWriter, status int, message string) {
	sendErrorType(w, status, "invalid_request_error", message)
}

func sendErrorType(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": nil}})
}
