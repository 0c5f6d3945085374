package engine_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/internal/oracle"
)

// The cases are situations in which other engines failed their users; testdata/cases has their inputs. They run on the model
// t35. With CALDERA_LONG=1 they run at full size.

// A body is a chat request.
type body struct {
	MaxTokens int       `json:"max_tokens"`
	Messages  []message `json:"messages"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// Reasoning of earlier answers is what the template drops.
	Reasoning string `json:"reasoning_content"`
}

// readBodies reads a list of bodies, or one a line.
func readBodies(t testing.TB, name string) []body {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(oracle.Root(), "testdata", "cases", name))
	if err != nil {
		t.Fatal(err)
	}
	var list []body
	if err := json.Unmarshal(b, &list); err == nil {
		return list
	}
	d := json.NewDecoder(bytes.NewReader(b))
	for d.More() {
		var x body
		if err := d.Decode(&x); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, x)
	}
	return list
}

// chat renders messages like the templates of the family do that drop reasoning: turns, and the header of the answer.
func chat(ms []message, thinking bool) string {
	var s strings.Builder
	for _, m := range ms {
		fmt.Fprintf(&s, "<|im_start|>%s\n%s<|im_end|>\n", m.Role, m.Content)
	}
	s.WriteString("<|im_start|>assistant\n")
	if thinking {
		s.WriteString("<think>\n")
	}
	return s.String()
}

// request is the body's request, greedy and of its full length.
func (b body) request(tok *tokenizer.Tokenizer, thinking bool) engine.Request {
	return greedy(tok.Encode(chat(b.Messages, thinking), true), b.MaxTokens)
}

// cold is a request that neither uses nor fills the cache.
func cold(r engine.Request) engine.Request {
	r.NoCache = true
	return r
}

// shared is how many tokens two prompts have in common.
func shared(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// mustEqual compares an answer with the one without reuse.
func mustEqual(t testing.TB, what string, got, want answer) {
	t.Helper()
	if !slices.Equal(got.ids, want.ids) {
		t.Errorf("%s: %v, cold %v", what, got.ids, want.ids)
	}
}

// C01: of two prompts that part near their end the second costs what follows a snapshot before that.
func TestCaseC01(t *testing.T) {
	serial(t)
	bodies := readBodies(t, "c01_prefix_pair.jsonl")
	for _, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && !long() {
			continue
		}
		for _, every := range []int{0, 200, -1} {
			if every != 0 && !long() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", r.name, every), func(t *testing.T) {
				model := chatty // a quarter of t35
				if long() {
					model = t35
				}
				cfg := model.config(t)
				cfg.Context, cfg.CacheRAM, cfg.CacheEvery = 8192, 64<<20, every
				e := r.open(t, cfg)
				interval := every
				if every == 0 {
					interval = 512
				}
				a, b := bodies[0].request(e.Tokenizer(), false), bodies[1].request(e.Tokenizer(), false)
				if len(a.Prompt) < 1800 { // as counted by another tokenizer
					t.Fatalf("the prompt has %d tokens", len(a.Prompt))
				}
				suffix := len(a.Prompt) - shared(a.Prompt, b.Prompt)
				wantA, wantB := ask(t, e, cold(a)), ask(t, e, cold(b))
				if slices.Equal(wantA.ids, wantB.ids) {
					t.Error("the prompts have the same answer, which shows nothing")
				}
				mustEqual(t, "request 1", ask(t, e, a), wantA)
				second, third := ask(t, e, b), ask(t, e, a)
				mustEqual(t, "request 2", second, wantB)
				mustEqual(t, "request 3", third, wantA)
				t.Logf("%d tokens, %d after the shared ones; processed %d and %d; %s; %s", len(a.Prompt), suffix, second.Processed, third.Processed, second.Reuse, third.Reuse)
				if every >= 0 && second.Processed > suffix+interval {
					t.Errorf("request 2 processed %d tokens, %d after the shared ones: %s", second.Processed, suffix, second.Reuse)
				}
				if third.Processed > 1 {
					t.Errorf("request 3 processed %d tokens of a prompt seen before: %s", third.Processed, third.Reuse)
				}
				if second.Reuse == "" || third.Reuse == "" || second.Processed+second.Reused != len(b.Prompt) {
					t.Errorf("%+v does not say what was reused", second.Result)
				}
			})
		}
	}
}

// C02: where the template drops the reasoning of earlier turns, a turn costs the last answer and the new message.
func TestCaseC02(t *testing.T) {
	serial(t)
	bodies := readBodies(t, "c02_thinking_turns.json")
	for _, r := range []rig{reference(), oneDevice(t)} {
		t.Run(r.name, func(t *testing.T) {
			cfg := t35.config(t)
			cfg.Context, cfg.CacheRAM = 4096, 64<<20
			e := r.open(t, cfg)
			header := e.Tokenizer().Encode("<|im_start|>assistant\n", true)
			boundary := 0 // of the last request, after the header of its answer
			for i, b := range bodies {
				x := b.request(e.Tokenizer(), true)
				// The model's own answer, with its reasoning, is not what comes back in the next turn.
				want := ask(t, e, cold(x))
				got := ask(t, e, x)
				mustEqual(t, fmt.Sprintf("turn %d", i+1), got, want)
				t.Logf("turn %d: %d tokens, %s", i+1, len(x.Prompt), got.Reuse)
				if got.Processed > len(x.Prompt)-boundary || i > 0 && got.Reused == 0 {
					t.Errorf("turn %d: processed %d tokens, %d of them after the last boundary: %s",
						i+1, got.Processed, len(x.Prompt)-boundary, got.Reuse)
				}
				boundary = len(x.Prompt) - 2
				if !slices.Equal(x.Prompt[boundary-len(header):boundary], header) {
					t.Fatalf("turn %d does not end with the header and a mark of thinking", i+1)
				}
			}
		})
	}
}

// C10: requests that run at the same time, and come and go at different steps, are answered as one after another.
func TestCaseC10(t *testing.T) {
	bodies := readBodies(t, "c10_parallel16.jsonl")
	slots, rounds := []int{1, 2, 3, 4, 5, 8, 16}, scaled(20, 1, 1)
	for i, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && raceEnabled {
			continue
		}
		if !long() {
			slots = []int{3 + 13*i}
		}
		cfg := t35.config(t)
		cfg.Context = 1024
		bodies := bodies
		if !long() {
			bodies = bodies[:scaled(16, 8-3*i, 4)]
		}
		var rs []engine.Request
		var want []answer
		for _, n := range append([]int{0}, slots...) {
			t.Run(fmt.Sprintf("%s/%d", r.name, n), func(t *testing.T) {
				cfg.Slots = max(1, n)
				e := r.open(t, cfg)
				if n == 0 {
					for _, b := range bodies {
						x := b.request(e.Tokenizer(), false)
						rs, want = append(rs, x), append(want, ask(t, e, x))
					}
					return
				}
				for round := range rounds {
					// Some come together, some later.
					for i, got := range askAll(t, e, rs, 16-round%8) {
						mustEqual(t, fmt.Sprintf("round %d, request %d", round, i), got, want[i])
					}
				}
				mustBeIdle(t, e)
			})
		}
	}
}
