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

func (s *Server) tokenLogprob(id backend.Token, lp float64, asID, control bool) tokenLogprob {
	b := s.shown(id, control)
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

// chatLogprobs are those of generated tokens.
func (s *Server) chatLogprobs(k scored, asIDs, control bool) *chatLogprobs {
	out := &chatLogprobs{Content: []chatLogprob{}}
	for i, lp := range k.logprobs {
		e := chatLogprob{tokenLogprob: s.tokenLogprob(k.tokens[i], lp, asIDs, control), Top: []tokenLogprob{}}
		for _, t := range k.likeliest(i) {
			e.Top = append(e.Top, s.tokenLogprob(t.Token, t.Logprob, asIDs, control))
		}
		out.Content = append(out.Content, e)
	}
	return out
}

// scored are generated tokens with their log-probabilities, which may be missing
// of the last ones.
type scored struct {
	tokens   []backend.Token
	logprobs []float64
	top      [][]backend.TokenLogprob // if they were asked for
}

// likeliest are the likeliest tokens in the place of token i.
func (k *scored) likeliest(i int) []backend.TokenLogprob {
	if i < len(k.top) {
		return k.top[i]
	}
	return nil
}

// scoredOf are the tokens of a result.
func scoredOf(r *backend.Result) scored {
	return scored{r.Part.Tokens, r.Logprobs[:min(len(r.Logprobs), len(r.Part.Tokens))], r.Top}
}

// scoredStream follows the tokens of a choice in a stream with log-probabilities:
// they are told as they come, or at the end by backends that know them only then.
type scoredStream struct {
	tokens, bytes int // that were told
	late          bool
}

// piece are the tokens of a delta; ok is false if they, and its text, are told at
// the end.
func (t *scoredStream) piece(d *backend.Delta) (k scored, ok bool) {
	if t.late = t.late || len(d.Logprobs) != len(d.Tokens); t.late || len(d.Tokens) == 0 {
		return k, false
	}
	t.tokens += len(d.Tokens)
	t.bytes += len(d.Text)
	return scored{d.Tokens, d.Logprobs, d.Top}, true
}

// rest is what was not told of a choice that is finished. Its last text may be
// that of no token.
func (t *scoredStream) rest(r *backend.Result) (text string, k scored) {
	k = scoredOf(r)
	n := min(t.tokens, len(k.logprobs))
	k = scored{k.tokens[n:], k.logprobs[n:], k.top[min(n, len(k.top)):]}
	return r.Part.Text[min(t.bytes, len(r.Part.Text)):], k
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
