package engine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

const personSchema = `{"type":"object","properties":{"name":{"type":"string"},"note":{"type":"string"},"age":{"type":"integer"},"high":{"enum":["high","low","in the"]}},"required":["name","age","high"],"additionalProperties":false}`

// TestTextsAreClosedAtTheLimit: a text with a constraint that comes to its limit is
// one of the constraint all the same, and is as it would be without a limit up to
// where it is closed. It is so in all ways to compute it.
func TestTextsAreClosedAtTheLimit(t *testing.T) {
	ways := map[string]func(*Config, *fakeModel){
		"plain": nil,
		"ahead": func(c *Config, _ *fakeModel) { c.Drafts, c.Choices = 4, 64 },
		"small": func(c *Config, _ *fakeModel) { c.MaxBatchTokens = 3 },
	}
	closed, whole := 0, 0
	for seed := range uint64(40) {
		req := backend.Request{
			Turns: []backend.Turn{user(fmt.Sprint("who is it? ", seed))}, MaxTokens: 24 + int(seed), CloseAtLimit: true,
			Constraint: backend.Constraint{JSONSchema: []byte(personSchema)},
		}
		if seed%2 == 1 {
			req.Sampling = backend.Sampling{Temperature: 2, Seed: seed}
		}
		r, _ := jumpAndNot(t, req, func() *Engine { return newFake(t, nil) })
		free := req
		free.CloseAtLimit, free.MaxTokens = false, 0
		long := mustGenerate(t, newFake(t, nil), &free)
		var v struct {
			Name string `json:"name"`
			Age  *int   `json:"age"`
			High string `json:"high"`
		}
		switch err := json.Unmarshal([]byte(r.Part.Text), &v); {
		case err != nil || v.Age == nil || v.High == "":
			t.Errorf("seed %d: %q: %v", seed, r.Part.Text, err)
		case len(r.Part.Tokens) > req.MaxTokens:
			t.Errorf("seed %d: %d tokens, %d are allowed", seed, len(r.Part.Tokens), req.MaxTokens)
		case r.Closed == 0:
			whole++
			if r.Part.Text != long.Part.Text || r.Finish != backend.FinishStop {
				t.Errorf("seed %d: nothing was closed, but it is %q and not %q, %s", seed, r.Part.Text, long.Part.Text, r.Finish)
			}
		default:
			closed++
			same := commonPrefix(r.Part.Tokens, long.Part.Tokens)
			if r.Finish != backend.FinishLength || req.MaxTokens-same > 24 { // what must follow a name at its shortest, and some digits
				t.Errorf("seed %d: %q, %s; without a limit %q: closed behind %d of %d tokens", seed, r.Part.Text, r.Finish, long.Part.Text, same, req.MaxTokens)
			}
		}
		for name, way := range ways {
			got := mustGenerate(t, newFake(t, way), &req)
			if got.Part.Text != r.Part.Text || got.Closed != r.Closed || got.Finish != r.Finish {
				t.Errorf("seed %d, %s: %q, %d closed, %s; else %q, %d, %s", seed, name, got.Part.Text, got.Closed, got.Finish, r.Part.Text, r.Closed, r.Finish)
			}
		}
	}
	if closed < 10 || whole == 0 {
		t.Errorf("%d were closed, %d came to an end", closed, whole)
	}
}

// TestWhatCannotBeClosedIsCut: as without being asked to.
func TestWhatCannotBeClosedIsCut(t *testing.T) {
	for limit := 1; limit < 16; limit++ {
		req := backend.Request{Turns: []backend.Turn{user("who?")}, MaxTokens: limit, Constraint: backend.Constraint{JSONSchema: []byte(personSchema)}}
		cut := mustGenerate(t, newFake(t, nil), &req)
		req.CloseAtLimit = true
		r := mustGenerate(t, newFake(t, nil), &req)
		if r.Finish != backend.FinishLength || r.Closed != 0 || !reflect.DeepEqual(r.Part, cut.Part) {
			t.Errorf("limit %d: %+v, without closing %+v", limit, r, cut)
		}
	}
}

// TestClosingLeavesTheRestToTheModel: what fits is the model's choice to the last.
func TestClosingLeavesTheRestToTheModel(t *testing.T) {
	const want = `{"name":"aaaa","age":7,"high":"low"}`
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.script = func(tokens []backend.Token) backend.Token {
			switch text := tailOf(tokens); {
			case strings.HasSuffix(text, `"age":`):
				return '7'
			case strings.HasSuffix(text, `"name":`), strings.HasSuffix(text, `"high":`):
				return '"'
			case strings.HasSuffix(text, `"high":"`):
				return fakeToken(t, "low")
			}
			return 'a'
		}
	})
	req := &backend.Request{Turns: []backend.Turn{user("who?")}, CloseAtLimit: true, Constraint: backend.Constraint{JSONSchema: []byte(personSchema)}}
	req.MaxTokens = 27
	r := mustGenerate(t, e, req)
	if r.Part.Text != want || r.Finish != backend.FinishLength || r.Closed == 0 {
		t.Errorf("%+v, want %s", r, want)
	}
}

// TestRegexEndsBetweenTokens: where the text may end already, it ends there.
func TestRegexEndsBetweenTokens(t *testing.T) {
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.script = func([]backend.Token) backend.Token { return 'a' }
	})
	r := mustGenerate(t, e, &backend.Request{
		Turns: []backend.Turn{user("x")}, MaxTokens: 8, CloseAtLimit: true, Constraint: backend.Constraint{Regex: `(aaa)*`},
	})
	if r.Part.Text != "aaaaaa" || r.Finish != backend.FinishLength || r.Closed != 1 {
		t.Errorf("%+v", r)
	}
}

// TestClosingKeepsTheRules: a token that is forbidden is not written to close a text.
func TestClosingKeepsTheRules(t *testing.T) {
	r := mustGenerate(t, newFake(t, nil), &backend.Request{
		Turns: []backend.Turn{user("x")}, MaxTokens: 5, CloseAtLimit: true, Constraint: backend.Constraint{Regex: `[a-z]*!`},
		Tokens: backend.TokenRules{Banned: [][]backend.Token{{'!'}}},
	})
	if strings.Contains(r.Part.Text, "!") || r.Finish != backend.FinishLength {
		t.Errorf("%+v", r)
	}
}

func tailOf(tokens []backend.Token) string {
	var b []byte
	for _, t := range tokens {
		b = append(b, fakeTokenizer{}.Bytes(t)...)
	}
	return string(b)
}

func fakeToken(t *testing.T, word string) backend.Token {
	for i, w := range fakeWords {
		if w == word {
			return backend.Token(256 + i)
		}
	}
	t.Fatalf("there is no token %q", word)
	return -1
}
