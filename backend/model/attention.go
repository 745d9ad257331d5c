package model

import (
	"math"

	"github.com/coppice-run/coppice/backend/compute"
)

// shallow tells whether one thread may do all attention of a kv head, so that it needs
// no other section than that which finishes queries, keys and values.
func (w *workspace) shallow(n int) bool {
	return n == 1 && len(w.plan().tasks) == 1 && w.m.arithmetic != GGML && !w.m.reference
}

func (w *workspace) doShallow(worker, head int) {
	w.doHeads(worker, head)
	w.doAttend(worker, head)
}

// angles returns the cosines and sines of token i in the current layer.
func (w *workspace) angles(i int) (cos, sin []float32) {
	base := 0
	if w.m.layers[w.layer].local {
		base = 1
	}
	n := w.m.cfg.RopeDim / 2
	return w.cos[base][i*n:][:n], w.sin[base][i*n:][:n]
}

// doQueries finishes the queries of a token.
func (w *workspace) doQueries(_, piece int) {
	m, l := w.m, &w.m.layers[w.layer]
	c := &m.cfg
	i, from, to := w.part(piece)
	hd, group := c.HeadDim, c.Heads/c.KVHeads
	from, to = from*group, to*group
	q := w.qkv[i*w.qkvDim:][:c.Heads*hd]
	if l.qBias != nil {
		compute.Add(q[from*hd:to*hd], l.qBias[from*hd:to*hd])
	}
	cos, sin := w.angles(i)
	for h := from; h < to; h++ {
		head := q[h*hd:][:hd]
		if l.qNorm != nil {
			w.math.norm(head, head, l.qNorm, c.RMSEps)
		}
		if !l.still {
			rotate(head, cos, sin, m.fam.neox)
		}
		for j := range head {
			head[j] *= m.scale
		}
	}
}

// doKeys finishes the keys and values of a token and stores them in its page.
func (w *workspace) doKeys(_, piece int) {
	i, from, to := w.part(piece)
	m, t, l := w.m, &w.toks[i], &w.m.layers[w.layer]
	c := &m.cfg
	hd := c.HeadDim
	row := w.qkv[i*w.qkvDim:][:w.qkvDim]
	k, v := row[w.keyAt:][:c.KVHeads*hd], row[w.valueAt:][:c.KVHeads*hd]
	if l.kBias != nil {
		compute.Add(k[from*hd:to*hd], l.kBias[from*hd:to*hd])
		compute.Add(v[from*hd:to*hd], l.vBias[from*hd:to*hd])
	}
	cos, sin := w.angles(i)
	page := int(t.pages[t.pos/PageSize])
	for h := from; h < to; h++ {
		head := k[h*hd:][:hd]
		if l.kNorm != nil {
			w.math.norm(head, head, l.kNorm, c.RMSEps)
		}
		if !l.still {
			rotate(head, cos, sin, m.fam.neox)
		}
		if l.kCentre != nil {
			compute.Add(head, l.kCentre[h*hd:][:hd])
		}
		switch m.kvType {
		case Int8:
			kv := w.kv.headInt8(w.layer, h)
			kv.Store(page, t.pos%PageSize, head, v[h*hd:][:hd])
			continue
		case Float16:
			w.kv.storeHalf(w.layer, h, t.pages, t.pos, 0, head)
			w.kv.storeHalf(w.layer, h, t.pages, t.pos, 1, v[h*hd:][:hd])
			continue
		}
		kv := w.kv.head(w.layer, h)
		kv.Store(page, t.pos%PageSize, head, v[h*hd:][:hd])
		if m.reference {
			page := int(t.row.Pages[t.pos/PageSize])
			copy(w.kv.exact(w.layer, h, page, t.pos%PageSize, 0), head)
			copy(w.kv.exact(w.layer, h, page, t.pos%PageSize, 1), v[h*hd:][:hd])
		}
	}
}

// attentionScale returns the factor of the queries: that of the scores, and
// log2(e), since package compute takes powers of 2.
func (m *Model) attentionScale() float32 {
	return float32(math.Log2E / math.Sqrt(float64(m.headWidth())))
}

// headWidth is what the scale of attention goes by.
func (m *Model) headWidth() int {
	if m.fam.wide > 0 && m.cfg.Layers == m.fam.wide {
		return m.cfg.Dim / m.cfg.Heads // the 27B models only
	}
	return m.cfg.HeadDim
}

// doAttend computes an attention task for one kv head.
func (w *workspace) doAttend(worker, task int) {
	c, p, q := &w.m.cfg, w.plan(), w.scratch[worker].queries
	hd, group := c.HeadDim, c.Heads/c.KVHeads
	t, head := &p.tasks[task/c.KVHeads], task%c.KVHeads
	q.Reset(t.n*group, hd, c.Heads)
	q.Softcap, q.First, q.Fold = w.m.softcap, t.s0, t.fold
	for j := range t.n {
		i := t.first + j
		pos := w.toks[i].pos
		row := w.qkv[i*w.qkvDim:]
		for g := range group {
			h := head*group + g
			slot := (p.slots[i]-p.from[i])*c.Heads + h
			q.Set(j*group+g, row[h*hd:][:hd], p.low(pos), pos+1, slot)
		}
	}
	pages := func(s int) []int32 { return t.pages[s*spanPages : min(len(t.pages), (s+1)*spanPages)] }
	if w.m.kvType == Int8 {
		kv := w.kv.headInt8(w.layer, head)
		for s := t.s0; s < t.s1; s++ {
			q.AttendInt8(&w.partials, &kv, s, pages(s))
		}
		q.Flush(&w.partials, t.s1)
		return
	}
	kv := w.kv.head(w.layer, head)
	for s := t.s0; s < t.s1; s++ {
		var next []int32
		if s+1 < t.s1 {
			next = pages(s + 1)
		}
		q.Attend(&w.partials, &kv, s, pages(s), next)
	}
	q.Flush(&w.partials, t.s1)
}

// doMerge folds the spans of a token and stores the result for the output
// projection.
func (w *workspace) doMerge(worker, piece int) {
	c, p, row := &w.m.cfg, w.plan(), w.scratch[worker].row
	hd := c.HeadDim
	i, from, to := w.colPart(piece, c.Heads*hd)
	for h := from / hd; h < to/hd; h++ {
		at := p.slots[i]*c.Heads + h
		compute.Merge(row[h*hd-from:][:hd], &w.partials, at, c.Heads, p.from[i], p.covered[p.slots[i]:][:p.spans[i]])
	}
	w.storePart(i, from, row, to-from)
}
