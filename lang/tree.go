package lang

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// tree is a JSON or YAML document with the order of its keys and the lines of
// its parts: what encoding and decoding work on.
type tree struct {
	kind treeKind
	// text is a string's value, and the spelling of numbers, bools and null.
	text  string
	src   string // of a scalar in YAML: how it is written
	line  int
	body  int      // of a literal block: the line of its first text
	keys  []string // of a map
	at    []int    // lines of keys
	vals  []*tree  // of a map or list
	raw   bool     // a text that reads better as a block of lines
	flow  bool     // a map or list that reads better on one line
	block bool     // a map or list that reads better on several
}

type treeKind uint8

const (
	treeNull treeKind = iota
	treeBool
	treeNumber
	treeString
	treeList
	treeMap
)

func (k treeKind) String() string {
	return [...]string{"nothing", "a bool", "a number", "a string", "a list", "a map"}[k]
}

// Limits of documents.
const (
	maxTreeDepth = 256
	maxTreeNodes = 1 << 20
	maxDocBytes  = 64 << 20
)

func strTree(s string) *tree    { return &tree{kind: treeString, text: s} }
func boolTree(b bool) *tree     { return &tree{kind: treeBool, text: strconv.FormatBool(b)} }
func intTree(n int) *tree       { return &tree{kind: treeNumber, text: strconv.Itoa(n)} }
func numTree(text string) *tree { return &tree{kind: treeNumber, text: text} }
func floatTree(f float64) *tree {
	return &tree{kind: treeNumber, text: string(appendFloat(nil, f))}
}
func listTree(vals ...*tree) *tree { return &tree{kind: treeList, vals: vals} }

func strings2tree(ss []string) *tree {
	t := listTree()
	t.flow = true
	for _, s := range ss {
		t.vals = append(t.vals, strTree(s))
	}
	return t
}

// put appends a key to a map.
func (t *tree) put(key string, v *tree) *tree {
	t.kind = treeMap
	t.keys = append(t.keys, key)
	t.vals = append(t.vals, v)
	t.at = append(t.at, v.line)
	return t
}

// get returns the value of a key, or nil.
func (t *tree) get(key string) *tree {
	if t == nil || t.kind != treeMap {
		return nil
	}
	for i, k := range t.keys {
		if k == key {
			return t.vals[i]
		}
	}
	return nil
}

// lineError is an error in a document with its line.
type lineError struct {
	line int
	msg  string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.msg) }

// parseJSON reads one JSON document.
func parseJSON(data []byte) (*tree, error) {
	if !utf8.Valid(data) {
		return nil, &lineError{badUTF8Line(data), "the text is not UTF-8"}
	}
	p := jsonParser{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	p.dec.UseNumber()
	t, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return nil, p.errorf("more after the end of the document")
	}
	return t, nil
}

func badUTF8Line(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == utf8.RuneError && n == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		data = data[n:]
	}
	return line
}

type jsonParser struct {
	data  []byte
	dec   *json.Decoder
	off   int
	line  int
	nodes int
}

func (p *jsonParser) errorf(format string, args ...any) error {
	p.sync()
	return &lineError{p.line, fmt.Sprintf(format, args...)}
}

// sync moves line to where the decoder is.
func (p *jsonParser) sync() {
	to := min(int(p.dec.InputOffset()), len(p.data))
	p.line += bytes.Count(p.data[p.off:to], []byte{'\n'})
	p.off = to
}

func (p *jsonParser) token() (json.Token, error) {
	tok, err := p.dec.Token()
	if err != nil {
		var syn *json.SyntaxError
		if errors.As(err, &syn) {
			line := 1 + bytes.Count(p.data[:min(int(syn.Offset), len(p.data))], []byte{'\n'})
			return nil, &lineError{line, syn.Error()}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, &lineError{1 + bytes.Count(p.data, []byte{'\n'}), "the document ends too early"}
		}
		return nil, p.errorf("%v", err)
	}
	p.sync()
	if p.nodes++; p.nodes > maxTreeNodes {
		return nil, p.errorf("more than %d values", maxTreeNodes)
	}
	return tok, nil
}

func (p *jsonParser) value(depth int) (*tree, error) {
	tok, err := p.token()
	if err != nil {
		return nil, err
	}
	if depth > maxTreeDepth {
		return nil, p.errorf("nested deeper than %d", maxTreeDepth)
	}
	t := &tree{line: p.line}
	switch tok := tok.(type) {
	case nil:
		t.text = "null"
	case bool:
		t.kind, t.text = treeBool, strconv.FormatBool(tok)
	case json.Number:
		t.kind, t.text = treeNumber, tok.String()
	case string:
		t.kind, t.text = treeString, tok
	case json.Delim:
		if tok == '[' {
			t.kind = treeList
			for p.dec.More() {
				v, err := p.value(depth + 1)
				if err != nil {
					return nil, err
				}
				t.vals = append(t.vals, v)
			}
		} else {
			t.kind = treeMap
			var seen map[string]bool
			for p.dec.More() {
				key, err := p.token()
				if err != nil {
					return nil, err
				}
				k, ok := key.(string)
				if !ok {
					return nil, p.errorf("want a key")
				}
				if seen == nil {
					seen = map[string]bool{}
				}
				if seen[k] {
					return nil, p.errorf("key %q twice", k)
				}
				seen[k] = true
				at := p.line
				v, err := p.value(depth + 1)
				if err != nil {
					return nil, err
				}
				t.keys, t.at, t.vals = append(t.keys, k), append(t.at, at), append(t.vals, v)
			}
		}
		if _, err := p.token(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// appendJSON writes the tree as compact JSON.
func (t *tree) appendJSON(b []byte) []byte {
	switch t.kind {
	case treeNull:
		return append(b, "null"...)
	case treeBool, treeNumber:
		return append(b, t.text...)
	case treeString:
		return appendString(b, t.text)
	case treeList:
		b = append(b, '[')
		for i, v := range t.vals {
			if i > 0 {
				b = append(b, ',')
			}
			b = v.appendJSON(b)
		}
		return append(b, ']')
	}
	b = append(b, '{')
	for i, v := range t.vals {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, t.keys[i])
		b = append(b, ':')
		b = v.appendJSON(b)
	}
	return append(b, '}')
}
