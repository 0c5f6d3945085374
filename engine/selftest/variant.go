// Package selftest checks the kernels that a device will run against their twins, on small data, before anything depends on
// them: drivers were seen to translate kernels wrongly, and then models answer with garbage.
//
// What is checked is a [Variant], a kernel as the device compiles it. Which variants a model uses follows from its graphs, and
// those of an excerpt of the model have the same. Where a variant is wrong, the device is restricted rung by rung
// ([Ladder]) until it uses none that is, and what was found is kept, so that the next start costs nothing ([Verdicts]).
package selftest

import (
	"fmt"
	"strings"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// A Variant is a kernel as a device compiles it: a module with its specialization constants.
type Variant struct {
	Module string
	Spec   string // the constants, separated by spaces, and "halves" with conversions of their own
}

// Of is the variant of a dispatch on a device that offers kernels k.
func Of(d shaders.Dispatch, k *shaders.Profile) Variant {
	v := Variant{d.Module, strings.Trim(fmt.Sprint(d.Spec), "[]")}
	if k.NoHalves {
		v.Spec += " halves" // the same constants, but other code
	}
	return v
}

// String returns the module with its constants, as in "matmul.q8_0.row(64,2)".
func (v Variant) String() string {
	return v.Module + "(" + strings.ReplaceAll(v.Spec, " ", ",") + ")"
}

// ParseVariant is the inverse of String.
func ParseVariant(s string) (Variant, error) {
	module, rest, ok := strings.Cut(s, "(")
	spec, end, closed := strings.Cut(rest, ")")
	if !ok || !closed || end != "" || module == "" {
		return Variant{}, fmt.Errorf("%q is no kernel with its constants", s)
	}
	return Variant{module, strings.ReplaceAll(spec, ",", " ")}, nil
}

// Kernel is the kernel's name, Type its block type and Scheme how it shares the work, both "" for kernels that have none.
func (v Variant) Kernel() string { return v.part(0) }
func (v Variant) Type() string {
	if strings.Count(v.Module, ".") < 2 {
		return ""
	}
	return v.part(1)
}
func (v Variant) Scheme() string {
	if n := strings.Count(v.Module, "."); n > 0 {
		return v.part(n)
	}
	return ""
}

func (v Variant) part(i int) string {
	if parts := strings.Split(v.Module, "."); i < len(parts) {
		return parts[i]
	}
	return ""
}

// Variants adds to seen the variants that a graph uses on a device, and returns those that are new with, for each, the first
// node that uses it.
func Variants(g *scheduler.Graph, k *shaders.Profile, seen map[Variant]bool) (fresh map[Variant]int, err error) {
	fresh = map[Variant]int{}
	for i, n := range g.Nodes {
		ds, err := n.Op.Lower(k)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Label(), err)
		}
		for _, d := range ds {
			if v := Of(d, k); !seen[v] {
				seen[v], fresh[v] = true, i
			}
		}
	}
	return fresh, nil
}
