package server

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/sample"
)

// What llama-server offers beside the OpenAI API, as far as its users' tools ask for it.

// health is GET /health.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if _, err := s.ready(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	return nil
}

// modelObject is a model of /v1/models.
type modelObject struct {
	ID      string     `json:"id"`
	Object  string     `json:"object"`
	Created int64      `json:"created"`
	Owner   string     `json:"owned_by"`
	Meta    *modelMeta `json:"meta,omitempty"`
}

type modelMeta struct {
	Vocab   int   `json:"n_vocab"`
	Context int   `json:"n_ctx"`
	Train   int   `json:"n_ctx_train"`
	Embed   int   `json:"n_embd"`
	Params  int64 `json:"n_params"`
	Size    int64 `json:"size"`
}

func (s *Server) modelObjects() []modelObject {
	var list []modelObject
	m := s.model.Load()
	for _, name := range s.cfg.Models {
		o := modelObject{ID: name, Object: "model", Created: s.began.Unix(), Owner: "caldera"}
		if m != nil {
			c := m.Model()
			a := m.about
			o.Meta = &modelMeta{Vocab: c.Vocab, Context: m.Context(), Train: c.Context, Embed: c.Embed, Params: a.Params, Size: a.Bytes}
		}
		list = append(list, o)
	}
	return list
}

// models is GET /v1/models.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": s.modelObjects()})
	return nil
}

// oneModel is GET /v1/models/NAME.
func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, err := s.name(name); err != nil || name == "" {
		if err == nil {
			err = &apiError{Status: http.StatusNotFound, Type: typeNotFound, Message: "the model has no name"}
		}
		return err
	}
	o := s.modelObjects()[0]
	o.ID = name
	writeJSON(w, http.StatusOK, o)
	return nil
}

// A piece is a token with its text, or its bytes where they are no text.
type piece struct {
	ID    int32 `json:"id"`
	Piece any   `json:"piece"`
}

// tokenize is POST /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	text, ok := b.text("content")
	if !ok {
		if text, ok = b.text("prompt"); !ok && b.Err() == nil { // vLLM's name
			return invalid("content", "is missing; send the text to be tokenized")
		}
	}
	special, add, pieces := b.truth("parse_special", true), b.truth("add_special", false), b.truth("with_pieces", false)
	if err := b.Err(); err != nil {
		return err
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	ids, err := m.tok.EncodeLimit(r.Context(), text, special, -1)
	if err != nil {
		return err
	}
	if add && m.tok.AddBOS() {
		ids = append([]int32{m.tok.BOS()}, ids...)
	}
	if ids == nil {
		ids = []int32{}
	}
	x := map[string]any{"tokens": ids, "count": len(ids), "max_model_len": m.Context()}
	if pieces {
		list := []piece{}
		for _, id := range ids {
			list = append(list, piece{id, m.piece(id)})
		}
		x["tokens"] = list
	}
	writeJSON(w, http.StatusOK, x)
	return nil
}

// piece is a token's text, or the list of its bytes.
func (m *served) piece(id int32) any {
	p := m.tok.Piece(id)
	if s := m.tok.Decode([]int32{id}); s == string(p) {
		return s
	}
	list := []int{}
	for _, b := range p {
		list = append(list, int(b))
	}
	return list
}

// detokenize is POST /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	v := b.raw("tokens")
	if v == nil {
		return invalid("tokens", "is missing; send a list of token ids")
	}
	var list []*int32
	if json.Unmarshal(v, &list) != nil {
		return invalid("tokens", "must be a list of token ids")
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	ids, err := m.tokens("tokens", list)
	if err != nil {
		return err
	}
	text := m.tok.Decode(ids)
	writeJSON(w, http.StatusOK, map[string]any{"content": text, "prompt": text}) // the second is vLLM's name
	return nil
}

// openPrompt renders the conversation of a request that wants the prompt alone.
func (s *Server) openPrompt(r *http.Request) (text string, ids []int32, err error) {
	b, err := readBody(r)
	if err != nil {
		return "", nil, err
	}
	q, err := s.readChat(b)
	if err != nil {
		return "", nil, err
	}
	m, err := s.ready()
	if err != nil {
		return "", nil, err
	}
	p, ids, err := s.render(r, m, q)
	if err != nil {
		return "", nil, err
	}
	return p.Text(), ids, nil
}

// applyTemplate is POST /apply-template.
func (s *Server) applyTemplate(w http.ResponseWriter, r *http.Request) error {
	text, _, err := s.openPrompt(r)
	if err == nil {
		writeJSON(w, http.StatusOK, map[string]any{"prompt": text})
	}
	return err
}

