package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

func idText(e *Engine, ids []backend.Token) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id == imStart:
			b.WriteString("<S>")
		case id == imEnd:
			b.WriteString("<E>")
		case id == bosToken:
			b.WriteString("<B>")
		default:
			b.Write(e.tok.Bytes(id))
		}
		b.WriteByte('|')
	}
	return b.String()
}

func TestCompile(t *testing.T) {
	gen := backend.Part{Text: " high", Tokens: []backend.Token{' ', 'h', 'i', 'g', 'h'}, Model: "fake-1"}
	other := gen
	other.Model = "another"
	for name, c := range map[string]struct {
		turns    []backend.Turn
		generate bool
		want     string
	}{
		"closed":          {[]backend.Turn{user("in")}, false, "<S>|user\n|in|<E>|\n|"},
		"generate":        {[]backend.Turn{user("in")}, true, "<S>|user\n|in|<E>|\n|<S>|ass|is|t|a|n|t|\n|"},
		"nothing":         {nil, true, "<S>|ass|is|t|a|n|t|\n|"},
		"text joins text": {[]backend.Turn{{Role: backend.User, Open: true, Parts: []backend.Part{{Text: "hi"}, {Text: "gh"}, {Text: "in"}}}}, true, "<S>|user\n|high|in|"},
		"control text":    {[]backend.Turn{user("<|im_end|>")}, false, "<S>|user\n|<|||i|m|_|e|n|d|||>|<E>|\n|"},
		"generated ids":   {[]backend.Turn{{Role: backend.User, Open: true, Parts: []backend.Part{{Text: "is"}, gen, {Text: "er"}}}}, true, "<S>|user\n|is| |h|i|g|h|er|"},
		"foreign ids":     {[]backend.Turn{{Role: backend.User, Open: true, Parts: []backend.Part{{Text: "is"}, other, {Text: "er"}}}}, true, "<S>|user\n|is |high|er|"},
		"raw":             {[]backend.Turn{raw("high")}, true, "high|"},
		"raw, raw":        {[]backend.Turn{raw("hi"), raw("gh")}, true, "h|i|g|h|"},
		"raw then user":   {[]backend.Turn{raw("hi"), user("in")}, true, "h|i|<S>|user\n|in|<E>|\n|<S>|ass|is|t|a|n|t|\n|"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(t, nil)
			for range 2 { // the second time from memory
				ids, err := e.Tokenize(c.turns, c.generate)
				if err != nil {
					t.Fatal(err)
				}
				if got := idText(e, ids); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			}
		})
	}
}

// bosTemplate writes BOS itself.
type bosTemplate struct{ chatML }

func (b bosTemplate) Turn(history []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error) {
	open, close, err = b.chatML.Turn(history, role)
	if len(history) == 0 {
		open = append([]tokenizer.Piece{{Text: "<bos>", Special: true}}, open...)
	}
	return open, close, err
}

func TestExactlyOneBOS(t *testing.T) {
	for _, addBOS := range []bool{true, false} {
		for _, tmpl := range []Template{chatML{}, bosTemplate{}} {
			e := newFake(t, func(c *Config, _ *fakeModel) { c.Tokenizer, c.Template = fakeTokenizer{addBOS}, tmpl })
			for name, turns := range map[string][]backend.Turn{
				"chat": {user("x")}, "none": nil, "raw": {raw("x")}, "raw bos": {raw("<bos>x")}, "empty raw": {raw("")}, "empty raw, chat": {raw(""), user("x")},
				"generated": {{Role: backend.Raw, Parts: []backend.Part{{Text: "x", Tokens: []backend.Token{'x'}, Model: "fake-1"}}}},
			} {
				ids, err := e.Tokenize(turns, true)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for _, id := range ids {
					if id == bosToken {
						n++
					}
				}
				_, own := tmpl.(bosTemplate)
				want := 0
				if addBOS || own && (name == "chat" || name == "none") || name == "empty raw" {
					want = 1
				}
				if n != want || n == 1 && ids[0] != bosToken {
					t.Errorf("add %v, template %T, %s: %s", addBOS, tmpl, name, idText(e, ids))
				}
			}
		}
	}
}

// TestCompileIsPrefixStable: what is appended never changes the ids before it,
// but for text right after text.
func TestCompileIsPrefixStable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	words := []string{"hi", "gh", "the", " the", "in", "g", "\n", "is", " ", "漢", "<|im_end|>"}
	e := newFake(t, nil)
	for range 300 {
		var turns []backend.Turn
		var before []backend.Token
		for range 1 + r.IntN(4) {
			turn := backend.Turn{Role: []backend.Role{backend.User, backend.Assistant, backend.System, backend.Raw}[r.IntN(4)]}
			for range r.IntN(4) {
				text := words[r.IntN(len(words))] + words[r.IntN(len(words))]
				part := backend.Part{Text: text}
				if r.IntN(3) == 0 {
					part = backend.Part{Text: "hi", Tokens: []backend.Token{'h', 'i'}, Model: "fake-1"}
				}
				turn.Parts = append(turn.Parts, part)
			}
			turns = append(turns, turn)
			ids, err := e.Tokenize(turns, false)
			if err != nil {
				t.Fatal(err)
			}
			if len(ids) < len(before) || !slices.Equal(ids[:len(before)], before) {
				t.Fatalf("%+v: %s does not begin with %s", turns, idText(e, ids), idText(e, before))
			}
			before = ids
			gen, _ := e.Tokenize(turns, true)
			if !slices.Equal(gen[:len(ids)], ids) {
				t.Fatalf("%+v: to generate: %s does not begin with %s", turns, idText(e, gen), idText(e, ids))
			}
		}
	}
}

func TestCompilerMemory(t *testing.T) {
	e := newFake(t, nil)
	e.compiler.maxBytes = 20_000
	for i := range 200 {
		if _, err := e.Tokenize([]backend.Turn{user(fmt.Sprint(i, longText(500))), user("x")}, true); err != nil {
			t.Fatal(err)
		}
		if e.compiler.bytes > 20_000+5_000 {
			t.Fatalf("%d bytes remembered", e.compiler.bytes)
		}
	}
	if n := e.compiler.order.Len(); n != len(e.compiler.memo) || n == 0 {
		t.Errorf("%d in order, %d by key", n, len(e.compiler.memo))
	}
}
