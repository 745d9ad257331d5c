package engine

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// puppetStream feeds tokens given by their bytes.
func puppetStream(stops []string, tokens []string) (st *stream, deltas []backend.Delta, stop stopAt, stopped bool) {
	st = newStream(func(t backend.Token) []byte { return []byte(tokens[t]) }, stops)
	for i := range tokens {
		if stop, stopped = st.push(backend.Token(i), backend.Origin(i%2)); stopped {
			return st, deltas, stop, true
		}
		deltas = append(deltas, st.take()...)
	}
	return st, deltas, stop, false
}

func TestStream(t *testing.T) {
	const frag = 1000 // ids of re-encoded text start here
	for name, c := range map[string]struct {
		stops, tokens []string
		text, matched string
		kept          []int // tokens, -1 for re-encoded text
	}{
		"plain":               {nil, []string{"He", "llo"}, "Hello", "", []int{0, 1}},
		"over tokens":         {[]string{"STOP-NO"}, []string{"a", "ST", "OP-", "N", "Ox"}, "a", "STOP-NO", []int{0}},
		"false start":         {[]string{"STOP-NO"}, []string{"ST", "OP-", "Ox"}, "STOP-Ox", "", []int{0, 1, 2}},
		"false start of two":  {[]string{"aab"}, []string{"a", "a", "a", "b"}, "a", "aab", []int{0}},
		"inside a token":      {[]string{"OP"}, []string{"xSTOPy"}, "xST", "OP", []int{-1}},
		"ends inside a token": {[]string{"\n\n"}, []string{"a\n", "\nb"}, "a", "\n\n", []int{-1}},
		"overlapping":         {[]string{"ab", "abc"}, []string{"x", "abc"}, "x", "ab", []int{0}},
		"overlapping, single": {[]string{"ab", "abc"}, []string{"x", "a", "b", "c"}, "x", "ab", []int{0}},
		"first to end":        {[]string{"abcd", "bc"}, []string{"abc", "d"}, "a", "bc", []int{-1}},
		"longest of those":    {[]string{"c", "bc"}, []string{"a", "bc"}, "a", "bc", []int{0}},
		"at once":             {[]string{"a"}, []string{"a"}, "", "a", nil},
		"held at the end":     {[]string{"STOP"}, []string{"x", "STO"}, "xSTO", "", []int{0, 1}},
		"bytes":               {nil, []string{"\xe6", "\xbc", "\xa2", "\xf0\x9f", "\x98\x80", "e", "\xcc", "\x81"}, "漢😀e\u0301", "", []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"half at the end":     {nil, []string{"a", "\xf0\x9f"}, "a", "", []int{0}},
		"half after a char":   {nil, []string{"a", "b\xf0\x9f"}, "ab", "", []int{0, -1}},
		"broken inside":       {nil, []string{"a", "\xf0\x9f", "b"}, "a\uFFFDb", "", []int{0, 1, 2}},
		"stop over bytes":     {[]string{"漢"}, []string{"a", "\xe6", "\xbc", "\xa2"}, "a", "漢", []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			st, deltas, stop, stopped := puppetStream(c.stops, c.tokens)
			at := -1
			if stopped {
				at = stop.at
			}
			e := st.finish(at, func(text string) []backend.Token { return []backend.Token{frag} })
			if e.text != c.text || stop.stop != c.matched {
				t.Errorf("text %q stopped by %q, want %q by %q", e.text, stop.stop, c.text, c.matched)
			}
			var want []backend.Token
			for _, k := range c.kept {
				if k < 0 {
					k = frag
				}
				want = append(want, backend.Token(k))
			}
			if !slices.Equal(e.tokens, want) {
				t.Errorf("tokens %v, want %v", e.tokens, want)
			}
			var text strings.Builder
			var tokens []backend.Token
			for _, d := range append(deltas, e.deltas...) {
				if !utf8.ValidString(d.Text) {
					t.Errorf("delta %q is not UTF-8", d.Text)
				}
				text.WriteString(d.Text)
				tokens = append(tokens, d.Tokens...)
			}
			if text.String() != e.text || !slices.Equal(tokens, e.tokens) {
				t.Errorf("the stream gave %q %v, the result is %q %v", text.String(), tokens, e.text, e.tokens)
			}
		})
	}
}

