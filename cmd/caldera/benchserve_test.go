package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/calderaml/caldera/engine/bench/load"
)

// loadServer is a server as bench serve sees it, and counts what it is asked for.
type loadServer struct {
	*httptest.Server
	end  string // of a stream, after its tokens
	keys atomic.Value
	n    atomic.Int64
	hook func(n int64)
}

const orderlyEnd = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"

func newLoadServer(t *testing.T, end string) *loadServer {
	s := &loadServer{end: end}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"data":[{"id":"fake"}]}`) })
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		s.keys.Store(r.Header.Get("Authorization"))
		n := s.n.Add(1)
		if s.hook != nil {
			s.hook(n)
		}
		var body struct {
			Messages []json.RawMessage
			Max      int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Messages) == 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":{"message":"bad","type":"invalid_request_error"}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
			http.NewResponseController(w).Flush()
		}
		io.WriteString(w, s.end)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// A server in order makes exit code 0 and a report; the key reaches it and is shown nowhere.
func TestBenchServe(t *testing.T) {
	s := newLoadServer(t, orderlyEnd)
	file := filepath.Join(t.TempDir(), "keys")
	write(t, file, "\nfile-secret, other\n")
	for _, c := range []struct {
		args []string
		key  string
	}{{nil, "Bearer env-secret"}, {[]string{"--api-key-file", file}, "Bearer file-secret"}} {
		t.Setenv("CALDERA_API_KEY", "env-secret")
		r := command(t, "", append([]string{"bench", "serve", "--url", s.URL, "--requests", "12", "-c", "3", "-n", "3", "-o", "json"}, c.args...)...)
		var x map[string]any
		if err := json.Unmarshal([]byte(r.out), &x); r.code != exitDone || err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		if x["schema"] != load.Schema || x["completed"] != 12. || x["failed"] != 0. || x["total_output"] != 36. || x["model_id"] != "fake" || x["max_concurrency"] != 3. {
			t.Errorf("%s", r.out)
		}
		if s.keys.Load() != c.key || strings.Contains(r.out+r.err, "secret") {
			t.Errorf("key %v, %+v", s.keys.Load(), r)
		}
	}
	r := command(t, "", "bench", "serve", "--url", s.URL+"/v1", "--requests", "5", "-n", "3", "-q", "--goodput", "ttft:60000", "--at-most", "failed:0,faults:0")
	if r.code != exitDone || r.err != "" || !strings.HasPrefix(r.out, "| model | endpoint | load ") || !strings.Contains(r.out, "| good req/s |") {
		t.Errorf("%+v", r)
	}
}

// What is not the client's fault makes exit code 7, with what it was; what the client does wrong on purpose does not.
func TestBenchServeFaults(t *testing.T) {
	for _, c := range []struct {
		name, end string
		args      []string
		code      int
		want      string
		completed int
	}{
		{"cut", "", nil, exitCheck, "caldera: check failed: 10 faults of the server: request 0, cut: the stream ended after 3 deltas", 0},
		{"no done", orderlyEnd[:strings.Index(orderlyEnd, "data: [DONE]")], nil, exitCheck, "request 2, no-done: ", 0},
		{"error", "data: {\"error\":{\"message\":\"lost\",\"type\":\"server_error\"}}\n\n", nil, exitCheck, "error: server_error: lost", 0},
		{"bar", orderlyEnd, []string{"--at-most", "total_output:29"}, exitCheck, "total_output is 30, which is more than 29", 10},
		{"no metrics", orderlyEnd, []string{"--at-most", "goroutines_growth:9"}, exitCheck, "goroutines_growth is not known", 10},
		{"disconnects", orderlyEnd, []string{"--disconnect", "1"}, exitDone, "", -1},
	} {
		s := newLoadServer(t, c.end)
		r := command(t, "", append([]string{"bench", "serve", "--url", s.URL, "--requests", "10", "-c", "1", "-n", "3", "--warmup", "0", "-q", "--json"}, c.args...)...)
		var x map[string]any
		if err := json.Unmarshal([]byte(r.out), &x); r.code != c.code || err != nil || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") > 1 {
			t.Errorf("%s: %+v, %v", c.name, r, err)
			continue
		}
		if n := x["completed"]; c.completed >= 0 && n != float64(c.completed) || x["begun"] != 10. {
			t.Errorf("%s: %v completed", c.name, n)
		}
	}
	// No run at all where the first request fails.
	s := newLoadServer(t, "")
	if r := command(t, "", "bench", "serve", "--url", s.URL, "-q"); r.code != exitCheck || !strings.Contains(r.err, "the warm-up: the stream ended") || s.n.Load() != 1 {
		t.Errorf("%+v", r)
	}
	s.Close()
	if r := command(t, "", "bench", "serve", "--url", s.URL); r.code != exitFailed || r.out != "" || !strings.Contains(r.err, "the server cannot be measured") {
		t.Errorf("%+v", r)
	}
}

// An interrupt prints what there is.
func TestBenchServeInterrupt(t *testing.T) {
	isolate(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newLoadServer(t, orderlyEnd)
	s.hook = func(n int64) {
		if n == 20 {
			cancel()
		}
	}
	var out, errw bytes.Buffer
	code := execute(ctx, []string{"bench", "serve", "--url", s.URL, "-c", "2", "-n", "3", "-o", "jsonl"}, nil, &out, &errw)
	var x map[string]any
	if err := json.Unmarshal(out.Bytes(), &x); code != exitInterrupted || err != nil || !strings.HasSuffix(errw.String(), "caldera: interrupted\n") {
		t.Fatalf("%d, %v, %s, %s", code, err, out.String(), errw.String())
	}
	if n, ok := x["completed"].(float64); !ok || n < 10 || x["interrupted"] != true || x["failed"] != 0. {
		t.Errorf("%s", out.String())
	}
}

func TestBenchServeUsage(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	write(t, empty, "\n , \n")
	for _, c := range []struct{ args, want string }{
		{"--url localhost", "no URL of a server"},
		{"--url http://me:secret@host", "come from the environment or a file"},
		{"--endpoint responses", "use chat or completions"},
		{"-p x", `--n-prompt: "x" is no length`},
		{"-n 9-5", "--n-gen: \"9-5\" ends before it begins"},
		{"--goodput itl:5", "--goodput: "},
		{"--at-most speed:5", `"speed" is no result`},
		{"--at-most p99_itl_ms", "--at-most: "},
		{"--disconnect 0.8 --malformed 0.3", "more than all requests"},
		{"--duration 0", "would not end"},
		{"-c 0", "concurrency is 0"},
		{"--rate -1", "rate is -1"},
		{"--api-key-file " + filepath.Join(dir, "nosuch"), "nosuch"},
		{"--api-key-file " + empty, "has no key"},
		{"--dataset " + empty, "--dataset " + empty},
		{"-o xml", "use md, json, jsonl, csv"},
		{"x", "takes no argument"},
		{"--api-key secret", "unknown flag"}, // it would be seen by everybody on the machine
	} {
		r := command(t, "", append([]string{"bench", "serve"}, strings.Fields(c.args)...)...)
		if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, c.want) || strings.Contains(r.err, "secret") {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
}

func TestReadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]string{"a": "a", "\n , b ,x\nc\n": "b", "": ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readKey(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if _, err := readKey(file + fmt.Sprint(1)); err == nil {
		t.Error("a key from no file")
	}
}
