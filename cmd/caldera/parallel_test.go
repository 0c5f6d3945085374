package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// lineDefaults is what lines in tests do not say.
func lineDefaults() engine.Request {
	p := sample.Neutral()
	p.Seed = 5
	return engine.Request{Sample: p, MaxTokens: 100}
}

func TestParseLine(t *testing.T) {
	text := func(s string) *string { return &s }
	with := func(f func(l *parallelLine)) parallelLine {
		l := parallelLine{text: text("x"), req: lineDefaults()}
		f(&l)
		return l
	}
	tests := []struct {
		in   string
		want parallelLine
	}{
		{`{"prompt":"x"}`, with(func(*parallelLine) {})},
		{`{"prompt":"x","id":"a\n"}`, with(func(l *parallelLine) { l.id = json.RawMessage(`"a\n"`) })},
		{`{"custom_id":-1.5e3,"prompt":"x"}`, with(func(l *parallelLine) { l.id = json.RawMessage(`-1.5e3`) })},
		{`{"prompt":[1,2]}`, with(func(l *parallelLine) { l.text, l.ids = nil, []int32{1, 2} })},
		{`{"prompt_ids":[3]}`, with(func(l *parallelLine) { l.text, l.ids = nil, []int32{3} })},
		{`{"prompt":"x","max_tokens":7}`, with(func(l *parallelLine) { l.req.MaxTokens = 7 })},
		{`{"prompt":"x","max_completion_tokens":-1}`, with(func(l *parallelLine) { l.req.MaxTokens = 0 })},
		{`{"prompt":"x","n_predict":9223372036854775807}`, with(func(l *parallelLine) { l.req.MaxTokens = maxPredict })},
		{`{"prompt":"x","temperature":0.5,"top_k":3,"top_p":0.25,"min_p":0.125,"seed":18446744073709551615,"presence_penalty":-1,
			"frequency_penalty":1.5,"repetition_penalty":1.25,"repeat_last_n":-1}`, with(func(l *parallelLine) {
			l.req.Sample = sample.Params{Temperature: 0.5, TopK: 3, TopP: 0.25, MinP: 0.125, Seed: 1<<64 - 1, PresencePenalty: -1,
				FrequencyPenalty: 1.5, RepetitionPenalty: 1.25, RepeatLastN: -1}
			l.seeded = true
		})},
		{`{"prompt":"x","seed":-1,"ignore_eos":true,"cache_prompt":false,"deadline_ms":1500}`, with(func(l *parallelLine) {
			l.req.IgnoreEOG, l.req.NoCache, l.deadline = true, true, 1500*time.Millisecond
		})},
		{`{"prompt":"x","id":null,"max_tokens":null,"stop":null,"logprobs":null,"messages":null}`, with(func(*parallelLine) {})},
		{`{"prompt":"x","model":"t","user":"u","stream":true,"n":1,"stop":[],"tools":[],"tool_choice":"none","response_format":{ "type": "text" },
			"metadata":{"a":[1]},"stream_options":{"include_usage":true},"store":false,"logit_bias":{}}`, with(func(*parallelLine) {})},
		{`{"messages":[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"text":"c","type":"text"}]},
			{"role":"assistant","content":"d","reasoning_content":"e","refusal":null,"tool_calls":[]},{"role":"assistant","content":null},
			{"role":"user","name":"n","content":""}]}`, with(func(l *parallelLine) {
			l.text = nil
			l.messages = []chatMessage{{"system", "a"}, {"user", "bc"}, {"assistant", "d"}, {"assistant", ""}, {"user", ""}}
		})},
	}
	for _, tt := range tests {
		got, err := parseLine([]byte(tt.in), lineDefaults())
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n%+v, %v, want\n%+v", tt.in, got, err, tt.want)
		}
	}
}

