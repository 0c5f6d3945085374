package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/vk"
)

// A keeping is a server that Keep gives models.
type keeping struct {
	*client
	cancel       context.CancelFunc
	served, kept chan error

	mu      sync.Mutex
	engines []*engine.Engine
}

// keep serves models of a configuration. Opened, if not nil, is called with the first of them before it serves.
func keep(t *testing.T, cfg engine.Config, opened func(*engine.Engine)) *keeping {
	t.Helper()
	s, err := New(demoConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeping{cancel: cancel, served: make(chan error, 1), kept: make(chan error, 1)}
	go func() {
		k.kept <- s.Keep(ctx, func(context.Context) (*engine.Engine, error) {
			e, err := engine.Open(cfg)
			if err != nil {
				return e, err
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.engines = append(k.engines, e); len(k.engines) == 1 && opened != nil {
				opened(e)
			}
			return e, nil
		}, func(*engine.Engine) {})
	}()
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { k.served <- s.Serve(ctx, ln, nil, time.Second) }()
	k.client = &client{t: t, s: s, url: "http://" + ln.Addr().String(), header: map[string][]string{"Content-Type": {"application/json"}}}
	k.ready()
	return k
}

// ready waits until there is a model.
func (k *keeping) ready() {
	k.t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-k.kept:
			k.cancel()
			if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
				k.t.Skip(err)
			}
			k.t.Fatal(err)
		default:
		}
		if status, _ := k.call("GET", "/health", ""); status == 200 {
			return
		}
		if time.Since(start) > time.Minute {
			k.t.Fatal("there is no model")
		}
	}
}

// model returns the last model, and how many there were.
func (k *keeping) model() (*engine.Engine, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.engines[len(k.engines)-1], len(k.engines)
}

// end ends the server, and returns what went wrong.
func (k *keeping) end() error {
	k.cancel()
	return errors.Join(<-k.served, <-k.kept)
}

// begin begins a stream and returns it once a token has come.
func (k *keeping) begin(body string) (*http.Response, io.Reader) {
	k.t.Helper()
	res := k.send("POST", "/v1/completions", body)
	if res.StatusCode != 200 {
		k.t.Fatalf("a stream begins with %d", res.StatusCode)
	}
	r := bufio.NewReader(res.Body)
	line, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "data: ") {
		k.t.Fatalf("a stream begins with %q, %v", line, err)
	}
	return res, io.MultiReader(strings.NewReader(line), r)
}

// lastEvent checks that a stream ends with the error of a device that is not available.
func lastEvent(t *testing.T, name string, r io.Reader) {
	t.Helper()
	list := readEvents(t, r)
	if last := list[len(list)-1]; at(t, last.json, "error", "type") != typeUnavailable || !strings.Contains(last.data, "lost") {
		t.Errorf("%s: the stream ends with %q", name, last.data)
	}
}

