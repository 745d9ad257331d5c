package lang

import (
	"hash/fnv"
	"strings"
	"unicode/utf8"
)

// byLength is the Estimator without a model: a token for about four bytes of
// text, never across a space, and a few for the frame of a turn. Equal texts
// have equal tokens from their beginning on, so that shared prefixes show.
type byLength struct{}

func (byLength) Tokenize(turns []Turn, open bool) ([]int32, error) {
	var ids []int32
	for _, t := range turns {
		if t.Role != "" {
			ids = appendChunks(ids, "<"+t.Role+">", true)
		}
		ids = appendChunks(ids, t.Text, false)
		if t.Role != "" && !t.Open {
			ids = appendChunks(ids, "</>", true)
		}
	}
	if open {
		ids = appendChunks(ids, "<assistant>", true)
	}
	return ids, nil
}

// appendChunks appends the tokens of s; frame says that s is one piece of the
// chat template.
func appendChunks(ids []int32, s string, frame bool) []int32 {
	add := func(chunk string) {
		h := fnv.New32a()
		h.Write([]byte(chunk))
		ids = append(ids, int32(h.Sum32()&0x3fffffff))
	}
	if frame {
		add(s)
		add("\x00" + s)
		return ids
	}
	for len(s) > 0 {
		n := 0
		for n < len(s) && n < 5 {
			_, size := utf8.DecodeRuneInString(s[n:])
			if n > 0 && (s[n] == ' ' || s[n] == '\n') {
				break
			}
			n += size
		}
		add(s[:n])
		s = s[n:]
	}
	return ids
}

// lengthOf returns the tokens of s as byLength counts them.
func lengthOf(s string) int { return len(appendChunks(nil, s, false)) }

func (byLength) Constrained(c Constraint) (Shape, error) {
	switch {
	case len(c.Schema) > 0:
		return shapeOfSchema(c.Schema), nil
	case c.Regex != "":
		lit, whole := literalPrefix(c.Regex)
		n := lengthOf(lit)
		s := Shape{Tokens: Range{Min: n, Max: n, Open: !whole}, Forced: Range{Min: 0, Max: n, Open: !whole}, Text: lit}
		if whole {
			s.Forced.Min = n
		} else if lit != "" {
			s.Text += "…"
		}
		return s, nil
	}
	return Shape{Tokens: Range{Open: true}, Forced: Range{Open: true}}, nil
}

// literalPrefix returns the text that every match of a pattern begins with, and
// whether that is all of it.
func literalPrefix(pattern string) (string, bool) {
	i := strings.IndexAny(pattern, `\.+*?()|[]{}^$`)
	if i < 0 {
		return pattern, true
	}
	if strings.ContainsAny(pattern, "|") {
		return "", false
	}
	if i > 0 && strings.IndexByte("*?{", pattern[i]) >= 0 {
		_, size := utf8.DecodeLastRuneInString(pattern[:i])
		i -= size
	}
	return pattern[:i], false
}

// shapeOfSchema returns what a schema forces, reckoned from the text that all
// of its values share.
func shapeOfSchema(schema []byte) Shape {
	root, err := parseJSON(schema)
	if err != nil {
		return Shape{Tokens: Range{Open: true}, Forced: Range{Open: true}}
	}
	w := shaper{root: root}
	w.write(root, 0)
	s := Shape{Text: w.b.String()}
	for _, part := range strings.Split(s.Text, "…") {
		s.Forced.Min += len(part)
	}
	// A token at either edge of a hole may hold forced text and chosen text.
	holes := strings.Count(s.Text, "…")
	s.Forced.Min = max(0, s.Forced.Min/5-holes)
	s.Tokens.Min = s.Forced.Min + holes
	if holes == 0 {
		n := lengthOf(s.Text)
		s.Forced, s.Tokens = Range{Min: n, Max: n}, Range{Min: n, Max: n}
		return s
	}
	s.Forced.Open, s.Tokens.Open = true, true
	if w.most >= 0 {
		s.Tokens.Max, s.Tokens.Open = w.most, false
		s.Forced.Max, s.Forced.Open = w.most, false
	}
	return s
}

