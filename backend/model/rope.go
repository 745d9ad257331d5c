package model

import (
	"fmt"
	"math"
)

// rope turns positions into rotation angles.
type rope struct {
	freq []float64 // [RopeDim/2] radians per position
	mag  float64   // multiplies cosine and sine
}

// setRope computes the frequencies of global and local layers.
//
// Scaling follows the keys that llama.cpp's converter writes: linear divides
// positions by the factor; yarn interpolates low frequencies only (Peng et al.,
// "YaRN: Efficient Context Window Extension of Large Language Models", 2023,
// section 3.2 to 3.4); longrope divides by the factors in one of two tensors; Llama 3
// ships the divisors as tensor rope_freqs.weight.
func (m *Model) setRope(l *loader) error {
	c := &m.cfg
	n := c.RopeDim / 2
	r := metaReader{f: l.f, arch: c.Arch}
	global := plainRope(c.RopeBase, c.RopeDim)
	kind, _ := l.f.String(c.Arch + ".rope.scaling.type")
	factor := r.float("rope.scaling.factor", r.float("rope.scale_linear", 1))
	if r.err != nil {
		return r.err
	}
	switch kind {
	case "", "none", "linear":
		if kind != "none" {
			for i := range global.freq {
				global.freq[i] /= factor
			}
		}
	case "yarn":
		orig := float64(r.count("rope.scaling.original_context_length", c.ContextLength, maxContext))
		att := r.float("rope.scaling.attn_factor", 1)
		fast := r.float("rope.scaling.yarn_beta_fast", 32)
		slow := r.float("rope.scaling.yarn_beta_slow", 1)
		if r.err != nil {
			return r.err
		}
		global.yarn(c.RopeBase, c.RopeDim, factor, orig, fast, slow, att)
	case "longrope":
		if err := m.longRope(l, &r, &global); err != nil {
			return err
		}
	default:
		return fmt.Errorf("model: rope scaling %q is not supported (known: none, linear, yarn, longrope, and llama3 by rope_freqs.weight)", kind)
	}
	if _, ok := l.f.Tensor("rope_freqs.weight"); ok {
		div := l.vector("rope_freqs.weight", n)
		for i, d := range div {
			if !(d > 0) {
				return fmt.Errorf("model: tensor rope_freqs.weight holds %v at %d, want positive numbers", d, i)
			}
			global.freq[i] /= float64(d)
		}
	}
	m.rope = [2]rope{global, plainRope(c.RopeBaseLocal, c.RopeDim)}
	if m.fam.allLocal {
		m.rope[1] = global
	}
	return nil
}

// The two sets of factors of longrope.
const (
	ropeFactorsLong  = "rope_factors_long.weight"
	ropeFactorsShort = "rope_factors_short.weight"
)

// longRope divides each frequency by a factor of the file: one set for models as
// they were trained, one for those whose context was stretched. The context of
// the file says which, so that a prompt's length never changes how it begins.
func (m *Model) longRope(l *loader, r *metaReader, global *rope) error {
	c := &m.cfg
	orig := r.count("rope.scaling.original_context_length", c.ContextLength, maxContext)
	name, stretch := ropeFactorsShort, max(1, float64(c.ContextLength)/float64(orig))
	if c.ContextLength > orig {
		name = ropeFactorsLong
	}
	global.mag = 1
	if stretch > 1 {
		global.mag = math.Sqrt(1 + math.Log(stretch)/math.Log(float64(orig)))
	}
	global.mag = r.float("rope.scaling.attn_factor", global.mag)
	if r.err != nil {
		return r.err
	}
	for i, d := range l.vector(name, c.RopeDim/2) {
		if !(d > 0) {
			return fmt.Errorf("model: tensor %s holds %v at %d, want positive numbers", name, d, i)
		}
		global.freq[i] /= float64(d)
	}
	return l.err
}

func plainRope(base float64, dim int) rope {
	r := rope{freq: make([]float64, dim/2), mag: 1}
	for i := range r.freq {
		r.freq[i] = math.Pow(base, -2*float64(i)/float64(dim))
	}
	return r
}

// yarn stretches the frequencies by factor where a whole turn takes more than
// orig/slow positions, leaves those faster than orig/fast alone, and blends
// between.
func (r *rope) yarn(base float64, dim int, factor, orig, fast, slow, att float64) {
	// place is the (fractional) pair that turns the given number of times in orig.
	place := func(turns float64) float64 {
		return float64(dim) * math.Log(orig/(turns*2*math.Pi)) / (2 * math.Log(base))
	}
	lo := max(0, math.Floor(place(fast)))
	hi := min(float64(dim-1), math.Ceil(place(slow)))
	for i := range r.freq {
		ramp := (float64(i) - lo) / max(0.001, hi-lo)
		keep := 1 - min(1, max(0, ramp))
		r.freq[i] *= keep + (1-keep)/factor
	}
	r.mag = att * (1 + float64(0.1*math.Log(factor)))
}

// angles writes the cosines and sines of a position, [RopeDim/2] each.
func (r *rope) angles(cos, sin []float32, pos int) {
	for i, f := range r.freq {
		s, c := math.Sincos(float64(pos) * f)
		cos[i], sin[i] = float32(c*r.mag), float32(s*r.mag)
	}
}

// centreReach is about as long as most contexts are. Further away a pair may turn
// against its centre, which costs its keys one bit at the most.
const centreReach = 8192

// keyCentre returns what is added to all rotated keys of a layer before they are
// rounded, [KVHeads*HeadDim], or nil. The same vector added to all keys moves all
// scores of a query by the same amount, which softmax takes out again; but keys
// that are near zero lose less in 16 or 8 bits. Models with biases on their keys
// (Qwen2.5: up to 240 where the rest of a key is about 1) have the large ones in
// the pairs that hardly turn: of these it is the bias, negated. Pairs that turn
// more than a radian in centreReach positions stay as they are.
func (m *Model) keyCentre(l *layer) []float32 {
	c := &m.cfg
	if l.kBias == nil || m.fam.qkNorm || m.softcap != 0 {
		return nil
	}
	r := &m.rope[0]
	if l.local {
		r = &m.rope[1]
	}
	centre := make([]float32, len(l.kBias))
	for h := range c.KVHeads {
		from, to := l.kBias[h*c.HeadDim:][:c.HeadDim], centre[h*c.HeadDim:][:c.HeadDim]
		n := len(r.freq)
		for i, f := range r.freq {
			if f*float64(min(c.ContextLength, centreReach)) > 1 {
				continue
			}
			a, b := i, i+n
			if !m.fam.neox {
				a, b = 2*i, 2*i+1
			}
			to[a], to[b] = -from[a]*float32(r.mag), -from[b]*float32(r.mag)
		}
		for i := 2 * n; i < c.HeadDim; i++ {
			to[i] = -from[i]
		}
	}
	return centre
}

// rotate turns the leading pairs of a head. In the neox form a pair is
// (i, i+n), otherwise (2i, 2i+1), with n = len(cos) pairs.
func rotate(head, cos, sin []float32, neox bool) {
	n := len(cos)
	sin = sin[:n]
	if neox {
		a, b := head[:n], head[n:2*n]
		for i, c := range cos {
			x, y, s := a[i], b[i], sin[i]
			a[i] = float32(x*c) - float32(y*s)
			b[i] = float32(x*s) + float32(y*c)
		}
		return
	}
	head = head[:2*n]
	for i, c := range cos {
		x, y, s := head[2*i], head[2*i+1], sin[i]
		head[2*i] = float32(x*c) - float32(y*s)
		head[2*i+1] = float32(x*s) + float32(y*c)
	}
}
