package batch_test

import (
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine/batch"
)

func Example() {
	former := batch.Former{MaxRows: 128, MaxSeqs: 16, MaxLatency: 50 * time.Millisecond}
	// Steps measured so far: 10 ms and 0.2 ms for each row.
	for rows := 1; rows <= 128; rows *= 2 {
		former.Done(rows, 10*time.Millisecond+time.Duration(rows)*200*time.Microsecond)
	}
	jobs := []batch.Job{
		{ID: 1, Decoding: true, Cut: 1},
		{ID: 2, Prompt: 100000, Cut: 256},
		{ID: 3, Prompt: 20, Cut: 256},
	}
	for _, part := range former.Next(jobs) {
		fmt.Printf("sequence %d: %d tokens\n", part.ID, part.Tokens)
	}
	// Output:
	// sequence 1: 1 tokens
	// sequence 2: 107 tokens
	// sequence 3: 20 tokens
}
