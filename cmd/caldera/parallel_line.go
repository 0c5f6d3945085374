package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/stop"
)

// A chatMessage is one turn of a conversation.
type chatMessage struct{ role, text string }

// A parallelLine is what a line of a file of requests asks for.
type parallelLine struct {
	id       json.RawMessage // a string or number, nil for none
	text     *string         // a prompt
	ids      []int32         // or its tokens
	messages []chatMessage   // or a conversation
	req      engine.Request  // all but the prompt
	seeded   bool            // the line has a seed
	deadline time.Duration   // 0 for none
}

// parseLine reads a request, a JSON object. What it does not say is as in defaults. The id is returned with an error
// too, if it was found.
func parseLine(line []byte, defaults engine.Request) (l parallelLine, err error) {
	l.req = defaults
	if !utf8.Valid(line) {
		return l, errors.New("the line is not UTF-8")
	}
	fields, err := objectFields(line)
	if err != nil {
		return l, err
	}
	err = errors.Join(l.identify(fields), sameThing(fields))
	for _, f := range fields {
		if err != nil {
			return l, err
		}
		err = l.set(f.name, f.value)
	}
	if err == nil {
		err = l.check()
	}
	return l, err
}

// A jsonField is a member of an object.
type jsonField struct {
	name  string
	value json.RawMessage
}

// objectFields reads the members of the one object that data holds. Two of one name are refused: readers differ about
// which counts.
func objectFields(data []byte) ([]jsonField, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("not a JSON object: %s", jsonProblem(err, data))
	}
	var fields []jsonField
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, fmt.Errorf("not JSON: %s", jsonProblem(err, data))
		}
		if seen[name] {
			return nil, fmt.Errorf("the field %s is there twice", quoteShort(name))
		}
		seen[name] = true
		f := jsonField{name: name}
		if err := d.Decode(&f.value); err != nil {
			return nil, fmt.Errorf("not JSON at the field %s: %s", quoteShort(name), jsonProblem(err, data))
		}
		fields = append(fields, f)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %s", jsonProblem(err, data))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is more than one JSON value on the line")
	}
	return fields, nil
}

// jsonProblem words an error of the JSON reader, and what data begins with where there is none.
func jsonProblem(err error, data []byte) string {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends in the middle"
	case err != nil:
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	return "it begins with " + quoteShort(string(data[:min(len(data), 40)]))
}

// quoteShort quotes the beginning of a text from outside.
func quoteShort(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "..."
	}
	return strconv.Quote(s)
}

// oneThing lists names that say the same.
var oneThing = [][]string{
	{"prompt", "prompt_ids", "messages"}, {"max_tokens", "max_completion_tokens", "n_predict"}, {"repetition_penalty", "repeat_penalty"},
}

// sameThing refuses fields of which only one would count.
func sameThing(fields []jsonField) error {
	for _, names := range oneThing {
		first := ""
		for _, f := range fields {
			if isNull(f.value) || !slices.Contains(names, f.name) {
				continue
			}
			if first != "" {
				return fmt.Errorf("%s and %s were both given; use one", first, f.name)
			}
			first = f.name
		}
	}
	return nil
}

// identify finds the line's id.
func (l *parallelLine) identify(fields []jsonField) error {
	for _, f := range fields {
		if f.name != "id" && f.name != "custom_id" || isNull(f.value) {
			continue
		}
		if c := f.value[0]; c != '"' && c != '-' && (c < '0' || c > '9') || len(f.value) > maxID {
			return fmt.Errorf("%s is not a string or a number of at most %d bytes", f.name, maxID)
		}
		if l.id != nil {
			return errors.New("id and custom_id were both given; use one")
		}
		l.id = f.value
	}
	return nil
}

// maxID bounds the bytes of an id, which comes back with the result.
const maxID = 1024

func isNull(v json.RawMessage) bool { return string(v) == "null" }