// chatTokens is POST /v1/chat/completions/input_tokens.
func (s *Server) chatTokens(w http.ResponseWriter, r *http.Request) error {
	_, ids, err := s.openPrompt(r)
	if err == nil {
		writeJSON(w, http.StatusOK, map[string]any{"object": "response.input_tokens", "input_tokens": len(ids)})
	}
	return err
}

// samplingParams are parameters by llama-server's names.
func samplingParams(p sample.Params) map[string]any {
	return map[string]any{
		"temperature": p.Temperature, "top_k": p.TopK, "top_p": p.TopP, "min_p": p.MinP, "repeat_penalty": p.RepetitionPenalty,
		"presence_penalty": p.PresencePenalty, "frequency_penalty": p.FrequencyPenalty, "repeat_last_n": p.RepeatLastN,
	}
}

// memoryUse is a kind of memory, for people.
type memoryUse struct {
	Kind  string `json:"kind"`
	Bytes int64  `json:"used_bytes"`
}

// props is GET /props.
func (s *Server) props(w http.ResponseWriter, _ *http.Request) error {
	m, err := s.ready()
	if err != nil {
		return err
	}
	thinks, unasked, source := false, false, ""
	if t, err := m.Template(); err == nil {
		thinks, unasked, source = t.Thinks(), t.ThinksUnasked(), t.Source()
	}
	params := samplingParams(s.cfg.Sampling(unasked && !s.cfg.NoThink))
	params["n_predict"] = -1
	if s.cfg.MaxTokens > 0 {
		params["n_predict"] = s.cfg.MaxTokens
	}
	about := m.about
	plan := m.Memory()
	device := map[string]any{"name": m.Device(), "backend": plan.Backend, "software": m.Software(), "memory": s.memory(m), "pools": plan.Pools}
	if d := m.DeviceInfo(); d.Name != "" {
		device["name"], device["driver"], device["api_version"] = d.Name, strings.TrimSpace(d.DriverName+" "+d.DriverInfo), d.API.String()
	}
	s.mu.Lock()
	faults := append([]fault{}, s.faults...)
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{
		"default_generation_settings": map[string]any{"n_ctx": m.Context(), "params": params},
		"total_slots":                 m.slots,
		"model_alias":                 s.cfg.Models[0],
		"model_path":                  filepath.Base(m.File().Name()),
		"chat_template":               source,
		"build_info":                  "caldera " + s.cfg.Version,
		"is_sleeping":                 false,
		"modalities":                  map[string]bool{"vision": false, "audio": false},
		"sampling":                    map[string]any{"thinking": samplingParams(s.cfg.Sampling(true)), "non_thinking": samplingParams(s.cfg.Sampling(false))},
		"recent_errors":               faults,
		"model": map[string]any{
			"name": about.Name, "arch": about.Arch, "quantization": about.FileType, "params": about.Params, "size_bytes": about.Bytes, "thinks": thinks, "layers": m.Model().Layers,
		},
		"device": device,
	})
	return nil
}

// memory is what the engine uses of memory, by what for.
func (s *Server) memory(m *served) []memoryUse {
	p := m.Memory()
	list := []memoryUse{
		{"weights", p.Weights.Total}, {"kv_cache", p.KV.Bytes}, {"recurrent_state", p.State.Bytes}, {"scratch", p.Scratch + p.Step + p.Results},
	}
	if c := m.Cache(); c != nil {
		list = append(list, memoryUse{"prefix_cache", c.Stats().RAMBytes})
	}
	return list
}

type nextToken struct {
	Decoded int  `json:"n_decoded"`
	Remain  int  `json:"n_remain"`
	Has     bool `json:"has_next_token"`
}

// slot is one of /slots. It says nothing of the prompt but its length.
type slot struct {
	ID         int            `json:"id"`
	Task       int64          `json:"id_task"`
	Context    int            `json:"n_ctx"`
	Processing bool           `json:"is_processing"`
	State      string         `json:"state"`
	Prompt     int            `json:"n_prompt_tokens"`
	Processed  int            `json:"n_prompt_tokens_processed"`
	Cached     int            `json:"n_prompt_tokens_cache"`
	Params     map[string]any `json:"params"`
	Next       []nextToken    `json:"next_token"`
}

