package runtime

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/coppice-run/coppice/lang"
)

// The kinds of records of a batch's journal. It has the format of a run's:
//
//	batch             once: what the batch is
//	item item item …  finished items as they come; of one index the last counts
const (
	recordBatch = "batch"
	recordItem  = "item"
)

// batchRecord is a line of a batch's journal.
type batchRecord struct {
	Kind   string       `json:"kind"`
	Header *batchHeader `json:"batch,omitempty"`
	Item   *keptItem    `json:"item,omitempty"`
}

// batchHeader is what a batch is.
type batchHeader struct {
	Format      int    `json:"format"`
	Coppice     string `json:"coppice"`
	Run         string `json:"run"`
	Program     string `json:"program"`
	GraphHash   string `json:"graph_hash"`
	Seed        uint64 `json:"seed"`
	Model       string `json:"model"`
	Fingerprint string `json:"fingerprint"`
}

// keptItem is the result of an item.
type keptItem struct {
	Index int             `json:"index"`
	Key   string          `json:"key"` // of its inputs
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
	Usage Usage           `json:"usage"`
}

// place is where a record stands in the file.
type place struct {
	at, size int64
	before   uint32 // checksum of the records before it
	failed   bool
}

// batchJournal is the journal of a batch that goes on.
type batchJournal struct {
	journal
	items map[int]place
	first map[int]string // keys that failed items had at first
}

// keyOf names inputs by their JSON.
func keyOf(inputs json.RawMessage) string {
	return strconv.FormatUint(xxhash.Sum64(inputs), 16) + "-" + strconv.Itoa(len(inputs))
}

// openJournal opens the batch's journal, or begins it.
func (b *batch) openJournal() error {
	path := b.o.Journal
	f, err := b.cfg.fs.open(path, true)
	if err != nil {
		return &JournalError{Path: path, Offset: -1, Err: err}
	}
	j := &batchJournal{journal: journal{path: path, f: f}, items: map[int]place{}, first: map[int]string{}}
	if err := b.begin(j); err != nil {
		f.Close()
		var je *JournalError
		if errors.As(err, &je) {
			return err
		}
		return &JournalError{Path: path, Offset: -1, Err: err}
	}
	b.j = j
	return nil
}

func (b *batch) begin(j *batchJournal) error {
	st, err := j.f.Stat()
	if err != nil {
		return err
	}
	h, err := j.readAll(io.NewSectionReader(j.f, 0, st.Size()))
	if err != nil {
		return err
	}
	info := b.be
	is := &batchHeader{Format: journalFormat, Coppice: Version(), Run: b.cfg.run, Program: b.g.Name, GraphHash: b.g.Hash(), Seed: b.cfg.options().Seed}
	if info != nil {
		i := info.Info()
		is.Model, is.Fingerprint = i.Model, i.Fingerprint
	}
	if h == nil {
		if st.Size() > 0 && !tornBatch(j.f) {
			return ErrNoJournal
		}
		if err := j.f.Truncate(0); err != nil {
			return err
		}
		if err := j.put(&batchRecord{Kind: recordBatch, Header: is}); err != nil {
			return err
		}
		return b.cfg.fs.syncDir(j.path)
	}
	if err := h.matches(is); err != nil {
		return err
	}
	b.cfg.run = h.Run // the names of runs are part of the keys of their calls
	if st.Size() > j.size {
		return j.f.Truncate(j.size)
	}
	return nil
}

func (h *batchHeader) matches(is *batchHeader) error {
	if h.Format != journalFormat {
		return fmt.Errorf("format %d, this version reads %d: use coppice %s", h.Format, journalFormat, h.Coppice)
	}
	var e MismatchError
	if h.Program != is.Program {
		e.add("program", strconv.Quote(h.Program), strconv.Quote(is.Program))
	} else if h.GraphHash != is.GraphHash {
		e.add("the graph of program "+h.Program, h.GraphHash, is.GraphHash)
	}
	if h.Seed != is.Seed {
		e.add("seed", strconv.FormatUint(h.Seed, 10), strconv.FormatUint(is.Seed, 10))
	}
	switch {
	case h.Fingerprint != "" && is.Fingerprint != "" && h.Fingerprint != is.Fingerprint:
		e.add("model", fmt.Sprintf("%s (%s)", h.Model, h.Fingerprint), fmt.Sprintf("%s (%s)", is.Model, is.Fingerprint))
	case (h.Fingerprint == "" || is.Fingerprint == "") && h.Model != is.Model:
		e.add("model", strconv.Quote(h.Model), strconv.Quote(is.Model))
	}
	return e.err()
}