// set takes in a field.
func (l *parallelLine) set(name string, v json.RawMessage) error {
	if isNull(v) && lineFields[name] != nil {
		return nil // as if it were not there, which is how clients leave out
	}
	if f := lineFields[name]; f != nil {
		if err := f(l, v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	var names []string
	for n := range lineFields {
		names = append(names, n)
	}
	slices.Sort(names)
	if near := nearest(name, names); near != "" {
		return fmt.Errorf("unknown field %s; did you mean %q?", quoteShort(name), near)
	}
	return fmt.Errorf("unknown field %s", quoteShort(name))
}

// lineFields takes in the fields of a line.
var lineFields = map[string]func(l *parallelLine, v json.RawMessage) error{
	"id":        func(*parallelLine, json.RawMessage) error { return nil }, // see identify
	"custom_id": func(*parallelLine, json.RawMessage) error { return nil },

	"prompt": func(l *parallelLine, v json.RawMessage) (err error) {
		if v[0] == '[' {
			l.ids, err = lineIDs(v)
			return err
		}
		l.text = new(string)
		return decodeAs(v, l.text, "a string")
	},
	"prompt_ids": func(l *parallelLine, v json.RawMessage) (err error) {
		l.ids, err = lineIDs(v)
		return err
	},
	"messages": func(l *parallelLine, v json.RawMessage) (err error) {
		l.messages, err = lineMessages(v)
		return err
	},

	"max_tokens":            lineMaxTokens,
	"max_completion_tokens": lineMaxTokens,
	"n_predict":             lineMaxTokens,
	"temperature":           lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.Temperature }),
	"top_p":                 lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.TopP }),
	"min_p":                 lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.MinP }),
	"presence_penalty":      lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.PresencePenalty }),
	"frequency_penalty":     lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.FrequencyPenalty }),
	"repetition_penalty":    lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.RepetitionPenalty }),
	"repeat_penalty":        lineFloat(func(l *parallelLine) *float32 { return &l.req.Sample.RepetitionPenalty }),
	"top_k":                 lineInt(func(l *parallelLine) *int { return &l.req.Sample.TopK }),
	"repeat_last_n":         lineInt(func(l *parallelLine) *int { return &l.req.Sample.RepeatLastN }),
	"seed": func(l *parallelLine, v json.RawMessage) error {
		if string(v) == "-1" {
			return nil // a new one, as without
		}
		l.seeded = true
		return decodeAs(v, &l.req.Sample.Seed, "a whole number from 0 to 18446744073709551615, or -1")
	},
	"ignore_eos": func(l *parallelLine, v json.RawMessage) error {
		return decodeAs(v, &l.req.IgnoreEOG, "true or false")
	},
	"cache_prompt": func(l *parallelLine, v json.RawMessage) error {
		on := true
		err := decodeAs(v, &on, "true or false")
		l.req.NoCache = !on
		return err
	},
	"deadline_ms": func(l *parallelLine, v json.RawMessage) error {
		var n int64
		if err := decodeAs(v, &n, "a whole number"); err != nil {
			return err
		}
		if n < 1 || n > maxDeadline {
			return fmt.Errorf("it is %d; use 1 to %d", n, maxDeadline)
		}
		l.deadline = time.Duration(n) * time.Millisecond
		return nil
	},
	"stop": func(l *parallelLine, v json.RawMessage) error {
		const what = "a string or a list of strings"
		if v[0] == '"' {
			l.req.Stop = []string{""}
			return decodeAs(v, &l.req.Stop[0], what)
		}
		var texts []*string
		if err := decodeAs(v, &texts, what); err != nil {
			return err
		}
		l.req.Stop = nil
		for _, s := range texts {
			if s == nil {
				return fmt.Errorf("it is %s, not %s", quoteShort(string(v)), what)
			}
			l.req.Stop = append(l.req.Stop, *s)
		}
		_, err := stop.New(l.req.Stop)
		return err
	},

	// What bodies for servers carry and what makes no difference here.
	"model":        lineText,
	"user":         lineText,
	"service_tier": lineText,
	"metadata":     func(*parallelLine, json.RawMessage) error { return nil },
	"store":        lineBool,
	"stream":       lineBool, // a line's result is always whole
	"stream_options": func(_ *parallelLine, v json.RawMessage) error {
		return decodeAs(v, &map[string]json.RawMessage{}, "an object")
	},
	"parallel_tool_calls": lineBool,
	"n":                   lineOnly("1"),
	"best_of":             lineOnly("1"),
	"echo":                lineOnly("false"),
	"logprobs":            lineOnly("false"),
	"top_logprobs":        lineOnly("0"),
	"logit_bias":          lineOnly("{}"),
	"tools":               lineOnly("[]"),
	"tool_choice":         lineOnly(`"none"`, `"auto"`),
	"response_format":     lineOnly(`{"type":"text"}`),
}

// maxDeadline is about a year, in milliseconds.
const maxDeadline = 1 << 35

// check looks at a line as a whole.
func (l *parallelLine) check() error {
	switch {
	case l.text == nil && l.ids == nil && l.messages == nil:
		return errors.New("there is no prompt; give prompt, prompt_ids or messages")
	case l.text != nil && *l.text == "":
		return errors.New("prompt: it is empty")
	}
	return l.req.Sample.Validate()
}

// decodeAs decodes a value, and says what it should be if it is something else.
func decodeAs(v json.RawMessage, to any, what string) error {
	if err := json.Unmarshal(v, to); err != nil {
		return fmt.Errorf("it is %s, not %s", quoteShort(string(v)), what)
	}
	return nil
}

func lineText(_ *parallelLine, v json.RawMessage) error { return decodeAs(v, new(string), "a string") }

func lineBool(_ *parallelLine, v json.RawMessage) error {
	return decodeAs(v, new(bool), "true or false")
}

