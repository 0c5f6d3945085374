package batch

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	prompt := func(id, n int) Job { return Job{ID: id, Prompt: n, Cut: 1 << 20} }
	decode := func(id int) Job { return Job{ID: id, Decoding: true, Cut: 1} }
	tests := []struct {
		name string
		f    Former
		jobs []Job
		want []Part
	}{
		{"nothing", Former{}, nil, nil},
		{"no work", Former{}, []Job{{ID: 1}, {ID: 2, Prompt: -3}}, nil},
		{"one prompt", Former{}, []Job{prompt(5, 40)}, []Part{{5, 40}}},
		{"one long prompt", Former{MaxRows: 64}, []Job{prompt(5, 400)}, []Part{{5, 64}}},
		{"cut", Former{}, []Job{{ID: 5, Prompt: 40, Cut: 7}}, []Part{{5, 7}}},
		{"cut of nothing", Former{}, []Job{{ID: 5, Prompt: 40}}, []Part{{5, 1}}},
		{"decoding wins", Former{}, []Job{{ID: 5, Prompt: 40, Decoding: true, Cut: 9}}, []Part{{5, 1}}},
		{
			"decoding first", Former{MaxRows: 16},
			[]Job{prompt(1, 100), decode(2), decode(3)},
			[]Part{{2, 1}, {3, 1}, {1, 14}},
		},
		{
			"half to the shortest, the rest even", Former{MaxRows: 128, MinChunk: 16},
			[]Job{prompt(1, 1000), prompt(2, 500), prompt(3, 2000)},
			[]Part{{1, 32}, {2, 64}, {3, 32}},
		},
		{
			"what the shortest leaves", Former{MaxRows: 128, MinChunk: 16},
			[]Job{prompt(1, 1000), prompt(2, 10), prompt(3, 2000)},
			[]Part{{1, 59}, {2, 10}, {3, 59}},
		},
		{
			"what cuts leave", Former{MaxRows: 128, MinChunk: 16},
			[]Job{
				{ID: 1, Prompt: 1000, Cut: 20}, {ID: 2, Prompt: 900, Cut: 50}, {ID: 3, Prompt: 2000, Cut: 30}, prompt(4, 9000),
			},
			[]Part{{1, 20}, {2, 50}, {3, 29}, {4, 29}},
		},
		{
			"no run below the minimum", Former{MaxRows: 64, MinChunk: 32},
			[]Job{prompt(1, 1000), prompt(2, 500), prompt(3, 2000)},
			[]Part{{1, 32}, {2, 32}},
		},
		{
			"too few rows for two runs", Former{MaxRows: 62, MinChunk: 32},
			[]Job{prompt(1, 1000), prompt(2, 500)},
			[]Part{{2, 62}},
		},
		{
			"too few sequences", Former{MaxRows: 512, MaxSeqs: 2},
			[]Job{prompt(1, 300), decode(2), prompt(3, 200)},
			[]Part{{2, 1}, {3, 200}},
		},
		{
			"more decoding than rows", Former{MaxRows: 2, MaxSeqs: 8},
			[]Job{decode(1), decode(2), decode(3)},
			[]Part{{1, 1}, {2, 1}},
		},
		{
			"a bound, nothing measured", Former{MaxLatency: time.Millisecond},
			[]Job{prompt(1, 1000), decode(2)},
			[]Part{{2, 1}, {1, 8}},
		},
		{
			"a bound, nobody decoding", Former{MaxLatency: time.Millisecond},
			[]Job{prompt(1, 1000)},
			[]Part{{1, 512}},
		},
	}
	for _, test := range tests {
		if got := test.f.Next(test.jobs); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestTurns looks at sequences of steps whose order matters.
func TestTurns(t *testing.T) {
	// Three decoding in two places: everyone in two of three steps.
	f := Former{MaxSeqs: 2}
	jobs := []Job{{ID: 1, Decoding: true}, {ID: 2, Decoding: true}, {ID: 3, Decoding: true}}
	for step, want := range [][2]int{{1, 2}, {1, 3}, {2, 3}, {1, 2}, {1, 3}, {2, 3}} {
		if got := f.Next(jobs); len(got) != 2 || got[0].ID != want[0] || got[1].ID != want[1] {
			t.Errorf("step %d: %v, want %v", step, got, want)
		}
	}
	// Decoding and a prompt in one place take turns.
	f = Former{MaxSeqs: 1}
	jobs = []Job{{ID: 1, Decoding: true}, {ID: 2, Prompt: 10000, Cut: 100}}
	var ids []int
	for range 6 {
		ids = append(ids, f.Next(jobs)[0].ID)
	}
	if !slices.Equal(ids, []int{2, 1, 2, 1, 2, 1}) && !slices.Equal(ids, []int{1, 2, 1, 2, 1, 2}) {
		t.Errorf("one place: %v", ids)
	}
	// Who comes back from having no work queues behind those who waited.
	f = Former{MaxSeqs: 1}
	jobs = []Job{{ID: 1, Decoding: true}, {ID: 2, Decoding: true}, {ID: 3}}
	ids = ids[:0]
	for n := range 6 {
		jobs[2].Decoding = n >= 3
		ids = append(ids, f.Next(jobs)[0].ID)
	}
	if !slices.Equal(ids, []int{1, 2, 1, 2, 3, 1}) {
		t.Errorf("back from having no work: %v", ids)
	}
	// So do prompts.
	f = Former{MaxSeqs: 1}
	jobs = []Job{{ID: 1, Decoding: true}, {ID: 2, Decoding: true}}
	ids = ids[:0]
	for n := range 6 {
		if n == 3 {
			jobs[0] = Job{ID: 1, Prompt: 100, Cut: 1}
		}
		ids = append(ids, f.Next(jobs)[0].ID)
	}
	if !slices.Equal(ids, []int{1, 2, 1, 2, 1, 2}) {
		t.Errorf("a prompt among decoding ones: %v", ids)
	}
	// A place that the bound keeps a prompt from taking is not left empty.
	f = Former{MaxSeqs: 2, MaxLatency: time.Millisecond}
	f.Done(1, time.Second)
	jobs = []Job{{ID: 1, Decoding: true}, {ID: 2, Decoding: true}, {ID: 3, Prompt: 1000, Cut: 100}}
	for n := range 20 {
		if got := f.Next(jobs); len(got) != 2 {
			t.Errorf("step %d: %v", n, got)
		}
	}
	// Too few rows for two runs: every other step is the shortest prompt's.
	f = Former{MaxRows: 16, MinChunk: 16}
	jobs = []Job{{ID: 1, Prompt: 1e6, Cut: 16}, {ID: 2, Prompt: 1e5, Cut: 16}, {ID: 3, Prompt: 1e6, Cut: 16}}
	ids = ids[:0]
	for range 8 {
		ids = append(ids, f.Next(jobs)[0].ID)
	}
	if !slices.Equal(ids, []int{2, 1, 2, 3, 2, 1, 2, 3}) {
		t.Errorf("turns: %v", ids)
	}
}

// A world is a set of sequences that come and go at random, and what must hold of every step.
type world struct {
	t     *testing.T
	r     *rand.Rand
	f     *Former
	jobs  []Job
	next  int
	since map[int]*wait
}

// A wait is how long a sequence has not been served, and the largest number of steps allowed meanwhile.
type wait struct{ steps, bound int }

func (w *world) change() {
	for i := 0; i < len(w.jobs); i++ {
		j := &w.jobs[i]
		j.Cut = 1 + w.r.IntN(64)
		if w.r.IntN(4) == 0 {
			j.Cut = 1
		}
		if w.r.IntN(60) == 0 || !j.Decoding && j.Prompt == 0 && w.r.IntN(2) == 0 {
			w.jobs = slices.Delete(w.jobs, i, i+1)
			i--
		} else if !j.Decoding && j.Prompt == 0 && w.r.IntN(2) == 0 {
			j.Decoding = true
		} else if j.Decoding && w.r.IntN(100) == 0 {
			j.Decoding, j.Prompt = false, 1+w.r.IntN(300) // the next turn
		}
	}
	for w.r.IntN(4) == 0 && len(w.jobs) < 24 {
		w.next++
		j := Job{ID: w.next, Prompt: 1 + w.r.IntN(100), Cut: 1 + w.r.IntN(64)}
		if w.r.IntN(4) == 0 {
			j.Prompt = 10000
		}
		w.jobs = slices.Insert(w.jobs, w.r.IntN(len(w.jobs)+1), j)
	}
}

// step forms a step, checks it and feeds it.
func (w *world) step(n int) {
	t, f := w.t, w.f
	parts := f.Next(w.jobs)
	granted := map[int]int{}
	rows, fed := 0, false
	for _, p := range parts {
		i := slices.IndexFunc(w.jobs, func(j Job) bool { return j.ID == p.ID })
		if i < 0 {
			t.Fatalf("step %d: part %v of no job", n, p)
		}
		if j := w.jobs[i]; p.Tokens < 1 || granted[p.ID] > 0 || p.Tokens > j.rows() || !j.Decoding && p.Tokens > j.Prompt {
			t.Fatalf("step %d: part %v of %+v, granted %d before", n, p, j, granted[p.ID])
		} else if !j.Decoding {
			fed = true
		}
		granted[p.ID] = p.Tokens
		rows += p.Tokens
	}
	if rows > f.MaxRows || len(parts) > f.MaxSeqs {
		t.Fatalf("step %d: %d rows of %d, %d sequences of %d", n, rows, f.MaxRows, len(parts), f.MaxSeqs)
	}

	decoding, prompts, left := 0, 0, 0
	for _, j := range w.jobs {
		if j.Decoding {
			decoding++
		} else if j.Prompt > 0 {
			prompts++
		}
		if granted[j.ID] == 0 && j.rows() > 0 || !j.Decoding && granted[j.ID] < j.rows() {
			left++
		}
	}
	places := min(f.MaxSeqs, f.MaxRows)
	if left > 0 && f.MaxLatency == 0 && rows < f.MaxRows && len(parts) < f.MaxSeqs {
		t.Fatalf("step %d: %v leaves work of %+v", n, parts, w.jobs)
	}
	contenders := decoding + min(prompts, 1)
	for id := range w.since {
		if !slices.ContainsFunc(w.jobs, func(j Job) bool { return j.ID == id && j.rows() > 0 }) {
			delete(w.since, id)
		}
	}
	for _, j := range w.jobs {
		if j.rows() == 0 {
			continue
		}
		s := w.since[j.ID]
		if s == nil {
			s = &wait{}
			w.since[j.ID] = s
		}
		if j.Decoding {
			if s.steps++; granted[j.ID] > 0 {
				s.bound = max(s.bound, (contenders+places-1)/places)
				if s.steps > s.bound {
					t.Fatalf("step %d: %d decodes after %d steps, bound %d", n, j.ID, s.steps, s.bound)
				}
				*s = wait{}
			} else if contenders <= places {
				t.Fatalf("step %d: %d does not decode, there are %d places for %d", n, j.ID, places, contenders)
			} else {
				s.bound = max(s.bound, (contenders+places-1)/places)
			}
			continue
		}
		// Prompts wait in steps that feed prompts.
		s.bound = max(s.bound, 2*prompts)
		if fed {
			s.steps++
		}
		if s.steps > s.bound {
			t.Fatalf("step %d: prompt %d was not fed in %d steps of %d prompts", n, j.ID, s.steps, prompts)
		}
		if granted[j.ID] > 0 {
			*s = wait{}
		}
	}
	for i := range w.jobs {
		j := &w.jobs[i]
		if !j.Decoding {
			j.Prompt -= granted[j.ID]
			if granted[j.ID] > 0 && j.Prompt == 0 && w.r.IntN(4) > 0 {
				j.Decoding = true
				delete(w.since, j.ID)
			}
		}
	}
}

func TestRandomJobs(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := &Former{MaxRows: 1 + r.IntN(100), MaxSeqs: 1 + r.IntN(20), MinChunk: 1 + r.IntN(20)}
		if r.IntN(3) == 0 {
			f.MaxLatency = time.Duration(1+r.IntN(40)) * time.Millisecond
		}
		w := &world{t: t, r: r, f: f, since: map[int]*wait{}}
		for n := range 600 {
			w.change()
			w.step(n)
			if f.MaxLatency > 0 {
				rows := 0
				for _, p := range f.parts {
					rows += p.Tokens
				}
				f.Done(rows, time.Duration((2+0.3*float64(rows))*(0.8+0.4*r.Float64())*1e6))
			}
		}
	}
}

