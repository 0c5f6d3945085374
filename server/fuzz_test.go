package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/internal/oracle"
)

// Whatever the body of a request is, each API answers with JSON, and with nothing that is the server's fault.
func FuzzRequest(f *testing.F) {
	e, err := engine.Open(engine.Config{Data: demo.Model(), Name: "demo.gguf", Backend: engine.Reference, Context: 512, Slots: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { e.Close() })
	s, err := New(demoConfig())
	if err != nil {
		f.Fatal(err)
	}
	s.Ready(e)
	m := *s.model.Load()
	m.generate = func(context.Context, engine.Request) (stream, error) {
		return &forced{pieces: [][]byte{[]byte("<think>a</think>b<tool_call>\n<function=f>\n</function>\n</tool_call>")}}, nil
	}
	s.model.Store(&m)
	var paths []string
	for _, r := range s.routeTable() {
		if r.method == "POST" {
			paths = append(paths, r.paths[0])
		}
	}
	for i := range paths {
		for _, body := range []string{
			`{` + question + `,"stream":true,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],"tool_choice":"required"}`,
			`{"prompt":["a",""],"logprobs":2,"n":2,"stop":"x","logit_bias":[[1,false]],"grammar":"root ::= \"a\"*"}`,
			`{"max_tokens":5,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"b"}]}],"thinking":{"type":"disabled"}}`,
			`{"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}],"text":{"format":{"type":"json_object"}}}`,
			`{"messages":[{"role":"user","content":"x","images":[]}],"options":{"num_predict":3,"temperature":1},"format":{"type":"object"},"think":"low"}`,
			`{"content":"é","tokens":[1,2],"with_pieces":true,"input":"x"}`,
		} {
			f.Add(byte(i), body)
		}
	}
	data, err := os.ReadFile(filepath.Join(oracle.Root(), "testdata", "cases", "c17_bad_bodies.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var x struct{ Body string }
		if json.Unmarshal([]byte(line), &x) == nil && len(x.Body) < 2000 {
			f.Add(byte(3), x.Body)
		}
	}
	f.Fuzz(func(t *testing.T, at byte, body string) {
		path := paths[int(at)%len(paths)]
		r := httptest.NewRequest("POST", path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		kind := w.Header().Get("Content-Type")
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		switch {
		case strings.HasPrefix(kind, "text/event-stream"):
			list := readEvents(t, w.Body)
			if len(list) == 0 || strings.Contains(list[len(list)-1].data, `"error"`) {
				t.Fatalf("%s: a stream that ends with %v", path, list)
			}
		case kind == "application/x-ndjson":
			for line := range strings.Lines(w.Body.String()) {
				if !json.Valid([]byte(line)) {
					t.Fatalf("%s: %q", path, line)
				}
			}
		case kind != "application/json" || !json.Valid(w.Body.Bytes()):
			t.Fatalf("%s: %d %s %q", path, w.Code, kind, w.Body)
		}
	})
}
