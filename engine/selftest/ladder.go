package selftest

import (
	"fmt"
	"strings"

	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// A Rung is something that a device can do without. Rungs are given up in their order, each with all before it.
type Rung struct {
	Name     string // what is left out
	restrict func(*vk.Profile)
}

// Ladder is what is given up where kernels are wrong: what makes a device faster first, and least of it first. What
// remains are the row scheme, and reductions through shared memory that use no subgroup operation, which need nothing but
// 32-bit arithmetic.
var Ladder = []Rung{
	{"ways found by tuning", func(*vk.Profile) {}}, // they are no part of a profile: see Tuned
	{"cooperative matrices", func(p *vk.Profile) { p.Features.CooperativeMatrix, p.Matrices = false, nil }},
	{"packed int8 inputs", func(p *vk.Profile) { p.NoPacked = true }},
	{"fused kernels", func(p *vk.Profile) { p.MaxBuffers = min(p.MaxBuffers, shaders.FusedBuffers-1) }},
	{"texel, share and spread schemes", func(p *vk.Profile) {
		p.FastTexels, p.MaxTexels = false, 0
		p.SlowLoads, p.FreeReads, p.Broadcast = false, false, false
	}},
	{"lanes scheme", func(p *vk.Profile) { p.Lanes = false }},
	{"subgroup operations", func(p *vk.Profile) { p.NoSubgroups = true }},
	{"conversions of halves", func(p *vk.Profile) { p.NoHalves = true }},
}

// Restrict is a profile without the first n rungs.
func Restrict(p vk.Profile, n int) vk.Profile {
	for _, r := range Ladder[:n] {
		r.restrict(&p)
	}
	return p
}

// Tuned reports whether ways that were found by tuning are still used.
func Tuned(n int) bool { return n == 0 }

// Describe says what the first n rungs leave out, "" for none. Effective says which of them made a difference.
func Describe(n int, effective []bool) string {
	var names []string
	for i, r := range Ladder[:n] {
		if i >= len(effective) || effective[i] {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("without %s", strings.Join(names, ", "))
}