func TestParseLineErrors(t *testing.T) {
	deep := strings.Repeat("[", 20000)
	for in, want := range map[string]string{
		`[]`: "not a JSON object", `null`: "not a JSON object: it begins with", `"x"`: "not a JSON object", `7`: "not a JSON object",
		`{`: "ends in the middle", `{"prompt":`: `at the field "prompt"`, `{"prompt":"x"`: "ends in the middle", `{:}`: "not JSON", `{"a":1,}`: "not JSON",
		`{"prompt":"x"} {}`: "more than one JSON value", `{"prompt":"x"}]`: "more than one JSON value",
		"{\"prompt\":\"\xff\"}":       "not UTF-8",
		`{"prompt":"x","prompt":"y"}`: `"prompt" is there twice`,
		`{}`:                          "there is no prompt", `{"prompt":null}`: "there is no prompt", `{"prompt":""}`: "prompt: it is empty",
		`{"prompt":"x","prompt_ids":[1]}`: "both given", `{"prompt":[1],"prompt_ids":[2]}`: "both given",
		`{"prompt":"x","max_tokens":1,"n_predict":3}`:                                      "both given",
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}`: "there twice",
		`{"prompt":7}`: "not a string", `{"prompt":["a","b"]}`: "list of token ids", `{"prompt_ids":"1,2"}`: "list of token ids",
		`{"prompt_ids":[]}`: "it is empty", `{"prompt_ids":[1.5]}`: "list of token ids", `{"prompt_ids":[3000000000]}`: "list of token ids",
		`{"prompt_ids":[null]}`: "list of token ids", `{"prompt_ids":{}}`: "list of token ids",
		`{"prompt":"x","tmperature":1}`: `did you mean "temperature"?`, `{"prompt":"x","quux":null}`: `unknown field "quux"`,
		`{"prompt":"x","Prompt":"y"}`: "unknown field", `{"prompt":"x","id":"a","custom_id":"b"}`: "both given",
		`{"prompt":"x","id":[1]}`: "id is not a string or a number", `{"prompt":"x","id":true}`: "id is not a string or a number",
		`{"prompt":"x","id":"` + strings.Repeat("a", 2000) + `"}`: "at most 1024",
		`{"prompt":"x","max_tokens":0}`:                           "max_tokens: it is 0", `{"prompt":"x","max_tokens":-5}`: "max_tokens: it is -5",
		`{"prompt":"x","max_tokens":"ten"}`: "not a whole number", `{"prompt":"x","max_tokens":1.5}`: "not a whole number",
		`{"prompt":"x","max_tokens":99999999999999999999}`: "not a whole number",
		`{"prompt":"x","temperature":-1}`:                  "temperature is -1", `{"prompt":"x","temperature":"NaN"}`: "temperature: ",
		`{"prompt":"x","temperature":1e999}`: "temperature: ", `{"prompt":"x","top_p":7}`: "top_p is 7", `{"prompt":"x","top_k":-2147483648}`: "top_k is",
		`{"prompt":"x","top_k":99999999999}`: "top_k: ", `{"prompt":"x","seed":1180591620717411303424}`: "seed: ", `{"prompt":"x","seed":-2}`: "seed: ",
		`{"prompt":"x","ignore_eos":"yes"}`: "true or false", `{"prompt":"x","stream":"yes"}`: "stream: ", `{"prompt":"x","deadline_ms":0}`: "deadline_ms: it is 0",
		`{"prompt":"x","deadline_ms":99999999999999}`: "deadline_ms: it is", `{"prompt":"x","cache_prompt":1}`: "cache_prompt: ",
		`{"prompt":"x","stop":[7]}`: "a string or a list of strings", `{"prompt":"x","stop":["a",null]}`: "a list of strings", `{"prompt":"x","stop":[""]}`: "is empty",
		`{"prompt":"x","n":2}`: "n: ", `{"prompt":"x","n":0}`: "n: ", `{"prompt":"x","logprobs":true}`: "logprobs: ", `{"prompt":"x","tools":[{}]}`: "tools: ",
		`{"prompt":"x","logit_bias":{"9":5}}`: "logit_bias: ", `{"prompt":"x","response_format":{"type":"json_schema"}}`: "response_format: ",
		`{"messages":{}}`: "list of messages", `{"messages":[]}`: "messages: it is empty", `{"messages":[null]}`: "message 0: not a JSON object",
		`{"messages":` + deep: "at the field", `{"messages":[{"role":"user"}]}`: "message 0: content: it is missing", `{"messages":[{"content":"a"}]}`: `role: it is ""`,
		`{"messages":[{"role":7,"content":"a"}]}`: "role: ", `{"messages":[{"role":"wizard","content":"a"}]}`: `it is "wizard"`,
		`{"messages":[{"role":"tool","content":"a"}]}`: `it is "tool"`, `{"messages":[{"role":"user","content":7}]}`: "a string or a list of parts",
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`: `part 0 is "image_url"`,
		`{"messages":[{"role":"user","content":[{"type":"text"}]}]}`:                     "part 0 is not", `{"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]}`: "part 0 is not",
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{}]}]}`: "message 1: tool_calls", `{"messages":[{"role":"user","content":"a","foo":1}]}`: `unknown field "foo"`,
	} {
		l, err := parseLine([]byte(in), lineDefaults())
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("%.80s: %v, want an error with %q", in, err, want)
		}
		if strings.Contains(in, `"custom_id"`) != (l.id != nil) {
			t.Errorf("%.80s: id %s", in, l.id)
		}
	}
	// The id is found wherever it stands, so that the error can be told apart from others.
	if l, err := parseLine([]byte(`{"prompt":7,"id":"last"}`), lineDefaults()); err == nil || string(l.id) != `"last"` {
		t.Errorf("id %s, %v", l.id, err)
	}
}

// No line makes the parser fail in a way of its own, and what it takes can be run.
func FuzzParseLine(f *testing.F) {
	for _, s := range []string{
		`{"prompt":"x","id":1}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"b"}]}]}`, `{"prompt_ids":[1,2],"max_tokens":3,"stop":[]}`, `{"a`, "null",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLine(data, lineDefaults())
		if l.id != nil && !json.Valid(l.id) {
			t.Errorf("id %q", l.id)
		}
		if err != nil {
			return
		}
		if l.text == nil && len(l.ids) == 0 && len(l.messages) == 0 || l.req.MaxTokens < 0 || l.deadline < 0 || l.req.Sample.Validate() != nil {
			t.Errorf("%q: %+v", data, l)
		}
	})
}

