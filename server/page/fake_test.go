package page_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/server/page"
)

type object = map[string]any

// A fake serves the page and an API whose answers the test writes.
type fake struct {
	*httptest.Server
	asked chan *exchange // one for each chat request, unless auto
	auto  bool           // answer by itself, word by word, as long as max_tokens allows

	mu      sync.Mutex
	key     string // asked for, unless ""
	loading bool
	slots   []object
	queue   int
}

// An exchange is a chat request and the stream that answers it. Nothing is sent until the test does.
type exchange struct {
	t       *testing.T
	request struct {
		Model    string
		Messages []struct {
			Role, Content    string
			ReasoningContent string `json:"reasoning_content"`
		}
		Stream         bool
		StreamOptions  object `json:"stream_options"`
		ReturnProgress bool   `json:"return_progress"`
		MaxTokens      int    `json:"max_tokens"`
		Temperature    *float64
		Template       object `json:"chat_template_kwargs"`
	}
	lines chan string
	gone  chan struct{} // closed when the client has left
}

func newFake(t *testing.T) *fake {
	f := &fake{asked: make(chan *exchange, 1), slots: []object{slot(0, "idle", 0, 0, 0, 0), slot(1, "idle", 0, 0, 0, 0)}}
	mux := http.NewServeMux()
	mux.Handle("/", page.Handler())
	mux.HandleFunc("GET /health", f.health)
	mux.HandleFunc("GET /v1/models", f.guarded(func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, object{"object": "list", "data": []object{{"id": "Ember-4B-Q4_K_M", "object": "model"}}})
	}))
	mux.HandleFunc("GET /props", f.guarded(func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, props) }))
	mux.HandleFunc("GET /slots", f.guarded(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		reply(w, http.StatusOK, f.slots)
	}))
	mux.HandleFunc("GET /metrics", f.guarded(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, "# TYPE caldera_requests_waiting gauge\ncaldera_requests_waiting %d\n", f.queue)
	}))
	mux.HandleFunc("POST /v1/chat/completions", f.guarded(func(w http.ResponseWriter, r *http.Request) { f.chat(t, w, r) }))
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) health(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading {
		fail(w, http.StatusServiceUnavailable, "Loading the model")
		return
	}
	reply(w, http.StatusOK, object{"status": "ok"})
}

func (f *fake) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		refused := f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key
		f.mu.Unlock()
		if refused {
			fail(w, http.StatusUnauthorized, "Give a key")
			return
		}
		h(w, r)
	}
}

func (f *fake) chat(t *testing.T, w http.ResponseWriter, r *http.Request) {
	x := &exchange{t: t, lines: make(chan string), gone: make(chan struct{})}
	if err := json.NewDecoder(r.Body).Decode(&x.request); err != nil {
		t.Errorf("the page's request: %v", err)
		return
	}
	defer close(x.gone)
	if f.auto {
		go x.ramble()
	} else {
		f.asked <- x
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out := http.NewResponseController(w)
	for {
		select {
		case line, more := <-x.lines:
			if !more {
				return
			}
			io.WriteString(w, line)
			out.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// next is the page's next chat request.
func (f *fake) next(t *testing.T) *exchange {
	t.Helper()
	select {
	case x := <-f.asked:
		return x
	case <-time.After(20 * time.Second):
		t.Fatal("the page sent no chat request")
		return nil
	}
}

// write sends text as it is, unless the client has left.
func (x *exchange) write(text string) bool {
	select {
	case x.lines <- text:
		return true
	case <-x.gone:
		return false
	}
}

func (x *exchange) event(chunk object) bool {
	data, err := json.Marshal(chunk)
	if err != nil {
		panic(err)
	}
	return x.write("data: " + string(data) + "\n\n")
}

func (x *exchange) delta(delta object) bool {
	return x.event(object{"choices": []object{{"index": 0, "delta": delta, "finish_reason": nil}}})
}

func (x *exchange) say(text string) bool { return x.delta(object{"content": text}) }

// end ends the stream as the server does.
func (x *exchange) end(reason string, tokens int) {
	x.event(object{"choices": []object{{"index": 0, "delta": object{}, "finish_reason": reason}}})
	x.event(object{
		"choices": []object{},
		"usage": object{
			"prompt_tokens": 1204, "completion_tokens": tokens, "total_tokens": 1204 + tokens,
			"prompt_tokens_details": object{"cached_tokens": 1100},
		},
		"timings": object{
			"cache_n": 1100, "prompt_n": 104, "prompt_ms": 210.5, "prompt_per_second": 494.1,
			"predicted_n": tokens, "predicted_ms": 1000, "predicted_per_second": 42.5,
		},
	})
	x.write("data: [DONE]\n\n")
	x.close()
}

func (x *exchange) close() { close(x.lines) }

// left waits for the client to leave.
func (x *exchange) left() {
	x.t.Helper()
	select {
	case <-x.gone:
	case <-time.After(20 * time.Second):
		x.t.Fatal("the page did not end its request")
	}
}

// ramble answers until the limit of the request or until nobody listens.
func (x *exchange) ramble() {
	limit, reason := 100_000, "stop"
	if x.request.MaxTokens > 0 {
		limit, reason = x.request.MaxTokens, "length"
	}
	words := strings.Fields("The old caldera had been quiet for nine hundred years, and the people on its rim had long stopped listening.")
	for i := range limit {
		if !x.say(words[i%len(words)] + " ") {
			return
		}
		time.Sleep(time.Millisecond) // a model's pace, not a wait for anything
	}
	x.end(reason, limit)
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, object{"error": object{"message": message, "type": "some_error", "param": nil, "code": nil}})
}

func slot(id int, state string, prompt, read, cached, decoded int) object {
	return object{
		"id": id, "n_ctx": 16384, "is_processing": state != "idle", "state": state,
		"n_prompt_tokens": prompt, "n_prompt_tokens_processed": read, "n_prompt_tokens_cache": cached,
		"next_token": []object{{"n_decoded": decoded, "n_remain": -1, "has_next_token": state == "decode"}},
	}
}

var props = object{
	"default_generation_settings": object{"n_ctx": 32768, "params": object{
		"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0, "presence_penalty": 1.5, "repeat_penalty": 1,
	}},
	"total_slots": 2, "model_alias": "Ember-4B-Q4_K_M", "model_path": "ember-4b-q4_k_m.gguf", "build_info": "caldera test",
	"is_sleeping": false, "chat_template": "",
	"device": object{
		"name": "Obsidian X1", "driver": "fakevk 1.2.3", "api_version": "1.4.305", "backend": "vulkan", "software": false,
		"memory": []object{
			{"kind": "device local", "used_bytes": 6_500_000_000, "budget_bytes": 8_589_934_592},
			{"kind": "host visible", "used_bytes": 300_000_000, "budget_bytes": 17_179_869_184},
		},
	},
	"model": object{
		"name": "Ember 4B", "arch": "qwen3", "quantization": "Q4_K_M", "params": 4_022_468_096, "size_bytes": 2_497_280_000, "thinks": true,
	},
}
