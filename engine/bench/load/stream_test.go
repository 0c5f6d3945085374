package load

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		err  string // part of the last error, empty for io.EOF
	}{
		{"", nil, ""},
		{"data: a\n\ndata:b\n\n", []string{"a", "b"}, ""},
		{"data: a\r\n\r\n: ping\r\n\r\ndata:  b\r\n\r\n", []string{"a", " b"}, ""},
		{"event: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\n", []string{"a\nb"}, ""},
		{"data\n\n", []string{""}, ""},
		{"\n\n: ping\n\n", nil, ""},
		{"data: a\n\ndata: b\n", []string{"a"}, ""}, // no blank line, no event
		{"data: a\n\n{\"error\":1}\n\n", []string{"a"}, "none of an event"},
		{"<html>\n", nil, "none of an event"},
		{"data: " + strings.Repeat("x", maxLine) + "\n\n", nil, errLine.Error()},
		{strings.Repeat("data: "+strings.Repeat("x", maxLine/2)+"\n", 3) + "\n", nil, errLine.Error()},
	} {
		alive := 0
		e := newEventReader(strings.NewReader(c.text), func() { alive++ })
		var got []string
		var err error
		for {
			var data []byte
			if data, err = e.next(); err != nil {
				break
			}
			got = append(got, string(data))
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) || c.err == "" && err != io.EOF || c.err != "" && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.60q: %q, %v", c.text, got, err)
		}
		if c.err == "" && alive != strings.Count(c.text, "\n") {
			t.Errorf("%.60q: %d signs of life", c.text, alive)
		}
	}
}

// Parts of streams.
const (
	roleChunk   = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	textChunk   = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	thinkChunk  = `data: {"choices":[{"index":0,"delta":{"reasoning_content":"a","reasoning":"a"}}]}` + "\n\n"
	toolChunk   = `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n"
	oldChunk    = `data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n"
	finishChunk = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
	usageChunk  = `data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":5}},"timings":{"predicted_n":1}}` + "\n\n"
	timeChunk   = `data: {"choices":[],"timings":{"cache_n":4,"prompt_n":6,"predicted_n":3}}` + "\n\n"
	errorChunk  = `data: {"error":{"message":"out of luck","type":"server_error"}}` + "\n\n"
	doneChunk   = "data: [DONE]\n\n"
)

