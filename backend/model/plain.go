package model

import (
	"fmt"
	"math"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model/internal/ggml"
)

// doPlain is attention of a token and kv head as ggml computes it without flash
// attention: half floats, products added up in float64. The result takes the place
// of the queries.
func (w *workspace) doPlain(worker, task int) {
	m, c, s := w.m, &w.m.cfg, w.scratch[worker]
	i, kvHead := task/c.KVHeads, task%c.KVHeads
	t, hd, group := &w.toks[i], c.HeadDim, c.Heads/c.KVHeads
	first := w.plan().low(t.pos)
	n := t.pos + 1 - first
	if len(s.scores) < n*group {
		s.scores = make([]float32, n*group*5/4)
	}
	queries := w.qkv[i*w.qkvDim+kvHead*group*hd:][:group*hd]
	ggml.RoundHalves(queries)
	for p := 0; p < n; p += 4 {
		k := min(4, n-p)
		for j := range k {
			ggml.Halves(s.keys[j*hd:][:hd], w.kv.half(w.layer, kvHead, t.pages, first+p+j, 0))
		}
		for g := range group {
			dots := ggml.Dot4(s.keys, queries[g*hd:][:hd])
			copy(s.scores[g*n+p:][:k], dots[:])
		}
	}
	for g := range group {
		scores := s.scores[g*n:][:n]
		if m.cfg.AttnSoftcap > 0 {
			ggml.Softcap(scores, m.cfg.AttnSoftcap)
		}
		ggml.Softmax(scores, m.scoreScale, first)
		ggml.RoundHalves(scores)
	}
	clear(s.sums)
	row := s.keys[:hd]
	for p := range n {
		ggml.Halves(row, w.kv.half(w.layer, kvHead, t.pages, first+p, 1))
		for g := range group {
			ggml.AddScaled(s.sums[g*hd:][:hd], row, s.scores[g*n+p])
		}
	}
	for d, v := range s.sums {
		queries[d] = float32(v)
	}
}

// doStore hands the results of doPlain to the output projection.
func (w *workspace) doStore(worker, i int) {
	n := w.m.cfg.Heads * w.m.cfg.HeadDim
	row := w.scratch[worker].row
	copy(row, w.qkv[i*w.qkvDim:][:n])
	w.store(i, row, n)
}

// setPlain sets what the arithmetic of ggml takes beside the weights, or tells what
// of the file it does not cover.
func (m *Model) setPlain(l *loader) error {
	c := &m.cfg
	if c.Experts > 0 {
		return fmt.Errorf("model: arithmetic %s does not cover mixtures of experts: leave it out", GGML)
	}
	// Either the queries are scaled or the scores: it is not rounded alike.
	m.scale, m.scoreScale = 1, plainScale(m.headWidth())
	if m.fam.scaleQueries {
		m.scale, m.scoreScale = m.scoreScale, 1
	}
	scale := float32(1)
	r := metaReader{f: l.f, arch: c.Arch}
	switch kind, _ := l.f.String(c.Arch + ".rope.scaling.type"); kind {
	case "none":
	case "", "linear":
		scale = 1 / float32(r.float("rope.scaling.factor", r.float("rope.scale_linear", 1)))
	default:
		return fmt.Errorf("model: arithmetic %s does not cover rotary scaling by %s: leave it out", GGML, kind)
	}
	var factors []float32
	if _, ok := l.f.Tensor("rope_freqs.weight"); ok {
		factors = l.vector("rope_freqs.weight", c.RopeDim/2)
	}
	if r.err != nil || l.err != nil {
		return r.err // the loader's is reported at its end
	}
	var err error
	if m.plainRope[0], err = ggml.NewRope(float32(c.RopeBase), c.RopeDim/2, scale, factors); err != nil {
		return err
	}
	m.plainRope[1] = m.plainRope[0]
	if !m.fam.allLocal {
		m.plainRope[1], err = ggml.NewRope(float32(c.RopeBaseLocal), c.RopeDim/2, 1, nil)
	}
	return err
}

// plainScale is 1/sqrt(width), each step in float32.
func plainScale(width int) float32 {
	return 1 / float32(math.Sqrt(float64(width)))
}

// packPlain keeps the rows of a job as they are, in buf.
func packPlain(j *packJob, buf []byte) error {
	copy(buf, j.t.Data)
	mat, err := ggml.NewMatrix(j.t.Type, j.rows, j.cols, buf)
	if err != nil {
		return fmt.Errorf("model: tensor %s: %w", j.t.Name, err)
	}
	*j.dst = mat
	return nil
}

// half returns the key (part 0) or value (part 1) of a position in half floats.
// pages are slots. A page of Float16 is [16 tokens][HeadDim], as it comes.
func (k *KV) half(layer, head int, pages []int32, pos, part int) []uint16 {
	hd := k.m.cfg.HeadDim
	run := k.run((layer*k.m.cfg.KVHeads+head)*2+part, pages[pos/PageSize])
	return k.data[(run*PageSize+pos%PageSize)*hd:][:hd]
}

// storeHalf stores the key or value of a position.
func (k *KV) storeHalf(layer, head int, pages []int32, pos, part int, v []float32) {
	to := k.half(layer, head, pages, pos, part)
	for d := range to {
		to[d] = gguf.FloatToHalf(v[d])
	}
}
