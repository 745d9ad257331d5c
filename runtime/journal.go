package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coppice-run/coppice/runtime/internal/filelock"
)

// Errors of journals.
var (
	// ErrJournalLocked: another process, or another run of this one, has the
	// journal open.
	ErrJournalLocked = errors.New("the journal is in use by another run")
	// ErrJournalCorrupt: something before the end of the journal is damaged.
	ErrJournalCorrupt = errors.New("the journal is damaged")
	// ErrJournalMismatch: the journal is of another program, other inputs or
	// another model.
	ErrJournalMismatch = errors.New("the journal is of another run")
	// ErrNoJournal: the file is something else.
	ErrNoJournal = errors.New("the file is not a journal; it is left as it is")
	// ErrJournalFormat: another version of coppice wrote the journal.
	ErrJournalFormat = errors.New("the journal has another format")
)

// JournalError is an error of a journal file. A run that it ends has lost
// nothing that was recorded: once the cause is gone, it can be resumed.
type JournalError struct {
	Path   string
	Offset int64 // in bytes, of the record concerned; -1 if of none
	Err    error
}

func (e *JournalError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("journal %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("journal %s at byte %d: %v", e.Path, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *JournalError) Unwrap() error { return e.Err }

// journalFormat is the version of the format written. It changes when a reader
// of the old one would misread the new.
const journalFormat = 2

// Header is the first record of a journal: what the run is.
type Header struct {
	Format  int    `json:"format"`
	Coppice string `json:"coppice"` // version that wrote it
	Run     string `json:"run"`
	// Created is when; for people only.
	Created   time.Time       `json:"created,omitzero"`
	Program   string          `json:"program"`
	GraphHash string          `json:"graph_hash"`
	Graph     json.RawMessage `json:"graph"` // whole, as lang.Graph.JSON gives it
	Inputs    json.RawMessage `json:"inputs"`
	Seed      uint64          `json:"seed"`
	Limits    Limits          `json:"limits"`
	// Model and Fingerprint are those of the backend that began the run.
	Model       string `json:"model"`
	Fingerprint string `json:"fingerprint"`
	// Backend is the URL under which the caller opened it, if it said so; what
	// resumes the run opens the same.
	Backend string `json:"backend,omitempty"`
	// Script is set if the program is a script: its graph is written by its run,
	// and Graph holds only its inputs.
	Script bool `json:"script,omitempty"`
}

// The kinds of records after the header.
const (
	recordHeader  = "header"
	recordStarted = "started" // a call is about to begin
	recordWaits   = "waits"   // a sleep, a wait with an end, or a wait of a script begins
	recordResult  = "result"  // a task's result; it counts from here on
	recordAgain   = "again"   // somebody decided that a call is to be made again
	recordEnd     = "end"     // a process ended the run; for people, since results say all
)

// record is a line of a journal.
type record struct {
	Kind   string  `json:"kind"`
	Header *Header `json:"header,omitempty"`
	Task   string  `json:"task,omitempty"`
	Key    string  `json:"key,omitempty"`
	Result *Result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`

	// Trace is of the results of a script: a hash of what it had asked for up to
	// the task. At is when a result was recorded, or a process ended; of a
	// script's result the time that it saw when it was given it.
	Trace string    `json:"trace,omitempty"`
	At    time.Time `json:"at,omitzero"`
	Due   time.Time `json:"due,omitzero"` // when a sleep or a wait ends
	// Wait is what a script asks for; of a program the graph says it.
	Wait *waitRecord `json:"wait,omitempty"`
	// Spent is for how long processes had the run so far, where its time is
	// bounded.
	Spent time.Duration `json:"spent,omitempty"`
}

// waitRecord is a Wait with its type.
type waitRecord struct {
	Wait
	Type string `json:"type"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends the line of a record: a checksum in eight hexadecimal
// digits, a space, the JSON, a line feed. JSON has no line feed inside, so lines
// are records whatever they hold.
//
// The checksum is the CRC-32C of the JSON of all records so far and this one, so
// that a line which is missing, there twice or out of its place is found like
// one that is damaged. sum is that of the records so far, 0 for none; the new
// one is returned.
func appendRecord(buf []byte, rec any, sum uint32) ([]byte, uint32, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a value's own text must come back as it was
	if err := enc.Encode(rec); err != nil {
		return nil, 0, err
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
	sum = crc32.Update(sum, castagnoli, text)
	buf = fmt.Appendf(buf, "%08x ", sum)
	buf = append(buf, text...)
	return append(buf, '\n'), sum, nil
}

// file is what a journal needs of a file. Tests put faults into it.
type file interface {
	io.ReaderAt
	io.WriterAt
	Stat() (fs.FileInfo, error)
	Sync() error
	Truncate(size int64) error
	Close() error
}

// fileSystem opens journals.
type fileSystem interface {
	// open opens a file for this process alone, ErrJournalLocked if that cannot
	// be had. If create is set it is made if it does not exist.
	open(path string, create bool) (file, error)
	// syncDir makes the entry of a new file durable.
	syncDir(path string) error
}

type osFS struct{}

func (osFS) open(path string, create bool) (file, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Take(f); err != nil {
		f.Close()
		if errors.Is(err, filelock.ErrTaken) {
			err = ErrJournalLocked
		}
		return nil, err
	}
	return f, nil
}

func (osFS) syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}

// journal is a file that this process appends to. It belongs to one runner.
type journal struct {
	path  string
	f     file
	clock func() time.Time // nil: records carry no time
	size  int64            // bytes that are durable
	sum   uint32           // checksum of the last of them
	bad   error            // set for good by the first failed write
	// ended is the error of the end that is the last record; nil if the last
	// record is another.
	ended *string
	buf   []byte
	spent func() time.Duration // of the run so far; nil: not counted
}

func (j *journal) close() error { return j.f.Close() }

func (j *journal) fail(err error) error {
	if j.bad == nil {
		j.bad = &JournalError{Path: j.path, Offset: j.size, Err: err}
	}
	return j.bad
}

// append writes records and returns when they are durable. After an error
// nothing more is written: what a failed sync left behind is known only to the
// next process that reads the file.
func (j *journal) append(records ...record) error {
	if j.bad != nil {
		return j.bad
	}
	j.buf = j.buf[:0]
	sum := j.sum
	for i := range records {
		if j.spent != nil {
			records[i].Spent = j.spent()
		}
		var err error
		if j.buf, sum, err = appendRecord(j.buf, &records[i], sum); err != nil {
			return j.fail(fmt.Errorf("a record cannot be encoded: %w", err))
		}
	}
	return j.write(sum)
}

// write writes j.buf, whose last record has the checksum sum, to the end of the
// file and returns when it is durable.
func (j *journal) write(sum uint32) error {
	n, err := j.f.WriteAt(j.buf, j.size)
	if err == nil && n < len(j.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		// Take back the part that was written, which n need not tell; if that
		// fails too, the next reader finds a torn record and cuts it.
		j.f.Truncate(j.size)
		return j.fail(fmt.Errorf("the record cannot be written; what was recorded before is safe, resume when the cause is gone: %w", err))
	}
	if err := j.f.Sync(); err != nil {
		return j.fail(fmt.Errorf("the record cannot be made durable; what was recorded before is safe, resume when the cause is gone: %w", err))
	}
	j.size += int64(len(j.buf))
	j.sum = sum
	j.ended = nil
	return nil
}

// results records results. stamp, which may be nil, adds to the records.
func (j *journal) results(rs []Result, stamp func(*record)) error {
	records := make([]record, len(rs))
	now := j.now()
	for i := range rs {
		records[i] = record{Kind: recordResult, Task: rs[i].Task, Result: &rs[i], At: now}
		if stamp != nil {
			stamp(&records[i])
		}
	}
	return j.append(records...)
}

func (j *journal) now() time.Time {
	if j.clock == nil {
		return time.Time{}
	}
	return j.clock().UTC()
}

// end records that this process is done with the run, unless the journal says
// so already, and closes the file.
func (j *journal) end(err error) error {
	rec := record{Kind: recordEnd, At: j.now()}
	if err != nil {
		rec.Error = err.Error()
	}
	var aerr error
	if j.ended == nil || *j.ended != rec.Error {
		aerr = j.append(rec)
	}
	if cerr := j.close(); aerr == nil && cerr != nil {
		aerr = &JournalError{Path: j.path, Offset: -1, Err: cerr}
	}
	return aerr
}
