package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of what a list may ask for.
const (
	maxValue  = 1 << 27
	maxValues = 1000
)

// ParseInts reads numbers as llama-bench takes them: single ones, and ranges "first-last", "first-last+step" and
// "first-last*factor".
func ParseInts(list []string) ([]int, error) {
	var values []int
	for _, item := range list {
		for s := range strings.SplitSeq(item, ",") {
			v, err := parseRange(strings.TrimSpace(s))
			if err != nil {
				return nil, err
			}
			if values = append(values, v...); len(values) > maxValues {
				return nil, fmt.Errorf("%q makes more than %d values", s, maxValues)
			}
		}
	}
	return values, nil
}

func parseRange(s string) ([]int, error) {
	first, rest, isRange := strings.Cut(s, "-")
	from, err := parseInt(first, s)
	if err != nil || !isRange {
		return []int{from}, err
	}
	next := func(v int) int { return v + 1 }
	last := rest
	if l, step, ok := strings.Cut(rest, "+"); ok {
		n, err := parseInt(step, s)
		if err != nil {
			return nil, err
		}
		last, next = l, func(v int) int { return v + n }
	} else if l, factor, ok := strings.Cut(rest, "*"); ok {
		n, err := parseInt(factor, s)
		if err != nil {
			return nil, err
		}
		last, next = l, func(v int) int { return v * n }
	}
	to, err := parseInt(last, s)
	if err != nil {
		return nil, err
	}
	if to < from {
		return nil, fmt.Errorf("range %q ends before it begins", s)
	}
	if n := next(from); n <= from {
		return nil, fmt.Errorf("range %q does not go on from %d", s, from)
	}
	var values []int
	for v := from; v <= to; v = next(v) {
		if values = append(values, v); len(values) > maxValues {
			return nil, fmt.Errorf("range %q has more than %d values", s, maxValues)
		}
	}
	return values, nil
}

func parseInt(s, whole string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxValue {
		return 0, fmt.Errorf("%q is no number or range (examples: 512, 64-256+64, 1-512*2)", whole)
	}
	return n, nil
}
