package remote

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvent bounds the bytes of one server-sent event, and so of one line.
const maxEvent = 16 << 20

var errEventTooLong = errors.New("an event of the stream is too long")

// event is one server-sent event. Data is valid until the next call of next.
type event struct {
	name string
	data []byte
	// failed is set if the data came in a field "error", as llama-server sends
	// a failure in the middle of a stream.
	failed bool
}

// sseReader splits a text/event-stream into events. The native dialects are
// read with it; the OpenAI routes by the client library's own.
type sseReader struct {
	r    *bufio.Reader
	line []byte
	data []byte
	max  int
}

func newSSEReader(r io.Reader) *sseReader {
	return &sseReader{r: bufio.NewReader(r), max: maxEvent}
}

// next returns the next event that has data. An event that the end of the
// stream cuts short is not returned; the error is then io.EOF all the same.
func (s *sseReader) next() (event, error) {
	var ev event
	s.data = s.data[:0]
	has := false
	for {
		line, err := s.readLine()
		if err != nil {
			return event{}, err
		}
		if len(line) == 0 {
			if !has {
				ev = event{}
				continue
			}
			ev.data = s.data
			return ev, nil
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "event":
			ev.name = string(value)
		case "error":
			ev.failed = true
			fallthrough
		case "data":
			if has {
				s.data = append(s.data, '\n')
			}
			if len(s.data)+len(value) > s.max {
				return event{}, errEventTooLong
			}
			s.data = append(s.data, value...)
			has = true
		}
	}
}

// readLine returns a line without its end, valid until the next call. A last
// line without an end is not a line.
func (s *sseReader) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.r.ReadSlice('\n')
		if len(s.line)+len(part) > s.max+64 {
			return nil, errEventTooLong
		}
		s.line = append(s.line, part...)
		switch err {
		case nil:
			return bytes.TrimSuffix(s.line[:len(s.line)-1], []byte{'\r'}), nil
		case bufio.ErrBufferFull:
		default:
			return nil, err
		}
	}
}
