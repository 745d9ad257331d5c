package model

import "fmt"

// PageSize is the number of token positions in a page of a [KV].
const PageSize = 16

// A Row is a run of consecutive tokens of one sequence.
type Row struct {
	// Tokens are the ids to compute.
	Tokens []int32
	// Start is the position of Tokens[0] in its sequence. The keys and values
	// of the positions before it were written by earlier steps.
	Start int
	// Pages is the block table of the sequence: page i holds the positions
	// PageSize*i up to PageSize*i+15. It covers Start+len(Tokens) positions;
	// more is allowed.
	Pages []int32
	// Outputs are the indices into Tokens whose next-token logits are wanted,
	// in ascending order. Often it is the last one, or none.
	Outputs []int
}

// A Batch is the work of one step.
//
// Rows may share pages that earlier steps have written. A page that a row
// writes in this step must not appear in another row of the batch.
type Batch struct {
	Rows []Row
}

// Outputs returns the number of logit vectors that a step computes.
func (b *Batch) Outputs() int {
	n := 0
	for i := range b.Rows {
		n += len(b.Rows[i].Outputs)
	}
	return n
}

// check reports the first reason why the batch cannot run on m and kv.
func (b *Batch) check(m *Model, kv *KV, logits [][]float32) error {
	if kv == nil || kv.m != m {
		return fmt.Errorf("model: the KV belongs to another model")
	}
	if kv.mem == nil {
		return fmt.Errorf("model: the KV is closed")
	}
	if n := b.Outputs(); len(logits) != n {
		return fmt.Errorf("model: the batch asks for %d outputs, but room for %d is given", n, len(logits))
	}
	for i, l := range logits {
		if len(l) < m.cfg.Vocab {
			return fmt.Errorf("model: logits[%d] has length %d, want %d", i, len(l), m.cfg.Vocab)
		}
	}
	for i := range b.Rows {
		if err := b.Rows[i].check(m, kv); err != nil {
			return fmt.Errorf("model: row %d: %w", i, err)
		}
	}
	return nil
}

func (r *Row) check(m *Model, kv *KV) error {
	if r.Start < 0 {
		return fmt.Errorf("start %d is negative", r.Start)
	}
	end := r.Start + len(r.Tokens)
	if end > m.cfg.ContextLength {
		return fmt.Errorf("position %d is beyond the context length %d", end-1, m.cfg.ContextLength)
	}
	if need := (end + PageSize - 1) / PageSize; len(r.Pages) < need {
		return fmt.Errorf("%d pages for %d positions, need %d", len(r.Pages), end, need)
	}
	for _, p := range r.Pages[:(end+PageSize-1)/PageSize] {
		if p < 0 || int(p) >= kv.pages {
			return fmt.Errorf("page %d is outside of the KV's %d pages", p, kv.pages)
		}
	}
	for i, t := range r.Tokens {
		if t < 0 || int(t) >= m.cfg.Vocab {
			return fmt.Errorf("token %d at index %d is outside of the vocabulary of %d", t, i, m.cfg.Vocab)
		}
	}
	last := -1
	for _, o := range r.Outputs {
		if o <= last || o >= len(r.Tokens) {
			return fmt.Errorf("outputs must be ascending indices into %d tokens, got %d after %d", len(r.Tokens), o, last)
		}
		last = o
	}
	return nil
}
