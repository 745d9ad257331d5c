package model

import "math"

// mixture is the work space of a feed-forward layer with experts. Each token goes
// through some of them; the tokens of the batch are sorted by expert, so that the
// weights of an expert are read once for all its tokens.
//
// A token's result is the sum over its experts in ascending order of their number,
// so it does not depend on the other tokens.
type mixture struct {
	w     *workspace
	h     []float32 // [tokens][dim] normalised residuals
	out   []float32 // [tokens of the expert][dim]
	route []float32 // [tokens][experts, whole panels] scores of the router
	wide  int       // stride of route

	chosen [][]choice // by expert: tokens in ascending order
	best   []int      // experts of a token
	expert int        // that is computed

	fnNorm, fnGather, fnAdd func(worker, task int)
}

// choice is a token of an expert and the weight that its result has.
type choice struct {
	token  int
	weight float32
}

func newMixture(w *workspace) *mixture {
	c := &w.m.cfg
	m := &mixture{w: w, wide: wholeBlocks(c.Experts)}
	m.h = make([]float32, chunkTokens*w.dim)
	m.out = make([]float32, chunkTokens*w.dim)
	m.route = make([]float32, chunkTokens*m.wide)
	m.chosen = make([][]choice, c.Experts)
	m.fnNorm, m.fnGather, m.fnAdd = m.doNorm, m.doGather, m.doAdd
	return m
}

// mixture is feed of a layer with experts.
func (w *workspace) mixture(n int, l *layer) {
	m := w.mix
	w.expect(w.m.cfg.Dim, n, l.router)
	w.normBy = l.ffnNorm
	w.tokens(n, m.fnNorm)
	w.gemms = append(w.gemms[:0], gemmJob{l.router, m.route, m.wide})
	w.multiply()
	m.choose(n)
	for i := range n {
		clear(w.y[i*w.dim:][:w.dim])
	}
	for e := range l.experts {
		k := len(m.chosen[e])
		if k == 0 {
			continue
		}
		x := &l.experts[e]
		m.expert = e
		w.expect(w.m.cfg.Dim, k, x.gate, x.up)
		w.tokens(k, m.fnGather)
		w.gemms = append(w.gemms[:0], gemmJob{x.gate, w.gate, w.ffn}, gemmJob{x.up, w.up, w.ffn})
		w.multiply()
		w.expect(w.m.cfg.FFN, k, x.down)
		w.pieces(k, colUnits(w.m.cfg.FFN, 1), w.fnGate)
		w.gemms = append(w.gemms[:0], gemmJob{x.down, m.out, w.dim})
		w.multiply()
		w.tokens(k, m.fnAdd)
	}
}

// choose sorts the tokens by expert: each goes to those that the router scores
// highest, of equal ones to the first, with weights that are the softmax over
// these.
func (m *mixture) choose(n int) {
	c := &m.w.m.cfg
	for e := range m.chosen {
		m.chosen[e] = m.chosen[e][:0]
	}
	for i := range n {
		scores := m.route[i*m.wide:][:c.Experts]
		m.best = m.best[:0]
		for e, s := range scores {
			at := len(m.best)
			for at > 0 && s > scores[m.best[at-1]] {
				at--
			}
			if at == c.ExpertsUsed {
				continue
			}
			if len(m.best) < c.ExpertsUsed {
				m.best = append(m.best, 0)
			}
			copy(m.best[at+1:], m.best[at:])
			m.best[at] = e
		}
		sum := 0.0
		top := float64(scores[m.best[0]])
		for _, e := range m.best {
			sum += math.Exp(float64(scores[e]) - top)
		}
		for _, e := range m.best {
			m.chosen[e] = append(m.chosen[e], choice{i, float32(math.Exp(float64(scores[e])-top) / sum)})
		}
	}
}

func (m *mixture) doNorm(worker, i int) {
	w := m.w
	c, s := &w.m.cfg, w.scratch[worker]
	x := w.settle(s, i)
	w.math.norm(s.row[:c.Dim], x, w.normBy, c.RMSEps)
	copy(m.h[i*w.dim:], s.row[:c.Dim])
	w.store(i, s.row, c.Dim)
}

func (m *mixture) doGather(worker, i int) {
	w := m.w
	c, row := &w.m.cfg, w.scratch[worker].row
	copy(row, m.h[m.chosen[m.expert][i].token*w.dim:][:c.Dim])
	w.store(i, row, c.Dim)
}

func (m *mixture) doAdd(_, i int) {
	w, ch := m.w, m.chosen[m.expert][i]
	y, x := w.y[ch.token*w.dim:][:w.m.cfg.Dim], m.out[i*w.dim:]
	for d := range y {
		y[d] += float32(ch.weight * x[d])
	}
}
