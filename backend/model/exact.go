package model

import "math"

// doExact is attention of a token in float64 from keys and values in float32,
// straight from its definition: see Options.Float32Attention.
func (w *workspace) doExact(worker, i int) {
	c, t, row := &w.m.cfg, &w.toks[i], w.scratch[worker].row
	hd, group := c.HeadDim, c.Heads/c.KVHeads
	first := w.plan().low(t.pos)
	scores := make([]float64, t.pos+1-first)
	out := make([]float64, hd)
	for h := range c.Heads {
		q := w.qkv[i*w.qkvDim+h*hd:][:hd]
		best := math.Inf(-1)
		for p := range scores {
			pos := first + p
			key := w.kv.exact(w.layer, h/group, int(t.row.Pages[pos/PageSize]), pos%PageSize, 0)
			s := 0.0
			for d, x := range q {
				s += float64(x) * float64(key[d])
			}
			if cap := float64(w.m.softcap); cap > 0 {
				s = cap * math.Tanh(s/cap)
			}
			scores[p] = s
			best = max(best, s)
		}
		sum := 0.0
		clear(out)
		for p, s := range scores {
			pos := first + p
			value := w.kv.exact(w.layer, h/group, int(t.row.Pages[pos/PageSize]), pos%PageSize, 1)
			weight := math.Exp2(s - best) // log2(e) is in the queries
			sum += weight
			for d, x := range value {
				out[d] += weight * float64(x)
			}
		}
		for d, x := range out {
			row[h*hd+d] = float32(x / sum)
		}
	}
	w.store(i, row, c.Heads*hd)
}
