package grammar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestIdioms runs schemas of the kinds that OpenAI's strict mode, Pydantic, zod,
// invopop, OpenAPI and people write: every instance is judged as expected, and
// as a validator judges it where that reads the schema.
func TestIdioms(t *testing.T) {
	raw, err := os.ReadFile("testdata/idioms.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for in := bufio.NewScanner(bytes.NewReader(raw)); in.Scan(); {
		var l struct {
			ID     string          `json:"id"`
			Schema json.RawMessage `json:"schema"`
			Tests  []struct {
				Valid bool            `json:"valid"`
				Data  json.RawMessage `json:"data"`
			} `json:"tests"`
		}
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		want := validator(t, string(l.Schema), true)
		if want == nil {
			continue // its patterns have no lookahead
		}
		judged++
		for i, x := range l.Tests {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.Data))
			if err != nil {
				t.Fatal(err)
			}
			if got := want.Validate(v) == nil; got != x.Valid {
				t.Errorf("%s, test %d: the validator says %v", l.ID, i, got)
			}
		}
	}
	// By bytes, and by the tokens of a tokenizer, each out of the mask before it.
	for _, vocab := range []*Vocab{nil, learnBPE(bpeText, 300).vocab()} {
		rep, err := Check(context.Background(), bytes.NewReader(raw), CheckOptions{Vocab: vocab})
		if err != nil {
			t.Fatal(err)
		}
		if rep.AllRight != rep.Schemas || judged < rep.Schemas-5 {
			t.Errorf("%d of %d schemas are all right, %d judged twice: %+v", rep.AllRight, rep.Schemas, judged, rep.Failures)
		}
	}
}
