package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/gguf/quantize"
	"github.com/calderaml/caldera/internal/oracle"
)

// core is where the reference models are that every test machine has, found before a test goes to another folder.
var core = filepath.Join(oracle.Root(), "testdata", "oracle")

// original is a small model in F32.
func original() string { return filepath.Join(core, "qwen35-f32", "model.gguf") }

// writeInput makes a file in a new folder and returns its path.
func writeInput(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every type makes a file that inspect reads, of the size and with the types that the dry run said.
func TestQuantize(t *testing.T) {
	in := original()
	for _, mix := range quantize.MixNames() {
		t.Run(mix, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "out.gguf")
			var dry, wet quantizeResult
			for _, run := range []struct {
				args []string
				to   *quantizeResult
			}{{[]string{"--dry-run"}, &dry}, {nil, &wet}} {
				r := command(t, "", append([]string{"quantize", in, out, strings.ToLower(mix), "--json"}, run.args...)...)
				if r.code != exitDone {
					t.Fatalf("code %d, stderr %q", r.code, r.err)
				}
				if err := json.Unmarshal([]byte(r.out), run.to); err != nil {
					t.Fatal(err)
				}
				if entries, _ := os.ReadDir(dir); run.to == &dry && len(entries) > 0 {
					t.Fatal("the dry run wrote something")
				}
			}
			if !dry.DryRun || wet.DryRun || wet.Schema != "caldera.quantize/1" || wet.Type != mix || wet.Seconds <= 0 {
				t.Errorf("got %+v", wet)
			}
			info, err := os.Stat(out)
			if err != nil || info.Size() != wet.FileSize || wet.FileSize != dry.FileSize {
				t.Errorf("size %v, said %d and %d (%v)", info.Size(), wet.FileSize, dry.FileSize, err)
			}
			r := command(t, "", "inspect", out, "--json")
			var seen inspectResult
			if err := json.Unmarshal([]byte(r.out), &seen); r.code != exitDone || err != nil {
				t.Fatalf("inspect: code %d, %v, stderr %q", r.code, err, r.err)
			}
			if seen.Unsupported != "" {
				t.Errorf("inspect: %s", seen.Unsupported)
			}
			if len(seen.Tensors) != len(dry.Tensors) || seen.TensorBytes != dry.Bytes || seen.Parameters != dry.Parameters {
				t.Fatalf("inspect sees %d tensors of %d bytes, the dry run said %d of %d", len(seen.Tensors), seen.TensorBytes, len(dry.Tensors), dry.Bytes)
			}
			tensors, bytes := 0, int64(0)
			for i, x := range seen.Tensors {
				if d := dry.Tensors[i]; d.Name != x.Name || d.To != x.Type || d.Bytes != x.Size {
					t.Errorf("tensor %d is %+v, the dry run said %+v", i, x, d)
				}
			}
			for _, h := range wet.Types {
				tensors += h.Tensors
				bytes += h.Bytes
			}
			if tensors != len(seen.Tensors) || bytes != seen.TensorBytes {
				t.Errorf("the histogram has %d tensors of %d bytes, want %d of %d", tensors, bytes, len(seen.Tensors), seen.TensorBytes)
			}
			if want := 8 * float64(wet.Bytes) / float64(wet.Parameters); math.Abs(wet.Bits-want) > 1e-9 || wet.BitsBefore < 31 {
				t.Errorf("%g bits, before %g, want %g", wet.Bits, wet.BitsBefore, want)
			}
		})
	}
}

