package engine

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// support draws many times and returns which tokens came, in order of id.
func support(t *testing.T, p backend.Sampling, logits []float32, allowed []uint64) (tokens []backend.Token, counts map[backend.Token]int) {
	t.Helper()
	s := newSampler(p, nil)
	counts = make(map[backend.Token]int)
	for pos := range 4000 {
		tok, err := s.pick(slices.Clone(logits), allowed, pos)
		if err != nil {
			t.Fatal(err)
		}
		counts[tok]++
	}
	for tok := range counts {
		tokens = append(tokens, tok)
	}
	slices.Sort(tokens)
	return tokens, counts
}

func TestSamplerTruncates(t *testing.T) {
	// Probabilities 0.4, 0.3, 0.2, 0.1 in a mixed order.
	logits := make([]float32, 4)
	for i, p := range []float64{0.1, 0.4, 0.2, 0.3} {
		logits[i] = float32(math.Log(p))
	}
	for name, c := range map[string]struct {
		p       backend.Sampling
		allowed []uint64
		want    []backend.Token
	}{
		"greedy":             {backend.Sampling{}, nil, []backend.Token{1}},
		"all":                {backend.Sampling{Temperature: 1}, nil, []backend.Token{0, 1, 2, 3}},
		"top-k 1":            {backend.Sampling{Temperature: 1, TopK: 1}, nil, []backend.Token{1}},
		"top-k 2":            {backend.Sampling{Temperature: 1, TopK: 2}, nil, []backend.Token{1, 3}},
		"top-k beyond":       {backend.Sampling{Temperature: 1, TopK: 9}, nil, []backend.Token{0, 1, 2, 3}},
		"top-p .3":           {backend.Sampling{Temperature: 1, TopP: 0.3}, nil, []backend.Token{1}},
		"top-p .65":          {backend.Sampling{Temperature: 1, TopP: 0.65}, nil, []backend.Token{1, 3}},
		"top-p .75":          {backend.Sampling{Temperature: 1, TopP: 0.75}, nil, []backend.Token{1, 2, 3}},
		"top-p 1":            {backend.Sampling{Temperature: 1, TopP: 1}, nil, []backend.Token{0, 1, 2, 3}},
		"min-p .6":           {backend.Sampling{Temperature: 1, MinP: 0.6}, nil, []backend.Token{1, 3}},
		"top-k 3, top-p .7":  {backend.Sampling{Temperature: 1, TopK: 3, TopP: 0.7}, nil, []backend.Token{1, 3}},
		"top-p .95, min-p":   {backend.Sampling{Temperature: 1, TopP: 0.95, MinP: 0.45}, nil, []backend.Token{1, 2, 3}},
		"masked":             {backend.Sampling{Temperature: 1}, []uint64{0b0101}, []backend.Token{0, 2}},
		"masked greedy":      {backend.Sampling{}, []uint64{0b0101}, []backend.Token{2}},
		"masked, top-k":      {backend.Sampling{Temperature: 1, TopK: 1}, []uint64{0b0101}, []backend.Token{2}},
		"bias":               {backend.Sampling{LogitBias: map[backend.Token]float64{0: 5}}, nil, []backend.Token{0}},
		"mask beats bias":    {backend.Sampling{LogitBias: map[backend.Token]float64{1: 50}}, []uint64{0b1001}, []backend.Token{3}},
		"high temperature":   {backend.Sampling{Temperature: 100, TopK: 3}, nil, []backend.Token{1, 2, 3}},
		"hardly temperature": {backend.Sampling{Temperature: 1e-9}, nil, []backend.Token{1}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, counts := support(t, c.p, logits, c.allowed); !slices.Equal(got, c.want) {
				t.Errorf("drew %v, want %v", counts, c.want)
			}
		})
	}
}

func TestSamplerFollowsTheProbabilities(t *testing.T) {
	want := []float64{0.1, 0.4, 0.2, 0.3}
	logits := make([]float32, 4)
	for i, p := range want {
		logits[i] = float32(math.Log(p))
	}
	for _, p := range []backend.Sampling{{Temperature: 1, Seed: 1}, {Temperature: 1, Seed: 2, TopK: 4}, {Temperature: 1, Seed: 3, TopP: 0.9999}} {
		_, counts := support(t, p, logits, nil)
		for i, w := range want {
			// 4,000 draws: five standard deviations.
			if got := float64(counts[backend.Token(i)]) / 4000; math.Abs(got-w) > 5*math.Sqrt(w*(1-w)/4000) {
				t.Errorf("%+v: token %d came with frequency %.3f, want %.3f", p, i, got, w)
			}
		}
	}
}

