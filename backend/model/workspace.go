package model

import (
	"github.com/coppice-run/coppice/backend/compute"
)

// chunkTokens is the largest number of tokens that go through the layers
// together; longer batches are cut. It is large enough to amortise reading the
// weights and small enough for the activations to stay in the cache.
const chunkTokens = 256

// slotFloats bounds the partial results of attention, in float32 values.
const slotFloats = 4 << 20

// blockQueries is the number of queries (tokens times heads of a group) of an
// attention task.
const blockQueries = 32

// A token is one token of a chunk.
type token struct {
	row   *Row
	pages []int32 // slots of the row's pages
	id    int32
	pos   int
	out   int // index of its logits, -1 for none
}

// workspace is what a step needs besides the weights. It is made once.
type workspace struct {
	m       *Model
	kv      *KV
	toks    []token // of the chunk
	segs    []segment
	slots   []int32   // of the pages of all rows
	outSegs []segment // of the tokens with outputs

	dim, qkvDim, ffn int // strides: whole blocks
	keyAt, valueAt   int // offsets of keys and values in a row of qkv

	x    []float32 // [tokens][dim] residual stream
	y    []float32 // [tokens][dim] output of a half layer, to be added to x
	qkv  []float32 // [tokens][qkvDim] queries, keys, values
	gate []float32 // [tokens][ffn]
	up   []float32 // [tokens][ffn]
	math kernels
	cos  [2][]float32 // global, local: [tokens][RopeDim/2]
	sin  [2][]float32

	plans    [2]plan          // global, local
	partials compute.Partials // [slot][head]

	gemms    []gemmJob
	shares   shares            // of the panels of a section
	aheads   [][]compute.Ahead // of each product: what each thread reads of it first
	layer    int
	attended bool        // attention of the current layer is done, but for merging
	addY     []float32   // weights of the norm that y passes before the addition, or nil
	hasY     bool        // y is pending
	units    int         // of the pieces of a section: into how many a token divides,
	parts    int         // and in how many parts they are done
	normBy   []float32   // weights of the next norm
	outs     []int       // tokens with outputs
	outTo    [][]float32 // where their logits go
	logits   [][]float32

	mix *mixture // nil without experts

	scratch []*scratch // per thread

	// The sections, as functions made once.
	fnEmbed, fnNorm, fnGemm, fnHeads, fnShallow, fnQueries, fnKeys, fnAttend, fnMerge, fnGate, fnFinal, fnLogits, fnExact, fnPlain, fnStore func(worker, task int)
}

// scratch is the private space of one thread.
type scratch struct {
	row     []float32 // widest row, whole blocks
	queries *compute.Queries

	// Of doPlain.
	scores []float32 // [heads of the group][positions], grows with the depth
	keys   []float32 // [4][HeadDim]
	sums   []float64 // [heads of the group][HeadDim]
}

// A gemmJob is one of the products of a section.
type gemmJob struct {
	w      matrix
	y      []float32
	stride int
}

func wholeBlocks(n int) int { return (n + compute.BlockCols - 1) &^ (compute.BlockCols - 1) }

func newWorkspace(m *Model) *workspace {
	c := &m.cfg
	w := &workspace{m: m}
	qd, kd := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	w.dim, w.ffn = wholeBlocks(c.Dim), wholeBlocks(c.FFN)
	// Each part starts at a whole panel, since products write whole panels.
	w.keyAt, w.valueAt = wholeBlocks(qd), wholeBlocks(qd)+wholeBlocks(kd)
	w.qkvDim = w.valueAt + wholeBlocks(kd)
	widest := max(w.dim, w.ffn, wholeBlocks(qd))
	const n = chunkTokens
	w.x = make([]float32, n*w.dim)
	w.y = make([]float32, n*w.dim)
	w.qkv = make([]float32, n*w.qkvDim)
	w.gate = make([]float32, n*w.ffn)
	w.up = make([]float32, n*w.ffn)
	w.math = m.newKernels(n, widest)
	for i := range w.cos {
		w.cos[i] = make([]float32, n*c.RopeDim/2)
		w.sin[i] = make([]float32, n*c.RopeDim/2)
	}
	group := c.Heads / c.KVHeads
	block := max(1, blockQueries/group)
	w.plans[0] = plan{tokens: block}
	w.plans[1] = plan{tokens: block, window: c.SlidingWindow}
	newQueries := compute.NewQueries
	if m.kvType == Int8 {
		newQueries = compute.NewQueriesInt8
	}
	for range m.pool.Threads() {
		w.scratch = append(w.scratch, &scratch{
			row:     make([]float32, widest),
			queries: newQueries(block*group, c.HeadDim),
			keys:    make([]float32, 4*c.HeadDim),
			sums:    make([]float64, group*c.HeadDim),
		})
	}
	w.fnEmbed, w.fnNorm, w.fnGemm, w.fnHeads = w.doEmbed, w.doNorm, w.doGemm, w.doHeads
	w.fnShallow = w.doShallow
	w.fnQueries, w.fnKeys = w.doQueries, w.doKeys
	w.fnAttend, w.fnMerge, w.fnGate = w.doAttend, w.doMerge, w.doGate
	w.fnFinal, w.fnLogits, w.fnExact = w.doFinal, w.doLogits, w.doExact
	w.fnPlain, w.fnStore = w.doPlain, w.doStore
	if c.Experts > 0 {
		w.mix = newMixture(w)
	}
	w.planAhead()
	return w
}

// maxSlots returns how many (token, span) pairs a chunk may have; one token is
// always allowed.
func (w *workspace) maxSlots() int {
	return slotFloats / (w.m.cfg.Heads * w.m.cfg.HeadDim)
}

// bytes returns the size of what is made once, and the bound of the partial results
// of attention, which grow with the depth.
func (w *workspace) bytes() int64 {
	n := len(w.x) + len(w.y) + len(w.qkv) + len(w.gate) + len(w.up)
	for i := range w.cos {
		n += len(w.cos[i]) + len(w.sin[i])
	}
	if w.mix != nil {
		n += len(w.mix.h) + len(w.mix.out) + len(w.mix.route)
	}
	return 4*int64(n+slotFloats) + w.math.bytes()
}

// reserve makes room for the partial results of the plans.
func (w *workspace) reserve() {
	slots := max(w.plans[0].total, w.plans[1].total) * w.m.cfg.Heads
	if len(w.partials.Max) < slots {
		slots = max(slots, min(slots*3/2, w.maxSlots()*w.m.cfg.Heads))
		w.partials.Max = make([]float32, slots)
		w.partials.Sum = make([]float32, slots)
		w.partials.Out = make([]float32, slots*w.m.cfg.HeadDim)
	}
}
