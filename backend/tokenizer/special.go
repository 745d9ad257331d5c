package tokenizer

// trie holds the texts of the tokens that are cut out of a text before anything
// else: control and user-defined tokens.
//
// Which matches win when they overlap follows llama.cpp: the longest token first,
// wherever it stands, then the next shorter one in what is left; among equals the
// leftmost.
type trie struct {
	root  [256]int32 // node of a first byte; 0 is none
	nodes []node     // nodes[0] is unused
}

type node struct {
	b       byte
	control bool  // token must lie in special text
	token   Token // -1: no token ends here
	depth   int32 // bytes from the start
	shorter int32 // nearest node above with a token, 0 is none
	child   int32 // first child
	next    int32 // next child of the same parent
}

// span says that the text up to end (from the end of the span before) is special or
// not.
type span struct {
	end     int
	special bool
}

// match is a token found at text[start:end].
type match struct {
	start, end int
	token      Token
}

// candidate is a position where a token may start; node is the longest possible one
// still in play, 0 when none is.
type candidate struct {
	at   int
	edge int // where the special text around at ends; at in plain text
	node int32
}

func newTrie() *trie { return &trie{nodes: make([]node, 1)} }

// add puts a token into the trie. Adding a text twice keeps the later token.
func (t *trie) add(text string, token Token, control bool) {
	if text == "" {
		return
	}
	n := t.root[text[0]]
	if n == 0 {
		n = t.grow(text[0], 1)
		t.root[text[0]] = n
	}
	for i := 1; i < len(text); i++ {
		down := t.step(n, text[i])
		if down == 0 {
			down = t.grow(text[i], int32(i+1))
			t.nodes[down].next = t.nodes[n].child
			t.nodes[n].child = down
		}
		n = down
	}
	t.nodes[n].token, t.nodes[n].control = token, control
}

// grow appends a node without a token.
func (t *trie) grow(b byte, depth int32) int32 {
	t.nodes = append(t.nodes, node{b: b, token: -1, depth: depth})
	return int32(len(t.nodes) - 1)
}

// step goes from node n down by byte b; 0 when there is no such child.
func (t *trie) step(n int32, b byte) int32 {
	n = t.nodes[n].child
	for n != 0 && t.nodes[n].b != b {
		n = t.nodes[n].next
	}
	return n
}

// link sets shorter in all nodes. Call it once after the last add.
func (t *trie) link() {
	// A child is always appended after its parent, so one pass in order will do.
	for n := 1; n < len(t.nodes); n++ {
		up := t.nodes[n].shorter
		if t.nodes[n].token >= 0 {
			up = int32(n)
		}
		for c := t.nodes[n].child; c != 0; c = t.nodes[c].next {
			t.nodes[c].shorter = up
		}
	}
}

// fits tells whether the token of node n may stand at c.
func (t *trie) fits(n int32, c candidate) bool {
	return t.nodes[n].token >= 0 && (!t.nodes[n].control || c.at+int(t.nodes[n].depth) <= c.edge)
}

// shrink returns the next shorter token that fits at c, 0 when there is none.
func (t *trie) shrink(c candidate) int32 {
	n := t.nodes[c.node].shorter
	for n != 0 && !t.fits(n, c) {
		n = t.nodes[n].shorter
	}
	return n
}

// find returns all tokens to be cut out of text, in order, not overlapping.
func (t *trie) find(text string, spans []span) []match {
	if len(t.nodes) == 1 {
		return nil
	}
	var out []match
	var cluster []candidate // candidates whose longest texts overlap in a chain
	reach := 0              // where the cluster ends
	s := 0
	for at := 0; at < len(text); at++ {
		n := t.root[text[at]]
		if n == 0 {
			continue
		}
		for s < len(spans) && spans[s].end <= at {
			s++
		}
		c := candidate{at: at, edge: at}
		if spans[s].special {
			c.edge = spans[s].end
		}
		for i := at; ; {
			if t.fits(n, c) {
				c.node = n
			}
			if i++; i == len(text) {
				break
			}
			if n = t.step(n, text[i]); n == 0 {
				break
			}
		}
		if c.node == 0 {
			continue
		}
		if at >= reach {
			out = t.settle(cluster, reach, out)
			cluster = cluster[:0]
		}
		cluster = append(cluster, c)
		reach = max(reach, at+int(t.nodes[c.node].depth))
	}
	return t.settle(cluster, reach, out)
}

// settle picks the winners of a cluster that ends at reach and appends them to out.
func (t *trie) settle(cluster []candidate, reach int, out []match) []match {
	if len(cluster) == 0 {
		return out
	}
	base := cluster[0].at
	if len(cluster) == 1 {
		n := t.nodes[cluster[0].node]
		return append(out, match{base, base + int(n.depth), n.token})
	}
	claimed := make([]Token, reach-base) // 1 + token at its first byte, -1 at its others
	for {
		length := int32(0)
		for _, c := range cluster {
			length = max(length, t.nodes[c.node].depth)
		}
		if length == 0 {
			break
		}
		for i := range cluster {
			c := &cluster[i]
			if t.nodes[c.node].depth != length {
				continue
			}
			first, last := c.at-base, c.at-base+int(length)-1
			// What is claimed is at least as long, so testing the ends is enough.
			switch {
			case claimed[first] != 0:
				c.node = 0
			case claimed[last] != 0:
				c.node = t.shrink(*c)
			default:
				for j := first; j <= last; j++ {
					claimed[j] = -1
				}
				claimed[first] = t.nodes[c.node].token + 1
				c.node = 0
			}
		}
	}
	for i := 0; i < len(claimed); {
		if claimed[i] <= 0 {
			i++
			continue
		}
		end := i + 1
		for end < len(claimed) && claimed[end] < 0 {
			end++
		}
		out = append(out, match{base + i, base + end, claimed[i] - 1})
		i = end
	}
	return out
}