// What people see: the histogram, the bits, and in a dry run the table with a reason for each tensor.
func TestQuantizeText(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	r := command(t, "", "quantize", original(), out, "Q8_0", "--tensor-type", "ffn_down=q4_0", "--tensor-type", "nosuch=q8_0", "--dry-run")
	for _, want := range []string{"TENSOR", "blk.0.ffn_down.weight", "rule ffn_down=Q4_0", "mix Q8_0", "vector", "TENSORS BEFORE", "bits each", "would write"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in %s", want, r.out)
		}
	}
	if r.code != exitDone || !strings.Contains(r.err, "nosuch=Q8_0 matches no tensor") {
		t.Errorf("code %d, stderr %q", r.code, r.err)
	}
	r = command(t, "", "quantize", original(), out, "Q8_0", "-q")
	if r.code != exitDone || r.err != "" || strings.Contains(r.out, "blk.0") || !strings.Contains(r.out, "wrote "+out+": Q8_0") {
		t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// Wrong command lines and files are refused with a sentence, and leave the output alone.
func TestQuantizeRefused(t *testing.T) {
	in := original()
	dir := t.TempDir()
	data, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	own := writeInput(t, "own.gguf", data)
	soft, hard := filepath.Join(dir, "soft.gguf"), filepath.Join(dir, "hard.gguf")
	if err := os.Symlink(own, soft); err != nil {
		t.Skip(err)
	}
	if err := os.Link(own, hard); err != nil {
		t.Skip(err)
	}
	dangling := filepath.Join(dir, "dangling.gguf")
	if err := os.Symlink(filepath.Join(dir, "nosuch"), dangling); err != nil {
		t.Fatal(err)
	}
	old := writeInput(t, "old.gguf", []byte("old"))
	q8 := filepath.Join(core, "qwen35-q8_0", "model.gguf")
	other := writeInput(t, "im.dat", imatrixOf("blk.0.ffn_down.weight", 7))
	fresh := filepath.Join(dir, "fresh.gguf")
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{in, fresh}, exitUsage, "takes IN, OUT and TYPE"},
		{[]string{in, fresh, "Q8_0", "8"}, exitUsage, "--threads"},
		{[]string{in, fresh, "Q9_0"}, exitUsage, "the types are F32, BF16"},
		{[]string{in, fresh, "IQ2_XXS"}, exitUsage, "unknown type"},
		{[]string{in, fresh, "Q8_0", "--tensor-type", "x"}, exitUsage, "PATTERN=TYPE"},
		{[]string{in, fresh, "Q8_0", "--tensor-type", "(=q8_0"}, exitUsage, "--tensor-type"},
		{[]string{in, fresh, "Q8_0", "--output-tensor-type", "q7"}, exitUsage, "--output-tensor-type"},
		{[]string{in, fresh, "Q8_0", "--token-embedding-type", "i8"}, exitUsage, "--token-embedding-type"},
		{[]string{in, fresh, "Q8_0", "--threads", "-1"}, exitUsage, "--threads is -1"},
		{[]string{in, fresh, "Q8_0", "--threads", "9999"}, exitUsage, "--threads is 9999"},
		{[]string{in, fresh, "Q8_0", "--leave-output-tensor"}, exitUsage, "--output-tensor-type keep"},
		{[]string{in, dir, "Q8_0"}, exitUsage, "is a folder"},
		{[]string{in, filepath.Join(dir, "no", "x.gguf"), "Q8_0"}, exitUsage, "does not exist"},
		{[]string{in, filepath.Join(old, "x.gguf"), "Q8_0"}, exitUsage, "is no folder"},
		{[]string{in, "-", "Q8_0"}, exitUsage, "name a file"},
		{[]string{in, os.DevNull, "Q8_0", "--force"}, exitUsage, "no regular file"},
		{[]string{in, old, "Q8_0"}, exitUsage, "--force"},
		{[]string{in, dangling, "Q8_0"}, exitUsage, "is a link"},
		{[]string{own, own, "Q8_0", "--force"}, exitUsage, "same file"},
		{[]string{own, soft, "Q8_0", "--force"}, exitUsage, "is a link"},
		{[]string{soft, own, "Q8_0", "--force"}, exitUsage, "same file"},
		{[]string{own, hard, "Q8_0", "--force"}, exitUsage, "same file"},
		{[]string{in, other, "Q8_0", "--force", "--imatrix", other}, exitUsage, "same file"},
		{[]string{filepath.Join(dir, "nosuch.gguf"), fresh, "Q8_0"}, exitModel, "nosuch.gguf"},
		{[]string{old, fresh, "Q8_0"}, exitModel, "old.gguf"},
		{[]string{q8, fresh, "Q4_K_M"}, exitModel, "--allow-requantize"},
		{[]string{in, fresh, "Q8_0", "--imatrix", old}, exitModel, "importance matrix"},
		{[]string{in, fresh, "Q8_0", "--imatrix", other}, exitModel, "7 values for blk.0.ffn_down.weight"},
		{[]string{in, fresh, "Q8_0", "--imatrix", filepath.Join(dir, "nosuch.dat")}, exitFailed, "nosuch.dat"},
	}
	for _, tt := range tests {
		r := command(t, "", append([]string{"quantize"}, tt.args...)...)
		if r.code != tt.code || !strings.Contains(r.err, tt.want) || strings.Count(r.err, "\n") != 1 || r.out != "" {
			t.Errorf("%v: code %d, want %d; stderr %q, want one line with %q; stdout %q", tt.args, r.code, tt.code, r.err, tt.want, r.out)
		}
	}
	if data, _ := os.ReadFile(old); string(data) != "old" {
		t.Error("the existing file has changed")
	}
	if now, _ := os.ReadFile(own); !bytes.Equal(now, data) {
		t.Error("the input has changed")
	}
	if _, err := os.Stat(fresh); err == nil {
		t.Error("there is an output")
	}
	for _, args := range [][]string{{in, old, "Q8_0", "--force"}, {q8, fresh, "Q4_K_M", "--allow-requantize"}} {
		if r := command(t, "", append([]string{"quantize"}, args...)...); r.code != exitDone {
			t.Errorf("%v: code %d, stderr %q", args, r.code, r.err)
		}
	}
}

