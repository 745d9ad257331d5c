package serve

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
)

// leastLogprob stands for minus infinity, which JSON cannot say.
const leastLogprob = -9999.0

func finite(lp float64) float64 {
	if math.IsNaN(lp) || lp < leastLogprob {
		return leastLogprob
	}
	return lp
}

// tokenLogprob is a token of a chat's logprobs.
type tokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // the true ones; a token may be part of a character
}

type chatLogprob struct {
	tokenLogprob
	Top []tokenLogprob `json:"top_logprobs"`
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
	Refusal []chatLogprob `json:"refusal"`
}

func (s *Server) tokenLogprob(id backend.Token, lp float64, asID bool) tokenLogprob {
	b := s.cfg.Vocabulary.Bytes(id)
	out := tokenLogprob{Token: s.tokenName(id, asID), Logprob: finite(lp), Bytes: make([]int, len(b))}
	for i, x := range b {
		out.Bytes[i] = int(x)
	}
	return out
}

// tokenName is tokenText, or the token's id, as vLLM writes it.
func (s *Server) tokenName(id backend.Token, asID bool) string {
	if asID {
		return "token_id:" + strconv.Itoa(int(id))
	}
	return s.tokenText(id)
}

// tokenText is the text of a token for people: bytes that are no character are
// written as \xNN, a control token by its name.
func (s *Server) tokenText(id backend.Token) string {
	v := s.cfg.Vocabulary
	b := v.Bytes(id)
	if len(b) == 0 {
		return v.Text(id)
	}
	if utf8.Valid(b) {
		return string(b)
	}
	const hex = "0123456789abcdef"
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			out.WriteString(`\x`)
			out.WriteByte(hex[b[0]>>4])
			out.WriteByte(hex[b[0]&15])
			n = 1
		} else {
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.String()
}

// chatLogprobs are those of a choice.
func (s *Server) chatLogprobs(c *choice, top int, asIDs bool) *chatLogprobs {
	out := &chatLogprobs{Content: []chatLogprob{}}
	r := c.result
	for i, id := range r.Part.Tokens {
		if i >= len(r.Logprobs) {
			break
		}
		e := chatLogprob{tokenLogprob: s.tokenLogprob(id, r.Logprobs[i], asIDs), Top: []tokenLogprob{}}
		if i < len(c.top) {
			for _, t := range c.top[i][:min(top, len(c.top[i]))] {
				e.Top = append(e.Top, s.tokenLogprob(t.Token, t.Logprob, asIDs))
			}
		}
		out.Content = append(out.Content, e)
	}
	return out
}

// canLogprobs checks that the backend can give what is asked for.
func (s *Server) canLogprobs(f *fields, name string, top int) {
	if s.cfg.Vocabulary == nil || !s.info.Capabilities.Logprobs {
		f.fail(name, "is not supported: this model shows no log-probabilities")
		return
	}
	if _, ok := s.be.(backend.LogprobScorer); top > 0 && !ok {
		f.fail(name, "is not supported: this model does not show the log-probabilities of other tokens")
	}
}

// wholeCharacters is the length of the part of b that ends where a character
// does; bytes that are no character count as one each.
func wholeCharacters(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if utf8.RuneStart(b[len(b)-n]) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return len(b) - n
			}
			break
		}
	}
	return len(b)
}