// slots is GET /slots.
func (s *Server) slots(w http.ResponseWriter, r *http.Request) error {
	m, err := s.ready()
	if err != nil {
		return err
	}
	st := m.Stats()
	if r.URL.Query().Get("fail_on_no_slot") == "1" && len(st.Running) >= st.Slots {
		return unavailable("no slot is free")
	}
	list := make([]slot, st.Slots)
	for i := range list {
		list[i] = slot{ID: i, Task: -1, Context: m.Context(), State: "idle", Params: map[string]any{}, Next: []nextToken{{Remain: -1}}}
	}
	for _, x := range st.Running {
		if x.Slot >= len(list) {
			continue
		}
		l := &list[x.Slot]
		l.Processing, l.Prompt, l.Processed, l.Cached = true, x.Prompt, x.Done-x.Cached, x.Cached
		l.State = "decode"
		if x.Done < x.Prompt {
			l.State = "prefill"
		}
		l.Next = []nextToken{{Decoded: x.Generated, Remain: -1, Has: true}}
		if x.MaxTokens > 0 {
			l.Next[0].Remain = x.MaxTokens - x.Generated
		}
		if t, ok := x.Tag.(*task); ok {
			l.Task, l.Params = t.id, samplingParams(t.request.Sample)
			l.Params["stream"], l.Params["n_predict"] = t.stream, t.request.MaxTokens
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// llamaAnswer is an answer of POST /completion, or a part of one.
type llamaAnswer struct {
	Index     int             `json:"index"`
	Content   string          `json:"content"`
	Tokens    []int32         `json:"tokens"`
	Slot      int             `json:"id_slot"`
	Stop      bool            `json:"stop"`
	Model     string          `json:"model,omitempty"`
	Predicted int             `json:"tokens_predicted"`
	Evaluated int             `json:"tokens_evaluated"`
	Cached    int             `json:"tokens_cached"`
	Truncated bool            `json:"truncated"`
	StopType  string          `json:"stop_type,omitempty"`
	StopWord  string          `json:"stopping_word"`
	Timings   *timings        `json:"timings,omitempty"`
	Progress  *promptProgress `json:"prompt_progress,omitempty"`
	Probs     []tokenLogprob  `json:"completion_probabilities,omitempty"`
}

// llamaCompletion is POST /completion.
func (s *Server) llamaCompletion(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	q := &completionRequest{common: s.readCommon(b)}
	q.readLimit(b, true, "n_predict", "max_tokens")
	if n, ok := b.whole("n_probs", 0, 20); ok && n > 0 {
		q.logprobs, q.top = true, int(n)
	}
	q.format = readFormat(b)
	if err := b.Err(); err != nil {
		return err
	}
	if q.model, err = s.name(q.model); err != nil {
		return err
	}
	v := b.raw("prompt")
	if v == nil {
		return invalid("prompt", "is missing")
	}
	s.tellUnknown(r, b)
	m, err := s.ready()
	if err != nil {
		return err
	}
	if err := q.readPrompts(r.Context(), m, "prompt", v); err != nil {
		return err
	}
	if len(q.prompts) > 1 || q.n > 1 {
		return invalid("prompt", "one prompt with one answer is possible here; use /v1/completions for more")
	}
	t, err := s.plainTask(r, m, &q.common, q.prompts, q.format)
	if err != nil {
		return err
	}
	var probs []tokenLogprob
	ids, count := []int32{}, 0
	e := s.events(w)
	answers, err := s.run(r, m, t, func(u update) error {
		if u.token != nil {
			count++
			ids = append(ids, u.token.ID)
			if q.logprobs {
				probs = append(probs, m.logprob(u.token))
			}
		}
		switch {
		case !q.stream || u.answer != nil:
			return nil
		case u.ping:
			return e.ping()
		case u.progress != nil:
			return e.data("", llamaAnswer{Tokens: []int32{}, Progress: progressOf(u.progress)})
		case len(u.events) == 0:
			return nil
		}
		x := llamaAnswer{Tokens: ids, Probs: probs, Predicted: count, Evaluated: len(q.prompts[0])}
		for _, ev := range u.events {
			x.Content += ev.Text
		}
		ids, probs = []int32{}, nil
		return e.data("", x)
	})
	if err != nil {
		if q.stream {
			return e.end(s, r, err, func(form any) error { return e.data("", form) })
		}
		return err
	}
	x := llamaEnd(&answers[0])
	x.Tokens, x.Model, x.Probs = ids, q.model, probs
	if q.stream {
		x.Content = "" // it has been sent
		return e.end(s, r, e.data("", x), func(any) error { return nil })
	}
	writeJSON(w, http.StatusOK, x)
	return nil
}

// llamaEnd is the end of an answer.
func llamaEnd(a *answer) llamaAnswer {
	t := timingsOf(&a.Result)
	x := llamaAnswer{
		Stop: true, Predicted: a.Tokens, Evaluated: a.PromptTokens, Cached: a.Reused, StopType: "limit", StopWord: a.Stop, Timings: &t,
		Truncated: a.Reason == engine.ReasonContext,
	}
	if a.Content != nil {
		x.Content = *a.Content
	}
	switch {
	case a.Stop != "":
		x.StopType = "word"
	case a.Reason == engine.ReasonStop:
		x.StopType = "eos"
	}
	return x
}
