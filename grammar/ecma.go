package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// This file reads ECMA-262 patterns into expressions. An anchor is compiled to
// a marker byte: the text t is thought of as markBegin t markEnd, "^" matches
// markBegin and "$" markEnd, so anchors may stand anywhere. pattern.finish
// takes the markers out again.

// patternError is a fault of a pattern at a byte offset.
type patternError struct {
	kind   error
	at     int
	what   string
	advice string // what to write instead; may be empty
}

func (e *patternError) Error() string { return fmt.Sprintf("%s at offset %d", e.what, e.at) + e.todo() }
func (e *patternError) Unwrap() error { return e.kind }

// text is the fault without its place.
func (e *patternError) text() string { return e.what + e.todo() }

func (e *patternError) todo() string {
	if e.advice == "" {
		return ""
	}
	return ": " + e.advice
}

// pattern is the parser of one pattern.
type pattern struct {
	p        *pool
	e        encoder
	src      string
	pos      int
	depth    int
	maxDepth int
	whole    bool   // the pattern must match the whole text
	begin    nodeID // the marker of "^"
	anyMark  nodeID // any characters and markers
	tail     nodeID // what follows a match: anything, or an optional end marker
	negative bool   // there is a negative lookahead
	ends     int    // "$" so far
	looks    int    // lookaheads around pos
	skipped  int    // "^" so far that said nothing new, those behind another left out
	anchored bool   // pos is the beginning of the text, and its marker is consumed
	dialect         // other than ECMA-262's
}

const (
	maxRepeat = 1 << 24
	maxEnds   = 64 // anchors at one place, or in all beside a negative lookahead
)

// compilePattern is the set of texts, written by e, in which src matches
// somewhere (whole: that it matches as a whole).
func (p *pool) compilePattern(src string, e encoder, whole bool, maxDepth int) (id nodeID, err error) {
	return p.compileDialect(src, e, whole, maxDepth, dialect{breaks: lineEnds})
}

// lineEnds are the characters that "." does not match.
var lineEnds = []rng{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}

// compileDialect is compilePattern in a dialect.
func (p *pool) compileDialect(src string, e encoder, whole bool, maxDepth int, d dialect) (id nodeID, err error) {
	id, err = p.compileAsWritten(src, e, whole, maxDepth, d)
	if pe, ok := asPatternError(err); ok && pe.what == lookInGroup {
		if spread, ok := spreadLooks(src); ok {
			if all, err := p.compileAsWritten(spread, e, whole, maxDepth, d); err == nil {
				return all, nil
			}
		}
	}
	return id, err
}

func (p *pool) compileAsWritten(src string, e encoder, whole bool, maxDepth int, d dialect) (id nodeID, err error) {
	r := &pattern{p: p, e: e, src: src, whole: whole, maxDepth: maxDepth, dialect: d}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case *patternError:
			err = f
		default:
			panic(f)
		}
	}()
	if !utf8.ValidString(src) {
		r.fail(ErrInvalid, "the pattern is not UTF-8")
	}
	r.begin = p.leafNode(p.mkLeaf(false, []edge{{markBegin, markBegin, leafEnd}}))
	end := p.leafNode(p.mkLeaf(false, []edge{{markEnd, markEnd, leafEnd}}))
	r.anyMark = p.rep(p.withMarks(p.anyChar[e]), 0, -1)
	r.tail = r.anyMark
	lead := r.anyMark
	if whole {
		r.tail = p.opt(end)
		lead = p.opt(r.begin)
	}
	r.negative = strings.Contains(src, "(?!")
	if r.negative && whole {
		r.tail = p.rep(end, 0, -1)
	}
	body := r.alternation(true)
	if r.pos < len(src) {
		r.fail(ErrInvalid, "unmatched )")
	}
	// "^(^a|b)" asks for two markers, so a text may begin and end with as many as
	// make a difference. A "$" in a negative lookahead would be fooled by such a
	// choice: there the text ends with as many as there are "$", and one more.
	full := p.cat(lead, body)
	// The empty text begins where it ends: "$^" holds there too.
	empty := r.ends > 0 && strings.Contains(src, "^") && p.silent(full, map[nodeID]bool{})
	begun := func(id nodeID) nodeID { return p.derive(id, markBegin) }
	ended := func(id nodeID) nodeID { return p.quotient(id, map[nodeID]nodeID{}) }
	if strings.Contains(src, "^") {
		full = r.anyTimes("^", full, begun)
	} else {
		full = begun(full)
	}
	switch {
	case r.ends > maxEnds && r.negative:
		r.fail(ErrTooLarge, "too many $ beside a negative lookahead")
	case r.negative:
		// Each "$" finds a marker of its own, whatever others took.
		for range r.ends + 1 {
			full = ended(full)
		}
	case r.ends > 0:
		full = r.anyTimes("$", full, ended)
	default:
		full = ended(full)
	}
	memo := map[nodeID]nodeID{}
	full = p.purge(full, memo)
	if empty {
		full = p.opt(full)
	}
	if !p.nonEmpty(full) {
		full = rxEmpty
	}
	return full, nil
}

