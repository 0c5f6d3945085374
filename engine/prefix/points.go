package prefix

import "slices"

// Markers are the token ids that structure a chat prompt.
type Markers struct {
	Start     int32   // <|im_start|>
	End       int32   // <|im_end|>
	User      []int32 // what follows Start in a user's turn: "user", "\n"
	Assistant []int32 // what follows Start in an answer: "assistant", "\n"
}

// A Policy says where to take snapshots of a prompt.
//
// Prompts of a chat part where the template renders an earlier turn in another way than it was computed. For the
// templates of the Qwen family that is right after the header of the answer (with reasoning dropped from the history)
// or not at all; for the latter, the end of the generated answer is one more place, which is not in the prompt and
// left to the caller. A prompt whose last message is edited parts at the beginning of that message, and chats with one
// system message part at the beginning of their first. Everything else,
// such as documents with different questions, parts anywhere; an interval bounds what has to be processed again.
type Policy struct {
	Markers Markers
	Turns   int // how many of the last turns get snapshots at their borders; at least 1
	Every   int // tokens between further snapshots, 0 for none; a multiple of the page size shares most
	// Gap merges snapshots that are less than this apart; borders of turns are kept before multiples of Every. The
	// beginnings of messages are kept however near the headers of the answers to short ones are.
	Gap int
}

// Points are the positions at which to snapshot a prompt, in ascending order: the number of tokens that are before
// each. Each is at least 1 and leaves at least one token to process.
//
// They are the ends of the answers' headers, the ends of the user's turns, the beginnings of the first turn of the user
// and of the last turn that is not an answer, and the multiples of Every. Headers and ends only in the last Turns
// turns, which are counted by the answers' headers.
func (p *Policy) Points(tokens []int32) []int {
	var headers, ends []int
	firstUser, lastTurn, inUser := -1, 0, false
	for i, t := range tokens {
		switch {
		case t == p.Markers.Start:
			rest := tokens[i+1:]
			if inUser = hasPrefix(rest, p.Markers.User); inUser && firstUser < 0 {
				firstUser = i
			}
			if hasPrefix(rest, p.Markers.Assistant) {
				headers = append(headers, i+1+len(p.Markers.Assistant))
			} else {
				lastTurn = i
			}
		case t == p.Markers.End && inUser:
			ends = append(ends, i+1)
			inUser = false
		}
	}
	turns := max(1, p.Turns)
	headers = headers[max(0, len(headers)-turns):]
	ends = ends[max(0, len(ends)-turns):]
	var points []int
	// The most useful come first: what comes later must keep its distance from them.
	add := func(pos, gap int) {
		near := func(q int) bool { return pos == q || max(pos-q, q-pos) < gap }
		if pos > 0 && pos < len(tokens) && !slices.ContainsFunc(points, near) {
			points = append(points, pos)
		}
	}
	for _, pos := range slices.Backward(headers) {
		add(pos, p.Gap)
	}
	add(lastTurn, 0)
	add(firstUser, 0)
	for _, pos := range slices.Backward(ends) {
		add(pos, p.Gap)
	}
	if p.Every > 0 {
		borders := slices.Clone(points)
		for pos := p.Every; pos < len(tokens); pos += p.Every {
			near := func(q int) bool { return pos == q || max(pos-q, q-pos) < p.Gap }
			if !slices.ContainsFunc(borders, near) {
				points = append(points, pos)
			}
		}
	}
	slices.Sort(points)
	return points
}

func hasPrefix(tokens, prefix []int32) bool {
	return len(prefix) > 0 && len(tokens) >= len(prefix) && slices.Equal(tokens[:len(prefix)], prefix)
}
