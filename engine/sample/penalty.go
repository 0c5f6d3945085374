package sample

// A history counts the last tokens of a sequence.
type history struct {
	window int     // -1 for all
	recent []int32 // a ring once it has window tokens
	next   int     // the oldest one in the ring
	counts map[int32]int32
}

func (h *history) add(id int32) {
	if h.counts == nil {
		h.counts = make(map[int32]int32)
	}
	h.counts[id]++
	switch {
	case h.window < 0:
	case len(h.recent) < h.window:
		h.recent = append(h.recent, id)
	default:
		old := h.recent[h.next]
		h.recent[h.next] = id
		h.next = (h.next + 1) % h.window
		if h.counts[old]--; h.counts[old] == 0 {
			delete(h.counts, old)
		}
	}
}

// A savedLogit is a logit as the model gave it.
type savedLogit struct {
	id    int32
	logit float32
}

// adjust applies biases and penalties to a row of logits. Tokens outside the row do not
// matter.
func (s *Sampler) adjust(logits []float32) {
	s.saved = s.saved[:0]
	for _, b := range s.p.LogitBias {
		if int(b.ID) < len(logits) {
			s.saved = append(s.saved, savedLogit{b.ID, logits[b.ID]})
			logits[b.ID] += b.Value
		}
	}
	if !s.penalize {
		return
	}
	for id, n := range s.history.counts {
		if id < 0 || int(id) >= len(logits) {
			continue
		}
		l := logits[id]
		s.saved = append(s.saved, savedLogit{id, l})
		if l > 0 {
			l /= s.p.RepetitionPenalty
		} else {
			l *= s.p.RepetitionPenalty
		}
		logits[id] = l - float32(n)*s.p.FrequencyPenalty - s.p.PresencePenalty
	}
}

// restore undoes adjust, the last change first.
func (s *Sampler) restore(logits []float32) {
	for i := len(s.saved) - 1; i >= 0; i-- {
		logits[s.saved[i].id] = s.saved[i].logit
	}
}
