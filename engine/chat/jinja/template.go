// Package jinja renders the chat templates that come with models: the part of the Jinja language that they use, with
// the results of Python's jinja2 as Hugging Face sets it up (blocks trimmed, loop controls, JSON as Python writes it).
//
// A template comes out of a downloaded file and is not trusted: what it may do is bounded by [Limits] and whatever it
// does ends in an error, not a panic. What came with a request is not trusted either: each [Text] knows which of its bytes a
// client typed, and Render returns its output in stretches of either kind.
//
// Where the pieces are: the filters are a table in filters.go, the tests ("is string") in tests.go, global functions in
// globals.go, methods of strings and dictionaries in methods.go, statements in statements.go.
//
// Known differences from jinja2: names that begin with an underscore are refused as attributes; filters and methods that give
// an iterator there give a list; a loop's filter is applied to all items before the first turn; whole numbers outside of 64
// bits can be printed but not calculated with; "safe" and "escape" give plain strings, to which nothing is escaped later.
package jinja

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds that do not depend on what is rendered.
const (
	maxSource    = 256 << 10 // bytes of a template
	maxNesting   = 64        // of statements and expressions in the source
	maxChain     = 512       // operators in a row, such as a ~ b ~ c
	maxCalls     = 64        // macros that call each other
	maxDepth     = 256       // of values inside values
	maxRange     = 100_000   // items of range
	checkEvery   = 1024      // steps between looks at the context
	bytesPerStep = 1024      // of text that a step may look through
	valueCost    = 64        // bytes that an item of a list or map is counted as
)

// Limits bound what rendering may use. A field that is 0 allows nothing.
type Limits struct {
	Steps  int // evaluations of an expression or statement, and a KiB of text looked through
	Output int // bytes of output
	Memory int // bytes of all text, list items and map entries made on the way
}

// LimitsFor returns the limits for rendering so many bytes of request (specification, 3.3). A message is copied a few times on
// its way into the output, which the memory allows for.
func LimitsFor(input int) Limits {
	const maxOutput, maxMemory = 64 << 20, 256 << 20
	output := maxOutput
	if input < (maxOutput-1<<20)/4 {
		output = 4*input + 1<<20
	}
	return Limits{Steps: 2_000_000, Output: output, Memory: min(16*output, maxMemory)}
}

// A Template is a compiled template. It is safe for concurrent use.
type Template struct {
	name string
	body []stmt
	lang *names
	now  func() time.Time
}

// names is what a template can name. It is a field of everything that looks names up because the tables mention
// functions, such as the filter "map", that look names up themselves.
type names struct {
	filters map[string]filter
	tests   map[string]test
	globals map[string]Value
}

// An Option changes how a template works.
type Option func(*Template)

// WithClock sets what strftime_now reads; the default is time.Now.
func WithClock(now func() time.Time) Option { return func(t *Template) { t.now = now } }

// Compile reads a template. The name is for error messages. Whatever is not supported is refused here, as an [*Error] with its
// place.
func Compile(name, source string, opts ...Option) (*Template, error) {
	t := &Template{
		name: name,
		lang: &names{filters: filters, tests: tests, globals: globals},
		now:  time.Now,
	}
	for _, o := range opts {
		o(t)
	}
	if len(source) > maxSource {
		return nil, &Error{name, 1, 1, &LimitError{"bytes of template", maxSource}}
	}
	if !utf8.ValidString(source) {
		return nil, &Error{name, 1, 1, errors.New("the template is not valid UTF-8")}
	}
	tokens, err := lex(name, source)
	if err != nil {
		return nil, err
	}
	p := parser{name: name, tokens: tokens, lang: t.lang}
	if t.body, err = p.template(); err != nil {
		return nil, err
	}
	return t, nil
}

// A Stretch is a part of the output.
type Stretch struct {
	Text    string
	Trusted bool // the template wrote it; else it came with the request
}

