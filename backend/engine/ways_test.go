package engine

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/grammar"
)

// spellings are all sequences of tokens that a grammar of one choice allows, if it
// does not know how a tokenizer would write it.
func spellings(t *testing.T, e *Engine, text string) (out [][]backend.Token) {
	t.Helper()
	tokens := make([][]byte, e.tok.Size())
	for i := range tokens {
		if id := backend.Token(i); !e.tok.IsControl(id) {
			tokens[i] = e.tok.Bytes(id)
		}
	}
	v, err := grammar.NewVocab(tokens, grammar.VocabOptions{EndTokens: e.end})
	if err != nil {
		t.Fatal(err)
	}
	g, err := grammar.Compile(context.Background(), grammar.Spec{Choices: []string{text}}, v)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(s grammar.State, path []backend.Token)
	walk = func(s grammar.State, path []backend.Token) {
		if s.CanEnd() {
			out = append(out, path)
		}
		mask := make([]uint64, len(e.mask))
		s.Mask(mask)
		for i, w := range mask {
			for ; w != 0; w &= w - 1 {
				id := backend.Token(i*64 + bits.TrailingZeros64(w))
				if e.isEnd(id) {
					continue
				}
				next, err := s.Accept(id)
				if err != nil {
					t.Fatal(err)
				}
				walk(next, append(slices.Clip(path), id))
			}
		}
	}
	walk(g.Start(), nil)
	return out
}

// exactByHand is the log of the summed probability of all spellings of text after
// prefix, each read on its own.
func exactByHand(t *testing.T, e *Engine, prefix []backend.Token, text string, closed bool) float64 {
	t.Helper()
	total := 0.0
	for _, ids := range spellings(t, e, text) {
		if closed {
			ids = append(ids, imEnd)
		}
		r, err := e.Logprobs(context.Background(), &backend.LogprobRequest{Tokens: slices.Concat(prefix, ids), From: len(prefix)})
		if err != nil {
			t.Fatal(err)
		}
		lp := 0.0
		for _, l := range r.Logprobs {
			lp += l
		}
		total += math.Exp(lp)
	}
	return math.Log(total)
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(b)) }

// TestExactIsTheSumOfAllWays compares exact scores of random options, of which
// some are beginnings of others, with the sum over all that the grammar of the
// option allows, on the fake model and on a real forward pass.
func TestExactIsTheSumOfAllWays(t *testing.T) {
	words := []string{"low", "er", " low", "in", "ing", "is ", " is", "the", "ab", "abc", "x", "é", " ", "g"}
	tiny := tinyModelOf(t, 2, 2048, model.Options{Threads: 1})
	other := 0
	for seed := range 12 {
		r := rand.New(rand.NewPCG(uint64(seed), 31))
		var options []string
		for len(options) < 2+r.IntN(4) {
			o := ""
			if n := len(options); n > 0 && r.IntN(2) == 0 {
				o = options[r.IntN(n)]
			}
			for range 1 + r.IntN(2) {
				o += words[r.IntN(len(words))]
			}
			if len(o) <= 9 && !slices.Contains(options, o) {
				options = append(options, o)
			}
		}
		text := []string{"", "It is:", "x ", "a"}[r.IntN(4)]
		turns := []backend.Turn{user("how bad?"), {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: text}}}}
		for _, m := range []Model{nil, tiny} {
			for _, closed := range []bool{false, true} {
				e := newFake(t, func(c *Config, _ *fakeModel) {
					if m != nil {
						c.Model = m
					}
				})
				req := &backend.ScoreRequest{Turns: turns, Options: options, Closed: closed, Method: backend.Exact}
				res := mustScore(t, e, req)
				prompt, _ := e.Tokenize(turns, true)
				prefix := prompt[:res.Usage.PromptTokens]
				tail := ""
				for _, id := range prompt[len(prefix):] {
					tail += string(e.tok.Bytes(id))
				}
				for i, o := range res.Options {
					want := exactByHand(t, e, prefix, tail+options[i], closed)
					if !near(o.Sum, want) {
						t.Errorf("seed %d, %q after %q closed %v: %v, by hand %v", seed, options[i], text, closed, o.Sum, want)
					}
					if usual := sum(o.Logprobs); o.Sum < usual-1e-9 {
						t.Errorf("seed %d: %q is less likely in all ways (%v) than in one (%v)", seed, options[i], o.Sum, usual)
					} else if o.Sum > usual+1e-3 {
						other++
					}
				}
				if len(res.Emulated) > 0 {
					t.Errorf("seed %d: %v", seed, res.Emulated)
				}
				warm := mustScore(t, e, req)
				if !reflect.DeepEqual(warm.Options, res.Options) {
					t.Errorf("seed %d: warm %+v, cold %+v", seed, warm.Options, res.Options)
				}
				if warm.Usage.Without != res.Usage.Without || warm.Usage.ComputedTokens > res.Usage.ComputedTokens {
					t.Errorf("seed %d: warm %+v, cold %+v", seed, warm.Usage, res.Usage)
				}
			}
		}
	}
	if other == 0 {
		t.Error("no option had another way that matters: the test shows nothing")
	}
}