// TestStreamIsTheResult: whatever the model writes, the deltas add up to the
// result and hold nothing of a stop string.
func TestStreamIsTheResult(t *testing.T) {
	e := newFake(t, nil)
	for seed := range uint64(40) {
		req := &backend.Request{
			Turns: []backend.Turn{user("x")}, MaxTokens: 60, IgnoreEOS: true, Stop: []string{"ab", "ST\x01", "in"},
			Sampling: backend.Sampling{Temperature: 4, Seed: seed},
		}
		var text strings.Builder
		var tokens []backend.Token
		r, err := e.Generate(context.Background(), req, func(d backend.Delta) {
			text.WriteString(d.Text)
			tokens = append(tokens, d.Tokens...)
			if !utf8.ValidString(d.Text) {
				t.Errorf("delta %q", d.Text)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if text.String() != r.Part.Text || !slices.Equal(tokens, r.Part.Tokens) {
			t.Errorf("seed %d: stream %q %v, result %q %v", seed, text.String(), tokens, r.Part.Text, r.Part.Tokens)
		}
		for _, stop := range req.Stop {
			if strings.Contains(r.Part.Text, stop) {
				t.Errorf("seed %d: %q holds %q", seed, r.Part.Text, stop)
			}
		}
		if (r.Finish == backend.FinishStop) != (r.Matched != "") {
			t.Errorf("seed %d: finish %q, matched %q", seed, r.Finish, r.Matched)
		}
	}
}

// FuzzStream cuts bytes into tokens in many ways: the result is that of the
// text as a whole, and the deltas add up to it.
func FuzzStream(f *testing.F) {
	f.Add([]byte("hello STOP there"), []byte{3, 1, 200, 2}, "STOP", "OP t")
	f.Add([]byte("漢😀e\u0301\xff\xf0\x9f"), []byte{1}, "😀", "\uFFFD")
	f.Add([]byte("aaaaab"), []byte{2, 3}, "aab", "ab")
	f.Fuzz(func(t *testing.T, data, cuts []byte, stop1, stop2 string) {
		var stops []string
		for _, s := range []string{stop1, stop2} {
			if s != "" && utf8.ValidString(s) {
				stops = append(stops, s)
			}
		}
		var tokens []string
		for i, rest := 0, data; len(rest) > 0; i++ {
			n := 1
			if len(cuts) > 0 {
				n = min(len(rest), 1+int(cuts[i%len(cuts)])%5)
			}
			tokens = append(tokens, string(rest[:n]))
			rest = rest[n:]
		}
		// The whole text: without half a character at the end, up to the stop
		// string that ends first, of those the longest.
		d := tokenizer.NewStreamDecoder(nil)
		want := d.PushBytes(data)
		end, matched := len(want)+1, ""
		for _, s := range stops {
			if i := strings.Index(want, s); i >= 0 && (i+len(s) < end || i+len(s) == end && len(s) > len(matched)) {
				end, matched = i+len(s), s
			}
		}
		if matched != "" {
			want = want[:end-len(matched)]
		}

		st, deltas, stop, stopped := puppetStream(stops, tokens)
		at := -1
		if stopped {
			at = stop.at
		}
		const frag = 1 << 20
		e := st.finish(at, func(string) []backend.Token { return []backend.Token{frag} })
		if e.text != want || stop.stop != matched {
			t.Fatalf("%q cut as %q, stops %q: text %q by %q, want %q by %q", data, tokens, stops, e.text, stop.stop, want, matched)
		}
		var text strings.Builder
		var ids []backend.Token
		for _, d := range append(deltas, e.deltas...) {
			if !utf8.ValidString(d.Text) {
				t.Fatalf("delta %q", d.Text)
			}
			text.WriteString(d.Text)
			ids = append(ids, d.Tokens...)
			if !strings.HasPrefix(want, text.String()) {
				t.Fatalf("streamed %q of %q", text.String(), want)
			}
		}
		if text.String() != want || !slices.Equal(ids, e.tokens) {
			t.Fatalf("streamed %q %v, result %q %v", text.String(), ids, e.text, e.tokens)
		}
	})
}

// TestPatternsEndBehindTheNewText: what was in the text before does not match later,
// when only a part of it is looked at.
func TestPatternsEndBehindTheNewText(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		at            int // byte behind which the text ends, 0 for never
	}{
		{`\bcat`, strings.Repeat("x", 300) + "concat" + strings.Repeat(".", 600), 0},
		{`\bcat`, strings.Repeat("x", 300) + "concat cat", 310},
		{`o.`, "so", 0},
		{`o.`, "so so", 3},
		{`é+x`, strings.Repeat("é", 200) + "x", 401},
	} {
		s := newStream(func(t backend.Token) []byte { return []byte{byte(t)} }, nil)
		s.patterns = []*regexp.Regexp{regexp.MustCompile(c.pattern)}
		at := 0
		for i := range len(c.text) {
			if _, ok := s.push(backend.Token(c.text[i]), backend.Sampled); ok {
				at = i + 1
				break
			}
		}
		if at != c.at {
			t.Errorf("%s stops %.20q.. behind byte %d, want %d", c.pattern, c.text, at, c.at)
		}
	}
}
