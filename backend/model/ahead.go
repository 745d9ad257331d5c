package model

import "github.com/coppice-run/coppice/backend/compute"

// The products of a step in their order: those of layer l are layerProducts*l and
// what follows, the last is that of the output.
const (
	productQKV = iota
	productO
	productGate
	productDown
	layerProducts
)

// aheadBytes is how much of its part of the next product a thread fetches while it
// waits in the sections before: what a wait of some microseconds can bring, and a
// fraction of a second-level cache.
const aheadBytes = 160 << 10

// aheadTokens is the largest number of tokens for which that is done: a tile, for
// which a product takes as long as its weights.
const aheadTokens = 8

// planAhead notes what the threads read first in each product; nothing where that
// depends on the tokens.
func (w *workspace) planAhead() {
	m := w.m
	list := func(ms ...matrix) (a []compute.Ahead) {
		panels := 0
		for _, x := range ms {
			panels += x.Panels()
		}
		var parts shares
		parts.divide(panels, m.pool.Threads())
		for t := range parts.threads {
			p, _ := parts.task(t * parts.per)
			var of compute.Ahead
			left := aheadBytes
			for _, x := range ms {
				packed, ok := x.(*compute.Matrix)
				if !ok {
					return nil
				}
				if p >= x.Panels() {
					p -= x.Panels()
					continue
				}
				for _, b := range packed.Ahead(p, left) {
					of = append(of, b)
					left -= len(b)
				}
				p = 0
			}
			a = append(a, of)
		}
		return a
	}
	for i := range m.layers {
		l := &m.layers[i]
		w.aheads = append(w.aheads, list(l.q, l.k, l.v), list(l.o))
		if l.router != nil {
			w.aheads = append(w.aheads, list(l.router), nil)
		} else {
			w.aheads = append(w.aheads, list(l.gate, l.up), list(l.down))
		}
	}
	w.aheads = append(w.aheads, list(m.output))
}

// next tells the threads which product of layer l, or of a later one, follows the
// current section; n is the number of tokens.
func (w *workspace) next(n, l, product int) {
	var a []compute.Ahead
	if n <= aheadTokens {
		a = w.aheads[l*layerProducts+product]
	}
	w.m.pool.Ahead(a)
}
