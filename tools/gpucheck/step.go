package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A step is a program that is run for at most a while.
type step struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// RC is the exit status, -1 when there is none: the program could not be started, took too long, or was skipped as
	// the time for all was spent.
	RC       int     `json:"rc"`
	TimedOut bool    `json:"timed_out"`
	Skipped  string  `json:"skipped,omitempty"` // why it was not run
	Seconds  float64 `json:"seconds"`
	Tests    *tests  `json:"tests,omitempty"`
	Tail     string  `json:"tail,omitempty"` // the end of its output, when it failed

	dir   string
	limit time.Duration
	isGo  bool                            // it is a Go test binary
	after func(stdout []byte) error       // takes over what it printed
	skip  func() (why string)             // empty to run it
	env   func() []string                 // more of the environment
	fix   func(command []string) []string // the last change to the command
}

// tests counts what a Go test binary ran.
type tests struct {
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Names   []string `json:"failed_names,omitempty"`
}

// tailBytes is how much of a failed step's output is kept.
const tailBytes = 6000

func (s *step) ok() bool { return s.RC == 0 }

// String is a step in a line.
func (s *step) String() string {
	how := "ok"
	switch {
	case s.Skipped != "":
		how = "skipped: " + s.Skipped
	case s.TimedOut:
		how = "took too long"
	case s.RC != 0:
		how = fmt.Sprintf("FAILED (%d)", s.RC)
	}
	text := fmt.Sprintf("%-14s %6.1f s  %s", s.Name, s.Seconds, how)
	if t := s.Tests; t != nil {
		text += fmt.Sprintf(", %d tests passed, %d failed, %d skipped", t.Passed, t.Failed, t.Skipped)
	}
	return text
}

// run runs the step within its own time and what is left of the context's.
func (s *step) run(ctx context.Context) {
	s.RC = -1
	if s.skip != nil {
		if s.Skipped = s.skip(); s.Skipped != "" {
			return
		}
	}
	if ctx.Err() != nil {
		s.Skipped = "the time for all steps was spent"
		return
	}
	if s.fix != nil {
		s.Command = s.fix(s.Command)
	}
	own, stop := context.WithTimeout(ctx, s.limit)
	defer stop()
	cmd := exec.CommandContext(own, s.Command[0], s.Command[1:]...)
	cmd.Env = os.Environ()
	if s.env != nil {
		cmd.Env = append(cmd.Env, s.env()...)
	}
	cmd.Dir = s.dir
	cmd.WaitDelay = 5 * time.Second
	var o output
	cmd.Stdout, cmd.Stderr = writer(o.stdout), writer(o.stderr)
	start := time.Now()
	err := cmd.Run()
	s.Seconds = time.Since(start).Seconds()
	s.TimedOut = own.Err() != nil
	var exit *exec.ExitError
	switch {
	case err == nil:
		s.RC = 0
	case errors.As(err, &exit) && !s.TimedOut:
		s.RC = exit.ExitCode()
	}
	if s.isGo {
		s.Tests = countTests(o.all.String())
	}
	if err == nil && s.after != nil {
		if aerr := s.after(o.out.Bytes()); aerr != nil {
			s.RC, err = -1, aerr
		}
	}
	if err != nil {
		s.Tail = tail(o.all.String(), s.isGo) + "\n" + err.Error()
	}
	s.Command[0] = filepath.Base(s.Command[0])
}

// output is what a program prints: on stdout, and on both in the order in which it comes.
type output struct {
	mu       sync.Mutex
	out, all bytes.Buffer
}

func (o *output) stdout(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out.Write(p)
	return o.all.Write(p)
}

func (o *output) stderr(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

// writer is a function as an io.Writer.
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// countTests reads the verdicts in the output of a test binary that ran with -test.v.
func countTests(out string) *tests {
	t := &tests{}
	for line := range strings.SplitSeq(out, "\n") {
		verdict, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		switch verdict {
		case "--- PASS":
			t.Passed++
		case "--- SKIP":
			t.Skipped++
		case "--- FAIL":
			t.Failed++
			name, _, _ := strings.Cut(rest, " ")
			if len(t.Names) < 100 {
				t.Names = append(t.Names, name)
			}
		}
	}
	return t
}

// tail is the end of an output; of a test binary's without the lines of what began and passed.
func tail(out string, isGo bool) string {
	if isGo {
		var keep []string
		for line := range strings.SplitSeq(out, "\n") {
			l := strings.TrimSpace(line)
			if !strings.HasPrefix(l, "=== ") && !strings.HasPrefix(l, "--- PASS") && !strings.HasPrefix(l, "--- SKIP") {
				keep = append(keep, line)
			}
		}
		out = strings.Join(keep, "\n")
	}
	if n := len(out) - tailBytes; n > 0 {
		out = "..." + out[n:]
	}
	return strings.ToValidUTF8(strings.TrimSpace(out), "?")
}