// An orderly stream is read, and its tokens come from the server's count where there is one.
func TestReadStream(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       reading
	}{
		{"usage", roleChunk + ": ping\n\n" + thinkChunk + textChunk + toolChunk + finishChunk + usageChunk + doneChunk,
			reading{deltas: 3, finish: "length", input: 20, cached: 5, output: 9}},
		{"timings", roleChunk + textChunk + finishChunk + timeChunk + doneChunk,
			reading{deltas: 1, finish: "length", input: 10, cached: 4, output: 3}},
		{"usage before timings", textChunk + finishChunk + usageChunk + timeChunk + doneChunk,
			reading{deltas: 1, finish: "length", input: 20, cached: 5, output: 9}},
		{"no count", oldChunk + oldChunk + finishChunk + doneChunk,
			reading{deltas: 2, finish: "length", output: 2, counted: true}},
		{"nothing said", roleChunk + finishChunk + doneChunk + ": bye\n\n",
			reading{finish: "length", counted: true}},
		{"finish with a delta", `data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}` + "\n\n" + doneChunk,
			reading{deltas: 1, finish: "stop", output: 1, counted: true}},
	} {
		calls := 0
		got, err := readStream(strings.NewReader(c.text), nil, func(n int, gap time.Duration) bool {
			if calls++; n != calls {
				t.Errorf("%s: delta %d is called %d", c.name, calls, n)
			}
			return false
		})
		if got.first.IsZero() || got.last.Before(got.first) || got.end.Before(got.last) {
			t.Errorf("%s: %+v", c.name, got)
		}
		got.first, got.last, got.end = time.Time{}, time.Time{}, time.Time{}
		if err != nil || got != c.want || calls != c.want.deltas {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// Each way in which a stream is wrong is told from the others.
func TestReadStreamFaults(t *testing.T) {
	lost := errors.New("lost")
	for _, c := range []struct {
		name, text string
		kind       string
		want       string
	}{
		{"nothing", "", FaultCut, "after 0 deltas"},
		{"cut", roleChunk + textChunk + textChunk, FaultCut, "after 2 deltas"},
		{"cut inside an event", textChunk + finishChunk[:30], FaultCut, "after 1 deltas"},
		{"no done", textChunk + finishChunk + usageChunk, FaultNoDone, ""},
		{"done cut", textChunk + finishChunk + strings.TrimSuffix(doneChunk, "\n\n"), FaultNoDone, ""},
		{"no finish", textChunk + doneChunk, FaultNoFinish, ""},
		{"no JSON", textChunk + "data: {\"choices\":[\n\n", FaultEvent, "no chunk"},
		{"a list", "data: []\n\n", FaultEvent, "no chunk"},
		{"a number", "data: 5\n\n", FaultEvent, "no chunk"},
		{"null", "data: null\n\n", FaultEvent, "no chunk"},
		{"empty data", "data:\n\n", FaultEvent, "no chunk"},
		{"wrong types", `data: {"choices":[{"delta":{"content":5}}]}` + "\n\n", FaultEvent, "no chunk"},
		{"no event", textChunk + "hello\n\n", FaultEvent, "none of an event"},
		{"after finish", finishChunk + textChunk + doneChunk, FaultEvent, "after the finish_reason"},
		{"after done", textChunk + finishChunk + doneChunk + textChunk, FaultEvent, "after [DONE]"},
		{"error", textChunk + errorChunk, FaultError, "server_error: out of luck"},
		{"error and done", textChunk + errorChunk + doneChunk, FaultError, "server_error: out of luck"},
		{"error as text", `data: {"error":"bad"}` + "\n\n", FaultNoObject, "no error object"},
		{"error without type", `data: {"error":{"message":"bad"}}` + "\n\n", FaultNoObject, "lacks message or type"},
		{"a long line", "data: " + strings.Repeat("x", maxLine) + "\n\n", FaultTooMuch, "a line"},
	} {
		_, err := readStream(strings.NewReader(c.text), nil, func(int, time.Duration) bool { return false })
		var f *Fault
		if !errors.As(err, &f) || f.Kind != c.kind || !strings.Contains(f.Detail, c.want) || f.Request != -1 {
			t.Errorf("%s: %v, want %s and %q", c.name, err, c.kind, c.want)
		}
	}
	// What the connection says is passed on.
	r := io.MultiReader(strings.NewReader(textChunk), errorReader{lost})
	if _, err := readStream(r, nil, func(int, time.Duration) bool { return false }); err != lost {
		t.Errorf("%v", err)
	}
	// After the answer it is a fault all the same.
	r = io.MultiReader(strings.NewReader(finishChunk+doneChunk), errorReader{lost})
	var f *Fault
	if _, err := readStream(r, nil, func(int, time.Duration) bool { return false }); !errors.As(err, &f) || f.Kind != FaultCut {
		t.Errorf("%v", err)
	}
	// The client leaves where it wants to.
	x, err := readStream(strings.NewReader(strings.Repeat(textChunk, 9)), nil, func(n int, _ time.Duration) bool { return n == 4 })
	if err != errLeft || x.deltas != 4 {
		t.Errorf("%d deltas, %v", x.deltas, err)
	}
}

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

// The first delta with something in it ends the wait, and gaps are between such deltas: neither the role, a ping nor the end
// counts. Time is the bubble's.
func TestReadStreamTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			for _, step := range []struct {
				after time.Duration
				text  string
			}{
				{100, roleChunk}, {20, ": ping\n\n"}, {30, thinkChunk}, {7, textChunk}, {1, ": ping\n\n"}, {4, textChunk}, {50, finishChunk}, {9, usageChunk + doneChunk},
			} {
				time.Sleep(step.after * time.Millisecond)
				io.WriteString(w, step.text)
			}
			w.Close()
		}()
		start := time.Now()
		var gaps []time.Duration
		x, err := readStream(r, nil, func(_ int, gap time.Duration) bool {
			gaps = append(gaps, gap)
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		if x.first.Sub(start) != 150*time.Millisecond || x.last.Sub(x.first) != 12*time.Millisecond || x.end.Sub(x.last) != 59*time.Millisecond {
			t.Errorf("first after %v, last %v later, end %v later", x.first.Sub(start), x.last.Sub(x.first), x.end.Sub(x.last))
		}
		if fmt.Sprint(gaps) != "[0s 7ms 5ms]" {
			t.Errorf("gaps %v", gaps)
		}
	})
}
