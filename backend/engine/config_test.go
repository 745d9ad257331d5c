package engine

import (
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

func TestConfigDefaults(t *testing.T) {
	m := &fakeModel{context: 1000, vocab: fakeVocab} // a page takes 1,024 bytes
	for name, c := range map[string]struct {
		cfg   Config
		pages int
	}{
		"pages":            {Config{Pages: 7}, 7},
		"memory":           {Config{MemoryBytes: 10*1024 + 1023}, 10},
		"no more than all": {Config{MaxSeqs: 2, MemoryBytes: 1 << 40}, 2 * (63 + 1)},
		"nothing said":     {Config{}, 64 * (63 + 1)},
	} {
		c.cfg.Model, c.cfg.Tokenizer, c.cfg.Fingerprint = m, fakeTokenizer{}, "f"
		if err := c.cfg.setDefaults(); err != nil || c.cfg.Pages != c.pages {
			t.Errorf("%s: %d pages (%v), want %d", name, c.cfg.Pages, err, c.pages)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	m := &fakeModel{context: 1000, vocab: fakeVocab}
	for want, cfg := range map[string]Config{
		"no model":       {Tokenizer: fakeTokenizer{}, Fingerprint: "f"},
		"no tokenizer":   {Model: m, Fingerprint: "f"},
		"no fingerprint": {Model: m, Tokenizer: fakeTokenizer{}},
		"negative":       {Model: m, Tokenizer: fakeTokenizer{}, Fingerprint: "f", Pages: -1},
		"takes 1024":     {Model: m, Tokenizer: fakeTokenizer{}, Fingerprint: "f", MemoryBytes: 1000},
		"320 tokens":     {Model: &fakeModel{context: 1000, vocab: 100}, Tokenizer: fakeTokenizer{}, Fingerprint: "f"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

func TestInfo(t *testing.T) {
	e := newFake(t, nil)
	info := e.Info()
	if info.Model != "fake" || info.Fingerprint != "fake-1" || info.ContextLength != 2048 {
		t.Errorf("%+v", info)
	}
	if c := info.Capabilities; c != (backend.Capabilities{JSONSchema: true, Regex: true, EBNF: true, Choices: true, Score: true, TokenIDs: true, ForkHints: true, Logprobs: true, Seed: true, Raw: true, TokenRules: true, Tags: true, OpenTurns: true, ScoreTokens: true, ScoreExact: true, CloseAtLimit: true}) {
		t.Errorf("%+v", c)
	}
}
