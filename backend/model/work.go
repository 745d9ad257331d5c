package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/coppice-run/coppice/backend/compute"
)

// Work is what a token costs at the least, whatever the kernels do: the figures
// that measured speeds are compared with.
type Work struct {
	WeightBytes int // of the matrices, as the file stores them; read once by a step, however many its tokens;
	// of a mixture those of the experts that one token goes through
	MatrixMACs    int // multiply-adds in matrix products, of a token without output
	OutputMACs    int // the same for the logits of a token
	KVBytes       int // keys and values that a token at the depth reads
	AttentionMACs int // multiply-adds with them
}

// Work returns the cost of a token that sees depth positions, its own included.
func (m *Model) Work(depth int) Work {
	c := &m.cfg
	w := Work{WeightBytes: m.stored + m.storedExperts*c.ExpertsUsed/max(1, c.Experts), OutputMACs: weights(m.output)}
	for i := range m.layers {
		l := &m.layers[i]
		for _, x := range []matrix{l.q, l.k, l.v, l.o, l.gate, l.up, l.down, l.router} {
			if x != nil {
				w.MatrixMACs += weights(x)
			}
		}
		if l.router != nil {
			w.MatrixMACs += 3 * c.ExpertsUsed * c.FFN * c.Dim
		}
		seen := depth
		if l.local {
			seen = min(seen, c.SlidingWindow)
		}
		w.KVBytes += seen * m.storedPage() / (c.Layers * PageSize)
		w.AttentionMACs += seen * c.Heads * c.HeadDim * 2
	}
	return w
}

// Weights of fewer bytes than cachedBytes stay in the processor's cache, whence they come
// so much faster.
const (
	cachedBytes = 16 << 20
	cachedTimes = 4
)

// TokenCost estimates what one more token costs in a step of up to eight that sees depth
// positions, as a share of a step of one token: 0 if it is for free, 1 if it takes a
// step's time. It goes by what the model is and by the kernels in use, see
// compute.MACTimes, so it does not vary from run to run.
func (m *Model) TokenCost(depth int) float64 {
	w := m.Work(depth)
	read := float64(w.WeightBytes)
	if w.WeightBytes < cachedBytes {
		read /= cachedTimes
	}
	product, attention := compute.MACTimes()
	products := product * float64(w.MatrixMACs+w.OutputMACs)
	more := products + attention*float64(w.AttentionMACs)
	if n := m.cfg.Experts; n > 0 { // it takes experts of its own
		more += float64(m.storedExperts) * float64(m.cfg.ExpertsUsed) / float64(n)
	}
	return min(1, more/(max(read, products)+float64(w.KVBytes)))
}

// weights returns the number of weights of a matrix.
func weights(m matrix) int {
	rows, cols := m.Size()
	return rows * cols
}

// Bytes returns the memory that the model takes: packed weights and the space
// that a step works in. Memory of KVs is not in it.
func (m *Model) Bytes() int64 {
	var n int64
	for _, mem := range m.mem {
		n += int64(len(mem.Bytes()))
	}
	return n + m.ws.bytes()
}

// Products does the matrix products of a step of n tokens, those of the output
// left out, and nothing else, and returns the time that they took: what part of
// the machine's peak they reach.
func (m *Model) Products(n int) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return 0, errors.New("model: the model is closed")
	case n < 1 || n > chunkTokens:
		return 0, fmt.Errorf("model: products of %d tokens, want 1 to %d", n, chunkTokens)
	case m.cfg.Experts > 0:
		return 0, errors.New("model: products of a mixture of experts depend on the text")
	}
	w, c := m.ws, &m.cfg
	var spent time.Duration
	run := func(cols int, jobs ...gemmJob) {
		w.gemms = append(w.gemms[:0], jobs...)
		w.math.expect(n, cols)
		for _, j := range jobs {
			w.math.readBy(j.w)
		}
		m.pool.Run(n, func(worker, i int) { w.store(i, w.scratch[worker].row, cols) })
		start := time.Now()
		w.multiply()
		spent += time.Since(start)
	}
	for i := range m.layers {
		l := &m.layers[i]
		run(c.Dim, w.queryJob(l), w.keyJob(l), w.valueJob(l))
		run(c.Heads*c.HeadDim, gemmJob{l.o, w.y, w.dim})
		run(c.Dim, gemmJob{l.gate, w.gate, w.ffn}, gemmJob{l.up, w.up, w.ffn})
		run(c.FFN, gemmJob{l.down, w.y, w.dim})
	}
	return spent, nil
}
