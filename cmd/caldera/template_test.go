package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine/demo"
)

func TestTemplate(t *testing.T) {
	r := program(t, "", "template", "What is 12+7?")
	if r.code != exitDone || r.out != demo.Chat("What is 12+7?") {
		t.Errorf("%+v", r)
	}
	// What a client spells is text. Told otherwise, it is a control token.
	typed := `{"messages":[{"role":"user","content":"a<|im_end|>b"}],"enable_thinking":true}`
	var safe, trusted templateResult
	for _, x := range []struct {
		to   *templateResult
		args []string
	}{{&safe, nil}, {&trusted, []string{"--trust-special-tokens"}}} {
		r := program(t, typed, append([]string{"template", "--messages", "-", "--json"}, x.args...)...)
		if err := json.Unmarshal([]byte(r.out), x.to); err != nil || r.code != exitDone {
			t.Fatalf("%+v: %v", r, err)
		}
	}
	if safe.Prompt != trusted.Prompt || !safe.Thinking || !strings.HasSuffix(safe.Prompt, "<think>\n") {
		t.Errorf("%+v and %+v", safe, trusted)
	}
	end := decodedAs(t, "<|im_end|>")
	if timesIn(safe.IDs, end) != 1 || timesIn(trusted.IDs, end) != 2 {
		t.Errorf("<|im_end|> is %d times in %v, and %d times where trusted", timesIn(safe.IDs, end), safe.IDs, timesIn(trusted.IDs, end))
	}
	if !slices.Contains(safe.Stretches, templateStretch{"a<|im_end|>b", false}) || !safe.Stretches[0].Template {
		t.Errorf("stretches %+v", safe.Stretches)
	}
}

func TestTemplateFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := write("own.jinja", "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}")
	if r := program(t, "", "template", "--chat-template-file", own, "x"); r.code != exitDone || r.out != "[user: x]" {
		t.Errorf("%+v", r)
	}
	if r := program(t, "", "run", "--backend", "reference", "-n", "2", "--json", "--chat-template-file", own, "x"); r.code != exitDone || !strings.Contains(r.out, `"prompt": "[user: x]"`) {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"template", "--chat-template-file", write("bad.jinja", "a\n{% if %}"), "x"}, exitModel, "2:"},
		{[]string{"template", "--chat-template-file", write("empty.jinja", ""), "x"}, exitUsage, "is empty"},
		{[]string{"template", "--chat-template-file", filepath.Join(dir, "none"), "x"}, exitUsage, "none"},
		{[]string{"template", "--chat-template-file", write("raise.jinja", "{{ raise_exception('no such role') }}"), "x"}, exitUsage, "no such role"},
		{[]string{"template", "--messages", write("wizard.json", `[{"role":"wizard","content":"x"}]`)}, exitUsage, "messages[0].role"},
		{[]string{"template", "--messages", write("cut.json", `{"messages":[`)}, exitUsage, "cut.json"},
		{[]string{"template", "--messages", write("tools.json", `{"messages":[{"role":"user","content":"x"}],"tools":7}`)}, exitUsage, "tools"},
		{[]string{"template", "--messages", own, "x"}, exitUsage, "--messages"},
	} {
		if r := program(t, "", c.args...); r.code != c.code || !strings.Contains(r.err, c.say) {
			t.Errorf("%q: %+v, want code %d and %q", c.args, r, c.code, c.say)
		}
	}
}

// decodedAs is the token of a text that is one.
func decodedAs(t *testing.T, text string) int32 {
	t.Helper()
	a := newApp(nil, nil, nil)
	tok, err := a.openTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := tok.Added(text)
	if !ok {
		t.Fatalf("there is no token %q", text)
	}
	return id
}

func timesIn(ids []int32, id int32) int {
	return len(ids) - len(slices.DeleteFunc(slices.Clone(ids), func(x int32) bool { return x == id }))
}
