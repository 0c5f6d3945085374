package chat

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// testTools are for tests without the oracle.
func testTools(t testing.TB) []Tool {
	t.Helper()
	tools, err := ParseTools(`[{"function":{"name":"f","parameters":{"properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"b":{"type":"boolean"},"o":{"type":"object"},"sn":{"type":["string","null"]},"in":{"anyOf":[{"type":"integer"},{"type":"null"}]},
		"ref":{"$ref":"#/$defs/R"},"loop":{"$ref":"#/properties/loop"},"enum":{"enum":[1,2]},"strings":{"enum":["a",null]},"any":{},"not":7,
		"wide":{"anyOf":[` + strings.Repeat(`{"$ref":"#/properties/wide"},`, 50) + `{"type":"integer"}]}},
		"$defs":{"R":{"type":"array"}}}}},{"function":{"name":"g"}}]`)
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// line shows events in one line.
func line(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		switch e.Kind {
		case EventReasoning:
			fmt.Fprintf(&b, "R%q ", e.Text)
		case EventContent:
			fmt.Fprintf(&b, "C%q ", e.Text)
		case EventCallStart:
			fmt.Fprintf(&b, "%d:%s ", e.Index, e.Name)
		case EventCallArguments:
			fmt.Fprintf(&b, "%s ", e.Text)
		}
	}
	return strings.TrimSpace(b.String())
}

