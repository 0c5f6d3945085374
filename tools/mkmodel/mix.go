package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/calderaml/caldera/gguf/quant"
)

// A mix says which type each matrix has (weights.md 10.3).
type mix struct {
	name     string
	fileType uint32 // general.file_type (weights.md 10.4)
	base     quant.Type
	head     quant.Type // the output, or the embedding when it is both
	more     quant.Type // of the attention's values and the FFN's way down in the layers that more names
	first    bool       // more holds for the first layers only
	stacks   quant.Type // of stacks of experts
}

var mixes = []mix{
	{name: "Q4_K_M", fileType: 15, base: quant.Q4_K, head: quant.Q6_K, more: quant.Q6_K},
	{name: "Q4_K_S", fileType: 14, base: quant.Q4_K, head: quant.Q6_K, more: quant.Q5_K, first: true},
	{name: "Q5_K_M", fileType: 17, base: quant.Q5_K, head: quant.Q6_K, more: quant.Q6_K},
	{name: "MXFP4_MOE", fileType: 38, base: quant.Q8_0, head: quant.Q8_0, more: quant.Q8_0, stacks: quant.MXFP4},
	{name: "IQ4_XS", fileType: 30, base: quant.IQ4_XS, head: quant.Q6_K, more: quant.Q5_K, first: true},
}

// fileTypes are the general.file_type of files of one type.
var fileTypes = map[quant.Type]uint32{
	quant.F32: 0, quant.F16: 1, quant.Q4_0: 2, quant.Q4_1: 3, quant.Q8_0: 7, quant.Q5_0: 8, quant.Q5_1: 9, quant.Q2_K: 10,
	quant.Q3_K: 11, quant.Q4_K: 14, quant.Q5_K: 16, quant.Q6_K: 18, quant.IQ2_XXS: 19, quant.IQ2_XS: 20, quant.IQ3_XXS: 23,
	quant.IQ1_S: 24, quant.IQ4_NL: 25, quant.IQ3_S: 26, quant.IQ2_S: 28, quant.IQ4_XS: 30, quant.IQ1_M: 31, quant.BF16: 32,
	quant.TQ1_0: 36, quant.TQ2_0: 37, quant.MXFP4: 38, quant.NVFP4: 39, quant.Q1_0: 40, quant.Q2_0: 41,
}

func mixNames() []string {
	var names []string
	for _, m := range mixes {
		names = append(names, m.name)
	}
	return names
}

// parseMix returns the mix of a name, or one of a single type.
func parseMix(name string) (mix, error) {
	if i := slices.IndexFunc(mixes, func(m mix) bool { return strings.EqualFold(m.name, name) }); i >= 0 {
		return mixes[i], nil
	}
	t, err := quant.ParseType(name)
	if err != nil {
		return mix{}, fmt.Errorf("mix %q is neither a mix (%s) nor a tensor type", name, strings.Join(mixNames(), ", "))
	}
	id, ok := fileTypes[t]
	if !ok {
		return mix{}, fmt.Errorf("type %v does not occur in model files", t)
	}
	return mix{name: t.String(), fileType: id, base: t, head: t, more: t}, nil
}

// pick returns a matrix's type: the mix's rule, or a coarser-grained type where its rows are no whole blocks.
func (m mix) pick(t tensor, s shape) (quant.Type, error) {
	typ := m.rule(t, s)
	for range 2 {
		if _, err := typ.RowBytes(t.dims[0]); err == nil {
			return typ, nil
		}
		if typ == quant.Q6_K || typ == quant.Q5_K {
			typ = quant.Q8_0
		} else {
			typ = quant.Q4_0
		}
	}
	return 0, fmt.Errorf("tensor %s: rows of %d do not fit %v", t.name, t.dims[0], m.base)
}

// rule is weights.md 10.3.
func (m mix) rule(t tensor, s shape) quant.Type {
	switch {
	case t.name == "output.weight" || s.tied && t.name == "token_embd.weight":
		return m.head
	case len(t.dims) == 3 && m.stacks != 0:
		return m.stacks
	case t.block < 0:
		return m.base
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(t.name, "blk."), ".")
	value := name == "attn_v.weight" || name == "attn_qkv.weight"
	down := strings.HasPrefix(name, "ffn_down")
	i, n := t.block, s.layers
	switch {
	case m.first && value && i < 4, m.first && down && i < n/8:
		return m.more
	case !m.first && (value || down) && (i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2):
		return m.more
	}
	return m.base
}
