package jinja

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestDecodeJSON(t *testing.T) {
	style := &jsonStyle{item: Trusted(", "), pair: Trusted(": ")}
	tests := []struct{ in, want string }{
		{`{"b":1,"a":[2.0,1e3,-0,-0.0,null,true,false,"x"]}`, `{"b": 1, "a": [2.0, 1000.0, 0, -0.0, null, true, false, "x"]}`},
		{`{"a":1,"b":2,"a":3}`, `{"a": 3, "b": 2}`},
		{` [ ] `, `[]`},
		{`"\u00e9\ud83d\ude00\ud800x\ude00\n\/\"\\\b\f\r\t"`, "\"é\U0001f600\ufffdx\ufffd\\n/\\\"\\\\\\b\\f\\r\\t\""},
		{`"\ud800\u0041\ud800\ud83d\ude00"`, "\"\ufffdA\ufffd\U0001f600\""},
		{"\"a\xffb\"", "\"a\ufffdb\""},
		{"123456789012345678901234567890", "123456789012345678901234567890"},
		{"-9223372036854775808", "-9223372036854775808"},
		{"1e400", "Infinity"},
		{"1.5e-7", "1.5e-07"},
		{strings.Repeat("[", MaxJSONDepth) + strings.Repeat("]", MaxJSONDepth), strings.Repeat("[", MaxJSONDepth) + strings.Repeat("]", MaxJSONDepth)},
	}
	for _, test := range tests {
		v, err := DecodeJSON(test.in)
		if err != nil {
			t.Errorf("%s: %v", test.in, err)
			continue
		}
		r := &run{ctx: t.Context(), limits: LimitsFor(1 << 20)}
		b := builder{r: r}
		if err := r.toJSON(&b, v, style, 0); err != nil || b.done().s != test.want {
			t.Errorf("%s: %s, %v, want %s", test.in, b.s.String(), err, test.want)
		}
	}
	for in, offset := range map[string]int{
		"": 0, "x": 0, "[1,]": 3, "[1 2]": 3, `{"a" 1}`: 5, `{a:1}`: 1, `{"a":1,}`: 7, "[1": 2, `"a`: 2, "\"a\nb\"": 2, `"\x"`: 1, `"\u12"`: 1, "01": 0, "1.": 0, "-": 0,
		"1e": 0, "+1": 0, "[] []": 3, "nul": 0, strings.Repeat("[", 1000): MaxJSONDepth + 1, strings.Repeat("9", 5000): 0, "[" + strings.Repeat("0,", MaxJSONValues): 2*MaxJSONValues - 1,
	} {
		_, err := DecodeJSON(in)
		if e, ok := errors.AsType[*JSONError](err); !ok || e.Offset != offset {
			t.Errorf("%.50q: error %v, want one at %d", in, err, offset)
		}
	}
}

// FuzzJSON compares with the standard library: the same texts are JSON, apart from bounds, and say the same.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"x\u00e9\ud83d\ude00",null,true,{}],"a":1}`, "[[[]]]", `"\ud800"`, "-0", "1e999", "[1,]", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		v, err := DecodeJSON(in)
		if valid := json.Valid([]byte(in)); valid != (err == nil) {
			e, ok := errors.AsType[*JSONError](err)
			if !ok || !strings.Contains(e.What, "more than") {
				t.Fatalf("%q: valid %v, error %v", in, valid, err)
			}
			return
		}
		if err != nil {
			return
		}
		r := &run{ctx: t.Context(), limits: Limits{1 << 30, 1 << 30, 1 << 30}}
		b := builder{r: r}
		if err := r.toJSON(&b, v, &jsonStyle{item: Trusted(","), pair: Trusted(":")}, 0); err != nil {
			t.Fatal(err)
		}
		out := b.done()
		again, err := DecodeJSON(out.s)
		if err != nil {
			if strings.Contains(out.s, "Infinity") {
				return
			}
			t.Fatalf("%q became %q: %v", in, out.s, err)
		}
		if same, err := r.equal(v, again, 0); !same || err != nil {
			t.Fatalf("%q became %q: not equal, %v", in, out.s, err)
		}
		if Size(v) < 1 {
			t.Fatal("no size")
		}
	})
}
