package grammar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// CheckOptions says how [Check] reads schemas.
type CheckOptions struct {
	// AnyOrder compiles every schema with [Spec.AnyOrder]. Without it, a test's
	// data whose keys stand in another order than the schema's is checked
	// against the any-order grammar; a test's text never is.
	AnyOrder   bool
	Whitespace Whitespace
	Limits     Limits
	// Vocab, if it encodes, has every accepted text also written token by token,
	// as its tokenizer writes it, through masks; nil checks bytes alone.
	Vocab *Vocab
	// Timeout bounds the compiling of one schema; zero is 60 s.
	Timeout time.Duration
}

// CheckReport is what [Check] found.
type CheckReport struct {
	Schemas      int            `json:"schemas"`
	AllRight     int            `json:"all_right"`
	Refused      int            `json:"refused"`
	Tests        int            `json:"tests"`
	OtherOrder   int            `json:"other_order"` // tests checked against the any-order grammar for the order of their keys
	WrongAccepts int            `json:"wrong_accepts"`
	WrongRejects int            `json:"wrong_rejects"`
	Failures     []CheckFailure `json:"failures"`
}

// CheckFailure is one schema that was refused or one test with a wrong answer.
type CheckFailure struct {
	ID   string `json:"id"`
	Test int    `json:"test"` // index in the schema's tests, -1 for a refused schema
	Kind string `json:"kind"` // "refused", "wrong_accept" or "wrong_reject"
	At   int    `json:"at"`   // byte of the written text at which it left the grammar
	Why  string `json:"why"`
}

// checkLine is one line of the input of Check.
type checkLine struct {
	ID     string          `json:"id"`
	Schema json.RawMessage `json:"schema"`
	Tests  []checkTest     `json:"tests"`
}

type checkTest struct {
	Valid bool            `json:"valid"`
	Data  json.RawMessage `json:"data"`
	Text  *string         `json:"text"`
}

// Check reads lines {"id","schema","tests":[{"valid","data" or "text"}]} and
// compares what the schemas' grammars accept with what the tests say. A text is
// accepted when the grammar reads it whole and may end there. The text of a
// test's data is data written the way the grammar writes: keys in their order,
// plain spelling, the white space of opts.
func Check(ctx context.Context, r io.Reader, opts CheckOptions) (*CheckReport, error) {
	vocab := opts.Vocab
	if vocab == nil {
		vocab = ByteVocab()
	}
	rep := &CheckReport{Failures: []CheckFailure{}}
	sc := bufio.NewReaderSize(r, 1<<20)
	for line := 1; ; line++ {
		text, err := sc.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			var l checkLine
			if err := json.Unmarshal(text, &l); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			if l.ID == "" {
				l.ID = "line " + strconv.Itoa(line)
			}
			if err := rep.check(ctx, vocab, &l, opts); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			return rep, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (rep *CheckReport) check(ctx context.Context, vocab *Vocab, l *checkLine, opts CheckOptions) error {
	rep.Schemas++
	limit := opts.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	sub, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	spec := Spec{JSONSchema: l.Schema, AnyOrder: opts.AnyOrder, Whitespace: opts.Whitespace, Limits: opts.Limits}
	g, err := Compile(sub, spec, vocab)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fail := func(test int, kind string, at int, why string) {
		rep.Failures = append(rep.Failures, CheckFailure{l.ID, test, kind, at, why})
	}
	unsatisfiable := errors.Is(err, ErrUnsatisfiable)
	if err != nil && !unsatisfiable {
		rep.Refused++
		fail(-1, "refused", 0, err.Error())
		return nil
	}
	var loose *Grammar // the any-order grammar, once it is needed
	right := true
	for i, t := range l.Tests {
		rep.Tests++
		text, err := t.text(opts)
		if err != nil {
			return fmt.Errorf("%s, test %d: %w", l.ID, i, err)
		}
		ok, at := false, 0
		if !unsatisfiable {
			ok, at = g.Reach(text)
			if ok && opts.Vocab != nil {
				ok, at = g.reachByTokens(text)
			}
			if !ok && t.Text == nil && !opts.AnyOrder && bytes.IndexByte(text, '{') >= 0 {
				if loose == nil {
					spec.AnyOrder = true
					if loose, err = Compile(sub, spec, vocab); err != nil {
						rep.Refused++
						fail(-1, "refused", 0, "in any order: "+err.Error())
						return nil
					}
				}
				if ok, _ = loose.Reach(text); ok {
					rep.OtherOrder++
				}
			}
		}
		switch {
		case ok && !t.Valid:
			rep.WrongAccepts++
			fail(i, "wrong_accept", at, excerpt(text, at))
		case !ok && t.Valid:
			rep.WrongRejects++
			fail(i, "wrong_reject", at, excerpt(text, at))
		default:
			continue
		}
		right = false
	}
	if right {
		rep.AllRight++
	}
	return nil
}

// Reach reports whether a text is a text of the grammar, and, when it is not,
// at which byte it left the grammar (its length: it stopped too early).
func (g *Grammar) Reach(text []byte) (ok bool, at int) {
	p, at := g.m.walk(g.m.begin, text)
	return p != nil && p.canEnd, at
}

// reachByTokens is Reach for a text that is written as the tokenizer writes it,
// each token out of the mask before it.
func (g *Grammar) reachByTokens(text []byte) (ok bool, at int) {
	if g.vocab.encode == nil {
		return g.Reach(text)
	}
	bits := make([]uint64, g.vocab.MaskWords())
	s := g.Start()
	for _, id := range g.vocab.encode(text) {
		s.Mask(bits)
		next, err := s.Accept(id)
		if err != nil || bits[id>>6]&(1<<(id&63)) == 0 {
			return false, at
		}
		s, at = next, at+len(g.vocab.Token(id))
	}
	return at == len(text) && s.CanEnd(), at
}

func excerpt(text []byte, at int) string {
	from, to := max(0, at-40), min(len(text), at+20)
	return strconv.Quote(string(text[from:at])) + " | " + strconv.Quote(string(text[at:to]))
}

func (t *checkTest) text(opts CheckOptions) ([]byte, error) {
	if t.Text != nil {
		return []byte(*t.Text), nil
	}
	if t.Data == nil {
		return nil, errors.New("neither data nor text")
	}
	v, err := parseJSON(t.Data, 5000)
	if err != nil {
		return nil, err
	}
	return v.appendJSON(nil, &form{opts.Whitespace.Indent}, 0), nil
}

// ByteVocab is the vocabulary of the 256 single bytes; token i is byte i. It
// has no end token.
func ByteVocab() *Vocab {
	tokens := make([][]byte, 256)
	for i := range tokens {
		tokens[i] = []byte{byte(i)}
	}
	v, err := NewVocab(tokens, VocabOptions{})
	if err != nil {
		panic(err)
	}
	return v
}

// Canonical rewrites a JSON text the way a grammar with compact white space
// writes it.
func Canonical(text []byte) ([]byte, error) {
	v, err := parseJSON(text, 5000)
	if err != nil {
		return nil, err
	}
	return v.appendJSON(nil, &form{}, 0), nil
}
