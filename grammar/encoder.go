package grammar

import "slices"

// encoder says how a character is written as bytes.
type encoder uint8

const (
	encRaw    encoder = iota // UTF-8
	encString                // inside a JSON string: UTF-8 or any escape
	encKey                   // inside a JSON string: UTF-8, escapes only where JSON needs them, one spelling a character
	nEncoders
)

// Bytes that never occur in UTF-8 stand for the begin and the end of a text
// while a pattern is compiled.
const (
	markBegin = 0xFE
	markEnd   = 0xFF
)

// rng is a range of code points, both ends included.
type rng struct{ lo, hi rune }

// normRanges sorts and joins ranges and leaves out surrogates.
func normRanges(r []rng) []rng {
	var in []rng
	for _, x := range r {
		if x.lo < 0xD800 && x.hi > 0xDFFF {
			in = append(in, rng{x.lo, 0xD7FF}, rng{0xE000, x.hi})
			continue
		}
		if x.lo >= 0xD800 && x.lo <= 0xDFFF {
			x.lo = 0xE000
		}
		if x.hi >= 0xD800 && x.hi <= 0xDFFF {
			x.hi = 0xD7FF
		}
		if x.lo <= x.hi {
			in = append(in, x)
		}
	}
	slices.SortFunc(in, func(a, b rng) int { return int(a.lo - b.lo) })
	out := in[:0]
	for _, x := range in {
		if n := len(out); n > 0 && x.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, x.hi)
			continue
		}
		out = append(out, x)
	}
	return out
}

// negate is every code point that is not in normalised r.
func negate(r []rng) []rng {
	var out []rng
	next := rune(0)
	for _, x := range r {
		if x.lo > next {
			out = append(out, rng{next, x.lo - 1})
		}
		next = x.hi + 1
	}
	if next <= 0x10FFFF {
		out = append(out, rng{next, 0x10FFFF})
	}
	return normRanges(out)
}

// intersect is the code points of both; b is normalised.
func intersect(a, b []rng) []rng {
	var out []rng
	for _, x := range a {
		for _, y := range b {
			if lo, hi := max(x.lo, y.lo), min(x.hi, y.hi); lo <= hi {
				out = append(out, rng{lo, hi})
			}
		}
	}
	return normRanges(out)
}

// span is a range of one byte of a byte sequence.
type span struct{ lo, hi byte }

// class is one character out of ranges, written by e.
func (p *pool) class(e encoder, ranges []rng) nodeID {
	ranges = normRanges(slices.Clone(ranges))
	if len(ranges) == 0 {
		return rxEmpty
	}
	key := []byte{byte(e)}
	for _, r := range ranges {
		key = append(key, byte(r.lo), byte(r.lo>>8), byte(r.lo>>16), byte(r.hi), byte(r.hi>>8), byte(r.hi>>16))
	}
	if id, ok := p.classes[string(key)]; ok {
		return id
	}
	var seqs [][]span
	raw := ranges
	if e != encRaw {
		raw = intersect(ranges, []rng{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}})
	}
	for _, r := range raw {
		seqs = appendUTF8(seqs, r)
	}
	if e != encRaw {
		seqs = appendEscapes(seqs, e, ranges)
	}
	p.spend(len(seqs))
	id := p.leafNode(p.spanTrie(seqs))
	nd := &p.nodes[id]
	if nd.whole == 0 {
		nd.whole, nd.lo, nd.hi = int8(e)+1, 1, 1
	}
	p.classes[string(key)] = id
	p.ranges[id] = ranges
	return id
}

