package grammar

import (
	"encoding/binary"
	"slices"
	"strings"
)

// This file builds the tries of the property names that may come next.

// nameTrie is the trie of the given names, each followed by the plan's suffix;
// its accepting states are labelled with the name's number plus one.
func (w *writer) nameTrie(o *objectNode, p *objectPlan, next []int32) int32 {
	if len(next) == 1 {
		return w.tail(o, p, next[0])[0]
	}
	key := make([]byte, 0, 2*len(next))
	for _, i := range next {
		key = binary.AppendVarint(key, int64(i))
	}
	if t, ok := p.tries[string(key)]; ok {
		return t
	}
	sorted := slices.Clone(next)
	if len(next) < len(o.names)/8 {
		slices.SortFunc(sorted, func(a, b int32) int { return strings.Compare(o.names[a].text, o.names[b].text) })
	} else {
		in := make([]bool, len(o.names))
		for _, i := range next {
			in[i] = true
		}
		sorted = sorted[:0]
		for _, i := range p.sorted {
			if in[i] {
				sorted = append(sorted, i)
			}
		}
	}
	t := w.nameNode(o, p, sorted, 0)
	if len(p.tries) > 1000 {
		clear(p.tries)
	}
	p.tries[string(key)] = t
	return t
}

func (w *writer) nameNode(o *objectNode, p *objectPlan, sorted []int32, d int) int32 {
	if len(sorted) == 1 {
		return w.tail(o, p, sorted[0])[d]
	}
	first, last := o.names[sorted[0]].text, o.names[sorted[len(sorted)-1]].text
	common := d
	for common < len(first) && common < len(last) && first[common] == last[common] {
		common++
	}
	var edges []edge
	rest := sorted
	if len(first) == common {
		edges = append(edges, edge{'"', '"', w.tail(o, p, sorted[0])[common+1]})
		rest = sorted[1:]
	}
	for len(rest) > 0 {
		c := o.names[rest[0]].text[common]
		n := 1
		for n < len(rest) && o.names[rest[n]].text[common] == c {
			n++
		}
		edges = append(edges, edge{c, c, w.nameNode(o, p, rest[:n], common+1)})
		rest = rest[n:]
	}
	slices.SortFunc(edges, func(a, b edge) int { return int(a.lo) - int(b.lo) })
	l := w.mkLeaf(false, edges)
	for i := common - 1; i >= d; i-- {
		l = w.mkLeaf(false, []edge{{first[i], first[i], l}})
	}
	return l
}

// tail is the states along one name and its suffix.
func (w *writer) tail(o *objectNode, p *objectPlan, i int32) []int32 {
	if p.tails[i] != nil {
		return p.tails[i]
	}
	text := o.names[i].text + p.suffix
	l := w.labelled(i + 1)
	out := make([]int32, len(text)+1)
	out[len(text)] = l
	for d := len(text) - 1; d >= 0; d-- {
		l = w.mkLeaf(false, []edge{{text[d], text[d], l}})
		out[d] = l
	}
	p.tails[i] = out
	return out
}

// labelled is the accepting state of a name with a label; names of different
// objects share it, and with it the states before it.
func (w *writer) labelled(label int32) int32 {
	if l, ok := w.labels[label]; ok {
		return l
	}
	if w.labels == nil {
		w.labels = map[int32]int32{}
	}
	w.leaves = append(w.leaves, leaf{accept: true, label: label})
	l := int32(len(w.leaves) - 1)
	w.labels[label] = l
	return l
}
