package remote

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
)

func events(r io.Reader) (out []string, err error) {
	s := newSSEReader(r)
	for {
		ev, err := s.next()
		if err != nil {
			return out, err
		}
		out = append(out, ev.name+"|"+string(ev.data))
	}
}

func TestSSE(t *testing.T) {
	for in, want := range map[string]string{
		"data: a\n\ndata:b\n\n":             "|a,|b",
		"data: a\r\ndata: b\r\n\r\n":        "|a\nb",
		": note\n\nevent: x\ndata: 1\n\n":   "x|1",
		"event: x\n\ndata: 1\n\n":           "|1",
		"data\n\n":                          "|",
		"data: cut":                         "",
		"data: cut\n":                       "",
		"error: {\"code\":500}\n\n":         "|{\"code\":500}",
		"id: 7\nretry: 1\ndata:  two\n\n":   "| two",
		"\n\n\ndata: [DONE]\n\ndata: x\n\n": "|[DONE],|x",
	} {
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
			got, err := events(r)
			if err != io.EOF || strings.Join(got, ",") != want {
				t.Errorf("%q: %q, %v", in, got, err)
			}
		}
	}
	s := newSSEReader(strings.NewReader("data: " + strings.Repeat("x", 200) + "\n\n"))
	s.max = 100
	if _, err := s.next(); err != errEventTooLong {
		t.Error(err)
	}
	s = newSSEReader(strings.NewReader(strings.Repeat("data: 123456789\n", 30) + "\n"))
	s.max = 100
	if _, err := s.next(); err != errEventTooLong {
		t.Error(err)
	}
}

// However a stream is cut into reads, its events are the same.
func FuzzSSE(f *testing.F) {
	f.Add([]byte("data: a\n\nevent: x\r\ndata: b\r\ndata: c\r\n\r\n: d\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, err1 := events(bytes.NewReader(in))
		b, err2 := events(iotest.OneByteReader(bytes.NewReader(in)))
		if err1 != err2 || strings.Join(a, "\x00") != strings.Join(b, "\x00") {
			t.Errorf("%q (%v) and %q (%v)", a, err1, b, err2)
		}
	})
}

// However text is cut into pieces, what is handed out is valid UTF-8, is never
// taken back, and is the result.
func FuzzCollect(f *testing.F) {
	f.Add([]byte("漢😀\xf0\x9f stop"), uint8(3), "stop")
	f.Fuzz(func(t *testing.T, in []byte, step uint8, stop string) {
		var got deltas
		c := &collector{emit: got.emit, stops: []string{stop}}
		for b := in; len(b) > 0; {
			n := min(len(b), int(step%7)+1)
			if err := c.add(string(b[:n]), nil, nil); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		res, err := c.end()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got.text {
			if !utf8.ValidString(d) {
				t.Errorf("delta %q", d)
			}
		}
		if got.all() != res.Part.Text || utf8.Valid(in) && res.Part.Text != string(in) {
			t.Errorf("handed out %q, result %q, sent %q", got.all(), res.Part.Text, in)
		}
		var _ backend.Part = res.Part
	})
}

// No answer of a server makes the error path fail or show the key.
func FuzzErrorBody(f *testing.F) {
	f.Add(400, []byte(`{"error":{"message":"maximum context length is 10 tokens, you gave 20 k3y","code":"c"}}`))
	f.Add(0, []byte(`{"error":"boom","code":429}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		a, err := parseAddress("http://k3y@h/v1")
		if err != nil {
			t.Fatal(err)
		}
		s := &server{address: a, key: "k3y"}
		e := s.errorFromBody("POST /", status, nil, body)
		if e.Kind == nil || strings.Contains(e.Message, "k3y") || !utf8.ValidString(e.Message) {
			t.Errorf("%+v", e)
		}
	})
}

// No URL makes the parser panic or show its user info.
func FuzzAddress(f *testing.F) {
	f.Add("openai+http://s3cr3t@h:1/v1?model=m")
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := parseAddress(raw)
		if err == nil && (a.base.User != nil || a.root.User != nil) {
			t.Error("user info kept")
		}
	})
}
