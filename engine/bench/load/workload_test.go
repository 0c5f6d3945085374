package load

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// options are some that pass Check.
func options(t *testing.T) Options {
	t.Helper()
	prompt, err := ParseLengths("10-30")
	if err != nil {
		t.Fatal(err)
	}
	output, err := ParseLengths("8")
	if err != nil {
		t.Fatal(err)
	}
	return Options{URL: "http://127.0.0.1:1", Endpoint: Chat, Concurrency: 1, Requests: 10, Seed: 1, Prompt: prompt, Output: output, Timeout: time.Minute}
}

// A sent is a request's body as a server reads it.
type sent struct {
	Model    string
	Messages []message
	Prompt   string
	Max      int `json:"max_tokens"`
	Stream   bool
	Options  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	EOS bool `json:"ignore_eos"`
}

func decode(t *testing.T, b []byte) sent {
	t.Helper()
	var s sent
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return s
}

func TestRequests(t *testing.T) {
	o := options(t)
	o.Disconnect, o.Malformed, o.PrefixShare, o.PrefixLength = 0.2, 0.05, 0.5, 12
	o.LongEvery, o.LongPrompt, o.IgnoreEOS = 50, 500, true
	w := newWorkload(&o, "m")
	other := o
	other.Seed = 2
	differ := newWorkload(&other, "m")
	const n = 10_000
	var cuts [cutPoints]int
	var malformed, prefixed, same, texts, words int
	for i := range n {
		q := w.request(i)
		if bytes.Equal(q.body, differ.request(i).body) {
			same++
		}
		if q.long != (i%50 == 49) {
			t.Fatalf("request %d: long is %v", i, q.long)
		}
		if q.malformed != "" {
			if malformed++; q.long || q.cut != noCut {
				t.Fatalf("%+v", q)
			}
			continue
		}
		cuts[q.cut]++
		if q.cutAt < 0 || q.cutAt >= 1 || q.output != 8 {
			t.Fatalf("%+v", q)
		}
		s := decode(t, q.body)
		if s.Model != "m" || len(s.Messages) != 1 || s.Messages[0].Role != "user" || s.Max != 8 || !s.Stream || !s.Options.Usage || !s.EOS {
			t.Fatalf("%s", q.body)
		}
		text := s.Messages[0].Content
		if strings.HasPrefix(text, w.prefix+" ") {
			prefixed++
			text = text[len(w.prefix)+1:]
		}
		k := len(strings.Fields(text))
		if q.long {
			if k != int(math.Round(500/usualPerWord)) {
				t.Fatalf("a long prompt of %d words", k)
			}
			continue
		}
		texts, words = texts+1, words+k
	}
	near := func(what string, got int, want float64) {
		t.Helper()
		if math.Abs(float64(got)/n-want) > 0.015 {
			t.Errorf("%s: %d of %d, want %g", what, got, n, want)
		}
	}
	near("malformed", malformed, 0.05)
	near("cut when sent", cuts[cutSent], 0.2/3)
	near("cut in prefill", cuts[cutPrefill], 0.2/3)
	near("cut in the stream", cuts[cutStream], 0.2/3)
	near("prefix", prefixed, 0.5*0.95)
	if same > n/50 { // malformed ones may be
		t.Errorf("%d of another seed's requests are the same", same)
	}
	if mean := float64(words) / float64(texts) * usualPerWord; math.Abs(mean-20) > 0.5 {
		t.Errorf("prompts have %g tokens, want 20", mean)
	}
	for i := range 100 {
		if q := w.request(warmupIndex - i); q.malformed != "" || q.cut != noCut || q.long {
			t.Fatalf("a warm-up: %+v", q)
		}
	}
}

// A request depends on its index alone, whatever was made before, and neighbours differ.
func TestRequestsRepeat(t *testing.T) {
	o := options(t)
	a, b := newWorkload(&o, "m"), newWorkload(&o, "m")
	for i := range 100 {
		b.request(99 - i)
		if x := a.request(i).body; !bytes.Equal(x, b.request(i).body) || bytes.Equal(x, b.request(i+1).body) {
			t.Fatalf("request %d", i)
		}
	}
}

// Every malformed body is one that a server which reads what the API has must refuse.
func TestMalformed(t *testing.T) {
	for _, endpoint := range []string{Chat, Completions} {
		o := options(t)
		o.Endpoint, o.Malformed = endpoint, 1
		w := newWorkload(&o, `the "model"`)
		kinds := map[string]bool{}
		for i := range 400 {
			q := w.request(i)
			kinds[q.malformed] = true
			if why := refusal(endpoint, q.body); why == "" {
				t.Fatalf("%s, %s: nothing is wrong with %.200s", endpoint, q.malformed, q.body)
			}
		}
		if len(kinds) != 13 || kinds[""] {
			t.Errorf("%s: %d kinds, %v", endpoint, len(kinds), kinds)
		}
		o.Malformed = 0
		for i := range 20 {
			if why := refusal(endpoint, w.request(i).body); why != "" {
				t.Fatalf("a good request is refused: %s", why)
			}
		}
	}
}

