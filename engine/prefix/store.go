package prefix

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/calderaml/caldera/engine/state"
)

const (
	snapSuffix = ".snap"
	tempSuffix = ".tmp"
	hexName    = 64 // digits of a name
	hexTemp    = 16 // digits that tell writers apart
)

// A store is the folder of snapshots.
type store struct {
	fs     FS
	dir    string
	budget int64
	layout *state.Layout
	io     sync.Mutex // held while files are added or removed; taken before the cache's
	writer string     // tells this process's temporary files from others'
	temps  atomic.Uint32
	last   atomic.Int64 // bytes in the folder when it was last listed
}

// A file is what is known of a snapshot's file without reading it.
type file struct {
	name  string
	size  int64
	mtime time.Time
}

// fileName is the name of the snapshot of tokens.
func fileName(l *state.Layout, tokens []int32) string {
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	model, format := l.Model(), l.Digest()
	return state.DigestOf(model[:], format[:], b).String() + snapSuffix
}

// isHex reports whether s is n hexadecimal digits.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// isSnap and isTemp tell the cache's files from others by their names.
func isSnap(name string) bool {
	name, ok := strings.CutSuffix(name, snapSuffix)
	return ok && isHex(name, hexName)
}

func isTemp(name string) bool {
	name, ok := strings.CutSuffix(name, tempSuffix)
	digest, writer, found := strings.Cut(name, ".")
	return ok && found && isHex(digest, hexName) && isHex(writer, hexTemp)
}

// open makes the folder.
func (st *store) open() error {
	var b [hexTemp/2 - 4]byte
	rand.Read(b[:])
	st.writer = hex.EncodeToString(b[:])
	return st.fs.MkdirAll(st.dir)
}

func (st *store) path(name string) string { return filepath.Join(st.dir, name) }

// list is the snapshots and temporary files in the folder, the bytes of both, and the names that are not the cache's.
func (st *store) list() (snaps, temps []fs.FileInfo, total int64, foreign []string, err error) {
	infos, err := st.fs.List(st.dir)
	if err != nil {
		return nil, nil, 0, nil, err
	}
	for _, info := range infos {
		switch {
		case !info.Mode().IsRegular():
			foreign = append(foreign, info.Name())
			continue
		case isSnap(info.Name()):
			snaps = append(snaps, info)
		case isTemp(info.Name()):
			temps = append(temps, info)
		default:
			foreign = append(foreign, info.Name())
			continue
		}
		total += info.Size()
	}
	st.last.Store(total)
	return snaps, temps, total, foreign, nil
}

// write adds a snapshot under a name.
func (st *store) write(name string, s *state.Snapshot) (err error) {
	var unique [4]byte
	binary.BigEndian.PutUint32(unique[:], st.temps.Add(1))
	temp := st.path(strings.TrimSuffix(name, snapSuffix) + "." + st.writer + hex.EncodeToString(unique[:]) + tempSuffix)
	f, err := st.fs.Create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = st.fs.Remove(temp) // what cannot be removed now is at the next start
		}
	}()
	w := bufio.NewWriterSize(f, 1<<16) // for the sections' frames; pages go past it
	err = s.Encode(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := st.fs.Rename(temp, st.path(name)); err != nil {
		return err
	}
	return st.fs.SyncDir(st.dir)
}

// remove deletes a file and counts it out.
func (st *store) remove(name string, size int64) error {
	err := st.fs.Remove(st.path(name))
	if err == nil {
		st.last.Add(-size)
	}
	return err
}

// read reads a snapshot whole.
func (st *store) read(name string) (*state.Snapshot, error) {
	f, err := st.fs.Open(st.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return state.Decode(f, info.Size(), st.layout)
}

// readPrefix reads the tokens of a file.
func (st *store) readPrefix(name string) ([]int32, error) {
	f, err := st.fs.Open(st.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	_, tokens, err := state.ReadPrefix(bufio.NewReaderSize(io.Reader(f), 4096), info.Size(), st.layout)
	if err == nil && fileName(st.layout, tokens) != name {
		err = fmt.Errorf("%w: its name belongs to other tokens", state.ErrCorrupt)
	}
	return tokens, err
}

// A found file is one that the scan at the start came upon.
type found struct {
	file
	tokens []int32
	why    Reason // None: usable
}

// scan goes through the folder: what is damaged or left over is deleted, and use is called for everything else, the
// newest first. It stops reading tokens, and takes files for unusable ones, when use returns false.
func (st *store) scan(use func(found) bool, warn func(error)) error {
	snaps, temps, _, foreign, err := st.list()
	if err != nil {
		return err
	}
	if len(foreign) > 0 {
		warn(fmt.Errorf("%s holds %d files that are not the prefix cache's, such as %q; they are left alone",
			st.dir, len(foreign), foreign[0]))
	}
	for _, info := range temps {
		if st.fs.Abandoned(info, st.path(info.Name())) {
			_ = st.fs.Remove(st.path(info.Name()))
		}
	}
	slices.SortFunc(snaps, func(a, b fs.FileInfo) int {
		if c := b.ModTime().Compare(a.ModTime()); c != 0 {
			return c
		}
		return strings.Compare(a.Name(), b.Name())
	})
	reading := true
	for _, info := range snaps {
		x := found{file: file{info.Name(), info.Size(), info.ModTime()}, why: OtherFormat}
		if reading {
			x.tokens, err = st.readPrefix(x.name)
			switch {
			case err == nil:
				x.why = None
			case errors.Is(err, state.ErrCorrupt):
				warn(fmt.Errorf("%s is deleted: %w", st.path(x.name), err))
				_ = st.fs.Remove(st.path(x.name))
				continue
			case errors.Is(err, fs.ErrNotExist):
				continue
			case errors.Is(err, state.ErrOtherModel):
				x.why = OtherModel
			case errors.Is(err, state.ErrOtherFormat), errors.Is(err, state.ErrPosition), errors.Is(err, state.ErrVersion):
			default:
				x.why = Unreadable
				warn(fmt.Errorf("%s: %w", st.path(x.name), err))
			}
		}
		reading = use(x) && reading
	}
	return nil
}
