package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/kv"
	"github.com/calderaml/caldera/engine/sample"
)

// A Request asks for the continuation of a prompt.
type Request struct {
	Prompt    []int32
	MaxTokens int           // 0: until the end of the turn or of the context
	Sample    sample.Params // begin with [sample.Neutral] or [sample.Defaults]: the zero value is refused
	IgnoreEOG bool          // go on over end-of-turn tokens
	// Stop are texts that end the answer, which is then what comes before; see package stop.
	Stop []string
	// Grammar constrains the answer, nil for none. It is of the tokens of [Engine.GrammarVocabulary].
	Grammar *grammar.Grammar
	// Logprobs asks for the log-probability of every token and of the TopLogprobs most likely ones in its place, as the
	// model gives them: before penalties, temperature and grammar.
	Logprobs    bool
	TopLogprobs int // 0 to [MaxTopLogprobs]
	// Tag is given back in [SlotStats].
	Tag any
	// NoCache neither looks for the prompt in the prefix cache nor keeps what is computed.
	NoCache bool
}

// MaxTopLogprobs bounds Request.TopLogprobs.
const MaxTopLogprobs = 64

// Reasons for which a generation ends.
const (
	ReasonStop      = "stop"      // the model ended its turn, or a stop string was found
	ReasonLength    = "length"    // the request's limit
	ReasonContext   = "context"   // the context is full
	ReasonCancelled = "cancelled" // the request's context was cancelled, or its deadline passed
	ReasonError     = "error"
)

// ErrBusy reports that a request was not accepted, or a session not opened, because too much is going on. It will be
// possible later.
var ErrBusy = errors.New("busy")

// ErrClosed reports that the engine was closed.
var ErrClosed = errors.New("the engine is closed")

// busy makes an error of the pool one of the engine's.
func busy(err error) error {
	if errors.Is(err, kv.ErrFull) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// A Token is one that was generated.
type Token struct {
	ID int32 // -1 for text that was held back at the end and belongs to the tokens before
	// Text is the text that is complete with this token; empty while a character is not.
	Text string
	// Logprob and Top are what Request.Logprobs asks for, the most likely first.
	Logprob float64
	Top     []sample.Logprob
}

// A Result is what a request cost and how it ended.
type Result struct {
	PromptTokens int
	Reused       int    // tokens of the prompt whose state was in the prefix cache
	Reuse        string // in words: how many and, if few, why
	ReuseReason  string // the reason in one word, see package prefix
	Processed    int    // tokens of the prompt that were computed
	Tokens       int    // generated
	Reason       string
	Stop         string // the stop string that was found

	Queued     time.Duration // until the request had a slot
	PromptTime time.Duration // from then to the first token's logits
	Time       time.Duration // of generating, from the first token's logits on
	LongestGap time.Duration // between two tokens
}

// A Stream is a request on its way. The engine does not wait for its reader.
type Stream struct {
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	more   sync.Cond
	tokens []Token
	taken  int
	at     PromptProgress
	ended  bool
	result Result
	err    error
}

// PromptProgress is how far a request's prompt is.
type PromptProgress struct {
	Total  int           // tokens of the prompt
	Cached int           // of them, those whose state was in the prefix cache
	Done   int           // of them, those that are in the sequence, the cached ones included
	Time   time.Duration // since the request got its slot, 0 before
}

func newStream(cancel context.CancelCauseFunc) *Stream {
	s := &Stream{cancel: cancel}
	s.more.L = &s.mu
	return s
}

// errStopped is why a request was cancelled whose reader has gone.
var errStopped = fmt.Errorf("%w: nobody reads the tokens any more", context.Canceled)

// Tokens iterates over the tokens as they come. After the last one it yields an error if the request failed or was
// cancelled. Leaving the loop early cancels the request. Tokens are delivered once.
func (s *Stream) Tokens() iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		for {
			t, ok, err := s.next()
			if err != nil {
				yield(Token{}, err)
				return
			}
			if !ok {
				return
			}
			if !yield(t, nil) {
				s.cancel(errStopped)
				return
			}
		}
	}
}

// next waits for a token. It returns false at the end.
func (s *Stream) next() (Token, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.taken == len(s.tokens) && !s.ended {
		s.more.Wait()
	}
	if s.taken < len(s.tokens) {
		t := s.tokens[s.taken]
		s.taken++
		if s.taken == len(s.tokens) {
			s.tokens, s.taken = s.tokens[:0], 0
		}
		return t, true, nil
	}
	return Token{}, false, s.err
}

// Cancel ends the request at the next step, with an error that wraps [context.Canceled]. It does not wait.
func (s *Stream) Cancel() { s.cancel(errStopped) }

// Result waits for the end of the request and says how it went. Tokens that were not read stay to be read.
func (s *Stream) Result() (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		s.more.Wait()
	}
	return s.result, s.err
}

// Progress returns how far the prompt is.
func (s *Stream) Progress() PromptProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// progress tells how far the prompt is.
func (s *Stream) progress(p PromptProgress) {
	s.mu.Lock()
	s.at = p
	s.mu.Unlock()
}

// push delivers a token.
func (s *Stream) push(t Token) {
	s.mu.Lock()
	s.tokens = append(s.tokens, t)
	s.mu.Unlock()
	s.more.Broadcast()
}

// end delivers the result.
func (s *Stream) end(r Result, err error) {
	s.mu.Lock()
	s.ended, s.result, s.err = true, r, err
	s.mu.Unlock()
	s.more.Broadcast()
}

// Generate accepts a request, which then runs beside others in the steps they share, or refuses it: a prompt that
// does not fit the context ([ErrContextFull]), parameters that make no sense, more waiting requests than
// Config.Queue allows ([ErrBusy]). When ctx ends, the request ends at the next step.
//
// The tokens of a request depend on the request alone, not on what else is running.
func (e *Engine) Generate(ctx context.Context, r Request) (*Stream, error) {
	j, err := e.newJob(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := e.batcher.submit(j); err != nil {
		j.stream.cancel(err)
		return nil, err
	}
	return j.stream, nil
}
