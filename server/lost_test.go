package server

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/vk"
)

// A device that is lost at some submission ends the requests in flight with an error that says so, and the next ones are
// answered once it has been opened again; nothing is left of it.
func TestCaseC07Lost(t *testing.T) {
	cfg := engine.Config{Data: demo.Model(), Name: "demo.gguf", Context: 512, Slots: 2, Device: "llvmpipe"}
	prompt := `"prompt":"` + strings.Repeat("word and ", 60) + `","max_tokens":60,"ignore_eos":true`
	goroutines := 0
	// Submissions of the prompt come first, so that the later ones are of decoding.
	for _, x := range []struct {
		k      int
		stream bool
	}{{1, false}, {7, true}, {50, false}, {50, true}} {
		k, stream := x.k, x.stream
		s, err := New(demoConfig())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		opened, kept := 0, make(chan error, 1)
		go func() {
			kept <- s.Keep(ctx, func(context.Context) (*engine.Engine, error) {
				e, err := engine.Open(cfg)
				if opened++; err == nil && opened == 1 {
					e.InjectFault("vkQueueSubmit", k, vk.ErrorDeviceLost)
				}
				return e, err
			}, func(*engine.Engine) {})
		}()
		ln, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, ln, nil, time.Second) }()
		c := &client{t: t, s: s, url: "http://" + ln.Addr().String(), header: map[string][]string{"Content-Type": {"application/json"}}}
		ready := func() bool {
			select {
			case err := <-kept:
				if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
					cancel()
					t.Skip(err)
				}
				t.Fatal(err)
			default:
			}
			status, _ := c.call("GET", "/health", "")
			return status == 200
		}
		for start := time.Now(); !ready(); time.Sleep(5 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatal("there is no model")
			}
		}
		name := fmt.Sprintf("submission %d, stream %v", k, stream)
		if stream {
			res := c.send("POST", "/v1/completions", `{`+prompt+`,"stream":true}`)
			if res.StatusCode == 200 {
				list := readEvents(t, res.Body)
				if last := list[len(list)-1]; at(t, last.json, "error", "type") != typeUnavailable {
					t.Errorf("%s: the stream ends with %q", name, last.data)
				}
			} else if res.StatusCode != 503 {
				t.Errorf("%s: %d", name, res.StatusCode)
			}
			res.Body.Close()
		} else if status, a := c.call("POST", "/v1/completions", `{`+prompt+`}`); status != 503 || !strings.Contains(as(a), "device was lost") {
			t.Errorf("%s: %d %v", name, status, a)
		}
		for start := time.Now(); !ready(); time.Sleep(5 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: the device was not opened again", name)
			}
		}
		x := c.post("/v1/chat/completions", `{`+question+`}`)
		if at(t, x, "choices", 0, "message", "content") != "12 + 7 = 19" || opened != 2 {
			t.Errorf("%s: %v after %d openings", name, x, opened)
		}
		cancel()
		if err := errors.Join(<-served, <-kept); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if goroutines == 0 {
			goroutines = runtime.NumGoroutine() // some stay for good, such as those of the client
		} else if n := runtime.NumGoroutine(); n > goroutines+5 {
			t.Errorf("%s: %d goroutines, %d after the first time", name, n, goroutines)
		}
	}
}

// A device that is lost every time ends the server's patience.
func TestLostAgain(t *testing.T) {
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	err = s.Keep(t.Context(), func(context.Context) (*engine.Engine, error) {
		opened++
		return engine.Open(engine.Config{Data: demo.Model(), Name: "demo.gguf", Context: 64, Backend: engine.Reference})
	}, func(*engine.Engine) { s.lose(s.model.Load(), engine.ErrDeviceLost) })
	if !errors.Is(err, engine.ErrDeviceLost) || opened != lostMost {
		t.Errorf("%v after %d openings", err, opened)
	}
}

// A model whose file has changed is opened again, and where that fails the server is told why.
func TestFileChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, demo.Model(), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	c := &client{t: t, s: s, url: h.URL, header: map[string][]string{"Content-Type": {"application/json"}}}
	err = s.Keep(t.Context(), func(context.Context) (*engine.Engine, error) {
		return engine.Open(engine.Config{Path: path, Context: 64, Backend: engine.Reference})
	}, func(*engine.Engine) {
		c.post("/v1/completions", `{"prompt":"One","max_tokens":1}`)
		if err := os.Truncate(path, 1000); err != nil {
			t.Fatal(err)
		}
		if status, a := c.call("POST", "/v1/completions", `{"prompt":"One","max_tokens":1}`); status != 503 || !strings.Contains(as(a), "file has changed") {
			t.Errorf("%d %v", status, a)
		}
		if status, _ := c.call("GET", "/health", ""); status != 503 {
			t.Errorf("the health is %d", status)
		}
	})
	if !errors.Is(err, engine.ErrModel) {
		t.Errorf("opening what is left: %v", err)
	}
}
