package model

import (
	"sync"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/model/internal/ggml"
)

// Options are the choices of the caller about how a model runs. The zero value
// is good.
type Options struct {
	// Threads is the number of threads that compute, 0 for one per core. The
	// process should leave one more to the rest of the program:
	// GOMAXPROCS >= Threads+1, otherwise network handlers wait for the scheduler.
	Threads int

	// KV is how keys and values are held, BFloat16 if empty.
	KV KVType

	// Arithmetic is how numbers are rounded and added, Fast if empty. GGML is there
	// for comparisons with llama.cpp.
	Arithmetic Arithmetic

	// Float32Attention computes attention in float32 from keys and values that are
	// not rounded to bfloat16. It is many times slower and takes three times the
	// memory of a KV: it is there to tell what the rounding costs.
	Float32Attention bool

	// Float32Weights expands all weights to float32 and leaves activations alone,
	// which are otherwise rounded to 8 bits before a product with quantised weights.
	// The result is that of other engines but for the order of additions and the
	// rounding of keys and values. It takes up to eight times the memory and the
	// time.
	Float32Weights bool
}

// A Model is a loaded model. It is safe for concurrent use; steps run one
// after the other.
type Model struct {
	cfg           Config
	fam           family
	pool          *compute.Pool
	mem           []*compute.Memory // what the matrices lie in
	embed         matrix            // [Vocab][Dim]
	output        matrix            // [Vocab][Dim]; embed when tied
	norm          []float32         // final norm, [Dim]
	layers        []layer
	rope          [2]rope       // global, local
	plainRope     [2]*ggml.Rope // rope in the arithmetic of ggml
	scale         float32       // of queries
	scoreScale    float32       // of scores, in the arithmetic of ggml
	softcap       float32       // of scores, in their units
	reference     bool          // see Options.Float32Attention
	arithmetic    Arithmetic
	kvType        KVType
	stored        int // bytes of the matrices that a step reads, in the file
	storedExperts int // of those of which a token reads some

	mu     sync.Mutex // guards the following
	ws     *workspace
	closed bool
}

// layer holds the weights of one transformer block.
type layer struct {
	attnNorm, ffnNorm         []float32 // [Dim]
	attnPostNorm, ffnPostNorm []float32 // [Dim], nil when the family has none
	qNorm, kNorm              []float32 // [HeadDim], nil when the family has none
	qBias, kBias, vBias       []float32 // nil when the family has none
	kCentre                   []float32 // what keys are stored without; nil for nothing: see Model.keyCentre
	q, k, v, o                matrix
	gate, up, down            matrix
	local                     bool // sliding window
	still                     bool // queries and keys are not rotated

	router  matrix   // [Experts][Dim]; nil without a mixture
	experts []expert // instead of gate, up and down
}

// expert is one feed-forward part of a mixture.
type expert struct{ gate, up, down matrix }

// Arithmetic tells how numbers are rounded and added.
func (m *Model) Arithmetic() Arithmetic { return m.arithmetic }

// KVType tells how keys and values are held.
func (m *Model) KVType() KVType { return m.kvType }

// Config returns the description of the model.
func (m *Model) Config() Config { return m.cfg }

// Close stops the threads and gives the memory back. The model and its KVs
// must not be used afterwards.
func (m *Model) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pool != nil {
		m.pool.Close()
	}
	for _, mem := range m.mem {
		mem.Free()
	}
	m.mem, m.closed = nil, true
}
