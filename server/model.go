package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/grammar"
	"github.com/calderaml/caldera/engine/tokenizer"
)

// A stream is a request on its way, see [engine.Stream].
type stream interface {
	Tokens() iter.Seq2[engine.Token, error]
	Result() (engine.Result, error)
	Progress() engine.PromptProgress
	Cancel()
}

// served is the model that a server has.
type served struct {
	*engine.Engine
	tok      *tokenizer.Tokenizer
	about    engine.About
	slots    int
	digest   string // of what the model is
	since    time.Time
	grammars *grammars
	noTools  *sync.Once                                            // tells that the template has none
	gone     *atomic.Pointer[error]                                // why it was lost, which may be nil
	generate func(context.Context, engine.Request) (stream, error) // tests put faults in its place
}

func newServed(e *engine.Engine) *served {
	f := e.File()
	h := sha256.New()
	for _, key := range []string{"general.name", "general.architecture", "general.file_type", "tokenizer.chat_template"} {
		if v, err := f.String(key); err == nil {
			h.Write([]byte(v + "\x00"))
		}
	}
	h.Write([]byte(filepath.Base(f.Name())))
	return &served{
		Engine: e, tok: e.Tokenizer(), about: e.About(), grammars: new(grammars), noTools: new(sync.Once), gone: new(atomic.Pointer[error]), slots: e.Stats().Slots, since: time.Now(),
		digest: hex.EncodeToString(h.Sum(nil)[:6]),
		generate: func(ctx context.Context, r engine.Request) (stream, error) {
			return e.Generate(ctx, r)
		},
	}
}

// name is the name that answers carry: the one asked for, if the model has it.
func (s *Server) name(asked string) (string, error) {
	if asked == "" {
		return s.cfg.Models[0], nil
	}
	for _, m := range s.cfg.Models {
		if asked == m || asked == m+":latest" || asked+":latest" == m { // Ollama's clients add a tag
			return asked, nil
		}
	}
	if s.cfg.AnyModel {
		return asked, nil
	}
	return "", &apiError{
		Status: 404, Type: typeNotFound, Param: "model", Code: "model_not_found",
		Message: "model: there is no " + quote(asked) + "; this server has " + strings.Join(s.cfg.Models, ", "),
	}
}

// maxGrammars is how many compiled grammars are kept.
const maxGrammars = 32

// grammars keeps what was compiled last, so that requests of one kind share what their grammar has found out.
type grammars struct {
	mu   sync.Mutex
	list []keptGrammar // the last used last
}

type keptGrammar struct {
	key [sha256.Size]byte
	g   *grammar.Grammar
}

// get returns the grammar of a key, which make compiles if it is not there.
func (k *grammars) get(key [sha256.Size]byte, make func() (*grammar.Grammar, error)) (*grammar.Grammar, error) {
	k.mu.Lock()
	for i, x := range k.list {
		if x.key == key {
			k.list = append(append(k.list[:i:i], k.list[i+1:]...), x)
			k.mu.Unlock()
			return x.g, nil
		}
	}
	k.mu.Unlock()
	g, err := make()
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.list) == maxGrammars {
		k.list = append(k.list[:0:0], k.list[1:]...)
	}
	k.list = append(k.list, keptGrammar{key, g})
	return g, nil
}
