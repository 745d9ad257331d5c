package grammar

import (
	"math"
	"strconv"
	"strings"
)

// This file says, keyword by keyword, what a schema means as a formula.

// compiler turns one spec into the parts of a grammar.
type compiler struct {
	*pool
	fs       *formulas
	doc      *document
	spec     Spec
	limits   Limits
	form     form
	cancel   func() error
	notes    []string
	norm     map[normKey]*tree
	values   map[fid]*valueNode
	all      []*valueNode // that were compiled, in the order of the text
	objects  []*objectNode
	arrays   []*arrayNode
	langs    map[langKey]nodeID
	expanded int
	open     []normKey // being restricted, outermost first
	openBase int       // of open, those that the innermost look into a value began
	exclude  map[fidPair]bool
	imply    map[fidPair]bool
	partial  int // disjunctive forms with cases left out

	valueIDs int32
	parts    int // nesting of composed specs
}

func (c *compiler) refuse(kind error, s *schema, keyword, msg string) {
	ptr := s.ptr
	if keyword != "" {
		ptr += "/" + keyword
	}
	failf(kind, "schema", clip(ptr), keyword, msg)
}

// read is the formula of a schema.
func (c *compiler) read(s *schema) fid {
	switch s.state {
	case 2:
		return s.f
	case 1:
		c.refuse(ErrInvalid, s, "", "the schema refers to itself without a value in between")
	}
	s.state = 1
	s.f = c.readKeywords(s)
	s.state = 2
	return s.f
}

// sub is the formula of a subschema, read when it is needed.
func (c *compiler) sub(v *value) fid {
	switch v.kind {
	case 't':
		return fTrue
	case 'f':
		return fFalse
	}
	s := c.doc.byValue[v]
	if len(v.keys) == 0 && v.kind == '{' {
		return fTrue
	}
	return c.fs.ref(s)
}

func (c *compiler) readKeywords(s *schema) fid {
	v := s.v
	switch v.kind {
	case 't':
		return fTrue
	case 'f':
		return fFalse
	case '{':
	default:
		c.refuse(ErrInvalid, s, "", "a schema is an object or a boolean")
	}
	c.spend(len(v.keys))
	if c.cancel != nil {
		if err := c.cancel(); err != nil {
			panic(fail{err})
		}
	}
	if ref := v.get("$ref"); ref != nil && s.res.draft <= draft7 {
		return c.refFormula(s, ref)
	}
	if meta := v.get("$schema"); meta != nil && meta.kind == 's' && !knownMeta(meta.str) {
		c.refuse(ErrUnsupported, s, "$schema", "the meta-schema "+strconv.Quote(meta.str)+" is not known, nor what its keywords mean")
	}
	if s.res.draft >= draft2019 && (v.get("unevaluatedProperties") != nil || v.get("unevaluatedItems") != nil) {
		return c.readCases(s)
	}
	var parts []fid
	for i, k := range v.keys {
		if f := c.keyword(s, k, v.list[i]); f != fTrue {
			parts = append(parts, f)
		}
	}
	return c.fs.and(parts...)
}

// knownMeta reports whether a meta-schema is one of json-schema.org's drafts
// or a dialect of one that adds no conditions.
func knownMeta(uri string) bool {
	return strings.Contains(uri, "json-schema.org/") || strings.Contains(uri, "iglucentral.com/") || uri == ""
}

func (c *compiler) refFormula(s *schema, ref *value) fid {
	if ref.kind != 's' {
		c.refuse(ErrInvalid, s, "$ref", "not a string")
	}
	return c.fs.ref(c.doc.find(s, ref.str, "$ref"))
}