func TestParser(t *testing.T) {
	tools := testTools(t)
	with := ParserOptions{Tools: tools}
	open := ParserOptions{Tools: tools, Think: ThinkOpen}
	closed := ParserOptions{Tools: tools, Think: ThinkClosed}
	const call = "<tool_call>\n<function=g>\n</function>\n</tool_call>"
	arg := func(key, value string) string {
		return "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>\n</tool_call>"
	}
	tests := []struct {
		name, in string
		o        ParserOptions
		cut      bool // by a limit
		want     string
	}{
		{"nothing", "", open, false, ``},
		{"newlines only", "\n\n", with, false, ``},
		{"newlines inside", "\n\na\n\n\nb\n\n", with, false, `C"a\n\n\nb"`},
		{"blanks stay", "  a  \n", with, false, `C"  a  "`},
		{"begins with think", " \n<think>\nr\n</think>\n\na", with, false, `R"r" C"a"`},
		{"begins with think after a closed one", "<think>\nr", closed, false, `C"<think>\nr"`},
		{"think later", "a<think>r</think>", with, false, `C"a<think>r</think>"`},
		{"start of think", "\n<thi", with, false, `C"<thi"`},
		{"much space before think", strings.Repeat(" ", 300) + "<think>", with, false, `C"` + strings.Repeat(" ", 300) + `<think>"`},
		{"tags kept", "r\n</think>\n\na" + call, ParserOptions{Tools: tools, Think: ThinkOpen, KeepTags: true}, false, `C"r\n</think>\n\na" 0:g {}`},
		{"end of think cut", "r\n</thin", open, false, `R"r\n</thin"`},
		{"call in reasoning", "r\n" + call + "\nmore\n</think>\n\na", open, false, `R"r" 0:g {} R"\n\nmore" C"a"`},
		{"call in reasoning, switched off", "r" + call, ParserOptions{Tools: tools, Think: ThinkOpen, NoCallInThink: true}, false, `R"r` + strings.ReplaceAll(call, "\n", `\n`) + `"`},
		{"call of an unknown tool in reasoning", "r<tool_call>\n<function=h>\n</function>\n</tool_call>", open, false, `R"r<tool_call>\n<function=h>\n</function>\n</tool_call>"`},
		{"object of an unknown tool in reasoning", `<tool_call>{"name":"h"}</tool_call>`, open, false, `R"<tool_call>{\"name\":\"h\"}</tool_call>"`},
		{"call of an unknown tool", "<tool_call>\n<function=h>\n</function>\n</tool_call>", with, false, `0:h {}`},
		{"unfinished call in reasoning", "r<tool_call>\n<function=g>", open, true, `R"r<tool_call>\n<function=g>"`},
		{"no calls wanted", call, ParserOptions{Tools: tools, NoCalls: true}, false, `C"` + strings.ReplaceAll(call, "\n", `\n`) + `"`},
		{"no tools", call, ParserOptions{}, false, `C"` + strings.ReplaceAll(call, "\n", `\n`) + `"`},
		{"text around calls", "a\n" + call + "\nb", with, false, `C"a" 0:g {} C"\n\nb"`},
		{"two functions in one tag", "<tool_call><function=g></function>\n<function=f></function></tool_call>x", with, false, `0:g {} 1:f {} C"x"`},
		{"second function broken", "<tool_call><function=g></function><function=f>?", with, false, `0:g {} C"<function=f>?"`},
		{"end of the tag missing", "<tool_call><function=g></function>\nand", with, false, `0:g {} C"and"`},
		{"end of the tag cut", "<tool_call><function=g></function>\n</tool_", with, true, `0:g {}`},
		{"end of the function missing", "<tool_call><function=g>\n</tool_call>", with, false, `0:g {}`},
		{"end of the parameter missing", "<tool_call><function=f><parameter=s>x\n</function>\n</tool_call>", with, false, `0:f {"s":"x"}`},
		{"unfinished, cut", "a<tool_call><function=g>", with, true, `C"a"`},
		{"unfinished, cut, alone", "<tool_call><function=g>", with, true, `C"<tool_call><function=g>"`},
		{"unfinished, not cut", "a<tool_call><function=g>", with, false, `C"a<tool_call><function=g>"`},
		{"broken, then a call", "a <tool_call> b " + call, with, false, `C"a <tool_call> b " 0:g {}`},
		{"broken name", "<tool_call><function=a\nb>", with, false, `C"<tool_call><function=a\nb>"`},
		{"name missing", "<tool_call><function=>", with, false, `C"<tool_call><function=>"`},
		{"long name", "<tool_call><function=" + strings.Repeat("x", 300) + ">", with, false, `C"<tool_call><function=` + strings.Repeat("x", 300) + `>"`},
		{"tag in a broken name", "<tool_call><function=a" + call, with, false, `C"<tool_call><function=a" 0:g {}`},
		{"text in the body", "<tool_call><function=f>{}</function></tool_call>", with, false, `C"<tool_call><function=f>{}</function></tool_call>"`},
		{"end of a parameter in a value", arg("s", "a</parameter>b\n</parameter\n</function>c"), with, false, `0:f {"s":"a</parameter>b\n</parameter\n</function>c"}`},
		{"end of a call in a value", arg("s", "a</tool_call>"), with, false, `0:f {"s":"a</tool_call>"}`},
		{"parameter twice", "<tool_call><function=f><parameter=s>1</parameter><parameter=i>2</parameter><parameter=s>3</parameter></function></tool_call>", with, false, `0:f {"s":"3","i":2}`},
		{"string like a number", arg("s", "12"), with, false, `0:f {"s":"12"}`},
		{"whole number", arg("i", " 12 "), with, false, `0:f {"i":12}`},
		{"not a number", arg("i", "soon"), with, false, `0:f {"i":"soon"}`},
		{"number as written", arg("i", "1.50e3"), with, false, `0:f {"i":1.50e3}`},
		{"null not allowed", arg("i", "null"), with, false, `0:f {"i":"null"}`},
		{"null allowed", arg("in", "null"), with, false, `0:f {"in":null}`},
		{"null or string", arg("sn", "null"), with, false, `0:f {"sn":null}`},
		{"string or null", arg("sn", "nil"), with, false, `0:f {"sn":"nil"}`},
		{"True", arg("b", "True"), with, false, `0:f {"b":true}`},
		{"True for a number", arg("i", "True"), with, false, `0:f {"i":"True"}`},
		{"object", arg("o", "{\"z\": 1,\n \"a\": [true]}"), with, false, `0:f {"o":{"z":1,"a":[true]}}`},
		{"reference", arg("ref", "[1, 2]"), with, false, `0:f {"ref":[1,2]}`},
		{"reference to itself", arg("loop", "[1, 2]"), with, false, `0:f {"loop":"[1, 2]"}`},
		{"references to itself", arg("wide", "1"), with, false, `0:f {"wide":"1"}`},
		{"enum of numbers", arg("enum", "2"), with, false, `0:f {"enum":2}`},
		{"enum of strings", arg("strings", "a"), with, false, `0:f {"strings":"a"}`},
		{"no type", arg("any", "5"), with, false, `0:f {"any":"5"}`},
		{"bad schema", arg("not", "5"), with, false, `0:f {"not":"5"}`},
		{"no schema", "<tool_call><function=g><parameter=a>5</parameter></function></tool_call>", with, false, `0:g {"a":"5"}`},
		{"quotes and tags in JSON", arg("s", `"<é>&\`), with, false, `0:f {"s":"\"<é>&\\"}`},
		{"object form", `<tool_call>{"name": "f", "arguments": {"b": 1.50, "a": "}\"<"}}</tool_call>`, with, false, `0:f {"b":1.50,"a":"}\"<"}`},
		{"object form, string", `<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>`, with, false, `0:f {"a":1}`},
		{"object form, nothing", `<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f", "arguments": null}`, with, false, `0:f {} 1:f {}`},
		{"object form, no name", `<tool_call>{"arguments": {}}</tool_call>`, with, false, `C"<tool_call>{\"arguments\": {}}</tool_call>"`},
		{"object form, list", `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`, with, false, `C"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"`},
		{"object form, no JSON", `<tool_call>{name: f}</tool_call>` + call, with, false, `C"<tool_call>{name: f}</tool_call>" 0:g {}`},
		{"object form, unfinished", `<tool_call>{"name": "f"`, with, false, `C"<tool_call>{\"name\": \"f\""`},
		{"object form, deep", `<tool_call>` + strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), with, false, `C"<tool_call>` + strings.Repeat(`{\"a\":`, 20000) + "1" + strings.Repeat("}", 20000) + `"`},
		{"character that breaks off", "a\xf0\x9f\x98X\xe2\x82\xe2\x82\xac", closed, false, "C\"a\ufffdX\ufffd€\""},
		{"invalid UTF-8", "a\xffb\xf0\x9f\x98", closed, false, `C"a` + "\ufffdb\ufffd" + `"`},
		{"broken character in a tag", "<tool_call\xe2>", with, false, `C"<tool_call` + "\ufffd" + `>"`},
	}
	for _, test := range tests {
		whole := collect([]string{test.in}, test.o, test.cut)
		if got := line(whole); got != test.want {
			t.Errorf("%s:\n got %.300s\nwant %.300s", test.name, got, test.want)
		}
		ways := cuts(test.in)
		if len(test.in) > 2000 {
			ways = ways[len(ways)-21:]
		}
		for _, pieces := range ways {
			if got := collect(pieces, test.o, test.cut); !reflect.DeepEqual(got, whole) {
				t.Errorf("%s, cut into %q:\n got %s\nwant %s", test.name, pieces, line(got), line(whole))
				break
			}
		}
	}
}

// What is plainly text is given at once; only what may be a tag waits.
func TestParserHoldsBackLittle(t *testing.T) {
	p := NewParser(ParserOptions{Tools: testTools(t), Think: ThinkOpen})
	for _, step := range []struct{ in, want string }{
		{"I ", `R"I "`}, {"think <", `R"think "`}, {"b> </th", `R"<b> "`}, {"is\n", `R"</this"`}, {"\n", ``}, {"x</think>", `R"\n\nx"`}, {"\n\nA", `C"A"`},
		{"\xf0\x9f", ``}, {"\x98\x80!", "C\"\U0001f600!\""}, {" <tool", `C" "`}, {"s>", `C"<tools>"`}, {"<tool_call>\n<func", ``}, {"y", `C"<tool_call>\n<funcy"`},
		{"<tool_call><function=g>", ``}, {"</function>", `0:g {}`}, {"</tool_call>", ``}, {"z", `C"z"`},
	} {
		if got := line(p.Write(step.in)); got != step.want {
			t.Errorf("%q: %s, want %s", step.in, got, step.want)
		}
	}
	if p.Reasoning() || !p.Thought() {
		t.Error("the reasoning is over")
	}
}

// A call that never ends is text at its limit, and memory stays within it.
func TestParserLimit(t *testing.T) {
	p := NewParser(ParserOptions{Tools: testTools(t)})
	p.limit = 1000
	n := 0
	in := "<tool_call><function=f><parameter=s>" + strings.Repeat("</x> ", 1000)
	var a Answer
	for i := 0; i < len(in); i += 7 {
		events := p.Write(in[i:min(i+7, len(in))])
		a.Add(events)
		if n = max(n, len(p.buf)); n > 1010 {
			t.Fatalf("%d bytes held back", n)
		}
	}
	a.Add(p.Finish(false))
	if a.Content == nil || *a.Content != in || len(a.Calls) != 0 {
		t.Errorf("content %.100s", show(a.Content))
	}
	// A long call in small pieces takes time by its length, not by its square.
	p = NewParser(ParserOptions{Tools: testTools(t)})
	long := strings.Repeat("</parameter> x < </p", 1<<16)
	events := p.Write("<tool_call><function=f><parameter=s>")
	for i := range len(long) {
		events = append(events, p.Write(long[i:i+1])...)
	}
	events = append(events, p.Write("</parameter></function>")...)
	if len(events) != 3 || len(events[1].Text) < len(long) {
		t.Errorf("%d events", len(events))
	}
}

// Ids are what clients expect, and never the same.
func TestCallIDs(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := newID()
		if len(id) != 29 || !strings.HasPrefix(id, "call_") || strings.Trim(id[5:], "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

// FuzzOutput reads any answer, whole and cut: the same comes out, nothing is lost, and all of it is valid.
func FuzzOutput(f *testing.F) {
	for _, s := range []string{
		"r\n</think>\n\nHello", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n3\n</parameter>\n</function>\n</tool_call>",
		"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}</tool_call>x<tool_call>", "<think>\n\n</think>a\xf0\x9f\x98\x80\xff", "<tool_call><function=g></function><function=f></tool_call></function>",
		"a</parameter></function></tool_call><parameter=s>", "\n\n<tool_call>\n\n<function=f><parameter=b>True</parameter>\n \n<parameter=o>{\"a\":}</parameter></function>",
	} {
		for mode := range byte(32) {
			f.Add(s, []byte{mode, 3, 1, 7, 200, 2}, mode)
		}
	}
	f.Fuzz(func(t *testing.T, text string, at []byte, mode byte) {
		o := ParserOptions{Think: Think(mode % 3), KeepTags: mode&4 != 0, NoCallInThink: mode&8 != 0}
		if mode&16 != 0 {
			o.Tools = testTools(t)
		}
		truncated := mode&32 != 0
		whole := collect([]string{text}, o, truncated)
		var pieces []string
		rest := text
		for i := 0; rest != "" && len(at) > 0; i++ {
			n := min(int(at[i%len(at)])%16, len(rest))
			if n == 0 {
				n = 1
			}
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := collect(append(pieces, rest), o, truncated); !reflect.DeepEqual(got, whole) {
			t.Fatalf("cut into %q:\n got %s\nwant %s", pieces, line(got), line(whole))
		}
		calls, size := 0, 0
		for _, e := range whole {
			if !utf8.ValidString(e.Text) || e.Text == "" && e.Kind <= EventContent {
				t.Fatalf("event %+v", e)
			}
			switch e.Kind {
			case EventCallStart:
				if e.Index != calls || e.Name == "" || len(o.Tools) == 0 {
					t.Fatalf("event %+v", e)
				}
				calls++
			case EventCallArguments:
				if !sameJSON(t, e.Text, e.Text) || e.Text[0] != '{' {
					t.Fatalf("arguments %s", e.Text)
				}
			default:
				size += len(strings.ReplaceAll(e.Text, "\n", ""))
			}
		}
		// Without a call and without tags of thinking everything is there but newlines.
		if calls == 0 && !truncated && !strings.Contains(text, "think>") && utf8.ValidString(text) && size != len(strings.ReplaceAll(text, "\n", "")) {
			t.Fatalf("%d bytes of %q came out: %s", size, text, line(whole))
		}
	})
}

// FuzzMessages reads any messages and tools and renders what is accepted: errors say where they are, and all text of the
// request stays marked.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{
		`[{"role":"user","content":"<|im_end|>"}]`, `[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"user","content":"b"},{"role":"assistant","content":null,"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"r"}]`,
		`[{"role":"developer","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c","name":"n"},{"role":"assistant","reasoning":"r"}]`, `[{"role":"user","content":"\ud800"},null]`, `[]`,
	} {
		f.Add(s, `[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"}}}}}]`, byte(0))
		f.Add(s, `null`, byte(7))
	}
	templates := []*Template{mustCompile(f, thinking), mustCompile(f, ChatML)}
	f.Fuzz(func(t *testing.T, messages, tools string, mode byte) {
		check := func(err error) bool {
			if e, ok := errorsAs(err); err != nil && (!ok || e.Field == "" || e.What == "") {
				t.Fatalf("error %v", err)
			}
			return err == nil
		}
		m, err := ParseMessages(messages)
		if !check(err) {
			return
		}
		defs, err := ParseTools(tools)
		if !check(err) {
			return
		}
		o := Options{Tools: defs, MergeSystem: mode&1 != 0, ReasoningEffort: []string{"", "none", "high"}[mode/2%3]}
		if mode&16 != 0 {
			o.GenerationPrompt = ptr(mode&32 != 0)
		}
		for _, tmpl := range templates {
			p, err := tmpl.Render(t.Context(), m, o)
			if !check(err) {
				continue
			}
			for i, s := range p.Stretches {
				if s.Text == "" || !utf8.ValidString(s.Text) || i > 0 && s.Trusted == p.Stretches[i-1].Trusted {
					t.Fatalf("stretch %d of %+v", i, p.Stretches)
				}
				if s.Trusted && strings.Count(s.Text, turnStart) > 2*len(m)+2 {
					t.Fatalf("stretch %d of %+v", i, p.Stretches)
				}
			}
		}
	})
}
