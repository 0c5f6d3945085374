package jinja

import (
	"fmt"
	"strings"
	"testing"
)

// marked shows stretches, those of the request in brackets.
func marked(stretches []Stretch) string {
	var b strings.Builder
	for _, s := range stretches {
		if s.Trusted {
			b.WriteString(s.Text)
		} else {
			b.WriteString("⟦" + s.Text + "⟧")
		}
	}
	return b.String()
}

// What came with the request stays marked whatever a template does with it.
func TestMarks(t *testing.T) {
	obj := NewMap()
	obj.Set(Request("k<"), Request("v\"\n"))
	obj.Set(Trusted("own"), NewList(Int(1), Request("x")))
	variables := map[string]Value{
		"u": Request("User Text"), "v": Request("a,b"), "obj": obj, "lst": NewList(Request("b"), Trusted("t"), Request("a")), "w": Request("  w\n"), "e": Request(""),
	}
	tests := []struct{ source, want string }{
		{"a{{ u }}b", "a⟦User Text⟧b"},
		{"{{ u }}{{ u }}", "⟦User TextUser Text⟧"},
		{"{{ e }}a{{ e }}", "a"},
		{"{{ '<' ~ u ~ '>' }}{{ '<' + u + '>' }}", "<⟦User Text⟧><⟦User Text⟧>"},
		{"{{ ('<' ~ u ~ '>')[0:3] }}{{ ('<' ~ u ~ '>')[-2:] }}{{ ('<' ~ u ~ '>')[5] }}{{ ('<' ~ u ~ '>')[1:-1] }}", "<⟦Ust⟧>⟦ User Text⟧"},
		{"{{ ('<' ~ u ~ '>')[::-1] }}", ">⟦txeT resU⟧<"},
		{"{{ ('a' ~ u ~ 'b' ~ v ~ 'c')[5:15] }}", "⟦ Text⟧b⟦a,b⟧c"},
		{"{{ u|upper }}{{ ('x' ~ u)|lower }}{{ u|title }}{{ ('q' ~ v)|capitalize }}", "⟦USER TEXT⟧x⟦user textUser Text⟧Q⟦a,b⟧"},
		{"[{{ w|trim }}{{ w.strip() }}{{ w.rstrip('\\n') }}]{{ (' ' ~ w ~ ' ')|trim }}", "[⟦ww  w⟧]⟦w⟧"},
		{"{{ v.split(',')[1] }}{{ v.split(',')|join('+') }}{{ ','.join(v.split(',')) }}{{ u.split()[0] }}{{ v.rsplit(',', 1)[0] }}", "⟦ba⟧+⟦ba⟧,⟦bUsera⟧"},
		{"{{ u.replace('User', 'own') }}{{ 'own'.replace('w', u) }}{{ u|replace('Text', v) }}", "own⟦ Text⟧o⟦User Text⟧n⟦User a,b⟧"},
		{"{{ u|tojson }}{{ obj|tojson }}", `"⟦User Text⟧"{"⟦k<⟧": "⟦v\"\n⟧", "own": [1, "⟦x⟧"]}`},
		{"{{ obj|tojson(ensure_ascii=true, indent=1) }}", "{\n \"⟦k<⟧\": \"⟦v\\\"\\n⟧\",\n \"own\": [\n  1,\n  \"⟦x⟧\"\n ]\n}"},
		{"{{ obj|string }}{{ [u] }}", "{'⟦k<⟧': '⟦v\"\\n⟧', 'own': [1, '⟦x⟧']}['⟦User Text⟧']"},
		{"{% for k, x in obj|items %}{{ k }}={{ x }};{% endfor %}{% for k in obj %}{{ k }}{% endfor %}", "⟦k<⟧=⟦v\"\n⟧;own=[1, '⟦x⟧'];⟦k<⟧own"},
		{"{{ lst|join }}{{ lst|sort|join }}{{ lst|first }}{{ lst|last }}{{ lst|max }}", "⟦b⟧t⟦aab⟧t⟦ba⟧t"},
		{"{% for c in v %}{{ c }}.{% endfor %}{{ v|list|join }}", "⟦a⟧.⟦,⟧.⟦b⟧.⟦a,b⟧"},
		{"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) }}{{ m(u)|upper }}{{ m(m(v)) }}", "<⟦User Text⟧><⟦USER TEXT⟧><<⟦a,b⟧>>"},
		{"{% set b %}({{ u }}){% endset %}{{ b }}{{ b[1:-1] }}{% filter upper %}x{{ v }}{% endfilter %}", "(⟦User Text⟧)⟦User Text⟧X⟦A,B⟧"},
		{"{{ '%s!%5s' % (v, v) }}{{ '%s'|format(u) }}{{ '{}-{x}'.format(v, x=u) }}{{ u % () }}", "⟦a,b⟧!  ⟦a,bUser Texta,b⟧-⟦User TextUser Text⟧"},
		{"{{ '<%r>' % u }}", "<'⟦User Text⟧'>"},
		{"{{ v|e }}{{ (v ~ '<')|e }}{{ w|indent(1, true) }}{{ v * 2 }}{{ nope|default(u) }}{{ u or 'x' }}{{ 'x' if false else u }}", "⟦a,ba,b⟧&lt; ⟦  w⟧\n⟦a,ba,bUser TextUser TextUser Text⟧"},
		{"{{ u|safe }}{{ u|string }}{{ dict(a=u).a }}{{ namespace(a=u).a }}{{ [u, 1]|last }}{{ u|length }}{{ u.find('T') }}", "⟦User TextUser TextUser TextUser Text⟧195"},
		{"{{ lst|map('upper')|join }}{{ lst|select('equalto', 'a')|join }}{{ lst|unique|join }}{{ lst|batch(2)|list }}", "⟦B⟧T⟦Aab⟧t⟦a⟧[['⟦b⟧', 't'], ['⟦a⟧']]"},
		{"{% macro box() %}[{{ caller(v) }}]{% endmacro %}{% call(x) box() %}{{ x }}-{{ u }}{% endcall %}", "[⟦a,b⟧-⟦User Text⟧]"},
		{"{{ '1,'.split(',')[0] }}{{ u.splitlines()[0] }}{{ u.removeprefix('User ') }}{{ ('a' ~ u).removesuffix('Text') }}", "1⟦User TextText⟧a⟦User ⟧"},
	}
	for _, test := range tests {
		tmpl, err := Compile("t", test.source)
		if err != nil {
			t.Errorf("%s: %v", test.source, err)
			continue
		}
		out, err := tmpl.Render(t.Context(), variables, LimitsFor(100))
		if got := marked(out); err != nil || got != test.want {
			t.Errorf("%s: %v\n got %s\nwant %s", test.source, err, got, test.want)
		}
		for i, s := range out {
			if s.Text == "" || i > 0 && s.Trusted == out[i-1].Trusted {
				t.Errorf("%s: stretch %d of %q is empty or like the one before", test.source, i, marked(out))
			}
		}
	}
}

