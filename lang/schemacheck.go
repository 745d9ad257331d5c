package lang

import (
	"fmt"
	"math/big"
	"sort"
	"strconv"
	"strings"
)

// schemaProblem is something wrong with a schema, at a JSON pointer.
type schemaProblem struct{ at, msg, hint string }

// checkSchema returns what is surely wrong with a schema: parts of the wrong
// shape, references that lead nowhere, and schemas that no value satisfies. It
// does not judge whether a backend can enforce it.
func checkSchema(root *tree) []schemaProblem {
	s := &schemaSat{root: root, at: map[*tree]string{}}
	s.collect(root, "", 0)
	if len(s.problems) > 0 {
		return s.problems
	}
	s.solve()
	if !s.sat[root] {
		at, why := s.culprit()
		return []schemaProblem{{at, "no value satisfies it: " + why, "loosen or remove the conflicting keyword"}}
	}
	return nil
}

// schemaSat finds which of the schemas inside a schema some value satisfies. A
// schema that needs itself without a way out has none, so the solution is the
// least one: all start unsatisfied, and rounds add to them until nothing changes.
type schemaSat struct {
	root     *tree
	all      []*tree // every schema inside
	at       map[*tree]string
	sat      map[*tree]bool
	why      map[*tree]string
	blame    map[*tree]*tree // the inner schema that a conflict is about
	problems []schemaProblem
}

const (
	maxSchemaParts  = 20_000
	maxSchemaRounds = 100
)

func (s *schemaSat) bad(at, msg, hint string) {
	if len(s.problems) < 20 {
		s.problems = append(s.problems, schemaProblem{at, msg, hint})
	}
}

