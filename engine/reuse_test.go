package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/calderaml/caldera/engine"
)

// What a prompt of thousands of tokens costs when it comes again: one token, and with its last message edited that
// message and at most the distance between snapshots; so it is after a restart, and with less of the prompt the same.
func TestReuseCounts(t *testing.T) {
	serial(t)
	size := scaled(4096, 2048, 2048)
	for _, r := range []rig{reference(), oneDevice(t)} {
		if r.backend == engine.Vulkan && !long() {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			cfg := chatty.config(t)
			cfg.Context, cfg.CacheRAM = 8192, 64<<20
			cfg.CacheDir, cfg.CacheDisk = t.TempDir(), 64<<20
			cfg.Warn = func(err error) { t.Errorf("warning: %v", err) }
			e, err := engine.Open(r.config(cfg))
			if err != nil {
				t.Fatal(err)
			}
			tok := e.Tokenizer()
			var text strings.Builder
			prompt := func(last string) engine.Request {
				return body{8, []message{{Role: "system", Content: text.String()}, {Role: "user", Content: "What is this?"},
					{Role: "assistant", Content: "A text about words."}, {Role: "user", Content: last}}}.request(tok, false)
			}
			for i := 0; len(prompt("").Prompt) < size; i++ {
				fmt.Fprintf(&text, "The word %d of the text is %d. ", i, i*i%1009)
			}
			x, edited := prompt("How many words has it? Count them."), prompt("How many words has it? Name them.")
			document := x.Prompt[:len(x.Prompt)*3/4] // something else follows the same text
			other := greedy(join(document, tok.Encode(" and something else follows here", false)), 8)

			want := []answer{ask(t, e, x), ask(t, e, cold(edited)), ask(t, e, cold(other))}
			if want[0].Processed != len(x.Prompt) {
				t.Fatalf("the first request: %+v", want[0].Result)
			}
			for _, when := range []string{"again", "after a restart", "after another"} {
				if when != "again" {
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
					if e, err = engine.Open(r.config(cfg)); err != nil {
						t.Fatal(err)
					}
				}
				suffix := len(edited.Prompt) - shared(x.Prompt, edited.Prompt)
				for i, c := range []struct {
					name string
					r    engine.Request
					most int
				}{
					{"the same", x, 1},
					{"the last message edited", edited, suffix + 512},
					{"another end", other, len(other.Prompt) - len(document) + 512},
				} {
					got := ask(t, e, c.r)
					mustEqual(t, c.name+" "+when, got, want[i])
					t.Logf("%s %s: processed %d: %s", c.name, when, got.Processed, got.Reuse)
					if got.Processed > c.most || got.Processed < 1 {
						t.Errorf("%s %s: processed %d of %d tokens, at most %d are due: %s", c.name, when, got.Processed, got.PromptTokens, c.most, got.Reuse)
					}
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