// TestExactSaysWhatItLeftOut: with few tokens to spend the sum is a lower bound,
// and the result says how far off it may be.
func TestExactSaysWhatItLeftOut(t *testing.T) {
	turns := []backend.Turn{user("how bad?")}
	req := &backend.ScoreRequest{Turns: turns, Options: []string{"lower", "is the", "x"}, Closed: true, Method: backend.Exact}
	whole := mustScore(t, newFake(t, nil), req)
	e := newFake(t, nil)
	e.maxWays = 2 // before any request
	some := mustScore(t, e, req)
	if len(some.Emulated) == 0 || !strings.Contains(some.Emulated[0], "2 tokens") {
		t.Fatalf("says %q", some.Emulated)
	}
	for i, o := range some.Options {
		if o.Sum > whole.Options[i].Sum || o.Sum < sum(o.Logprobs)-1e-9 {
			t.Errorf("%q: %v of %v, as written %v", o.Part.Text, o.Sum, whole.Options[i].Sum, sum(o.Logprobs))
		}
	}
	if got := some.Usage.ComputedTokens; got >= whole.Usage.ComputedTokens {
		t.Errorf("%d tokens computed, with more to spend %d", got, whole.Usage.ComputedTokens)
	}
}

// TestUnconditionalEqualsByHand: the options once more, with nothing before them.
func TestUnconditionalEqualsByHand(t *testing.T) {
	common := longText(40)
	options := []string{"high", "low", "lower than", "lower", common + "x and", common + "y", "q"}
	turns := []backend.Turn{user("how bad?")}
	req := &backend.ScoreRequest{Turns: turns, Options: options, Method: backend.UnconditionalLikelihoodNormalized}
	e := newFake(t, nil)
	r := mustScore(t, e, req)
	without := 0
	for i, o := range r.Options {
		want := make([]float64, len(o.Part.Tokens))
		for j := 1; j < len(want); j++ {
			want[j] = scoreByHand(e.fake(), o.Part.Tokens[:j], o.Part.Tokens[j:j+1])[0]
		}
		if !slices.EqualFunc(o.Unconditional, want, near) {
			t.Errorf("%q: %v, by hand %v", options[i], o.Unconditional, want)
		}
		alone := mustScore(t, newFake(t, nil), &backend.ScoreRequest{Turns: turns, Options: options[i : i+1], Method: req.Method})
		if !reflect.DeepEqual(alone.Options[0], o) {
			t.Errorf("%q alone %+v, among others %+v", options[i], alone.Options[0], o)
		}
		without += alone.Usage.ComputedTokens
	}
	if got := r.Usage.Without.ComputedTokens; got != without {
		t.Errorf("without sharing %d tokens, alone %d", got, without)
	}
	if warm := mustScore(t, e, req); !reflect.DeepEqual(warm.Options, r.Options) {
		t.Errorf("warm %+v, cold %+v", warm.Options, r.Options)
	}
}

