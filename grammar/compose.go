package grammar

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file puts grammars together: sequences, and free text with tags.

const maxParts = 8 // nesting of composed specs

func (c *compiler) compileParts() (*valueNode, error) {
	var e *expr
	var err error
	if c.spec.Tags != nil {
		e, err = c.tags(c.spec.Tags)
	} else {
		e, err = c.sequence(c.spec.Sequence)
	}
	if err != nil {
		return nil, err
	}
	return &valueNode{id: c.newValueID(), rule: e, state: 2, alive: true}, nil
}

// part is a spec inside another.
func (c *compiler) part(spec Spec, where string) (*expr, error) {
	if c.parts++; c.parts > maxParts {
		return nil, &Error{Kind: ErrTooLarge, Source: "spec", Pointer: where, Msg: "parts are nested too deep"}
	}
	outer, doc := c.spec, c.doc
	spec.AnyOrder, spec.Whitespace = outer.AnyOrder, outer.Whitespace
	c.spec = spec
	v, err := c.compile()
	c.spec, c.doc = outer, doc
	c.parts--
	if err != nil {
		return nil, err
	}
	if v.rule == nil && len(v.objects)+len(v.arrays) == 0 {
		return &expr{lex: v.scalar}, nil
	}
	return &expr{kind: exRef, val: v}, nil
}

func (c *compiler) sequence(specs []Spec) (*expr, error) {
	if len(specs) == 0 {
		return nil, &Error{Kind: ErrInvalid, Source: "sequence", Msg: "no part is given"}
	}
	e := &expr{kind: exSeq}
	for i, s := range specs {
		x, err := c.part(s, "part "+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		e.list = append(e.list, x)
	}
	return e, nil
}

// tags is free text and tagged parts in turn.
func (c *compiler) tags(t *Tags) (*expr, error) {
	bad := func(msg string) error { return &Error{Kind: ErrInvalid, Source: "tags", Msg: msg} }
	if len(t.Tags) == 0 {
		return nil, bad("no tag is given")
	}
	triggers := slices.Clone(t.Triggers)
	if len(triggers) == 0 {
		for _, tag := range t.Tags {
			triggers = append(triggers, tag.Begin)
		}
	}
	for _, s := range triggers {
		if s == "" || !utf8.ValidString(s) {
			return nil, bad("an empty trigger or one that is not UTF-8")
		}
	}
	slices.Sort(triggers)
	triggers = slices.Compact(triggers)
	for i, s := range triggers {
		if i > 0 && strings.HasPrefix(s, triggers[i-1]) {
			return nil, bad("trigger " + strconv.Quote(s) + " begins with trigger " + strconv.Quote(triggers[i-1]))
		}
	}
	choice := &expr{kind: exAlt}
	used := make([]bool, len(triggers))
	for i, tag := range t.Tags {
		k := slices.IndexFunc(triggers, func(s string) bool { return strings.HasPrefix(tag.Begin, s) })
		if k < 0 {
			return nil, bad("tag " + strconv.Itoa(i) + " begins with no trigger")
		}
		used[k] = true
		if !utf8.ValidString(tag.Begin + tag.End) {
			return nil, bad("tag " + strconv.Itoa(i) + " is not UTF-8")
		}
		body := &expr{kind: exSeq}
		// Free text that ends with the trigger, then the rest of Begin.
		open := c.cat(c.upTo(triggers, triggers[k]), c.bytes(tag.Begin[len(triggers[k]):]))
		switch {
		case tag.Content != nil:
			x, err := c.part(*tag.Content, "tag "+strconv.Itoa(i))
			if err != nil {
				return nil, err
			}
			body.list = append(body.list, &expr{lex: open}, x, &expr{lex: c.bytes(tag.End)})
		case tag.End == "":
			return nil, bad("tag " + strconv.Itoa(i) + " has neither content nor an end")
		default:
			body.list = append(body.list, &expr{lex: c.cat(open, c.upTo([]string{tag.End}, tag.End))})
		}
		choice.list = append(choice.list, body)
	}
	if k := slices.Index(used, false); k >= 0 {
		return nil, bad("no tag begins with trigger " + strconv.Quote(triggers[k]))
	}
	free := &expr{lex: c.without(triggers)}
	switch {
	case t.StopAfterFirst && t.AtLeastOne:
		return choice, nil
	case t.StopAfterFirst:
		return &expr{kind: exAlt, list: []*expr{free, choice}}, nil
	}
	m := int32(0)
	if t.AtLeastOne {
		m = 1
	}
	return &expr{kind: exSeq, list: []*expr{{kind: exRep, list: []*expr{choice}, m: m, n: -1}, free}}, nil
}

// without is the texts in which none of words stands.
func (c *compiler) without(words []string) nodeID {
	all := c.anyText[encRaw]
	return c.and(all, c.pool.not(c.seq(all, c.words(words), all)))
}

// upTo is the texts that end with word and hold none of words before that.
func (c *compiler) upTo(words []string, word string) nodeID {
	all := c.anyText[encRaw]
	return c.and(c.cat(all, c.bytes(word)), c.pool.not(c.seq(all, c.words(words), c.anyChar[encRaw], all)))
}
