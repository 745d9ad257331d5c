package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// schedule feeds sequences to m in random steps: rows of random length, in
// random order, on shuffled pages, sequences that share a prefix on the pages
// of the first one that computed it. It returns the logits of every position.
func schedule(t *testing.T, m *Model, r *rand.Rand, seqs [][]int32, shared int) [][][]float32 {
	t.Helper()
	longest := 0
	for _, s := range seqs {
		longest = max(longest, len(s))
	}
	per := longest/PageSize + 1
	size := per*len(seqs) + 3
	if r.IntN(2) == 0 {
		size = (size + 2*PageGroup) / PageGroup * PageGroup // several groups of pages
	}
	kv, err := m.NewKV(size)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	free := r.Perm(kv.Pages())
	take := func() int32 {
		p := free[len(free)-1]
		free = free[:len(free)-1]
		return int32(p)
	}
	out := make([][][]float32, len(seqs))
	pages := make([][]int32, len(seqs))
	pos := make([]int, len(seqs))
	for i, s := range seqs {
		out[i] = make([][]float32, len(s))
		for range per {
			pages[i] = append(pages[i], take())
		}
	}
	whole := shared / PageSize // pages that followers take over
	for {
		var b Batch
		var logits [][]float32
		var commit []func()
		for _, i := range r.Perm(len(seqs)) {
			left := len(seqs[i]) - pos[i]
			if left == 0 || r.IntN(4) == 0 {
				continue
			}
			if i > 0 && pos[i] < shared {
				if pos[0] < shared {
					continue // the first sequence fills the shared pages
				}
				// Share whole pages, copy the rest of the prefix.
				copy(pages[i][:whole], pages[0])
				kv.CopyPage(pages[i][whole], pages[0][whole], shared%PageSize)
				for p := range shared {
					out[i][p] = out[0][p]
				}
				pos[i] = shared
				left = len(seqs[i]) - shared
				if left == 0 {
					continue
				}
			}
			n := 1 + r.IntN(left)
			if r.IntN(2) == 0 {
				n = 1 + r.IntN(min(left, 5))
			}
			row := Row{Tokens: seqs[i][pos[i]:][:n], Start: pos[i], Pages: pages[i]}
			for j := range n {
				if r.IntN(3) > 0 || out[i][pos[i]+j] != nil {
					row.Outputs = append(row.Outputs, j)
					l := make([]float32, m.cfg.Vocab)
					logits = append(logits, l)
					out[i][pos[i]+j] = l
				}
			}
			b.Rows = append(b.Rows, row)
			commit = append(commit, func() { pos[i] += n })
		}
		if err := m.Forward(kv, &b, logits); err != nil {
			t.Fatal(err)
		}
		done := true
		for _, f := range commit {
			f()
		}
		for i := range seqs {
			done = done && pos[i] == len(seqs[i])
		}
		if done {
			return out
		}
	}
}

// TestSameBitsWhateverTheSchedule computes sequences alone in one step, and in
// random batches, chunks, pages and thread counts.
func TestSameBitsWhateverTheSchedule(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for name, spec := range tinySpecs() {
		for _, s := range []tinySpec{spec, spec.quantised(), spec.quantised().int8(), spec.quantised().plain()} {
			t.Run(fmt.Sprintf("%s/%v%s%s", name, s.types[0], s.kv, s.arithmetic), func(t *testing.T) {
				r := rand.New(rand.NewPCG(11, uint64(len(name))))
				least, rest := 290, 300
				if s.arithmetic == GGML {
					least, rest = 40, 60 // it is slow, and has no spans
				}
				shared := least + r.IntN(40) // more than a span, not a whole page
				prefix := randTokens(r, shared, s.vocab)
				var seqs [][]int32
				for range 5 {
					seqs = append(seqs, append(prefix[:shared:shared], randTokens(r, 1+r.IntN(rest), s.vocab)...))
				}
				alone := s.load(t, 5, 1)
				var want [][][]float32
				for _, tokens := range seqs {
					want = append(want, allLogits(t, alone, tokens))
				}
				for round := range rounds {
					m := s.load(t, 5, 1+round%3)
					got := schedule(t, m, r, seqs, shared)
					for i := range seqs {
						for p := range seqs[i] {
							if got[i][p] == nil {
								continue
							}
							for j, v := range want[i][p] {
								if math.Float32bits(v) != math.Float32bits(got[i][p][j]) {
									t.Fatalf("round %d sequence %d position %d: logit %d is %v, alone %v", round, i, p, j, got[i][p][j], v)
								}
							}
						}
					}
				}
			})
		}
	}
}

func TestNoAllocationPerToken(t *testing.T) {
	s := tinySpecs()["gemma3"].quantised()
	for _, s := range []tinySpec{s, s.int8(), s.plain()} {
		t.Run("kv "+string(s.kv)+string(s.arithmetic), func(t *testing.T) { noAllocation(t, s) })
	}
}

func noAllocation(t *testing.T, s tinySpec) {
	m := s.load(t, 1, 1)
	kv, err := m.NewKV(8)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	logits := [][]float32{make([]float32, s.vocab), make([]float32, s.vocab)}
	b := &Batch{Rows: []Row{
		{Tokens: []int32{3}, Start: 20, Pages: []int32{0, 1}, Outputs: []int{0}},
		{Tokens: []int32{4}, Start: 20, Pages: []int32{0, 2}, Outputs: []int{0}},
	}}
	prompt := &Batch{Rows: []Row{{Tokens: make([]int32, 20), Start: 0, Pages: []int32{3, 4}}}}
	step := func() {
		if err := m.Forward(kv, b, logits); err != nil {
			t.Fatal(err)
		}
		if err := m.Forward(kv, prompt, nil); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("two steps allocate %v times", n)
	}
}