// TestHundredsOfOptions: by every method they share prompt and passes, and each
// has the score that it has over a warm cache and among few.
func TestHundredsOfOptions(t *testing.T) {
	var options []string
	for i := range 300 {
		options = append(options, fmt.Sprintf("ab%d", i)) // ab1 begins ab10 to ab19 and ab100 ...
	}
	turns := []backend.Turn{user(longText(300))}
	for _, m := range []backend.ScoreMethod{backend.Likelihood, backend.TokenLengthNormalized, backend.GreedyTokenSelection, backend.UnconditionalLikelihoodNormalized, backend.Exact} {
		e := newFake(t, func(c *Config, _ *fakeModel) { c.Pages = 1024 })
		req := &backend.ScoreRequest{Turns: turns, Options: options, Closed: m.Ends(), Method: m}
		cold := mustScore(t, e, req)
		warm := mustScore(t, e, req)
		if !reflect.DeepEqual(cold.Options, warm.Options) {
			t.Errorf("%q: warm is not cold", m)
		}
		few := mustScore(t, newFake(t, nil), &backend.ScoreRequest{Turns: turns, Options: options[10:13], Closed: m.Ends(), Method: m})
		for i, o := range few.Options {
			if !reflect.DeepEqual(o, cold.Options[10+i]) {
				t.Errorf("%q: %+v among few, %+v among many", m, o, cold.Options[10+i])
			}
		}
		if n := passes(cold.Usage); n > 60 {
			t.Errorf("%q: %d passes", m, n)
		}
		rank := m.Rank(cold.Options)
		total := 0.0
		for _, p := range rank.P {
			total += p
		}
		if math.Abs(total-1) > 1e-9 {
			t.Errorf("%q: shares add up to %v", m, total)
		}
	}
}

// TestByText finds what a text can begin with, as a look at each token does.
func TestByText(t *testing.T) {
	tok := fakeTokenizer{}
	isEnd := func(id backend.Token) bool { return id == imEnd }
	x := newByText(tok, isEnd)
	for _, text := range []string{"", "x", "the thing", " lower", "is is", "user\nass", "\xff"} {
		var got, want []backend.Token
		x.begin([]byte(text), func(id backend.Token, size int) {
			if size != len(tok.Bytes(id)) {
				t.Errorf("token %d is %d bytes long", id, size)
			}
			got = append(got, id)
		})
		for id := range backend.Token(tok.Size()) {
			if b := tok.Bytes(id); len(b) > 0 && !tok.IsControl(id) && strings.HasPrefix(text, string(b)) {
				want = append(want, id)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestLongOptionsTakeLittleMemory: what is remembered of an option grows with its
// length, not with the square of it.
func TestLongOptionsTakeLittleMemory(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) { c.Pages, m.context = 600, 8192 })
	option := strings.Repeat("the high inge", 300) // 3,900 bytes, three or more ways to go on at each token
	tokens := encodeText(fakeTokenizer{}, option)
	w, err := newWays(e, 0, &backend.ScoreRequest{Options: []string{option}}, []scored{{text: option, tokens: tokens}})
	if err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, fakeVocab)
	held := func() uint64 {
		var s goruntime.MemStats
		goruntime.ReadMemStats(&s)
		return s.TotalAlloc
	}
	before := held()
	for i := range tokens {
		w.read(tokens[:i], logits, 0)
	}
	if got := held() - before; got > 4<<20 {
		t.Errorf("%d bytes for the ways beside %d tokens", got, len(tokens))
	}
	last := w.root
	for range tokens[1:] {
		i := slices.IndexFunc(last.next, func(s step) bool { return s.token == tokens[last.tokens] })
		last = last.next[i].way
	}
	if got := last.path(); !slices.Equal(got, tokens[:len(tokens)-1]) {
		t.Errorf("the way to the last token has %d tokens, want %d", len(got), len(tokens)-1)
	}
}