// lineFloat takes in a number.
func lineFloat(field func(*parallelLine) *float32) func(*parallelLine, json.RawMessage) error {
	return func(l *parallelLine, v json.RawMessage) error { return decodeAs(v, field(l), "a number") }
}

// lineInt takes in a whole number.
func lineInt(field func(*parallelLine) *int) func(*parallelLine, json.RawMessage) error {
	return func(l *parallelLine, v json.RawMessage) error {
		var n int32
		err := decodeAs(v, &n, "a whole number")
		*field(l) = int(n)
		return err
	}
}

// lineOnly takes values that ask for nothing, and refuses others.
func lineOnly(values ...string) func(*parallelLine, json.RawMessage) error {
	return func(_ *parallelLine, v json.RawMessage) error {
		var b bytes.Buffer
		if err := json.Compact(&b, v); err != nil {
			return err
		}
		if !slices.Contains(values, b.String()) {
			return fmt.Errorf("%s is not supported; only %s is", quoteShort(b.String()), strings.Join(values, " or "))
		}
		return nil
	}
}

// lineMaxTokens takes in the most tokens to generate; -1 is no limit.
func lineMaxTokens(l *parallelLine, v json.RawMessage) error {
	var n int64
	if err := decodeAs(v, &n, "a whole number"); err != nil {
		return err
	}
	if n == 0 || n < -1 {
		return fmt.Errorf("it is %d; use 1 or more, or -1 for no limit", n)
	}
	l.req.MaxTokens = int(min(max(n, 0), maxPredict))
	return nil
}

// maxPredict is more tokens than any context has.
const maxPredict = 1 << 30

// lineIDs takes in token ids.
func lineIDs(v json.RawMessage) ([]int32, error) {
	var ids []int32
	const what = "a list of token ids"
	if bytes.Contains(v, []byte("null")) { // which would be a 0
		return nil, fmt.Errorf("it is %s, not %s", quoteShort(string(v)), what)
	}
	if err := decodeAs(v, &ids, what); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("it is empty")
	}
	return ids, nil
}

// lineMessages takes in a conversation.
func lineMessages(v json.RawMessage) ([]chatMessage, error) {
	var list []json.RawMessage
	if err := decodeAs(v, &list, "a list of messages"); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("it is empty")
	}
	messages := make([]chatMessage, 0, len(list))
	for i, raw := range list {
		m, err := lineMessage(raw)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// chatRoles are the roles of messages, and what templates call them.
var chatRoles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

// lineMessage takes in a message. Reasoning of earlier answers is left out, as the models' templates do.
func lineMessage(raw json.RawMessage) (chatMessage, error) {
	var m chatMessage
	fields, err := objectFields(raw)
	if err != nil {
		return m, err
	}
	role, content := "", json.RawMessage("null")
	for _, f := range fields {
		switch f.name {
		case "role":
			err = decodeAs(f.value, &role, "a string")
		case "content":
			content = f.value
		case "reasoning_content", "reasoning", "name", "refusal":
			err = decodeAs(f.value, new(*string), "a string")
		case "tool_calls", "function_call", "audio":
			if !isNull(f.value) && string(f.value) != "[]" {
				err = errors.New("it is not supported yet")
			}
		default:
			return m, fmt.Errorf("unknown field %s", quoteShort(f.name))
		}
		if err != nil {
			return m, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if m.role = chatRoles[role]; m.role == "" {
		return m, fmt.Errorf("role: it is %s; use system, user or assistant", quoteShort(role))
	}
	if m.text, err = lineContent(content, m.role); err != nil {
		return m, fmt.Errorf("content: %w", err)
	}
	return m, nil
}

// lineContent takes in the content of a message: a text or a list of texts. Only an answer may have none.
func lineContent(v json.RawMessage, role string) (string, error) {
	switch v[0] {
	case '"':
		var s string
		err := json.Unmarshal(v, &s)
		return s, err
	case 'n':
		if role == "assistant" {
			return "", nil
		}
		return "", errors.New("it is missing")
	}
	var raw []json.RawMessage
	if err := decodeAs(v, &raw, "a string or a list of parts"); err != nil {
		return "", err
	}
	var parts []map[string]json.RawMessage
	for i, r := range raw {
		fields, err := objectFields(r)
		if err != nil {
			return "", fmt.Errorf("part %d: %w", i, err)
		}
		p := map[string]json.RawMessage{}
		for _, f := range fields {
			p[f.name] = f.value
		}
		parts = append(parts, p)
	}
	var b strings.Builder
	for i, p := range parts {
		var kind, text string
		_ = json.Unmarshal(p["type"], &kind) // any other kind is refused below
		if kind != "text" {
			return "", fmt.Errorf("part %d is %s; only text is supported", i, quoteShort(kind))
		}
		if err := json.Unmarshal(p["text"], &text); err != nil || len(p) != 2 {
			return "", fmt.Errorf("part %d is not a type and a text", i)
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
