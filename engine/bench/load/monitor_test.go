package load

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Slots must be free soon after the run, unless others use the server.
func TestSlots(t *testing.T) {
	slots := func(busy ...bool) string {
		type slot struct {
			ID   int  `json:"id"`
			Busy bool `json:"is_processing"`
		}
		var list []slot
		for i, b := range busy {
			list = append(list, slot{i, b})
		}
		b, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range []struct {
		name   string
		before string
		after  string
		free   time.Duration // after the run, when the slots are as before
		want   string        // of the failure
		note   string
	}{
		{"free", slots(false, false), slots(false, false), 0, "", ""},
		{"leak", slots(false, false, false), slots(false, true, true), time.Hour, "slots 1, 2 are still busy", ""},
		{"late", slots(false), slots(true), 3 * second, "", ""},
		{"shared", slots(true, false), slots(true, false), time.Hour, "", "others use the server"},
		{"missing", "", "", 0, "", "not known"},
		{"nonsense", "[]", "{}", time.Hour, "", "not known"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.slots = c.before
			f.answer = func(f *fake, _ http.ResponseWriter, _ *http.Request, n int) bool {
				if n == 5 {
					f.set(c.after, 0)
					time.AfterFunc(800*time.Millisecond+c.free, func() { f.set(c.before, 0) })
				}
				return false
			}
			o := options(t)
			o.Settle = 10 * second
			r := f.run(t, t.Context(), o)
			if s := r.Failure(); (s == "") != (c.want == "") || !strings.Contains(s, c.want) {
				t.Errorf("%s: %q", c.name, s)
			}
			if c.note != "" && !hasNote(r, c.note) {
				t.Errorf("%s: %q", c.name, r.Notes)
			}
		})
	}
}

// Memory, goroutines, pages and slots are followed over the run, and growth is what did not come back.
func TestGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.first = second
		start := time.Now()
		f.metrics = func(running int) string {
			s := time.Since(start).Seconds()
			// A mebibyte a second, after a warm-up that takes 64.
			rss := (64*min(s, 1) + s) * (1 << 20)
			return fmt.Sprintf(`# HELP process_resident_memory_bytes x
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes %g
go_goroutines %d
caldera_slots{state="idle"} %d
caldera_slots{state="processing"} %d 1700000000000
caldera_slots{state="odd } thing"} 0
caldera_kv_cache_usage_ratio 0.25
nonsense
other{x="y"} 5
`, rss, 20+running, 4-running, running)
		}
		o := options(t)
		o.Requests, o.Duration, o.Concurrency = 0, 1000*second, 4
		o.AtMost = []Bar{{"rss_bytes_late_growth", 1e6}, {"goroutines_growth", 0}, {"slots_busy_most", 3}, {"device_bytes_end", 1e12}, {"failed", 0}}
		r := f.run(t, t.Context(), o)
		g := map[string]*Gauge{}
		for i := range r.Server {
			g[r.Server[i].Name] = &r.Server[i]
		}
		rss := g["rss_bytes"]
		if rss.Start != 0 || math.Abs(rss.Growth()/(1<<20)-1064) > 2 || rss.Most != rss.End {
			t.Errorf("%g to %g", rss.Start, rss.End)
		}
		// From the middle of the second quarter to that of the last are half the run.
		if late := rss.LateGrowth() / (1 << 20); math.Abs(late-500) > 15 {
			t.Errorf("late growth %g", late)
		}
		if n := len(rss.series); n < maxSeries/4 || n >= maxSeries || cap(rss.series) > 2*maxSeries {
			t.Errorf("%d values", n)
		}
		if x := g["goroutines"]; x.Start != 20 || x.Most != 24 || x.Growth() != 0 || x.LateGrowth() != 0 {
			t.Errorf("%+v", x)
		}
		if x := g["slots_busy"]; x.Start != 0 || x.Most != 4 || x.End != 0 {
			t.Errorf("%+v", x)
		}
		if x := g["kv_usage"]; x.Start != 0.25 || x.End != 0.25 {
			t.Errorf("%+v", x)
		}
		if x := g["device_bytes"]; !math.IsNaN(x.Start) || !math.IsNaN(x.Growth()) {
			t.Errorf("%+v", x)
		}
		var met []bool
		for _, b := range r.Bars {
			met = append(met, b.Met)
		}
		if fmt.Sprint(met) != "[false true false false true]" {
			t.Errorf("%+v", r.Bars)
		}
		want := "slots_busy_most is 4, which is more than 3; device_bytes_end is not known, but must be at most 1e+12"
		if s := r.Failure(); !strings.HasPrefix(s, "rss_bytes_late_growth is 5") || !strings.HasSuffix(s, want) {
			t.Errorf("%s", s)
		}
	})
}
