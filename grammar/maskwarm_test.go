package grammar

import (
	"fmt"
	"strings"
	"testing"
)

// What is computed ahead is bounded, and it does not change a mask.
func TestWarmIsBounded(t *testing.T) {
	v, err := NewVocab(learnBPE(bpeText, 300).vocab().tokens, VocabOptions{}) // no plans
	if err != nil {
		t.Fatal(err)
	}
	var props []string
	for i := range 60 {
		props = append(props, fmt.Sprintf(`"p%d":{"type":"string","pattern":"^[a-z%d ]{3,90}x{2,%d}$"}`, i, i%10, i+3))
	}
	spec := Spec{JSONSchema: []byte(`{"type":"object","properties":{` + strings.Join(props, ",") + `},"additionalProperties":false}`)}
	g := mustCompile(t, spec, v)
	if n := g.m.visits; n == 0 || n > warmVisits+len(v.nodeByte) {
		t.Errorf("%d trie nodes were visited ahead, wanted some and at most about %d", n, warmVisits)
	}
	if n := g.m.masks.bytes; n > 2*warmBytes {
		t.Errorf("what was computed ahead holds %d bytes, wanted at most about %d", n, warmBytes)
	}
	// The same places without anything computed ahead.
	cold := mustCompile(t, spec, v)
	clear(cold.m.inners)
	cold.m.begin.mask.Store(nil)
	a, b := make([]uint64, v.MaskWords()), make([]uint64, v.MaskWords())
	s, c := g.Start(), cold.Start()
	for _, x := range []byte(`{"p3":"abc `) {
		s.Mask(a)
		c.Mask(b)
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("before %q: masks differ in word %d", x, i)
			}
		}
		if s, err = s.AcceptBytes([]byte{x}); err != nil {
			t.Fatal(err)
		}
		if c, err = c.AcceptBytes([]byte{x}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlaceTable(t *testing.T) {
	var table placeTable
	var all []*place
	for i := range 5000 {
		configs := []config{{node: nodeID(i % 97), act: actID(i)}, {node: 3, act: actID(i / 2)}}
		canEnd := i%3 == 0
		hash := hashConfigs(configs, canEnd)
		if p := table.find(hash, configs, canEnd); p != nil {
			t.Fatalf("place %d is there before it was put in", i)
		}
		p := &place{configs: configs, canEnd: canEnd, hash: hash}
		table.insert(p)
		all = append(all, p)
		if len(table.chains) > 2*table.size+16 {
			t.Fatalf("%d chains for %d places", len(table.chains), table.size)
		}
	}
	longest := 0
	for _, p := range table.chains {
		n := 0
		for ; p != nil; p = p.chain {
			n++
		}
		longest = max(longest, n)
	}
	if longest > 20 {
		t.Errorf("a chain of %d places", longest)
	}
	for i, p := range all {
		if table.find(p.hash, p.configs, p.canEnd) != p {
			t.Fatalf("place %d is lost", i)
		}
		if table.find(p.hash, p.configs, !p.canEnd) != nil {
			t.Fatalf("place %d is found with another end", i)
		}
	}
}
