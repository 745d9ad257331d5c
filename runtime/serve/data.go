package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime/internal/filelock"
)

// store is the folder in which a server keeps what outlives its process:
//
//	coppice.data                        says what the folder is; locked while a server uses it
//	anyone/ or keys/ID/                 a tenant; ID is a hash of its key
//	  programs/HASH.json                a program, as its graph
//	  runs/RUN/run.json                 what the run is, and once it is over how it ended
//	           journal                  of package runtime, from which it goes on
//	           events                   what its readers were told, a line each
//	           report.json              once it is over
//
// A folder of a run without run.json is one that was being made or deleted.
type store struct {
	dir  string
	lock *os.File
}

// storeMark is the content of coppice.data.
const storeMark = "coppice data 1\n"

// openStore takes a folder for this server, and makes it if it is not there.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "coppice.data"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = filelock.Take(f)
	if errors.Is(err, filelock.ErrTaken) {
		err = fmt.Errorf("%s is in use by another server", dir)
	}
	var mark []byte
	if err == nil {
		mark, err = io.ReadAll(io.LimitReader(f, 256))
	}
	switch {
	case err != nil:
	case len(mark) == 0:
		_, err = f.WriteString(storeMark)
	case string(mark) != storeMark:
		err = fmt.Errorf("%s has another format, %q, and this version reads %q", dir, strings.TrimSpace(string(mark)), strings.TrimSpace(storeMark))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &store{dir: dir, lock: f}, nil
}

func (st *store) close() {
	if st != nil {
		st.lock.Close()
	}
}

// shelf is the part of a store that belongs to a tenant. A nil one keeps nothing.
type shelf struct {
	dir string
}

// shelf returns the tenant's part. It is named by the key and not by the key's
// name, which may be that of another key in the next file of keys.
func (st *store) shelf(t *tenant) *shelf {
	if t.name == "" {
		return &shelf{filepath.Join(st.dir, "anyone")}
	}
	h := sha256.Sum256(append([]byte("folder of "), t.hash[:]...))
	return &shelf{filepath.Join(st.dir, "keys", hex.EncodeToString(h[:16]))}
}

// keepError says that something could not be kept. What was kept before is safe.
type keepError struct {
	what string
	err  error
}

// Error tells clients the reason and not where the server keeps things.
func (e *keepError) Error() string {
	reason := e.err
	var at *fs.PathError
	if errors.As(reason, &at) {
		reason = fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return fmt.Sprintf("%s cannot be kept: %v", e.what, reason)
}

func (e *keepError) Unwrap() error { return e.err }

// refusal is the answer to a client that asked for it.
func (e *keepError) refusal() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "storage_failed", Message: e.Error(), RetryAfter: 10 * time.Second}
}

// programFile is where a program lies. Its name may be no name of a file
// everywhere, and differ from another only in what file systems ignore.
func (h *shelf) programFile(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(h.dir, "programs", hex.EncodeToString(sum[:16])+".json")
}

func (h *shelf) keepProgram(name string, data []byte) error {
	if h == nil {
		return nil
	}
	if err := writeWhole(h.programFile(name), data); err != nil {
		return &keepError{"the program", err}
	}
	return nil
}