// shaper writes the text that all values of a schema share.
type shaper struct {
	root  *tree
	b     strings.Builder
	parts int
	most  int // tokens that the longest value has; -1: without bound
}

func (w *shaper) hole(most int) {
	w.b.WriteString("…")
	if most < 0 {
		w.most = -1
	} else if w.most >= 0 {
		w.most += most
	}
}

func (w *shaper) lit(s string) {
	w.b.WriteString(s)
	if w.most >= 0 {
		w.most += lengthOf(s)
	}
}

func (w *shaper) write(s *tree, depth int) {
	if w.parts++; w.parts > 2000 || depth > 32 || s.kind != treeMap {
		w.hole(-1)
		return
	}
	if c := s.get("const"); c != nil {
		w.lit(string(c.appendJSON(nil)))
		return
	}
	if vals := s.get("enum"); vals != nil && len(vals.vals) > 0 {
		w.enum(vals.vals)
		return
	}
	for _, k := range []string{"$ref", "anyOf", "oneOf", "allOf", "not", "if"} {
		if s.get(k) == nil {
			continue
		}
		if to := s.get(k); k == "$ref" && len(s.keys) == 1+btoi(s.get("$defs") != nil) {
			if t, ok := resolveRef(w.root, to.text); ok {
				w.write(t, depth+4)
				return
			}
		}
		w.hole(-1)
		return
	}
	ty := s.get("type")
	if ty == nil || ty.kind != treeString {
		w.hole(-1)
		return
	}
	switch ty.text {
	case "null":
		w.lit("null")
	case "boolean":
		w.hole(1)
	case "integer", "number":
		w.hole(-1)
	case "string":
		w.lit(`"`)
		most := -1
		if m, ok := ratOf(s.get("maxLength")); ok && m.IsInt() && m.Num().IsInt64() && m.Num().Int64() < 1<<20 {
			most = int(m.Num().Int64())
		}
		w.hole(most)
		w.lit(`"`)
	case "array":
		w.lit("[")
		w.hole(-1)
		w.lit("]")
	case "object":
		w.object(s, depth)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// enum writes what the values of an enum have in common at both ends.
func (w *shaper) enum(vals []*tree) {
	texts := make([]string, len(vals))
	most := 0
	for i, v := range vals {
		texts[i] = string(v.appendJSON(nil))
		most = max(most, lengthOf(texts[i]))
	}
	if len(texts) == 1 {
		w.lit(texts[0])
		return
	}
	pre, post := texts[0], texts[0]
	for _, t := range texts[1:] {
		pre = pre[:commonPrefix(pre, t)]
		post = post[len(post)-commonSuffix(post, t):]
	}
	w.lit(pre)
	w.hole(most)
	for _, t := range texts {
		if len(pre)+len(post) > len(t) {
			return
		}
	}
	w.lit(post)
}

func (w *shaper) object(s *tree, depth int) {
	props, required := s.get("properties"), map[string]bool{}
	if r := s.get("required"); r != nil {
		for _, v := range r.vals {
			required[v.text] = true
		}
	}
	closed := s.get("additionalProperties") != nil && s.get("additionalProperties").text == "false"
	w.lit("{")
	if props != nil {
		optional := false
		first := true
		for i, k := range props.keys {
			if !required[k] {
				optional = true
				continue
			}
			if optional {
				w.hole(-1)
				optional = false
			}
			if !first {
				w.lit(",")
			}
			first = false
			w.lit(string(appendString(nil, k)) + ":")
			w.write(props.vals[i], depth+1)
		}
		if optional || !closed {
			w.hole(-1)
		}
	} else if !closed {
		w.hole(-1)
	}
	w.lit("}")
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && !utf8.RuneStart(a[n]) {
		n--
	}
	return n
}

func commonSuffix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	for n > 0 && !utf8.RuneStart(a[len(a)-n]) {
		n--
	}
	return n
}
