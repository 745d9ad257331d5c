package puppet

import (
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// EOS is the id of the end of a turn. The ids below it are bytes.
const EOS backend.Token = 256

// Render returns a prompt as the text that rules are matched with: each turn on
// its own line after its role and a colon, text outside any turn as it stands,
// and at the end the turn that is to be continued:
//
//	system: You are terse.
//	user: Plan?
//	assistant: So far
func Render(turns []backend.Turn) string {
	var b strings.Builder
	for i, t := range turns {
		if t.Role != backend.Raw {
			b.WriteString(string(t.Role))
			b.WriteString(": ")
		}
		for _, p := range t.Parts {
			if p.Image != "" {
				b.WriteString("[image]")
			}
			b.WriteString(p.Text)
		}
		if t.Role != backend.Raw && !(t.Open && i == len(turns)-1) {
			b.WriteByte('\n')
		}
	}
	if n := len(turns); n == 0 || (!turns[n-1].Open && turns[n-1].Role != backend.Raw) {
		b.WriteString("assistant: ")
	}
	return b.String()
}

// Tokens returns the ids of a text: its bytes.
func Tokens(text string) []backend.Token {
	ids := make([]backend.Token, len(text))
	for i := range len(text) {
		ids[i] = backend.Token(text[i])
	}
	return ids
}

// Text returns the text of ids; [EOS] is dropped.
func Text(ids []backend.Token) string {
	b := make([]byte, 0, len(ids))
	for _, id := range ids {
		if id >= 0 && id < 256 {
			b = append(b, byte(id))
		}
	}
	return string(b)
}