// keyword is the formula of one keyword; unknown ones say nothing.
func (c *compiler) keyword(s *schema, k string, v *value) fid {
	fs := c.fs
	schemaOf := func(v *value, where string) fid {
		if v.kind != '{' && v.kind != 't' && v.kind != 'f' {
			c.refuse(ErrInvalid, s, where, "a schema is an object or a boolean")
		}
		return c.sub(v)
	}
	list := func() []fid {
		if v.kind != '[' || len(v.list) == 0 {
			c.refuse(ErrInvalid, s, k, "not a list of schemas")
		}
		out := make([]fid, len(v.list))
		for i, x := range v.list {
			out[i] = schemaOf(x, k+"/"+strconv.Itoa(i))
		}
		return out
	}
	ptr := s.ptr + "/" + k
	switch k {
	case "$ref":
		return c.refFormula(s, v)
	case "$dynamicRef":
		return c.dynamicRef(s, v)
	case "$recursiveRef":
		c.refuse(ErrUnsupported, s, k, "not enforced")
	case "type":
		return c.typeFormula(s, v)
	case "enum":
		if v.kind != '[' {
			c.refuse(ErrInvalid, s, k, "not a list")
		}
		return c.enum(v.list, ptr)
	case "const":
		return c.enum([]*value{v}, ptr)
	case "allOf":
		return fs.and(list()...)
	case "anyOf":
		return fs.or(list()...)
	case "oneOf":
		return fs.oneOf(list())
	case "not":
		return fs.not(schemaOf(v, k))
	case "if":
		then, els := s.v.get("then"), s.v.get("else")
		if then == nil && els == nil {
			return fTrue
		}
		cond := schemaOf(v, k)
		yes, no := fTrue, fTrue
		if then != nil {
			yes = schemaOf(then, "then")
		}
		if els != nil {
			no = schemaOf(els, "else")
		}
		return fs.or(fs.and(cond, yes), fs.and(fs.not(cond), no))

	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
		return c.bound(s, k, v)
	case "multipleOf", "divisibleBy":
		d := c.decimal(s, k, v)
		if d.digits == "" || d.neg {
			c.refuse(ErrInvalid, s, k, "not above zero")
		}
		return fs.atom(atom{kind: aMultiple, typ: tNumber, num: d, ptr: ptr})

	case "minLength":
		return fs.atom(atom{kind: aLen, typ: tString, lo: c.count(s, k, v), hi: -1, ptr: ptr})
	case "maxLength":
		return fs.atom(atom{kind: aLen, typ: tString, lo: 0, hi: c.count(s, k, v), ptr: ptr})
	case "pattern":
		if v.kind != 's' {
			c.refuse(ErrInvalid, s, k, "not a string")
		}
		f := fs.atom(atom{kind: aPattern, typ: tString, text: v.str, ptr: ptr})
		c.lang(fs.nodes[f].atom, encString) // report faults with this pointer
		return f
	case "format":
		return c.formatFormula(s, v)

	case "properties":
		return c.properties(s, v)
	case "patternProperties":
		return c.patternProperties(s, v)
	case "additionalProperties":
		f := schemaOf(v, k)
		if f == fTrue {
			return fTrue
		}
		return fs.atom(atom{kind: aAllProps, typ: tObject, keys: c.otherKeys(s), val: f, ptr: ptr})
	case "propertyNames":
		f := schemaOf(v, k)
		if f == fTrue {
			return fTrue
		}
		lang := c.stringLang(c.restrict(f, tString, false), encKey)
		return fs.atom(atom{kind: aAllProps, typ: tObject, keys: keyset{kind: ksOther, langs: []nodeID{lang}}, val: fFalse, ptr: ptr})
	case "required":
		return c.required(s, k, v)
	case "minProperties":
		return fs.atom(atom{kind: aMinProps, typ: tObject, lo: c.count(s, k, v), ptr: ptr})
	case "maxProperties":
		return fs.atom(atom{kind: aMaxProps, typ: tObject, lo: c.count(s, k, v), ptr: ptr})
	case "dependentRequired", "dependentSchemas", "dependencies":
		return c.dependencies(s, k, v)

	case "items", "prefixItems", "additionalItems":
		return c.items(s, k, v)
	case "minItems":
		return fs.atom(atom{kind: aMinItems, typ: tArray, lo: c.count(s, k, v), ptr: ptr})
	case "maxItems":
		return fs.atom(atom{kind: aMaxItems, typ: tArray, lo: c.count(s, k, v), ptr: ptr})
	case "uniqueItems":
		switch v.kind {
		case 't':
			return fs.atom(atom{kind: aUnique, typ: tArray, ptr: ptr})
		case 'f':
			return fTrue
		}
		c.refuse(ErrInvalid, s, k, "not a boolean")
	case "contains":
		return c.contains(s, schemaOf(v, k))
	case "disallow", "extends":
		if s.res.draft == draft3 {
			c.refuse(ErrUnsupported, s, k, "draft-03 keyword")
		}
	}
	return fTrue
}

