package server

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/engine/stop"
)

// Bounds of what a request may ask for.
const (
	maxChoices = 8
	maxStops   = 16
	maxBiases  = 1024
	// maxSeed is the largest seed that every reader of JSON keeps exact.
	maxSeed = 1 << 53
)

// common are the fields that requests of every API share, as far as they have them.
type common struct {
	model     string // as the client names it
	stream    bool
	n         int
	maxTokens int // 0 for no limit
	stop      []string
	ignoreEOG bool
	noCache   bool
	sampling  []func(*sample.Params)
	seed      *uint64
	logprobs  bool
	top       int
	// Of streams.
	usage    bool // a last chunk with the usage
	progress bool // of the prompt
	timings  bool // with every chunk
	ping     time.Duration
}

// number is a field of sampling.
type number struct {
	name   string
	lo, hi float64
	set    func(*sample.Params, float64)
}

// numbers are the fields of sampling by OpenAI's and llama-server's names.
var numbers = []number{
	{"temperature", 0, 2, func(p *sample.Params, x float64) { p.Temperature = float32(x) }},
	{"top_p", 0, 1, func(p *sample.Params, x float64) { p.TopP = float32(x) }},
	{"min_p", 0, 1, func(p *sample.Params, x float64) { p.MinP = float32(x) }},
	{"presence_penalty", -2, 2, func(p *sample.Params, x float64) { p.PresencePenalty = float32(x) }},
	{"frequency_penalty", -2, 2, func(p *sample.Params, x float64) { p.FrequencyPenalty = float32(x) }},
	{"repeat_penalty", 0.01, 10, func(p *sample.Params, x float64) { p.RepetitionPenalty = float32(x) }},
	{"repetition_penalty", 0.01, 10, func(p *sample.Params, x float64) { p.RepetitionPenalty = float32(x) }}, // vLLM's name
}

// off are fields of samplers that are not built, and the values that turn them off.
var off = []struct {
	name string
	off  float64
}{{"typical_p", 1}, {"dry_multiplier", 0}, {"xtc_probability", 0}, {"mirostat", 0}}

// ignored are fields that have no effect here and are no mistake.
var ignored = []string{
	"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity", "best_of",
	"n_keep", "n_discard", "return_tokens", "post_sampling_probs", "samplers", "keep_alive",
}

// readSampling reads the fields of sampling.
func (c *common) readSampling(b *body) {
	for _, f := range numbers {
		if x, ok := b.number(f.name, f.lo, f.hi); ok {
			c.sampling = append(c.sampling, func(p *sample.Params) { f.set(p, x) })
		}
	}
	if k, ok := b.whole("top_k", -1, math.MaxInt32); ok {
		c.sampling = append(c.sampling, func(p *sample.Params) { p.TopK = int(max(k, 0)) })
	}
	if n, ok := b.whole("repeat_last_n", -1, math.MaxInt32); ok {
		c.sampling = append(c.sampling, func(p *sample.Params) { p.RepeatLastN = int(n) })
	}
	for _, f := range off {
		if x, ok := b.number(f.name, -math.MaxFloat64, math.MaxFloat64); ok && x != f.off {
			b.err = notSupported(400, f.name, "this sampler is not built; leave it out")
		}
	}
	if n, ok := b.whole("seed", -1, maxSeed); ok && n >= 0 {
		s := uint64(n)
		c.seed = &s
	}
	if bias := readBias(b); bias != nil {
		c.sampling = append(c.sampling, func(p *sample.Params) { p.LogitBias = append(p.LogitBias, bias...) })
	}
}

