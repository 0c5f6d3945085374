package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const sum = "12 + 7 = 19"

func TestChat(t *testing.T) {
	r := command(t, "What is 12+7?\n\n/undo\n/nope\n/think maybe\n/help\nWhat is \\\n12+7?\n/bye\nnever read\n", "chat", "--backend", "reference", "--temp", "0")
	if r.code != exitDone || strings.Count(r.out, sum) == 0 || !strings.HasPrefix(r.out, sum+"\n") || strings.Contains(r.out, "never") {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{"the conversation has 0 turns", "no command /nope", "/think on, or /think off", "/undo            take"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("stderr lacks %q: %s", want, r.err)
		}
	}
	if strings.ContainsAny(r.out+r.err, "\x1b\r") {
		t.Error("escapes without a terminal")
	}
	if r := command(t, "", "chat", "--backend", "reference", "-q"); r.code != exitDone || r.out != "" {
		t.Errorf("without a question: %+v", r)
	}
	if r := command(t, "x\n", "chat", "hello"); r.code != exitUsage {
		t.Errorf("with an argument: %+v", r)
	}
}

// What was said before is part of the prompt, until it is cleared.
func TestChatTurns(t *testing.T) {
	say := func(lines ...string) string {
		t.Helper()
		r := command(t, strings.Join(lines, "\n")+"\n", "chat", "--backend", "reference", "--temp", "0", "--log-level", "debug", "-n", "4")
		if r.code != exitDone {
			t.Fatalf("%+v", r)
		}
		return r.err
	}
	// The tokens of each turn's prompt, from the log.
	prompts := func(log string) (n []string) {
		for _, line := range strings.Split(log, "\n") {
			if _, rest, ok := strings.Cut(line, `"prompt":`); ok {
				n = append(n, rest[:strings.IndexByte(rest, ',')])
			}
		}
		return n
	}
	got := prompts(say("What is 12+7?", "What is 12+7?", "/clear", "What is 12+7?", "/system Be brief.", "What is 12+7?", "/undo", "What is 12+7?"))
	if len(got) != 5 || got[1] == got[0] || got[2] != got[0] || got[3] == got[0] || got[4] != got[3] {
		t.Errorf("prompts of %v tokens", got)
	}
	log := say("What is 12+7?", "What is 12+7?")
	if !strings.Contains(log, "reused") || strings.Contains(log[strings.LastIndex(log, `"prompt"`):], `"reused":0`) {
		t.Errorf("the second turn did not go on from the first: %s", log)
	}
}

// onWrite calls a function at the first write.
type onWrite struct {
	buf  bytes.Buffer
	once sync.Once
	f    func()
}

func (w *onWrite) Write(p []byte) (int, error) {
	w.once.Do(w.f)
	return w.buf.Write(p)
}

// An interrupt stops an answer and not the conversation; where nothing is answered it ends the program.
func TestChatInterrupt(t *testing.T) {
	isolate(t)
	i := new(interrupts)
	out := &onWrite{f: func() {
		if !i.interrupt() {
			t.Error("there was nothing to interrupt")
		}
	}}
	var errw bytes.Buffer
	ctx := context.WithValue(context.Background(), interruptsKey{}, i)
	code := execute(ctx, []string{"chat", "--backend", "reference", "--temp", "0"}, strings.NewReader("Count from 3 to 9.\nWhat is 12+7?\n"), out, &errw)
	if code != exitDone || !strings.Contains(errw.String(), "stopped") || strings.Count(out.buf.String(), "\n") != 2 || strings.Contains(out.buf.String(), "9\n") && !strings.Contains(out.buf.String(), "19") {
		t.Errorf("code %d, %q, %s", code, out.buf.String(), errw.String())
	}
	if i.interrupt() {
		t.Error("there is something to interrupt after the end")
	}

	// Without an end of its input the program waits for a line, and a cancelled context ends it.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(300*time.Millisecond, cancel)
	if code := execute(ctx, []string{"chat", "--backend", "reference", "-q"}, r, io.Discard, io.Discard); code != exitInterrupted {
		t.Errorf("code %d", code)
	}
}

// The same by signals, to the program.
func TestChatSignals(t *testing.T) {
	cmd := exec.Command(built(t), "chat", "--backend", "reference", "--temp", "0", "-q")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+cmd.Dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var got []byte
	until := func(end string) {
		t.Helper()
		b := make([]byte, 1)
		for !bytes.HasSuffix(got, []byte(end)) {
			if _, err := out.Read(b); err != nil {
				t.Fatalf("%v after %q", err, got)
			}
			got = append(got, b[0])
		}
	}
	io.WriteString(in, "Count from 3 to 9.\n")
	until("3")
	cmd.Process.Signal(os.Interrupt)
	until("\n")
	if strings.Contains(string(got), "9") {
		t.Errorf("an interrupted answer is %q", got)
	}
	got = nil
	io.WriteString(in, "What is 12+7?\n")
	until("\n")
	// One may still find the answer to stop, which has just ended.
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for n := 0; ; n++ {
		select {
		case err := <-ended:
			if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("code %d, %v", code, err)
			}
			return
		case <-again.C:
			if n == 100 {
				t.Fatal("interrupts do not end the program")
			}
			cmd.Process.Signal(os.Interrupt)
		}
	}
}
