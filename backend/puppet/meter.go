package puppet

import "github.com/coppice-run/coppice/backend"

// meter makes up what requests cost. It remembers the prompts it saw, so that a
// prompt that begins like an earlier one reads that beginning from the cache;
// all but the last token, which a real engine must feed to get logits.
type meter struct {
	root  trie
	clock uint64 // forward passes so far
}

// trie holds prompts by byte. Nodes keep runs of bytes.
type trie struct {
	kids map[byte]*edge
}

type edge struct {
	run  string
	next trie
}

// add inserts s and returns how many of its bytes were there before.
func (t *trie) add(s string) int {
	known := 0
	for len(s) > 0 {
		e := t.kids[s[0]]
		if e == nil {
			if t.kids == nil {
				t.kids = map[byte]*edge{}
			}
			t.kids[s[0]] = &edge{run: s}
			return known
		}
		n := 0
		for n < len(s) && n < len(e.run) && s[n] == e.run[n] {
			n++
		}
		known += n
		if n < len(e.run) && n < len(s) {
			rest := &edge{run: e.run[n:], next: e.next}
			e.run, e.next = e.run[:n], trie{kids: map[byte]*edge{rest.run[0]: rest}}
		} else if n < len(e.run) {
			return known
		}
		t, s = &e.next, s[n:]
	}
	return known
}

func (m *meter) prompt(text string) backend.Usage {
	known := m.root.add(text)
	if known == len(text) && known > 0 {
		known--
	}
	return backend.Usage{
		PromptTokens:   len(text),
		CachedTokens:   known,
		ComputedTokens: len(text) - known,
	}
}

func (m *meter) generate(prompt string, generated, forced int) backend.Usage {
	u := m.prompt(prompt)
	u.ForcedTokens = forced
	u.SampledTokens = generated - forced
	if generated > 0 {
		u.ComputedTokens += generated - 1
	}
	passes := max(u.SampledTokens, 1)
	u.Passes = []backend.Span{{Engine: 1, From: m.clock + 1, To: m.clock + uint64(passes)}}
	m.clock += uint64(passes)
	u.Without = backend.Cost{
		ComputedTokens: len(prompt) + max(generated-1, 0),
		ForwardPasses:  max(generated, 1),
	}
	return u
}

func (m *meter) score(prompt string, fed, options int) backend.Usage {
	u := m.prompt(prompt)
	u.ComputedTokens += fed
	m.clock++
	u.Passes = []backend.Span{{Engine: 1, From: m.clock, To: m.clock}}
	u.Without = backend.Cost{
		ComputedTokens: options*len(prompt) + fed,
		ForwardPasses:  options,
	}
	return u
}