// imatrixOf is an importance matrix in the older container, with one entry of n values.
func imatrixOf(name string, n int) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 1)
	b = append(le.AppendUint32(b, uint32(len(name))), name...)
	b = le.AppendUint32(b, 2)
	b = le.AppendUint32(b, uint32(n))
	for i := range n {
		b = le.AppendUint32(b, math.Float32bits(float32(1+i*i%17)))
	}
	return le.AppendUint32(b, 3)
}

// An importance matrix changes the tensors it has entries for and no others, and is told in the metadata.
func TestQuantizeImatrix(t *testing.T) {
	f, err := gguf.Open(original())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const name = "blk.0.ffn_down.weight"
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatal("no tensor")
	}
	im := writeInput(t, "calibration.dat", imatrixOf(name, int(x.Ne(0))))
	dir := t.TempDir()
	plain, measured := filepath.Join(dir, "plain.gguf"), filepath.Join(dir, "measured.gguf")
	if r := command(t, "", "quantize", original(), plain, "Q4_1"); r.code != exitDone {
		t.Fatal(r.err)
	}
	r := command(t, "", "quantize", original(), measured, "Q4_1", "--imatrix", im, "--json")
	var result quantizeResult
	if err := json.Unmarshal([]byte(r.out), &result); r.code != exitDone || err != nil {
		t.Fatalf("code %d, %v, stderr %q", r.code, err, r.err)
	}
	if i := result.Imatrix; i == nil || i.File != im || i.Entries != 1 || i.Tensors != 1 || i.Chunks != 3 || len(result.Notes) != 1 {
		t.Errorf("got %+v, notes %q", i, result.Notes)
	}
	a, errA := gguf.Open(plain)
	b, errB := gguf.Open(measured)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	defer a.Close()
	defer b.Close()
	for i, x := range a.Tensors() {
		p, _ := a.Data(x)
		q, _ := b.Data(b.Tensors()[i])
		if same := bytes.Equal(p, q); same != (x.Name != name) {
			t.Errorf("%s: equal %v", x.Name, same)
		}
		if result.Tensors[i].Imatrix != (x.Name == name) {
			t.Errorf("%s: importance %v", x.Name, result.Tensors[i].Imatrix)
		}
	}
	if s, err := b.String("quantize.imatrix.file"); err != nil || s != "calibration.dat" {
		t.Errorf("the metadata names %q, %v", s, err)
	}
}

// An interrupt leaves what was there, and no temporary file.
func TestQuantizeInterrupted(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.gguf")
	if err := os.WriteFile(out, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	isolate(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := execute(ctx, []string{"quantize", original(), out, "Q8_0", "--force"}, nil, &stdout, &stderr)
	if code != exitInterrupted || stdout.Len() > 0 || stderr.String() != "caldera: interrupted\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
	data, _ := os.ReadFile(out)
	if entries, _ := os.ReadDir(dir); string(data) != "old" || len(entries) != 1 {
		t.Errorf("left behind: %v, %q", entries, data)
	}
}

// A value that is no number is refused with tensor and row.
func TestQuantizeNotFinite(t *testing.T) {
	w := new(gguf.Writer)
	data := make([]byte, 4*32*3)
	binary.LittleEndian.PutUint32(data[4*(2*32+5):], math.Float32bits(float32(math.NaN())))
	var b bytes.Buffer
	err := w.AddTensor("blk.0.ffn_up.weight", quant.F32, []uint64{32, 3}, data)
	if err == nil {
		_, err = w.WriteTo(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := command(t, "", "quantize", writeInput(t, "in.gguf", b.Bytes()), filepath.Join(dir, "out.gguf"), "Q8_0")
	for _, want := range []string{"blk.0.ffn_up.weight", "row 2", "NaN", "model refused"} {
		if r.code != exitModel || !strings.Contains(r.err, want) {
			t.Errorf("code %d, stderr %q, want %q", r.code, r.err, want)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// A long conversion shows bytes and rate.
func TestQuantizeProgress(t *testing.T) {
	var errw bytes.Buffer
	show := quantizeProgress(&progress{w: &errw}, time.Now().Add(-2*time.Second))
	show(1<<20, 4<<20, "blk.0.x")
	if s := errw.String(); !strings.HasPrefix(s, "quantizing: 1.00 MiB of 4.00 MiB (25%), 5") || !strings.HasSuffix(s, " KiB/s, blk.0.x\n") {
		t.Errorf("progress %q", s)
	}
}
