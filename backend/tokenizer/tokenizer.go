package tokenizer

import "strings"

// Token is the number of a vocabulary entry.
type Token = int32

// Piece is a stretch of text for EncodePieces.
type Piece struct {
	Text string

	// Special: the text of a control token inside Text is recognised as that token.
	// Otherwise Text is plain and yields no control token.
	Special bool
}

// Tokenizer converts between text and tokens. Make one with FromGGUF.
type Tokenizer struct {
	vocab    vocabulary
	specials *trie
	words    *wordCache
	model    model

	addBOS         bool
	addSpacePrefix bool
}

// model turns one fragment, text without control tokens, into tokens.
type model interface {
	encode(t *Tokenizer, fragment string, atStart bool, out []Token) []Token
}

// Encode turns text into tokens. With parseSpecial the text of control tokens is
// recognised, without it is ordinary text. No BOS is added.
func (t *Tokenizer) Encode(text string, parseSpecial bool) []Token {
	return t.encode(text, []span{{len(text), parseSpecial}})
}

// EncodePieces turns pieces into tokens as if their texts were one text, in which
// control tokens are recognised only where all of their text is special. No BOS is
// added.
func (t *Tokenizer) EncodePieces(pieces []Piece) []Token {
	var spans []span
	var b strings.Builder
	for _, p := range pieces {
		if p.Text == "" {
			continue
		}
		b.WriteString(p.Text)
		if n := len(spans); n > 0 && spans[n-1].special == p.Special {
			spans[n-1].end = b.Len()
		} else {
			spans = append(spans, span{b.Len(), p.Special})
		}
	}
	return t.encode(b.String(), spans)
}

// WithBOS puts BOS before tokens if the model expects one and they do not start with
// it already, as the tokens of a chat template may.
func (t *Tokenizer) WithBOS(ids []Token) []Token {
	if !t.addBOS || len(ids) > 0 && ids[0] == t.vocab.bos {
		return ids
	}
	return append([]Token{t.vocab.bos}, ids...)
}

func (t *Tokenizer) encode(text string, spans []span) []Token {
	if text == "" {
		return nil
	}
	out := make([]Token, 0, len(text)/4+8)
	at, atStart := 0, true // atStart: nothing or a special token is before
	for _, m := range t.specials.find(text, spans) {
		if m.start > at {
			out = t.model.encode(t, text[at:m.start], atStart, out)
		}
		out = append(out, m.token)
		at, atStart = m.end, true
		if t.vocab.kinds[m.token]&rstrip != 0 {
			for at < len(text) && isSpaceByte(text[at]) {
				at++
			}
		}
	}
	if at < len(text) {
		out = t.model.encode(t, text[at:], atStart, out)
	}
	return out
}

// Size is the number of tokens in the vocabulary.
func (t *Tokenizer) Size() int { return len(t.vocab.texts) }

// IsControl tells whether id is a control token: it marks structure (turns, ends)
// and stands for no text. The unknown token counts as one.
func (t *Tokenizer) IsControl(id Token) bool {
	return t.valid(id) && t.vocab.kinds[id]&(control|unknown) != 0
}

// BOS is the token that starts a text, if the model has one.
func (t *Tokenizer) BOS() (Token, bool) { return t.vocab.bos, t.vocab.bos >= 0 }

// EOS is the model's main end token, if it has one. A run must stop at any of
// EndTokens, not at this one only.
func (t *Tokenizer) EOS() (Token, bool) { return t.vocab.eos, t.vocab.eos >= 0 }

// EndTokens are all tokens that end a generation, in ascending order: the ids that
// the file names (eos, eot, eom, the fill-in-the-middle marks) and those known by
// their text, such as <|im_end|>. The slice is shared; do not modify.
func (t *Tokenizer) EndTokens() []Token { return t.vocab.ends }

// AddBOS tells whether the model expects BOS before a text that has none.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// AddSpacePrefix tells whether Encode puts a space before text at the start and
// after control tokens, as the SentencePiece models of the Llama 2 kind want.
func (t *Tokenizer) AddSpacePrefix() bool { return t.addSpacePrefix }

// Lookup finds a token by its text in the vocabulary, as Text gives it.
func (t *Tokenizer) Lookup(text string) (Token, bool) {
	id, ok := t.vocab.byText[text]
	return id, ok
}

// Text is the text of a token as the vocabulary spells it: "Ġthe" or "▁the" or
// "<|im_end|>". Empty for an id outside the vocabulary.
func (t *Tokenizer) Text(id Token) string {
	if !t.valid(id) {
		return ""
	}
	return t.vocab.texts[id]
}

func (t *Tokenizer) valid(id Token) bool { return id >= 0 && int(id) < len(t.vocab.texts) }

func isSpaceByte(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