func (h *shelf) dropProgram(name string) error {
	if h == nil {
		return nil
	}
	if err := os.Remove(h.programFile(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &keepError{"the removal of the program", err}
	}
	return nil
}

// programs reads those that were kept; bad is told of what cannot be read.
func (h *shelf) programs(bad func(file string, err error)) []*lang.Graph {
	var list []*lang.Graph
	files, err := filepath.Glob(filepath.Join(h.dir, "programs", "*.json"))
	if err != nil {
		bad(h.dir, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		var g *lang.Graph
		if err == nil {
			g, err = lang.Decode(data, "program")
		}
		if err != nil {
			bad(file, err)
			continue
		}
		list = append(list, g)
	}
	return list
}

// runMeta is run.json. Until Status is set the run is not over.
type runMeta struct {
	Run       string          `json:"run"`
	Program   string          `json:"program"`
	BuiltIn   bool            `json:"built_in,omitempty"` // one that is served to all: its functions are that program's
	Graph     json.RawMessage `json:"graph"`
	Inputs    json.RawMessage `json:"inputs"`
	Seed      uint64          `json:"seed"`
	CacheSalt string          `json:"cache_salt,omitempty"` // that the client gave
	Chat      string          `json:"chat,omitempty"`
	Attached  bool            `json:"attached,omitempty"`
	Elsewhere bool            `json:"elsewhere,omitempty"` // a Runner carries it out
	Created   time.Time       `json:"created"`
	Status    string          `json:"status,omitempty"`
	Ended     time.Time       `json:"ended,omitzero"`
	Error     *errorObject    `json:"error,omitempty"`
}

// runFiles are the files of a run. They belong to whoever drives the run, and to
// nobody once it is over: then they are only read, or deleted.
type runFiles struct {
	dir    string
	meta   runMeta
	events *eventFile   // while the run is driven
	bytes  atomic.Int64 // of all of them when they were measured last
}

// measure finds out how much the files of a run take.
func (f *runFiles) measure() {
	sum := int64(0)
	defer func() { f.bytes.Store(sum) }()
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return // nothing that can be counted
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
}

func (f *runFiles) path(name string) string { return filepath.Join(f.dir, name) }
func (f *runFiles) journal() string         { return f.path("journal") }

// create makes the files of a new run.
func (h *shelf) create(meta runMeta) (*runFiles, error) {
	f := &runFiles{dir: filepath.Join(h.dir, "runs", meta.Run), meta: meta}
	err := os.MkdirAll(f.dir, 0o700)
	if err == nil {
		f.events, err = openEvents(f.path("events"), nil)
	}
	if err == nil { // last: with it the run is there
		err = f.writeMeta()
	}
	for dir := f.dir; err == nil && dir != h.dir; {
		dir = filepath.Dir(dir) // which the folder's name stands in
		err = syncFolder(dir)
	}
	if err != nil {
		if f.events != nil {
			f.events.close()
		}
		os.RemoveAll(f.dir)
		return nil, &keepError{"the run", err}
	}
	f.measure()
	return f, nil
}

func (f *runFiles) writeMeta() error {
	data, err := encode(f.meta)
	if err != nil {
		return err
	}
	return writeWhole(f.path("run.json"), data)
}

// runs reads what is kept of the tenant's runs, and removes what is left of
// runs that were being made or deleted.
func (h *shelf) runs(bad func(file string, err error)) []*runFiles {
	entries, err := os.ReadDir(filepath.Join(h.dir, "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		bad(h.dir, err)
	}
	var list []*runFiles
	for _, e := range entries {
		f := &runFiles{dir: filepath.Join(h.dir, "runs", e.Name())}
		data, err := os.ReadFile(f.path("run.json"))
		if errors.Is(err, fs.ErrNotExist) && e.IsDir() && strings.HasPrefix(e.Name(), "run-") {
			err = os.RemoveAll(f.dir)
			if err == nil {
				continue
			}
		}
		if err == nil {
			err = json.Unmarshal(data, &f.meta)
		}
		if err == nil && f.meta.Run != e.Name() {
			err = fmt.Errorf("it is of run %q", f.meta.Run)
		}
		if err != nil {
			bad(f.dir, err)
			continue
		}
		f.measure()
		list = append(list, f)
	}
	return list
}

// remove deletes the files. What is left if that is interrupted is no run.
func (f *runFiles) remove() error {
	if f == nil {
		return nil
	}
	if err := os.Remove(f.path("run.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(f.dir)
}

// writeWhole writes a file so that it is there whole or as it was, whatever
// happens meanwhile.
func writeWhole(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncFolder(dir)
}

// syncFolder makes the names in a folder durable, where that can be done.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
