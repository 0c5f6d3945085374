package jinja

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/calderaml/caldera/internal/oracle"
)

// The templates of shared/oracle/chat.
var oracleTemplates = []string{"qwen3.5", "qwen3.6-unsloth", "qwen3.8", "qwen3-coder", "qwen3"}

// oracleFile returns a file of shared/oracle/chat, which lies beside the repository. Without it the test is skipped.
func oracleFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(oracle.Dir(), "chat", filepath.FromSlash(name)))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("no chat/%s here; CALDERA_ORACLE names a folder that has it", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// oracleJSON decodes such a file with this package's decoder.
func oracleJSON(t testing.TB, name string) Value {
	t.Helper()
	v, err := DecodeJSON(oracleFile(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// field returns an entry of a map, which must be there.
func field[T Value](t testing.TB, v Value, name string) T {
	t.Helper()
	m, ok := v.(*Map)
	if !ok {
		t.Fatalf("%T is not a map with %q", v, name)
	}
	x, _ := m.Get(name)
	got, ok := x.(T)
	if !ok {
		t.Fatalf("%q is a %T", name, x)
	}
	return got
}

func vars(m *Map) map[string]Value {
	out := make(map[string]Value)
	for k, v := range m.All() {
		out[k.String()] = v
	}
	return out
}

// joined is the output without marks.
func joined(stretches []Stretch) string {
	s := ""
	for _, x := range stretches {
		s += x.Text
	}
	return s
}

func testClock() time.Time { return time.Date(2026, 11, 29, 14, 5, 9, 0, time.UTC) }

// render compiles and renders with the default limits.
func render(t testing.TB, source string, vars map[string]Value) (string, error) {
	t.Helper()
	tmpl, err := Compile("test", source, WithClock(testClock))
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(t.Context(), vars, LimitsFor(1<<16))
	return joined(out), err
}

// TestConstructs renders the 96 small templates of the oracle.
func TestConstructs(t *testing.T) {
	// What section 3.3 of the specification refuses although jinja2 does not.
	refused := map[string]string{"c068": "underscore"}
	file := oracleJSON(t, "constructs.json")
	variables := vars(field[*Map](t, file, "vars"))
	passed := 0
	cases := field[*List](t, file, "cases")
	for _, c := range cases.items {
		id, source := field[Text](t, c, "id").s, field[Text](t, c, "template").s
		got, err := render(t, source, variables)
		var position *Error
		if err != nil && (!errors.As(err, &position) || position.Line < 1 || position.Col < 1) {
			t.Errorf("%s: the error %v has no place", id, err)
		}
		want, hasOutput := c.(*Map).Get("output")
		_, raised := errors.AsType[*RaisedError](err)
		switch {
		case refused[id] != "":
			if err == nil {
				t.Errorf("%s: %s is accepted", id, source)
				continue
			}
		case hasOutput && err != nil:
			t.Errorf("%s: %s: %v", id, source, err)
			continue
		case hasOutput && got != want.(Text).s:
			t.Errorf("%s: %s\n got %q\nwant %q", id, source, got, want.(Text).s)
			continue
		case !hasOutput && err == nil:
			t.Errorf("%s: %s gives %q, not an error", id, source, got)
			continue
		case !hasOutput && raised != (field[Text](t, c, "error_kind").s == "raise_exception"):
			t.Errorf("%s: %s: the error %v is of the wrong kind", id, source, err)
			continue
		}
		passed++
	}
	t.Logf("%d of %d, of which %d are refused on purpose", passed, cases.Len(), len(refused))
	if cases.Len() != 96 {
		t.Errorf("%d cases, not 96", cases.Len())
	}
}

// TestConversations renders the conversations of the oracle with the five templates, as they are: what a request's
// messages are turned into before is not part of this package.
func TestConversations(t *testing.T) {
	conversations := oracleJSON(t, "conversations.json").(*List)
	for _, name := range oracleTemplates {
		tmpl, err := Compile(name, oracleFile(t, "templates/"+name+".jinja"), WithClock(testClock))
		if err != nil {
			t.Fatal(err)
		}
		want := make(map[string]*Map)
		for _, e := range oracleJSON(t, "expected/"+name+".json").(*List).items {
			want[field[Text](t, e, "name").s] = e.(*Map)
		}
		passed := 0
		for _, c := range conversations.items {
			id := field[Text](t, c, "name").s
			stretches, err := tmpl.Render(t.Context(), vars(field[*Map](t, c, "vars")), LimitsFor(1<<16))
			got := joined(stretches)
			output, hasOutput := want[id].Get("output")
			raised, isRaised := errors.AsType[*RaisedError](err)
			switch {
			case hasOutput && err != nil:
				t.Errorf("%s, %s: %v", name, id, err)
				continue
			case hasOutput && got != output.(Text).s:
				t.Errorf("%s, %s:\n got %q\nwant %q", name, id, got, output.(Text).s)
				continue
			case !hasOutput && err == nil:
				t.Errorf("%s, %s: %q, not an error", name, id, got)
				continue
			case !hasOutput && field[Text](t, want[id], "error_kind").s == "raise_exception":
				if text := field[Text](t, want[id], "error").s; !isRaised || raised.Message != text {
					t.Errorf("%s, %s: error %v, want %q raised", name, id, err, text)
					continue
				}
			case !hasOutput && isRaised:
				t.Errorf("%s, %s: raised %v", name, id, err)
				continue
			}
			passed++
		}
		t.Logf("%s: %d of %d", name, passed, conversations.Len())
		if conversations.Len() != 48 || len(want) != 48 {
			t.Errorf("%d conversations and %d results, not 48", conversations.Len(), len(want))
		}
	}
}
