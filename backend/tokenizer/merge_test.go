package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

func TestHeapAndScanMergeAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, p := range []struct {
		name string
		tok  *Tokenizer
	}{{"bpe", smallBPE(t, "gpt-2")}, {"spm", smallSPM(t)}} {
		for range 500 {
			var b strings.Builder
			for range 1 + rng.IntN(60) {
				b.WriteString([]string{"a", "b", "h", "e", "l", "lo", "ll", " "}[rng.IntN(8)])
			}
			word := b.String()
			var scan, heap merger
			for _, m := range []*merger{&scan, &heap} {
				for i := range len(word) {
					id := int32(-1)
					if bpe, ok := p.tok.model.(*bpe); ok {
						id = bpe.bytes[word[i]]
					}
					m.symbols = append(m.symbols, symbol{int32(i), int32(i + 1), id})
				}
			}
			var with pairer
			switch m := p.tok.model.(type) {
			case *bpe:
				with = m
			case *spm:
				with = spmPairer{m, []byte(word)}
			}
			scan.scan(with)
			heap.heap(with)
			if !slices.Equal(scan.symbols, heap.symbols) {
				t.Fatalf("%s: %q: scan %v, heap %v", p.name, word, scan.symbols, heap.symbols)
			}
		}
	}
}

// TestSpecialsAreFoundAsByLlamaCpp compares with the plain reading of the rule: for
// each token, longest first, cut out all its occurrences from what is left.
func TestSpecialsAreFoundAsByLlamaCpp(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for round := range 300 {
		tr := newTrie()
		var tokens []string
		for range 1 + rng.IntN(8) {
			var b strings.Builder
			for range 1 + rng.IntN(5) {
				b.WriteByte("ab<"[rng.IntN(3)])
			}
			if !slices.Contains(tokens, b.String()) {
				tr.add(b.String(), Token(len(tokens)), false)
				tokens = append(tokens, b.String())
			}
		}
		tr.link()
		for range 20 {
			var b strings.Builder
			for range rng.IntN(30) {
				b.WriteByte("ab<c"[rng.IntN(4)])
			}
			text := b.String()
			got := tr.find(text, []span{{len(text), true}})
			if want := plainFind(text, tokens); !slices.Equal(got, want) {
				t.Fatalf("round %d: %q in %q: got %v, want %v", round, tokens, text, got, want)
			}
		}
	}
}

func plainFind(text string, tokens []string) (out []match) {
	taken := make([]bool, len(text))
	// Among tokens of one length the leftmost match wins, so a length is one pass.
	for length := 5; length > 0; length-- {
		for at := 0; at+length <= len(text); at++ {
			id := slices.Index(tokens, text[at:at+length])
			if id < 0 || slices.Contains(taken[at:at+length], true) {
				continue
			}
			for i := range length {
				taken[at+i] = true
			}
			out = append(out, match{at, at + length, Token(id)})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].start < out[j].start })
	return out
}

// TestLongWordsTakeLinearlyManySteps counts how often neighbours are looked up.
func TestLongWordsTakeLinearlyManySteps(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	b := tok.model.(*bpe)
	count := func(n int) int {
		c := &counter{pairer: b}
		m := &merger{}
		for i := range n {
			m.symbols = append(m.symbols, symbol{int32(i), int32(i + 1), b.bytes["ab"[i%2]]})
		}
		m.merge(c)
		return c.n
	}
	short, long := count(1000), count(100_000)
	if long > 110*short {
		t.Errorf("100 times the length takes %d lookups, was %d", long, short)
	}
}

type counter struct {
	pairer
	n int
}

func (c *counter) pair(l, r symbol) (uint32, int32) {
	c.n++
	return c.pairer.pair(l, r)
}

func TestMergeTable(t *testing.T) {
	const n = 5000
	table := newMergeTable(n)
	for i := range int32(n) {
		s := table.slot(i%70, i)
		if s.left >= 0 {
			t.Fatalf("slot of %d is taken", i)
		}
		*s = mergeSlot{i % 70, i, uint32(i), i + 1}
	}
	for i := range int32(n) {
		if s := table.slot(i%70, i); s.rank != uint32(i) || s.id != i+1 {
			t.Fatalf("%d: got %+v", i, s)
		}
		if s := table.slot(i%70+1, i); s.left >= 0 {
			t.Fatalf("found a pair that is not there: %+v", s)
		}
	}
}

func TestWordsAreCachedUnderAnyLoad(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	done := make(chan []string)
	for g := range 4 {
		go func() {
			var bad []string
			for i := range 3000 {
				text := fmt.Sprintf("w%d ab%d", i*7+g, i)
				if got := tok.Decode(tok.Encode(text, true)); got != text {
					bad = append(bad, got)
				}
			}
			done <- bad
		}()
	}
	for range 4 {
		if bad := <-done; len(bad) > 0 {
			t.Errorf("wrong: %q", bad[:min(3, len(bad))])
		}
	}
}
