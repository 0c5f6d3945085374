package quantize

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/calderaml/caldera/gguf/quant"
)

// A Mix is a named recipe: a type for most tensors, and better ones where an
// error costs the model most (weights.md 10.3).
type Mix struct {
	Name     string
	FileType uint32     // value of general.file_type (weights.md 10.4)
	Base     quant.Type // of the tensors that no rule of the mix singles out
	copies   bool       // every tensor stays as it is
}

// mixes are the ones on offer, from large to small. Those for which the types
// need an importance matrix are not among them.
var mixes = []Mix{
	{Name: "F32", FileType: 0, Base: quant.F32},
	{Name: "BF16", FileType: 32, Base: quant.BF16},
	{Name: "F16", FileType: 1, Base: quant.F16},
	{Name: "Q8_0", FileType: 7, Base: quant.Q8_0},
	{Name: "Q6_K", FileType: 18, Base: quant.Q6_K},
	{Name: "Q5_K_M", FileType: 17, Base: quant.Q5_K},
	{Name: "Q5_K_S", FileType: 16, Base: quant.Q5_K},
	{Name: "Q5_1", FileType: 9, Base: quant.Q5_1},
	{Name: "Q5_0", FileType: 8, Base: quant.Q5_0},
	{Name: "Q4_K_M", FileType: 15, Base: quant.Q4_K},
	{Name: "Q4_K_S", FileType: 14, Base: quant.Q4_K},
	{Name: "Q4_1", FileType: 3, Base: quant.Q4_1},
	{Name: "Q4_0", FileType: 2, Base: quant.Q4_0},
	{Name: "IQ4_NL", FileType: 25, Base: quant.IQ4_NL},
	{Name: "IQ4_XS", FileType: 30, Base: quant.IQ4_XS},
	{Name: "MXFP4_MOE", FileType: 38, Base: quant.Q8_0},
	{Name: "Q3_K_L", FileType: 13, Base: quant.Q3_K},
	{Name: "Q3_K_M", FileType: 12, Base: quant.Q3_K},
	{Name: "Q3_K_S", FileType: 11, Base: quant.Q3_K},
	{Name: "Q2_K", FileType: 10, Base: quant.Q2_K},
	{Name: "COPY", copies: true},
}

