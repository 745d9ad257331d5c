package grammar

import (
	"context"
	"errors"
	"strconv"
	"unicode/utf8"
)

// Grammar is a compiled [Spec]. It is safe for concurrent use.
type Grammar struct {
	vocab *Vocab
	spec  Spec
	m     *machine
	notes []string
}

// Compile turns a spec into a grammar over vocab. The error is an [*Error], or
// ctx's when it ended first.
func Compile(ctx context.Context, spec Spec, vocab *Vocab) (g *Grammar, err error) {
	if vocab == nil {
		return nil, &Error{Kind: ErrInvalid, Source: "spec", Msg: "no vocabulary"}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fail:
			g, err = nil, f.err
		default:
			panic(f)
		}
	}()
	c := &compiler{
		pool: newPool(), fs: newFormulas(), spec: spec, limits: spec.Limits.withDefaults(), cancel: ctx.Err,
		norm: map[normKey]*tree{}, values: map[fid]*valueNode{}, langs: map[langKey]nodeID{}, exclude: map[fidPair]bool{}, imply: map[fidPair]bool{},
		form: form{indent: spec.Whitespace.Indent},
	}
	c.work, c.max = c.limits.Work, c.limits.Nodes
	root, err := c.compile()
	if err != nil {
		return nil, err
	}
	m := &machine{
		writer: writer{pool: c.pool, anyOrder: spec.AnyOrder, ws: spec.Whitespace, objects: c.objects, arrays: c.arrays, valueIDs: c.valueIDs, span: vocab.maxLen},
		vocab:  vocab, limits: c.limits, maxDepth: int32(c.limits.Stack),
		crossed: map[crossKey][]crossing{},
	}
	m.running, m.searches = true, allSearches
	m.initMasks()
	m.init()
	m.reserve()
	m.build.reset()
	m.begins(root, nil)
	if m.begin = m.finish(); m.begin == nil || m.deadEnd(m.begin) {
		return nil, &Error{Kind: ErrUnsatisfiable, Source: source(spec), Msg: nothingFits(spec)}
	}
	m.warm(c.all)
	return &Grammar{vocab: vocab, spec: spec, m: m, notes: c.notes}, nil
}

// nothingFits says what to do about a source of which only the whole excludes
// every text.
func nothingFits(spec Spec) string {
	if spec.JSONSchema != nil {
		return "no value satisfies all its keywords together: loosen or remove one of those that conflict"
	}
	return "its parts exclude each other, so that no text fits: loosen or remove one"
}

func source(spec Spec) string {
	switch {
	case spec.JSONSchema != nil:
		return "schema"
	case spec.Regex != "":
		return "regex"
	case spec.EBNF != "":
		return "ebnf"
	case spec.Lark != "":
		return "lark"
	case spec.Choices != nil:
		return "choices"
	case spec.Sequence != nil:
		return "sequence"
	case spec.Tags != nil:
		return "tags"
	}
	return "spec"
}

// compile is the root value of the spec.
func (c *compiler) compile() (*valueNode, error) {
	spec := &c.spec
	n := 0
	for _, set := range []bool{spec.JSONSchema != nil, spec.JSONObject, spec.Regex != "", spec.EBNF != "", spec.Lark != "", spec.Choices != nil, spec.Sequence != nil, spec.Tags != nil} {
		if set {
			n++
		}
	}
	bad := func(msg string) (*valueNode, error) {
		return nil, &Error{Kind: ErrInvalid, Source: source(*spec), Msg: msg}
	}
	switch ws := spec.Whitespace; {
	case n == 0:
		return bad("no schema, pattern, grammar, choices, sequence or tags are given")
	case n > 1:
		return bad("more than one source is given")
	case ws.Max < 0 || ws.Indent < 0 || ws.Max > 1000 || ws.Indent > 100 || (ws.Max > 0 && ws.Indent > 0):
		return bad("white space options out of range")
	case max(len(spec.JSONSchema), len(spec.Regex), len(spec.EBNF), len(spec.Lark)) > c.limits.SourceBytes:
		return nil, &Error{Kind: ErrTooLarge, Source: source(*spec), Msg: "longer than " + strconv.Itoa(c.limits.SourceBytes) + " bytes"}
	}
	switch {
	case spec.JSONSchema != nil:
		return c.compileSchema()
	case spec.JSONObject:
		v := c.value(c.fs.types(tObject))
		c.compileAll(v)
		return v, nil
	case spec.Regex != "":
		id, err := c.compilePattern(spec.Regex, encRaw, true, c.limits.Depth)
		if pe, ok := asPatternError(err); ok {
			return nil, &Error{Kind: pe.kind, Source: "regex", Pointer: offset(pe.at), Msg: pe.text()}
		}
		if id == rxEmpty {
			return nil, &Error{Kind: ErrUnsatisfiable, Source: "regex", Msg: "it matches no text: loosen or remove the part that nothing fits"}
		}
		return c.scalar(id), nil
	case spec.EBNF != "" && looksLark(spec.EBNF):
		return c.compileLark(spec.EBNF)
	case spec.EBNF != "":
		return c.compileEBNF()
	case spec.Lark != "":
		return c.compileLark(spec.Lark)
	}
	if spec.Sequence != nil || spec.Tags != nil {
		return c.compileParts()
	}
	if len(spec.Choices) == 0 {
		return bad("no choice is given")
	}
	for i, s := range spec.Choices {
		if !utf8.ValidString(s) {
			return bad("choice " + strconv.Itoa(i) + " is not UTF-8")
		}
	}
	return c.scalar(c.words(spec.Choices)), nil
}

// scalar is a value that is one lexeme.
func (c *compiler) scalar(id nodeID) *valueNode {
	return &valueNode{id: c.newValueID(), scalar: id, state: 2, alive: true}
}

func (c *compiler) compileSchema() (*valueNode, error) {
	v, err := parseJSON(c.spec.JSONSchema, 4*c.limits.Depth)
	var se *syntaxError
	if errors.As(err, &se) {
		kind := ErrInvalid
		if se.big {
			kind = ErrTooLarge
		}
		return nil, &Error{Kind: kind, Source: "schema", Msg: se.Error()}
	}
	c.spend(len(c.spec.JSONSchema) / 8)
	c.doc = readDocument(v, c.limits.Depth)
	root := c.value(c.fs.ref(c.doc.root))
	c.compileAll(root)
	if !root.alive {
		return nil, &Error{Kind: ErrUnsatisfiable, Source: "schema", Msg: "no finite value satisfies it: let the recursion end, or loosen the keywords that conflict"}
	}
	return root, nil
}

// Match reports whether text, as a whole, is a text of the grammar.
func (g *Grammar) Match(text []byte) bool {
	p, _ := g.m.walk(g.m.begin, text)
	return p != nil && p.canEnd
}

// Notes lists what the schema says that is no condition, such as formats that
// JSON Schema does not define.
func (g *Grammar) Notes() []string { return g.notes }

// Vocab is the vocabulary that the grammar was compiled for.
func (g *Grammar) Vocab() *Vocab { return g.vocab }
