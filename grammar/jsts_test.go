package grammar

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"
)

// TestJSONSchemaTestSuite runs the required tests of draft 2020-12: a group is
// refused or every answer is right.
func TestJSONSchemaTestSuite(t *testing.T) {
	raw, err := io.ReadAll(sharedFile(t, "data/grammar/jsts_draft2020-12.json"))
	if err != nil {
		t.Fatal(err)
	}
	var files []struct {
		File   string
		Groups []struct {
			Description string
			Schema      json.RawMessage
			Tests       []struct {
				Description string
				Data        json.RawMessage
				Valid       bool
			}
		}
	}
	if err := json.Unmarshal(raw, &files); err != nil {
		t.Fatal(err)
	}
	groups, refused, tests, lost := 0, 0, 0, 0
	for _, f := range files {
		for _, g := range f.Groups {
			groups++
			tests += len(g.Tests)
			l := checkLine{ID: f.File + ": " + g.Description, Schema: g.Schema}
			for _, x := range g.Tests {
				l.Tests = append(l.Tests, checkTest{Valid: x.Valid, Data: x.Data})
			}
			rep := &CheckReport{}
			if err := rep.check(context.Background(), ByteVocab(), &l, CheckOptions{AnyOrder: true}); err != nil {
				t.Fatal(err)
			}
			for _, x := range rep.Failures {
				if x.Kind == "refused" {
					refused++
					lost += len(g.Tests)
					t.Logf("refused: %s: %.200s", x.ID, x.Why)
					continue
				}
				var schema bytes.Buffer
				json.Compact(&schema, g.Schema)
				t.Errorf("%s %s (%s): %s\n%s", x.Kind, x.ID, g.Tests[x.Test].Description, x.Why, schema.Bytes())
			}
		}
	}
	t.Logf("%d groups, %d refused; %d tests, %d in refused groups", groups, refused, tests, lost)
}
