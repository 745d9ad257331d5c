package engine

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/compute"
)

// errNaN is the error of a request whose logits cannot be compared.
var errNaN = errors.New("the model computed a logit that is not a number")

// errNoLegal is the error of a request whose constraint has left no token.
var errNoLegal = errors.New("the constraint allows no token here")

// sampler draws the tokens of one generation. What it draws depends on the
// logits, the tokens so far and the position, and on no earlier draw: a request
// that is replayed or preempted goes on with the same tokens.
type sampler struct {
	p       backend.Sampling
	all     map[backend.Token]int // of prompt and output, for the repetition penalty
	output  map[backend.Token]int // of the output
	entries []entry               // what may be drawn
	buf     []entry               // memory of entries
}

type entry struct {
	token  backend.Token
	weight float64 // logit, then probability up to a factor
}

func newSampler(p backend.Sampling, prompt []backend.Token) *sampler {
	s := &sampler{p: p}
	if p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 {
		s.all = make(map[backend.Token]int)
		for _, t := range prompt {
			s.all[t]++
		}
	}
	if p.FrequencyPenalty != 0 || p.PresencePenalty != 0 {
		s.output = make(map[backend.Token]int)
	}
	return s
}

// checkSampling reports the first field that makes no sense.
func checkSampling(p *backend.Sampling, vocab int) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: sampling: %s", backend.ErrInvalid, fmt.Sprintf(format, args...))
	}
	finite := func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(float64(float32(f)), 0) } // as logits are
	switch {
	case !finite(p.Temperature) || p.Temperature < 0:
		return bad("temperature %v, want 0 or more", p.Temperature)
	case p.TopK < 0:
		return bad("top_k %d, want 0 or more", p.TopK)
	case !(p.TopP >= 0 && p.TopP <= 1):
		return bad("top_p %v, want 0 to 1", p.TopP)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return bad("min_p %v, want 0 to 1", p.MinP)
	case !finite(p.RepetitionPenalty) || p.RepetitionPenalty != 0 && p.RepetitionPenalty < 0.01:
		return bad("repetition_penalty %v, want 0.01 or more, or 0 for none", p.RepetitionPenalty)
	case !finite(p.FrequencyPenalty) || !finite(p.PresencePenalty):
		return bad("a penalty is not finite")
	}
	for t, b := range p.LogitBias {
		if t < 0 || int(t) >= vocab {
			return bad("logit_bias of token %d, the vocabulary has %d", t, vocab)
		}
		if math.IsNaN(b) || b > math.MaxFloat32 {
			return bad("logit_bias of token %d is %v", t, b)
		}
	}
	return nil
}

// saw notes a token of the output.
func (s *sampler) saw(t backend.Token) {
	if s.all != nil {
		s.all[t]++
	}
	if s.output != nil {
		s.output[t]++
	}
}

// pick draws the token at position pos. It changes logits. allowed has a bit a
// token, nil for all.
func (s *sampler) pick(logits []float32, allowed []uint64, pos int) (backend.Token, error) {
	s.adjust(logits)
	best, ok, err := argmax(logits, allowed)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, errNoLegal
	}
	if s.p.Temperature < 1e-6 || s.p.TopK == 1 || math.IsInf(float64(logits[best]), -1) {
		return best, nil
	}
	s.weigh(logits, allowed, logits[best])
	s.truncate()
	return s.draw(uniform(s.p.Seed, uint64(pos))), nil
}

// adjust applies penalties and biases.
func (s *sampler) adjust(logits []float32) {
	for t := range s.all {
		r := float32(s.p.RepetitionPenalty)
		if l := logits[t]; l > 0 {
			logits[t] = l / r
		} else {
			logits[t] = l * r
		}
	}
	for t, n := range s.output {
		logits[t] -= float32(float64(s.p.FrequencyPenalty*float64(n)) + s.p.PresencePenalty)
	}
	for t, b := range s.p.LogitBias {
		logits[t] += float32(b)
	}
}

// argmax returns the allowed token with the greatest logit, the lowest such id
// on a tie. It reports false if none is allowed.
func argmax(logits []float32, allowed []uint64) (best backend.Token, ok bool, err error) {
	at, nan := compute.Top(logits, allowed)
	if nan {
		return 0, false, errNaN
	}
	return backend.Token(at), at >= 0, nil
}

