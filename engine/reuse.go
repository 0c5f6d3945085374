package engine

import (
	"errors"
	"fmt"

	"github.com/calderaml/caldera/engine/prefix"
	"github.com/calderaml/caldera/engine/state"
	"github.com/calderaml/caldera/engine/tokenizer"
	"github.com/calderaml/caldera/shaders"
)

// Where snapshots are taken.
const (
	// cacheEvery is the default distance between snapshots inside a prompt, in tokens.
	cacheEvery = 2 * shaders.PageTokens
	// cacheMost bounds how many of them a long prompt gets; the distance grows accordingly.
	cacheMost = 16
	// cacheTurns is how many of the last turns get snapshots at their borders.
	cacheTurns = 2
	// cacheLast is the length from which on a prompt gets a snapshot before its last token, so that the same prompt again
	// costs one token. It takes a step more, which is a small part of what so long a prompt takes.
	cacheLast = 1024
	// cacheGap merges snapshots that lie closer together.
	cacheGap = 16
	// followLeast is how many tokens of a prompt must be on their way in another for the one to wait for the other.
	followLeast = 32
)

// openCache makes the prefix cache, if the configuration has one.
func (e *Engine) openCache() error {
	c := &e.cfg
	if c.CacheRAM == 0 && (c.CacheDisk == 0 || c.CacheDir == "") {
		return nil
	}
	if err := e.needLayout(); err != nil {
		return err
	}
	cache, err := prefix.New(prefix.Config{
		Layout: e.layout, RAM: c.CacheRAM, Dir: c.CacheDir, Disk: c.CacheDisk, Warn: c.Warn,
	})
	if err != nil {
		return err
	}
	e.cache.Store(cache)
	e.policy = prefix.Policy{Markers: markers(e.tok), Turns: cacheTurns, Gap: cacheGap}
	return nil
}

// markers are the tokens that structure a chat, as far as the vocabulary has them.
func markers(tok *tokenizer.Tokenizer) prefix.Markers {
	m := prefix.Markers{Start: -1, End: -1}
	if tok == nil {
		return m
	}
	start, ok := tok.Added("<|im_start|>")
	end, ok2 := tok.Added("<|im_end|>")
	if ok && ok2 {
		m = prefix.Markers{Start: start, End: end, User: tok.Encode("user\n", false), Assistant: tok.Encode("assistant\n", false)}
	}
	return m
}

// Cache returns the prefix cache, nil without one.
func (e *Engine) Cache() *prefix.Cache { return e.cache.Load() }

// lookUp begins to look for the job's prompt in the cache, which may read files.
func (e *Engine) lookUp(j *job) {
	cache := e.cache.Load() // another takes its place when the format changes
	if cache == nil || j.req.NoCache {
		why := "the prefix cache is off"
		if cache != nil {
			why = "the request does not use the prefix cache"
		}
		j.result.Reuse, j.result.ReuseReason = fmt.Sprintf("reused 0 of %d tokens: %s", len(j.req.Prompt), why), prefix.Disabled.String()
		return
	}
	found := make(chan *prefix.Match, 1)
	j.found = found
	go func() {
		found <- cache.Lookup(j.req.Prompt)
		e.batcher.poke()
	}()
}

// forget drops what was found for a job that ends before it was used.
func (j *job) forget() {
	if j.found == nil {
		return
	}
	found := j.found
	j.found = nil
	go func() { (<-found).Release() }()
}

// resume makes a job's sequence go on from what the cache has found, and plans its snapshots. Anything wrong with the
// snapshot costs time only: the prompt is computed from its beginning.
func (e *Engine) resume(j *job, m *prefix.Match) error {
	defer m.Release()
	j.result.Reuse, j.result.ReuseReason = m.String(), m.Reason.String()
	if m.Snapshot != nil {
		e.mu.Lock()
		err := e.put(j.seq, m.Snapshot)
		e.mu.Unlock()
		switch {
		case err == nil:
			j.result.Reused = m.Pos
		case errors.Is(err, state.ErrOtherModel), errors.Is(err, state.ErrOtherFormat), errors.Is(err, state.ErrPosition):
			j.result.Reuse, j.result.ReuseReason = "reused nothing: "+err.Error(), "unreadable"
		default:
			return fmt.Errorf("restoring %d tokens from the prefix cache: %w", m.Pos, err)
		}
	}
	j.points = e.capturePoints(j.req.Prompt)
	for len(j.points) > 0 && j.points[0] <= len(j.seq.tokens) {
		j.points = j.points[1:]
	}
	return nil
}

// capturePoints are the positions of a prompt to take snapshots at.
func (e *Engine) capturePoints(prompt []int32) []int {
	p := e.policy
	p.Every = e.cfg.CacheEvery
	if least := (len(prompt)/cacheMost + shaders.PageTokens) / shaders.PageTokens * shaders.PageTokens; len(prompt) > cacheMost*p.Every {
		p.Every = least
	}
	points := p.Points(prompt)
	if last := len(prompt) - 1; len(prompt) >= cacheLast && (len(points) == 0 || points[len(points)-1] < last) {
		points = append(points, last)
	}
	return points
}

// keep takes a snapshot of a job's sequence if it has come to a place for one, the end of the answer included. A
// snapshot for which there is no room is not taken. e.mu is held.
func (e *Engine) keep(j *job, ended bool) {
	n := len(j.seq.tokens)
	due := len(j.points) > 0 && j.points[0] == n
	if due {
		j.points = j.points[1:]
	}
	cache := e.cache.Load()
	if cache == nil || j.req.NoCache || !due && !ended || n == 0 {
		return
	}
	release, ok := cache.Reserve(j.seq.tokens, e.layout.CaptureBytes(n, j.seq.last.Value()))
	if !ok && (e.cfg.CacheDisk == 0 || e.cfg.CacheRAM > 0) {
		return
	}
	snap, err := e.capture(j.seq)
	if ok {
		release()
	}
	if err != nil {
		e.failed(err)
	} else {
		err = cache.Insert(j.seq.tokens, snap)
	}
	if err != nil && !errors.Is(err, prefix.ErrNoRoom) && e.cfg.Warn != nil {
		e.cfg.Warn(fmt.Errorf("prefix cache: %w", err))
	}
}
