package engine

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// jumpSchemas are schemas in which much is forced, at all the places where
// tokens may run across the edge of what is.
var jumpSchemas = []string{
	verdictSchema,
	`{"type":"object","properties":{"orderIdentifier":{"type":"integer"},"orderIdentity":{"type":"string","maxLength":8},"orders":{"type":"array","items":{"type":"number"},"maxItems":3}},"required":["orders"],"additionalProperties":false}`,
	`{"type":"object","properties":{"a rather long fixed name of a property":{"type":"array","items":{"type":"string","maxLength":6},"minItems":2,"maxItems":4},"another long fixed name":{"type":"null"}},"required":["a rather long fixed name of a property","another long fixed name"],"additionalProperties":false}`,
	`{"anyOf":[{"type":"object","properties":{"name":{"const":"get_weather"},"arguments":{"type":"object","properties":{"city":{"type":"string","maxLength":9},"unit":{"enum":["celsius","fahrenheit"]}},"required":["city"],"additionalProperties":false}},"required":["name","arguments"],"additionalProperties":false},{"type":"object","properties":{"name":{"const":"get_whether"},"arguments":{"type":"object","properties":{"yes":{"type":"boolean"}},"required":["yes"],"additionalProperties":false}},"required":["name","arguments"],"additionalProperties":false}]}`,
	`{"enum":["Grüße","Grüne Soße","漢字","漢文","😀","😁 \" \\ / \n"]}`,
	`{"type":"array","items":{"enum":["in the end","in the middle","in"]},"minItems":2,"maxItems":5}`,
	`{"type":"object","properties":{"when":{"type":"string","format":"date-time"},"id":{"type":"string","format":"uuid"}},"required":["when","id"],"additionalProperties":false}`,
	`{"type":"object","properties":{"v":{"type":"string","pattern":"^v[0-9]{1,2}\\.[0-9]{1,2}$"},"ip":{"type":"string","format":"ipv4"}},"required":["v","ip"],"additionalProperties":false}`,
	`{"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":3,"propertyNames":{"maxLength":5}}`,
	`{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#"},"maxItems":2},"label":{"enum":["leaf","least","le"]}},"required":["kids","label"],"additionalProperties":false}`,
	`{"type":"array","prefixItems":[{"const":"the"},{"const":" the"},{"type":"integer","minimum":-20,"maximum":300},{"const":""}],"items":false,"minItems":4}`,
	`{"type":"object","properties":{"x":{"const":{"deep":[1,2.5,{"er":null}]}},"y":{"type":"integer","multipleOf":250,"minimum":1000,"maximum":2000}},"required":["x","y"],"additionalProperties":false}`,
}

// jumpModel is an engine on a tokenizer, with or without its own model; ahead: one
// that computes guesses and choices ahead.
type jumpModel struct {
	name string
	open func(t *testing.T, ahead bool) *Engine
}

// setAhead makes an engine compute ahead, if it is one that does.
func setAhead(c *Config, ahead bool) {
	if ahead {
		c.Drafts, c.Choices = 8, 32
	}
}

// puppetOn is a model whose logits are a hash of the tokens, over a vocabulary.
func puppetOn(tok Tokenizer) *fakeModel {
	return &fakeModel{context: 2048, vocab: tok.Size(), ends: tok.EndTokens()}
}

// onFile is an engine on the tokenizer of a model file and a puppet.
func onFile(f *gguf.File) jumpModel {
	return jumpModel{"puppet", func(t *testing.T, ahead bool) *Engine {
		tok, err := tokenizer.FromGGUF(f)
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Model: puppetOn(tok), Pages: 256, Check: true}
		setAhead(&c, ahead)
		e, err := Load(f, c, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}}
}

// sameWithAndWithout writes each schema with and without jump-forward, and with
// what is guessed ahead too, and reports what share of the tokens was forced.
func sameWithAndWithout(t *testing.T, open func(t *testing.T, ahead bool) *Engine, schemas []string, maxTokens int) {
	t.Helper()
	e, ahead := open(t, false), open(t, true)
	guessed := 0
	forced, tokens, on, off, refused := 0, 0, 0, 0, 0
	for i, schema := range schemas {
		req := backend.Request{
			Turns:      []backend.Turn{user(fmt.Sprint("Write the JSON, number ", i, "."))},
			Constraint: backend.Constraint{JSONSchema: []byte(schema)},
			MaxTokens:  maxTokens,
		}
		err := e.CheckConstraint(context.Background(), req.Constraint)
		if errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", schema, err)
		}
		jump, not := jumpAndNot(t, req, func() *Engine { return e })
		guess := mustGenerate(t, ahead, &req)
		if guess.Part.Text != jump.Part.Text || !slices.Equal(guess.Part.Tokens, jump.Part.Tokens) || guess.Finish != jump.Finish {
			t.Errorf("with guesses %+v\nwithout %+v", guess, jump)
		}
		if g, j := guess.Usage, jump.Usage; g.ForcedTokens != j.ForcedTokens || g.SampledTokens != j.SampledTokens || passes(g) > passes(j) {
			t.Errorf("usage with guesses %+v, without %+v", g, j)
		}
		if t.Failed() {
			t.Fatalf("schema %s", schema)
		}
		guessed += passes(guess.Usage)
		if jump.Finish == backend.FinishStop && !json.Valid([]byte(jump.Part.Text)) {
			t.Fatalf("schema %s wrote %q", schema, jump.Part.Text)
		}
		forced += jump.Usage.ForcedTokens
		tokens += len(jump.Part.Tokens)
		on += passes(jump.Usage)
		off += passes(not.Usage)
	}
	t.Logf("%d schemas (%d refused), %d tokens, %.1f%% forced, %d passes with jump-forward, %d with guesses too, %d without",
		len(schemas), refused, tokens, 100*float64(forced)/float64(max(tokens, 1)), on, guessed, off)
	if forced == 0 || on >= off {
		t.Errorf("nothing was saved: %d tokens forced, %d passes of %d", forced, on, off)
	}
}