// tornBatch reports whether a file without a header could be the beginning of
// one.
func tornBatch(f file) bool {
	const start = `{"kind":"batch"`
	buf := make([]byte, 9+len(start))
	n, _ := f.ReadAt(buf, 0)
	for i, c := range buf[:n] {
		if i == 8 && c != ' ' || i > 8 && c != start[i-9] || i < 8 && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// readAll reads the journal and notes where items stand. j.size becomes the end of
// the last whole record.
func (j *batchJournal) readAll(r io.Reader) (*batchHeader, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var h *batchHeader
	if start, _ := br.Peek(10); !likeRecord(start) {
		return nil, &JournalError{Path: j.path, Offset: 0, Err: ErrNoJournal}
	}
	for {
		line, err := readLine(br)
		if err != nil && err != io.EOF {
			return nil, &JournalError{Path: j.path, Offset: j.size, Err: err}
		}
		if len(line) == 0 {
			return h, nil
		}
		var rec batchRecord
		sum, bad := parseLine(line, j.sum, &rec)
		if bad != nil {
			if err := (&contents{}).torn(line, br); err != nil {
				return nil, &JournalError{Path: j.path, Offset: j.size, Err: fmt.Errorf("%w: %w; %s", ErrJournalCorrupt, bad, err)}
			}
			return h, nil
		}
		switch {
		case h == nil && rec.Kind == recordBatch && rec.Header != nil:
			h = rec.Header
		case h != nil && rec.Kind == recordItem && rec.Item != nil:
			if _, seen := j.items[rec.Item.Index]; !seen && rec.Item.Error != "" {
				j.first[rec.Item.Index] = rec.Item.Key
			}
			j.items[rec.Item.Index] = place{j.size, int64(len(line)), j.sum, rec.Item.Error != ""}
		case h == nil && rec.Kind == recordHeader:
			return nil, &JournalError{Path: j.path, Offset: 0, Err: errors.New("it is the journal of a single run: use another file")}
		default:
			return nil, &JournalError{Path: j.path, Offset: j.size, Err: fmt.Errorf("%w: a record of kind %q does not belong here", ErrJournalCorrupt, rec.Kind)}
		}
		j.size, j.sum = j.size+int64(len(line)), sum
	}
}

// put writes records and returns when they are durable.
func (j *batchJournal) put(recs ...*batchRecord) error {
	if j.bad != nil {
		return j.bad
	}
	j.buf = j.buf[:0]
	sum := j.sum
	for _, rec := range recs {
		var err error
		if j.buf, sum, err = appendRecord(j.buf, rec, sum); err != nil {
			return j.fail(fmt.Errorf("a record cannot be encoded: %w", err))
		}
	}
	return j.write(sum)
}

// keep records finished items, and removes the journals of runs that went well.
func (j *batchJournal) keep(done []batchDone) error {
	recs := make([]*batchRecord, len(done))
	for i, d := range done {
		it := &keptItem{Index: d.res.Index, Key: d.item.key, Value: d.res.Value, Usage: d.res.Usage}
		if d.res.Err != nil {
			it.Error = d.res.Err.Error()
		}
		recs[i] = &batchRecord{Kind: recordItem, Item: it}
	}
	if err := j.put(recs...); err != nil {
		return err
	}
	for _, d := range done {
		if d.res.Err == nil { // if there are any
			os.Remove(j.itemPath(d.res.Index))
			os.Remove(j.itemPath(d.res.Index) + j.corrected(&d.item))
		}
	}
	return nil
}

// itemPath is where the journal of a run is kept while it goes on.
func (j *batchJournal) itemPath(i int) string {
	return filepath.Clean(j.path) + "." + strconv.Itoa(i)
}

// corrected is empty for an item with the inputs that it had at first, and names
// those that it was given after it had failed: with them it is another run, whose
// calls have other keys.
func (j *batchJournal) corrected(it *batchItem) string {
	if first, failed := j.first[it.index]; failed && first != it.key {
		return "-" + it.key
	}
	return ""
}

// restore returns the result of an item that is finished, nil if it must be run.
func (j *batchJournal) restore(it batchItem) (*BatchResult, error) {
	p, ok := j.items[it.index]
	if !ok {
		return nil, nil
	}
	line := make([]byte, p.size)
	if _, err := j.f.ReadAt(line, p.at); err != nil && err != io.EOF {
		return nil, &JournalError{Path: j.path, Offset: p.at, Err: err}
	}
	var rec batchRecord
	if _, err := parseLine(line, p.before, &rec); err != nil || rec.Item == nil {
		return nil, &JournalError{Path: j.path, Offset: p.at, Err: fmt.Errorf("%w: it was changed while it was in use", ErrJournalCorrupt)}
	}
	switch {
	case p.failed: // its inputs may have been corrected since
		return nil, nil
	case rec.Item.Key != it.key:
		var e MismatchError
		e.add("item "+strconv.Itoa(it.index), rec.Item.Key, it.key)
		return nil, &JournalError{Path: j.path, Offset: p.at, Err: &e}
	}
	if rec.Item.Value == nil {
		rec.Item.Value = json.RawMessage("null")
	}
	if _, err := lang.DecodeValue(rec.Item.Value); err != nil {
		return nil, &JournalError{Path: j.path, Offset: p.at, Err: fmt.Errorf("%w: %w", ErrJournalCorrupt, err)}
	}
	return &BatchResult{Index: it.index, Kept: it.kept, Value: rec.Item.Value, Usage: rec.Item.Usage, Restored: true}, nil
}
