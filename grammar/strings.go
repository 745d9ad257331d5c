package grammar

import (
	"strconv"
	"unicode/utf8"
)

// This file writes conditions on strings as expressions over their content.

type langKey struct {
	atom int32
	enc  encoder
	neg  bool
}

// stringLang is the contents, written by e, that satisfy t.
func (c *compiler) stringLang(t *tree, e encoder) nodeID {
	switch t.kind {
	case trTrue:
		return c.anyText[e]
	case trFalse:
		return rxEmpty
	case trLit:
		x := c.stringLit(t.lit, e)
		if t.lit.neg {
			x = c.and(c.anyText[e], c.pool.not(x))
		}
		return x
	}
	list := make([]nodeID, len(t.list))
	for i, x := range t.list {
		list[i] = c.stringLang(x, e)
	}
	if t.kind == trAnd {
		return c.and(list...)
	}
	return c.alt(list...)
}

func (c *compiler) stringLit(l lit, e encoder) nodeID {
	key := langKey{l.atom, e, l.neg}
	if id, ok := c.langs[key]; ok {
		return id
	}
	id := c.stringAtom(l, e)
	c.langs[key] = id
	return id
}

// lang is the contents of a positive atom; faults name the atom's pointer.
func (c *compiler) lang(atom int32, e encoder) nodeID { return c.stringLit(lit{atom: atom}, e) }

func (c *compiler) stringAtom(l lit, e encoder) nodeID {
	a := c.fs.atoms[l.atom]
	switch a.kind {
	case aPattern:
		id, err := c.compilePattern(a.text, e, false, c.limits.Depth)
		if pe, ok := asPatternError(err); ok {
			failf(pe.kind, "schema", clip(a.ptr), "pattern", pe.Error())
		}
		return id
	case aFormat:
		return c.formatLang(a.text, e)
	case aLen:
		if a.hi >= 0 && a.lo > a.hi {
			return rxEmpty
		}
		return c.rep(c.anyChar[e], a.lo, a.hi)
	case aEnum:
		if !l.neg {
			words := make([]string, len(a.values))
			for i, v := range a.values {
				words[i] = keyText(v.str)
			}
			return c.words(words)
		}
		alts := make([]nodeID, len(a.values))
		for i, v := range a.values {
			alts[i] = c.spelled(v.str, e)
		}
		return c.alt(alts...)
	}
	return rxEmpty
}

// spelled is every spelling of one string content.
func (c *compiler) spelled(s string, e encoder) nodeID {
	if e == encKey {
		return c.bytes(keyText(s))
	}
	out := rxEps
	for len(s) > 0 {
		r, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
		out = c.cat(c.class(e, []rng{{r, r}}), out)
	}
	return out
}

// specFormats are the names that JSON Schema defines.
var specFormats = map[string]bool{
	"date-time": true, "date": true, "time": true, "duration": true, "email": true, "idn-email": true, "hostname": true,
	"idn-hostname": true, "ipv4": true, "ipv6": true, "uri": true, "uri-reference": true, "iri": true, "iri-reference": true,
	"uuid": true, "uri-template": true, "json-pointer": true, "relative-json-pointer": true, "regex": true,
}

// formatFormula enforces the formats that JSON Schema defines. Names that it
// does not define say nothing (they are noted), and so does a format without
// "type": "string" beside it in a schema that declares draft 2019-09 or later,
// where format is an annotation.
func (c *compiler) formatFormula(s *schema, v *value) fid {
	if v.kind != 's' {
		c.refuse(ErrInvalid, s, "format", "not a string")
	}
	if t := s.v.get("type"); t == nil && s.res.draft >= draft2019 && c.doc.root.v.get("$schema") != nil {
		c.note(s, "format "+strconv.Quote(v.str)+" without a type is an annotation in this draft")
		return fTrue
	}
	if !specFormats[v.str] {
		c.note(s, "format "+strconv.Quote(v.str)+" is not one that JSON Schema defines and says nothing")
		return fTrue
	}
	if formatPatterns[v.str] == "" {
		c.refuse(ErrUnsupported, s, "format", "format "+strconv.Quote(v.str)+" is not enforced")
	}
	return c.fs.atom(atom{kind: aFormat, typ: tString, text: v.str, ptr: s.ptr + "/format"})
}

func (c *compiler) note(s *schema, msg string) {
	if len(c.notes) < 100 {
		c.notes = append(c.notes, "#"+clip(s.ptr)+": "+msg)
	}
}

func (c *compiler) formatLang(name string, e encoder) nodeID {
	compile := func(pattern string) nodeID {
		id, err := c.compilePattern(pattern, e, true, 256)
		if err != nil {
			panic("grammar: format " + name + ": " + err.Error())
		}
		return id
	}
	id := compile(formatPatterns[name])
	if h, ok := formatHeads[name]; ok {
		id = c.cat(c.and(compile(h.pattern), c.rep(c.anyChar[e], 0, h.most)), id)
	}
	return id
}
