package model

import (
	"errors"
	"math"
	"slices"

	"github.com/coppice-run/coppice/backend/compute"
)

// Forward computes one step: it writes the keys and values of all tokens of
// the batch into their pages and fills logits with one vector of Config.Vocab
// scores for each wanted output, in the order of rows and, within a row, of
// Row.Outputs. Nothing is written when it returns an error.
func (m *Model) Forward(kv *KV, b *Batch, logits [][]float32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("model: the model is closed")
	}
	if err := b.check(m, kv, logits); err != nil {
		return err
	}
	w := m.ws
	w.kv, w.logits = kv, logits
	w.segment(b)
	for rest := w.segs; len(rest) > 0; {
		var done []segment
		done, rest = w.take(rest)
		w.chunkForward(done)
	}
	w.kv, w.logits = nil, nil
	return nil
}

// segment lists the rows in the order of their block tables, which puts those
// with a common prefix side by side.
func (w *workspace) segment(b *Batch) {
	w.segs, w.slots = w.segs[:0], w.slots[:0]
	out := 0
	for i := range b.Rows {
		r := &b.Rows[i]
		if n := len(r.Tokens); n > 0 {
			for _, p := range r.Pages[:(r.Start+n+PageSize-1)/PageSize] {
				w.slots = append(w.slots, w.kv.slot(p))
			}
		}
	}
	at := 0
	for i := range b.Rows {
		r := &b.Rows[i]
		n := len(r.Tokens)
		if n > 0 {
			pages := w.slots[at:][:(r.Start+n+PageSize-1)/PageSize]
			at += len(pages)
			// first holds the row's first output until take sets it.
			w.segs = append(w.segs, segment{row: r, pages: pages, pos: r.Start, n: n, first: out})
		}
		out += len(r.Outputs)
	}
	slices.SortStableFunc(w.segs, func(a, b segment) int { return slices.Compare(a.pages, b.pages) })
}

// take moves the first tokens of rest, as many as fit in a chunk, to w.toks. It
// returns their segments and what is left. A chunk ends at the end of a row or
// within one; either way the results are the same.
func (w *workspace) take(rest []segment) (chunk, left []segment) {
	w.toks = w.toks[:0]
	slots := w.maxSlots()
	for i := range rest {
		s := &rest[i]
		out := s.first
		s.first = len(w.toks)
		for j := range s.n {
			spans := (s.pos+j)/compute.Span + 1
			if len(w.toks) > 0 && (len(w.toks) == chunkTokens || slots < spans) {
				// Cut here: the tail becomes the first segment of what is left.
				if j == 0 {
					s.first = out
					return rest[:i], rest[i:]
				}
				tail := *s
				tail.pos, tail.n, tail.first = s.pos+j, s.n-j, out
				chunk = append(chunk, rest[:i+1]...)
				chunk[i].n = j
				chunk[i].pages = s.pages[:(s.pos+j+PageSize-1)/PageSize]
				rest[i] = tail
				return chunk, rest[i:]
			}
			slots -= spans
			t := token{row: s.row, pages: s.pages, pos: s.pos + j, id: s.row.Tokens[s.pos+j-s.row.Start], out: -1}
			if _, wanted := slices.BinarySearch(s.row.Outputs, t.pos-s.row.Start); wanted {
				t.out = out
				out++
			}
			w.toks = append(w.toks, t)
		}
	}
	return rest, nil
}

// chunkForward sends the tokens of w.toks through the model.
func (w *workspace) chunkForward(segs []segment) {
	m := w.m
	n := len(w.toks)
	for i := range w.plans {
		if i == 1 && !m.cfg.anyLocal() {
			break
		}
		w.plans[i].build(segs)
		w.plans[i].split(w.attnParts())
		w.plans[i].cover()
	}
	w.reserve()
	w.outs, w.outTo = w.outs[:0], w.outTo[:0]
	for i, t := range w.toks {
		if t.out >= 0 {
			w.outs = append(w.outs, i)
			w.outTo = append(w.outTo, w.logits[t.out])
		}
	}

	w.tokens(n, w.fnEmbed)
	w.hasY = false
	for l := range m.layers {
		w.layer = l
		if l == len(m.layers)-1 && len(w.outs) < n {
			n = w.lastKeys(n)
			if n == 0 {
				return
			}
			w.lastQueries(n)
		} else {
			w.project(n)
		}
		w.attend(n)
		w.feed(n)
	}
	if n > 0 {
		w.final()
	}
}