// The marks of a text that is cut and put together again are those that it had.
func TestMarksOfSlices(t *testing.T) {
	r := &run{ctx: t.Context(), limits: LimitsFor(1 << 20)}
	parts := []Text{Trusted("ab"), Request("cde"), Trusted("é"), Request("fü"), Request("g"), Trusted("h")}
	whole, err := r.concat(parts...)
	if err != nil {
		t.Fatal(err)
	}
	show := func(t Text) string {
		s := ""
		_ = t.stretches(func(x string, request bool) error { s += fmt.Sprint(x, request, " "); return nil })
		return s
	}
	if got := show(whole); got != "abfalse cdetrue éfalse fügtrue hfalse " {
		t.Fatal(got)
	}
	at := func(i int) bool { // the mark of byte i, from the parts
		for _, p := range parts {
			if i < len(p.s) {
				return p.first
			}
			i -= len(p.s)
		}
		return false
	}
	for i := range len(whole.s) + 1 {
		for j := i; j <= len(whole.s); j++ {
			s := whole.slice(i, j)
			n := i
			_ = s.stretches(func(x string, request bool) error {
				for range len(x) {
					if request != at(n) {
						t.Fatalf("slice %d to %d: byte %d is %v", i, j, n, request)
					}
					n++
				}
				return nil
			})
			if n != j {
				t.Fatalf("slice %d to %d ends at %d", i, j, n)
			}
			a, err := r.concat(whole.slice(0, i), s, whole.slice(j, len(whole.s)))
			if err != nil || show(a) != show(whole) {
				t.Fatalf("slice %d to %d: put together %s, %v", i, j, show(a), err)
			}
		}
	}
}
