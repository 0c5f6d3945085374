package jinja

import (
	"os"
	"testing"
)

// TestPython compares with testdata/python.json: small templates of our own and what jinja2 3.1.6 makes of them, set up as
// Hugging Face does (see the oracle's README). An entry has "want", or "error" where there was one, whose words do not count.
func TestPython(t *testing.T) {
	data, err := os.ReadFile("testdata/python.json")
	if err != nil {
		t.Fatal(err)
	}
	file, err := DecodeJSON(string(data))
	if err != nil {
		t.Fatal(err)
	}
	variables := vars(field[*Map](t, file, "vars"))
	cases := field[*List](t, file, "cases")
	for _, c := range cases.All() {
		source := field[Text](t, c, "t").s
		got, err := render(t, source, variables)
		want, ok := c.(*Map).Get("want")
		switch {
		case ok && err != nil:
			t.Errorf("%s\n%v", source, err)
		case ok && got != want.(Text).s:
			t.Errorf("%s\n got %q\nwant %q", source, got, want.(Text).s)
		case !ok && err == nil:
			t.Errorf("%s\n got %q, not the error %q", source, got, field[Text](t, c, "error").s)
		}
	}
	t.Logf("%d templates", cases.Len())
}

// Keys of a request that are called like methods: the methods go before the keys, also those that the sandbox hides.
func TestKeysLikeMethods(t *testing.T) {
	v, err := DecodeJSON(`{"o":{"update":1,"items":2,"other":3}}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(t, "{{ o.update is defined }}{{ o['update'] }}{{ o.items is callable }}{{ o['items'] }}{{ o.other }}{{ o.items()|length }}", vars(v.(*Map)))
	if want := "False1True233"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
