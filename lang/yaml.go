package lang

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// yaml writes the tree as a YAML document.
func (t *tree) yaml() ([]byte, error) {
	for _, quoted := range []bool{false, true} {
		var b bytes.Buffer
		enc := yaml.NewEncoder(&b)
		enc.SetIndent(2)
		if err := enc.Encode(t.yamlNode(quoted)); err != nil {
			return nil, err
		}
		if err := enc.Close(); err != nil {
			return nil, err
		}
		// What reads well must also read back the same.
		if back, err := parseYAML(b.Bytes()); err == nil && bytes.Equal(back.appendJSON(nil), t.appendJSON(nil)) {
			return b.Bytes(), nil
		}
	}
	return append(t.appendJSON(nil), '\n'), nil // JSON is YAML too
}

func (t *tree) yamlNode(quoted bool) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: t.text}
	switch t.kind {
	case treeNull:
		n.Tag, n.Value = "!!null", "null"
	case treeBool:
		n.Tag = "!!bool"
	case treeNumber:
		n.Tag = "!!float"
		if strings.Trim(t.text, "-0123456789") == "" && len(t.text) < 20 || isUint(t.text) {
			n.Tag = "!!int"
		}
	case treeString:
		n.Tag = "!!str"
		switch {
		case t.raw && !quoted && strings.Contains(t.text, "\n") && readsAsBlock(t.text):
			n.Style = yaml.LiteralStyle
		case quoted || !plainText(t.text):
			n.Style = yaml.DoubleQuotedStyle
		}
	case treeList:
		n.Kind, n.Tag, n.Value = yaml.SequenceNode, "!!seq", ""
		for _, v := range t.vals {
			n.Content = append(n.Content, v.yamlNode(quoted))
		}
	case treeMap:
		n.Kind, n.Tag, n.Value = yaml.MappingNode, "!!map", ""
		for i, v := range t.vals {
			n.Content = append(n.Content, strTree(t.keys[i]).yamlNode(quoted), v.yamlNode(quoted))
		}
	}
	if n.Kind != yaml.ScalarNode && (t.flow || !t.block && t.fitsLine()) {
		n.Style = yaml.FlowStyle
	}
	return n
}

func isUint(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// fitsLine reports whether a list or map reads well on one line.
func (t *tree) fitsLine() bool {
	w := t.width()
	return w <= 64 && (t.kind == treeList || len(t.vals) != 1 || w < 32)
}

// width returns about how long t is on one line; maps in maps and texts of
// several lines do not go on one.
func (t *tree) width() int {
	const tooLong = 1000
	w := 0
	for i, v := range t.vals {
		switch {
		case v.kind == treeMap, strings.Contains(v.text, "\n") && v.raw:
			return tooLong
		case v.kind == treeList:
			w += v.width() + 2
		default:
			w += len(v.text) + 2
		}
		if t.kind == treeMap {
			w += len(t.keys[i]) + 2
		}
	}
	return w
}

// readsAsBlock reports whether s can stand as a literal block.
func readsAsBlock(s string) bool {
	if s == "" || s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || strings.Contains(s, " \n") || strings.Contains(s, "\t\n") {
		return false
	}
	return printable(s, true)
}

// plainText reports whether the YAML writer may choose how to quote s.
func plainText(s string) bool {
	return s != "" && strings.TrimSpace(s) == s && printable(s, false) && !oldBools[strings.ToLower(s)]
}

// oldBools are what YAML 1.1 reads as bools.
var oldBools = map[string]bool{"yes": true, "no": true, "on": true, "off": true, "y": true, "n": true}

func printable(s string, lines bool) bool {
	for _, r := range s {
		if r == '\n' && lines || r == '\t' && lines {
			continue
		}
		if !unicode.IsPrint(r) || r == utf8.RuneError || r == '\u0085' || r == '\u2028' || r == '\u2029' {
			return false
		}
	}
	return true
}

// parseYAML reads one YAML document. It does not panic, whatever the library
// below does.
func parseYAML(data []byte) (t *tree, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, &lineError{0, fmt.Sprintf("this YAML cannot be read: %v", r)}
		}
	}()
	if !utf8.Valid(data) {
		return nil, &lineError{badUTF8Line(data), "the text is not UTF-8"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err == io.EOF {
			return nil, &lineError{1, "the document is empty"}
		}
		return nil, yamlError(err, data)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		return nil, &lineError{more.Line, "a second document begins here: a file holds one program"}
	} else if err != io.EOF {
		return nil, yamlError(err, data)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, &lineError{1, "the document is empty"}
	}
	r := yamlReader{open: map[*yaml.Node]bool{}}
	return r.tree(doc.Content[0], 0)
}

// yamlError takes the line out of an error of the YAML library.
func yamlError(err error, data []byte) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if num, text, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(num); err == nil {
				if strings.HasPrefix(text, "did not find expected") {
					line++ // the library's parser counts from 0, its scanner from 1
					text += ": quote texts and expressions that hold , : # or brackets"
				}
				if strings.HasPrefix(text, "found character that cannot start") || strings.HasPrefix(text, "mapping values are not allowed") {
					text += ": quote texts and expressions that begin with @ % ` or hold a colon"
				}
				return &lineError{line, text}
			}
		}
	}
	if rest, ok := strings.CutPrefix(msg, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		before, _, _ := bytes.Cut(data, []byte("*"+name))
		return &lineError{1 + bytes.Count(before, []byte{'\n'}), "no &" + name + " for *" + name}
	}
	return &lineError{0, msg}
}

// yamlReader turns YAML nodes into trees. Aliases are copied, within a budget;
// one that holds itself is an error.
type yamlReader struct {
	open  map[*yaml.Node]bool // anchored nodes that are being read
	nodes int
}

