package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/cache"
)

// TestLongContext fills a cache of 32k tokens with one long prompt and others, and
// asks again for what follows the long one: in other pieces and from the tree it
// is the same, and the memory stays within the plan.
func TestLongContext(t *testing.T) {
	for _, kv := range []model.KVType{model.BFloat16, model.Int8} {
		t.Run(string(kv), func(t *testing.T) {
			own := func(threads int) Model {
				return tinyModelOf(t, 1, 32768, model.Options{Threads: threads, KV: kv})
			}
			ids := func(n, seed int) []backend.Token {
				r := rand.New(rand.NewPCG(uint64(seed), 3))
				list := make([]backend.Token, n)
				for i := range list {
					list[i] = backend.Token('a' + r.IntN(26))
				}
				return list
			}
			longContext(t, own, nil, ids, 10_000, 32_000)
		})
	}
}

// TestRealModelLongContext is TestLongContext with real models, one of them with
// sliding windows, and prompts of 3,000 tokens.
func TestRealModelLongContext(t *testing.T) {
	if testing.Short() {
		t.Skip("computes 9,000 tokens")
	}
	for name, kv := range map[string]model.KVType{smol: model.Int8, "gemma-3-270m-q4_k_m.gguf": model.BFloat16} {
		t.Run(name, func(t *testing.T) {
			first := openReal(t, name, Config{Pages: 4}, model.Options{})
			ids := func(n, seed int) []backend.Token {
				text := strings.Repeat(fmt.Sprintf("Node %d wrote its log and went on. Then it restarted. ", seed), n/8)
				list := encodeText(first.tok, text)
				if len(list) < n {
					t.Fatalf("%d tokens, want %d", len(list), n)
				}
				return list[:n]
			}
			open := func(cfg Config, threads int) *Engine {
				return openReal(t, name, cfg, model.Options{Threads: threads, KV: kv})
			}
			longContext(t, nil, open, ids, 3_000, 6_000)
		})
	}
}

// longContext computes a prompt of the given length in two ways and restores it
// after the cache has been filled up to the given number of tokens.
func longContext(t *testing.T, own func(threads int) Model, open func(Config, int) *Engine, ids func(n, seed int) []backend.Token, length, resident int) {
	start := func(piece, threads int) *Engine {
		cfg := Config{MaxBatchTokens: piece, Pages: resident/cache.PageTokens + 64, MaxSeqs: 4, Check: true}
		if open != nil {
			return open(cfg, threads)
		}
		cfg.Model, cfg.Tokenizer, cfg.Fingerprint = own(threads), fakeTokenizer{}, "long"
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	ask := func(e *Engine, prompt []backend.Token, n int) *backend.Result {
		t.Helper()
		r, err := e.Generate(context.Background(), &backend.Request{
			Turns:     []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{{Text: "-", Tokens: prompt, Model: e.Info().Fingerprint}}}},
			MaxTokens: n, IgnoreEOS: true, Logprobs: true,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	same := func(what string, got, want *backend.Result) {
		t.Helper()
		if !reflect.DeepEqual(got.Part.Tokens, want.Part.Tokens) || !reflect.DeepEqual(got.Logprobs, want.Logprobs) {
			t.Errorf("%s: %v %v, want %v %v", what, got.Part.Tokens, got.Logprobs, want.Part.Tokens, want.Logprobs)
		}
	}
	prompt := ids(length, 0)
	whole := start(512, 2)
	before := goHeap()
	cold := ask(whole, prompt, 24)
	for seed, n := 1, length; n < resident; seed++ {
		part := min(resident-n, 2500)
		ask(whole, ids(part, seed), 1)
		n += part
	}
	if st := whole.Stats(); st.Evictable*cache.PageTokens < resident-st.CachedNodes*cache.PageTokens {
		t.Errorf("%d tokens resident, want about %d", st.Evictable*cache.PageTokens, resident)
	}
	warm := ask(whole, prompt, 24)
	if n := warm.Usage.ComputedTokens; n > 24+1 {
		t.Errorf("restored from the tree, but %d tokens were computed", n)
	}
	same("restored", warm, cold)
	// Weights, keys and values lie outside of the heap, in pieces of the planned
	// size; what grows with the prompts is in it.
	if grown := goHeap() - before; grown > 48<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	same("in pieces of 100", ask(start(100, 1), prompt, 24), cold)
}

// goHeap is the size of what is in use of the Go heap.
func goHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
