package schema

import (
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/engine/grammar"
)

func matches(g *grammar.Grammar, text string) bool {
	s, n := g.Accept(g.Start(), []byte(text))
	return n == len(text) && g.Accepting(s)
}

// TestKeywords has texts that each schema accepts and refuses.
func TestKeywords(t *testing.T) {
	list := func(s ...string) []string { return s }
	for _, c := range []struct {
		schema   string
		yes, not []string
	}{
		{`true`, list(`1`, `"x"`, `[]`, `{"a":[null,true]}`), list(``, `[1,]`, ` 1`, `1 `, `[1, 2]`)},
		{`{}`, list(`null`, `-0.5e+10`), list(`01`, `+1`, `.5`, `1.`, `nul`)},
		{`{"title":"t","description":"d","default":1,"examples":[1],"$schema":"x","$id":"y","$comment":"","deprecated":true,"readOnly":true,"writeOnly":false,"type":"null"}`, list(`null`), list(`1`)},
		// type
		{`{"type":"boolean"}`, list(`true`, `false`), list(`null`, `"true"`, `True`)},
		{`{"type":["string","null"]}`, list(`"x"`, `null`), list(`1`, `{}`)},
		{`{"type":"number"}`, list(`0`, `-1`, `1.5`, `1e5`, `1E-299`, `2.5e+10`, `1e05`, `-0`), list(`1e`, `00`, `1e400`, `1.2.3`, `-`, `1`+strings.Repeat("0", 24))},
		{`{"type":"integer"}`, list(`0`, `-7`, `18446744073709551615`), list(`1.0`, `1e2`, `01`, `-0`, `-`)},
		{`{"type":"object"}`, list(`{}`, `{"a":1}`, `{"":{"b":[]}}`), list(`[]`, `{"a"}`, `{"a":1,}`, `{a:1}`, `{"a":1 }`)},
		{`{"type":"array"}`, list(`[]`, `[1,"x",{}]`), list(`[,]`, `[1`, `{}`)},
		{`{"type":"string"}`, list(`""`, `"é🌋"`, `"\"\\\/\b\f\n\r\t\u00e9\uD83C\udf0b"`), list(`"`, "\"\n\"", `"\x"`, `"\u12"`, `"\ud800"`, `"\udc00"`, "\"\xff\"", `"a"b"`)},
		// properties, required, additionalProperties
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{}},"required":["b"]}`,
			list(`{"b":true}`, `{"a":1,"b":true}`, `{"a":1,"b":false,"c":[1]}`, `{"b":true,"c":null}`),
			list(`{}`, `{"a":1}`, `{"b":true,"a":1}`, `{"b":true,"d":1}`, `{"b":true,"b":true}`, `{"a":"x","b":true}`, `{,"b":true}`, `{"b":true,}`)},
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}}`, list(`{}`, `{"a":1}`, `{"b":1}`, `{"a":1,"b":2}`), list(`{"a":1"b":2}`, `{,}`, `{"c":1}`)},
		{`{"properties":{"a":true}}`, list(`{}`, `{"a":[]}`), list(`1`, `"x"`)},
		{`{"type":"object","properties":{}}`, list(`{}`), list(`{"a":1}`)},
		{`{"type":"object","properties":{"a":true},"additionalProperties":false}`, list(`{}`, `{"a":1}`), list(`{"b":1}`)},
		{`{"type":"object","additionalProperties":false}`, list(`{}`), list(`{"b":1}`)},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, list(`{}`, `{"x":1,"y":2}`, `{"\u0061":1}`), list(`{"x":"1"}`)},
		{`{"type":"object","properties":{"ab":{"type":"string"},"é\"":{"type":"string"}},"additionalProperties":{"type":"integer"}}`,
			list(`{"ab":"x"}`, `{"a":1}`, `{"abc":1,"":2,"b":3}`, `{"ab":"x","é":1,"z":2}`, `{"é\"":"x","é\"\n":3}`, `{"\u001f":1}`),
			list(`{"ab":1}`, `{"a":"x"}`, `{"a":1,"ab":"x"}`, `{"\u0061b":1}`, `{"é\"":1}`, `{"\u00e9\"":1}`)},
		{`{"type":"object","properties":{"a":true},"required":["z","a"]}`, list(`{"a":1,"z":2}`), list(`{"a":1}`, `{"z":1}`, `{"z":1,"a":1}`)},
		{`{"type":"object","required":["k"],"additionalProperties":{"type":"null"}}`, list(`{"k":null}`, `{"k":null,"l":null}`), list(`{}`, `{"k":1}`, `{"l":null}`)},
		{`{"type":"object","properties":{"a":false,"b":true}}`, list(`{}`, `{"b":1}`), list(`{"a":1}`)},
		{`{"type":"object","properties":{"a\nb\"/":{"type":"null"}}}`, list(`{"a\nb\"/":null}`), list(`{"a":null}`)},
		// arrays
		{`{"type":"array","items":{"type":"integer"}}`, list(`[]`, `[1]`, `[1,2,3]`), list(`["x"]`, `[1,"x"]`)},
		{`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`, list(`[1,2]`, `[1,2,3]`), list(`[]`, `[1]`, `[1,2,3,4]`)},
		{`{"type":"array","minItems":1}`, list(`[null]`, `[1,[]]`), list(`[]`)},
		{`{"type":"array","maxItems":0}`, list(`[]`), list(`[1]`)},
		{`{"type":"array","maxItems":1}`, list(`[]`, `[1]`), list(`[1,2]`)},
		{`{"type":"array","items":false}`, list(`[]`), list(`[1]`)},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}]}`, list(`[]`, `[1]`, `[1,"x"]`, `[1,"x",null,2]`), list(`["x"]`, `[1,2]`)},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":1}`, list(`[1]`, `[1,"x"]`), list(`[]`, `[1,"x",2]`)},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"integer"},{"type":"integer"}],"items":{"type":"null"},"minItems":2,"maxItems":4}`,
			list(`[1,2]`, `[1,2,3]`, `[1,2,3,null]`), list(`[1]`, `[1,2,3,4]`, `[1,2,null]`, `[1,2,3,null,null]`)},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"integer"}],"maxItems":1}`, list(`[]`, `[1]`), list(`[1,2]`)},
		// enum, const
		{`{"enum":["a","ab",1,1.5,null,true,[1,{"x":"y"}],{"b":1,"a":[]}]}`, list(`"a"`, `"ab"`, `1`, `1.5`, `null`, `true`, `[1,{"x":"y"}]`, `{"b":1,"a":[]}`), list(`"b"`, `2`, `false`, `[1]`, `{"a":[],"b":1}`, `"abc"`)},
		{`{"const":"q\"<é\u2028\n"}`, list("\"q\\\"<é\u2028\\n\""), list(`"q"`)},
		{`{"type":"string","enum":["a",1,"bb"],"maxLength":1}`, list(`"a"`), list(`1`, `"bb"`)},
		{`{"enum":["2020-01-01","x",5],"format":"date"}`, list(`"2020-01-01"`, `5`), list(`"x"`)},
		{`{"enum":["ab","b"],"pattern":"^a"}`, list(`"ab"`), list(`"b"`)},
		{`{"type":"integer","enum":[1,2.0,2.5,9],"maximum":5}`, list(`1`, `2.0`), list(`2.5`, `9`)},
		{`{"const":1,"enum":[1.0,2]}`, list(`1`), list(`2`)},
		// Combining.
		{`{"anyOf":[{"type":"integer"},{"type":"null"}]}`, list(`1`, `null`), list(`"x"`)},
		{`{"oneOf":[{"type":"integer"},{"const":"x"}]}`, list(`1`, `"x"`), list(`"y"`)},
		{`{"type":["integer","string"],"anyOf":[{"type":"string"},{"type":"boolean"}]}`, list(`"x"`), list(`1`, `true`)},
		{`{"anyOf":[{"minLength":2},{"const":1}],"oneOf":[{"maxLength":3},{"type":"integer"}]}`, list(`"ab"`, `1`), list(`"a"`, `"abcd"`, `null`, `1.5`)},
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`, list(`{"a":1}`, `{"b":1}`, `{"a":1,"b":1}`), list(`{}`, `{"c":1}`)},
		{`{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"type":"object","properties":{"b":{"type":"string"},"a":{"minimum":3}}}]}`, list(`{"a":3}`, `{"a":4,"b":"x"}`), list(`{"a":2}`, `{}`, `{"b":"x","a":3}`)},
		{`{"allOf":[{"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}},{"properties":{"b":{"minLength":1}}}]}`, list(`{"a":1,"b":"x","c":"y"}`), list(`{"b":""}`, `{"b":1}`, `{"c":1}`)},
		{`{"allOf":[{"properties":{"a":true},"additionalProperties":false},{"properties":{"b":true}}]}`, list(`{}`, `{"a":1}`), list(`{"b":1}`)},
		{`{"allOf":[{"type":"string","minLength":1},{"maxLength":2}]}`, list(`"a"`, `"ab"`), list(`""`, `"abc"`)},
		{`{"allOf":[{"pattern":"^a"},{"pattern":"b$"}],"type":"string","maxLength":3}`, list(`"ab"`, `"axb"`), list(`"a"`, `"axxb"`)},
		{`{"allOf":[{"type":"array","items":{"minimum":1}},{"items":{"type":"integer","maximum":2},"maxItems":2}]}`, list(`[1,2]`), list(`[0]`, `[3]`, `[1,1,1]`)},
		{`{"type":"string","allOf":[{"minLength":2,"maxLength":3},{"minLength":1,"maxLength":4}]}`, list(`"ab"`, `"abc"`), list(`"a"`, `"abcd"`)},
		{`{"allOf":[true,{"type":"integer"}]}`, list(`1`), list(`"x"`)},
		// $ref
		{`{"$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}}}`, list(`1`), list(`"x"`)},
		{`{"$ref":"#/definitions/a~1b%20c~0","definitions":{"a/b c~":{"type":"null"}}}`, list(`null`), list(`1`)},
		{`{"$ref":"#/$defs/a","maximum":3,"$defs":{"a":{"type":"integer"}}}`, list(`3`), list(`4`)},
		{`{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#"}},"required":["v"]}`, list(`{"v":1}`, `{"v":1,"next":{"v":2,"next":{"v":3}}}`), list(`{"v":1,"next":{}}`, `{"next":{"v":1}}`)},
		{`{"$ref":"#/$defs/tree","$defs":{"tree":{"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#/$defs/tree"}}]}}}`, list(`1`, `[[1,[]],2]`), list(`"x"`, `[null]`)},
		{`{"type":"array","prefixItems":[{"type":"integer"}],"items":{"$ref":"#/prefixItems/0"}}`, list(`[1,2]`), list(`[1,"x"]`)},
		// Strings.
		{`{"type":"string","minLength":1,"maxLength":2}`, list(`"a"`, `"é🌋"`, `"\u00e9\ud83c\udf0b"`, `"\n\""`), list(`""`, `"abc"`, `"\u00e9ab"`)},
		{`{"minLength":2}`, list(`"ab"`), list(`"a"`, `1`)},
		{`{"type":["string","integer"],"minLength":2}`, list(`"ab"`, `1`), list(`"a"`)},
		{`{"type":"string","pattern":"^a+$"}`, list(`"a"`, `"aaa"`), list(`""`, `"ab"`, `"\u0061"`)},
		{`{"type":"string","pattern":"b"}`, list(`"b"`, `"abc"`, `"\"b\\"`), list(`""`, `"ac"`)},
		{`{"type":"string","pattern":"^[\"\\\\\\n\\x01]+$"}`, list(`"\"\\\n\u0001"`), list(`"n"`)},
		{`{"type":"string","pattern":"^a*$","minLength":2,"maxLength":3}`, list(`"aa"`, `"aaa"`), list(`"a"`, `"aaaa"`)},
		{`{"type":"string","format":"date"}`, list(`"2024-02-29"`, `"2000-02-29"`, `"1999-12-31"`), list(`"2023-02-29"`, `"1900-02-29"`, `"2024-04-31"`, `"2024-13-01"`, `"2024-1-1"`)},
		{`{"type":"string","format":"time"}`, list(`"23:59:59Z"`, `"00:00:00.123+05:30"`), list(`"24:00:00Z"`, `"12:00"`, `"12:00:00"`, `"12:60:00Z"`)},
		{`{"type":"string","format":"date-time"}`, list(`"2024-02-29T12:00:00Z"`), list(`"2024-02-29 12:00:00Z"`, `"2024-02-29"`)},
		{`{"type":"string","format":"uuid"}`, list(`"123e4567-e89b-12d3-A456-426614174000"`), list(`"123e4567e89b12d3a456426614174000"`)},
		{`{"type":"string","format":"email"}`, list(`"a.b+c@example.org"`), list(`"a"`, `"@b.c"`, `"a@b"`, `".a@b.c"`, `"a@-b.c"`)},
		{`{"type":"string","format":"date","pattern":"^2"}`, list(`"2024-01-01"`), list(`"1999-01-01"`)},
		// Integers.
		{`{"type":"integer","minimum":0}`, list(`0`, `5`, `123456789012345678901234`), list(`-1`, `-0`)},
		{`{"type":"integer","maximum":-3}`, list(`-3`, `-100`), list(`-2`, `0`, `3`)},
		{`{"type":"integer","minimum":-5,"maximum":12}`, list(`-5`, `-1`, `0`, `9`, `12`), list(`-6`, `13`, `00`)},
		{`{"type":"integer","minimum":1.5,"maximum":2.5e0}`, list(`2`), list(`1`, `3`)},
		{`{"type":"integer","minimum":-1.5,"maximum":-0.5}`, list(`-1`), list(`0`, `-2`)},
		{`{"type":["integer","null"],"minimum":7,"maximum":7}`, list(`7`, `null`), list(`8`)},
	} {
		g, err := Compile(t.Context(), []byte(c.schema), Options{}, grammar.Limits{})
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		for _, text := range c.yes {
			if !matches(g, text) {
				_, n := g.Accept(g.Start(), []byte(text))
				t.Errorf("%s refuses %s after %d bytes", c.schema, text, n)
			}
		}
		for _, text := range c.not {
			if matches(g, text) {
				t.Errorf("%s accepts %s", c.schema, text)
			}
		}
	}
}

// TestIntegers checks bounds against all integers around them.
func TestIntegers(t *testing.T) {
	c := &compiler{}
	for lo := -130; lo <= 130; lo += 13 {
		for hi := lo; hi <= 1200; hi += 1 + (hi-lo)/3 {
			b := grammar.NewBuilder(grammar.Limits{})
			g, err := b.Compile(t.Context(), c.integer(big.NewInt(int64(lo)), big.NewInt(int64(hi))))
			if err != nil {
				t.Fatal(err)
			}
			for n := lo - 150; n <= hi+150; n++ {
				if got, want := matches(g, strconv.Itoa(n)), lo <= n && n <= hi; got != want {
					t.Fatalf("%d to %d: %d gives %v", lo, hi, n, got)
				}
			}
		}
	}
}

func TestOptions(t *testing.T) {
	const source = `{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},"b":{"enum":[{"x":[1]}]}}}`
	g, err := Compile(t.Context(), []byte(source), Options{Whitespace: true}, grammar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`{"a":[1,2],"b":{"x":[1]}}`:                                            true,
		`{"a": [1, 2], "b": {"x": [1]}}`:                                       true,
		"{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {\n\t\t\"x\": [1]\n}\n}": true,
		`{ }`: true, `{}`: true, "{\n}": true, `{ "a": [ ] }`: true,
		`{  }`: false, "{\n\n}": false, ` {}`: false, `{} `: false, `{"a" : []}`: false, `{"a":[1 ,2]}`: false,
		"{\n" + strings.Repeat(" ", 128) + "}": true, "{\n" + strings.Repeat(" ", 129) + "}": false,
	} {
		if got := matches(g, text); got != want {
			t.Errorf("with space %q: %v", text, got)
		}
	}
	g, err = Compile(t.Context(), []byte(source), Options{Open: true}, grammar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`{"c":1}`: true, `{"a":[],"c":{}}`: true, `{"c":1,"a":[]}`: false} {
		if got := matches(g, text); got != want {
			t.Errorf("open %q: %v", text, got)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct{ schema, pointer, keyword, want string }{
		{``, "", "", "not JSON"},
		{`{`, "", "", "not JSON"},
		{`{"a" 1}`, "", "", "not JSON"},
		{`{} {}`, "", "", "more after"},
		{`1`, "", "", "not a number"},
		{`{"type":"object","type":"array"}`, "", "type", "twice"},
		{`{"properties":{"a":{"multipleOf":3}}}`, "/properties/a", "multipleOf", "not supported"},
		{`{"items":{"anyOf":[{"type":"null"},{"not":{}}]}}`, "/items/anyOf/1", "not", "not supported"},
		{`{"properties":{"a/b~":{"uniqueItems":true}}}`, "/properties/a~1b~0", "uniqueItems", "not supported"},
		{`{"patternProperties":{}}`, "", "patternProperties", "not supported"},
		{`{"if":{},"then":{}}`, "", "if", "not supported"},
		{`{"type":"string","minlength":3}`, "", "minlength", "not supported"},
		{`{"properties":{"a":{"$id":"x"}}}`, "/properties/a", "$id", "not supported"},
		{`{"$anchor":"x"}`, "", "$anchor", "not supported"},
		{`{"type":"strin"}`, "", "type", "no such type"},
		{`{"type":["string",1]}`, "", "type", "no such type"},
		{`{"type":{}}`, "", "type", "cannot be an object"},
		{`{"properties":[]}`, "", "properties", "cannot be an array"},
		{`{"properties":{"a":1}}`, "/properties/a", "", "not a number"},
		{`{"required":[1]}`, "", "required", "strings"},
		{`{"anyOf":[]}`, "", "anyOf", "empty"},
		{`{"enum":[]}`, "", "enum", "empty"},
		{`{"items":[{}]}`, "", "items", "cannot be an array"},
		{`{"$ref":"http://x/y"}`, "", "$ref", "not a place"},
		{`{"$ref":"#/$defs/x"}`, "", "$ref", "not a place"},
		{`{"$ref":"#a"}`, "", "$ref", "not a place"},
		{`{"$ref":"#"}`, "", "$ref", "itself"},
		{`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}}`, "/$defs/a", "$ref", "itself"},
		{`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`, "", "$ref", "itself"},
		{`{"minLength":-1}`, "", "minLength", "integer from 0"},
		{`{"minLength":1.5}`, "", "minLength", "integer from 0"},
		{`{"minLength":"1"}`, "", "minLength", "cannot be a string"},
		{`{"maxItems":1e9}`, "", "maxItems", "limit"},
		{`{"type":"string","maxLength":1e300}`, "", "maxLength", "limit"},
		{`{"type":"integer","minimum":1e999999999}`, "", "minimum", "digits"},
		{`{"type":"number","minimum":1}`, "", "minimum", "integer only"},
		{`{"maximum":1}`, "", "maximum", "integer only"},
		{`{"type":"string","format":"hostname"}`, "", "format", "not supported"},
		{`{"type":"string","pattern":"(?=a)"}`, "", "pattern", "(?="},
		{`{"enum":[{"a":1}],"required":["a"]}`, "", "required", "beside an enum"},
		{`{"type":"integer","minimum":3,"maximum":2}`, "", "", "no value"},
		{`{"type":"string","minLength":3,"maxLength":2}`, "", "", "no value"},
		{`{"type":"array","minItems":3,"maxItems":2}`, "", "", "no value"},
		{`{"type":"string","pattern":"^a$","minLength":2}`, "", "", "no value"},
		{`false`, "", "", "no value"},
		{`{"type":"string","enum":[1]}`, "", "", "no value"},
		{`{"allOf":[{"type":"string"},{"type":"null"}]}`, "", "", "no value"},
		{`{"type":"object","properties":{"a":true},"required":["b"],"additionalProperties":false}`, "", "", "no value"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "", "", "no value"},
	} {
		_, err := Compile(t.Context(), []byte(c.schema), Options{}, grammar.Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: error %v", c.schema, err)
		} else if e.Pointer != c.pointer || e.Keyword != c.keyword || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: at %q, keyword %q: %v", c.schema, e.Pointer, e.Keyword, e)
		}
	}
}

func nested(n int, open, end string) string {
	return strings.Repeat(open, n) + "true" + strings.Repeat(end, n)
}

// TestCaseC16 sends what case C16 does, and more: each must end soon, in little memory, with an error that names the
// limit.
func TestCaseC16(t *testing.T) {
	quoted := func(p string) string { return `{"type":"string","pattern":` + quote(p) + `}` }
	cross := `{"type":"integer"}`
	for range 14 {
		cross = `{"anyOf":[` + cross + `,{"minimum":1}],"oneOf":[{"maximum":5},{"maximum":6}],"allOf":[` + cross + `]}`
		if len(cross) > 200_000 {
			break
		}
	}
	var properties strings.Builder
	for i := range 3000 {
		properties.WriteString(`"p` + strconv.Itoa(i) + `":{},`)
	}
	for name, c := range map[string]struct{ source, want string }{
		"arrays":       {nested(50_000, `{"type":"array","items":`, `}`), "limit"},
		"65 arrays":    {nested(65, `{"type":"array","items":`, `}`), "limit"},
		"1000 arrays":  {nested(1000, `{"type":"array","minItems":1,"items":`, `}`), "limit"},
		"200 arrays":   {nested(200, `{"type":"array","minItems":1,"items":`, `}`), "limit of 64"},
		"brackets":     {strings.Repeat("[", 100_000), "limit"},
		"size":         {`"` + strings.Repeat("a", 300_000) + `"`, "limit"},
		"begin plus":   {quoted(`^+a$`), "nothing to repeat"},
		"begin twice":  {quoted(`^{2}x$`), "nothing to repeat"},
		"look behind":  {quoted(`(?<=a)b`), "pattern"},
		"groups":       {quoted(`((((`), "missing"},
		"range":        {quoted(`[z-a]`), "range"},
		"repetition":   {quoted(`a{1000000}`), "limit"},
		"alternatives": {quoted("a0" + strings.Repeat("|a1", 1<<20/3)), "limit"},
		"cross":        {cross, ""},
		"items":        {`{"type":"array","minItems":1000000000,"items":{"type":"null"}}`, "limit"},
		"properties":   {`{"type":"object","properties":{` + properties.String() + `"x":{}}}`, "limit"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := Compile(t.Context(), []byte(c.source), Options{}, grammar.Limits{})
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		mib := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %.100v (%v, %d MiB)", name, err, took, mib)
		var e *Error
		if name == "65 arrays" || name == "cross" {
			// The innermost array need not hold anything.
			if err != nil && !errors.As(err, &e) {
				t.Errorf("%s: error %v", name, err)
			}
		} else if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %.100v", name, err)
		}
		if mib > 128 {
			t.Errorf("%s: %d MiB allocated", name, mib)
		}
	}
}

// TestMany has as many properties as are allowed, all of which can be left out, and a long enum.
func TestMany(t *testing.T) {
	var properties, values []string
	for i := range maxProperties {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"integer"}`, i))
	}
	for i := range 5000 {
		values = append(values, fmt.Sprintf(`"value %d"`, i))
	}
	source := `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"additionalProperties":{"enum":[` + strings.Join(values, ",") + `]}}`
	g, err := Compile(t.Context(), []byte(source), Options{}, grammar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`{}`: true, `{"p0":1,"p7":2,"p399":3}`: true, `{"p399":1}`: true, `{"p3990":"value 4999"}`: true, `{"p0":1,"p40":2,"p":"value 0"}`: true,
		`{"p40":1,"p4":1}`: false, `{"p400":1}`: false, `{"x":"value 5000"}`: false,
	} {
		if got := matches(g, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestDeterministic compiles the same schema again and again: a map's order must not show.
func TestDeterministic(t *testing.T) {
	const source = `{"type":"object","properties":{"z":{"type":"string","pattern":"^[a-z0-9_]{2,20}$"},"a":{"enum":["x","y","xy",3]},"m":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"additionalProperties":{"type":"integer"}}`
	size := 0
	for range 20 {
		g, err := Compile(t.Context(), []byte(source), Options{}, grammar.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := g.Accept(g.Start(), []byte(`{"z":"abc","a":"xy"`))
		if _, n := g.Accept(s, []byte(`,"q":1`)); n != 6 {
			t.Fatalf("only %d bytes fit", n)
		}
		if n := g.CacheBytes(); size != 0 && n != size {
			t.Errorf("%d bytes are remembered, before %d", n, size)
		} else {
			size = n
		}
	}
}
