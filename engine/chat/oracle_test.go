package chat

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/chat/jinja"
	"github.com/calderaml/caldera/internal/oracle"
)

var oracleTemplates = []string{"qwen3.5", "qwen3.6-unsloth", "qwen3.8", "qwen3-coder", "qwen3"}

// shared returns a file of the folder shared beside the repository. Without it the test is skipped.
func shared(t testing.TB, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("no %s here; CALDERA_ORACLE names a folder with the oracle's files", filepath.Join(path...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func oracleFile(t testing.TB, name string) []byte {
	return shared(t, oracle.Dir(), "chat", filepath.FromSlash(name))
}

func oracleTemplate(t testing.TB, name string) *Template {
	t.Helper()
	tmpl, err := Compile(name, string(oracleFile(t, "templates/"+name+".jinja")))
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func decodeJSON(t testing.TB, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// A conversation is one of the oracle's, with its parts as a request has them.
type conversation struct {
	Name string
	Vars struct {
		Messages, Tools json.RawMessage
		Add             bool   `json:"add_generation_prompt"`
		Thinking        *bool  `json:"enable_thinking"`
		Preserve        *bool  `json:"preserve_thinking"`
		Effort          string `json:"reasoning_effort"`
		AddVisionID     *bool  `json:"add_vision_id"`
	}
}

// render goes the way of a request.
func (c *conversation) render(t testing.TB, tmpl *Template) (*Prompt, error) {
	messages, err := ParseMessages(string(c.Vars.Messages))
	if err != nil {
		return nil, err
	}
	o := Options{Thinking: c.Vars.Thinking, ReasoningEffort: c.Vars.Effort, GenerationPrompt: &c.Vars.Add, Kwargs: jinja.NewMap()}
	if c.Vars.Tools != nil {
		if o.Tools, err = ParseTools(string(c.Vars.Tools)); err != nil {
			return nil, err
		}
	}
	for name, v := range map[string]*bool{"preserve_thinking": c.Vars.Preserve, "add_vision_id": c.Vars.AddVisionID} {
		if v != nil {
			o.Kwargs.Set(jinja.Trusted(name), jinja.Bool(*v))
		}
	}
	return tmpl.Render(t.Context(), messages, o)
}

// TestConversations sends the oracle's conversations through the whole way from JSON to prompt. Package jinja compares
// the bare templates; here the differences are those that section 3.4 of the specification wants.
func TestConversations(t *testing.T) {
	// What is refused before the template, whatever it would do.
	refused := map[string]Kind{
		"content_parts_image": NotSupported, "content_parts_image_vision_id": NotSupported,
		"system_not_first": Invalid, "unknown_role": Invalid, "empty_messages": Invalid, "reasoning_effort_bad": Invalid,
	}
	// What is rendered although the bare template does something else with it, by conversation and template.
	const two = "<|im_start|>system\none\ntwo<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
	const developer = "<|im_start|>system\ndev<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
	const effort = "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider plausible alternatives, " +
		"and prioritize correctness, consistency, and clarity in the final answer.\n\n"
	withEffort := func(s string) string {
		return strings.Replace(s, "system\n", "system\n"+effort, 1) + "<think>\n"
	}
	const call = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call><|im_end|>\n" +
		"<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
	const parts = "<|im_start|>user\npart one part two<|im_end|>\n<|im_start|>assistant\n"
	const arguments = "<tool_call>\n<function=search>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call><|im_end|>\n" +
		"<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
	own := map[string]string{
		"two_systems qwen3.5": two + "<think>\n", "two_systems qwen3.8": withEffort(two), "two_systems qwen3-coder": two, "two_systems qwen3": two,
		"developer_role qwen3.5": developer + "<think>\n", "developer_role qwen3.8": withEffort(developer),
		"developer_role qwen3-coder": developer, "developer_role qwen3": developer,
		"content_parts_text qwen3-coder": parts, "content_parts_text qwen3": parts,
		// The rest has the tools in front; the end of the prompt is what matters.
		"call_null_content qwen3": call, "content_missing qwen3": call,
		"call_args_string qwen3.5": "<think>\n\n</think>\n\n" + arguments + "<think>\n", "call_args_string qwen3.6-unsloth": "<think>\n\n</think>\n\n" + arguments + "<think>\n",
		"call_args_string qwen3.8": "<think>\n\n</think>\n\n" + arguments + "<think>\n", "call_args_string qwen3-coder": "",
	}
	var conversations []conversation
	decodeJSON(t, oracleFile(t, "conversations.json"), &conversations)
	for _, name := range oracleTemplates {
		tmpl := oracleTemplate(t, name)
		var results []struct{ Name, Output, Error, Error_kind string }
		decodeJSON(t, oracleFile(t, "expected/"+name+".json"), &results)
		equal, ours := 0, 0
		for i, c := range conversations {
			want := results[i]
			if want.Name != c.Name {
				t.Fatalf("result %d is of %s, not %s", i, want.Name, c.Name)
			}
			p, err := c.render(t, tmpl)
			e, _ := errors.AsType[*RequestError](err)
			kind, isRefused := refused[c.Name]
			text, isOwn := own[c.Name+" "+name]
			switch {
			case err != nil && e == nil:
				t.Errorf("%s, %s: %v is no RequestError", name, c.Name, err)
			case isRefused:
				if e == nil || e.Kind != kind {
					t.Errorf("%s, %s: error %v, want one of kind %d", name, c.Name, err, kind)
				}
				ours++
			case isOwn:
				if err != nil || !strings.HasSuffix(p.Text(), text) {
					t.Errorf("%s, %s: error %v\n got %q\nwant %q at the end", name, c.Name, err, p.Text(), text)
				}
				ours++
			case want.Error != "":
				if e == nil || e.What != want.Error {
					t.Errorf("%s, %s: error %v, want %q", name, c.Name, err, want.Error)
				}
				equal++
			case err != nil:
				t.Errorf("%s, %s: %v", name, c.Name, err)
			case p.Text() != want.Output:
				t.Errorf("%s, %s:\n got %q\nwant %q", name, c.Name, p.Text(), want.Output)
			default:
				equal++
			}
		}
		t.Logf("%s: %d as the template alone, %d as section 3.4 says", name, equal, ours)
	}
}

// TestPrefixes renders the first and second turns of the oracle's prefix.json.
func TestPrefixes(t *testing.T) {
	var all []struct {
		Template, Setting string
		Returns           bool   `json:"client_returns_reasoning"`
		First             string `json:"turn1_prompt"`
		Answered          string `json:"turn1_prompt_and_answer"`
		Second            string `json:"turn2_prompt"`
	}
	decodeJSON(t, oracleFile(t, "prefix.json"), &all)
	for _, c := range all {
		tmpl := oracleTemplate(t, c.Template)
		o := Options{Kwargs: jinja.NewMap()}
		want := ThinkOpen
		switch c.Setting {
		case "off":
			o.Thinking, want = new(bool), ThinkClosed
		case "preserve":
			o.Kwargs.Set(jinja.Trusted("preserve_thinking"), jinja.Bool(true))
		}
		messages := []Message{NewMessage(RoleUser, "q1")}
		first, err := tmpl.Render(t.Context(), messages, o)
		if err != nil {
			t.Fatal(err)
		}
		if first.Text() != c.First || first.Think != want || first.Thinking != (want == ThinkOpen) {
			t.Errorf("%s, %s: first turn %q, think %d", c.Template, c.Setting, first.Text(), first.Think)
		}
		// The answer is read the way the model's is, and comes back the way a client sends it.
		raw := strings.TrimSuffix(strings.TrimPrefix(c.Answered, c.First), "<|im_end|>\n")
		a := ParseAnswer(raw, ParserOptions{Think: first.Think}, false)
		answer := Message{Role: RoleAssistant, Text: a.Content}
		if c.Returns {
			answer.Reasoning = a.Reasoning
		}
		second, err := tmpl.Render(t.Context(), append(messages, answer, NewMessage(RoleUser, "q2")), o)
		if err != nil {
			t.Fatal(err)
		}
		if second.Text() != c.Second {
			t.Errorf("%s, %s, %v: second turn\n got %q\nwant %q", c.Template, c.Setting, c.Returns, second.Text(), c.Second)
		}
	}
	t.Logf("%d pairs of turns", len(all))
}

// cuts are ways to cut a text: not at all, in two at every byte, into single bytes, at random.
func cuts(text string) [][]string {
	all := [][]string{{text}}
	for i := range len(text) + 1 {
		all = append(all, []string{text[:i], text[i:]})
	}
	var bytes []string
	for i := range len(text) {
		bytes = append(bytes, text[i:i+1])
	}
	all = append(all, bytes)
	r := rand.New(rand.NewPCG(1, uint64(len(text))))
	for range 20 {
		var pieces []string
		for rest := text; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 12))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		all = append(all, pieces)
	}
	return all
}

// collect parses pieces and returns all events, those that go on one another joined.
func collect(pieces []string, o ParserOptions, truncated bool) []Event {
	n := 0
	o.NewID = func() string { n++; return "id" + string(rune('0'+n)) }
	p := NewParser(o)
	var events []Event
	add := func(more []Event) {
		for _, e := range more {
			if k := len(events); k > 0 && events[k-1].Kind == e.Kind && e.Kind <= EventContent {
				events[k-1].Text += e.Text
				continue
			}
			events = append(events, e)
		}
	}
	for _, piece := range pieces {
		add(p.Write(piece))
	}
	add(p.Finish(truncated))
	return events
}

func answerOf(events []Event) (a Answer) {
	a.Add(events)
	return a
}

// sameJSON reports whether two JSON texts say the same, with the keys of objects in the same order.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y strings.Builder
	for _, s := range []struct {
		from string
		to   *strings.Builder
	}{{a, &x}, {b, &y}} {
		d := json.NewDecoder(strings.NewReader(s.from))
		d.UseNumber()
		for tok, err := d.Token(); err == nil; tok, err = d.Token() {
			out, _ := json.Marshal(tok)
			s.to.Write(append(out, ' '))
		}
	}
	return json.Valid([]byte(a)) && json.Valid([]byte(b)) && x.String() == y.String()
}

// TestToolCalls reads the oracle's answers, cut in every way.
func TestToolCalls(t *testing.T) {
	type call struct {
		Name      string
		Arguments json.RawMessage
	}
	var file struct {
		Tools []json.RawMessage
		Cases []struct {
			ID      string
			Opened  bool `json:"prompt_opened_think"`
			Tools   []string
			Raw     string
			Reason  *string `json:"reasoning_content"`
			Content *string
			Calls   []call `json:"tool_calls"`
			Note    string
		}
	}
	decodeJSON(t, oracleFile(t, "toolcalls.json"), &file)
	var definitions []string
	for _, tool := range file.Tools {
		definitions = append(definitions, `{"type":"function","function":`+string(tool)+"}")
	}
	tools, err := ParseTools("[" + strings.Join(definitions, ",") + "]")
	if err != nil {
		t.Fatal(err)
	}
	ways := 0
	for _, c := range file.Cases {
		o := ParserOptions{Think: ThinkFree}
		if c.Opened {
			o.Think = ThinkOpen
		}
		for _, tool := range tools {
			if slices.Contains(c.Tools, tool.Name) {
				o.Tools = append(o.Tools, tool)
			}
		}
		truncated := strings.Contains(c.Note, "finish_reason length")
		a := ParseAnswer(c.Raw, o, truncated)
		if !reflect.DeepEqual(a.Reasoning, c.Reason) {
			t.Errorf("%s: reasoning %s, want %s", c.ID, show(a.Reasoning), show(c.Reason))
		}
		if !reflect.DeepEqual(a.Content, c.Content) {
			t.Errorf("%s: content %s, want %s", c.ID, show(a.Content), show(c.Content))
		}
		if len(a.Calls) != len(c.Calls) {
			t.Errorf("%s: calls %v, want %d", c.ID, a.Calls, len(c.Calls))
			continue
		}
		for i, got := range a.Calls {
			if got.Name != c.Calls[i].Name || !sameJSON(t, got.Arguments, string(c.Calls[i].Arguments)) {
				t.Errorf("%s: call %v, want %s %s", c.ID, got, c.Calls[i].Name, c.Calls[i].Arguments)
			}
		}
		whole := collect([]string{c.Raw}, o, truncated)
		for _, pieces := range cuts(c.Raw) {
			ways++
			if got := collect(pieces, o, truncated); !reflect.DeepEqual(got, whole) {
				t.Fatalf("%s, cut into %q:\n got %+v\nwant %+v", c.ID, pieces, got, whole)
			}
		}
	}
	t.Logf("%d answers, cut in %d ways", len(file.Cases), ways)
	if len(file.Cases) != 21 {
		t.Errorf("%d cases, not 21", len(file.Cases))
	}
}

func show(s *string) string {
	if s == nil {
		return "null"
	}
	out, _ := json.Marshal(*s)
	return string(out)
}

// TestCaseC14 reads the answers of the users' report C14, cut in every way.
func TestCaseC14(t *testing.T) {
	data := shared(t, oracle.Dir(), "..", "cases", "c14_tool_texts.jsonl")
	tools, err := ParseTools(`[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}},
		{"type":"function","function":{"name":"noargs"}},
		{"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{"path":{"type":"string"},"body":{"type":"string"}}}}}]`)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		var c struct {
			Raw  string
			Open bool `json:"thinking_open"`
			Want struct {
				Reasoning, Content *string
				Calls              *int
				CallsMax           *int `json:"calls_max"`
				Args               map[string]string
				Truncated          bool
				NonEmpty           bool   `json:"content_nonempty"`
				Contains           string `json:"content_contains"`
			}
		}
		decodeJSON(t, []byte(line), &c)
		n++
		o := ParserOptions{Tools: tools}
		if c.Open {
			o.Think = ThinkOpen
		}
		whole := collect([]string{c.Raw}, o, c.Want.Truncated)
		for _, pieces := range cuts(c.Raw) {
			if got := collect(pieces, o, c.Want.Truncated); !reflect.DeepEqual(got, whole) {
				t.Fatalf("%q, cut into %q:\n got %+v\nwant %+v", c.Raw, pieces, got, whole)
			}
		}
		a := answerOf(whole)
		content, reasoning := "", ""
		if a.Content != nil {
			content = *a.Content
		}
		if a.Reasoning != nil {
			reasoning = *a.Reasoning
		}
		w := c.Want
		if w.Reasoning != nil && reasoning != *w.Reasoning || w.Content != nil && content != *w.Content ||
			w.Calls != nil && len(a.Calls) != *w.Calls || w.CallsMax != nil && len(a.Calls) > *w.CallsMax ||
			w.NonEmpty && content == "" || !strings.Contains(content, w.Contains) {
			t.Errorf("%q: reasoning %q, content %q, calls %v", c.Raw, reasoning, content, a.Calls)
		}
		for _, call := range a.Calls {
			var args map[string]any
			decodeJSON(t, []byte(call.Arguments), &args)
			for k, v := range w.Args {
				if args[k] != v {
					t.Errorf("%q: argument %s is %v", c.Raw, k, args[k])
				}
			}
		}
	}
	t.Logf("%d answers", n)
}