func (c *compiler) typeFormula(s *schema, v *value) fid {
	names := []*value{v}
	if v.kind == '[' {
		names = v.list
	}
	var mask typeMask
	integer := false
	for _, n := range names {
		if n.kind != 's' {
			if s.res.draft == draft3 && n.kind == '{' {
				c.refuse(ErrUnsupported, s, "type", "a schema as a type (draft-03)")
			}
			c.refuse(ErrInvalid, s, "type", "not the name of a type")
		}
		switch n.str {
		case "null":
			mask |= tNull
		case "boolean":
			mask |= tBool
		case "number":
			mask |= tNumber
		case "integer":
			integer = true
		case "string":
			mask |= tString
		case "array":
			mask |= tArray
		case "object":
			mask |= tObject
		case "any":
			if s.res.draft == draft3 {
				mask = tAll
				break
			}
			fallthrough
		default:
			c.refuse(ErrInvalid, s, "type", "unknown type "+strconv.Quote(n.str))
		}
	}
	if integer && mask&tNumber == 0 {
		return c.fs.and(c.fs.types(mask|tNumber), c.fs.atom(atom{kind: aInt, typ: tNumber, ptr: s.ptr + "/type"}))
	}
	return c.fs.types(mask)
}

// kindMask is the JSON type of a value.
func kindMask(v *value) typeMask {
	switch v.kind {
	case 'n':
		return tNull
	case 't', 'f':
		return tBool
	case '0':
		return tNumber
	case 's':
		return tString
	case '[':
		return tArray
	}
	return tObject
}

func (c *compiler) enum(values []*value, ptr string) fid {
	if len(values) == 0 {
		return fFalse
	}
	c.spend(len(values))
	return c.fs.atom(atom{kind: aEnum, typ: tAll, values: values, ptr: ptr})
}

func (c *compiler) decimal(s *schema, k string, v *value) decimal {
	if v.kind != '0' {
		c.refuse(ErrInvalid, s, k, "not a number")
	}
	d, ok := parseDecimal(v.str)
	if !ok || len(d.digits) > 400 {
		c.refuse(ErrTooLarge, s, k, "a number of this size")
	}
	return d
}

func (c *compiler) count(s *schema, k string, v *value) int32 {
	d := c.decimal(s, k, v)
	if d.neg || !d.isInt() {
		c.refuse(ErrInvalid, s, k, "not a count")
	}
	if len(d.digits)+d.exp > 9 {
		if strings.HasPrefix(k, "max") {
			return math.MaxInt32 >> 1
		}
		c.refuse(ErrTooLarge, s, k, "a number of this size")
	}
	whole, _ := d.plain()
	n, _ := strconv.Atoi(whole)
	return int32(n)
}

func (c *compiler) bound(s *schema, k string, v *value) fid {
	a := atom{kind: aMin, typ: tNumber, ptr: s.ptr + "/" + k}
	if k == "maximum" || k == "exclusiveMaximum" {
		a.kind = aMax
	}
	exclusive := strings.HasPrefix(k, "exclusive")
	if exclusive {
		if v.kind == 't' || v.kind == 'f' {
			return fTrue // draft-04: belongs to minimum or maximum
		}
		a.strict = true
	} else {
		other := s.v.get("exclusive" + strings.ToUpper(k[:1]) + k[1:])
		a.strict = other != nil && other.kind == 't'
	}
	a.num = c.decimal(s, k, v)
	return c.fs.atom(a)
}

