package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Rate is the speed of a test as a program printed it.
type Rate struct {
	Test
	PerSecond float64 // tokens, the median where it printed several
}

// key is the test with one spelling of one sequence, so that tests can be compared.
func (t Test) key() Test {
	t.Sequences = t.seqs()
	return t
}

// Find returns the rate of a test. If there is none, the error lists those that there are.
func Find(rates []Rate, t Test) (float64, error) {
	var names []string
	for _, r := range rates {
		if r.key() == t.key() {
			return r.PerSecond, nil
		}
		names = append(names, r.Name())
	}
	return 0, fmt.Errorf("it printed no test %s, only %s", t.Name(), strings.Join(names, ", "))
}

// Speeds outside of these bounds, in tokens per second, are not believed.
const (
	minRate = 1e-6
	maxRate = 1e9
)

// check refuses a rate that no program has.
func (r *Rate) check() error {
	if !(r.PerSecond >= minRate && r.PerSecond <= maxRate) {
		return fmt.Errorf("it printed %g tokens per second for %s; speeds are between %g and %g", r.PerSecond, r.Name(), minRate, maxRate)
	}
	return nil
}

// ParseRates reads what a benchmark prints on stdout, the tests in the order in which they first come:
//
//   - JSON as llama-bench and caldera bench print it with -o json or jsonl: n_prompt, n_gen, n_depth, and the median
//     of samples_ts or else avg_ts;
//   - llama-bench's table: the cell with the test's name, and the number before the ± in the last one;
//   - lines that have a test's name, such as pp512, tg32 or tg32@4096, and a speed such as "21.5 tok/s". Lines of a
//     run with a negative number ("run -1") are a warm-up and do not count.
//
// Where a test comes several times its rate is the median. A rate that cannot be is an error.
func ParseRates(out []byte) ([]Rate, error) {
	out = bytes.TrimSpace(out)
	var rates []Rate
	var err error
	switch {
	case len(out) == 0:
		err = errors.New("it printed nothing on stdout")
	case out[0] == '[' || out[0] == '{':
		rates, err = parseJSON(out)
	default:
		rates, err = parseLines(out)
	}
	if err == nil && len(rates) == 0 {
		err = fmt.Errorf("it printed no test that can be read (llama-bench's json, jsonl or table, or lines with pp512 or tg32 and \"21.5 tok/s\"), but %s", shorten(out))
	}
	return merge(rates), err
}

// shorten quotes the beginning of some output.
func shorten(b []byte) string {
	const most = 200
	if len(b) > most {
		return fmt.Sprintf("%q and so on", b[:most])
	}
	return strconv.Quote(string(b))
}

// jsonRate is the part of a record that is read.
type jsonRate struct {
	Prompt    int       `json:"n_prompt"`
	Gen       int       `json:"n_gen"`
	Depth     int       `json:"n_depth"`
	Sequences int       `json:"n_sequences"`
	AvgTS     float64   `json:"avg_ts"`
	Samples   []float64 `json:"samples_ts"`
}

func parseJSON(out []byte) ([]Rate, error) {
	var list []jsonRate
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		var some []jsonRate
		if err == nil && raw[0] == '[' {
			err = json.Unmarshal(raw, &some)
		} else if err == nil {
			some = make([]jsonRate, 1)
			err = json.Unmarshal(raw, &some[0])
		}
		if err != nil {
			return nil, fmt.Errorf("it printed JSON that cannot be read: %w", err)
		}
		list = append(list, some...)
	}
	var rates []Rate
	for _, x := range list {
		r := Rate{Test{x.Prompt, x.Gen, x.Depth, x.Sequences}, x.AvgTS}
		if len(x.Samples) > 0 {
			r.PerSecond = Median(x.Samples)
		}
		if min(x.Prompt, x.Gen, x.Depth) >= 0 && r.Tokens() > 0 && (x.AvgTS != 0 || len(x.Samples) > 0) {
			if err := r.check(); err != nil {
				return nil, err
			}
			rates = append(rates, r)
		}
	}
	return rates, nil
}

var (
	testName  = regexp.MustCompile(`\b(pp|tg)(\d+)(?:\+tg(\d+))?(?: x(\d+))?(?:\s*@\s*d?(\d+))?\b`)
	lineSpeed = regexp.MustCompile(`(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\b(?i:nan|inf))\s*(?:tok|tokens|t)/s`)
	cellSpeed = regexp.MustCompile(`^(\S+)\s*±`)
	warmUpRun = regexp.MustCompile(`\brun\s+-\d+`)
)

func parseLines(out []byte) ([]Rate, error) {
	var rates []Rate
	for line := range strings.Lines(string(out)) {
		if warmUpRun.MatchString(line) {
			continue
		}
		name, speed := line, ""
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) > 3 {
			// A model's name may look like a test, so the cell must be nothing else.
			i := slices.IndexFunc(cells, func(c string) bool {
				c = strings.TrimSpace(c)
				return c != "" && testName.FindString(c) == c
			})
			m := cellSpeed.FindStringSubmatch(strings.TrimSpace(cells[len(cells)-2]))
			if i < 0 || m == nil {
				continue
			}
			name, speed = cells[i], m[1]
		} else if m := lineSpeed.FindStringSubmatch(line); m != nil {
			speed = m[1]
		}
		m := testName.FindStringSubmatch(name)
		v, err := strconv.ParseFloat(speed, 64)
		if m == nil || err != nil && !errors.Is(err, strconv.ErrRange) {
			continue
		}
		if t, ok := parsedTest(m); ok {
			r := Rate{t, v}
			if err := r.check(); err != nil {
				return nil, err
			}
			rates = append(rates, r)
		}
	}
	return rates, nil
}

// parsedTest makes a test of testName's parts.
func parsedTest(m []string) (t Test, ok bool) {
	n := make([]int, len(m))
	for i := 2; i < len(m); i++ {
		if m[i] == "" {
			continue
		}
		v, err := parseInt(m[i], m[0])
		if err != nil {
			return t, false
		}
		n[i] = v
	}
	t = Test{Depth: n[5], Sequences: n[4]}
	if m[1] == "tg" {
		t.Gen = n[2]
	} else {
		t.Prompt, t.Gen = n[2], n[3]
	}
	return t, t.Tokens() > 0
}

// merge makes one rate of those of the same test.
func merge(rates []Rate) []Rate {
	var merged []Rate
	all := map[Test][]float64{}
	for _, r := range rates {
		k := r.key()
		if all[k] == nil {
			merged = append(merged, Rate{Test: k})
		}
		all[k] = append(all[k], r.PerSecond)
	}
	for i := range merged {
		merged[i].PerSecond = Median(all[merged[i].Test])
	}
	return merged
}
