package serve

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/coppice-run/coppice/runtime"
)

// eventFile holds the events of a run as its readers get them, a line each. An
// event is written before anybody sees it, so that its number is never given
// again by a later process. Only the end of the run is made durable against a loss
// of power; results are, in the journal, and what the file lost of them is told
// again.
type eventFile struct {
	path string
	f    *os.File
	size int64
	most int64 // bytes at which it is written anew
	// damaged lines stood between those that could be read.
	damaged int
}

// roomyEvents is how large a file of events may grow before the deltas that are
// no longer kept are taken out.
const roomyEvents = 16 << 20

// openEvents opens a file of events to add to, and gives take those that are in
// it. What a crash left unfinished at its end is cut. Lines before that end that are
// no events any more are left out, and counted in damaged.
func openEvents(path string, take func(runtime.Event)) (*eventFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	k := &eventFile{path: path, f: f, most: roomyEvents}
	k.size, k.damaged, err = readEvents(f, take)
	if err == nil {
		err = f.Truncate(k.size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	k.most = max(k.most, 2*k.size)
	return k, nil
}

// readEvents gives take the events of a file, whose numbers rise. Lines that are
// none are skipped. It returns the bytes up to the end of the last event, and the
// number of lines that were skipped before it.
func readEvents(r io.Reader, take func(runtime.Event)) (size int64, damaged int, err error) {
	br := bufio.NewReaderSize(r, 64<<10)
	last := uint64(0)
	read, skipped := int64(0), 0
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return size, damaged, err
		}
		read += int64(len(line))
		var e runtime.Event
		if json.Unmarshal(line, &e) != nil || e.Seq <= last {
			skipped++
			continue
		}
		last = e.Seq
		size, damaged = read, skipped
		if take != nil {
			take(e)
		}
	}
}

// append adds an event. After an error the file is as before.
func (k *eventFile) append(e runtime.Event) error {
	line, err := encode(e.Finite())
	if err != nil {
		return err
	}
	line = append(line, '\n')
	n, err := k.f.WriteAt(line, k.size)
	if err != nil {
		if n > 0 {
			k.f.Truncate(k.size) // else the next reader finds half a line
		}
		return err
	}
	k.size += int64(n)
	return nil
}

// rewrite makes these events the content of the file.
func (k *eventFile) rewrite(events []runtime.Event) error {
	f, err := os.CreateTemp(filepath.Dir(k.path), ".new-*")
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 64<<10)
	size := int64(0)
	for _, e := range events {
		line, eerr := encode(e.Finite())
		if eerr != nil {
			err = eerr
			break
		}
		w.Write(line)
		w.WriteByte('\n')
		size += int64(len(line)) + 1
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), k.path)
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return err
	}
	k.f.Close()
	k.f, k.size, k.most = f, size, max(roomyEvents, 2*size)
	return nil
}

// kept are the events that a log still has.
func kept(log *runtime.Log) (events []runtime.Event, all bool) {
	events, _ = log.Since(0)
	n := len(events)
	events = slices.DeleteFunc(events, func(e runtime.Event) bool { return e.Kind == runtime.Dropped })
	return events, len(events) == n
}

func (k *eventFile) sync() error { return k.f.Sync() }

func (k *eventFile) close() error {
	err := k.f.Close()
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