// tokens runs a section that does fn for each of n tokens. Neighbours go to the
// same thread: they share cache lines, both of quantised activations (a tile of 8
// tokens) and of pages (16).
func (w *workspace) tokens(n int, fn func(worker, i int)) {
	block := PageSize
	for block > 1 && n < w.m.pool.Threads()*block {
		block /= 2
	}
	w.m.pool.RunBlocks(n, block, fn)
}

// pieces is tokens for work that divides into units: with fewer tokens than threads
// each is done in parts, see part.
func (w *workspace) pieces(n, units int, fn func(worker, piece int)) {
	w.units, w.parts = units, 1
	if n < w.m.pool.Threads() && w.m.arithmetic != GGML {
		w.parts = min(units, w.m.pool.Threads())
	}
	w.tokens(n*w.parts, fn)
}

// part returns the token of a piece and which of its units the piece is.
func (w *workspace) part(piece int) (i, from, to int) {
	i, p := piece/w.parts, piece%w.parts
	return i, p * w.units / w.parts, (p + 1) * w.units / w.parts
}

// colUnits is the number of units of so many columns that can be stored apart, if
// what makes them up has the given width.
func colUnits(cols, width int) int {
	if compute.PartCols%width != 0 {
		return 1
	}
	return max(1, cols/compute.PartCols)
}

// colPart is part for such columns.
func (w *workspace) colPart(piece, cols int) (i, from, to int) {
	i, from, to = w.part(piece)
	if to == w.units {
		return i, from * compute.PartCols, cols
	}
	return i, from * compute.PartCols, to * compute.PartCols
}

// attnParts is the number of parts of attention, each to be done for all kv heads, that
// keep all threads busy.
func (w *workspace) attnParts() int {
	heads := w.m.cfg.KVHeads
	return (8*w.m.pool.Threads() + heads - 1) / heads
}

// lastKeys stores the keys and values of the last layer. After them only tokens
// with outputs matter: it drops the others and returns how many are left.
func (w *workspace) lastKeys(n int) int {
	m, l := w.m, &w.m.layers[w.layer]
	w.norm(n, l.attnNorm, l.k, l.v)
	w.gemms = append(w.gemms[:0], w.keyJob(l), w.valueJob(l))
	w.multiply()
	w.pieces(n, m.cfg.KVHeads, w.fnKeys)
	w.hasY = false // norm has added it

	half := m.cfg.RopeDim / 2
	w.outSegs = w.outSegs[:0]
	for j, i := range w.outs {
		t := w.toks[i]
		w.toks[j], w.outs[j] = t, j
		copy(w.x[j*w.dim:][:w.dim], w.x[i*w.dim:])
		for r := range w.cos {
			copy(w.cos[r][j*half:][:half], w.cos[r][i*half:])
			copy(w.sin[r][j*half:][:half], w.sin[r][i*half:])
		}
		pages := t.pages[:t.pos/PageSize+1]
		if k := len(w.outSegs) - 1; k >= 0 && w.outSegs[k].row == t.row && w.outSegs[k].pos+w.outSegs[k].n == t.pos {
			w.outSegs[k].n++
			w.outSegs[k].pages = pages
		} else {
			w.outSegs = append(w.outSegs, segment{row: t.row, pages: pages, pos: t.pos, first: j, n: 1})
		}
	}
	w.toks = w.toks[:len(w.outs)]
	if len(w.outs) > 0 {
		w.plan().build(w.outSegs)
		w.plan().split(w.attnParts())
		w.plan().cover()
	}
	return len(w.outs)
}

// lastQueries computes the queries of the tokens that lastKeys has kept.
func (w *workspace) lastQueries(n int) {
	l := &w.m.layers[w.layer]
	w.norm(n, l.attnNorm, l.q)
	w.gemms = append(w.gemms[:0], w.queryJob(l))
	w.multiply()
	w.attended = false
	w.pieces(n, w.m.cfg.KVHeads, w.fnQueries)
}