func (r *yamlReader) tree(n *yaml.Node, depth int) (*tree, error) {
	if r.nodes++; r.nodes > maxTreeNodes {
		return nil, &lineError{n.Line, fmt.Sprintf("more than %d values, aliases counted where they are used", maxTreeNodes)}
	}
	if depth > maxTreeDepth {
		return nil, &lineError{n.Line, fmt.Sprintf("nested deeper than %d", maxTreeDepth)}
	}
	t := &tree{line: n.Line, text: n.Value, src: n.Value}
	switch n.Kind {
	case yaml.AliasNode:
		if n.Alias == nil {
			return nil, &lineError{n.Line, "an alias to nothing"}
		}
		if r.open[n.Alias] {
			return nil, &lineError{n.Line, fmt.Sprintf("*%s is inside of itself: a program cannot hold itself, use repeat", n.Value)}
		}
		t, err := r.tree(n.Alias, depth+1)
		if err != nil {
			return nil, err
		}
		t.line = n.Line
		return t, nil
	case yaml.ScalarNode:
		return t, r.scalar(n, t)
	case yaml.SequenceNode:
		t.kind, t.text = treeList, ""
	case yaml.MappingNode:
		t.kind, t.text = treeMap, ""
	default:
		return nil, &lineError{n.Line, "this cannot stand in a program"}
	}
	r.open[n] = true
	defer delete(r.open, n)
	if t.kind == treeList {
		for _, c := range n.Content {
			v, err := r.tree(c, depth+1)
			if err != nil {
				return nil, err
			}
			t.vals = append(t.vals, v)
		}
		return t, nil
	}
	return t, r.mapping(n, t, depth)
}

func (r *yamlReader) mapping(n *yaml.Node, t *tree, depth int) error {
	seen := map[string]bool{}
	add := func(key string, line int, v *tree) {
		seen[key] = true
		t.keys, t.at, t.vals = append(t.keys, key), append(t.at, line), append(t.vals, v)
	}
	var merged []*tree
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			return &lineError{k.Line, "a key must be a plain name"}
		}
		v, err := r.tree(n.Content[i+1], depth+1)
		if err != nil {
			return err
		}
		if k.ShortTag() == "!!merge" {
			from := []*tree{v}
			if v.kind == treeList {
				from = v.vals
			}
			merged = append(merged, from...)
			continue
		}
		if seen[k.Value] {
			return &lineError{k.Line, fmt.Sprintf("key %q twice", clip(k.Value, 40))}
		}
		add(k.Value, k.Line, v)
	}
	for _, m := range merged { // what << brings comes after, and gives way
		if m.kind != treeMap {
			return &lineError{n.Line, "<< takes a map or a list of maps"}
		}
		for i, k := range m.keys {
			if !seen[k] {
				add(k, n.Line, m.vals[i])
			}
		}
	}
	return nil
}

func (r *yamlReader) scalar(n *yaml.Node, t *tree) error {
	switch n.ShortTag() {
	case "!!null":
		t.kind, t.text = treeNull, "null"
	case "!!bool":
		t.kind = treeBool
		var b bool
		if err := n.Decode(&b); err != nil {
			return &lineError{n.Line, "this is no bool"}
		}
		t.text = strconv.FormatBool(b)
	case "!!int", "!!float":
		t.kind = treeNumber
		if isJSONNumber(n.Value) {
			return nil
		}
		num, err := yamlNumber(n)
		if err != nil {
			return &lineError{n.Line, err.Error()}
		}
		t.text = num
	default:
		if num, ok := hugeNumber(n); ok {
			t.kind, t.text = treeNumber, num
			return nil
		}
		if tag := n.ShortTag(); strings.HasPrefix(tag, "!") && !strings.HasPrefix(tag, "!!") {
			return &lineError{n.Line, fmt.Sprintf("%s reads as a YAML tag: quote texts and expressions that begin with !", clip(tag, 40))}
		}
		t.kind = treeString
		if n.Style&yaml.LiteralStyle != 0 {
			t.body = n.Line + 1
		}
	}
	return nil
}

// yamlFloat is a number with an exponent: sign, digits, fraction, exponent.
var yamlFloat = regexp.MustCompile(`^([-+]?)([0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)$`)

// hugeNumber returns, as JSON writes it, a number that the YAML library takes for
// a text because no float64 holds it.
func hugeNumber(n *yaml.Node) (string, bool) {
	m := yamlFloat.FindStringSubmatch(n.Value)
	if n.Style != 0 || m == nil || len(m[2])+len(m[3]) == 0 || m[2] == "" && m[3] == "." {
		return "", false
	}
	sign, whole, frac := strings.TrimPrefix(m[1], "+"), strings.TrimLeft(m[2], "0"), m[3]
	if whole == "" {
		whole = "0"
	}
	if frac == "." {
		frac = ""
	}
	return sign + whole + frac + m[4], true
}

// yamlNumber returns a number that YAML writes otherwise as JSON writes it.
func yamlNumber(n *yaml.Node) (string, error) {
	var u uint64
	if n.Decode(&u) == nil {
		return strconv.FormatUint(u, 10), nil
	}
	var i int64
	if n.Decode(&i) == nil {
		return strconv.FormatInt(i, 10), nil
	}
	var f float64
	if n.Decode(&f) != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return "", errors.New("JSON has no such number")
	}
	return string(appendFloat(nil, f)), nil
}

// isJSONNumber reports whether s is a number in JSON's spelling.
func isJSONNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	digits := func() bool {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	if strings.HasPrefix(s, "0") {
		s = s[1:]
	} else if !digits() {
		return false
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		if !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}