// weigh fills entries with the allowed tokens and their probabilities at the
// temperature, up to a common factor; top is the greatest logit.
func (s *sampler) weigh(logits []float32, allowed []uint64, top float32) {
	s.entries = s.buf[:0]
	defer func() { s.buf = s.entries }()
	t := s.p.Temperature
	// Less than e^-32 of the best is never drawn. What min-p would drop in the
	// end need not be sorted before, unless top-p counts it. The conversions keep the
	// compiler of some processors from fusing products and sums.
	floor := float64(top) - float64(32*t)
	if s.p.MinP > 0 && (s.p.TopP == 0 || s.p.TopP == 1) {
		floor = max(floor, float64(top)+float64(t*math.Log(s.p.MinP)))
	}
	add := func(i int) {
		if l := float64(logits[i]); l >= floor {
			s.entries = append(s.entries, entry{backend.Token(i), math.Exp((l - float64(top)) / t)})
		}
	}
	if allowed == nil {
		for i := range logits {
			add(i)
		}
		return
	}
	for w, word := range allowed {
		for ; word != 0; word &= word - 1 {
			if i := w*64 + bits.TrailingZeros64(word); i < len(logits) {
				add(i)
			}
		}
	}
}

// truncate applies top-k, then top-p to what is left, then min-p. Entries are
// then in descending order; without any of the three they keep that of the ids.
func (s *sampler) truncate() {
	topP := s.p.TopP > 0 && s.p.TopP < 1
	if s.p.TopK == 0 && !topP && s.p.MinP == 0 {
		return
	}
	n := len(s.entries)
	if s.p.TopK > 0 {
		n = min(n, s.p.TopK)
	}
	order := topHeap(s.entries)
	order.init()
	if topP {
		// The total over the k best needs them found first if there is a k.
		var total float64
		if n < len(s.entries) {
			order.popTo(n)
			s.entries = order.popped(n)
			for _, e := range s.entries {
				total += e.weight
			}
		} else {
			for _, e := range s.entries {
				total += e.weight
			}
			s.entries = order.popUntil(func(sum float64) bool { return sum >= s.p.TopP*total })
		}
		sum := 0.0
		for i, e := range s.entries {
			sum += e.weight
			if sum >= s.p.TopP*total {
				s.entries = s.entries[:i+1]
				break
			}
		}
	} else {
		order.popTo(n)
		s.entries = order.popped(n)
	}
	if s.p.MinP > 0 {
		floor := s.entries[0].weight * s.p.MinP
		for i, e := range s.entries {
			if e.weight < floor {
				s.entries = s.entries[:i]
				break
			}
		}
	}
}

// draw returns the entry that u in [0, 1) falls on.
func (s *sampler) draw(u float64) backend.Token {
	var total float64
	for _, e := range s.entries {
		total += e.weight
	}
	u *= total
	for _, e := range s.entries {
		u -= e.weight
		if u < 0 {
			return e.token
		}
	}
	for _, e := range slices.Backward(s.entries) { // rounding
		if e.weight > 0 {
			return e.token
		}
	}
	return s.entries[len(s.entries)-1].token
}

// topHeap finds the best entries of many without sorting all: a heap with the
// best entry first, whose popped entries collect at its end in reverse.
type topHeap []entry

// better reports whether a goes before b; no two entries are equal.
func better(a, b entry) bool {
	return a.weight > b.weight || a.weight == b.weight && a.token < b.token
}

func (h topHeap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i, len(h))
	}
}

func (h topHeap) down(i, n int) {
	for {
		kid := 2*i + 1
		if kid >= n {
			return
		}
		if kid+1 < n && better(h[kid+1], h[kid]) {
			kid++
		}
		if !better(h[kid], h[i]) {
			return
		}
		h[i], h[kid] = h[kid], h[i]
		i = kid
	}
}

// pop moves the best of the first n entries to index n-1.
func (h topHeap) pop(n int) {
	h[0], h[n-1] = h[n-1], h[0]
	h.down(0, n-1)
}

func (h topHeap) popTo(k int) {
	for i := range k {
		h.pop(len(h) - i)
	}
}

// popped returns the k entries popped so far, the best first. It ends the heap:
// call it once.
func (h topHeap) popped(k int) []entry {
	out := h[len(h)-k:]
	slices.Reverse(out)
	return out
}

// popUntil pops entries until done is true of the sum of their weights.
func (h topHeap) popUntil(done func(sum float64) bool) []entry {
	sum := 0.0
	k := 0
	for k < len(h) && !done(sum) {
		sum += h[0].weight
		h.pop(len(h) - k)
		k++
	}
	return h.popped(k)
}

// uniform is a number in [0, 1) for each seed and position, evenly spread and
// unrelated between neighbours.
func uniform(seed, pos uint64) float64 {
	return float64(mix(mix(seed+0x9e3779b97f4a7c15)^mix(pos+0xd1b54a32d192ed03))>>11) / (1 << 53)
}

// mix is the finaliser of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// logSumExp is the logarithm of the sum of the exponentials of logits, in a
// fixed order.
func logSumExp(logits []float32) float64 {
	top := float32(math.Inf(-1))
	for _, l := range logits {
		if l > top {
			top = l
		}
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l - top))
	}
	return float64(top) + math.Log(sum)
}
