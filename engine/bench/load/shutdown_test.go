package load

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server that is stopped in the middle must end its streams in order, within its grace. Half of the requests wait for
// their first token as it stops.
func TestShutdown(t *testing.T) {
	const grace = 30 * second
	stop := make(map[string]func(f *fake), 8)
	stop["in order"] = func(f *fake) { f.server.Shutdown(context.Background()) }
	stop["not at all"] = func(f *fake) {}
	stop["at once"] = func(f *fake) { f.server.Close() }
	stop["only the listener"] = func(f *fake) { f.Close() }
	for _, c := range []struct {
		name   string
		stop   string
		first  time.Duration
		answer func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool
		kind   string // of the fault, empty for none
		check  func(r *Report) bool
	}{
		{"orderly", "in order", 5 * second, nil, "", func(r *Report) bool { return r.Completed > 4 && r.Drain > second && r.Drain < 6*second }},
		{"refusing", "only the listener", second, func(f *fake, w http.ResponseWriter, _ *http.Request, n int) bool {
			if n > 20 {
				w.Header().Set("Retry-After", "1")
				w.Header().Set("Connection", "close")
				sendErrorType(w, 503, unavailable, "the server is shutting down")
			}
			return n > 20
		}, "", func(r *Report) bool { return r.Refused > 0 && r.Completed > 4 }},
		{"with error objects", "in order", second, func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
			if n < 20 {
				return false
			}
			send(w, textChunk)
			<-f.closed
			time.Sleep(10 * second)
			send(w, strings.Replace(errorChunk, "server_error", unavailable, 1))
			return true
		}, "", func(r *Report) bool { return r.Closed == 4 && r.Drain > 9*second && r.Drain < 11*second }},
		{"with a wrong error", "in order", second, func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
			if n < 20 {
				return false
			}
			send(w, textChunk)
			<-f.closed
			send(w, errorChunk)
			return true
		}, FaultError, nil},
		{"cutting streams", "at once", 0, func(f *fake, w http.ResponseWriter, r *http.Request, n int) bool {
			if n < 20 {
				return false
			}
			send(w, textChunk)
			<-r.Context().Done()
			return true
		}, FaultCut, nil},
		{"leaving the waiting", "at once", 8 * second, nil, FaultConnection, nil},
		{"too late", "in order", 55 * second, nil, FaultShutdown, nil},
		{"never", "not at all", second, nil, FaultShutdown, func(r *Report) bool { return r.Completed > 10 }},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.first, f.answer = c.first, c.answer
			o := options(t)
			o.Requests, o.Duration, o.Concurrency, o.ShutdownGrace = 0, 100*second, 4, grace
			time.AfterFunc(18500*time.Millisecond, func() { stop[c.stop](f) })
			r := f.run(t, t.Context(), o)
			time.Sleep(time.Minute) // Shutdown looks every half a second whether it is done
			if n := r.faultKinds[c.kind]; c.kind == "" && r.FaultCount() > 0 || c.kind != "" && (n == 0 || n != r.FaultCount()) {
				t.Errorf("%s: %v, %s", c.name, r.faultKinds, r.Failure())
			}
			if c.check != nil && !c.check(r) {
				t.Errorf("%s: drained in %v, %+v", c.name, r.Drain, r)
			}
			if c.kind != FaultShutdown && r.Duration > 60*second {
				t.Errorf("%s: %v", c.name, r.Duration)
			}
		})
	}
}