// anyTimes is what is left of full when markers are taken away by strip once,
// twice and so on, until that makes no difference.
func (r *pattern) anyTimes(anchor string, full nodeID, strip func(nodeID) nodeID) nodeID {
	last := strip(full)
	out := last
	for range maxEnds {
		next := strip(last)
		if next == last || next == rxEmpty {
			return out
		}
		out, last = r.p.alt(out, next), next
	}
	r.fail(ErrTooLarge, "too many "+anchor+" may stand at one place")
	return rxEmpty
}

func (r *pattern) fail(kind error, what string) { r.refuse(kind, what, "") }

func (r *pattern) refuse(kind error, what, advice string) {
	panic(&patternError{kind, r.pos, what, advice})
}

// withMarks adds the marker bytes to a class.
func (p *pool) withMarks(class nodeID) nodeID {
	edges := append([]edge{}, p.leaves[p.nodes[class].a].edges...)
	return p.leafNode(p.mkLeaf(false, append(edges, edge{markBegin, markEnd, leafEnd})))
}

// quotient is the texts t for which t markEnd is one of id's.
func (p *pool) quotient(id nodeID, memo map[nodeID]nodeID) nodeID {
	if out, ok := memo[id]; ok {
		return out
	}
	nd := p.nodes[id]
	out := rxEmpty
	switch nd.kind {
	case kLeaf:
		edges := p.leaves[nd.a].edges
		if n := len(edges); n > 0 && edges[n-1].hi == markEnd {
			out = p.leafNode(edges[n-1].to)
		}
	case kCat:
		out = p.cat(nd.a, p.quotient(nd.b, memo))
		if p.nullable(nd.b) {
			out = p.alt(out, p.quotient(nd.a, memo))
		}
	case kAlt, kAnd:
		var list []nodeID
		for _, x := range nd.list {
			list = append(list, p.quotient(x, memo))
		}
		if nd.kind == kAlt {
			out = p.alt(list...)
		} else {
			out = p.and(list...)
		}
	case kNot:
		out = p.not(p.quotient(nd.a, memo))
	case kRep:
		n := nd.n
		if n > 0 {
			n--
		}
		if last := p.quotient(nd.a, memo); last != rxEmpty {
			out = p.cat(p.rep(nd.a, max(nd.m-1, 0), n), last)
		}
	}
	memo[id] = out
	return out
}

// silent reports whether some text of id holds nothing but markers. It says no
// where conditions meet, as at a lookahead.
func (p *pool) silent(id nodeID, memo map[nodeID]bool) bool {
	if out, ok := memo[id]; ok || p.nodes[id].flags&fMarked == 0 {
		return out || p.nullable(id) && p.nodes[id].flags&fImpure == 0
	}
	nd := p.nodes[id]
	out := false
	switch nd.kind {
	case kLeaf:
		edges := p.leaves[nd.a].edges
		out = p.nullable(id) || len(edges) > 0 && edges[len(edges)-1].hi >= markBegin
	case kCat:
		out = p.silent(nd.a, memo) && p.silent(nd.b, memo)
	case kAlt:
		out = slices.ContainsFunc(nd.list, func(x nodeID) bool { return p.silent(x, memo) })
	case kRep:
		out = nd.m == 0 || p.silent(nd.a, memo)
	}
	memo[id] = out
	return out
}

// purge is the texts of id that hold no marker.
func (p *pool) purge(id nodeID, memo map[nodeID]nodeID) nodeID {
	nd := p.nodes[id]
	if nd.flags&fMarked == 0 {
		return id
	}
	if out, ok := memo[id]; ok {
		return out
	}
	out := rxEmpty
	switch nd.kind {
	case kLeaf:
		lf := p.leaves[nd.a]
		var edges []edge
		for _, e := range lf.edges {
			if e.lo < markBegin {
				edges = append(edges, e)
			}
		}
		if len(edges) > 0 || lf.accept {
			out = p.leafNode(p.mkLeaf(lf.accept, edges))
		}
	case kCat:
		if a := p.purge(nd.a, memo); a != rxEmpty {
			out = p.cat(a, p.purge(nd.b, memo))
		}
	case kAlt, kAnd:
		var list []nodeID
		for _, x := range nd.list {
			list = append(list, p.purge(x, memo))
		}
		if nd.kind == kAlt {
			out = p.alt(list...)
		} else {
			out = p.and(list...)
		}
	case kNot:
		out = p.not(p.purge(nd.a, memo))
	case kRep:
		out = p.rep(p.purge(nd.a, memo), nd.m, nd.n)
	}
	memo[id] = out
	return out
}