// A device that is lost at some submission ends the requests in flight with an error that says so, whoever waits is answered,
// and the next ones are once it has been opened again; nothing is left of it.
func TestCaseC07Lost(t *testing.T) {
	long := `"prompt":"` + strings.Repeat("word and ", 60) + `","max_tokens":4,"ignore_eos":true`
	const endless = `"prompt":"Once","max_tokens":300,"ignore_eos":true`
	goroutines := 0
	objects := fmt.Sprint(vk.Live())
	for _, n := range []int{1, 7, 50} {
		for _, when := range []string{"prefill", "prefill of a stream", "decode", "decode, another in the queue"} {
			name := fmt.Sprintf("submission %d, %s", n, when)
			cfg := engine.Config{Data: demo.Model(), Name: "demo.gguf", Context: 512, Slots: 2, Batch: 2, Device: "llvmpipe"}
			lose := func(e *engine.Engine) { e.InjectFault("vkQueueSubmit", n, vk.ErrorDeviceLost) }
			var k *keeping
			switch when {
			case "prefill":
				k = keep(t, cfg, lose)
				if status, a := k.call("POST", "/v1/completions", `{`+long+`}`); status != 503 || !strings.Contains(as(a), "device was lost") {
					t.Errorf("%s: %d %v", name, status, a)
				}
			case "prefill of a stream": // which has not begun
				k = keep(t, cfg, lose)
				if status, a := k.call("POST", "/v1/completions", `{`+long+`,"stream":true}`); status != 503 || !strings.Contains(as(a), "device was lost") {
					t.Errorf("%s: %d %v", name, status, a)
				}
			case "decode":
				k = keep(t, cfg, nil)
				res, r := k.begin(`{` + endless + `,"stream":true}`)
				e, _ := k.model()
				lose(e)
				lastEvent(t, name, r)
				res.Body.Close()
			default:
				cfg.Slots = 1
				k = keep(t, cfg, nil)
				res, r := k.begin(`{` + endless + `,"stream":true}`)
				e, _ := k.model()
				second := make(chan error, 1)
				go func() {
					status, a := k.call("POST", "/v1/completions", `{"prompt":"One","max_tokens":2,"ignore_eos":true}`)
					if status != 200 && (status != 503 || !strings.Contains(as(a), "lost")) {
						second <- fmt.Errorf("%d %v", status, a)
					}
					close(second)
				}()
				for start := time.Now(); e.Stats().Waiting == 0; time.Sleep(time.Millisecond) {
					if time.Since(start) > time.Minute {
						t.Fatalf("%s: nobody waits", name)
					}
				}
				lose(e)
				lastEvent(t, name, r)
				res.Body.Close()
				select {
				case err := <-second:
					if err != nil {
						t.Errorf("%s: the one in the queue: %v", name, err)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s: the one in the queue gets no answer", name)
				}
			}
			k.ready()
			x := k.post("/v1/chat/completions", `{`+question+`}`)
			if _, opened := k.model(); at(t, x, "choices", 0, "message", "content") != "12 + 7 = 19" || opened != 2 {
				t.Errorf("%s: %v after %d openings", name, x, opened)
			}
			if err := k.end(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if now := fmt.Sprint(vk.Live()); now != objects {
				t.Errorf("%s: Vulkan objects %s, before %s", name, now, objects)
			}
			if goroutines == 0 {
				goroutines = runtime.NumGoroutine() // some stay for good, such as those of the client
			} else if n := runtime.NumGoroutine(); n > goroutines+5 {
				t.Errorf("%s: %d goroutines, %d after the first time", name, n, goroutines)
			}
		}
	}
}

// A device that hangs is treated as one that is lost: its requests are told, and it is opened again.
func TestHang(t *testing.T) {
	k := keep(t, engine.Config{Data: demo.Model(), Name: "demo.gguf", Context: 512, Slots: 2, Device: "llvmpipe", HangTimeout: time.Hour}, nil)
	res, r := k.begin(`{"prompt":"Once","max_tokens":300,"ignore_eos":true,"stream":true}`)
	e, _ := k.model()
	e.InjectFault("vkWaitSemaphores", 3, vk.Timeout)
	lastEvent(t, "hang", r)
	res.Body.Close()
	k.ready()
	if x := k.post("/v1/chat/completions", `{`+question+`}`); at(t, x, "choices", 0, "message", "content") != "12 + 7 = 19" {
		t.Errorf("%v", x)
	}
	if why := e.Lost(); !errors.Is(why, engine.ErrHang) || !strings.Contains(why.Error(), "1h0m0s") || !strings.Contains(why.Error(), "layer ") {
		t.Errorf("the engine was lost because of %v", why)
	}
	if n := k.counter("caldera_device_lost_total"); n != 1 {
		t.Errorf("%v devices lost", n)
	}
	if err := k.end(); err != nil {
		t.Error(err)
	}
}

// A device without memory left fails a request and no other.
func TestOutOfMemory(t *testing.T) {
	k := keep(t, engine.Config{Data: demo.Model(), Name: "demo.gguf", Context: 512, Slots: 2, Device: "llvmpipe"}, func(e *engine.Engine) {
		e.InjectFault("vkAllocateDescriptorSets", 1, vk.ErrorOutOfDeviceMemory)
	})
	if status, a := k.call("POST", "/v1/completions", `{"prompt":"One","max_tokens":2}`); status != 503 || !strings.Contains(as(a), "no memory left") {
		t.Errorf("%d %v", status, a)
	}
	x := k.post("/v1/chat/completions", `{`+question+`}`)
	if _, opened := k.model(); at(t, x, "choices", 0, "message", "content") != "12 + 7 = 19" || opened != 1 {
		t.Errorf("%v after %d openings", x, opened)
	}
	if err := k.end(); err != nil {
		t.Error(err)
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
