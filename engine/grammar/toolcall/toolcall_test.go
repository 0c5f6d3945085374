package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/grammar/schema"
	"github.com/calderaml/caldera/internal/oracle"
)

func matches(g *grammar.Grammar, text string) bool {
	s, n := g.Accept(g.Start(), []byte(text))
	return n == len(text) && g.Accepting(s)
}

func compile(t *testing.T, tools []Tool, opts Options) *grammar.Grammar {
	t.Helper()
	b := grammar.NewBuilder(grammar.Limits{})
	calls, err := Build(t.Context(), b, tools, opts)
	if err != nil {
		t.Fatal(err)
	}
	g, err := b.Compile(t.Context(), calls.Text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// call writes a call with parameters given as pairs.
func call(name string, pairs ...string) string {
	text := "<tool_call>\n<function=" + name + ">\n"
	for i := 0; i < len(pairs); i += 2 {
		text += "<parameter=" + pairs[i] + ">\n" + pairs[i+1] + "\n</parameter>\n"
	}
	return text + "</function>\n</tool_call>"
}

var weather = Tool{Name: "weather", Parameters: []byte(`{"type":"object","properties":{
	"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},"unit":{"enum":["C","F",7]},
	"code":{"type":"string","pattern":"^[A-Z\\n<]{2,3}$"},"short":{"type":"string","maxLength":3},"body":{"type":"string","pattern":"^AB"},
	"opts":{"type":"object","properties":{"deep":{"type":"boolean"}}},"note":{"type":["string","null"]},
	"when":{"anyOf":[{"type":"string","format":"date"},{"type":"null"}]}},"required":["city"]}`)}

func TestCalls(t *testing.T) {
	g := compile(t, []Tool{weather, {Name: "noop"}, {Name: "noargs", Parameters: []byte(`{"type":"object","properties":{}}`)}}, Options{})
	yes := []string{
		call("weather", "city", "Oslo"),
		call("weather", "city", "Oslo", "days", "14", "unit", "C"),
		call("weather", "city", ""),
		call("weather", "city", "line 1\n</parameter looks odd\n<b>7</b> \"quoted\" \\ é\n\n"),
		call("weather", "city", "a</parameter>b"),
		call("weather", "city", "x", "unit", "7"),
		call("weather", "city", "x", "code", "AB"),
		call("weather", "city", "x", "code", "\n<A"),
		call("weather", "city", "x", "short", "é\n🌋"),
		call("weather", "city", "x", "opts", `{"deep":true}`, "note", "null"),
		call("weather", "city", "x", "note", "free text"),
		call("weather", "city", "x", "when", "2024-02-29"),
		call("weather", "city", "x", "when", "null"),
		call("noop"), call("noargs"),
		call("noop") + "\n" + call("weather", "city", "x") + "\n" + call("noop"),
	}
	not := []string{
		"", "text", "<tool_call>", call("weather"), call("other"), call("weathe", "city", "x"), call("noop", "city", "x"),
		call("weather", "days", "3"), call("weather", "days", "3", "city", "x"), call("weather", "city", "x", "days", "15"),
		call("weather", "city", "x", "days", `"3"`), call("weather", "city", "x", "unit", `"C"`), call("weather", "city", "x", "unit", "K"),
		call("weather", "city", "x", "code", "A"), call("weather", "city", "x", "short", "abcd"), call("weather", "city", "x", "when", "soon"),
		call("weather", "city", "x", "opts", `{"deep":1}`), call("weather", "city", "x", "extra", "1"), call("weather", "city", "\xff"),
		call("noop") + call("noop"), call("noop") + "\n", call("noop") + " and so on",
	}
	for _, text := range yes {
		if !matches(g, text) {
			_, n := g.Accept(g.Start(), []byte(text))
			t.Errorf("refused after %d bytes:\n%s", n, text)
		}
	}
	for _, text := range not {
		if matches(g, text) {
			t.Errorf("accepted:\n%s", text)
		}
	}
	g = compile(t, []Tool{weather}, Options{Single: true})
	if one := call("weather", "city", "x"); !matches(g, one) || matches(g, one+"\n"+one) {
		t.Error("single does not mean one")
	}
	if got := string(g.Forced(g.Start(), 1000)); got != "<tool_call>\n<function=weather>\n<parameter=city>\n" {
		t.Errorf("forced %q", got)
	}
}

// TestValuesEnd checks that a value never holds what ends it: otherwise text after the call would be read as part of
// the value and be free of the grammar.
func TestValuesEnd(t *testing.T) {
	g := compile(t, []Tool{weather}, Options{Single: true})
	for _, name := range []string{"city", "code", "short", "body", "note"} {
		params := []string{"city", "x"}
		if name == "city" {
			params = nil
		}
		begin := strings.TrimSuffix(call("weather", params...), "</function>\n</tool_call>") + "<parameter=" + name + ">\nAB\n</parameter>\n"
		s, n := g.Accept(g.Start(), []byte(begin))
		if n != len(begin) {
			t.Fatalf("%s: only %d bytes of %d fit", name, n, len(begin))
		}
		if _, n := g.Accept(s, []byte("free")); n != 0 {
			t.Errorf("%s: text goes on after the value", name)
		}
	}
}

func TestOpen(t *testing.T) {
	g := compile(t, []Tool{
		{Name: "any", Parameters: []byte(`{"type":"object"}`)},
		{Name: "some", Parameters: []byte(`{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}}`)},
	}, Options{})
	for text, want := range map[string]bool{
		call("any", "x", "y", "z", "1"): true, call("any"): true, call("any", "", "y"): false, call("any", "a b", "y"): false,
		call("some", "a", "1", "b", "true"): true, call("some", "a", "true"): false, call("some", "ab", "false"): true, call("some", "b", "1"): false,
	} {
		if got := matches(g, text); got != want {
			t.Errorf("%v for\n%s", got, text)
		}
	}
}

// TestLoose checks that a tool whose schema is not supported harms no other.
func TestLoose(t *testing.T) {
	bad := map[string]string{
		"keyword": `{"type":"object","properties":{"a":{"multipleOf":2}}}`,
		"nothing": `{"type":"object","properties":{"a":{"type":"integer","minimum":3,"maximum":1}},"required":["a"]}`,
		"deep":    `{"type":"object","properties":{"a":` + strings.Repeat(`{"type":"array","minItems":1,"items":`, 100) + `{}` + strings.Repeat("}", 100) + `},"required":["a"]}`,
		"json":    `{`, "array": `{"type":"array"}`, "either": `{"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
		"length": `{"type":"object","properties":{"a":{"type":"string","maxLength":100000}}}`,
		"tag":    `{"type":"object","properties":{"a>b":{}}}`,
	}
	var many []string // patterns of 900 rules each, together more than a grammar may have
	for i := range 25 {
		many = append(many, fmt.Sprintf(`"p%d":{"type":"string","pattern":"^[a-z]{0,900}$"}`, i))
	}
	bad["rules"] = `{"type":"object","properties":{` + strings.Join(many, ",") + `}}`
	for name, source := range bad {
		tools := []Tool{weather, {Name: name, Parameters: []byte(source)}}
		b := grammar.NewBuilder(grammar.Limits{})
		calls, err := Build(t.Context(), b, tools, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(calls.Loose) != 1 || calls.Loose[name] == nil {
			t.Errorf("%s: loose are %v", name, calls.Loose)
		}
		g, err := b.Compile(t.Context(), calls.Text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !matches(g, call(name, "anything", "text")) || matches(g, call("weather", "days", "3")) {
			t.Errorf("%s: the grammar is not as it should be", name)
		}
		tools[1].Strict = true
		var e *ToolError
		if _, err := Build(t.Context(), grammar.NewBuilder(grammar.Limits{}), tools, Options{}); !errors.As(err, &e) || e.Tool != name {
			t.Errorf("%s: strict gives %v", name, err)
		}
	}
	var e *schema.Error
	_, err := Build(t.Context(), grammar.NewBuilder(grammar.Limits{}), []Tool{{Name: "x", Parameters: []byte(bad["keyword"]), Strict: true}}, Options{})
	if !errors.As(err, &e) || e.Keyword != "multipleOf" || e.Pointer != "/properties/a" {
		t.Errorf("error %v", err)
	}
	for _, tools := range [][]Tool{nil, {{Name: ""}}, {{Name: "a b"}}, {{Name: "a>"}}, {{Name: "a"}, {Name: "a"}}} {
		if _, err := Build(t.Context(), grammar.NewBuilder(grammar.Limits{}), tools, Options{}); err == nil {
			t.Errorf("no error for %v", tools)
		}
	}
}

// TestModelOutputs reads the tool calls of the reference vectors: what the vectors' parser takes and is written in
// this form must be accepted after </think>.
func TestModelOutputs(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(oracle.Dir(), "chat", "toolcalls.json"))
	if err != nil {
		t.Skip(err)
	}
	var file struct {
		Tools []struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"tools"`
		Cases []struct {
			ID  string `json:"id"`
			Raw string `json:"raw"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var tools []Tool
	for _, tool := range file.Tools {
		tools = append(tools, Tool{Name: tool.Name, Parameters: tool.Parameters})
	}
	b := grammar.NewBuilder(grammar.Limits{})
	calls, err := Build(t.Context(), b, tools, Options{Schema: schema.Options{Whitespace: true}})
	if err != nil || len(calls.Loose) > 0 {
		t.Fatal(err, calls.Loose)
	}
	g, err := b.Compile(t.Context(), b.After("</think>", calls.Text))
	if err != nil {
		t.Fatal(err)
	}
	lazy, err := b.Compile(t.Context(), b.Lazy(Trigger, calls.Rest))
	if err != nil {
		t.Fatal(err)
	}
	// The grammar allows less than a parser takes.
	accepted := map[string]bool{}
	for _, c := range file.Cases {
		accepted[c.ID] = matches(g, c.Raw)
		t.Logf("%s: %v, lazily %v", c.ID, accepted[c.ID], matches(lazy, c.Raw))
		if !strings.Contains(c.Raw, Trigger) && !matches(lazy, c.Raw) {
			t.Errorf("%s: text without a call is refused", c.ID)
		}
	}
	for _, id := range []string{"one_call", "two_calls", "types"} {
		if !accepted[id] {
			t.Errorf("%s is refused", id)
		}
	}
	for _, id := range []string{"plain", "python_bool", "bad_type_kept_as_string", "unknown_parameter"} {
		if accepted[id] {
			t.Errorf("%s is accepted", id)
		}
	}
}

// Calls in Qwen3's form have their arguments as JSON under the schema.
func TestJSONCalls(t *testing.T) {
	g := compile(t, []Tool{weather, {Name: "noop"}, {Name: "loose", Parameters: []byte(`{"not":{}}`)}}, Options{JSON: true})
	one := func(name, arguments string) string {
		return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>"
	}
	for _, text := range []string{
		one("weather", `{"city":"Oslo"}`),
		one("weather", `{"city":"Oslo","days":14,"unit":"C"}`),
		one("noop", "{}"),
		one("loose", `{"any":[1,"x"]}`),
		one("noop", "{}") + "\n" + one("weather", `{"city":""}`),
	} {
		if !matches(g, text) {
			t.Errorf("refused: %s", text)
		}
	}
	for _, text := range []string{
		one("weather", `{}`), one("weather", `{"city":1}`), one("noop", `{"a":1}`), one("other", "{}"), one("noop", "{}") + one("noop", "{}"), call("noop"),
	} {
		if matches(g, text) {
			t.Errorf("accepted: %s", text)
		}
	}
}