// alternation parses up to ")" or the end. At the top the tail of the whole
// pattern is part of each branch, so that a lookahead can see it.
func (r *pattern) alternation(top bool) nodeID {
	if r.depth++; r.depth > r.maxDepth {
		r.fail(ErrTooLarge, "the pattern is nested too deep")
	}
	list := []nodeID{r.sequence(top)}
	for r.peek() == '|' {
		r.pos++
		list = append(list, r.sequence(top))
	}
	r.depth--
	return r.p.alt(r.p.joinClasses(r.e, list)...)
}

// joinClasses makes one class of the classes in list.
func (p *pool) joinClasses(e encoder, list []nodeID) []nodeID {
	var all []rng
	rest := make([]nodeID, 0, len(list))
	for _, id := range list {
		if r, ok := p.ranges[id]; ok {
			all = append(all, r...)
			continue
		}
		rest = append(rest, id)
	}
	if len(list)-len(rest) < 2 {
		return list
	}
	return append(rest, p.class(e, all))
}

// look is a lookahead before item number at of a sequence.
type look struct {
	at   int
	what nodeID
	not  bool
}

func (r *pattern) sequence(top bool) nodeID {
	var items []nodeID
	var looks []look
	anchored := r.anchored // further "^" at the beginning say nothing new
	defer func() { r.anchored = anchored }()
	begins := 0 // items, all of them "^"
	for r.skipBlanks(); r.pos < len(r.src) && r.peek() != '|' && r.peek() != ')'; r.skipBlanks() {
		if r.inlineFlags() {
			continue
		}
		if r.peek() == '^' && len(items) == begins && (begins > 0 || anchored) {
			r.pos++
			if begins == 0 {
				r.skipped++
			}
			continue
		}
		if rest := r.src[r.pos:]; strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!") {
			if !top {
				r.refuse(ErrUnsupported, lookInGroup, "move it to the top of the pattern or write out what may follow")
			}
			l := look{at: len(items), not: rest[2] == '!'}
			if r.anchored = begins > 0 && begins == len(items); len(items) == 0 && r.beforeCaret() {
				r.anchored, l.at = true, 1 // the same behind the "^"
			}
			r.pos += 3
			r.looks++
			l.what = r.alternation(false)
			r.close()
			r.looks--
			looks = append(looks, l)
			continue
		}
		if r.peek() == '^' && len(items) == begins {
			begins++
		}
		r.anchored = anchored && len(items) == 0
		items = append(items, r.quantified())
	}
	p := r.p
	out := rxEps
	if top {
		out = r.tail
	}
	for i := len(items); i >= 0; i-- {
		if i < len(items) {
			out = p.cat(items[i], out)
		}
		for len(looks) > 0 && looks[len(looks)-1].at == i {
			l := looks[len(looks)-1]
			looks = looks[:len(looks)-1]
			// Markers that a "^" behind the lookahead takes do not stand in its way.
			what := p.seq(p.rep(r.begin, 0, -1), l.what, r.anyMark)
			if l.not {
				what = p.not(what)
			}
			out = p.and(out, what)
		}
	}
	return out
}

// beforeCaret reports whether nothing but lookaheads stands between pos, where
// one begins, and a "^".
func (r *pattern) beforeCaret() (caret bool) {
	rest := r.src[r.pos:]
	eachTop(rest, func(i, end int) bool {
		caret = rest[i:end] == "^"
		return strings.HasPrefix(rest[i:end], "(?=") || strings.HasPrefix(rest[i:end], "(?!")
	})
	return caret
}

func (r *pattern) close() {
	if r.peek() != ')' {
		r.fail(ErrInvalid, "missing )")
	}
	r.pos++
}

func (r *pattern) peek() byte {
	if r.pos < len(r.src) {
		return r.src[r.pos]
	}
	return 0
}

