package jinja

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Templates that want too much end in an error, soon and without much memory.
func TestLimits(t *testing.T) {
	small := LimitsFor(0)
	small.Steps = 300_000 // a share of what is allowed, to save time here
	tests := []struct {
		name, source string
		want         string // part of the error
	}{
		{"macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls inside each other"},
		{"macros that call each other", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", "calls inside each other"},
		{"caller that calls", "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}", "calls inside each other"},
		{"default that calls", "{% macro f(a=f()) %}{% endmacro %}{{ f() }}", "calls inside each other"},
		{"range", "{% for i in range(100000000) %}{% endfor %}", "items of a range"},
		{"range backwards", "{{ range(0, -9223372036854775807, -1)|length }}", "items of a range"},
		{"range at the end of numbers", "{{ range(9223372036854775800, 9223372036854775807, 5)|length }}{{ range(1000000) }}", "items of a range"},
		{"loops in loops", "{% set l = range(1000) %}" + strings.Repeat("{% for i in l %}", 8) + strings.Repeat("{% endfor %}", 8), "steps"},
		{"nested ifs", strings.Repeat("{% if true %}", 10_000) + strings.Repeat("{% endif %}", 10_000), "levels of nesting"},
		{"fifty thousand nested ifs", strings.Repeat("{% if true %}", 50_000) + strings.Repeat("{% endif %}", 50_000), "bytes of template"},
		{"nested parentheses", "{{ " + strings.Repeat("(", 100_000) + strings.Repeat(")", 100_000) + " }}", "levels of nesting"},
		{"nested lists", "{{ " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + " }}", "levels of nesting"},
		{"signs", "{{ " + strings.Repeat("-", 100_000) + "1 }}", "levels of nesting"},
		{"nots", "{{ " + strings.Repeat("not ", 50_000) + "1 }}", "levels of nesting"},
		{"tests of tests", "{{ " + strings.Repeat("1 is eq f(", 1000) + "1" + strings.Repeat(")", 1000) + " }}", "levels of nesting"},
		{"conditions", "{{ " + strings.Repeat("1 if 1 else ", 10_000) + "1 }}", "levels of nesting"},
		{"sums", "{{ 1" + strings.Repeat("+1", 50_000) + " }}", "operators in a row"},
		{"joins", "{{ 1" + strings.Repeat("~1", 50_000) + " }}", "operators in a row"},
		{"filters", "{{ 1" + strings.Repeat("|e", 50_000) + " }}", "operators in a row"},
		{"attributes", "{{ a" + strings.Repeat(".a", 50_000) + " }}", "operators in a row"},
		{"comparisons", "{{ 1" + strings.Repeat("<2", 50_000) + " }}", "operators in a row"},
		{"size", strings.Repeat(" ", maxSource+1), "bytes of template"},
		{"output", "{% for i in range(100) %}{% for j in range(100) %}{{ '" + strings.Repeat("x", 10_000) + "' }}{% endfor %}{% endfor %}", "bytes of output"},
		{"text", strings.Repeat("{% for i in range(100) %}", 2) + strings.Repeat("x", 100_000) + "{% endfor %}{% endfor %}", "bytes of output"},
		{"repetition", "{{ 'x' * 1000000000 }}", "bytes of output"},
		{"repetition of a list", "{{ [1, 2] * 100000000 }}", "items of a repeated list"},
		{"repetition of long strings", "{% set s = 'x' * 1000000 %}{{ s * 10000 }}", "bytes of output"},
		{"doubling with ~", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "bytes of text and values"},
		{"doubling with +", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "bytes of text and values"},
		{"doubling with replace", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}", "bytes of text and values"},
		{"doubling with join", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}", "bytes of text and values"},
		{"doubling with format", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}", "bytes of text and values"},
		{"doubling with blocks", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}{% endfor %}", "bytes of text and values"},
		{"doubling of a list", "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "bytes of text and values"},
		{"doubling by list of lists", "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "more than"},
		{"comparing doubled lists", "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}", "steps"},
		{"splitting", "{% set s = 'x ' * 500000 %}{{ s.split(' ')|length }}", "bytes of text and values"},
		{"characters", "{% set s = 'x' * 1000000 %}{{ s|list|length }}", "bytes of text and values"},
		{"lines", "{% set s = '\\n' * 1000000 %}{{ s.splitlines()|length }}", "bytes of text and values"},
		{"looking through text", "{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ 'y' in s }}{% endfor %}", "steps"},
		{"counting characters", "{% set s = 'é' * 500000 %}{% for i in range(1000) %}{{ s[-1] == 1 }}{% endfor %}", "steps"},
		{"namespace in itself", "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "levels of values"},
		{"namespace in itself, compared", "{% set a = namespace() %}{% set a.l = [a] %}{{ [a.l] == [[[a.l]]] }}{{ a.l|string }}", "levels of values"},
		{"deep list, printed", "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}", "levels of values"},
		{"deep list, as JSON", "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}", "levels of values"},
		{"deep dict, as JSON", "{% set ns = namespace(l={}) %}{% for i in range(1000) %}{% set ns.l = {'k': ns.l} %}{% endfor %}{{ ns.l|tojson(indent=3) }}", "levels of values"},
		{"deep list, compared", "{% set ns = namespace(l=[], m=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}", "levels of values"},
		{"deep list, ordered", "{% set ns = namespace(l=[1], m=[2]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l < ns.m }}", "levels of values"},
		{"width", "{{ '%999999999d' % 1 }}", "format"},
		{"precision", "{{ '%.999999999f' % 1 }}", "format"},
		{"indent", "{{ 'a\\nb'|indent(1000000000) }}", "blanks"},
		{"indent of JSON", "{{ [1]|tojson(indent=1000000000) }}", "blanks"},
		{"slices", "{{ [1]|slice(1000000000)|list }}", "slice wants"},
		{"batch", "{{ [1]|batch(1000000000, 'x')|list }}", "batch wants"},
		{"power", "{{ 2 ** 1000000000 }}", "64 bits"},
		{"large number", "{{ " + strings.Repeat("9", 5000) + " }}", "cannot be read"},
		{"sum", "{{ 9223372036854775807 + 1 }}", "64 bits"},
		{"product", "{{ 9223372036854775807 * 2 }}", "64 bits"},
		{"difference", "{{ -9223372036854775807 - 2 }}", "64 bits"},
		{"quotient", "{{ -9223372036854775808 // -1 }}", "64 bits"},
	}
	for _, test := range tests {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		tmpl, err := Compile("t", test.source)
		var out []Stretch
		if err == nil {
			out, err = tmpl.Render(t.Context(), nil, small)
		}
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %.200v, want one with %q", test.name, err, test.want)
		}
		if _, ok := errors.AsType[*Error](err); err != nil && (!ok || len(err.Error()) > 300) {
			t.Errorf("%s: error of %d bytes without a place", test.name, len(err.Error()))
		}
		if out != nil {
			t.Errorf("%s: output beside an error", test.name)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 512 {
			t.Errorf("%s: %d MiB allocated", test.name, n)
		}
		if d := time.Since(start); d > time.Second {
			t.Logf("%s: took %v", test.name, d)
		}
	}
}

// The limits follow the size of the request, up to a bound.
func TestLimitsFor(t *testing.T) {
	for input, want := range map[int]int{0: 1 << 20, 1000: 4000 + 1<<20, 16 << 20: 64 << 20, 1 << 40: 64 << 20} {
		l := LimitsFor(input)
		if l.Output != want || l.Steps != 2_000_000 || l.Memory < l.Output || l.Memory > 256<<20 {
			t.Errorf("%d bytes: %+v, want an output of %d", input, l, want)
		}
	}
	// The output limit is exact.
	tmpl, err := Compile("t", "{{ s }}{{ s }}")
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]Value{"s": Request("12345")}
	if out, err := tmpl.Render(t.Context(), vars, Limits{100, 10, 1000}); err != nil || joined(out) != "1234512345" {
		t.Errorf("%v, %v", out, err)
	}
	_, err = tmpl.Render(t.Context(), vars, Limits{100, 9, 1000})
	if e, ok := errors.AsType[*LimitError](err); !ok || e.Limit != 9 {
		t.Errorf("error %v", err)
	}
	if _, err = tmpl.Render(t.Context(), vars, Limits{3, 10, 1000}); err == nil {
		t.Error("four steps are possible with three")
	}
}

// A long conversation with large messages is well within the limits.
func TestLimitsAreEnough(t *testing.T) {
	tmpl, err := Compile("qwen3.8", oracleFile(t, "templates/qwen3.8.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []struct{ messages, bytes int }{{1000, 100}, {4000, 1000}, {10, 1 << 20}} {
		var messages []Value
		n := 0
		for i := range size.messages {
			m := NewMap()
			m.Set(Trusted("role"), Request([]string{"user", "assistant"}[i%2]))
			m.Set(Trusted("content"), Request(strings.Repeat("é ", size.bytes/3)))
			messages = append(messages, m)
			n += Size(m)
		}
		out, err := tmpl.Render(t.Context(), map[string]Value{"messages": NewList(messages...)}, LimitsFor(n))
		if err != nil || len(out) < size.messages {
			t.Errorf("%d messages of %d bytes: %d stretches, %v", size.messages, size.bytes, len(out), err)
		}
	}
}

// Rendering ends with its context.
func TestContext(t *testing.T) {
	tmpl, err := Compile("t", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tmpl.Render(ctx, nil, LimitsFor(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	// A context that ends on the way is noticed soon.
	counting := &countingContext{Context: t.Context(), left: 5}
	_, err = tmpl.Render(counting, nil, Limits{Steps: 1 << 40, Output: 1, Memory: 1 << 40})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled on the way: %v", err)
	}
}

// A countingContext ends when it was asked a number of times.
type countingContext struct {
	context.Context
	left int
}

func (c *countingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// Errors say where they are.
func TestErrorPlaces(t *testing.T) {
	tests := []struct {
		source    string
		line, col int
		want      string
	}{
		{"a\nb {{ x..y }}", 2, 8, "name of an attribute"},
		{"{% include 'x' %}", 1, 4, `"include"`},
		{"\n\n  {%- import 'x' as y %}", 3, 7, `"import"`},
		{"{% from 'x' import y %}", 1, 4, `"from"`},
		{"é {% extends 'x' %}", 1, 6, `"extends"`},
		{"{% block x %}{% endblock %}", 1, 4, `"block"`},
		{"{% do x %}", 1, 4, `"do"`},
		{"{% autoescape true %}{% endautoescape %}", 1, 4, `"autoescape"`},
		{"{% for x in y recursive %}{% endfor %}", 1, 15, "recursive"},
		{"{{ ''.__class__ }}", 1, 7, "underscore"},
		{"{{ a.b._c }}", 1, 8, "underscore"},
		{"{% set a._b = 1 %}", 1, 10, "underscore"},
		{"{{ f(*x) }}", 1, 6, "not supported"},
		{"{{ f(**x) }}", 1, 6, "not supported"},
		{"{{ 'a' | nope }}", 1, 10, `no filter "nope"`},
		{"{{ 1 is nope }}", 1, 9, `no test "nope"`},
		{"a\n{{ 'b", 2, 4, "not closed"},
		{"a\n  {# b", 2, 3, "not closed"},
		{"{% raw %}\n{{", 1, 1, "not closed"},
		{"{{ 1", 1, 1, "not closed"},
		{"{{ a ? b }}", 1, 6, "unexpected character '?'"},
		{"{{ (a] }}", 1, 6, `unexpected "]"`},
		{"{% if a %}\n{% for b in c %}\n{% endif %}", 3, 4, `"endif"`},
		{"{% if a %}", 1, 11, "end of the template"},
		{"\r\n\r{{ 1 // 0 }}", 3, 9, "division by zero"},
		{"{% for i in [1, 0] %}\n{{ 7 /\n   i }}\n{% endfor %}", 3, 4, "division by zero"},
		{"{% macro m(x) %}\n{{ x.y.z }}{% endmacro %}\n{{ m({}) }}", 2, 7, "'y'"},
		{"{{ raise_exception('no') }}", 1, 19, "no"},
		{"\n{{ [1]|join(', ')|nope2 }}", 2, 19, "nope2"},
		{"{{ x.append(1) }}", 1, 12, "'append'"},
		{"\xff", 1, 1, "UTF-8"},
	}
	for _, test := range tests {
		_, err := render(t, test.source, map[string]Value{"x": NewList()})
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Line != test.line || e.Col != test.col || e.Template != "test" || !strings.Contains(e.Err.Error(), test.want) {
			t.Errorf("%q: error %v, want %d:%d: %s", test.source, err, test.line, test.col, test.want)
		} else if want := fmt.Sprintf("test:%d:%d: ", test.line, test.col); !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: error %q does not begin with %q", test.source, err, want)
		}
	}
}