// project computes queries, keys and values of the current layer and stores
// the latter two.
func (w *workspace) project(n int) {
	l := &w.m.layers[w.layer]
	w.norm(n, l.attnNorm, l.q, l.k, l.v)
	w.gemms = append(w.gemms[:0], w.queryJob(l), w.keyJob(l), w.valueJob(l))
	w.next(n, w.layer, productO)
	w.multiply()
	if w.attended = w.shallow(n); w.attended {
		heads := w.m.cfg.KVHeads
		w.units, w.parts = heads, heads
		w.m.pool.Run(heads, w.fnShallow)
		return
	}
	w.pieces(n, w.m.cfg.KVHeads, w.fnHeads)
}

func (w *workspace) queryJob(l *layer) gemmJob { return gemmJob{l.q, w.qkv, w.qkvDim} }
func (w *workspace) keyJob(l *layer) gemmJob   { return gemmJob{l.k, w.qkv[w.keyAt:], w.qkvDim} }
func (w *workspace) valueJob(l *layer) gemmJob { return gemmJob{l.v, w.qkv[w.valueAt:], w.qkvDim} }

// attend is attention proper, from queries and pages to the pending output.
func (w *workspace) attend(n int) {
	m, l := w.m, &w.m.layers[w.layer]
	c := &m.cfg
	switch {
	case m.reference:
		w.expect(c.Heads*c.HeadDim, n, l.o)
		w.tokens(n, w.fnExact)
	case m.arithmetic == GGML:
		m.pool.Run(n*c.KVHeads, w.fnPlain)
		w.expect(c.Heads*c.HeadDim, n, l.o)
		w.tokens(n, w.fnStore)
	default:
		if !w.attended {
			m.pool.Run(len(w.plan().tasks)*c.KVHeads, w.fnAttend)
		}
		w.expect(c.Heads*c.HeadDim, n, l.o)
		if w.attended {
			w.units, w.parts = 1, 1
			w.tokens(n, w.fnMerge)
		} else {
			w.pieces(n, colUnits(c.Heads*c.HeadDim, c.HeadDim), w.fnMerge)
		}
	}
	w.gemms = append(w.gemms[:0], gemmJob{l.o, w.y, w.dim})
	w.next(n, w.layer, productGate)
	w.multiply()
	w.hasY, w.addY = true, l.attnPostNorm
}

// feed is the feed-forward half of the current layer.
func (w *workspace) feed(n int) {
	m, l := w.m, &w.m.layers[w.layer]
	if l.router != nil {
		w.next(n, w.layer, productDown)
		w.mixture(n, l)
		w.hasY, w.addY = true, l.ffnPostNorm
		return
	}
	w.norm(n, l.ffnNorm, l.gate, l.up)
	w.gemms = append(w.gemms[:0], gemmJob{l.gate, w.gate, w.ffn}, gemmJob{l.up, w.up, w.ffn})
	w.next(n, w.layer, productDown)
	w.multiply()
	w.expect(m.cfg.FFN, n, l.down)
	w.pieces(n, colUnits(m.cfg.FFN, 1), w.fnGate)
	w.gemms = append(w.gemms[:0], gemmJob{l.down, w.y, w.dim})
	w.next(n, w.layer+1, productQKV) // or the output
	w.multiply()
	w.hasY, w.addY = true, l.ffnPostNorm
}

// plan returns the plan of the current layer.
func (w *workspace) plan() *plan {
	if w.m.layers[w.layer].local {
		return &w.plans[1]
	}
	return &w.plans[0]
}

// expect prepares the activations of n tokens for the matrices.
func (w *workspace) expect(cols, n int, by ...matrix) {
	w.math.expect(n, cols)
	for _, m := range by {
		w.math.readBy(m)
	}
}

// norm runs the section that adds the pending output to the residual stream and
// normalises it for the matrices.
func (w *workspace) norm(n int, weights []float32, by ...matrix) {
	w.expect(w.m.cfg.Dim, n, by...)
	w.normBy = weights
	w.tokens(n, w.fnNorm)
}

// multiply runs the products of w.gemms as one section.
func (w *workspace) multiply() {
	panels := 0
	for i := range w.gemms {
		panels += w.gemms[i].w.Panels()
	}
	w.shares.divide(panels, w.m.pool.Threads())
	w.m.pool.Run(w.shares.tasks(), w.fnGemm)
}