// TestJumpForwardOnTokenizers writes schemas with a puppet on the vocabularies
// of the fake and of the embedded model, and with the models themselves.
func TestJumpForwardOnTokenizers(t *testing.T) {
	f, err := gguf.Parse(sapling.GGUF())
	if err != nil {
		t.Fatal(err)
	}
	tiny := tinyModel(t, 1)
	for _, m := range []jumpModel{
		{"fake", func(t *testing.T, ahead bool) *Engine {
			return newFake(t, func(c *Config, _ *fakeModel) { setAhead(c, ahead) })
		}},
		{"random weights", func(t *testing.T, ahead bool) *Engine {
			return newFake(t, func(c *Config, _ *fakeModel) { c.Model = tiny; setAhead(c, ahead) })
		}},
		{"embedded vocabulary", onFile(f).open},
	} {
		t.Run(m.name, func(t *testing.T) { sameWithAndWithout(t, m.open, jumpSchemas, 80) })
	}
	t.Run("embedded model", func(t *testing.T) {
		open := func(t *testing.T, ahead bool) *Engine {
			c := Config{Pages: 128, Check: true}
			setAhead(&c, ahead)
			e, err := Load(f, c, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.Close() })
			return e
		}
		n := len(jumpSchemas)
		if testing.Short() {
			n = 4
		}
		sameWithAndWithout(t, open, jumpSchemas[:n], 40)
	})
}

// TestJumpForwardOnManySchemas is the same over the development sample of the
// shared test data and the models of COPPICE_MODELS. COPPICE_JUMP is the number
// of schemas for the puppet (all: 300) and COPPICE_JUMP_REAL for the models.
func TestJumpForwardOnManySchemas(t *testing.T) {
	root, dir := os.Getenv("COPPICE_SHARED"), os.Getenv("COPPICE_MODELS")
	if root == "" || dir == "" {
		t.Skip("COPPICE_SHARED (the shared test data) and COPPICE_MODELS (model files) are not both set")
	}
	count := func(env string, n int) int {
		if v, err := strconv.Atoi(os.Getenv(env)); err == nil {
			return v
		}
		return n
	}
	schemas := developmentSchemas(t, root)
	r := count("COPPICE_JUMP_REAL", 2)
	n := count("COPPICE_JUMP", 20)
	for _, name := range []string{smol, "gemma-3-270m-q4_k_m.gguf", "qwen2.5-0.5b-q4.gguf"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			t.Logf("not there: %v", err)
			continue
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		t.Run(name+"/puppet", func(t *testing.T) { sameWithAndWithout(t, onFile(f).open, schemas[:min(n, len(schemas))], 100) })
		if r > 0 {
			t.Run(name+"/model", func(t *testing.T) {
				open := func(t *testing.T, ahead bool) *Engine {
					c := Config{Pages: 256}
					setAhead(&c, ahead)
					return openReal(t, name, c, model.Options{})
				}
				sameWithAndWithout(t, open, schemas[:min(r, len(schemas))], 60)
			})
		}
	}
}

// developmentSchemas are 300 schemas of the development sample, those of all
// its sets in turn.
func developmentSchemas(t *testing.T, root string) []string {
	f, err := os.Open(filepath.Join(root, "data", "grammar", "maskbench_dev.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	bySet := map[string][]string{}
	var sets []string
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		var l struct {
			Set    string
			Schema json.RawMessage
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if bySet[l.Set] == nil {
			sets = append(sets, l.Set)
		}
		bySet[l.Set] = append(bySet[l.Set], string(l.Schema))
	}
	slices.Sort(sets)
	var out []string
	for len(out) < 300 {
		before := len(out)
		for _, s := range sets {
			if list := bySet[s]; len(list) > 0 && len(out) < 300 {
				out = append(out, list[0])
				bySet[s] = list[1:]
			}
		}
		if len(out) == before {
			break
		}
	}
	return out
}
