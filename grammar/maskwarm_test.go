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
	hashOf := func(p *place) uint64 { return hashConfigs(p.configs, p.canEnd) }
	for i := range 5000 {
		configs := []config{{node: nodeID(i % 97), act: actID(i)}, {node: 3, act: actID(i / 2)}}
		p := &place{configs: configs, canEnd: i%3 == 0}
		if found := table.find(hashOf(p), configs, p.canEnd); found != nil {
			t.Fatalf("place %d is there before it was put in", i)
		}
		table.insert(hashOf(p), p)
		all = append(all, p)
		if n := int(table.table.half + table.table.split); n > 2*table.len()+blockChains {
			t.Fatalf("%d chains for %d places", n, table.len())
		}
	}
	longest := 0
	for _, block := range table.table.blocks {
		for _, e := range block {
			n := 0
			for ; e != nil; e = e.next {
				n++
			}
			longest = max(longest, n)
		}
	}
	if longest > 20 {
		t.Errorf("a chain of %d places", longest)
	}
	for i, p := range all {
		if table.find(hashOf(p), p.configs, p.canEnd) != p {
			t.Fatalf("place %d is lost", i)
		}
		if table.find(hashOf(p), p.configs, !p.canEnd) != nil {
			t.Fatalf("place %d is found with another end", i)
		}
	}
}

func TestSteadyMap(t *testing.T) {
	var base steadyMap[nodeKey, int]
	base.put(nodeKey{a: -1}, -1)
	m := steadyMap[nodeKey, int]{base: &base}
	key := func(i int) nodeKey { return nodeKey{kind: nodeKind(i % 3), a: nodeID(i), b: nodeID(i / 7)} }
	for i := range 3000 {
		if v, ok := m.get(key(i)); ok {
			t.Fatalf("%d is there before it was put in: %d", i, v)
		}
		m.put(key(i), i)
	}
	for i := range 3000 {
		if i%2 == 1 {
			m.drop(key(i))
			m.drop(key(i))
		}
	}
	if m.len() != 1500 {
		t.Errorf("%d keys are left of 1500", m.len())
	}
	for i := range 3000 {
		if v, ok := m.get(key(i)); ok != (i%2 == 0) || ok && v != i {
			t.Fatalf("%d: %d, %v", i, v, ok)
		}
	}
	if v, ok := m.get(nodeKey{a: -1}); !ok || v != -1 {
		t.Errorf("what is below is lost: %d, %v", v, ok)
	}
}
