package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"
)

// An outcome is what became of a request.
type outcome uint8

const (
	faulty     outcome = iota // the server's fault
	completed                 // a whole answer
	cut                       // left by the client, as planned
	refused                   // 429 or 503
	expected                  // malformed and told so
	closed                    // its stream ended by an error object, as the server went down
	unanswered                // sent as the server went down
	local                     // this machine had no file or port left
	aborted                   // the run was interrupted
	outcomes
)

// A result is what is known of a request. Times count from when it was due.
type result struct {
	outcome outcome
	fault   *Fault // for faulty
	long    bool
	cut     cutPoint

	lag              time.Duration // sent so long after it was due
	ttft, tpot, e2el time.Duration // of a completed request; ttft 0 where no delta came, tpot where fewer than two tokens
	input, cached    int
	output, deltas   int
	counted          bool // output by deltas

	retryAfter   time.Duration // of a refusal; negative for none
	refusedDown  bool          // refused by 503
	unreachable  bool          // there was no connection
	began, ended time.Time
}

// Causes of a request's end that are the client's.
var (
	errCut     = errors.New("cut as planned")
	errStalled = errors.New("stalled")
)

// perform sends a request that was due at a time, and reads what comes.
func (r *runner) perform(ctx context.Context, q *request, due time.Time) (res result) {
	res = result{long: q.long, cut: q.cut, began: time.Now(), retryAfter: -1}
	res.lag = res.began.Sub(due)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(r.opt.Timeout, func() { cancel(errStalled) })
	defer watch.Stop()
	firstDelta := func() {}
	if q.long {
		firstDelta = r.long.begin()
	}
	defer func() {
		firstDelta()
		res.ended = time.Now()
		if res.fault != nil {
			res.outcome, res.fault.Request = faulty, q.index
		}
	}()
	switch q.cut {
	case cutSent:
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { cancel(errCut) }})
	case cutPrefill:
		t := time.AfterFunc(time.Duration(q.cutAt*float64(r.usualTTFT())), func() { cancel(errCut) })
		defer t.Stop()
	}
	h, err := r.t.request(ctx, r.path, q.body)
	if err != nil {
		res.fault = fault(FaultConnection, "%v", err)
		return res
	}
	resp, err := r.t.client.Do(h)
	if err != nil {
		r.lost(ctx, &res, err, FaultConnection)
		return res
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || q.malformed != "" {
		var b []byte
		if resp.StatusCode >= 400 { // what else there is may be a stream, and is not wanted
			b, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
		}
		if err != nil {
			r.lost(ctx, &res, err, FaultConnection)
			return res
		}
		judgeStatus(&res, q, resp, b)
		return res
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "text/event-stream" {
		res.fault = fault(FaultHeader, "a stream with Content-Type %q", clip(resp.Header.Get("Content-Type")))
		return res
	}
	leaveAt := 0 // deltas
	if q.cut == cutStream {
		leaveAt = 1 + int(q.cutAt*float64(q.output))
	}
	x, err := readStream(resp.Body, func() { watch.Reset(r.opt.Timeout) }, func(n int, gap time.Duration) bool {
		if n == 1 {
			firstDelta()
			r.sawFirst(time.Since(res.began))
		} else {
			r.col.addGap(gap, !q.long && r.long.overlaps(gap))
		}
		return q.cut == cutPrefill || n == leaveAt
	})
	res.deltas = x.deltas
	if x.deltas > 0 {
		res.ttft = x.first.Sub(due)
	}
	if err == nil && x.output > q.output {
		err = fault(FaultTooMuch, "%d tokens, but %d were asked for", x.output, q.output)
	}
	if err != nil {
		r.lost(ctx, &res, err, FaultCut)
		return res
	}
	res.outcome = completed
	res.ttft, res.e2el = x.first.Sub(due), x.end.Sub(due)
	res.input, res.cached, res.output, res.counted = x.input, x.cached, x.output, x.counted
	if x.output > 1 {
		// The first token is not part of it, as in vLLM.
		res.tpot = x.last.Sub(x.first) / time.Duration(x.output-1)
	}
	return res
}

// lost says whose doing an error was that ended a request.
func (r *runner) lost(ctx context.Context, res *result, err error, kind string) {
	var f *Fault
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, errLeft):
		res.outcome = cut
	case errors.As(err, &f) && (f.Kind != FaultCut || cause == nil): // what had come by then was wrong
		if f.errType == unavailable && r.opt.ShutdownGrace > 0 {
			r.sawShutdown()
			res.outcome = closed
			return
		}
		res.fault = f
	case errors.Is(cause, errCut):
		res.outcome = cut
	case errors.Is(cause, errStalled):
		res.fault = fault(FaultStalled, "nothing came for %v, after %d deltas", r.opt.Timeout, res.deltas)
	case cause != nil:
		res.outcome = aborted
	case isLocal(err):
		res.outcome = local
	default:
		res.unreachable = kind == FaultConnection
		if r.opt.ShutdownGrace > 0 && res.unreachable {
			if isDial(err) {
				r.sawShutdown()
			}
			if isDial(err) || r.mayBeRace(res.began) {
				res.outcome = unanswered
				return
			}
		}
		res.fault = fault(kind, "%s", clip(err.Error()))
	}
}

// judgeStatus says what an answer is that is no stream, or must not be one.
func judgeStatus(res *result, q *request, resp *http.Response, body []byte) {
	code := resp.StatusCode
	answer := fmt.Sprintf("%d %s", code, http.StatusText(code))
	asked := ""
	if q.malformed != "" {
		asked = fmt.Sprintf(" to a malformed request (%s)", q.malformed)
	}
	if code < 400 {
		kind := FaultStatus
		if q.malformed != "" && code < 300 {
			kind = FaultAccepted
		}
		res.fault = fault(kind, "%s%s", answer, asked)
		return
	}
	e, err := parseError(body)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err == nil && kind != "application/json" {
		err = fmt.Errorf("its Content-Type is %q", clip(resp.Header.Get("Content-Type")))
	}
	refusal := code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable
	switch {
	case code >= 500 && !refusal:
		res.fault = fault(FaultStatus, "%s%s, %s", answer, asked, clip(e.String()))
	case err != nil:
		res.fault = fault(FaultNoObject, "%s%s: %v", answer, asked, err)
	case refusal:
		res.outcome, res.refusedDown = refused, code == http.StatusServiceUnavailable
		if s, err := strconv.Atoi(strings.TrimSpace(resp.Header.Get("Retry-After"))); err == nil && s >= 0 {
			res.retryAfter = time.Duration(min(s, 3600)) * time.Second
		}
	case q.malformed != "":
		res.outcome = expected
	default:
		res.fault = fault(FaultRejected, "%s, %s", answer, e)
	}
}