// readBias reads logit_bias: OpenAI's map from tokens to numbers, or llama-server's list of pairs, in which false means
// never.
func readBias(b *body) []sample.Bias {
	const name = "logit_bias"
	v := b.raw(name)
	if v == nil {
		return nil
	}
	var list []sample.Bias
	add := func(id json.RawMessage, value json.RawMessage) {
		n, err := strconv.ParseInt(string(id), 10, 32)
		x, xerr := strconv.ParseFloat(string(value), 64)
		switch {
		case err != nil || n < 0:
			b.fail(name, "%.40s is no token id", id)
		case string(value) == "false":
			list = append(list, sample.Bias{ID: int32(n), Value: float32(math.Inf(-1))})
		case xerr != nil || x < -100 || x > 100:
			b.fail(name, "the bias of token %d must be a number from -100 to 100", n)
		default:
			list = append(list, sample.Bias{ID: int32(n), Value: float32(x)})
		}
	}
	var byID map[string]json.RawMessage
	var pairs [][]json.RawMessage
	switch {
	case json.Unmarshal(v, &byID) == nil:
		for id, x := range byID {
			add(json.RawMessage(id), x)
		}
	case json.Unmarshal(v, &pairs) == nil:
		for _, p := range pairs {
			if len(p) != 2 {
				b.fail(name, "must be an object, or a list of pairs of a token id and a number")
				return nil
			}
			add(p[0], p[1])
		}
	default:
		b.fail(name, "must be an object that maps token ids to numbers")
	}
	if len(list) > maxBiases {
		b.fail(name, "has %d tokens; at most %d are possible", len(list), maxBiases)
	}
	return list
}

// readCommon reads what chat completions, completions and llama-server's completion share.
func (s *Server) readCommon(b *body) common {
	c := common{n: 1, ping: s.cfg.Ping}
	c.model, _ = b.text("model")
	c.stream = b.truth("stream", false)
	if n, ok := b.whole("n", 1, maxChoices); ok {
		c.n = int(n)
	}
	c.readSampling(b)
	c.stop = readStop(b, "stop")
	c.ignoreEOG = b.truth("ignore_eos", false)
	c.noCache = !b.truth("cache_prompt", true)
	if o, ok := b.object("stream_options"); ok {
		c.usage = o.truth("include_usage", false)
		b.join(o)
	}
	c.progress = b.truth("return_progress", false)
	c.timings = b.truth("timings_per_token", false)
	if n, ok := b.whole("sse_ping_interval", -1, 3600); ok {
		c.ping = time.Duration(n) * time.Second
	}
	if m := s.model.Load(); m != nil {
		b.whole("id_slot", -1, int64(m.slots-1)) // what was computed before is found from every slot
	}
	for _, name := range ignored {
		b.raw(name)
	}
	return c
}

// readStop reads stop strings.
func readStop(b *body, name string) []string {
	list, ok := b.texts(name, maxStops)
	if ok && b.err == nil {
		if _, err := stop.New(list); err != nil {
			b.fail(name, "%s", err)
		}
	}
	return list
}

// readLimit reads the most tokens of an answer, of which the smallest counts where there are several names for it. Where
// free is set, a number below 0 is no limit.
func (c *common) readLimit(b *body, free bool, names ...string) {
	least := int64(1)
	if free {
		least = math.MinInt64
	}
	for _, name := range names {
		n, ok := b.whole(name, least, math.MaxInt64)
		switch {
		case ok && n == 0:
			b.fail(name, "0 is not possible; use 1 or more, or -1 for no limit")
		case ok && n > 0 && (c.maxTokens == 0 || n < int64(c.maxTokens)):
			c.maxTokens = int(min(n, math.MaxInt32))
		}
	}
}

// params are the parameters of sampling a model over defaults.
func (c *common) params(m *served, p sample.Params) (sample.Params, error) {
	for _, f := range c.sampling {
		f(&p)
	}
	for _, b := range p.LogitBias {
		if n := m.Model().Vocab; int(b.ID) >= n {
			return p, invalid("logit_bias", "%d is no token id; they go from 0 to %d", b.ID, n-1)
		}
	}
	if c.seed != nil {
		p.Seed = *c.seed
	} else {
		p.Seed = rand.Uint64N(maxSeed)
	}
	return p, p.Validate()
}

// request is what the engine is asked for, without the prompt.
func (c *common) request(p sample.Params) engine.Request {
	return engine.Request{
		Sample: p, MaxTokens: c.maxTokens, IgnoreEOG: c.ignoreEOG, Stop: c.stop, NoCache: c.noCache,
		Logprobs: c.logprobs, TopLogprobs: c.top,
	}
}