func (w *workspace) doGemm(worker, task int) {
	p0, p1 := w.shares.task(task)
	for i := range w.gemms {
		g := &w.gemms[i]
		n := g.w.Panels()
		if a, b := max(0, p0), min(n, p1); a < b {
			w.math.mul(worker, g, a, b)
		}
		p0, p1 = p0-n, p1-n
	}
}

// doEmbed starts the residual stream of a token and its rotation angles.
func (w *workspace) doEmbed(_, i int) {
	m, t := w.m, &w.toks[i]
	x := w.x[i*w.dim:][:m.cfg.Dim]
	m.embed.Row(x, int(t.id))
	if m.fam.scaleEmbed {
		s := float32(math.Sqrt(float64(m.cfg.Dim)))
		for j := range x {
			x[j] *= s
		}
	}
	n := m.cfg.RopeDim / 2
	for j := range m.rope {
		if j == 1 && !m.cfg.anyLocal() {
			break
		}
		if m.arithmetic == GGML {
			m.plainRope[j].Angles(w.cos[j][i*n:][:n], w.sin[j][i*n:][:n], t.pos)
			continue
		}
		m.rope[j].angles(w.cos[j][i*n:][:n], w.sin[j][i*n:][:n], t.pos)
	}
}

// settle adds the pending output of a half layer to the residual of token i.
func (w *workspace) settle(s *scratch, i int) []float32 {
	c := &w.m.cfg
	x := w.x[i*w.dim:][:c.Dim]
	if w.hasY {
		y := w.y[i*w.dim:][:c.Dim]
		if w.addY != nil {
			w.math.norm(s.row[:c.Dim], y, w.addY, c.RMSEps)
			y = s.row[:c.Dim]
		}
		compute.Add(x, y)
	}
	return x
}

// store hands a row of activations to the next products.
func (w *workspace) store(i int, row []float32, cols int) { w.storePart(i, 0, row, cols) }

// storePart is store for some columns, the first of which is column from.
func (w *workspace) storePart(i, from int, row []float32, cols int) {
	n := wholeBlocks(cols)
	clear(row[cols:n])
	w.math.set(i, from, row[:n])
}

func (w *workspace) doNorm(worker, i int) {
	c, s := &w.m.cfg, w.scratch[worker]
	x := w.settle(s, i)
	w.math.norm(s.row[:c.Dim], x, w.normBy, c.RMSEps)
	w.store(i, s.row, c.Dim)
}

func (w *workspace) doHeads(worker, i int) {
	w.doQueries(worker, i)
	w.doKeys(worker, i)
}

func (w *workspace) doGate(worker, piece int) {
	row := w.scratch[worker].row
	i, from, to := w.colPart(piece, w.m.cfg.FFN)
	w.math.gate(row[:to-from], w.gate[i*w.ffn+from:][:to-from], w.up[i*w.ffn+from:][:to-from])
	w.storePart(i, from, row, to-from)
}

// final computes the logits of the tokens in w.outs.
func (w *workspace) final() {
	m := w.m
	w.expect(m.cfg.Dim, len(w.outs), m.output)
	w.tokens(len(w.outs), w.fnFinal)
	w.shares.divide(m.output.Panels(), m.pool.Threads())
	w.next(len(w.outs), 0, productQKV) // of the next step
	m.pool.Run(w.shares.tasks(), w.fnLogits)
}

func (w *workspace) doFinal(worker, i int) {
	c, s := &w.m.cfg, w.scratch[worker]
	x := w.settle(s, w.outs[i])
	w.math.norm(s.row[:c.Dim], x, w.m.norm, c.RMSEps)
	w.store(i, s.row, c.Dim)
}

func (w *workspace) doLogits(worker, task int) {
	p0, p1 := w.shares.task(task)
	w.math.mulTo(worker, w.m.output, w.outTo, p0, p1)
	if c := w.m.cfg.FinalSoftcap; c > 0 {
		r0, r1 := p0*compute.PanelRows, min(w.m.cfg.Vocab, p1*compute.PanelRows)
		for _, l := range w.outTo {
			w.math.softcap(l[r0:r1], c)
		}
	}
}
