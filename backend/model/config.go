package model

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend/gguf"
)

// ErrUnknownFamily marks a file whose architecture this package cannot compute.
var ErrUnknownFamily = errors.New("unknown model family")

// Config describes a model. All of it comes from the file's metadata.
type Config struct {
	Arch          string // family, as general.architecture names it
	Name          string // general.name, may be empty
	Layers        int    // transformer blocks
	Dim           int    // width of the residual stream
	Heads         int    // query heads
	KVHeads       int    // key and value heads; divides Heads
	HeadDim       int    // width of a head
	FFN           int    // width of the feed-forward hidden layer
	Vocab         int    // token ids are 0..Vocab-1
	ContextLength int    // positions the model was made for
	// SlidingWindow is the number of positions, its own included, that a token
	// sees in a local layer; 0 when every layer is global.
	SlidingWindow int
	RMSEps        float32 // added to the mean square in every norm
	RopeBase      float64 // base of the rotary frequencies in global layers
	RopeBaseLocal float64 // the same in local layers
	RopeDim       int     // leading dimensions of a head that are rotated
	AttnSoftcap   float32 // scores s become c*tanh(s/c); 0 for none
	FinalSoftcap  float32 // the same for logits
	// Experts is the number of feed-forward parts of a layer, each of width FFN,
	// of which a token goes through ExpertsUsed; 0 without a mixture.
	Experts, ExpertsUsed int
}

// family holds what differs between the architectures.
type family struct {
	neox       bool    // rotate element i with i+n/2 instead of 2i with 2i+1
	bias       bool    // q, k and v projections carry biases
	qkNorm     bool    // queries and keys are normalised per head
	postNorm   bool    // outputs of attention and feed-forward are normalised too
	gelu       bool    // gate by GELU (tanh form) instead of SiLU
	scaleEmbed bool    // multiply embeddings by sqrt(Dim)
	window     int     // every window-th layer is global, the others are local; 0: all global
	still      int     // in every still-th layer nothing is rotated; 0: in none
	allLocal   bool    // all layers are local if the file names a window
	localBase  float64 // rotary base of local layers, 0: that of the others
	fused      bool    // one tensor for q, k and v, and one for gate and up
	experts    bool    // may be a mixture of experts
	// scaleQueries tells that llama.cpp multiplies queries, not scores, by the scale
	// of attention.
	scaleQueries bool
	wide         int // number of layers of the model whose attention scale goes by Dim/Heads
}

var families = map[string]family{
	"llama":    {experts: true}, // mistral, mixtral, smollm and more
	"qwen2":    {neox: true, bias: true},
	"qwen3":    {neox: true, qkNorm: true},
	"qwen3moe": {neox: true, qkNorm: true, experts: true},
	"gemma2":   {neox: true, postNorm: true, gelu: true, scaleEmbed: true, scaleQueries: true, window: 2, wide: 46},
	"gemma3":   {neox: true, qkNorm: true, postNorm: true, gelu: true, scaleEmbed: true, scaleQueries: true, window: 6, localBase: 10000, wide: 62},
	"smollm3":  {still: 4},
	"phi3":     {neox: true, fused: true, allLocal: true, scaleQueries: true},
}

