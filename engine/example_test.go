package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/engine/sample"
)

// openDemo opens the built-in model, without a device so that it runs anywhere.
func openDemo(slots int) (*engine.Engine, error) {
	return engine.Open(engine.Config{
		Data: demo.Model(), Name: demo.Name, // or Path: "model.gguf"
		Backend:  engine.Reference, // leave it out to use the best device
		Context:  1024,
		Slots:    slots,    // requests that run at a time
		CacheRAM: 64 << 20, // for the state of prompts that may come again
	})
}

// question is a request for the answer to a question. It takes the best token each time.
func question(e *engine.Engine, text string) engine.Request {
	p := sample.Neutral()
	p.Temperature = 0
	return engine.Request{Prompt: e.Tokenizer().Encode(demo.Chat(text), true), MaxTokens: 40, Sample: p}
}

// A prompt is made of tokens, and the answer comes token by token. A loop over it ends with the answer; an error, if
// there is one, comes last.
func ExampleEngine_Generate() {
	e, err := openDemo(1)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	stream, err := e.Generate(context.Background(), question(e, "What is 12+7?"))
	if err != nil {
		log.Fatal(err) // refused: the prompt is too long, say, or too many wait already (ErrBusy)
	}
	for token, err := range stream.Tokens() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(token.Text)
	}
	fmt.Println()
	result, err := stream.Result()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("it ended with:", result.Reason)
	// Output:
	// 12 + 7 = 19
	// it ended with: stop
}

// Requests run side by side; each is answered as if it ran alone.
func ExampleEngine_Generate_parallel() {
	e, err := openDemo(3)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	questions := []string{"What is 12+7?", "Capital of France?", "Count from 3 to 9."}
	answers := make([]string, len(questions))
	var all sync.WaitGroup
	for i, q := range questions {
		all.Go(func() {
			stream, err := e.Generate(context.Background(), question(e, q))
			if err != nil {
				log.Fatal(err)
			}
			for token, err := range stream.Tokens() {
				if err != nil {
					log.Fatal(err)
				}
				answers[i] += token.Text
			}
		})
	}
	all.Wait()
	for _, a := range answers {
		fmt.Println(a)
	}
	// Output:
	// 12 + 7 = 19
	// The capital of France is Paris.
	// 3, 4, 5, 6, 7, 8, 9
}

// A request ends at the next step when its context does, by cancellation or a deadline, wherever it is: waiting, in the
// middle of its prompt, or answering. Leaving the loop over its tokens ends it too.
func ExampleEngine_Generate_cancel() {
	e, err := openDemo(1)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request := question(e, "Tell me a story about a fox.")
	request.MaxTokens, request.IgnoreEOG = 0, true // on and on
	stream, err := e.Generate(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	n := 0
	for _, err := range stream.Tokens() {
		if errors.Is(err, context.Canceled) {
			fmt.Println("cancelled")
			break
		}
		if n++; n == 3 {
			cancel()
		}
	}
	result, _ := stream.Result()
	fmt.Println("it ended with:", result.Reason)
	// Output:
	// cancelled
	// it ended with: cancelled
}

// A session is fed by hand. A fork goes on from the same state by itself.
func ExampleSession_Fork() {
	e, err := openDemo(2)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	ctx := context.Background()

	session, err := e.NewSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	if err := session.Prefill(ctx, e.Tokenizer().Encode("<|im_start|>user\nWhat is 12+7?", true)); err != nil {
		log.Fatal(err)
	}
	fork, err := session.Fork()
	if err != nil {
		log.Fatal(err)
	}
	defer fork.Close()
	rest := e.Tokenizer().Encode("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", true)
	for _, s := range []*engine.Session{session, fork} {
		best, err := s.Top(ctx, rest, 1, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d tokens, next %q\n", s.Len(), e.Tokenizer().Decode([]int32{best[0].ID}))
	}
	// Output:
	// 20 tokens, next "1"
	// 20 tokens, next "1"
}
