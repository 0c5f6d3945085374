package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/engine/sample"
	"github.com/calderaml/caldera/vk"
)

// The plan of decoding is there when the prompt's last step has run, and if it could not be made then, it is made when it is
// needed, or its error told.
func TestNextPlanIsMadeAhead(t *testing.T) {
	eachBackend(t, func(t *testing.T, cfg Config) {
		cfg.Data, cfg.Name, cfg.Context = demo.Model(), demo.Name, 64
		e := openFor(t, cfg)
		p := sample.Neutral()
		p.Temperature = 0
		ask := func(n int) error {
			st, err := e.Generate(context.Background(), Request{Prompt: []int32{1, 2, 3, 4, 5}, MaxTokens: n, Sample: p, IgnoreEOG: true, NoCache: true})
			if err != nil {
				t.Fatal(err)
			}
			_, err = st.Result()
			return err
		}
		decode := planKey{rows: 1, outs: e.outs(1), opt: model.GraphOptions{TopK: 1}}
		made := func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.plans[decode] != nil
		}
		if e.die != nil {
			// The prompt's plan comes first: it is made by a step that leaves the other for later.
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Top(context.Background(), []int32{1, 2, 3, 4, 5}, 1, nil); err != nil {
				t.Fatal(err)
			}
			s.Close()
			e.die.Device.InjectFault("vkAllocateCommandBuffers", 1, vk.ErrorOutOfHostMemory)
			if err := ask(1); err != nil {
				t.Errorf("a request that needs no second plan: %v", err)
			}
			if made() {
				t.Error("the plan was made in spite of the fault")
			}
			e.die.Device.InjectFault("vkAllocateCommandBuffers", 2, vk.ErrorOutOfHostMemory)
			e.die.Device.InjectFault("vkAllocateCommandBuffers", 1, vk.ErrorOutOfHostMemory)
			if err := ask(2); !errors.Is(err, vk.ErrOutOfHostMemory) {
				t.Errorf("a request whose second plan cannot be made twice: %v", err)
			}
		}
		if err := ask(1); err != nil {
			t.Fatal(err)
		}
		if !made() {
			t.Error("no plan of decoding after the prompt")
		}
		if err := ask(3); err != nil {
			t.Error(err)
		}
	})
}