var shortEscapes = []struct {
	r rune
	c byte
}{{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}

// appendEscapes adds the escapes of the code points in ranges.
func appendEscapes(seqs [][]span, e encoder, ranges []rng) [][]span {
	one := func(c byte) span { return span{c, c} }
	has := func(r rune) bool {
		return slices.ContainsFunc(ranges, func(x rng) bool { return x.lo <= r && r <= x.hi })
	}
	for _, s := range shortEscapes {
		if has(s.r) && (e == encString || s.r != '/') {
			seqs = append(seqs, []span{one('\\'), one(s.c)})
		}
	}
	if e == encKey {
		for r := rune(0); r < 0x20; r++ {
			if has(r) && !slices.ContainsFunc(shortEscapes, func(s struct {
				r rune
				c byte
			}) bool {
				return s.r == r
			}) {
				seqs = append(seqs, []span{one('\\'), one('u'), one('0'), one('0'), one("0123456789abcdef"[r>>4]), one("0123456789abcdef"[r&15])})
			}
		}
		return seqs
	}
	u := []span{one('\\'), one('u')}
	for _, r := range ranges {
		if r.lo <= 0xFFFF {
			seqs = appendHex(seqs, u, uint32(r.lo), uint32(min(r.hi, 0xFFFF)))
		}
		if r.hi > 0xFFFF {
			lo, hi := uint32(max(r.lo, 0x10000)-0x10000), uint32(r.hi-0x10000)
			for lo <= hi {
				// One block of equal high surrogates, or many whole ones.
				h0, h1 := lo>>10, hi>>10
				end := hi
				if h0 != h1 {
					if lo&0x3FF != 0 {
						end = lo | 0x3FF
					} else if hi&0x3FF != 0x3FF {
						end = h1<<10 - 1
					}
				}
				heads := appendHex(nil, u, 0xD800+lo>>10, 0xD800+end>>10)
				for _, h := range heads {
					seqs = appendHex(seqs, append(slices.Clip(h), u...), 0xDC00+lo&0x3FF, 0xDC00+end&0x3FF)
				}
				lo = end + 1
			}
		}
	}
	return seqs
}

// appendHex adds prefix and the four hexadecimal digits, either case, of every
// number from lo to hi.
func appendHex(seqs [][]span, prefix []span, lo, hi uint32) [][]span {
	return appendDigits(seqs, prefix, lo, hi, 4, 4, func(seqs [][]span, pre []span, a, b uint32, emit func([][]span, []span) [][]span) [][]span {
		for _, s := range hexSpans(a, b) {
			seqs = emit(seqs, append(slices.Clip(pre), s))
		}
		return seqs
	})
}

func hexSpans(a, b uint32) []span {
	var out []span
	if a <= 9 {
		out = append(out, span{byte('0' + a), byte('0' + min(b, 9))})
	}
	if b >= 10 {
		a = max(a, 10)
		out = append(out, span{byte('A' + a - 10), byte('A' + b - 10)}, span{byte('a' + a - 10), byte('a' + b - 10)})
	}
	return out
}

type emitFunc = func([][]span, []span) [][]span

// appendDigits adds all numbers lo..hi as n digits of the given bits each,
// highest first.
func appendDigits(seqs [][]span, prefix []span, lo, hi uint32, n int, bits uint, digit func([][]span, []span, uint32, uint32, emitFunc) [][]span) [][]span {
	if n == 0 {
		return append(seqs, slices.Clone(prefix))
	}
	shift := uint(n-1) * bits
	mask := uint32(1)<<shift - 1
	a, b := lo>>shift, hi>>shift
	sub := func(seqs [][]span, x, y, lo, hi uint32) [][]span {
		return digit(seqs, prefix, x, y, func(seqs [][]span, pre []span) [][]span {
			return appendDigits(seqs, pre, lo, hi, n-1, bits, digit)
		})
	}
	if a == b {
		return sub(seqs, a, a, lo&mask, hi&mask)
	}
	if lo&mask != 0 {
		seqs = sub(seqs, a, a, lo&mask, mask)
		a++
	}
	last := hi&mask != mask
	if last {
		b--
	}
	if a <= b {
		seqs = sub(seqs, a, b, 0, mask)
	}
	if last {
		seqs = sub(seqs, b+1, b+1, 0, hi&mask)
	}
	return seqs
}

// appendUTF8 adds the UTF-8 byte sequences of a range.
func appendUTF8(seqs [][]span, r rng) [][]span {
	tail := func(seqs [][]span, pre []span, a, b uint32, emit emitFunc) [][]span {
		return emit(seqs, append(slices.Clip(pre), span{byte(0x80 + a), byte(0x80 + b)}))
	}
	for _, f := range []struct {
		lo, hi rune
		n      int
		lead   byte
	}{{0, 0x7F, 0, 0}, {0x80, 0x7FF, 1, 0xC0}, {0x800, 0xFFFF, 2, 0xE0}, {0x10000, 0x10FFFF, 3, 0xF0}} {
		lo, hi := max(r.lo, f.lo), min(r.hi, f.hi)
		if lo > hi {
			continue
		}
		if f.n == 0 {
			seqs = append(seqs, []span{{byte(lo), byte(hi)}})
			continue
		}
		// The lead byte carries the digit above the n continuation digits.
		shift := uint(6 * f.n)
		mask := uint32(1)<<shift - 1
		a, b := uint32(lo), uint32(hi)
		for a <= b {
			end := b
			if a>>shift != b>>shift {
				if a&mask != 0 {
					end = a | mask
				} else if b&mask != mask {
					end = b>>shift<<shift - 1
				}
			}
			pre := []span{{f.lead + byte(a>>shift), f.lead + byte(end>>shift)}}
			seqs = appendDigits(seqs, pre, a&mask, end&mask, f.n, 6, tail)
			a = end + 1
		}
	}
	return seqs
}

// spanTrie is the minimised automaton of byte sequences.
func (p *pool) spanTrie(seqs [][]span) int32 {
	if len(seqs) == 1 && len(seqs[0]) == 0 {
		return leafEnd
	}
	accept := false
	var bounds cutset
	for _, s := range seqs {
		if len(s) == 0 {
			accept = true
			continue
		}
		bounds.add(int(s[0].lo))
		bounds.add(int(s[0].hi) + 1)
	}
	var edges []edge
	lo := 0
	for b := 1; b <= 256; b++ {
		if b < 256 && bounds[b>>6]&(1<<(b&63)) == 0 {
			continue
		}
		var tails [][]span
		for _, s := range seqs {
			if len(s) > 0 && int(s[0].lo) <= lo && lo <= int(s[0].hi) {
				tails = append(tails, s[1:])
			}
		}
		if len(tails) > 0 {
			edges = append(edges, edge{byte(lo), byte(b - 1), p.spanTrie(tails)})
		}
		lo = b
	}
	return p.mkLeaf(accept, joinEdges(edges))
}
