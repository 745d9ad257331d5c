package grammar

import "strings"

// This file writes out groups that hold lookaheads, so that these stand at the
// top of a pattern: a(?:b|(?=c)d)e is ab e or a(?=c)d e.

const lookInGroup = "lookahead inside a group"

// Bounds of what is written out.
const (
	maxSpread     = 48
	maxSpreadText = 20_000
)

// spreadLooks is src with the groups that hold a lookahead written out, where
// they are not repeated; ok is false where that is not possible.
func spreadLooks(src string) (out string, ok bool) {
	if !balanced(src) {
		return "", false
	}
	todo := topLevel(src, '|')
	var done []string
	size := len(src)
	for len(todo) > 0 {
		alt := todo[0]
		todo = todo[1:]
		from, to, found := lookGroup(alt)
		if !found {
			done = append(done, alt)
			continue
		}
		before, rest := alt[:from], alt[to:]
		var bodies []string
		switch {
		case strings.HasPrefix(rest, "??"):
			rest = rest[2:]
			bodies = append(bodies, "")
		case strings.HasPrefix(rest, "?"):
			rest = rest[1:]
			bodies = append(bodies, "")
		case rest != "" && strings.IndexByte("*+{", rest[0]) >= 0:
			return "", false
		}
		body := alt[from+1 : to-1]
		switch {
		case strings.HasPrefix(body, "?:"):
			body = body[2:]
		case strings.HasPrefix(body, "?<") || strings.HasPrefix(body, "?P<"):
			body = body[strings.IndexByte(body, '>')+1:]
		case strings.HasPrefix(body, "?"):
			return "", false
		}
		for _, b := range append(bodies, topLevel(body, '|')...) {
			todo = append(todo, before+b+rest)
			size += len(before) + len(b) + len(rest)
		}
		if len(todo)+len(done) > maxSpread || size > maxSpreadText {
			return "", false
		}
	}
	return strings.Join(done, "|"), true
}

// eachPart calls f with the bounds of each byte, escape and class of a pattern,
// until f says no. It reports whether every class is closed: one that is not ends
// with src.
func eachPart(src string, f func(i, end int) bool) (closed bool) {
	for i := 0; i < len(src); {
		end, class := i, false
		for {
			switch c := src[end]; {
			case c == '\\':
				end++
			case class:
				class = c != ']'
			case c == '[':
				class = true
			}
			if end++; !class || end >= len(src) {
				break
			}
		}
		end = min(end, len(src))
		if !f(i, end) {
			return !class
		}
		if i = end; class {
			return false
		}
	}
	return true
}

// balanced reports whether every group and class of src is closed.
func balanced(src string) bool {
	depth := 0
	closed := eachPart(src, func(i, _ int) bool {
		switch src[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		return depth >= 0
	})
	return closed && depth == 0
}

// topLevel cuts src where sep stands outside groups and classes.
func topLevel(src string, sep byte) []string {
	var out []string
	last := 0
	eachTop(src, func(i, end int) bool {
		if end == i+1 && src[i] == sep {
			out = append(out, src[last:i])
			last = i + 1
		}
		return true
	})
	return append(out, src[last:])
}

// lookGroup is the first group of src, itself no lookahead, that holds one.
func lookGroup(src string) (from, to int, ok bool) {
	eachTop(src, func(i, end int) bool {
		text := src[i:end]
		if text[0] != '(' || strings.HasPrefix(text, "(?=") || strings.HasPrefix(text, "(?!") {
			return true
		}
		if holdsLook(text[1:]) {
			from, to, ok = i, end, true
		}
		return !ok
	})
	return from, to, ok
}

// holdsLook reports whether a lookahead begins somewhere in src.
func holdsLook(src string) (found bool) {
	eachPart(src, func(i, _ int) bool {
		found = strings.HasPrefix(src[i:], "(?=") || strings.HasPrefix(src[i:], "(?!")
		return !found
	})
	return found
}

// eachTop is eachPart with groups as one part. An unfinished one ends with src.
func eachTop(src string, f func(i, end int) bool) {
	depth, group := 0, 0
	more := true
	eachPart(src, func(i, end int) bool {
		switch {
		case src[i] == '(':
			if depth++; depth == 1 {
				group = i
			}
		case src[i] == ')' && depth > 0:
			if depth--; depth == 0 {
				more = f(group, end)
			}
		case depth == 0:
			more = f(i, end)
		}
		return more
	})
	if depth > 0 && more {
		f(group, len(src))
	}
}