func (c *compiler) properties(s *schema, v *value) fid {
	if v.kind != '{' {
		c.refuse(ErrInvalid, s, "properties", "not an object")
	}
	c.spend(len(v.keys))
	parts := make([]fid, 0, len(v.keys)+1)
	for i, k := range v.keys {
		x := v.list[i]
		if x.kind != '{' && x.kind != 't' && x.kind != 'f' {
			c.refuse(ErrInvalid, s, "properties/"+escapePointer(k), "a schema is an object or a boolean")
		}
		parts = append(parts, c.fs.atom(atom{kind: aAllProps, typ: tObject, keys: keyset{kind: ksName, name: k}, val: c.sub(x),
			ptr: s.ptr + "/properties/" + escapePointer(k)}))
	}
	return c.fs.and(parts...)
}

func (c *compiler) keyPattern(s *schema, k string) nodeID {
	lang, err := c.compilePattern(k, encKey, false, c.limits.Depth)
	if pe, ok := asPatternError(err); ok {
		c.refuse(pe.kind, s, "patternProperties/"+escapePointer(k), pe.Error())
	}
	return lang
}

func (c *compiler) patternProperties(s *schema, v *value) fid {
	if v.kind != '{' {
		c.refuse(ErrInvalid, s, "patternProperties", "not an object")
	}
	var parts []fid
	for i, k := range v.keys {
		x := v.list[i]
		if x.kind != '{' && x.kind != 't' && x.kind != 'f' {
			c.refuse(ErrInvalid, s, "patternProperties/"+escapePointer(k), "a schema is an object or a boolean")
		}
		lang := c.keyPattern(s, k)
		parts = append(parts, c.fs.atom(atom{kind: aAllProps, typ: tObject, keys: keyset{kind: ksLang, lang: lang}, val: c.sub(x),
			ptr: s.ptr + "/patternProperties/" + escapePointer(k)}))
	}
	return c.fs.and(parts...)
}

// otherKeys is the names that neither properties nor patternProperties of s
// speak of.
func (c *compiler) otherKeys(s *schema) keyset {
	ks := keyset{kind: ksOther}
	if p := s.v.get("properties"); p != nil && p.kind == '{' {
		ks.names = p.keys
	}
	if p := s.v.get("patternProperties"); p != nil && p.kind == '{' {
		for _, k := range p.keys {
			ks.langs = append(ks.langs, c.keyPattern(s, k))
		}
	}
	return ks
}

func (c *compiler) has(name string) fid {
	return c.fs.atom(atom{kind: aHasProp, typ: tObject, keys: keyset{kind: ksName, name: name}, val: fTrue})
}

func (c *compiler) required(s *schema, k string, v *value) fid {
	if (v.kind == 't' || v.kind == 'f') && s.res.draft <= draft4 {
		return fTrue // draft-03: said of the property, to its container
	}
	var parts []fid
	for _, n := range c.names(s, k, v) {
		parts = append(parts, c.has(n))
	}
	return c.fs.and(parts...)
}

func (c *compiler) names(s *schema, k string, v *value) []string {
	var out []string
	if v.kind == 's' && k != "required" {
		return []string{v.str} // draft-03 dependencies
	}
	if v.kind != '[' {
		c.refuse(ErrInvalid, s, k, "not a list of names")
	}
	for _, n := range v.list {
		if n.kind != 's' {
			c.refuse(ErrInvalid, s, k, "not a list of names")
		}
		out = append(out, n.str)
	}
	return out
}

