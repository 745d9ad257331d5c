package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads the parts of Lark rules that are written in JSON.

// json reads one JSON value.
func (p *larkParser) json() []byte {
	dec := json.NewDecoder(strings.NewReader(p.src[p.pos:]))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		p.fail(ErrInvalid, "what follows is not JSON: "+err.Error())
	}
	p.pos += int(dec.InputOffset())
	return raw
}

// value reads the schema of a JSON value.
func (p *larkParser) value(at int) *expr {
	e, err := p.schema(at)
	var inner *Error
	if errors.As(err, &inner) && inner.Source == "schema" {
		p.pos = at
		p.fail(inner.Kind, strings.TrimSuffix(inner.Error(), " ("+inner.Kind.Error()+")"))
	}
	if err != nil {
		panic(fail{err})
	}
	if e.kind == exRef {
		e.kind = exVal
	}
	return e
}

func (p *larkParser) schema(at int) (e *expr, err error) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fail:
			err = f.err
		default:
			panic(f)
		}
	}()
	return p.c.part(Spec{JSONSchema: p.json()}, p.where(at))
}

// maxChunks bounds the parts that %regex puts a text together from.
const maxChunks = 2000

// wordChunks cuts a text into blanks, words and what is between them.
var wordChunks = regexp.MustCompile(`[\s\p{Z}]+|[\p{L}\p{M}\p{N}_]+|[^\s\p{Z}\p{L}\p{M}\p{N}_]+`)

// substring reads what %regex gives: any parts of a list that follow one another.
func (p *larkParser) substring(at int) *expr {
	var how struct {
		Chunks []string `json:"substring_chunks"`
		Words  *string  `json:"substring_words"`
		Chars  *string  `json:"substring_chars"`
	}
	dec := json.NewDecoder(bytes.NewReader(p.json()))
	dec.DisallowUnknownFields()
	err := dec.Decode(&how)
	p.pos, at = at, p.pos
	if err != nil {
		p.fail(ErrUnsupported, "such a %regex: there are substring_chunks, a list of texts, and substring_words and substring_chars, a text")
	}
	chunks, given := how.Chunks, 0
	for _, is := range []bool{how.Chunks != nil, how.Words != nil, how.Chars != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		p.fail(ErrInvalid, "one of substring_chunks, substring_words and substring_chars belongs into %regex")
	case how.Words != nil:
		chunks = wordChunks.FindAllString(*how.Words, -1)
	case how.Chars != nil:
		chunks = strings.Split(*how.Chars, "")
	}
	if len(chunks) > maxChunks {
		p.fail(ErrTooLarge, "more than "+strconv.Itoa(maxChunks)+" parts in %regex")
	}
	p.pos = at
	rest, all := rxEps, []nodeID{rxEps}
	for _, x := range slices.Backward(chunks) {
		rest = p.c.opt(p.c.cat(p.c.bytes(x), rest))
		all = append(all, rest)
	}
	return &expr{lex: p.c.alt(all...)}
}
