package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unfinishedSuffixes end the names of files that a program is still downloading, or has left behind.
var unfinishedSuffixes = []string{".incomplete", ".downloadInProgress", ".part"}

// unfinishedOf is the unfinished download of a file, empty for none. Some programs put a number before the suffix.
func unfinishedOf(path string) string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && isUnfinished(e.Name()) {
			return filepath.Join(filepath.Dir(path), e.Name())
		}
	}
	return ""
}

func isUnfinished(name string) bool {
	return slices.ContainsFunc(unfinishedSuffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}

// unfinishedIn tells of unfinished downloads of a repository, with the punctuation before it.
func unfinishedIn(dir string) string {
	entries, err := os.ReadDir(filepath.Join(dir, "blobs"))
	if err != nil {
		return ""
	}
	n := 0
	for _, e := range entries {
		if isUnfinished(e.Name()) {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return " (and 1 unfinished download)"
	}
	return fmt.Sprintf(" (and %d unfinished downloads)", n)
}

// nearest returns up to n of the names that are close to a mistyped one, the closest first.
func nearest(name string, names []string, n int) []string {
	type scored struct {
		name  string
		score int
	}
	want := strings.ToLower(name[:min(len(name), maxName)])
	_, wantBase, _ := strings.Cut(want, "/")
	var near []scored
	for _, other := range names {
		low := strings.ToLower(other[:min(len(other), maxName)])
		d := distance(want, low)
		_, base, _ := strings.Cut(low, "/")
		if len(wantBase) >= 3 && len(base) >= 3 && (strings.Contains(base, wantBase) || strings.Contains(wantBase, base)) {
			d = min(d, 1) // another user's repository of the same model
		}
		if d <= len(want)/4 {
			near = append(near, scored{other, d})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.score - b.score })
	var out []string
	for _, s := range near[:min(n, len(near))] {
		out = append(out, s.name)
	}
	return out
}

// distance is the number of bytes to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
