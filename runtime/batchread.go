package runtime

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/coppice-run/coppice/lang"
)

// SourceError says that the items of a batch cannot be read on.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return "reading the items: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *SourceError) Unwrap() error { return e.Err }

func isSourceError(err error) bool {
	var se *SourceError
	return errors.As(err, &se)
}

// maxLine bounds a line of a file of items, in bytes.
const maxLine = 64 << 20

// byteOrderMark is what some programs begin text files with.
const byteOrderMark = "\ufeff"

// ReadJSONL reads items from lines that are JSON objects. Empty lines are no
// items; a line that is no object is an item that failed.
func ReadJSONL(r io.Reader) iter.Seq2[lang.Args, error] {
	return func(yield func(lang.Args, error) bool) {
		br := bufio.NewReaderSize(r, 64<<10)
		for line := 1; ; line++ {
			text, long, err := readText(br)
			if err != nil && err != io.EOF {
				yield(nil, &SourceError{fmt.Errorf("line %d: %w", line, err)})
				return
			}
			if line == 1 {
				text = strings.TrimPrefix(text, byteOrderMark)
			}
			if long || strings.TrimSpace(text) != "" {
				args, bad := parseArgs(text)
				if long {
					bad = fmt.Errorf("longer than %d bytes", maxLine)
				}
				if bad != nil {
					args, bad = nil, fmt.Errorf("line %d: %w", line, bad)
				}
				if !yield(args, bad) {
					return
				}
			}
			if err == io.EOF {
				return
			}
		}
	}
}

// readText reads a line without its end. Of one that is too long nothing is kept.
func readText(br *bufio.Reader) (text string, long bool, err error) {
	var b strings.Builder
	for {
		part, err := br.ReadSlice('\n')
		if b.Len()+len(part) > maxLine {
			long = true
		} else {
			b.Write(part)
		}
		if err != bufio.ErrBufferFull {
			return strings.TrimRight(b.String(), "\r\n"), long, err
		}
	}
}

func parseArgs(text string) (lang.Args, error) {
	v, err := lang.DecodeValue([]byte(text))
	if err != nil {
		return nil, err
	}
	args, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s, not an object", kindOf(v))
	}
	return args, nil
}

// ReadCSV reads items from a CSV file whose first row names the inputs. An empty
// cell is an empty text, or for an input of another type no value. A row with
// another number of cells is an item that failed.
func ReadCSV(r io.Reader, inputs []lang.Input) iter.Seq2[lang.Args, error] {
	return func(yield func(lang.Args, error) bool) {
		br := bufio.NewReader(r)
		if mark, _ := br.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
			br.Discard(len(byteOrderMark)) // a quote may follow
		}
		cr := csv.NewReader(br)
		names, err := cr.Read()
		if err == io.EOF {
			return
		}
		if err != nil {
			yield(nil, &SourceError{err})
			return
		}
		seen := map[string]bool{}
		for i, n := range names {
			if n == "" || seen[n] {
				yield(nil, &SourceError{fmt.Errorf("column %d of the first row is %q: name each column once", i+1, n)})
				return
			}
			seen[n] = true
		}
		text := map[string]bool{}
		for _, in := range inputs {
			text[in.Name] = in.Type.Kind == lang.TypeString || in.Type.Kind == lang.TypeAny
		}
		for {
			row, err := cr.Read()
			var pe *csv.ParseError
			switch {
			case err == io.EOF:
				return
			case errors.As(err, &pe):
				if !yield(nil, err) {
					return
				}
				continue
			case err != nil:
				yield(nil, &SourceError{err})
				return
			}
			args := make(lang.Args, len(names))
			for i, n := range names {
				if isText, input := text[n]; row[i] == "" && input && !isText {
					continue
				}
				args[n] = row[i]
			}
			if !yield(args, nil) {
				return
			}
		}
	}
}

// FromChannel takes items from a channel until it is closed or ctx ends.
func FromChannel(ctx context.Context, ch <-chan lang.Args) iter.Seq2[lang.Args, error] {
	return func(yield func(lang.Args, error) bool) {
		for {
			select {
			case args, ok := <-ch:
				if !ok || !yield(args, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}
