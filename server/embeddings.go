package server

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
)

// embeddings is POST /v1/embeddings: what the model's head would read after the last token of a text, with length 1. The
// models are not trained for it, so it is offered only where it was asked for.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) error {
	if !s.cfg.Embeddings {
		return notSupported(http.StatusNotImplemented, "", "embeddings are not offered by this server; start it with --embeddings")
	}
	b, err := readBody(r)
	if err != nil {
		return err
	}
	name, _ := b.text("model")
	kind, _ := b.text("encoding_format")
	if kind != "" && kind != "float" && kind != "base64" {
		b.fail("encoding_format", "%.40q is not possible; use float or base64", kind)
	}
	b.raw("user")
	width, _ := b.whole("dimensions", 1, math.MaxInt32)
	v := b.raw("input")
	if v == nil && b.Err() == nil {
		b.fail("input", "is missing")
	}
	if err := b.Err(); err != nil {
		return err
	}
	if name, err = s.name(name); err != nil {
		return err
	}
	m, err := s.ready()
	if err != nil {
		return err
	}
	if n := m.Model().Embed; width != 0 && int(width) != n {
		return invalid("dimensions", "the model has %d, and no other number is possible", n)
	}
	q := &completionRequest{}
	if err := q.readPrompts(r.Context(), m, "input", v); err != nil {
		return err
	}
	type vector struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	list, tokens := []vector{}, 0
	s.busy.Add(1)
	defer s.busy.Add(-1)
	x, err := m.session(r.Context())
	if err != nil {
		return s.used(m, err)
	}
	defer x.Close()
	for i, ids := range q.prompts {
		x.Reset()
		row, err := x.Hidden(r.Context(), ids)
		if err := s.used(m, err); err != nil {
			return err
		}
		normalize(row)
		var e any = row
		if kind == "base64" {
			data := make([]byte, 0, 4*len(row))
			for _, f := range row {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(f))
			}
			e = base64.StdEncoding.EncodeToString(data)
		}
		list, tokens = append(list, vector{"embedding", i, e}), tokens+len(ids)
	}
	infoOf(r).prompt = tokens
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list", "data": list, "model": name, "usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	})
	return nil
}

// normalize gives a vector length 1, unless it is all zero.
func normalize(v []float32) {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(sum))
	}
}
