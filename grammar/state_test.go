package grammar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"testing"
)

// testSpecs are small grammars of every kind.
var testSpecs = map[string]Spec{
	"triage": {JSONSchema: []byte(`{"type":"object","properties":{"pod":{"type":"string"},"reason":{"enum":["OOMKilled","ImagePullBackOff","CrashLoopBackOff","NodeNotReady"]},
		"oom_killed":{"type":"boolean"},"recommended_action":{"type":"string","maxLength":20}},"required":["pod","reason","oom_killed","recommended_action"],"additionalProperties":false}`)},
	"optional":   {JSONSchema: []byte(`{"type":"object","properties":{"orderId":{"type":"integer"},"orderName":{"type":"string"},"orders":{"type":"array","items":{"type":"number","minimum":-2,"maximum":3.5},"maxItems":3}},"required":["orderName"],"additionalProperties":false}`)},
	"open":       {JSONSchema: []byte(`{"type":"object","properties":{"unit":{"const":"cm"},"len":{"type":"integer"}},"required":["len"],"additionalProperties":{"type":"string"}}`)},
	"any":        {JSONSchema: []byte(`{}`)},
	"object":     {JSONObject: true},
	"tree":       {JSONSchema: []byte(`{"type":"object","properties":{"label":{"type":"string","pattern":"^[a-c]+$"},"kids":{"type":"array","items":{"$ref":"#"}}},"required":["label","kids"],"additionalProperties":false}`)},
	"union":      {JSONSchema: []byte(`{"anyOf":[{"type":"object","properties":{"name":{"const":"tool"},"arguments":{"type":"object","properties":{"city":{"type":"string","minLength":2}},"required":["city"],"additionalProperties":false}},"required":["name","arguments"],"additionalProperties":false},{"type":"object","properties":{"name":{"const":"tootle"},"n":{"type":"integer","minimum":0,"maximum":120}},"required":["name","n"],"additionalProperties":false},{"type":"null"}]}`)},
	"anyorder":   {AnyOrder: true, JSONSchema: []byte(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["a","b"],"additionalProperties":false}`)},
	"choices":    {Choices: []string{"the quick brown fox", "the quick brown dog", "the", "no"}},
	"regex":      {Regex: `[a-z]+ [a-z]+( é)?`},
	"counted":    {Regex: `(ab|c){3,500}d`},
	"spaced":     {Whitespace: Whitespace{Max: 2}, JSONSchema: []byte(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"boolean"}},"b":{"type":"string"}},"required":["b"],"additionalProperties":false}`)},
	"indented":   {Whitespace: Whitespace{Indent: 2}, JSONSchema: []byte(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"boolean"}},"b":{"type":"string"}},"required":["b"],"additionalProperties":false}`)},
	"contains":   {JSONSchema: []byte(`{"type":"array","contains":{"const":1},"minContains":2,"maxContains":3,"items":{"enum":[1,2,12]},"maxItems":5}`)},
	"unique":     {JSONSchema: []byte(`{"type":"array","items":{"enum":["x","y","z"]},"uniqueItems":true,"minItems":2}`)},
	"arithmetic": {EBNF: arithmetic},
	"tags":       toolTags,
	"sequence":   {Sequence: []Spec{{Choices: []string{"the quick "}}, {Choices: []string{"brown", "lazy"}}, {Regex: "[0-9]?"}, {JSONSchema: []byte(`{"type":"array","items":{"type":"boolean"}}`)}}},
	"counts":     {JSONSchema: []byte(`{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"boolean"},"c":{"type":"boolean"}},"additionalProperties":false,"minProperties":2,"maxProperties":2}`)},
}

func mustCompile(t testing.TB, spec Spec, v *Vocab) *Grammar {
	t.Helper()
	g, err := Compile(context.Background(), spec, v)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (s State) maskBits() []uint64 {
	bits := make([]uint64, s.g.vocab.MaskWords())
	for i := range bits {
		bits[i] = ^uint64(0) // Mask must clear
	}
	s.Mask(bits)
	return bits
}

func has(bits []uint64, t int32) bool { return bits[t>>6]&(1<<(t&63)) != 0 }

// puppet picks, among the legal tokens, the one it likes best; what it likes
// depends on the seed and the text so far.
func puppet(seed uint64, text []byte, bits []uint64, n int) int32 {
	best, like := int32(-1), uint64(0)
	for t := range int32(n) {
		if !has(bits, t) {
			continue
		}
		h := fnv.New64a()
		h.Write([]byte{byte(seed), byte(seed >> 8), byte(t), byte(t >> 8), byte(len(text))})
		h.Write(text[max(0, len(text)-8):])
		x := h.Sum64()
		x ^= x >> 29
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 32
		if t == eosToken {
			x |= 3 << 62
		}
		if best < 0 || x > like {
			best, like = t, x
		}
	}
	return best
}

// generate runs a puppet for at most n tokens and counts its choices.
func generate(t *testing.T, g *Grammar, tok *testBPE, seed uint64, jump bool, n int) (ids []int32, calls int, ended bool) {
	t.Helper()
	s := g.Start()
	for len(ids) < n {
		if jump {
			var forced []int32
			forced, s = s.Jump()
			ids = append(ids, forced...)
		}
		calls++
		next := puppet(seed, tok.decode(ids), s.maskBits(), len(tok.tokens))
		if next < 0 {
			t.Fatalf("no token is legal after %q", tok.decode(ids))
		}
		if next == eosToken {
			if !s.CanEnd() {
				t.Fatalf("the end is legal in the mask only, after %q", tok.decode(ids))
			}
			return ids, calls, true
		}
		var err error
		if s, err = s.Accept(next); err != nil {
			t.Fatalf("after %q: %v", tok.decode(ids), err)
		}
		ids = append(ids, next)
	}
	return ids, calls, false
}

func TestJumpDoesNotChangeTheTokens(t *testing.T) {
	for _, merges := range []int{0, 60, 400} {
		tok := learnBPE(bpeText, merges)
		for name, spec := range testSpecs {
			g := mustCompile(t, spec, tok.vocab())
			for seed := range uint64(6) {
				off, callsOff, ended := generate(t, g, tok, seed, false, 150)
				on, callsOn, _ := generate(t, g, tok, seed, true, 150)
				n := min(len(on), len(off)) // the limit may fall inside a jump
				if !slices.Equal(on[:n], off[:n]) || (ended && len(on) != len(off)) {
					t.Fatalf("%s, seed %d:\n off %q\n on  %q", name, seed, tok.decode(off), tok.decode(on))
				}
				if callsOn > callsOff {
					t.Errorf("%s, seed %d: %d calls with jumps, %d without", name, seed, callsOn, callsOff)
				}
				if ended && !g.Match(tok.decode(off)) {
					t.Errorf("%s: wrote %q, which does not match", name, tok.decode(off))
				}
			}
		}
	}
}

// TestCanonicalTextIsNeverBlocked writes texts of the grammars with the tokens
// that the tokenizer makes of the whole text.
func TestCanonicalTextIsNeverBlocked(t *testing.T) {
	planned := 0
	for _, merges := range []int{30, 120, 400} {
		tok := learnBPE(bpeText, merges)
		for name, spec := range testSpecs {
			g := mustCompile(t, spec, tok.vocab())
			for seed := range uint64(8) {
				ids, _, ended := generate(t, g, tok, seed, false, 150)
				if !ended {
					continue
				}
				text := tok.decode(ids)
				s := g.Start()
				for i, id := range tok.encode(text) {
					if !has(s.maskBits(), id) {
						t.Fatalf("%s: token %d %q of %q is masked, plan %v %q", name, i, tok.tokens[id], text, s.plan, tok.decode(s.plan))
					}
					planned += min(1, len(s.plan))
					var err error
					if s, err = s.Accept(id); err != nil {
						t.Fatal(err)
					}
				}
				if !s.CanEnd() {
					t.Fatalf("%s: the end of %q is masked", name, text)
				}
			}
		}
	}
	if planned == 0 {
		t.Error("no token was planned")
	}
}

// TestMaskIsBruteForce compares masks with trying every token byte by byte.
func TestMaskIsBruteForce(t *testing.T) {
	tok := learnBPE(bpeText, 400)
	v, err := NewVocab(append(slices.Clone(tok.tokens), []byte("a"), []byte(`":`)), VocabOptions{EndTokens: []int32{eosToken}}) // two texts twice
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range testSpecs {
		g := mustCompile(t, spec, v)
		for seed := range uint64(5) {
			s := g.Start()
			var text []byte
			for range 60 {
				bits := s.maskBits()
				for id := range int32(v.Size()) {
					want := s.CanEnd()
					if id != eosToken {
						next, err := s.AcceptBytes(v.Token(id))
						want = err == nil
						if want && next.at.configs == nil && !next.at.canEnd {
							t.Fatalf("%s: %q then %q is a dead end", name, text, v.Token(id))
						}
					}
					if got := has(bits, id); got != want {
						t.Fatalf("%s after %q: token %d %q is %v in the mask, want %v", name, text, id, v.Token(id), got, want)
					}
				}
				id := puppet(seed, text, bits, v.Size())
				if id == eosToken || id < 0 {
					break
				}
				text = append(text, v.Token(id)...)
				if s, err = s.Accept(id); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestForkRollbackEncode(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	g := mustCompile(t, testSpecs["triage"], tok.vocab())
	s, err := g.Start().AcceptBytes([]byte(`{"pod":"pay`))
	if err != nil {
		t.Fatal(err)
	}
	before := s.maskBits()
	a, err := s.AcceptBytes([]byte(`","reason":"OOM`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.AcceptBytes([]byte(`ment","reason":"Cr`))
	if err != nil {
		t.Fatal(err)
	}
	if string(a.Forced()) != `Killed","oom_killed":` || string(b.Forced()) != `ashLoopBackOff","oom_killed":` {
		t.Errorf("forks force %q and %q", a.Forced(), b.Forced())
	}
	if !slices.Equal(before, s.maskBits()) {
		t.Error("the old state changed")
	}
	for _, x := range []State{g.Start(), s, a, b} {
		again := mustCompile(t, testSpecs["triage"], tok.vocab())
		y, err := again.Decode(x.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x.maskBits(), y.maskBits()) || !bytes.Equal(x.Encode(), y.Encode()) {
			t.Error("a decoded state differs")
		}
	}
	if _, err := g.Decode([]byte("nonsense")); err == nil {
		t.Error("nonsense was decoded")
	}
	var rej *RejectError
	if _, err := s.AcceptBytes([]byte(`","x`)); !errors.As(err, &rej) || rej.At != 3 || !errors.Is(err, ErrRejected) {
		t.Errorf("rejected with %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	g := mustCompile(t, testSpecs["optional"], tok.vocab())
	var wg sync.WaitGroup
	want := make([][]int32, 4)
	for seed := range want {
		want[seed], _, _ = generate(t, mustCompile(t, testSpecs["optional"], tok.vocab()), tok, uint64(seed), true, 80)
	}
	for i := range 8 {
		wg.Go(func() {
			got, _, _ := generate(t, g, tok, uint64(i%4), true, 80)
			if !slices.Equal(got, want[i%4]) {
				t.Errorf("run %d differs", i)
			}
		})
	}
	wg.Wait()
}

func TestMaskDoesNotAllocate(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	g := mustCompile(t, testSpecs["open"], tok.vocab())
	s, err := g.Start().AcceptBytes([]byte(`{"len":12,"memo":"ab`))
	if err != nil {
		t.Fatal(err)
	}
	bits := s.maskBits()
	if n := testing.AllocsPerRun(100, func() { s.Mask(bits) }); n != 0 {
		t.Errorf("%v allocations a mask", n)
	}
}

func TestMaskBudget(t *testing.T) {
	tok := learnBPE(bpeText, 200)
	spec := testSpecs["any"]
	spec.Limits.MaskBytes = 2000
	g := mustCompile(t, spec, tok.vocab())
	free := mustCompile(t, testSpecs["any"], tok.vocab())
	a, _, _ := generate(t, g, tok, 5, false, 100)
	b, _, _ := generate(t, free, tok, 5, false, 100)
	if !slices.Equal(a, b) {
		t.Error("a small mask budget changes the text")
	}
	if g.m.masks.bytes > 4000 {
		t.Errorf("%d bytes of masks are kept", g.m.masks.bytes)
	}
}

// TestJumpsAreBounded: a text that is forced for very long comes in pieces, which
// together are all of it.
func TestJumpsAreBounded(t *testing.T) {
	const n = 40000
	tok := learnBPE(bpeText, 60)
	s := mustCompile(t, Spec{Regex: fmt.Sprintf("^a{%d}$", n)}, tok.vocab()).Start()
	total, jumps := 0, 0
	for !s.Done() {
		ids, next := s.Jump()
		if len(ids) == 0 {
			// The end of a piece of forced text is left to the model.
			ids = []int32{tok.encode([]byte("a"))[0]}
			var err error
			if next, err = s.Accept(ids[0]); err != nil {
				t.Fatal(err)
			}
		}
		if len(ids) > maxJump+4096 {
			t.Fatalf("%d tokens at once", len(ids))
		}
		total, jumps, s = total+len(tok.decode(ids)), jumps+1, next
	}
	if total != n || jumps < 4 {
		t.Errorf("%d bytes in %d jumps, want %d in several", total, jumps, n)
	}
}