// allLines reads all lines of a reader.
func allLines(t *testing.T, r io.Reader) (lines []inputLine, err error) {
	t.Helper()
	out := make(chan inputLine)
	done := make(chan error, 1)
	go func() {
		done <- readLines(t.Context(), r, out)
		close(out)
	}()
	for l := range out {
		lines = append(lines, l)
	}
	return lines, <-done
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	tests := []struct {
		name, in string
		want     []string // number and data
	}{
		{"nothing", "", nil},
		{"blank lines", "\n \r\n\t\n", nil},
		{"ends", "a\nb", []string{"1 a", "2 b"}},
		{"Windows", "\ufeffa\r\n\r\n b \r\n", []string{"1 a", "3 b"}},
		{"exactly the most", long[1:] + "\nb\n", []string{fmt.Sprintf("1 %d bytes", maxLine-1), "2 b"}},
		{"too long", "a\n" + long + "y\nb\n", []string{"1 a", "2 " + errLongLine.Error(), "3 b"}},
		{"too long at the end", "a\n" + long + "y", []string{"1 a", "2 " + errLongLine.Error()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lines, err := allLines(t, strings.NewReader(tt.in))
			var got []string
			for _, l := range lines {
				switch {
				case l.err != nil:
					got = append(got, fmt.Sprintf("%d %v", l.number, l.err))
				case len(l.data) > 1000:
					got = append(got, fmt.Sprintf("%d %d bytes", l.number, len(l.data)))
				default:
					got = append(got, fmt.Sprintf("%d %s", l.number, l.data))
				}
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
	broken := errors.New("broken")
	lines, err := allLines(t, io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(lines) != 1 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

// A line without an end takes no more memory than the most of one.
func TestReadLineIsBounded(t *testing.T) {
	r := bufio.NewReaderSize(io.LimitReader(endless{}, 40*maxLine), 1<<16)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readLine(r); !errors.Is(err, errLongLine) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	// Growing to 16 MiB takes some times that; the whole line would be 640 MiB.
	if took := after.TotalAlloc - before.TotalAlloc; took > 10*maxLine {
		t.Errorf("%d bytes", took)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// When nobody takes lines any more, reading ends with the context.
func TestReadLinesStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- readLines(ctx, endlessLines{}, make(chan inputLine)) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

type endlessLines struct{}

func (endlessLines) Read(b []byte) (int, error) { return copy(b, "a\n"), nil }

// Quantiles are those of the sorted durations to a sixteenth.
func TestGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var g gaps
		var all []time.Duration
		for range 1 + rng.IntN(500) {
			d := time.Duration(rng.Uint64N(1 << (5 + rng.Uint64N(40))))
			all = append(all, d)
			g.add(d)
		}
		slices.Sort(all)
		for _, q := range []float64{0.01, 0.5, 0.99, 1} {
			want := all[max(0, int(float64(len(all))*q+0.999999)-1)]
			if got := g.quantile(q); float64(got) < float64(want) || float64(got) > float64(want)*17/16+17 {
				t.Errorf("quantile %g of %d is %v, want %v", q, len(all), got, want)
			}
		}
	}
	var g gaps
	g.add(0)
	g.add(1<<63 - 1)
	if got := g.quantile(1); got != 1<<63-1 {
		t.Errorf("the longest is %d", got)
	}
	if got := new(gaps).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
