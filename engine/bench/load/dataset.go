package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of a data set.
const (
	maxEntries   = 100_000
	maxEntryLine = 1 << 20   // bytes
	maxDataset   = 256 << 20 // bytes of all lines
)

// An Entry is a prompt of a data set: a text, or a conversation for the chat endpoint.
type Entry struct {
	Prompt   string          `json:"prompt"`
	Messages json.RawMessage `json:"messages"`   // a list, as a request has it
	Output   int             `json:"max_tokens"` // most tokens of the answer; 0 leaves it to the options
}

// ReadDataset reads a data set in JSON lines: objects with prompt or messages and maybe max_tokens; other members are
// ignored.
func ReadDataset(r io.Reader) ([]Entry, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxEntryLine)
	var list []Entry
	total := 0
	for n := 1; sc.Scan(); n++ {
		line := sc.Bytes()
		if total += len(line); total > maxDataset || len(list) == maxEntries {
			return nil, fmt.Errorf("line %d: more than %d prompts or %d MiB", n, maxEntries, maxDataset>>20)
		}
		if len(line) == 0 {
			continue
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var messages []json.RawMessage
		if e.Messages != nil && json.Unmarshal(e.Messages, &messages) != nil {
			return nil, fmt.Errorf("line %d: messages is no list", n)
		}
		if (e.Prompt == "") == (len(messages) == 0) || e.Output < 0 || e.Output > maxLength {
			return nil, fmt.Errorf("line %d: give either prompt or messages, and max_tokens of 0 to %d", n, maxLength)
		}
		list = append(list, e)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("after %d prompts: %w", len(list), err)
	}
	if len(list) == 0 {
		return nil, errors.New("no prompt")
	}
	return list, nil
}
