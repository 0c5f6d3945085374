package grammar

import (
	"fmt"
)

// Limits bounds what a grammar may cost. The zero value of a field stands for its default.
type Limits struct {
	// Rules is the greatest number of rules (default 20,000).
	Rules int
	// Size is the greatest number of instructions of the compiled grammar (default 500,000), about 40 bytes each.
	Size int
	// Repeat is the greatest bound of a counted repetition (default 1,048,576). Counts are kept in the state and
	// cost no instructions.
	Repeat int
	// Nesting is how deep nested rules may lie in each other in the text (default 64), see [Builder.Nested].
	Nesting int
	// Depth is how many calls and counted repetitions may be open at once (default 2,048).
	Depth int
	// Threads is the greatest number of ways in which the text so far may be read at once (default 512). A byte that
	// leads to more is refused.
	Threads int
	// CacheBytes bounds the memory of remembered states and masks, about (default 16 MiB, at least 256 KiB). When it
	// is full all are forgotten. One mask can take up to 4 MiB beyond it.
	CacheBytes int
	// MaskWork bounds the steps spent on one mask (default 8 million, about half a second).
	MaskWork int
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&l.Rules, 20_000)
	def(&l.Size, 500_000)
	def(&l.Repeat, 1<<20)
	def(&l.Nesting, 64)
	def(&l.Depth, 2048)
	def(&l.Threads, 512)
	def(&l.CacheBytes, 16<<20)
	def(&l.MaskWork, 8_000_000)
	l.CacheBytes = max(l.CacheBytes, 256<<10)
	// Frames keep their depth in 16 bits.
	l.Depth, l.Nesting = min(l.Depth, 1<<15), min(l.Nesting, 1<<15)
	return l
}

// A LimitError says that a grammar is larger than is allowed.
type LimitError struct {
	What  string // such as "rules"
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the grammar exceeds the limit of %d %s", e.Limit, e.What)
}

// A ByteSet is a set of bytes.
type ByteSet [4]uint64

// Has reports whether the set holds b.
func (s *ByteSet) Has(b byte) bool { return s[b>>6]>>(b&63)&1 != 0 }

// Add adds the bytes from lo up to and including hi.
func (s *ByteSet) Add(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s[b>>6] |= 1 << (b & 63)
	}
}

// Range returns the set of the bytes from lo up to and including hi.
func Range(lo, hi byte) ByteSet {
	var s ByteSet
	s.Add(lo, hi)
	return s
}

// Unbounded is the upper bound of a repetition that has none.
const Unbounded = -1

// A Rule is a named expression of a [Builder], which may refer to itself.
type Rule int32

// An Expr is a set of byte strings. The zero value is the set that holds only the empty string. An Expr may be used
// any number of times, in the builder whose rules it refers to.
type Expr struct{ n *node }

type kind uint8

const (
	kindEmpty kind = iota
	kindNever      // matches nothing
	kindSet
	kindLit
	kindSeq
	kindAlt
	kindRepeat
	kindRef
)

type node struct {
	kind     kind
	set      ByteSet
	lit      string
	kids     []*node
	min, max int
	rule     Rule
	// size is about how many instructions the expression takes when written out, depth how deep it is.
	size, depth int
}

var empty = &node{}

func (e Expr) node() *node {
	if e.n == nil {
		return empty
	}
	return e.n
}

// maxSize is where sizes stop growing. An expression in which parts are used again can be exponentially large when
// written out.
const maxSize = 1 << 40

// Never is the empty set: no text matches.
func Never() Expr { return Expr{&node{kind: kindNever, size: 1}} }

// Lit is one string.
func Lit(s string) Expr {
	if s == "" {
		return Expr{}
	}
	return Expr{&node{kind: kindLit, lit: s, size: len(s)}}
}

// Byte is one byte of a set.
func Byte(set ByteSet) Expr {
	if set == (ByteSet{}) {
		return Never()
	}
	return Expr{&node{kind: kindSet, set: set, size: 1}}
}

