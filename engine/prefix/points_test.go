package prefix

import (
	"slices"
	"testing"
)

var chat = Markers{Start: 1, End: 2, User: []int32{10, 3}, Assistant: []int32{11, 3}}

// turn is a turn of a chat with n tokens of text.
func turn(role int32, n int) []int32 {
	t := []int32{chat.Start, role, 3}
	for range n {
		t = append(t, 100)
	}
	return append(t, chat.End, 3)
}

func TestPoints(t *testing.T) {
	const system, user, assistant = 9, 10, 11
	header := []int32{chat.Start, assistant, 3, 50, 3}
	one := slices.Concat(turn(system, 20), turn(user, 30), header)
	three := slices.Concat(turn(user, 10), turn(assistant, 10), turn(user, 10), turn(assistant, 10), turn(user, 10), header)
	for name, q := range map[string]struct {
		p      Policy
		tokens []int32
		want   []int
	}{
		"a question":            {Policy{Markers: chat}, one, []int{25, 59, 63}},
		"merged":                {Policy{Markers: chat, Gap: 8}, one, []int{25, 63}},
		"a short question":      {Policy{Markers: chat, Gap: 8}, slices.Concat(turn(system, 20), turn(user, 1), header), []int{25, 34}},
		"a system message":      {Policy{Markers: chat, Turns: 1, Gap: 8}, slices.Concat(turn(system, 20), three), []int{25, 85, 103}},
		"the last turn":         {Policy{Markers: chat, Turns: 1, Gap: 8}, three, []int{60, 78}},
		"the last two turns":    {Policy{Markers: chat, Turns: 2, Gap: 8}, three, []int{48, 60, 78}},
		"all turns":             {Policy{Markers: chat, Turns: 9}, three, []int{14, 18, 44, 48, 60, 74, 78}},
		"an interval":           {Policy{Markers: chat, Every: 16, Gap: 8}, one, []int{16, 25, 48, 63}},
		"plain text":            {Policy{Markers: chat, Every: 16, Gap: 8}, upTo(100, 50), []int{16, 32, 48}},
		"a multiple at the end": {Policy{Markers: chat, Every: 16}, upTo(100, 48), []int{16, 32}},
		"no policy":             {Policy{}, upTo(100, 50), nil},
		"no markers":            {Policy{Every: 20}, one, []int{20, 40, 60}},
		"nothing":               {Policy{Markers: chat, Every: 16}, nil, nil},
		"one token":             {Policy{Markers: chat, Every: 1}, []int32{1}, nil},
		"a header at the end":   {Policy{Markers: chat}, slices.Concat(turn(user, 4), header[:3]), []int{8}},
		"a header cut short":    {Policy{Markers: chat}, slices.Concat(turn(user, 4), header[:2]), []int{8, 9}},
		"a continued answer":    {Policy{Markers: chat, Gap: 8}, slices.Concat(turn(user, 10), header, upTo(100, 50)), []int{18}},
	} {
		if got := q.p.Points(q.tokens); !slices.Equal(got, q.want) {
			t.Errorf("%s: %v, want %v", name, got, q.want)
		}
	}
}