// Families lists the architectures that Load accepts, sorted.
func Families() []string {
	var out []string
	for name := range families {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Bounds far above every known model. They keep products of sizes from
// overflowing and a hostile file from asking for absurd memory.
const (
	maxLayers  = 1 << 12
	maxDim     = 1 << 20
	maxContext = 1 << 28
	maxExperts = 1 << 12
)

// readConfig reads and checks the metadata of f.
func readConfig(f *gguf.File) (Config, family, error) {
	arch := f.Architecture()
	fam, ok := families[arch]
	if !ok {
		return Config{}, fam, fmt.Errorf("model: %w %q; known are %s; for another one use a server that runs it, by --backend URL", ErrUnknownFamily, arch, strings.Join(Families(), ", "))
	}
	r := metaReader{f: f, arch: arch}
	c := Config{
		Arch:          arch,
		Name:          f.Name(),
		Layers:        r.count("block_count", 0, maxLayers),
		Dim:           r.count("embedding_length", 0, maxDim),
		Heads:         r.count("attention.head_count", 0, maxDim),
		FFN:           r.count("feed_forward_length", 0, maxDim),
		ContextLength: r.count("context_length", 0, maxContext),
		RMSEps:        float32(r.float("attention.layer_norm_rms_epsilon", 1e-6)),
		RopeBase:      r.float("rope.freq_base", 10000),
	}
	c.KVHeads = r.count("attention.head_count_kv", c.Heads, maxDim)
	if r.err != nil {
		return c, fam, r.err
	}
	if c.Heads%c.KVHeads != 0 {
		return c, fam, fmt.Errorf("model: %d query heads are not a multiple of %d kv heads", c.Heads, c.KVHeads)
	}
	c.HeadDim = r.count("attention.key_length", c.Dim/c.Heads, maxDim)
	if r.err == nil && c.HeadDim%2 != 0 {
		r.err = fmt.Errorf("model: head width %d is odd", c.HeadDim)
	}
	if v := r.count("attention.value_length", c.HeadDim, maxDim); r.err == nil && v != c.HeadDim {
		r.err = fmt.Errorf("model: value width %d differs from key width %d: not supported", v, c.HeadDim)
	}
	c.RopeDim = r.count("rope.dimension_count", c.HeadDim, maxDim)
	if r.err == nil && (c.RopeDim%2 != 0 || c.RopeDim > c.HeadDim) {
		r.err = fmt.Errorf("model: cannot rotate %d of %d dimensions", c.RopeDim, c.HeadDim)
	}
	if r.err == nil && c.Heads*c.HeadDim > maxDim {
		r.err = fmt.Errorf("model: %d heads of width %d are too many", c.Heads, c.HeadDim)
	}
	c.RopeBaseLocal = c.RopeBase
	if fam.window > 0 {
		c.SlidingWindow = r.count("attention.sliding_window", 512, maxContext)
		c.RopeBaseLocal = r.float("rope.freq_base_swa", cmp.Or(fam.localBase, c.RopeBase))
	}
	if n := r.optional("attention.sliding_window"); fam.allLocal && n > 0 && n < int64(c.ContextLength) {
		c.SlidingWindow = int(n)
	}
	if r.f.Has(arch + ".attn_logit_softcapping") {
		c.AttnSoftcap = float32(r.float("attn_logit_softcapping", 50))
	}
	if r.f.Has(arch + ".final_logit_softcapping") {
		c.FinalSoftcap = float32(r.float("final_logit_softcapping", 30))
	}
	if n := r.optional("expert_count"); r.err == nil && n > 0 {
		if !fam.experts {
			return c, fam, fmt.Errorf("model: %s with %d experts: mixtures of experts are not supported in this family", arch, n)
		}
		c.Experts = r.count("expert_count", 0, maxExperts)
		c.ExpertsUsed = r.count("expert_used_count", 0, c.Experts)
		c.FFN = r.count("expert_feed_forward_length", c.FFN, maxDim)
	}
	return c, fam, r.err
}

// local tells whether layer l attends to its sliding window only.
func (c *Config) local(l int, fam *family) bool {
	return fam.allLocal && c.SlidingWindow > 0 || fam.window > 0 && (l+1)%fam.window != 0
}

// anyLocal tells whether some layer does.
func (c *Config) anyLocal() bool { return c.SlidingWindow > 0 }

// metaReader reads hyperparameters and keeps the first error.
type metaReader struct {
	f    *gguf.File
	arch string
	err  error
}

// count returns a positive integer of at most limit. A default of 0 means that
// the key must be there.
func (r *metaReader) count(key string, def, limit int) int {
	if r.err != nil {
		return 1
	}
	key = r.arch + "." + key
	v, ok := r.f.Int(key)
	switch {
	case !ok && r.f.Has(key):
		r.err = fmt.Errorf("model: metadata %s is not one integer", key)
	case !ok && def > 0:
		return def
	case !ok:
		r.err = fmt.Errorf("model: metadata %s is missing", key)
	case v <= 0 || v > int64(limit):
		r.err = fmt.Errorf("model: metadata %s is %d, want 1 to %d", key, v, limit)
	default:
		return int(v)
	}
	return 1
}

// optional returns an integer, 0 when the key is missing.
func (r *metaReader) optional(key string) int64 {
	v, _ := r.f.Int(r.arch + "." + key)
	return v
}

// float returns a positive, finite number.
func (r *metaReader) float(key string, def float64) float64 {
	key = r.arch + "." + key
	v, ok := r.f.Float(key)
	if !ok {
		return def
	}
	if !(v > 0) || math.IsInf(v, 0) {
		if r.err == nil {
			r.err = fmt.Errorf("model: metadata %s is %v, want a positive number", key, v)
		}
		return def
	}
	return v
}