// Render runs the template with variables. No stretch is empty and neighbours differ in Trusted.
//
// Errors are [*Error] and wrap a [*RaisedError], a [*LimitError], the context's error, or say what went wrong.
func (t *Template) Render(ctx context.Context, vars map[string]Value, limits Limits) ([]Stretch, error) {
	r := &run{ctx: ctx, template: t, limits: limits}
	b := builder{r: r, output: true}
	r.out = &b
	base := &scope{}
	for name, v := range vars {
		if v != nil {
			base.set(name, v)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, located(t.name, pos{1, 1}, err)
	}
	if _, err := r.execAll(t.body, &scope{parent: base}); err != nil {
		return nil, err
	}
	var out []Stretch
	err := b.done().stretches(func(s string, request bool) error {
		out = append(out, Stretch{s, !request})
		return nil
	})
	return out, err
}

// A run is one rendering.
type run struct {
	ctx      context.Context
	template *Template
	limits   Limits
	out      *builder

	steps  int
	memory int
	calls  int
	work   int // bytes looked through that are not counted as steps yet
}

// step counts an evaluation.
func (r *run) step() error {
	r.steps++
	if r.steps > r.limits.Steps {
		return &LimitError{"steps", r.limits.Steps}
	}
	if r.steps%checkEvery == 0 {
		return r.ctx.Err()
	}
	return nil
}

// looked counts bytes of text that were looked through, or will be. What looks at single characters and not at bytes counts for
// more, see slowly.
func (r *run) looked(n int) error {
	r.work += n
	for r.work >= bytesPerStep {
		r.work -= bytesPerStep
		if err := r.step(); err != nil {
			return err
		}
	}
	return nil
}

// slowly is how many times the bytes of a text are counted that is looked at character by character.
const slowly = 8

// alloc counts memory.
func (r *run) alloc(n int) error {
	if n > r.limits.Memory-r.memory {
		return &LimitError{"bytes of text and values made", r.limits.Memory}
	}
	r.memory += n
	return nil
}

// call runs a macro or the like one level deeper.
func (r *run) deeper(f func() error) error {
	if r.calls >= maxCalls {
		return &LimitError{"calls inside each other", maxCalls}
	}
	r.calls++
	defer func() { r.calls-- }()
	return f()
}

// capture runs f with its output kept as a text.
func (r *run) capture(f func() error) (Text, error) {
	saved := r.out
	b := builder{r: r}
	r.out = &b
	err := f()
	r.out = saved
	return b.done(), err
}

// A collector makes a list. All that it holds is paid for from the run's budgets.
type collector struct {
	r     *run
	items []Value
}

func (c *collector) add(v Value) error {
	if err := c.r.alloc(valueCost); err != nil {
		return err
	}
	c.items = append(c.items, v)
	return nil
}

// list returns the list, after adding last items.
func (c *collector) list(last ...Value) (*List, error) {
	for _, v := range last {
		if err := c.add(v); err != nil {
			return nil, err
		}
	}
	return &List{items: c.items}, nil
}

// set sets an entry of a map that a template makes.
func (r *run) set(m *Map, key, v Value) error {
	k, ok := keyOf(key)
	if !ok {
		return fmt.Errorf("a %s cannot be a key", key.typeName())
	}
	if err := r.alloc(valueCost); err != nil {
		return err
	}
	m.set(k, key, v)
	return nil
}

// A scope holds the variables that a part of a template sets. There is a new one for every turn of a loop, so it is small.
type scope struct {
	vars   []variable
	index  map[string]int // nil while there are few
	parent *scope
}

type variable struct {
	name  string
	value Value
}

// smallScope is up to how many variables a scope is searched through without an index.
const smallScope = 12

func (sc *scope) find(name string) *variable {
	if sc.index != nil {
		if i, ok := sc.index[name]; ok {
			return &sc.vars[i]
		}
		return nil
	}
	for i := range sc.vars {
		if sc.vars[i].name == name {
			return &sc.vars[i]
		}
	}
	return nil
}

func (sc *scope) set(name string, v Value) {
	if old := sc.find(name); old != nil {
		old.value = v
		return
	}
	sc.vars = append(sc.vars, variable{name, v})
	if sc.index != nil {
		sc.index[name] = len(sc.vars) - 1
	} else if len(sc.vars) > smallScope {
		sc.index = make(map[string]int, 2*len(sc.vars))
		for i, v := range sc.vars {
			sc.index[v.name] = i
		}
	}
}

// lookup finds a variable from the inside out, then a global function.
func (r *run) lookup(sc *scope, name string) Value {
	for ; sc != nil; sc = sc.parent {
		if v := sc.find(name); v != nil {
			return v.value
		}
	}
	if v, ok := r.template.lang.globals[name]; ok {
		return v
	}
	return undefined{fmt.Sprintf("'%s' is undefined", name)}
}
