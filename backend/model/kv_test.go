package model

import (
	"math"
	"strings"
	"testing"
)

func TestKVTypes(t *testing.T) {
	f := tinySpecs()["llama"].open(t, 1)
	for _, o := range []Options{{KV: "q4"}, {KV: Int8, Float32Attention: true}} {
		if m, err := Load(f, o); err == nil {
			m.Close()
			t.Errorf("%+v: no error", o)
		} else if !strings.Contains(err.Error(), "keys and values as") {
			t.Error(err)
		}
	}
	bytes := map[KVType]int{}
	for _, kind := range []KVType{"", BFloat16, Int8} {
		s := tinySpecs()["gemma3"]
		s.kv = kind
		m := s.load(t, 1, 1)
		kv, err := m.NewKV(3)
		if err != nil {
			t.Fatal(err)
		}
		defer kv.Close()
		bytes[m.KVType()] = kv.PageBytes()
	}
	if wide, narrow := bytes[BFloat16], bytes[Int8]; len(bytes) != 2 || narrow <= wide/2 || narrow > wide*6/10 {
		t.Errorf("a page takes %v bytes", bytes)
	}
}

// TestWholePages: what a budget has room for is never less than what is reserved.
func TestWholePages(t *testing.T) {
	for n := 1; n < 500; n++ {
		whole := WholePages(n)
		if whole < 1 || whole > n || whole*5 < n*4 || ReservedPages(whole) != whole || WholePages(whole) != whole {
			t.Errorf("%d pages: %d whole, %d reserved for these", n, whole, ReservedPages(whole))
		}
		if r := ReservedPages(n); r < n || r-n >= PageGroup {
			t.Errorf("%d pages: %d reserved", n, r)
		}
	}
}

// TestPoolsThatAreTooLarge: what counts is what is reserved, not what was asked for.
func TestPoolsThatAreTooLarge(t *testing.T) {
	m := tinySpecs()["llama"].load(t, 1, 1)
	most := math.MaxInt32 / (2 * m.cfg.Layers * m.cfg.KVHeads)
	if ReservedPages(most) == most {
		t.Fatalf("%d pages are whole groups", most)
	}
	if m.tooMany(most) || m.tooMany(WholePages(most)) || !m.tooMany(ReservedPages(most)) {
		t.Errorf("%d pages are too many: %v, %d reserved: %v", most, m.tooMany(most), ReservedPages(most), m.tooMany(ReservedPages(most)))
	}
	for _, pages := range []int{most, most + 1, 1 << 46, math.MaxInt - PageGroup} {
		if kv, err := m.NewKV(pages); err == nil {
			kv.Close()
			t.Errorf("a pool of %d pages", pages)
		} else if !strings.Contains(err.Error(), "too large") {
			t.Errorf("%d pages: %v", pages, err)
		}
	}
}

// TestPageGroups: where a page lies is no other page's, whatever the pool's size, and
// a pool of whole groups keeps a short sequence together.
func TestPageGroups(t *testing.T) {
	for _, kind := range []KVType{BFloat16, Int8} {
		s := tinySpecs()["llama"]
		s.kv = kind
		m := s.load(t, 1, 1)
		for _, c := range []struct{ pages, group int }{{1, 1}, {3, 1}, {6, 1}, {31, 4}, {40, 8}, {96, 16}, {129, 32}, {160, 32}} {
			kv, err := m.NewKV(c.pages)
			if err != nil {
				t.Fatal(err)
			}
			if kv.group != c.group {
				t.Errorf("%s: groups of %d pages in a pool of %d, want %d", kind, kv.group, c.pages, c.group)
			}
			room := ReservedPages(c.pages)
			if got := kv.mem.Bytes(); len(got) != room*kv.PageBytes() {
				t.Errorf("%s: a pool of %d takes %d bytes, want those of %d pages", kind, c.pages, len(got), room)
			}
			taken := map[int32]bool{}
			for p := range int32(c.pages) {
				for part := range kv.parts {
					run := int32(kv.run(part, kv.slot(p)))
					if run < 0 || int(run) >= room*kv.parts || taken[run] {
						t.Fatalf("%s: pool of %d: part %d of page %d at run %d is outside or taken", kind, c.pages, part, p, run)
					}
					taken[run] = true
				}
				if most := (p/int32(kv.group) + 1) * int32(kv.group*kv.parts); kv.slot(p) >= most {
					t.Errorf("%s: page %d starts at run %d", kind, p, kv.slot(p))
				}
			}
			kv.Close()
		}
	}
}