var (
	oneSchema   = []string{"additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else", "additionalItems", "unevaluatedProperties", "unevaluatedItems"}
	listSchemas = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	mapSchemas  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
	counts      = []string{"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
	numbers     = []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
	schemaTypes = []string{"string", "integer", "number", "boolean", "array", "object", "null"}
)

func pointer(at, step string) string {
	return at + "/" + strings.ReplaceAll(strings.ReplaceAll(step, "~", "~0"), "/", "~1")
}

// collect finds the schemas inside t and checks the shape of their keywords.
func (s *schemaSat) collect(t *tree, at string, depth int) {
	if len(s.all) >= maxSchemaParts || depth > maxTreeDepth {
		if len(s.all) == maxSchemaParts {
			s.bad(at, fmt.Sprintf("more than %d parts", maxSchemaParts), "use a smaller schema")
		}
		return
	}
	s.all = append(s.all, t)
	s.at[t] = at
	if t.kind == treeBool {
		return
	}
	if t.kind != treeMap {
		s.bad(at, "a schema is a map or a bool, not "+t.kind.String(), "")
		return
	}
	if ty := t.get("type"); ty != nil {
		names := ty.vals
		if ty.kind == treeString {
			names = []*tree{ty}
		} else if ty.kind != treeList || len(names) == 0 {
			s.bad(pointer(at, "type"), "type is a name or a list of names", "")
		}
		for _, n := range names {
			if n.kind != treeString || !contains(schemaTypes, n.text) {
				s.bad(pointer(at, "type"), fmt.Sprintf("no type %q", clip(n.text, 40)), didYouMean(n.text, schemaTypes))
			}
		}
	}
	for _, k := range counts {
		if v := t.get(k); v != nil {
			if n, ok := ratOf(v); !ok || !n.IsInt() || n.Sign() < 0 {
				s.bad(pointer(at, k), k+" is a whole number from 0", "")
			}
		}
	}
	for _, k := range numbers {
		if v := t.get(k); v != nil && v.kind != treeBool { // draft 4 had bools here
			if n, ok := ratOf(v); !ok || k == "multipleOf" && n.Sign() <= 0 {
				s.bad(pointer(at, k), k+" is a number", "")
			}
		}
	}
	if v := t.get("enum"); v != nil && v.kind != treeList {
		s.bad(pointer(at, "enum"), "enum is a list of values", "")
	}
	if v := t.get("required"); v != nil {
		ok := v.kind == treeList
		for _, x := range v.vals {
			ok = ok && x.kind == treeString
		}
		if !ok {
			s.bad(pointer(at, "required"), "required is a list of names", "")
		}
	}
	if v := t.get("pattern"); v != nil {
		if v.kind != treeString {
			s.bad(pointer(at, "pattern"), "pattern is a string", "")
		} else if msg := badRegex(v.text); msg != "" {
			s.bad(pointer(at, "pattern"), fmt.Sprintf("pattern %q: %s", clip(v.text, 60), msg), "correct the pattern")
		}
	}
	if v := t.get("$ref"); v != nil {
		if v.kind != treeString {
			s.bad(pointer(at, "$ref"), "$ref is a string", "")
		} else if _, ok := s.ref(v.text); !ok {
			hint := "write it as #/$defs/name"
			if !strings.HasPrefix(v.text, "#") {
				hint = "copy that schema into $defs: nothing is fetched"
			}
			s.bad(pointer(at, "$ref"), fmt.Sprintf("%q leads nowhere", clip(v.text, 60)), hint)
		}
	}
	for _, k := range oneSchema {
		if v := t.get(k); v != nil {
			if k == "items" && v.kind == treeList { // draft 4 tuples
				for i, x := range v.vals {
					s.collect(x, pointer(pointer(at, k), strconv.Itoa(i)), depth+1)
				}
				continue
			}
			s.collect(v, pointer(at, k), depth+1)
		}
	}
	for _, k := range listSchemas {
		if v := t.get(k); v != nil {
			if v.kind != treeList || len(v.vals) == 0 {
				s.bad(pointer(at, k), k+" is a list of at least one schema", "")
				continue
			}
			for i, x := range v.vals {
				s.collect(x, pointer(pointer(at, k), strconv.Itoa(i)), depth+1)
			}
		}
	}
	for _, k := range mapSchemas {
		if v := t.get(k); v != nil {
			if v.kind != treeMap {
				s.bad(pointer(at, k), k+" is a map of schemas", "")
				continue
			}
			for i, x := range v.vals {
				s.collect(x, pointer(pointer(at, k), v.keys[i]), depth+1)
			}
		}
	}
}

// ref follows a reference; anchors count too.
func (s *schemaSat) ref(ref string) (*tree, bool) {
	if t, ok := resolveRef(s.root, ref); ok {
		return t, true
	}
	name, ok := strings.CutPrefix(ref, "#")
	if !ok || name == "" || name[0] == '/' {
		return nil, false
	}
	return findAnchor(s.root, name, 0)
}

func findAnchor(t *tree, name string, depth int) (*tree, bool) {
	if depth > maxTreeDepth {
		return nil, false
	}
	if a := t.get("$anchor"); a != nil && a.text == name {
		return t, true
	}
	for _, v := range t.vals {
		if found, ok := findAnchor(v, name, depth+1); ok {
			return found, true
		}
	}
	return nil, false
}

func (s *schemaSat) solve() {
	s.sat, s.why, s.blame = map[*tree]bool{}, map[*tree]string{}, map[*tree]*tree{}
	for round, changed := 0, true; changed; round++ {
		if round == maxSchemaRounds {
			s.sat[s.root] = true // not for us to see
			return
		}
		changed = false
		for i := len(s.all) - 1; i >= 0; i-- { // inner ones first
			t := s.all[i]
			if s.sat[t] {
				continue
			}
			why := s.conflict(t)
			s.why[t] = why
			if why == "" {
				s.sat[t], changed = true, true
			}
		}
	}
}

// has reports whether a schema that stands at t can be satisfied; what was not
// collected is trusted.
func (s *schemaSat) has(t *tree) bool {
	if _, known := s.at[t]; !known {
		return true
	}
	return s.sat[t]
}

// conflict returns why no value satisfies t, as far as is known in this round.
func (s *schemaSat) conflict(t *tree) string {
	if t.kind == treeBool {
		if t.text == "false" {
			return "the schema false allows nothing"
		}
		return ""
	}
	if ref := t.get("$ref"); ref != nil {
		if to, ok := s.ref(ref.text); ok && !s.has(to) {
			s.blame[t] = to
			return ref.text + " allows nothing, or needs itself without end"
		}
	}
	if all := t.get("allOf"); all != nil {
		for i, x := range all.vals {
			if !s.has(x) {
				s.blame[t] = x
				return fmt.Sprintf("allOf/%d allows nothing", i)
			}
		}
	}
	for _, k := range []string{"anyOf", "oneOf"} {
		if alts := t.get(k); alts != nil {
			any := false
			for _, x := range alts.vals {
				any = any || s.has(x)
			}
			if !any {
				s.blame[t] = alts.vals[0]
				return "no alternative of " + k + " allows anything"
			}
		}
	}
	types := s.types(t, 0)
	if types != nil && len(types) == 0 {
		return "the types of its parts exclude one another"
	}
	if vals := t.get("enum"); vals != nil {
		if len(vals.vals) == 0 {
			return "enum is empty"
		}
		if !anyOfTypes(vals.vals, types) {
			return "no value of enum has the type " + strings.Join(sortedSet(types), " or ")
		}
	}
	if v := t.get("const"); v != nil && !anyOfTypes([]*tree{v}, types) {
		return "const does not have the type " + strings.Join(sortedSet(types), " or ")
	}
	// A schema that may be of several types is satisfied by the one that is
	// not in conflict.
	why := ""
	for _, ty := range schemaTypes {
		if types != nil && !types[ty] {
			continue
		}
		w := s.conflictOf(t, ty)
		if w == "" {
			return ""
		}
		if why == "" {
			why = w
		}
	}
	return why
}

// conflictOf returns why no value of one type satisfies t.
func (s *schemaSat) conflictOf(t *tree, ty string) string {
	switch ty {
	case "string":
		return crossed(t, "minLength", "maxLength")
	case "integer", "number":
		return numberConflict(t, ty == "integer")
	case "array":
		if w := crossed(t, "minItems", "maxItems"); w != "" {
			return w
		}
		if n, ok := ratOf(t.get("minItems")); ok && n.Sign() > 0 {
			if items := t.get("items"); items != nil && items.kind != treeList && t.get("prefixItems") == nil && !s.has(items) {
				s.blame[t] = items
				return "items allows nothing, and minItems wants some"
			}
			if pre := t.get("prefixItems"); pre != nil {
				for i, x := range pre.vals {
					if n.Cmp(big.NewRat(int64(i), 1)) > 0 && !s.has(x) {
						return fmt.Sprintf("prefixItems/%d allows nothing, and minItems wants it", i)
					}
				}
			}
		}
	case "object":
		if w := crossed(t, "minProperties", "maxProperties"); w != "" {
			return w
		}
		props, more := t.get("properties"), t.get("additionalProperties")
		if req := t.get("required"); req != nil {
			names := map[string]bool{}
			for _, r := range req.vals {
				names[r.text] = true
				if p := props.get(r.text); p != nil {
					if !s.has(p) {
						s.blame[t] = p
						return fmt.Sprintf("the required key %q allows nothing, or needs itself without end", r.text)
					}
				} else if more != nil && t.get("patternProperties") == nil && !s.has(more) {
					return fmt.Sprintf("the required key %q is not among the properties, and no others are allowed", r.text)
				}
			}
			if n, ok := ratOf(t.get("maxProperties")); ok && n.Cmp(big.NewRat(int64(len(names)), 1)) < 0 {
				return fmt.Sprintf("%d keys are required, and maxProperties is %s", len(names), n.RatString())
			}
		}
		if n, ok := ratOf(t.get("minProperties")); ok && more != nil && more.text == "false" && t.get("patternProperties") == nil {
			have := 0
			if props != nil {
				have = len(props.keys)
			}
			if n.Cmp(big.NewRat(int64(have), 1)) > 0 {
				return fmt.Sprintf("minProperties is %s, and only %d keys are allowed", n.RatString(), have)
			}
		}
	}
	return ""
}

// types returns the types that a value of t may have; nil for all.
func (s *schemaSat) types(t *tree, depth int) map[string]bool {
	if depth > 16 || t.kind != treeMap {
		return nil
	}
	var out map[string]bool
	meet := func(m map[string]bool) {
		if m == nil {
			return
		}
		if out == nil {
			out = map[string]bool{}
			for k := range m {
				out[k] = true
			}
			return
		}
		for k := range out {
			if !m[k] && !(k == "integer" && m["number"]) {
				delete(out, k)
			}
		}
	}
	if ty := t.get("type"); ty != nil {
		m := map[string]bool{}
		if ty.kind == treeString {
			m[ty.text] = true
		}
		for _, x := range ty.vals {
			m[x.text] = true
		}
		if m["number"] {
			m["integer"] = true
		}
		meet(m)
	}
	if all := t.get("allOf"); all != nil && len(all.vals) <= 16 {
		for _, x := range all.vals {
			meet(s.types(x, depth+4))
		}
	}
	return out
}

func anyOfTypes(vals []*tree, types map[string]bool) bool {
	if types == nil {
		return true
	}
	for _, v := range vals {
		switch v.kind {
		case treeNull:
			if types["null"] {
				return true
			}
		case treeBool:
			if types["boolean"] {
				return true
			}
		case treeNumber:
			if r, ok := ratOf(v); types["number"] || types["integer"] && (!ok || r.IsInt()) {
				return true
			}
		case treeString:
			if types["string"] {
				return true
			}
		case treeList:
			if types["array"] {
				return true
			}
		case treeMap:
			if types["object"] {
				return true
			}
		}
	}
	return false
}

// crossed reports bounds of which the lower is above the upper.
func crossed(t *tree, lo, hi string) string {
	a, ok1 := ratOf(t.get(lo))
	b, ok2 := ratOf(t.get(hi))
	if ok1 && ok2 && a.Cmp(b) > 0 {
		return fmt.Sprintf("%s is %s and %s is %s", lo, a.RatString(), hi, b.RatString())
	}
	return ""
}

func numberConflict(t *tree, whole bool) string {
	lo, hi, open := (*big.Rat)(nil), (*big.Rat)(nil), false
	if n, ok := ratOf(t.get("minimum")); ok {
		lo = n
	}
	if n, ok := ratOf(t.get("exclusiveMinimum")); ok && (lo == nil || n.Cmp(lo) >= 0) {
		lo, open = n, true
	}
	loOpen := open
	open = false
	if n, ok := ratOf(t.get("maximum")); ok {
		hi = n
	}
	if n, ok := ratOf(t.get("exclusiveMaximum")); ok && (hi == nil || n.Cmp(hi) <= 0) {
		hi, open = n, true
	}
	if lo == nil || hi == nil {
		return ""
	}
	if c := lo.Cmp(hi); c > 0 || c == 0 && (loOpen || open) {
		return fmt.Sprintf("the minimum is %s and the maximum %s", lo.RatString(), hi.RatString())
	}
	step := big.NewRat(1, 1)
	if m, ok := ratOf(t.get("multipleOf")); ok && m.Sign() > 0 {
		if whole && !m.IsInt() {
			return ""
		}
		step = m
	} else if !whole {
		return ""
	}
	// The first multiple that is at least lo.
	q := new(big.Rat).Quo(lo, step)
	k := new(big.Int).Div(q.Num(), q.Denom()) // floor
	first := new(big.Rat).Mul(new(big.Rat).SetInt(k), step)
	for first.Cmp(lo) < 0 || loOpen && first.Cmp(lo) == 0 {
		first.Add(first, step)
	}
	if c := first.Cmp(hi); c > 0 || c == 0 && open {
		return fmt.Sprintf("no multiple of %s lies between %s and %s", step.RatString(), lo.RatString(), hi.RatString())
	}
	return ""
}

// ratOf returns a number exactly. Numbers with huge exponents are left out:
// writing them as fractions would take memory without bound.
func ratOf(t *tree) (*big.Rat, bool) {
	if t == nil || t.kind != treeNumber || len(t.text) > 64 {
		return nil, false
	}
	if i := strings.IndexAny(t.text, "eE"); i >= 0 {
		if exp, err := strconv.Atoi(strings.TrimPrefix(t.text[i+1:], "+")); err != nil || exp > 400 || exp < -400 {
			return nil, false
		}
	}
	return new(big.Rat).SetString(t.text)
}

// culprit returns the place and reason of the schema that keeps the root from
// being satisfied: the end of the chain of blame.
func (s *schemaSat) culprit() (string, string) {
	t, seen := s.root, map[*tree]bool{}
	for !seen[t] {
		seen[t] = true
		next := s.blame[t]
		if next == nil || s.sat[next] || next.kind != treeMap || seen[next] {
			break
		}
		t = next
	}
	return s.at[t], s.why[t]
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func sortedSet(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
