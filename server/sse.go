package server

import (
	"encoding/json"
	"net/http"
	"time"
)

// events writes an answer as a stream of events. The status is sent with the first one, so that an error before can have
// its own.
type events struct {
	w       http.ResponseWriter
	conn    *http.ResponseController
	timeout time.Duration
	kind    string // of the content
	buf     []byte
	sent    bool
}

func (s *Server) events(w http.ResponseWriter) *events {
	return &events{w: w, conn: http.NewResponseController(w), timeout: s.cfg.WriteTimeout, kind: "text/event-stream; charset=utf-8"}
}

// data writes an event. The name is what event says, empty for none.
func (e *events) data(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	e.buf = e.buf[:0]
	if name != "" {
		e.buf = append(append(append(e.buf, "event: "...), name...), '\n')
	}
	e.buf = append(append(append(e.buf, "data: "...), data...), "\n\n"...)
	return e.flush()
}

// line writes a line of JSON, which is what streams of Ollama consist of.
func (e *events) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	e.buf = append(append(e.buf[:0], data...), '\n')
	return e.flush()
}

// ping writes what readers pass over.
func (e *events) ping() error {
	e.buf = append(e.buf[:0], ": ping\n\n"...)
	return e.flush()
}

// done writes OpenAI's last event.
func (e *events) done() error {
	e.buf = append(e.buf[:0], "data: [DONE]\n\n"...)
	return e.flush()
}

// flush sends what was written. A client that does not read has a while for each write.
func (e *events) flush() error {
	if !e.sent {
		h := e.w.Header()
		h.Set("Content-Type", e.kind)
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		e.w.WriteHeader(http.StatusOK)
		e.sent = true
	}
	// Where a deadline cannot be set, as in tests, there is none.
	_ = e.conn.SetWriteDeadline(time.Now().Add(e.timeout))
	if _, err := e.w.Write(e.buf); err != nil {
		return gone{err}
	}
	if err := e.conn.Flush(); err != nil {
		return gone{err}
	}
	return nil
}

// gone is why a task ends whose client does not take the answer.
type gone struct{ error }

func (g gone) Unwrap() error { return g.error }

// end ends a stream, with an error if there is one: as an ordinary answer if nothing was sent yet, else as an event. What an event is in the
// API's form is up to write.
func (e *events) end(s *Server, r *http.Request, err error, write func(form any) error) error {
	if err == nil || !e.sent {
		return err
	}
	x := s.explain(r, err)
	if x.Status != statusGone {
		_ = write(errorForm(r)(x)) // the stream ends here in any case
	}
	return nil
}
