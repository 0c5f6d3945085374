package load

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLengths(t *testing.T) {
	for _, c := range []struct {
		text      string
		low, high int
		mean      float64
	}{
		{"64", 64, 64, 64},
		{" 1 ", 1, 1, 1},
		{"16-256", 16, 256, 136},
		{"lognormal:200,0.8", 1, 3200, 200},
		{"lognormal:300,0.5,100000", 1, 100000, 300},
		{"lognormal:100, 3, 50", 1, 50, -1}, // cut off far below its mean
	} {
		l, err := ParseLengths(c.text)
		if err != nil || l.String() != strings.TrimSpace(c.text) {
			t.Fatalf("%q: %v, %v", c.text, l, err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		const n = 20000
		sum, lo, hi := 0, math.MaxInt, 0
		for range n {
			v := l.draw(r)
			sum, lo, hi = sum+v, min(lo, v), max(hi, v)
		}
		if lo < c.low || hi > c.high {
			t.Errorf("%q: %d to %d", c.text, lo, hi)
		}
		if mean := float64(sum) / n; c.mean > 0 && math.Abs(mean/c.mean-1) > 0.03 {
			t.Errorf("%q: the mean is %g, want %g", c.text, mean, c.mean)
		}
		if c.text == "16-256" && (lo != 16 || hi != 256) {
			t.Errorf("the bounds do not occur: %d to %d", lo, hi)
		}
	}
	for _, bad := range []string{"", "0", "-5", "x", "5-", "9-5", "1-2-3", "1.5", "2000000", "lognormal:5", "lognormal:0,1", "lognormal:5,0", "lognormal:5,9",
		"lognormal:5,1,0", "lognormal:x,1", "lognormal:NaN,1", "lognormal:5,NaN", "lognormal:1,2,3,4", "0-5"} {
		if l, err := ParseLengths(bad); err == nil {
			t.Errorf("%q: %+v", bad, l)
		}
	}
}

func TestReadDataset(t *testing.T) {
	list, err := ReadDataset(strings.NewReader(`{"prompt":"a","other":1}

{"messages":[{"role":"user","content":"b"}],"max_tokens":7}
`))
	if err != nil || len(list) != 2 || list[0].Prompt != "a" || list[1].Output != 7 || !strings.Contains(string(list[1].Messages), `"b"`) {
		t.Errorf("%+v, %v", list, err)
	}
	for text, want := range map[string]string{
		"":                                     "no prompt",
		"{\"prompt\":\"a\"}\nhello":            "line 2",
		`{"prompt":""}`:                        "line 1",
		`{"prompt":"a","messages":[{}]}`:       "either",
		`{"messages":{}}`:                      "no list",
		`{"prompt":"a","max_tokens":-1}`:       "max_tokens",
		strings.Repeat("x", maxEntryLine+1000): "too long",
	} {
		if _, err := ReadDataset(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}
