package bench

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseRates(t *testing.T) {
	pp512, tg32, deep := Test{Prompt: 512, Sequences: 1}, Test{Gen: 32, Sequences: 1}, Test{Gen: 32, Depth: 4096, Sequences: 1}
	for _, c := range []struct {
		name, out string
		want      []Rate
	}{
		{"llama-bench json", `[
  {"build_commit": "x", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 7340.2, "stddev_ts": 1.0, "samples_ts": [ 7000.5, 7340.2, 7341 ]},
  {"n_prompt": 0, "n_gen": 32, "avg_ts": 116.5}
]`, []Rate{{pp512, 7340.2}, {tg32, 116.5}}},
		{"jsonl", "{\"n_prompt\": 0, \"n_gen\": 32, \"avg_ts\": 2}\n{\"n_prompt\": 0, \"n_gen\": 32, \"n_depth\": 4096, \"avg_ts\": 1}\n", []Rate{{tg32, 2}, {deep, 1}}},
		{"several sequences", `{"n_gen": 32, "n_sequences": 4, "avg_ts": 8}`, []Rate{{Test{Gen: 32, Sequences: 4}, 8}}},
		{"table", `| model                 |       size |     params | backend | ngl |          test |              t/s |
| --------------------- | ---------: | ---------: | ------- | --: | ------------: | ---------------: |
| pp7 tg9 model Q4_K    |   4.36 GiB |     7.62 B | CUDA    |  -1 |         pp512 |  7340.20 ± 23.45 |
| pp7 tg9 model Q4_K    |   4.36 GiB |     7.62 B | CUDA    |  -1 |  tg32 @ d4096 |    116.71 ± 0.60 |
| pp7 tg9 model Q4_K    |   4.36 GiB |     7.62 B | CUDA    |  -1 |   pp512+tg128 |    200.00 ± 0.60 |

build: 8cf427ff (1)
`, []Rate{{pp512, 7340.2}, {deep, 116.71}, {Test{Prompt: 512, Gen: 128, Sequences: 1}, 200}}},
		{"lines", `load 1.25 s
cpu tg32 run -1: 0.2000 s  10.000 tok/s  (100.000 ms/tok)
cpu tg32 run 0: 1.5000 s  21.300 tok/s  (46.948 ms/tok)
cpu tg32 run 1: 1.5000 s  22.100 tok/s  (46.948 ms/tok)
cpu tg32 run 2: 1.5000 s  20.900 tok/s  (46.948 ms/tok)
cpu tg32@4096 run 0: 1.0 s  1e1 tok/s
pp512: 190 t/s
`, []Rate{{tg32, 21.3}, {deep, 10}, {pp512, 190}}},
		{"even number of lines", "tg32 1 tok/s\ntg32 2 tokens/s\n", []Rate{{tg32, 1.5}}},
	} {
		got, err := ParseRates([]byte(c.out))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	for _, c := range []struct{ out, want string }{
		{"", "nothing on stdout"},
		{"  \n", "nothing on stdout"},
		{"hello", `no test that can be read`},
		{"tg32 fast", `"tg32 fast"`},
		{"21 tok/s", "no test"},
		{"tg0 21 tok/s", "no test"},
		{"tg99999999999999999999 21 tok/s", "no test"},
		{"tg32 0 tok/s", "it printed 0 tokens per second for tg32; speeds are between 1e-06 and 1e+09"},
		{"pp4 3 t/s\ntg32 1e999 tok/s", "+Inf tokens per second for tg32"},
		{"tg32 NaN t/s", "NaN tokens per second for tg32"},
		{"tg32 1e-7 t/s", "1e-07 tokens per second for tg32"},
		{"| a | b | tg32 | inf ± 0 |", "+Inf tokens per second for tg32"},
		{"| a | b | tg32 | -1 ± 0 |", "-1 tokens per second for tg32"},
		{`[{"n_gen": 5, "avg_ts": 1.5e9}]`, "1.5e+09 tokens per second for tg5"},
		{`[{"n_gen": 5, "samples_ts": [0]}]`, "0 tokens per second for tg5"},
		{`[{"n_gen": 5, "avg_ts": -1}]`, "-1 tokens per second for tg5"},
		{"[]", "no test"},
		{`[{"n_prompt": 5}]`, "no test"},
		{`[{"n_prompt": 5, "n_gen": -1, "avg_ts": 1}]`, "no test"},
		{`[{"n_prompt": 5`, "JSON that cannot be read"},
		{`{"n_prompt": "x"}`, "JSON that cannot be read"},
		{strings.Repeat("x", 5000), "and so on"},
	} {
		if got, err := ParseRates([]byte(c.out)); err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 500 {
			t.Errorf("%.40q: %v, %v", c.out, got, err)
		}
	}
	rates := []Rate{{pp512, 5}, {deep, 6}}
	if v, err := Find(rates, Test{Gen: 32, Depth: 4096}); v != 6 || err != nil {
		t.Error(v, err)
	}
	if _, err := Find(rates, tg32); err == nil || err.Error() != "it printed no test tg32, only pp512, tg32 @ d4096" {
		t.Error(err)
	}
}

func FuzzParseRates(f *testing.F) {
	f.Add([]byte("tg32@4096 run 0: 1.0 s  1e1 tok/s"))
	f.Add([]byte("| a | b | pp512+tg3 x4 @ d5 | 1.5 ± 2 |"))
	f.Add([]byte(`[{"n_prompt": 5, "avg_ts": 1e308}] {"n_gen": -1, "avg_ts": 1}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		rates, err := ParseRates(out)
		if err == nil && len(rates) == 0 {
			t.Error("nothing, and no error")
		}
		for _, r := range rates {
			if err == nil && (r.Tokens() < 1 || r.check() != nil) {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestCompare(t *testing.T) {
	c, err := Compare(Test{Gen: 32}, []float64{10, 30, 20}, []float64{5, 10, 40})
	want := Comparison{
		Name: "tg32", Gen: 32, Sequences: 1, Ours: Spread{20, 10, 30, []float64{10, 30, 20}}, Peer: Spread{10, 5, 40, []float64{5, 10, 40}},
		Ratio: 2, PairRatio: 2, PairMin: 0.5, PairMax: 3,
	}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range [][2][]float64{{nil, nil}, {{1}, {1, 2}}, {{0}, {1}}, {{1}, {0}}} {
		if _, err := Compare(Test{Gen: 1}, bad[0], bad[1]); err == nil {
			t.Errorf("%v", bad)
		}
	}
	d, _ := Compare(Test{Prompt: 512}, []float64{1234.5}, []float64{123.45})
	var b strings.Builder
	if err := PrintComparisons(&b, []Comparison{c, d}); err != nil {
		t.Fatal(err)
	}
	table := `| test  | ours t/s |     min..max | peer t/s |     min..max | ratio | median of ratios |     min..max |
| ----- | -------: | -----------: | -------: | -----------: | ----: | ---------------: | -----------: |
| tg32  |    20.00 | 10.00..30.00 |    10.00 | 5.000..40.00 | 2.000 |            2.000 | 0.500..3.000 |
| pp512 |     1234 |   1234..1234 |    123.5 | 123.5..123.5 | 10.00 |            10.00 | 10.00..10.00 |
`
	if b.String() != table {
		t.Errorf("\n%s\nwant\n%s", b.String(), table)
	}
}
