package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStreamHoldsBackHalfCharacters(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	text := "漢😀é\u0301!"
	d := NewStreamDecoder(tok)
	got := ""
	for _, b := range []byte(text) {
		id, _ := tok.Lookup(string(byteRune[b]))
		s := d.Push(id)
		if !utf8.ValidString(s) {
			t.Errorf("push gives %q", s)
		}
		got += s
		if len(got) > 0 && !strings.HasPrefix(text, got) {
			t.Errorf("so far %q", got)
		}
	}
	if got += d.Flush(); got != text {
		t.Errorf("got %q", got)
	}
}

func TestStreamReplacesBrokenCharactersOnce(t *testing.T) {
	for in, want := range map[string]string{
		"a\xe6\xbc":        "a\uFFFD",            // half a character at the end
		"\xe6\xbcb":        "\uFFFDb",            // and in the middle
		"\xf0\x9f\x98":     "\uFFFD",             //
		"\xf0\x9f\x98\xf0": "\uFFFD\uFFFD",       // two beginnings
		"\x80\x80":         "\uFFFD\uFFFD",       // never the start of a character
		"\xc3\xa9\xff\xc3": "é\uFFFD\uFFFD",      //
		"\xed\xa0\x80":     "\uFFFD\uFFFD\uFFFD", // a surrogate
		"\uFFFD":           "\uFFFD",             // said by the model itself
		"":                 "",
	} {
		for size := 1; size <= 3; size++ {
			d := &StreamDecoder{}
			got := ""
			for i := 0; i < len(in); i += size {
				s := d.PushBytes([]byte(in[i:min(i+size, len(in))]))
				if !utf8.ValidString(s) {
					t.Errorf("%q by %d: push gives %q", in, size, s)
				}
				got += s
			}
			got += d.Flush()
			if got != want {
				t.Errorf("%q by %d: got %q, want %q", in, size, got, want)
			}
			if d.Held() != 0 || d.Flush() != "" {
				t.Errorf("%q: something is held after Flush", in)
			}
		}
	}
}

func TestStreamEqualsDecode(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	rng := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		var ids []Token
		for range rng.IntN(20) {
			ids = append(ids, Token(rng.IntN(tok.Size())))
		}
		d := NewStreamDecoder(tok)
		got := ""
		for _, id := range ids {
			got += d.Push(id)
		}
		if got += d.Flush(); got != tok.Decode(ids) {
			t.Fatalf("%v: stream %q, at once %q", ids, got, tok.Decode(ids))
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("漢😀\xff\xf0\x9f"), 2)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		size = max(size&7, 1)
		a, b := &StreamDecoder{}, &StreamDecoder{}
		whole := a.PushBytes(in) + a.Flush()
		parts := ""
		for i := 0; i < len(in); i += size {
			s := b.PushBytes(in[i:min(i+size, len(in))])
			if !utf8.ValidString(s) {
				t.Fatalf("%q by %d gives %q", in, size, s)
			}
			parts += s
		}
		parts += b.Flush()
		if whole != parts || utf8.Valid(in) && whole != string(in) {
			t.Fatalf("%q by %d: %q, at once %q", in, size, parts, whole)
		}
	})
}