func group(k kind, exprs []Expr) Expr {
	n := &node{kind: k, size: 1, kids: make([]*node, 0, len(exprs))}
	for _, e := range exprs {
		kid := e.node()
		if k == kindSeq && kid.kind == kindEmpty {
			continue
		}
		n.kids = append(n.kids, kid)
		n.size = min(n.size+kid.size+1, maxSize)
		n.depth = max(n.depth, kid.depth+1)
	}
	if len(n.kids) == 1 {
		return Expr{n.kids[0]}
	}
	return Expr{n}
}

// Seq is one string of each expression, one after the other.
func Seq(exprs ...Expr) Expr {
	e := group(kindSeq, exprs)
	if len(e.n.kids) == 0 && e.n.kind == kindSeq {
		return Expr{}
	}
	return e
}

// Alt is one string of any of the expressions; of none it is [Never]. Expressions that begin with the same literal
// bytes are joined there, so that a choice among many strings is read in one way and not in as many as fit so far.
func Alt(exprs ...Expr) Expr {
	if len(exprs) == 0 {
		return Never()
	}
	return group(kindAlt, factor(exprs))
}

// Opt is a string of e or nothing.
func Opt(e Expr) Expr { return Repeat(e, 0, 1) }

// Repeat is least to most strings of e, where most can be [Unbounded].
func Repeat(e Expr, least, most int) Expr {
	n := e.node()
	switch {
	case most == 0 || n.kind == kindEmpty:
		return Expr{}
	case least == 1 && most == 1:
		return e
	}
	return Expr{&node{kind: kindRepeat, kids: []*node{n}, min: least, max: most,
		size: min(n.size+3, maxSize), depth: n.depth + 1}}
}

// Ref is a string of a rule, which may be defined later.
func Ref(r Rule) Expr { return Expr{&node{kind: kindRef, rule: r, size: 2}} }

// IsEmpty reports whether the expression is the empty string as written.
func (e Expr) IsEmpty() bool { return e.node().kind == kindEmpty }

// Size is about how many instructions the expression takes, without those of the rules it refers to.
func (e Expr) Size() int { return e.node().size }

type ruleDef struct {
	name   string
	body   *node
	nested bool
}

// A Builder collects rules. The front ends add theirs to one builder, so that their results can be combined. It is
// not safe for concurrent use.
type Builder struct {
	limits Limits
	rules  []ruleDef
	size   int
	err    error
}

// NewBuilder returns a builder without rules.
func NewBuilder(limits Limits) *Builder { return &Builder{limits: limits.withDefaults()} }

// Limits returns the limits, with defaults filled in.
func (b *Builder) Limits() Limits { return b.limits }

// Err returns the first *LimitError that the builder met. A front end that makes many rules asks now and then.
func (b *Builder) Err() error { return b.err }

// Rule adds a rule, to be defined later. The name is for error messages and need not be unique.
func (b *Builder) Rule(name string) Rule {
	if len(b.rules) >= b.limits.Rules && b.err == nil {
		b.err = &LimitError{"rules", b.limits.Rules}
	}
	if b.err != nil {
		return 0 // the builder only grows by what it may hold
	}
	b.rules = append(b.rules, ruleDef{name: name})
	return Rule(len(b.rules) - 1)
}

// Define says what a rule is.
func (b *Builder) Define(r Rule, e Expr) {
	if b.err != nil {
		return
	}
	n := e.node()
	b.size = min(b.size+n.size, maxSize)
	if b.size > b.limits.Size {
		b.err = &LimitError{"instructions", b.limits.Size}
		return
	}
	b.rules[r].body = n
}

// New adds a defined rule and returns a reference to it.
func (b *Builder) New(name string, e Expr) Expr {
	r := b.Rule(name)
	b.Define(r, e)
	return Ref(r)
}

// Nested makes the depth to which the rule lies in itself and in other nested rules subject to [Limits].Nesting. It
// is meant for brackets, such as JSON's objects and arrays.
func (b *Builder) Nested(r Rule) {
	if b.err == nil {
		b.rules[r].nested = true
	}
}

// Try runs f, and takes back the rules that it has added when it returns an error, also one about a limit. What f has
// made must not be used then.
func (b *Builder) Try(f func() error) error {
	n, size, before := len(b.rules), b.size, b.err
	err := f()
	if err != nil {
		b.rules, b.size, b.err = b.rules[:n], size, before
	}
	return err
}
