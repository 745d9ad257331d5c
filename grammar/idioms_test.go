package grammar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unicode/utf8"

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

// TestIdiomsChanged changes the instances of the same schemas at random: the
// grammar and a validator still agree.
func TestIdiomsChanged(t *testing.T) {
	raw, err := os.ReadFile("testdata/idioms.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(81, 82))
	verdicts, yes := 0, 0
	for line := range bytes.Lines(raw) {
		var l struct {
			ID     string          `json:"id"`
			Schema json.RawMessage `json:"schema"`
			Tests  []struct {
				Data json.RawMessage `json:"data"`
			} `json:"tests"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		want := validator(t, string(l.Schema), true)
		if want == nil {
			continue // its patterns have no lookahead
		}
		// Changed objects have their names in any order.
		g := mustCompile(t, Spec{JSONSchema: l.Schema, AnyOrder: true}, ByteVocab())
		ordered := mustCompile(t, Spec{JSONSchema: l.Schema}, ByteVocab())
		for _, x := range l.Tests {
			for range 40 {
				v, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.Data))
				if err != nil {
					t.Fatal(err)
				}
				for range 1 + r.IntN(3) {
					v = changed(r, v)
				}
				instance, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				ok := compareVerdicts(t, string(l.Schema), g, want, string(instance))
				if text, _ := Canonical(instance); !ok && ordered.Match(text) {
					t.Fatalf("%s: in the schema's order %s is taken", l.ID, text)
				}
				if verdicts++; ok {
					yes++
				}
			}
		}
	}
	if yes < verdicts/20 {
		t.Errorf("only %d of %d instances are valid", yes, verdicts)
	}
}

// changed is a JSON value with something else in one place.
func changed(r *rand.Rand, v any) any {
	switch x := v.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(x))
		out := maps.Clone(x)
		switch k := r.IntN(4); {
		case k == 0 || len(names) == 0:
			out[oneOf(r, "a", "b", "zz", "k1", "x")] = something(r)
		case k == 1:
			delete(out, names[r.IntN(len(names))])
		default:
			n := names[r.IntN(len(names))]
			out[n] = changed(r, out[n])
		}
		return out
	case []any:
		out := slices.Clone(x)
		switch k := r.IntN(4); {
		case k == 0 || len(out) == 0:
			return append(out, something(r))
		case k == 1:
			return append(out, out[r.IntN(len(out))])
		case k == 2:
			return out[:len(out)-1]
		}
		i := r.IntN(len(out))
		out[i] = changed(r, out[i])
		return out
	case string:
		if i := r.IntN(len(x) + 1); r.IntN(3) > 0 && utf8.ValidString(x[:i]) {
			return x[:i] + oneOf(r, "a", "é", "1", "z", "-", ":", "Z", "", " ") + x[i:]
		}
	case json.Number:
		if r.IntN(3) > 0 {
			return oneOf[any](r, json.Number("0"), json.Number("-1"), json.Number("5"), json.Number("0.25"), json.Number("10"), json.Number("150"), json.Number("1.5"))
		}
	}
	return something(r)
}

func something(r *rand.Rand) any {
	return oneOf[any](r, nil, true, json.Number("1"), json.Number("-0.5"), "", "ab", "xyz", []any{}, map[string]any{})
}
