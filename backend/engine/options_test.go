package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestEachOptionOfGenHasItsEffect: what a program writes at a gen changes what the
// engine generates in the way that it says, compared with a gen without it.
func TestEachOptionOfGenHasItsEffect(t *testing.T) {
	// With these alone tokens come again soon, and the text is readable.
	const letters = "tokens: {allowed: [97, 98, 99, 100, 101, 102, 103, 104]}"
	ask := func(t *testing.T, seed uint64, options string) (text string, ids []backend.Token, lps []float64) {
		t.Helper()
		e := newFake(t, nil)
		doc := "coppice: 1\nname: p\nsteps:\n  - user: go\n  - gen: {name: a, logprobs: lps, " + options + "}\n  - return: '{a: a, lps: lps}'\n"
		g, err := lang.Decode([]byte(doc), "p.yaml")
		if err != nil {
			t.Fatal(err)
		}
		r, err := runtime.RunGraph(t.Context(), e, g, nil, nil, runtime.WithSeed(seed))
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			A   string
			Lps []float64
		}
		if err := json.Unmarshal(r.Value, &v); err != nil {
			t.Fatal(err)
		}
		last := r.Turns[len(r.Turns)-1]
		return v.A, last.Parts[0].Tokens, v.Lps
	}
	repeats := func(ids []backend.Token) int {
		return len(ids) - len(slices.Compact(slices.Sorted(slices.Values(ids))))
	}

	_, plain, lps := ask(t, 0, "max_tokens: 24, ignore_eos: true, "+letters)
	word, _, _ := ask(t, 0, "max_tokens: 24, ignore_eos: true, "+letters)
	if len(plain) != 24 || repeats(plain) < 10 || strings.Trim(word, "abcdefgh") != "" {
		t.Fatalf("%d tokens, %d of them again: %q; the others compare with it", len(plain), repeats(plain), word)
	}
	if len(lps) != 24 || slices.ContainsFunc(lps, func(lp float64) bool { return lp > 0 || math.IsNaN(lp) }) {
		t.Errorf("log-probabilities %v", lps)
	}
	base := "max_tokens: 24, ignore_eos: true, " + letters
	for _, c := range []struct {
		name, options string
		holds         func(text string, ids []backend.Token) bool
	}{
		{"max_tokens", "max_tokens: 5, ignore_eos: true, " + letters, func(_ string, ids []backend.Token) bool { return slices.Equal(ids, plain[:5]) }},
		{"stop", base + ", stop: ['" + word[3:6] + "']", func(s string, _ []backend.Token) bool { return s == word[:strings.Index(word, word[3:6])] }},
		{"stop_regex", base + ", stop_regex: ['" + word[2:4] + ".']", func(s string, _ []backend.Token) bool {
			at := regexp.MustCompile(word[2:4] + ".").FindStringIndex(word)
			return s == word[:at[1]]
		}},
		{"stop tokens", fmt.Sprintf("max_tokens: 24, ignore_eos: true, tokens: {allowed: [97, 98, 99, 100, 101, 102, 103, 104], stop: [%d]}", plain[4]), func(_ string, ids []backend.Token) bool {
			return slices.Equal(ids, plain[:slices.Index(plain, plain[4])])
		}},
		{"banned tokens", fmt.Sprintf("max_tokens: 24, ignore_eos: true, tokens: {allowed: [97, 98, 99, 100, 101, 102, 103, 104], banned: [[%d, %d]]}", plain[0], plain[1]), func(_ string, ids []backend.Token) bool {
			for i := range ids[1:] {
				if ids[i] == plain[0] && ids[i+1] == plain[1] {
					return false
				}
			}
			return len(ids) == 24
		}},
		{"regex", "max_tokens: 24, regex: '[xyz]{3}-[0-9]+end'", func(s string, _ []backend.Token) bool {
			return regexp.MustCompile(`^[xyz]{3}-[0-9]+(end)?$`).MatchString(s)
		}},
		{"ebnf", `max_tokens: 24, ebnf: 'root ::= "so" [kl]{4} "!"'`, func(s string, _ []backend.Token) bool { return regexp.MustCompile(`^so[kl]{4}!$`).MatchString(s) }},
		{"logit_bias", base + ", logit_bias: {98: 100}", func(s string, _ []backend.Token) bool { return s == strings.Repeat("b", 24) }},
		{"top_k", base + ", temperature: 50, top_k: 1", func(s string, _ []backend.Token) bool { return s == word }},
		{"top_p", base + ", temperature: 0.1, top_p: 0.000001", func(s string, _ []backend.Token) bool { return s == word }},
		{"min_p", base + ", temperature: 50, min_p: 1", func(s string, _ []backend.Token) bool { return s == word }},
		{"repetition_penalty", base + ", repetition_penalty: 1.9", func(_ string, ids []backend.Token) bool {
			return again(ids) > again(plain)
		}},
		{"frequency_penalty", base + ", frequency_penalty: 2", func(_ string, ids []backend.Token) bool { return often(ids) < often(plain) }},
		{"presence_penalty", base + ", presence_penalty: 2", func(s string, ids []backend.Token) bool { return s != word && s[:1] == word[:1] }},
	} {
		if text, ids, _ := ask(t, 0, c.options); !c.holds(text, ids) {
			t.Errorf("%s: %q %v, without it %q %v", c.name, text, ids, word, plain)
		}
	}

	// Ends: this model ends its text soon if it is left to it.
	_, short, _ := ask(t, 0, "max_tokens: 200")
	if len(short) >= 200 {
		t.Fatal("the model does not end its text; the next two compare with that")
	}
	if _, ids, _ := ask(t, 0, fmt.Sprintf("max_tokens: 200, min_tokens: %d", len(short)+9)); len(ids) < len(short)+9 {
		t.Errorf("min_tokens: %d tokens, %d without", len(ids), len(short))
	}
	if _, ids, _ := ask(t, 0, "max_tokens: 200, ignore_eos: true"); len(ids) != 200 {
		t.Errorf("ignore_eos: %d tokens", len(ids))
	}

	// Chance: the same seed, of the run or the node, draws the same; another does not.
	warm := base + ", temperature: 4"
	draw := func(seed uint64, options string) string { s, _, _ := ask(t, seed, options); return s }
	one := draw(1, warm)
	if one == word || one != draw(1, warm) || one == draw(2, warm) {
		t.Errorf("temperature: %q, greedy %q; seed 2: %q", one, word, draw(2, warm))
	}
	if s := draw(1, warm+", seed: 7"); s != draw(2, warm+", seed: 7") || s == one {
		t.Errorf("seed: %q and %q", s, draw(2, warm+", seed: 7"))
	}
}

// often is how often the token is there that is there most often.
func often(ids []backend.Token) (most int) {
	n := map[backend.Token]int{}
	for _, id := range ids {
		n[id]++
		most = max(most, n[id])
	}
	return most
}

// again is the place of the first token that was there before.
func again(ids []backend.Token) int {
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return i
		}
	}
	return len(ids)
}
