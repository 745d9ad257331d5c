package grammar

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// A schema is read into a formula: a boolean combination of atoms, each of
// which speaks about values of one JSON type and lets all others pass. The
// formula keeps what a schema says exactly, so that conjunction, oneOf, not,
// if/then/else and dependencies need no rules of their own: normal.go brings
// the formula of a value into a form that can be written byte by byte.

type fid int32

const (
	fTrue  fid = 0
	fFalse fid = 1
)

type fkind uint8

const (
	fkTrue fkind = iota
	fkFalse
	fkAnd
	fkOr
	fkNot
	fkOneOf
	fkType // the value has one of the types of mask
	fkAtom
	fkRef // a schema read when it is needed
)

type fnode struct {
	kind   fkind
	mask   typeMask
	atom   int32
	list   []fid
	schema *schema
}

// typeMask is a set of JSON types.
type typeMask uint8

const (
	tNull typeMask = 1 << iota
	tBool
	tNumber
	tString
	tArray
	tObject
	tAll = tNull | tBool | tNumber | tString | tArray | tObject
)

type atomKind uint8

const (
	aInt       atomKind = iota // a number without a fraction
	aMin                       // number >= num (strict: >)
	aMax                       // number <= num (strict: <)
	aMultiple                  // number is a multiple of num
	aPattern                   // text matches somewhere
	aFormat                    // text has the format named text
	aLen                       // lo <= characters <= hi
	aEnum                      // equals one of values; speaks about all types
	aAllProps                  // every property whose name is in keys has a value in val
	aHasProp                   // some property whose name is in keys has a value in val
	aMinProps                  // at least lo properties
	aMaxProps                  // at most lo properties
	aAllItems                  // every item with lo <= index < hi (hi < 0: no end) is in val
	aItemCount                 // at least lo items (from the first on) are in val
	aMinItems                  // at least lo items
	aMaxItems                  // at most lo items
	aSomeItems                 // an item with lo <= index < hi is in val
	aUnique                    // no two items are equal
)

type atom struct {
	kind   atomKind
	typ    typeMask
	num    decimal
	strict bool
	text   string
	lo, hi int32
	values []*value
	keys   keyset
	val    fid
	ptr    string // where it was said, for messages
}

// keyset is a set of property names: one name, those that match a language, or
// those in none of some names and languages.
type keyset struct {
	kind  keysetKind
	name  string
	lang  nodeID // written by encKey
	names []string
	langs []nodeID
}

type keysetKind uint8

const (
	ksName keysetKind = iota
	ksLang
	ksOther
)

func (k *keyset) key() string {
	var b strings.Builder
	b.WriteByte(byte(k.kind))
	b.WriteString(strconv.Itoa(int(k.lang)))
	for _, n := range append([]string{k.name}, k.names...) {
		b.WriteString(strconv.Quote(n))
	}
	for _, l := range k.langs {
		b.WriteString("," + strconv.Itoa(int(l)))
	}
	return b.String()
}

// formulas hash-conses formulas and atoms.
type formulas struct {
	nodes   []fnode
	atoms   []atom
	byKey   map[string]fid
	byAtom  map[string]fid
	schemas map[*schema]fid
}

func newFormulas() *formulas {
	return &formulas{
		nodes:   []fnode{{kind: fkTrue}, {kind: fkFalse}},
		byKey:   map[string]fid{},
		byAtom:  map[string]fid{},
		schemas: map[*schema]fid{},
	}
}

func (fs *formulas) intern(n fnode) fid {
	b := []byte{byte(n.kind), byte(n.mask)}
	for _, x := range n.list {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	if id, ok := fs.byKey[string(b)]; ok {
		return id
	}
	fs.nodes = append(fs.nodes, n)
	id := fid(len(fs.nodes) - 1)
	fs.byKey[string(b)] = id
	return id
}

func (fs *formulas) ref(s *schema) fid {
	if id, ok := fs.schemas[s]; ok {
		return id
	}
	fs.nodes = append(fs.nodes, fnode{kind: fkRef, schema: s})
	id := fid(len(fs.nodes) - 1)
	fs.schemas[s] = id
	return id
}

func (fs *formulas) atom(a atom) fid {
	var b strings.Builder
	b.WriteString(strconv.Itoa(int(a.kind)))
	b.WriteByte(' ')
	switch a.kind {
	case aMin, aMax, aMultiple:
		if a.num.neg {
			b.WriteByte('-')
		}
		b.WriteString(a.num.digits + "e" + strconv.Itoa(a.num.exp))
		if a.strict {
			b.WriteByte('x')
		}
	case aPattern, aFormat:
		b.WriteString(a.text)
	case aEnum:
		for _, v := range a.values {
			b.Write(v.appendJSON(nil, &form{}, 0))
			b.WriteByte(',')
		}
	}
	b.WriteString(" " + strconv.Itoa(int(a.lo)) + " " + strconv.Itoa(int(a.hi)) + " " + strconv.Itoa(int(a.val)) + " ")
	if a.kind == aAllProps || a.kind == aHasProp {
		b.WriteString(a.keys.key())
	}
	key := b.String()
	if id, ok := fs.byAtom[key]; ok {
		return id
	}
	fs.atoms = append(fs.atoms, a)
	fs.nodes = append(fs.nodes, fnode{kind: fkAtom, atom: int32(len(fs.atoms) - 1)})
	id := fid(len(fs.nodes) - 1)
	fs.byAtom[key] = id
	return id
}

func (fs *formulas) types(m typeMask) fid {
	switch m {
	case 0:
		return fFalse
	case tAll:
		return fTrue
	}
	return fs.intern(fnode{kind: fkType, mask: m})
}

func (fs *formulas) not(f fid) fid {
	switch {
	case f == fTrue:
		return fFalse
	case f == fFalse:
		return fTrue
	}
	switch n := &fs.nodes[f]; n.kind {
	case fkNot:
		return n.list[0]
	case fkType:
		return fs.types(tAll &^ n.mask)
	}
	return fs.intern(fnode{kind: fkNot, list: []fid{f}})
}

// and keeps the order of its arguments: it decides the order of properties.
func (fs *formulas) and(list ...fid) fid { return fs.join(fkAnd, fTrue, fFalse, list) }

func (fs *formulas) or(list ...fid) fid { return fs.join(fkOr, fFalse, fTrue, list) }

func (fs *formulas) join(kind fkind, unit, zero fid, list []fid) fid {
	out := make([]fid, 0, len(list))
	var seen map[fid]bool
	has := func(f fid) bool {
		if len(out) < 16 {
			for _, x := range out {
				if x == f {
					return true
				}
			}
			return false
		}
		if seen == nil {
			seen = map[fid]bool{}
			for _, x := range out {
				seen[x] = true
			}
		}
		return seen[f]
	}
	add := func(f fid) {
		if !has(f) {
			out = append(out, f)
			if seen != nil {
				seen[f] = true
			}
		}
	}
	for _, f := range list {
		switch {
		case f == unit:
		case f == zero:
			return zero
		case fs.nodes[f].kind == kind:
			for _, x := range fs.nodes[f].list {
				add(x)
			}
		default:
			add(f)
		}
	}
	for _, f := range out {
		if n := &fs.nodes[f]; n.kind == fkNot && has(n.list[0]) {
			return zero
		}
	}
	switch len(out) {
	case 0:
		return unit
	case 1:
		return out[0]
	}
	return fs.intern(fnode{kind: kind, list: out})
}

func (fs *formulas) oneOf(list []fid) fid {
	if len(list) == 1 {
		return list[0]
	}
	return fs.intern(fnode{kind: fkOneOf, list: list})
}
