package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Spread is a test's speed over the rounds of a comparison, in tokens per second.
type Spread struct {
	Median  float64   `json:"median_ts"`
	Min     float64   `json:"min_ts"`
	Max     float64   `json:"max_ts"`
	Samples []float64 `json:"samples_ts"` // one a round
}

// NewSpread sums samples up.
func NewSpread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	return Spread{Median(v), slices.Min(v), slices.Max(v), v}
}

// A Comparison is one test of two programs that ran in turn.
type Comparison struct {
	Name      string  `json:"test"`
	Prompt    int     `json:"n_prompt"`
	Gen       int     `json:"n_gen"`
	Depth     int     `json:"n_depth"`
	Sequences int     `json:"n_sequences"`
	Ours      Spread  `json:"ours"`
	Peer      Spread  `json:"peer"`
	Ratio     float64 `json:"ratio"`        // of the medians, ours to the peer's
	PairRatio float64 `json:"median_ratio"` // median of the ratios of the rounds
	PairMin   float64 `json:"min_ratio"`
	PairMax   float64 `json:"max_ratio"`
}

// Compare compares the samples of a test, of which there is one a round of each program.
func Compare(t Test, ours, peer []float64) (Comparison, error) {
	if len(ours) == 0 || len(ours) != len(peer) {
		return Comparison{}, fmt.Errorf("%d rounds of ours and %d of the peer's", len(ours), len(peer))
	}
	ratios := make([]float64, len(ours))
	for i := range ratios {
		if !(peer[i] > 0) || !(ours[i] > 0) {
			return Comparison{}, fmt.Errorf("%s, round %d: speeds of %g and %g tokens per second", t.Name(), i+1, ours[i], peer[i])
		}
		ratios[i] = ours[i] / peer[i]
	}
	c := Comparison{
		Name: t.Name(), Prompt: t.Prompt, Gen: t.Gen, Depth: t.Depth, Sequences: t.seqs(),
		Ours: NewSpread(ours), Peer: NewSpread(peer),
		PairRatio: Median(ratios), PairMin: slices.Min(ratios), PairMax: slices.Max(ratios),
	}
	c.Ratio = c.Ours.Median / c.Peer.Median
	return c, nil
}

// PrintComparisons writes comparisons as a table.
func PrintComparisons(w io.Writer, list []Comparison) error {
	var b strings.Builder
	rows := [][]string{{"test", "ours t/s", "min..max", "peer t/s", "min..max", "ratio", "median of ratios", "min..max"}}
	for _, c := range list {
		rows = append(rows, []string{c.Name, digits(c.Ours.Median), span(c.Ours.Min, c.Ours.Max),
			digits(c.Peer.Median), span(c.Peer.Min, c.Peer.Max), digits(c.Ratio), digits(c.PairRatio), span(c.PairMin, c.PairMax)})
	}
	writeTable(&b, 1, rows)
	_, err := io.WriteString(w, b.String())
	return err
}

// digits prints a positive number with four digits that matter, and none after the point from 1000 on.
func digits(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	case v >= 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func span(lo, hi float64) string { return digits(lo) + ".." + digits(hi) }
