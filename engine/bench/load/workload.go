package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// A cutPoint is where the client leaves a request.
type cutPoint uint8

const (
	noCut      cutPoint = iota
	cutSent             // as soon as the request is written
	cutPrefill          // at a random point of the time that a first token usually takes
	cutStream           // after a random number of deltas
	cutPoints
)

// A request is one of a run. It depends on the options and its index alone, so that two runs ask the same whatever
// the server does.
type request struct {
	index     int
	body      []byte
	malformed string // what is wrong with the body, empty for nothing
	long      bool
	output    int // most tokens of the answer
	cut       cutPoint
	cutAt     float64 // for cutPrefill as a part of the usual time, for cutStream of the answer's tokens; 0 to 1
}

// A workload makes requests.
type workload struct {
	opt     *Options
	model   string
	words   []string
	perWord float64 // tokens of a word and the blank before it
	prefix  string  // what prompts share
}

// vocabulary is what random prompts are made of: common words, which are a token or two each.
const vocabulary = `time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information back
parent face others level office door health person art war history party result change morning reason research girl guy
moment air teacher force education run small large early young important few public bad same able give find tell ask
seem feel try leave call keep begin help talk turn start show hear play move like live believe hold bring happen write`

// usualPerWord is how many tokens a word has when the server cannot say.
const usualPerWord = 1.2

func newWorkload(o *Options, model string) *workload {
	w := &workload{opt: o, model: model, words: strings.Fields(vocabulary), perWord: usualPerWord}
	w.makePrefix()
	return w
}

// random returns the random numbers of a purpose. The index goes through SplitMix64's finalizer, so that neighbours start
// far apart.
func (w *workload) random(index int) *rand.Rand {
	z := uint64(index) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return rand.New(rand.NewPCG(w.opt.Seed, z^z>>31))
}

// Indices of random numbers that are no request's.
const (
	prefixIndex      = -1
	calibrationIndex = -2
	arrivalIndex     = -3
	warmupIndex      = -1000 // and below
)

func (w *workload) makePrefix() {
	if w.opt.PrefixShare > 0 {
		w.prefix = w.text(w.random(prefixIndex), w.opt.PrefixLength)
	}
}

// text makes a text of about so many tokens.
func (w *workload) text(r *rand.Rand, tokens int) string {
	var b strings.Builder
	for i := range max(1, int(math.Round(float64(tokens)/w.perWord))) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w.words[r.IntN(len(w.words))])
	}
	return b.String()
}

// calibrate asks the server how many tokens words have.
func (w *workload) calibrate(ctx context.Context, t *target) error {
	const words = 512
	w.perWord = 1
	text := w.text(w.random(calibrationIndex), words)
	w.perWord = usualPerWord
	n, err := t.countTokens(ctx, text)
	if err == nil && n < words/8 {
		err = fmt.Errorf("/tokenize makes %d tokens of %d words", n, words)
	}
	if err != nil {
		return err
	}
	w.perWord = float64(n) / words
	w.makePrefix()
	return nil
}

// request makes the request of an index.
func (w *workload) request(index int) *request {
	o, r := w.opt, w.random(index)
	q := &request{index: index, long: index >= 0 && o.LongEvery > 0 && (index+1)%o.LongEvery == 0}
	fate, point := r.Float64(), cutPoint(1+r.IntN(int(cutPoints)-1))
	q.cutAt = r.Float64()
	shares := r.Float64() < o.PrefixShare
	switch {
	case index < 0: // a warm-up must go through
	case fate < o.Malformed && !q.long:
		q.body, q.malformed = w.malformed(r)
		return q
	case fate >= o.Malformed && fate < o.Malformed+o.Disconnect:
		q.cut = point
	}
	length := o.Prompt.draw(r)
	q.output = o.Output.draw(r)
	var e Entry
	switch {
	case q.long:
		e.Prompt = w.text(r, o.LongPrompt)
	case len(o.Dataset) > 0:
		if e = o.Dataset[r.IntN(len(o.Dataset))]; e.Output > 0 {
			q.output = e.Output
		}
	default:
		e.Prompt = w.text(r, length)
	}
	if shares && e.Prompt != "" {
		e.Prompt = w.prefix + " " + e.Prompt
	}
	q.body = w.body(e, q.output, r.Int32())
	return q
}

// A message of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// body is the JSON of a request that streams its answer.
func (w *workload) body(e Entry, output int, seed int32) []byte {
	type streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	x := struct {
		Model     string        `json:"model"`
		Messages  any           `json:"messages,omitempty"`
		Prompt    string        `json:"prompt,omitempty"`
		MaxTokens int           `json:"max_tokens"`
		Stream    bool          `json:"stream"`
		Options   streamOptions `json:"stream_options"`
		Seed      int32         `json:"seed"`
		IgnoreEOS bool          `json:"ignore_eos,omitempty"`
	}{Model: w.model, MaxTokens: output, Stream: true, Options: streamOptions{true}, Seed: seed, IgnoreEOS: w.opt.IgnoreEOS}
	switch {
	case w.opt.Endpoint == Completions:
		x.Prompt = e.Prompt
	case e.Messages != nil:
		x.Messages = e.Messages
	default:
		x.Messages = []message{{"user", e.Prompt}}
	}
	b, err := json.Marshal(x)
	if err != nil {
		return nil // a list that ReadDataset has parsed and strings: nothing that cannot be written
	}
	return b
}

// nesting is deeper than any parser of requests should go.
const nesting = 20_000

// malformed makes a body that no server may accept, and says what is wrong with it.
func (w *workload) malformed(r *rand.Rand) (body []byte, what string) {
	subject := `"messages":[{"role":"user","content":"hello"}]`
	wrong, empty := `"messages":5`, `"messages":[]`
	if w.opt.Endpoint == Completions {
		subject, wrong, empty = `"prompt":"hello"`, `"prompt":{"text":"hello"}`, `"prompt":true`
	}
	name, err := json.Marshal(w.model)
	if err != nil {
		name = []byte(`""`) // strings can always be written
	}
	begin := `{"model":` + string(name) + `,"stream":true,`
	kinds := []struct{ what, body string }{
		{"cut off", begin + subject},
		{"no JSON", "hello"},
		{"empty", ""},
		{"a list", "[" + begin + subject + "}]"},
		{"wrong prompt", begin + wrong + "}"},
		{"unusable prompt", begin + empty + "}"},
		{"no prompt", begin + `"max_tokens":4}`},
		{"max_tokens is text", begin + subject + `,"max_tokens":"many"}`},
		{"temperature is text", begin + subject + `,"temperature":"hot"}`},
		{"temperature out of range", begin + subject + `,"temperature":99}`},
		{"top_p out of range", begin + subject + `,"top_p":-3}`},
		{"stream is text", `{"model":` + string(name) + `,"stream":"yes",` + subject + "}"},
		{"nested too deep", begin + subject + `,"metadata":` + strings.Repeat("[", nesting) + strings.Repeat("]", nesting) + "}"},
	}
	k := kinds[r.IntN(len(kinds))]
	return []byte(k.body), k.what
}
