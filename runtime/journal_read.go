package runtime

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/coppice-run/coppice/lang"
)

// contents is what a journal holds.
type contents struct {
	header  *Header // nil: the file is empty, or its header was torn
	results []Result
	// times are when they were recorded, by task, as far as the journal says.
	times map[string]time.Time
	over  time.Time // when the last process ended
	spent time.Duration
	// started are the calls that began and have no result, by task.
	started map[string]string    // to their keys
	stamps  map[string]stamp     // of the results of a script
	due     map[string]time.Time // ends of sleeps and waits
	asks    []WaitingTask        // what a script waited for, answered since or not
	ended   bool                 // the last record is the end of a process's run
	endErr  string
	// size is where the last whole record ends and sum its checksum. What lies
	// behind was torn off in the middle of a write.
	size int64
	sum  uint32
}

// maxRecord bounds the bytes of a record: more than the largest value of a run
// takes, and less than a file that is no journal may cost.
const maxRecord = 1 << 30

// readRecords reads a journal. It returns an error, ErrJournalCorrupt, if a
// record is damaged that is not the torn end of the file.
func readRecords(r io.Reader) (*contents, error) {
	c := &contents{started: map[string]string{}, stamps: map[string]stamp{}, times: map[string]time.Time{}, due: map[string]time.Time{}}
	br := bufio.NewReaderSize(r, 64<<10)
	if start, _ := br.Peek(10); !likeRecord(start) {
		return nil, &offsetError{0, ErrNoJournal}
	}
	at := map[string]int{} // index in results
	for {
		line, err := readLine(br)
		if err != nil && err != io.EOF {
			return nil, &offsetError{c.size, err}
		}
		if len(line) == 0 {
			break
		}
		rec, sum, bad := parseRecord(line, c.sum)
		if bad != nil {
			if err := c.torn(line, br); err != nil {
				return nil, &offsetError{c.size, fmt.Errorf("%w: %w; %s", ErrJournalCorrupt, bad, err)}
			}
			break
		}
		if err := c.take(rec, at); err != nil {
			if !errors.Is(err, ErrJournalFormat) {
				err = fmt.Errorf("%w: %w", ErrJournalCorrupt, err)
			}
			return nil, &offsetError{c.size, err}
		}
		c.size += int64(len(line))
		c.sum = sum
	}
	// Failures that were tried again later leave holes.
	whole := c.results[:0]
	for _, r := range c.results {
		if r.Task != "" {
			whole = append(whole, r)
		}
	}
	c.results = whole
	return c, nil
}

// readLine reads a line with its line feed, or what is left of the file.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		if len(line)+len(part) > maxRecord {
			return nil, fmt.Errorf("%w: a record of more than %d bytes", ErrJournalCorrupt, maxRecord)
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// likeRecord reports whether a file begins as a record does: with eight
// hexadecimal digits, a space and a brace. Zeros are what a block holds that
// never reached the disk. One byte may be damaged.
func likeRecord(line []byte) bool {
	wrong := 0
	for i, b := range line[:min(len(line), 10)] {
		switch {
		case b == 0, i < 8 && (b >= '0' && b <= '9' || b >= 'a' && b <= 'f'), i == 8 && b == ' ', i == 9 && b == '{':
		default:
			wrong++
		}
	}
	return wrong == 0 || wrong == 1 && len(line) == 10
}

type offsetError struct {
	offset int64
	err    error
}

func (e *offsetError) Error() string { return fmt.Sprintf("at byte %d: %v", e.offset, e.err) }
func (e *offsetError) Unwrap() error { return e.err }