// synonyms are the short names that llama-quantize takes too.
var synonyms = map[string]string{"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

// MixNames returns the names of all mixes, from large to small.
func MixNames() []string {
	names := make([]string, len(mixes))
	for i, m := range mixes {
		names[i] = m.Name
	}
	return names
}

// ParseMix returns the mix of a name, in either case. The error of an unknown
// name lists those there are.
func ParseMix(name string) (Mix, error) {
	upper := strings.ToUpper(name)
	if long, ok := synonyms[upper]; ok {
		upper = long
	}
	if i := slices.IndexFunc(mixes, func(m Mix) bool { return m.Name == upper }); i >= 0 {
		return mixes[i], nil
	}
	return Mix{}, fmt.Errorf("unknown type %q; the types are %s", name, strings.Join(MixNames(), ", "))
}

// writable are the types a tensor may be given, by size. The others that have
// an encoder are formats of activations, or need tensors beside the blocks.
var writable = []quant.Type{
	quant.F32, quant.BF16, quant.F16, quant.Q8_0, quant.Q6_K, quant.Q5_1, quant.Q5_K, quant.Q5_0, quant.Q4_1,
	quant.Q4_K, quant.Q4_0, quant.IQ4_NL, quant.IQ4_XS, quant.MXFP4, quant.Q3_K, quant.Q2_K,
}

// A Target is the type that a tensor shall get. The zero Target asks for
// nothing.
type Target struct {
	set  bool
	keep bool // whatever the tensor has
	typ  quant.Type
}

// To returns the target of a type.
func To(t quant.Type) Target { return Target{set: true, typ: t} }

// Keep returns the target that leaves a tensor as it is.
func Keep() Target { return Target{set: true, keep: true} }

// ParseTarget returns the target of a type's name or of "keep", in either case.
func ParseTarget(name string) (Target, error) {
	if strings.EqualFold(name, "keep") {
		return Keep(), nil
	}
	t, err := quant.ParseType(name)
	if err == nil && slices.Contains(writable, t) {
		return To(t), nil
	}
	names := make([]string, len(writable))
	for i, t := range writable {
		names[i] = t.String()
	}
	if err == nil {
		return Target{}, fmt.Errorf("tensors cannot be made %v; the types are %s, or keep", t, strings.Join(names, ", "))
	}
	return Target{}, fmt.Errorf("%w; the types are %s, or keep", err, strings.Join(names, ", "))
}

func (g Target) String() string {
	switch {
	case !g.set:
		return "none"
	case g.keep:
		return "keep"
	}
	return g.typ.String()
}

// A Rule gives the tensors whose name matches somewhere a type.
type Rule struct {
	Pattern *regexp.Regexp
	Target  Target
}

// ParseRule reads PATTERN=TYPE. The pattern is a regular expression of package
// regexp that has to match some part of the name; TYPE is what [ParseTarget]
// takes.
func ParseRule(s string) (Rule, error) {
	i := strings.LastIndexByte(s, '=')
	if i < 1 || i == len(s)-1 {
		return Rule{}, fmt.Errorf("%q is not of the form PATTERN=TYPE, such as ffn_down=q6_k", s)
	}
	target, err := ParseTarget(s[i+1:])
	if err != nil {
		return Rule{}, fmt.Errorf("%q: %w", s, err)
	}
	pattern, err := regexp.Compile(s[:i])
	if err != nil {
		return Rule{}, fmt.Errorf("%q: %w", s, err)
	}
	return Rule{pattern, target}, nil
}

func (r Rule) String() string { return r.Pattern.String() + "=" + r.Target.String() }

// keptNames are parts of the names of matrices that stay as they are: small, and
// much is lost with them. The convolutions have rows of four.
var keptNames = []string{
	"_norm.weight", "ffn_gate_inp.weight", "conv1d.weight", "indexer.q_proj.weight", "indexer.k_proj.weight",
	"patch_embd", "position_embd",
}

// shape is what the rules look at besides a tensor's name.
type shape struct {
	blocks   int  // layers, those of multi-token prediction included
	experts  int  // 0 for a dense model
	gqa      int  // query heads for each key head
	tied     bool // the token embedding is the output matrix too
	measured bool // there is an importance matrix
	values   int  // tensors of class value
}

// A class is what a tensor is for, as far as the rules care.
type class int

const (
	other class = iota
	output
	embedding
	value     // attention's v, and the fused qkv of the delta nets
	attnKey   // attention's k
	attnOut   // attention's output
	downwards // the way out of a feed-forward block, shared or not
)

// classes are parts of names, tested in this order.
var classes = []struct {
	part  string
	class class
}{
	{"attn_qkv.weight", value}, {"attn_v.weight", value}, {"attn_k.weight", attnKey},
	{"attn_output.weight", attnOut}, {"ffn_down", downwards},
}

func classOf(name string) class {
	switch name {
	case "output.weight":
		return output
	case "token_embd.weight", "per_layer_token_embd.weight":
		return embedding
	}
	for _, c := range classes {
		if strings.Contains(name, c.part) {
			return c.class
		}
	}
	return other
}

// moreBits tells which of n layers the M mixes treat better: the first and last
// eighth, and every third in between.
func moreBits(i, n int) bool {
	return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2
}

// choose returns the type the mix gives a tensor. Layer is its block, and turn
// its place among the tensors of class value. Ne0 is the length of its rows and
// stack whether it is three-dimensional. The rules are those of llama-quantize.
func (m Mix) choose(s shape, name string, layer, turn int, ne0 uint64, stack bool) quant.Type {
	base := m.Base
	c := classOf(name)
	switch {
	case base.BlockSize() == 1:
		return base // not quantized at all
	case c == output || c == embedding && s.tied:
		if m.Name == "MXFP4_MOE" || base == quant.Q8_0 || ne0%uint64(base.BlockSize()) != 0 {
			return quant.Q8_0
		}
		return quant.Q6_K
	case m.Name == "MXFP4_MOE":
		if stack {
			return quant.MXFP4
		}
		return quant.Q8_0
	}
	switch c {
	case value:
		return m.value(s, turn)
	case attnKey:
		if s.experts == 8 {
			return quant.Q8_0
		}
	case attnOut:
		return m.attnOut(s)
	case downwards:
		return m.down(s, layer)
	}
	return base
}

func (m Mix) value(s shape, turn int) quant.Type {
	if s.experts == 8 {
		return quant.Q8_0
	}
	switch m.Name {
	case "Q2_K":
		if s.gqa >= 4 {
			return quant.Q4_K
		}
		return quant.Q3_K
	case "Q3_K_M":
		if turn < 2 {
			return quant.Q5_K
		}
		return quant.Q4_K
	case "Q3_K_L":
		return quant.Q5_K
	case "IQ4_NL", "IQ4_XS":
		if s.gqa >= 4 {
			return quant.Q5_K
		}
	case "Q4_K_S":
		if turn < 4 {
			return quant.Q5_K
		}
	case "Q4_K_M", "Q5_K_M":
		if moreBits(turn, s.values) {
			return quant.Q6_K
		}
	}
	return m.Base
}

func (m Mix) attnOut(s shape) quant.Type {
	if s.experts == 8 {
		switch m.Name {
		case "Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M":
			return quant.Q5_K
		}
		return m.Base
	}
	switch m.Name {
	case "Q2_K":
		return quant.Q3_K
	case "Q3_K_M":
		return quant.Q4_K
	case "Q3_K_L":
		return quant.Q5_K
	}
	return m.Base
}

func (m Mix) down(s shape, layer int) quant.Type {
	early := layer < s.blocks/8
	switch m.Name {
	case "Q2_K":
		return quant.Q3_K
	case "Q3_K_M":
		if layer < s.blocks/16 {
			return quant.Q5_K
		}
		return quant.Q4_K
	case "Q3_K_L":
		return quant.Q5_K
	case "Q4_K_M", "Q5_K_M":
		if moreBits(layer, s.blocks) {
			return quant.Q6_K
		}
	case "Q4_K_S":
		if early {
			return quant.Q5_K
		}
	case "IQ4_NL", "IQ4_XS":
		if early && !s.measured {
			return quant.Q5_K
		}
	case "Q4_0":
		if early && s.measured {
			return quant.Q4_1
		}
	case "Q5_0":
		if early && s.measured {
			return quant.Q5_1
		}
	}
	return m.Base
}

// narrower are the types for rows that are no multiple of 256 elements.
var narrower = map[quant.Type]quant.Type{
	quant.IQ4_XS: quant.IQ4_NL,
	quant.Q2_K:   quant.Q4_0,
	quant.Q3_K:   quant.Q4_0,
	quant.Q4_K:   quant.Q5_0,
	quant.Q5_K:   quant.Q5_1,
	quant.Q6_K:   quant.Q8_0,
}

// fit returns t, or where rows of ne0 elements are not whole blocks of it, the
// next type whose blocks they are.
func fit(t quant.Type, ne0 uint64) quant.Type {
	if ne0%uint64(t.BlockSize()) == 0 {
		return t
	}
	if n, ok := narrower[t]; ok && ne0%uint64(n.BlockSize()) == 0 {
		return n
	}
	return quant.F16
}
