package model

import "github.com/coppice-run/coppice/backend/compute"

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
	w := Work{WeightBytes: m.stored + m.storedExperts*c.ExpertsUsed/max(1, c.Experts), OutputMACs: m.output.Rows * m.output.Cols}
	for i := range m.layers {
		l := &m.layers[i]
		for _, x := range []*compute.Matrix{l.q, l.k, l.v, l.o, l.gate, l.up, l.down, l.router} {
			if x != nil {
				w.MatrixMACs += x.Rows * x.Cols
			}
		}
		if l.router != nil {
			w.MatrixMACs += 3 * c.ExpertsUsed * c.FFN * c.Dim
		}
		seen := depth
		if l.local {
			seen = min(seen, c.SlidingWindow)
		}
		w.KVBytes += seen * c.KVHeads * c.HeadDim * 2 * 2 // keys and values, of two bytes
		w.AttentionMACs += seen * c.Heads * c.HeadDim * 2
	}
	return w
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