// torn decides whether a damaged record is what a crash in the middle of a
// write leaves: the last thing in the file, and either without its line feed or
// with blocks that never reached the disk. Anything else is damage of something
// that was once whole, and cutting it could repeat work that was done.
func (c *contents) torn(line []byte, rest *bufio.Reader) error {
	// One zero may be a letter that lost its only bit.
	if line[len(line)-1] == '\n' && !bytes.Contains(line, []byte{0, 0}) {
		return errors.New("it was complete once: restore the file from a copy, or cut it there to do again what came after")
	}
	for {
		before, _ := claimed(line)
		more, err := readLine(rest)
		if _, _, bad := parseRecord(more, before); bad == nil {
			return errors.New("whole records follow it: restore the file from a copy, or cut it there to do again what came after")
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		line = more
	}
}

// claimed returns the checksum that a line has.
func claimed(line []byte) (uint32, error) {
	if len(line) < 8 {
		return 0, io.ErrUnexpectedEOF
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	return uint32(sum), err
}

// parseRecord reads one line that follows records with the checksum before, and
// returns its own.
func parseRecord(line []byte, before uint32) (*record, uint32, error) {
	rec := new(record)
	sum, err := parseLine(line, before, rec)
	if err != nil {
		return nil, 0, err
	}
	return rec, sum, nil
}

// parseLine is parseRecord for records of any kind.
func parseLine(line []byte, before uint32, rec any) (uint32, error) {
	n := len(line)
	if n < 11 || line[n-1] != '\n' || line[8] != ' ' {
		return 0, errors.New("incomplete record")
	}
	sum, err := claimed(line)
	if err != nil {
		return 0, errors.New("record without a checksum")
	}
	text := line[9 : n-1]
	if sum != crc32.Update(before, castagnoli, text) {
		return 0, errors.New("the checksum does not match: the record is damaged, or one before it is missing, there twice or out of its place")
	}
	return sum, json.Unmarshal(text, rec)
}

// take adds a record to what was read before.
func (c *contents) take(rec *record, at map[string]int) error {
	if (c.header == nil) != (rec.Kind == recordHeader) {
		return fmt.Errorf("record of kind %q where the header %s", rec.Kind, map[bool]string{true: "should be", false: "is past"}[c.header == nil])
	}
	c.ended, c.endErr = false, ""
	c.spent = max(c.spent, rec.Spent)
	switch rec.Kind {
	case recordHeader:
		if rec.Header == nil {
			return errors.New("empty header")
		}
		if f := rec.Header.Format; f != journalFormat {
			return fmt.Errorf("%w, %d, and this version reads %d: go on with coppice %s, or run the program again with another file", ErrJournalFormat, f, journalFormat, rec.Header.Coppice)
		}
		c.header = rec.Header
	case recordStarted:
		if i, ok := at[rec.Task]; ok && c.results[i].Failure == nil {
			return fmt.Errorf("start of task %q, which has its result", rec.Task)
		}
		c.started[rec.Task] = rec.Key
	case recordWaits:
		if !rec.Due.IsZero() {
			c.due[rec.Task] = rec.Due
		}
		if w := rec.Wait; w != nil {
			typ, err := lang.ParseType(w.Type)
			if err != nil {
				return fmt.Errorf("the type of the answer to %q: %w", rec.Task, err)
			}
			w.Wait.Type = typ
			c.asks = append(c.asks, WaitingTask{Task: rec.Task, Wait: &w.Wait, Due: rec.Due})
		}
	case recordResult:
		if rec.Result == nil || rec.Result.Task == "" {
			return errors.New("result without a task")
		}
		task := rec.Result.Task
		delete(c.started, task)
		if i, ok := at[task]; ok {
			if c.results[i].Failure == nil {
				return fmt.Errorf("second result for task %q", task)
			}
			c.results[i] = Result{}
		}
		if rec.Trace != "" {
			c.stamps[task] = stamp{rec.Trace, rec.At}
		}
		at[task] = len(c.results)
		c.results = append(c.results, *rec.Result)
		if !rec.At.IsZero() {
			c.times[task] = rec.At
		}
	case recordAgain:
		delete(c.started, rec.Task)
		if i, ok := at[rec.Task]; ok {
			if c.results[i].Failure == nil {
				return fmt.Errorf("task %q is to be done again and has its result", rec.Task)
			}
			c.results[i] = Result{}
			delete(at, rec.Task)
		}
	case recordEnd:
		c.ended, c.endErr, c.over = true, rec.Error, rec.At
	default:
		return fmt.Errorf("unknown record %q: the journal was written by a newer version", rec.Kind)
	}
	return nil
}

// JournalInfo is what a journal says of its run.
type JournalInfo struct {
	Header Header
	// Results is the number of finished tasks.
	Results int
	// Started are the calls that began and have no result: in flight if the run
	// goes on, of unknown outcome if it does not.
	Started []string
	// Ended reports whether the last process that had the run ended it in
	// order, and Error why it ended without a value.
	Ended bool
	Error string
	// Torn is the number of bytes at the end that a crash left unfinished.
	Torn int64
}

// ReadJournal reads what a journal says of its run. It takes no lock: a journal
// in use can be looked at.
func ReadJournal(path string) (*JournalInfo, error) {
	// A device or a pipe may never end, or never begin.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, &JournalError{Path: path, Offset: -1, Err: ErrNoJournal}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := readRecords(f)
	if err != nil {
		return nil, journalError(path, err)
	}
	if c.header == nil {
		return nil, &JournalError{Path: path, Offset: 0, Err: errors.New("there is no complete header: nothing was recorded, so run the program again")}
	}
	info := &JournalInfo{Header: *c.header, Results: len(c.results), Ended: c.ended, Error: c.endErr}
	info.Started = sortedKeys(c.started)
	if st, err := f.Stat(); err == nil {
		info.Torn = max(0, st.Size()-c.size)
	}
	return info, nil
}

// journalError gives an error of readRecords its path.
func journalError(path string, err error) error {
	var at *offsetError
	if errors.As(err, &at) {
		return &JournalError{Path: path, Offset: at.offset, Err: at.err}
	}
	return &JournalError{Path: path, Offset: -1, Err: err}
}
