package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/compute"
)

// TestLongTexts: texts of several chains of spans, whose common prefix ends within one,
// have the same bits alone and in any schedule, with windows of no, one and several chains,
// and are those that the definition gives.
func TestLongTexts(t *testing.T) {
	specs := tinySpecs()
	llama, gemma := specs["llama"], specs["gemma3"]
	llama.context, gemma.context = 4096, 4096
	gemma.layers, gemma.window = 2, 700
	wide := gemma
	wide.window = 1300
	list := []tinySpec{llama, llama.quantised().int8(), gemma, wide}
	if testing.Short() {
		list = list[1:3]
	}
	threads := []int{1, 2, 3}
	if underRace {
		list, threads = list[len(list)-1:], threads[1:2]
	}
	for _, s := range list {
		t.Run(fmt.Sprintf("%s/%d/%s", s.arch, s.window, s.kv), func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(s.window)))
			const shared = 5*compute.Span + 100
			prefix := randTokens(r, shared, s.vocab)
			var seqs [][]int32
			for _, more := range []int{3, 500, 1200} {
				seqs = append(seqs, append(prefix[:shared:shared], randTokens(r, more, s.vocab)...))
			}
			alone := s.load(t, 5, 1)
			var want [][][]float32
			for _, tokens := range seqs {
				want = append(want, allLogits(t, alone, tokens))
			}
			if s.kv != Int8 && !underRace {
				last := len(seqs) - 1
				if rel := distance(want[last], reference(s.open(t, 5), s, seqs[last])); !(rel < 0.03) {
					t.Errorf("logits differ by %.3g relative RMS from the definition's", rel)
				}
			}
			for _, threads := range threads {
				got := schedule(t, s.load(t, 5, threads), r, seqs, shared)
				for i := range seqs {
					for pos := range seqs[i] {
						for j, v := range got[i][pos] { // none where another one computed the prefix
							if math.Float32bits(v) != math.Float32bits(want[i][pos][j]) {
								t.Fatalf("%d threads, sequence %d, position %d: logit %d is %v, alone %v", threads, i, pos, j, v, want[i][pos][j])
							}
						}
					}
				}
			}
		})
	}
}

// TestCover: each span of a token is in one task; a task merges whole chains if none of
// its tokens began before it; and a partial result is taken for merged into another if the
// same task has the first span of its chain, or merges whole chains and has all of this one
// and the token's first span.
func TestCover(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		p := plan{tokens: []int{1, 3, 32}[r.IntN(3)]}
		if r.IntN(3) > 0 {
			p.window = 1 + r.IntN(3000)
		}
		// Sequences that part from the first one, each later than the one before, so that
		// they are in the order of their pages.
		var segs []segment
		var page, tokens int32
		for range 1 + r.IntN(5) {
			var pages []int32
			if n := len(segs); n > 0 {
				last := segs[n-1].pages
				pages = append(pages, last[:r.IntN(len(last)+1)]...)
			}
			for more := 1 + r.IntN(100); more > 0; more-- {
				pages = append(pages, page)
				page++
			}
			n := 1 + r.IntN(min(40, len(pages)*PageSize))
			segs = append(segs, segment{pages: pages, pos: len(pages)*PageSize - n, first: int(tokens), n: n})
			tokens += int32(n)
		}
		p.build(segs)
		p.split(1 + r.IntN(40))
		p.cover()
		in := make([]*attnTask, p.total)
		for i := range p.tasks {
			a := &p.tasks[i]
			whole := true
			for j := a.first; j < a.first+a.n; j++ {
				whole = whole && p.from[j] >= a.s0
				for s := max(p.from[j], a.s0); s < min(p.from[j]+p.spans[j], a.s1); s++ {
					if slot := p.slots[j] + s - p.from[j]; in[slot] != nil {
						t.Fatalf("span %d of token %d is in two tasks", s, j)
					} else {
						in[slot] = a
					}
				}
			}
			if a.fold != whole {
				t.Fatalf("%+v merges chains: %v, want %v", *a, a.fold, whole)
			}
		}
		for j := range p.from {
			from, end := p.from[j], p.from[j]+p.spans[j]
			task := func(s int) *attnTask { return in[p.slots[j]+s-from] }
			for s := from; s < end; s++ {
				if task(s) == nil {
					t.Fatalf("span %d of token %d is in no task", s, j)
				}
				start := max(s/compute.Chain*compute.Chain, from)
				want := s > start && task(start) == task(s)
				if s == start && s > from && task(from) == task(s) {
					stop := min(start+compute.Chain, end)
					want = task(s).fold && task(stop-1) == task(s)
				}
				if got := p.covered[p.slots[j]+s-from]; got != want {
					t.Fatalf("span %d of %d to %d is taken for merged: %v, want %v, by %+v", s, from, end, got, want, *task(s))
				}
			}
		}
	}
}
