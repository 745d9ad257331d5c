package grammar

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What is likely is a way on that the tokenizer itself takes where nothing
// merges, and it is there only where Jump has nothing.
func TestLikelySpellsWhatIsForced(t *testing.T) {
	tok := learnBPE(bpeText, 300)
	v := tok.vocab()
	some := 0
	for _, schema := range []string{
		`{"type":"object","properties":{"name":{"type":"string"},"count":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}},"required":["name","count","tags"],"additionalProperties":false}`,
		`{"type":"object","properties":{"the name":{"enum":["one of them","one of these"]},"free":{"type":"string"}},"required":["the name","free"],"additionalProperties":false}`,
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(schema)}, v)
		r := rand.New(rand.NewPCG(1, 2))
		mask := make([]uint64, v.MaskWords())
		for range 20 {
			s := g.Start()
			for range 60 {
				likely := s.Likely()
				if plan, _ := s.Jump(); len(plan) > 0 && len(likely) > 0 {
					t.Fatalf("%v is likely beside the plan %v", likely, plan)
				}
				forced := s.Forced()
				if len(likely) > 0 {
					some++
					var text []byte
					next := s
					for _, id := range likely {
						text = append(text, v.Token(id)...)
						var err error
						if next, err = next.Accept(id); err != nil {
							t.Fatalf("%q is likely, but: %v", text, err)
						}
					}
					if !slices.Equal(text, forced) {
						t.Fatalf("%q is likely where %q is forced", text, forced)
					}
				}
				s.Mask(mask)
				var legal []int32
				for id := range int32(v.Size()) {
					if mask[id>>6]&(1<<(id&63)) != 0 && !slices.Contains(v.EndTokens(), id) {
						legal = append(legal, id)
					}
				}
				if len(legal) == 0 {
					break
				}
				s, _ = s.Accept(legal[r.IntN(len(legal))])
			}
		}
	}
	if some == 0 {
		t.Error("nothing was ever likely")
	}
}