// refusal is why a server refuses a body, or nothing.
func refusal(endpoint string, body []byte) string {
	var x struct {
		Model       string
		Messages    []message
		Prompt      any
		Max         *int     `json:"max_tokens"`
		Temperature *float64 `json:"temperature"`
		TopP        *float64 `json:"top_p"`
		Stream      bool
		Metadata    any
	}
	if err := json.Unmarshal(body, &x); err != nil {
		return err.Error()
	}
	text, isText := x.Prompt.(string)
	switch {
	case endpoint == Chat && len(x.Messages) == 0, endpoint == Completions && (!isText || text == ""):
		return "no prompt"
	case x.Temperature != nil && (*x.Temperature < 0 || *x.Temperature > 2):
		return "temperature"
	case x.TopP != nil && (*x.TopP < 0 || *x.TopP > 1):
		return "top_p"
	}
	return ""
}

func TestDatasetRequests(t *testing.T) {
	o := options(t)
	o.Dataset = []Entry{{Prompt: "one"}, {Messages: json.RawMessage(`[{"role":"system","content":"two"},{"role":"user","content":"x"}]`), Output: 3}}
	o.PrefixShare, o.PrefixLength = 1, 4
	w := newWorkload(&o, "m")
	seen := map[string]int{}
	for i := range 50 {
		q := w.request(i)
		s := decode(t, q.body)
		seen[s.Messages[0].Content]++
		if len(s.Messages) == 2 && (s.Max != 3 || q.output != 3) || len(s.Messages) == 1 && s.Max != 8 {
			t.Errorf("%s", q.body)
		}
	}
	if len(seen) != 2 || seen["two"] == 0 || seen[w.prefix+" one"] == 0 {
		t.Errorf("%v", seen)
	}
}

// Gaps between arrivals are exponential: their mean and their deviation are both 1/rate.
func TestArrivals(t *testing.T) {
	o := options(t)
	for _, rate := range []float64{0.5, 20, 4000} {
		next := newArrivals(newWorkload(&o, "m").random(arrivalIndex), rate)
		var s samples
		for range 50_000 {
			s.add(next.gap().Seconds())
		}
		x := s.summary()
		if math.Abs(x.Mean*rate-1) > 0.02 || math.Abs(x.Std*rate-1) > 0.02 || math.Abs(x.P50*rate-math.Ln2) > 0.02 {
			t.Errorf("rate %g: mean %g, deviation %g, median %g", rate, x.Mean, x.Std, x.P50)
		}
	}
	a, b := newArrivals(newWorkload(&o, "m").random(arrivalIndex), 1), newArrivals(newWorkload(&o, "m").random(arrivalIndex), 1)
	for range 10 {
		if a.gap() != b.gap() {
			t.Fatal("the seed does not fix the arrivals")
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) {}, ""},
		{func(o *Options) { o.URL = "unix:/run/x" }, ""},
		{func(o *Options) { o.URL = "https://host/api/" }, ""},
		{func(o *Options) { o.URL = "127.0.0.1:8080" }, "no URL"},
		{func(o *Options) { o.URL = "ftp://x" }, "no URL"},
		{func(o *Options) { o.URL = "unix:" }, "socket"},
		{func(o *Options) { o.URL = "http://user:secret@x" }, "user or password"},
		{func(o *Options) { o.URL = "http://x/?key=1" }, "more than host and path"},
		{func(o *Options) { o.Key = "a\nb" }, "key"},
		{func(o *Options) { o.Endpoint = "chats" }, "endpoint"},
		{func(o *Options) { o.Concurrency = 0 }, "concurrency"},
		{func(o *Options) { o.Rate = math.NaN() }, "rate"},
		{func(o *Options) { o.Requests = 0 }, "would not end"},
		{func(o *Options) { o.Requests, o.Duration = 0, time.Second }, ""},
		{func(o *Options) { o.Output = Lengths{} }, "lengths"},
		{func(o *Options) { o.Disconnect = 1.5 }, "shares"},
		{func(o *Options) { o.Disconnect, o.Malformed = 0.6, 0.6 }, "more than all"},
		{func(o *Options) { o.PrefixShare = 0.5 }, "length"},
		{func(o *Options) { o.LongEvery = 5 }, "length"},
		{func(o *Options) { o.Timeout = 0 }, "timeout"},
		{func(o *Options) { o.Endpoint, o.Dataset = Completions, []Entry{{Messages: json.RawMessage("[]")}} }, "conversations"},
		{func(o *Options) { o.AtMost = []Bar{{"p99_itl_ms", 5}, {"goroutines_growth", 5}, {"faults", 0}} }, ""},
		{func(o *Options) { o.AtMost = []Bar{{"p98_itl_ms", 5}} }, "no result"},
		{func(o *Options) { o.AtMost = []Bar{{"seed", 5}} }, "no result"},
	} {
		o := options(t)
		c.change(&o)
		err := o.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("a secret in %v", err)
		}
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "http://x:1/": "http://x:1", "http://x:1/v1/": "http://x:1", "http://x:1/v1": "http://x:1",
		"https://x/a": "https://x/a", "unix:///run/s": "http://localhost",
	} {
		if got, _, err := parseURL(in); got != want || err != nil {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for in, want := range map[string]bool{
		DefaultURL: true, "http://localhost:1": true, "http://[::1]:1": true, "unix:/run/s": true, "http://10.0.0.1": false, "https://example.com": false,
		"http://localhost.example.com": false, "nonsense": false,
	} {
		if IsLoopback(in) != want {
			t.Errorf("%s is loopback: %v", in, !want)
		}
	}
}
