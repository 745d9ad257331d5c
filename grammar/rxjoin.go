package grammar

import "slices"

// This file builds unions and intersections, and simplifies them.

// alt is the union of all; it keeps list.
func (p *pool) alt(list ...nodeID) nodeID {
	var out []nodeID
	for _, id := range list {
		switch nd := &p.nodes[id]; nd.kind {
		case kEmpty:
		case kAlt:
			out = append(out, nd.list...)
		default:
			out = append(out, id)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > 1 {
		out = p.simplifyAlt(out)
	}
	switch len(out) {
	case 0:
		return rxEmpty
	case 1:
		return out[0]
	}
	key := p.listKey(kAlt, out)
	if id, ok := p.byList[key]; ok {
		return id
	}
	nd := node{kind: kAlt, list: out, whole: p.nodes[out[0]].whole, lo: 1 << 30, least: 1 << 20}
	if out[0] == rxEps {
		nd.whole = p.nodes[out[1]].whole
	}
	for _, id := range out {
		c := &p.nodes[id]
		nd.flags |= c.flags
		nd.cuts.or(&c.cuts)
		if c.whole != nd.whole && id != rxEps {
			nd.whole = 0
		}
		nd.lo = min(nd.lo, c.lo)
		nd.least = min(nd.least, c.least)
		if c.hi < 0 || nd.hi < 0 {
			nd.hi = -1
		} else {
			nd.hi = max(nd.hi, c.hi)
		}
		if c.alive == 1 {
			nd.alive = 1
		}
	}
	p.spend(len(out))
	id := p.add(nd)
	p.byList[key] = id
	return id
}

// simplifyAlt removes members that others cover.
func (p *pool) simplifyAlt(list []nodeID) []nodeID {
	for _, id := range list {
		for e := range encoder(nEncoders) {
			if id == p.anyText[e] {
				list = slices.DeleteFunc(list, func(x nodeID) bool {
					return x != id && (x == rxEps || p.nodes[x].whole == int8(e)+1)
				})
			}
		}
		if nd := &p.nodes[id]; nd.kind == kNot && nd.a == rxEmpty {
			return []nodeID{id}
		}
	}
	if list[0] == rxEps && slices.ContainsFunc(list[1:], p.nullable) {
		list = list[1:]
	}
	// x{a,b}T | x{c,d}T with touching ranges is x{min,max}T.
	for i := 0; i < len(list); i++ {
		hi, ti := p.head(list[i])
		if hi == 0 {
			continue
		}
		for j := i + 1; j < len(list); j++ {
			hj, tj := p.head(list[j])
			if hj == 0 || ti != tj {
				continue
			}
			a, b := p.nodes[hi], p.nodes[hj]
			if a.a != b.a || (a.n >= 0 && a.n+1 < b.m) || (b.n >= 0 && b.n+1 < a.m) {
				continue
			}
			n := max(a.n, b.n)
			if a.n < 0 || b.n < 0 {
				n = -1
			}
			merged := p.cat(p.rep(a.a, min(a.m, b.m), n), ti)
			rest := slices.Delete(slices.Clone(list), j, j+1)
			rest = slices.Delete(rest, i, i+1)
			if !slices.Contains(rest, merged) {
				rest = append(rest, merged)
				slices.Sort(rest)
			}
			if len(rest) == 1 {
				return rest
			}
			return p.simplifyAlt(rest)
		}
	}
	return list
}

// head splits x{m,n}T; the first result is 0 when id has no such form.
func (p *pool) head(id nodeID) (rep, tail nodeID) {
	switch nd := &p.nodes[id]; nd.kind {
	case kRep:
		return id, rxEps
	case kCat:
		if p.nodes[nd.a].kind == kRep {
			return nd.a, nd.b
		}
	}
	return 0, 0
}

// and is the intersection of all.
func (p *pool) and(list ...nodeID) nodeID {
	var out []nodeID
	for _, id := range list {
		switch nd := &p.nodes[id]; nd.kind {
		case kEmpty:
			return rxEmpty
		case kAnd:
			out = append(out, nd.list...)
		case kNot:
			if nd.a != rxEmpty {
				out = append(out, id)
			}
		default:
			out = append(out, id)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) == 0 {
		return p.not(rxEmpty)
	}
	if len(out) > 1 {
		out = p.simplifyAnd(out)
		if out == nil {
			return rxEmpty
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	key := p.listKey(kAnd, out)
	if id, ok := p.byList[key]; ok {
		return id
	}
	nd := node{kind: kAnd, list: out, flags: fNullable | fImpure, hi: -1}
	for _, id := range out {
		c := &p.nodes[id]
		if c.flags&fNullable == 0 {
			nd.flags &^= fNullable
		}
		nd.flags |= c.flags & fMarked
		nd.cuts.or(&c.cuts)
		nd.least = max(nd.least, c.least)
		if c.whole != 0 {
			nd.whole = c.whole
			nd.lo = max(nd.lo, c.lo)
			if c.hi >= 0 && (nd.hi < 0 || c.hi < nd.hi) {
				nd.hi = c.hi
			}
		}
	}
	if nd.flags&fNullable != 0 {
		nd.alive = 1
	}
	p.spend(len(out))
	id := p.add(nd)
	p.byList[key] = id
	return id
}

// simplifyAnd returns nil for an intersection that is plainly empty.
func (p *pool) simplifyAnd(list []nodeID) []nodeID {
	if list[0] == rxEps {
		for _, id := range list {
			if !p.nullable(id) {
				return nil
			}
		}
		return list[:1]
	}
	for _, id := range list {
		nd := &p.nodes[id]
		if nd.kind != kNot {
			continue
		}
		if slices.Contains(list, nd.a) {
			return nil
		}
		// No text at all, of those that another member is made of.
		if w := p.nodes[nd.a].whole; w != 0 && nd.a == p.anyText[w-1] && slices.ContainsFunc(list, func(x nodeID) bool { return p.nodes[x].whole == w }) {
			return nil
		}
	}
	for i, id := range list {
		nd := p.nodes[id]
		if nd.kind != kRep || nd.whole == 0 || nd.a != p.anyChar[nd.whole-1] {
			continue
		}
		// A bound on the number of characters.
		for j, other := range list {
			o := p.nodes[other]
			if i == j || o.whole != nd.whole {
				continue
			}
			if (nd.n >= 0 && o.lo > nd.n) || (o.hi >= 0 && o.hi < nd.m) {
				return nil
			}
			if o.lo >= nd.m && (nd.n < 0 || (o.hi >= 0 && o.hi <= nd.n)) {
				return p.dropFrom(list, i)
			}
			if nd.m > 0 && o.lo >= nd.m {
				list = slices.Clone(list)
				list[i] = p.rep(nd.a, 0, nd.n)
				slices.Sort(list)
				return p.simplifyAnd(slices.Compact(list))
			}
			if o.kind == kRep && p.nodes[o.a].lo == 1 && p.nodes[o.a].hi == 1 && p.nodes[o.a].whole == nd.whole {
				m, n := max(o.m, nd.m), o.n
				if nd.n >= 0 && (n < 0 || nd.n < n) {
					n = nd.n
				}
				if n >= 0 && m > n {
					return nil
				}
				merged := p.rep(o.a, m, n)
				rest := slices.DeleteFunc(slices.Clone(list), func(x nodeID) bool { return x == id || x == other })
				if !slices.Contains(rest, merged) {
					rest = append(rest, merged)
					slices.Sort(rest)
				}
				if len(rest) == 1 {
					return rest
				}
				return p.simplifyAnd(rest)
			}
		}
	}
	return list
}

func (p *pool) dropFrom(list []nodeID, i int) []nodeID {
	rest := slices.Delete(slices.Clone(list), i, i+1)
	if len(rest) == 1 {
		return rest
	}
	return p.simplifyAnd(rest)
}
