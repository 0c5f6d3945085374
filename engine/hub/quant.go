package hub

import (
	"regexp"
	"strings"
)

// quantTag finds a quantisation in a file's name: Q4_K_M, IQ2_XXS, UD-Q4_K_XL, MXFP4_MOE, BF16 and the like, between
// dashes, dots or underscores.
var quantTag = regexp.MustCompile(`(?i)(?:^|[-._/])((?:UD-)?(?:I?Q[0-9]+|TQ[0-9]+|MXFP[0-9]+|NVFP[0-9]+|B?F16|F32|F64|FP16|FP32)(?:_[A-Z0-9]+)*)(?:$|[-./])`)

// tagOf is the quantisation that a file's path says, in upper case, the last one that the name itself has or else its
// folders; empty for none.
func tagOf(stem string) string {
	base := stem[strings.LastIndexByte(stem, '/')+1:]
	for _, s := range []string{base, strings.TrimSuffix(stem, base)} {
		tag := ""
		// The separator after one tag may be the one before the next.
		for at := 0; ; {
			m := quantTag.FindStringSubmatchIndex(s[at:])
			if m == nil {
				break
			}
			tag = s[at+m[2] : at+m[3]]
			at += m[3]
		}
		if tag != "" {
			return strings.ToUpper(tag)
		}
	}
	return ""
}

// How well a variant fits what was asked for, the best first.
const (
	fitExact = iota // its quantisation, or its file name
	fitPart         // words of its path, such as Q4_K_XL of UD-Q4_K_XL, or smol-IQ2_KS
	fitNone
)

// fit says how well a variant fits a quantisation or file name.
func (v *variant) fit(want string) int {
	if isGGUF(want) {
		for _, part := range v.parts {
			if strings.EqualFold(part, want) || strings.EqualFold(part[strings.LastIndexByte(part, '/')+1:], want) {
				return fitExact
			}
		}
		return fitNone
	}
	want = strings.ToUpper(want)
	if v.tag == want {
		return fitExact
	}
	// Words stand between dashes, dots and slashes.
	bounded := func(s string) string {
		return "-" + strings.NewReplacer(".", "-", "/", "-").Replace(strings.ToUpper(s)) + "-"
	}
	if strings.Contains(bounded(v.stem), bounded(want)) {
		return fitPart
	}
	return fitNone
}
