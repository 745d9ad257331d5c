package grammar

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// TestNotations checks grammars as people write them, in GBNF's, XGrammar's and
// Lark's notation, on texts that belong to them and texts that do not.
func TestNotations(t *testing.T) {
	raw, err := os.ReadFile("testdata/notations.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var c struct {
			Name, Kind, Src string
			Yes, No         []string
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		spec := Spec{EBNF: c.Src}
		if c.Kind == "lark" {
			spec = Spec{Lark: c.Src}
		}
		g, err := Compile(t.Context(), spec, ByteVocab())
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for _, text := range c.Yes {
			if !g.Match([]byte(text)) {
				t.Errorf("%s refuses %q", c.Name, text)
			}
		}
		for _, text := range c.No {
			if g.Match([]byte(text)) {
				t.Errorf("%s takes %q", c.Name, text)
			}
		}
	}
}