// TestBoundDoesNotStop keeps prompts going under a bound that no step can meet: two rows for each step.
func TestBoundDoesNotStop(t *testing.T) {
	f := Former{MaxLatency: time.Millisecond}
	jobs := []Job{{ID: 1, Decoding: true, Cut: 1}, {ID: 2, Prompt: 1 << 20, Cut: 256}}
	for n := range 400 {
		rows := 0
		for _, p := range f.Next(jobs) {
			rows += p.Tokens
			if p.ID == 2 {
				jobs[1].Prompt -= p.Tokens
			}
		}
		f.Done(rows, 50*time.Millisecond)
		if fed := 1<<20 - jobs[1].Prompt; fed < 2*(n+1)-8 || fed > 2*(n+1)+8 {
			t.Fatalf("after %d steps %d rows of the prompt are fed, want two for each step", n+1, fed)
		}
	}
}

// TestDeterministic forms the same steps from the same calls, whatever lies in reused buffers.
func TestDeterministic(t *testing.T) {
	run := func(f *Former) (all []Part) {
		r := rand.New(rand.NewPCG(7, 7))
		w := &world{t: t, r: r, f: f, since: map[int]*wait{}}
		for n := range 300 {
			w.change()
			w.step(n)
			all = append(append(all, f.parts...), Part{-1, 0})
			f.Done(len(f.parts)+1, time.Duration(1+r.IntN(1e6)))
		}
		return all
	}
	a := run(&Former{MaxRows: 64, MaxSeqs: 8, MaxLatency: time.Millisecond})
	b := run(&Former{MaxRows: 64, MaxSeqs: 8, MaxLatency: time.Millisecond})
	if !slices.Equal(a, b) {
		t.Error("two formers differ on the same calls")
	}
}

// mixed is 16 jobs, half of them decoding.
func mixed() []Job {
	var jobs []Job
	for i := range 16 {
		jobs = append(jobs, Job{ID: 100 + i, Prompt: 5000 - 100*i, Cut: 256, Decoding: i%2 == 0})
	}
	return jobs
}

func TestNextDoesNotAllocate(t *testing.T) {
	f := Former{MaxLatency: 20 * time.Millisecond}
	jobs := mixed()
	f.Next(jobs)
	f.Next(jobs)
	if n := testing.AllocsPerRun(100, func() {
		f.Next(jobs)
		f.Done(64, 10*time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	f := Former{MaxLatency: 50 * time.Millisecond}
	jobs := mixed()
	for n := 1; n <= 512; n *= 2 {
		f.Done(n, 5*time.Millisecond+time.Duration(n)*200*time.Microsecond)
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Next(jobs)
	}
}
