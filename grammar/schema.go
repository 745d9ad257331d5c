package grammar

import (
	"net/url"
	"strconv"
	"strings"
)

// schema is one subschema of a document.
type schema struct {
	v     *value
	ptr   string
	res   *resource
	state uint8 // 0 unread, 1 being read, 2 read
	f     fid
}

// resource is a document or an embedded schema with an identifier.
type resource struct {
	uri     string
	root    *schema
	anchors map[string]*schema
	dynamic map[string]bool
	draft   int
}

// document holds the subschemas of one JSON Schema and finds references.
type document struct {
	byValue   map[*value]*schema
	resources map[string]*resource
	root      *schema
	maxDepth  int
}

// Drafts, by the number in their names; the two latest have years.
const (
	draft3    = 3
	draft4    = 4
	draft6    = 6
	draft7    = 7
	draft2019 = 2019
	draft2020 = 2020
)

func draftOf(uri string) int {
	for _, d := range []struct {
		name string
		n    int
	}{{"draft-03", draft3}, {"draft-04", draft4}, {"draft-06", draft6}, {"draft-07", draft7}, {"2019-09", draft2019}} {
		if strings.Contains(uri, d.name) {
			return d.n
		}
	}
	return draft2020
}

// Where subschemas stand: the value of the keyword is a schema, a list of
// schemas, or an object of schemas.
var (
	schemaKeywords = []string{"additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else",
		"unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"}
	listKeywords = []string{"allOf", "anyOf", "oneOf", "prefixItems", "items"}
	mapKeywords  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)

func readDocument(root *value, maxDepth int) *document {
	d := &document{byValue: map[*value]*schema{}, resources: map[string]*resource{}, maxDepth: maxDepth}
	draft := draft2020
	if s := root.get("$schema"); s != nil && s.kind == 's' {
		draft = draftOf(s.str)
	}
	res := &resource{anchors: map[string]*schema{}, dynamic: map[string]bool{}, draft: draft}
	d.resources[""] = res
	d.root = d.scan(root, "", res, 0)
	res.root = d.root
	return d
}

// scan records v and its subschemas.
func (d *document) scan(v *value, ptr string, res *resource, depth int) *schema {
	if s, ok := d.byValue[v]; ok {
		return s
	}
	if depth > d.maxDepth {
		failf(ErrTooLarge, "schema", clip(ptr), "", "the schema is nested more than "+strconv.Itoa(d.maxDepth)+" levels deep")
	}
	s := &schema{v: v, ptr: ptr, res: res}
	d.byValue[v] = s
	if v.kind != '{' {
		return s
	}
	if id := v.get("$id"); id == nil && res.draft > draft4 {
	} else if id == nil || res.draft <= draft4 {
		if alt := v.get("id"); alt != nil && res.draft <= draft4 {
			d.identify(s, alt)
		}
	} else {
		d.identify(s, id)
	}
	for _, k := range []string{"$anchor", "$dynamicAnchor"} {
		if a := v.get(k); a != nil && a.kind == 's' {
			s.res.anchors[a.str] = s
			if k == "$dynamicAnchor" {
				s.res.dynamic[a.str] = true
			}
		}
	}
	if s.res.draft <= draft7 && v.get("$ref") != nil {
		// Siblings of $ref say nothing, but may hold definitions.
		for _, k := range []string{"definitions", "$defs"} {
			d.scanMap(v.get(k), ptr+"/"+k, s.res, depth)
		}
		return s
	}
	for _, k := range schemaKeywords {
		if x := v.get(k); x != nil && (x.kind == '{' || x.kind == 't' || x.kind == 'f') {
			d.scan(x, ptr+"/"+k, s.res, depth+1)
		}
	}
	for _, k := range listKeywords {
		if x := v.get(k); x != nil && x.kind == '[' {
			for i, y := range x.list {
				d.scan(y, ptr+"/"+k+"/"+strconv.Itoa(i), s.res, depth+1)
			}
		}
	}
	for _, k := range mapKeywords {
		d.scanMap(v.get(k), ptr+"/"+k, s.res, depth)
	}
	return s
}

func (d *document) scanMap(x *value, ptr string, res *resource, depth int) {
	if x == nil || x.kind != '{' {
		return
	}
	for i, y := range x.list {
		if y.kind != '[' {
			d.scan(y, ptr+"/"+escapePointer(x.keys[i]), res, depth+1)
		}
	}
}

// clip shortens a pointer for a message.
func clip(ptr string) string {
	if len(ptr) > 200 {
		return ptr[:200] + "..."
	}
	return ptr
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

// identify starts a resource at s when its identifier names one.
func (d *document) identify(s *schema, id *value) {
	if id.kind != 's' {
		return
	}
	base, frag, _ := strings.Cut(id.str, "#")
	if base == "" {
		if frag != "" && s.res.draft <= draft7 {
			s.res.anchors[frag] = s
		}
		return
	}
	uri := resolveURI(s.res.uri, base)
	if _, taken := d.resources[uri]; taken {
		return
	}
	draft := s.res.draft
	if sv := s.v.get("$schema"); sv != nil && sv.kind == 's' {
		draft = draftOf(sv.str)
	}
	if s.ptr == "" {
		s.res.uri = uri
		d.resources[uri] = s.res
		return
	}
	s.res = &resource{uri: uri, root: s, anchors: map[string]*schema{}, dynamic: map[string]bool{}, draft: draft}
	d.resources[uri] = s.res
}

func resolveURI(base, ref string) string {
	b, err1 := url.Parse(base)
	r, err2 := url.Parse(ref)
	if err1 != nil || err2 != nil {
		return ref
	}
	if b.Opaque != "" && r.Scheme == "" {
		if ref == "" {
			return base
		}
		return ref
	}
	u := b.ResolveReference(r)
	u.Fragment = ""
	return strings.TrimSuffix(u.String(), "#")
}

// find is the schema that ref names from s.
func (d *document) find(s *schema, ref, keyword string) *schema {
	base, frag, _ := strings.Cut(ref, "#")
	res := s.res
	if base != "" {
		uri := resolveURI(res.uri, base)
		if res = d.resources[uri]; res == nil {
			failf(ErrUnsupported, "schema", s.ptr+"/"+keyword, keyword, "the schema "+strconv.Quote(ref)+" is not in this document")
		}
	}
	if f, err := url.PathUnescape(frag); err == nil {
		frag = f
	}
	missing := func() {
		failf(ErrInvalid, "schema", s.ptr+"/"+keyword, keyword, "nothing is at "+strconv.Quote(ref))
	}
	if frag == "" {
		return res.root
	}
	if frag[0] != '/' {
		t := res.anchors[frag]
		if t == nil {
			missing()
		}
		return t
	}
	v, ptr := res.root.v, res.root.ptr
	for _, part := range strings.Split(frag[1:], "/") {
		name := strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		ptr += "/" + part
		var next *value
		if v.kind == '[' {
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(v.list) {
				next = v.list[i]
			}
		} else {
			next = v.get(name)
		}
		if next == nil {
			missing()
		}
		v = next
		if in := d.byValue[v]; in != nil {
			res = in.res
		}
	}
	if t := d.byValue[v]; t != nil {
		return t
	}
	return d.scan(v, ptr, res, strings.Count(ptr, "/")/2)
}