func (c *compiler) dependencies(s *schema, k string, v *value) fid {
	if v.kind != '{' {
		c.refuse(ErrInvalid, s, k, "not an object")
	}
	var parts []fid
	for i, name := range v.keys {
		x := v.list[i]
		var then fid
		switch {
		case k != "dependentSchemas" && (x.kind == '[' || x.kind == 's'):
			var need []fid
			for _, n := range c.names(s, k, x) {
				need = append(need, c.has(n))
			}
			then = c.fs.and(need...)
		case k != "dependentRequired" && (x.kind == '{' || x.kind == 't' || x.kind == 'f'):
			then = c.sub(x)
		default:
			c.refuse(ErrInvalid, s, k+"/"+escapePointer(name), "not what this keyword takes")
		}
		if then != fTrue {
			parts = append(parts, c.fs.or(c.fs.types(tAll&^tObject), c.fs.not(c.has(name)), then))
		}
	}
	return c.fs.and(parts...)
}

func (c *compiler) items(s *schema, k string, v *value) fid {
	fs := c.fs
	all := func(from, to int32, f fid, ptr string) fid {
		if f == fTrue {
			return fTrue
		}
		return fs.atom(atom{kind: aAllItems, typ: tArray, lo: from, hi: to, val: f, ptr: ptr})
	}
	ptr := s.ptr + "/" + k
	prefix := s.v.get("prefixItems")
	items := s.v.get("items")
	switch {
	case k == "additionalItems":
		if items == nil || items.kind != '[' {
			return fTrue
		}
		if s.res.draft == draft2020 && s.v.get("prefixItems") != nil {
			return fTrue
		}
		return all(int32(len(items.list)), -1, c.sub(v), ptr)
	case v.kind == '[':
		var parts []fid
		for i, x := range v.list {
			if x.kind != '{' && x.kind != 't' && x.kind != 'f' {
				c.refuse(ErrInvalid, s, k+"/"+strconv.Itoa(i), "a schema is an object or a boolean")
			}
			parts = append(parts, all(int32(i), int32(i)+1, c.sub(x), ptr+"/"+strconv.Itoa(i)))
		}
		return fs.and(parts...)
	case k == "items" && (v.kind == '{' || v.kind == 't' || v.kind == 'f'):
		from := int32(0)
		if prefix != nil && prefix.kind == '[' {
			from = int32(len(prefix.list))
		}
		return all(from, -1, c.sub(v), ptr)
	}
	c.refuse(ErrInvalid, s, k, "not a schema")
	return fTrue
}

func (c *compiler) contains(s *schema, f fid) fid {
	fs := c.fs
	lo, hi := int32(1), int32(-1)
	if v := s.v.get("minContains"); v != nil && s.res.draft >= draft2019 {
		lo = c.count(s, "minContains", v)
	}
	if v := s.v.get("maxContains"); v != nil && s.res.draft >= draft2019 {
		hi = c.count(s, "maxContains", v)
	}
	ptr := s.ptr + "/contains"
	out := fTrue
	if lo > 0 {
		out = fs.atom(atom{kind: aItemCount, typ: tArray, lo: lo, val: f, ptr: ptr})
	}
	if hi >= 0 {
		few := fs.not(fs.atom(atom{kind: aItemCount, typ: tArray, lo: hi + 1, val: f, ptr: ptr}))
		out = fs.and(out, fs.or(fs.types(tAll&^tArray), few))
	}
	return out
}

// dynamicRef is a plain reference where nothing in the document can move it.
func (c *compiler) dynamicRef(s *schema, v *value) fid {
	if v.kind != 's' {
		c.refuse(ErrInvalid, s, "$dynamicRef", "not a string")
	}
	t := c.doc.find(s, v.str, "$dynamicRef")
	_, frag, _ := strings.Cut(v.str, "#")
	if frag != "" && frag[0] != '/' && t.res.dynamic[frag] {
		n := 0
		for _, r := range c.doc.resources {
			if r.dynamic[frag] {
				n++
			}
		}
		if n > 1 {
			c.refuse(ErrUnsupported, s, "$dynamicRef", "a reference that depends on the way to it")
		}
	}
	return c.fs.ref(t)
}