func TestSamplerTies(t *testing.T) {
	s := newSampler(backend.Sampling{}, nil)
	if got, err := s.pick([]float32{1, 3, 3, 2}, nil, 0); got != 1 || err != nil {
		t.Errorf("token %d (%v), want the lowest id", got, err)
	}
	if got, err := s.pick([]float32{1, 3, 3, 2}, []uint64{0b1101}, 0); got != 2 || err != nil {
		t.Errorf("masked: token %d (%v)", got, err)
	}
}

func TestSamplerErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	s := newSampler(backend.Sampling{Temperature: 1}, nil)
	if _, err := s.pick([]float32{1, nan}, nil, 0); !errors.Is(err, errNaN) {
		t.Error(err)
	}
	if _, err := s.pick([]float32{1, nan}, []uint64{2}, 0); !errors.Is(err, errNaN) {
		t.Error(err)
	}
	if got, err := s.pick([]float32{1, nan}, []uint64{1}, 0); got != 0 || err != nil {
		t.Error(got, err)
	}
	if _, err := s.pick([]float32{1, 2}, []uint64{0}, 0); !errors.Is(err, errNoLegal) {
		t.Error(err)
	}
	if _, err := s.pick([]float32{inf, inf}, nil, 0); !errors.Is(err, errNoLegal) {
		t.Error(err)
	}
	if got, err := s.pick([]float32{inf, inf, 0}, []uint64{2}, 0); got != 1 || err != nil {
		t.Errorf("the only legal token, at minus infinity: %d, %v", got, err)
	}
}

func TestPenalties(t *testing.T) {
	s := newSampler(backend.Sampling{RepetitionPenalty: 2, FrequencyPenalty: 0.5, PresencePenalty: 1}, []backend.Token{0, 0})
	s.saw(1)
	s.saw(1)
	l := []float32{4, 4, -4, 4}
	s.all[2] = 1
	s.adjust(l)
	// The prompt counts for repetition only; 1 came twice: 4/2 - 2*0.5 - 1.
	if want := []float32{2, 0, -8, 4}; !slices.Equal(l, want) {
		t.Errorf("%v, want %v", l, want)
	}
}

func TestUniform(t *testing.T) {
	const n = 100_000
	for _, f := range []func(i int) float64{
		func(i int) float64 { return uniform(7, uint64(i)) },
		func(i int) float64 { return uniform(uint64(i), 7) },
	} {
		var buckets [10]int
		serial := 0.0
		for i := range n {
			u := f(i)
			if u < 0 || u >= 1 {
				t.Fatal(u)
			}
			buckets[int(u*10)]++
			serial += (u - 0.5) * (f(i+1) - 0.5)
		}
		for _, b := range buckets {
			if math.Abs(float64(b)-n/10) > 5*math.Sqrt(n*0.09) {
				t.Errorf("buckets %v", buckets)
			}
		}
		if c := serial / n * 12; math.Abs(c) > 0.02 {
			t.Errorf("neighbours correlate: %v", c)
		}
	}
}

// TestTopHeap compares with sorting.
func TestTopHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		in := make([]entry, 1+r.IntN(50))
		for i := range in {
			in[i] = entry{backend.Token(i), float64(r.IntN(10))}
		}
		want := slices.Clone(in)
		slices.SortFunc(want, func(a, b entry) int {
			if better(a, b) {
				return -1
			}
			return 1
		})
		k := 1 + r.IntN(len(in))
		h := topHeap(in)
		h.init()
		h.popTo(k)
		if got := h.popped(k); !slices.Equal(got, want[:k]) {
			t.Fatalf("best %d: %v, want %v", k, got, want[:k])
		}
	}
}

func BenchmarkPick(b *testing.B) {
	logits := make([]float32, 128_000)
	for i := range logits {
		logits[i] = float32(mix(uint64(i))>>40) / (1 << 18) // 0 to 64
	}
	work := make([]float32, len(logits))
	for name, p := range map[string]backend.Sampling{
		"greedy": {}, "temperature": {Temperature: 1}, "top-p": {Temperature: 0.7, TopP: 0.9}, "top-k": {Temperature: 1, TopK: 40},
	} {
		b.Run(name, func(b *testing.B) {
			s := newSampler(p, nil)
			pos := 0
			for b.Loop() {
				copy(work, logits)
				if _, err := s.pick(work, nil, pos); err != nil {
					b.Fatal(err)
				}
				pos++
			}
		})
	}
}