// quantified parses an atom and its quantifiers.
func (r *pattern) quantified() nodeID {
	start, ends, skipped := r.pos, r.ends, r.skipped
	id := r.atom()
	r.skipBlanks()
	m, n := int32(0), int32(-1)
	switch r.peek() {
	case '*':
	case '+':
		m = 1
	case '?':
		n = 1
	case '{':
		var ok bool
		if m, n, ok = r.braces(); !ok {
			return id
		}
		r.pos-- // the last byte is skipped below
	default:
		return id
	}
	if r.pos == start {
		r.fail(ErrInvalid, "nothing to repeat")
	}
	if r.negative && (m > 1 || n < 0 || n > 1) && r.ends > ends {
		r.refuse(ErrUnsupported, "$ in a repeated group beside a negative lookahead", "move the $ behind the group")
	}
	if (m > 1 || n < 0 || n > 1) && r.skipped > skipped {
		r.refuse(ErrUnsupported, "^ in a repeated group", "it can hold only once: write that out")
	}
	r.pos++
	if r.peek() == '?' {
		r.pos++ // lazy: the same texts
	}
	switch c := r.peek(); c {
	case '*', '+', '?':
		r.fail(ErrInvalid, "nothing to repeat")
	}
	return r.p.rep(id, m, n)
}

// braces parses {m}, {m,} or {m,n}; anything else is literal text.
func (r *pattern) braces() (m, n int32, ok bool) {
	i := r.pos + 1
	num := func() (int64, bool) {
		start, v := i, int64(0)
		for i < len(r.src) && r.src[i] >= '0' && r.src[i] <= '9' {
			v = min(v*10+int64(r.src[i]-'0'), 1<<40)
			i++
		}
		return v, i > start
	}
	lo, ok := num()
	if !ok {
		return 0, 0, false
	}
	hi := lo
	if i < len(r.src) && r.src[i] == ',' {
		i++
		var has bool
		if hi, has = num(); !has {
			hi = -1
		}
	}
	if i >= len(r.src) || r.src[i] != '}' {
		return 0, 0, false
	}
	if lo > maxRepeat || hi > maxRepeat {
		r.fail(ErrTooLarge, fmt.Sprintf("a repeat count over %d", maxRepeat))
	}
	if hi >= 0 && hi < lo {
		r.fail(ErrInvalid, "numbers out of order in {}")
	}
	r.pos = i + 1
	return int32(lo), int32(hi), true
}

func (r *pattern) atom() nodeID {
	c := r.peek()
	switch c {
	case '(':
		return r.group()
	case '[':
		r.pos++
		return r.p.class(r.e, r.classBody())
	case '.':
		r.pos++
		return r.p.class(r.e, r.dot())
	case '^':
		r.lineAnchor()
		if r.looks > 0 {
			r.refuse(ErrUnsupported, "^ in a lookahead", "put the lookahead behind ^ and leave this one out")
		}
		r.pos++
		return r.begin
	case '$':
		r.lineAnchor()
		r.pos++
		r.ends++
		return r.p.leafNode(r.p.mkLeaf(false, []edge{{markEnd, markEnd, leafEnd}}))
	case '*', '+', '?':
		r.fail(ErrInvalid, "nothing to repeat")
	case '{':
		if _, _, ok := r.braces(); ok {
			r.fail(ErrInvalid, "nothing to repeat")
		}
	case '\\':
		return r.p.class(r.e, r.folded(r.escape(false)))
	}
	ch, n := utf8.DecodeRuneInString(r.src[r.pos:])
	r.pos += n
	return r.p.class(r.e, r.folded([]rng{{ch, ch}}))
}

func (r *pattern) group() nodeID {
	outer := r.flags
	defer func() { r.flags = outer }()
	rest := r.src[r.pos:]
	switch {
	case strings.HasPrefix(rest, "(?:"):
		r.pos += 3
	case strings.HasPrefix(rest, "(?<=") || strings.HasPrefix(rest, "(?<!"):
		r.refuse(ErrUnsupported, "lookbehind", "write what stands before as a part of the pattern")
	case strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!"):
		r.refuse(ErrUnsupported, "lookahead with a quantifier", "write out what may follow")
	case strings.HasPrefix(rest, "(?<") || strings.HasPrefix(rest, "(?P<"):
		end := strings.IndexByte(rest, '>')
		if end < 0 {
			r.fail(ErrInvalid, "unfinished group name")
		}
		r.pos += end + 1
	case r.flagged():
	case strings.HasPrefix(rest, "(?"):
		r.refuse(ErrUnsupported, "group flags", "write both cases as in [aA], and use (?:...) for a group")
	default:
		r.pos++
	}
	id := r.alternation(false)
	r.close()
	return id
}

// asPatternError finds the patternError in err.
func asPatternError(err error) (*patternError, bool) {
	var pe *patternError
	ok := errors.As(err, &pe)
	return pe, ok
}
