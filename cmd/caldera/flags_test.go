package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestLongSpellings(t *testing.T) {
	tests := []struct{ in, want string }{
		{"run -n 5 -q x", "run -n 5 -q x"},
		{"run -ngl 5", "run --ngl 5"},
		{"run -dev 0", "run --dev 0"},
		{"run -ctk=q8_0", "run --ctk=q8_0"},
		{"bench -pg 512,128", "bench --pg 512,128"},
		{"run -- -ngl", "run -- -ngl"},
		{"tokenize -", "tokenize -"},
	}
	for _, tt := range tests {
		if got := longSpellings(strings.Fields(tt.in)); !reflect.DeepEqual(got, strings.Fields(tt.want)) {
			t.Errorf("%q becomes %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"temp", "top-k", "top-p", "predict", "presence-penalty"}
	for name, want := range map[string]string{
		"tmep": "temp", "temo": "temp", "topk": "top-k", "pred": "predict", "presence": "presence-penalty", "zzz": "", "x": "",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest to %q is %q, want %q", name, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}}
	for _, tt := range tests {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance of %q and %q is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// Other programs' spellings of flags do what ours do.
func TestAliases(t *testing.T) {
	r := command(t, "", "run", "--backend", "reference", "--n-predict", "1", "--temperature", "0", "--ctx_size", "64", "--batch-size", "8", "-q", "hello")
	if r.code != exitDone || r.out == "" {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

func TestParseTokens(t *testing.T) {
	got, err := parseTokens(" 1,2\n3\t4 ,")
	if err != nil || !reflect.DeepEqual(got, []int32{1, 2, 3, 4}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", " , ", "1,-2", "1,x", "99999999999"} {
		if _, err := parseTokens(bad); exitCode(err) != exitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestReadTokens(t *testing.T) {
	isolate(t)
	a := newApp(strings.NewReader("7 8"), nil, nil)
	write(t, "a.u16", "\x01\x00\xff\xff")
	write(t, "a.i32", "\x01\x00\x00\x00\x00\x00\x01\x00")
	write(t, "a.txt", "3, 4")
	write(t, "odd.u16", "abc")
	write(t, "empty.i32", "")
	for path, want := range map[string][]int32{"a.u16": {1, 65535}, "a.i32": {1, 65536}, "a.txt": {3, 4}, "-": {7, 8}} {
		if got, err := a.readTokens(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	for _, path := range []string{"odd.u16", "empty.i32", "nosuch"} {
		if _, err := a.readTokens(path); exitCode(err) != exitUsage {
			t.Errorf("%s: %v", path, err)
		}
	}
}
