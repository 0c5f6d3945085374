package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/chat"
	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/gbnf"
	"github.com/calderaml/caldera/engine/grammar/pattern"
	"github.com/calderaml/caldera/engine/grammar/schema"
	"github.com/calderaml/caldera/engine/grammar/toolcall"
	"github.com/calderaml/caldera/engine/sample"
)

// Types of errors (specification, 6.9).
const (
	typeInvalid      = "invalid_request_error"
	typeContext      = "exceed_context_size_error"
	typeAuth         = "authentication_error"
	typePermission   = "permission_error"
	typeNotFound     = "not_found_error"
	typeRate         = "rate_limit_error"
	typeServer       = "server_error"
	typeNotSupported = "not_supported_error"
	typeUnavailable  = "unavailable_error"
)

// statusGone is what the log and the metrics show for a client that went away. Nobody receives it.
const statusGone = 499

// An apiError is what a client is told.
type apiError struct {
	Status  int
	Message string
	Type    string
	Param   string // the field it is about
	Code    any    // a word, or the status where llama-server has that
	Retry   time.Duration
	// Tokens and Context go with typeContext.
	Tokens, Context int
	cause           error
}

func (e *apiError) Error() string { return e.Message }
func (e *apiError) Unwrap() error { return e.cause }

// body is the error as JSON.
func (e *apiError) body() map[string]any {
	x := map[string]any{"message": e.Message, "type": e.Type, "param": nil, "code": e.Code}
	if e.Param != "" {
		x["param"] = e.Param
	}
	if e.Type == typeContext {
		x["n_prompt_tokens"], x["n_ctx"] = e.Tokens, e.Context
	}
	return x
}

// invalid is an error of the request's field, which may be empty.
func invalid(field, format string, args ...any) *apiError {
	e := &apiError{Status: http.StatusBadRequest, Type: typeInvalid, Param: field, Message: fmt.Sprintf(format, args...)}
	if field != "" {
		e.Message = field + ": " + e.Message
	}
	return e
}

// notSupported is about what is not built.
func notSupported(status int, field, format string, args ...any) *apiError {
	e := invalid(field, format, args...)
	e.Status, e.Type = status, typeNotSupported
	return e
}

func unavailable(what string) *apiError {
	return &apiError{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Message: what, Code: "unavailable", Retry: 2 * time.Second}
}

func busy(what string) *apiError {
	return &apiError{Status: http.StatusTooManyRequests, Type: typeRate, Message: what, Code: "rate_limit_exceeded", Retry: time.Second}
}

// asError says what a client is told of an error.
func asError(err error) *apiError {
	var (
		lost  gone
		api   *apiError
		req   *chat.RequestError
		param *sample.ParamError
		size  *http.MaxBytesError
		limit *grammar.LimitError
		rec   *grammar.RecursionError
		sch   *schema.Error
		gb    *gbnf.Error
		pat   *pattern.Error
		tool  *toolcall.ToolError
	)
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &req):
		if req.Kind == chat.NotSupported {
			e := notSupported(http.StatusBadRequest, "", "%s", req.Error())
			e.Param = req.Field
			return e
		}
		e := invalid("", "%s", req.Error())
		e.Param = req.Field
		return e
	case errors.As(err, &param):
		return invalid(param.Field, "%v is not possible; it must be %s", param.Value, param.Want)
	case errors.As(err, &size):
		return &apiError{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Message: fmt.Sprintf("the request is larger than %s", engine.FormatBytes(size.Limit))}
	case errors.As(err, &tool):
		return invalid("tools", "%s", err)
	case errors.As(err, &sch), errors.As(err, &gb), errors.As(err, &pat), errors.As(err, &limit), errors.As(err, &rec), errors.Is(err, grammar.ErrUnsatisfiable):
		return invalid("", "%s", err)
	case errors.Is(err, engine.ErrNoToken):
		return invalid("logit_bias", "%s", engine.ErrNoToken)
	case errors.Is(err, engine.ErrContextFull):
		return invalid("", "%s", err)
	case errors.Is(err, engine.ErrBusy):
		return busy(err.Error())
	case errors.Is(err, engine.ErrClosed), errors.Is(err, errShutdown):
		return unavailable("the server is shutting down")
	case errors.Is(err, engine.ErrHang):
		e := unavailable("the device did not come to an end and counts as lost; it is opened again")
		e.cause = err
		return e
	case errors.Is(err, engine.ErrDeviceLost):
		e := unavailable("the device was lost; it is opened again")
		e.cause = err
		return e
	case errors.Is(err, engine.ErrModel):
		e := unavailable("the model's file has changed; it is opened again")
		e.cause = err
		return e
	case errors.Is(err, engine.ErrOutOfMemory):
		e := unavailable("the device had no memory left for this request; others may go on")
		e.cause = err
		return e
	case errors.As(err, &lost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &apiError{Status: statusGone, Type: typeInvalid, Message: "the client went away", cause: err}
	}
	return &apiError{Status: http.StatusInternalServerError, Type: typeServer, cause: err}
}

// fail answers with an error, in the form of the API that was called.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := s.explain(r, err)
	if e.Status == statusGone {
		panic(http.ErrAbortHandler) // nobody listens, and an answer without content would be one
	}
	h := w.Header()
	if e.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.Retry.Seconds()))))
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, e.Status, errorForm(r)(e))
}

// explain makes an error one for the client, and keeps what it is not told: that goes into the log and to the page of the
// operator.
func (s *Server) explain(r *http.Request, err error) *apiError {
	e := *asError(err)
	info := infoOf(r)
	info.err, info.status = err, e.Status
	if e.Type == typeServer && e.Message == "" {
		e.Message = fmt.Sprintf("something went wrong in the server; its log has more under request %s", info.id)
	}
	if (e.Status == http.StatusInternalServerError || e.cause != nil && e.Status > http.StatusInternalServerError) && !s.closing.Load() {
		s.note(fault{Time: time.Now().UTC(), Request: info.id, Message: e.Message})
	}
	if e.Code == nil && e.Type == typeContext {
		e.Code = e.Status // as llama-server has it
	}
	return &e
}

// errorForm is the form that errors have in the API of a request.
func errorForm(r *http.Request) func(*apiError) any {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/v1/messages"):
		return messagesForm
	case strings.HasPrefix(path, "/api/"):
		return ollamaForm
	}
	return func(e *apiError) any { return map[string]any{"error": e.body()} }
}

// wholeTimeout is the time that taking an answer that is no stream may take.
const wholeTimeout = 2 * time.Minute

// writeJSON answers with JSON. What cannot be written is a matter of the connection, which the caller learns nothing of.
func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil { // values that JSON has no form for; none are ever put in
		status, data = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer has no form in JSON","type":"server_error","param":null,"code":null}}`)
	}
	// A client that does not read shall not hold on to a connection for ever.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wholeTimeout))
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)+1))
	w.WriteHeader(status)
	w.Write(append(data, '\n'))
}
