package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
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
		"control text of all": {[]backend.Turn{
			{Role: backend.System, Parts: []backend.Part{{Text: "<|im_start|>"}}}, {Role: backend.Assistant, Parts: []backend.Part{{Text: "<bos>"}}},
			{Role: backend.Tool, Parts: []backend.Part{{Text: "<|im_end|>"}}}, {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "<|im_end|>"}}}}, true,
			"<S>|s|y|s|t|e|m|\n|<|||i|m|_|s|t|a|r|t|||>|<E>|\n|<S>|ass|is|t|a|n|t|\n|<|b|o|s|>|<E>|\n|<S>|t|o|o|l|\n|<|||i|m|_|e|n|d|||>|<E>|\n|<S>|ass|is|t|a|n|t|\n|<|||i|m|_|e|n|d|||>|"},
		"generated ids": {[]backend.Turn{{Role: backend.User, Open: true, Parts: []backend.Part{{Text: "is"}, gen, {Text: "er"}}}}, true, "<S>|user\n|is| |h|i|g|h|er|"},
		"foreign ids":   {[]backend.Turn{{Role: backend.User, Open: true, Parts: []backend.Part{{Text: "is"}, other, {Text: "er"}}}}, true, "<S>|user\n|is |high|er|"},
		"raw":           {[]backend.Turn{raw("high")}, true, "high|"},
		"raw, raw":      {[]backend.Turn{raw("hi"), raw("gh")}, true, "h|i|g|h|"},
		"raw then user": {[]backend.Turn{raw("hi"), user("in")}, true, "h|i|<S>|user\n|in|<E>|\n|<S>|ass|is|t|a|n|t|\n|"},
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

func (b bosTemplate) Turn(history []backend.Turn, role backend.Role) (Around, error) {
	a, err := b.chatML.Turn(history, role)
	if !slices.ContainsFunc(history, func(t backend.Turn) bool { return t.Text() != "" || t.Role != backend.Raw }) {
		a.Open = append([]tokenizer.Piece{{Text: "<bos>", Special: true}}, a.Open...)
	}
	return a, err
}

func TestExactlyOneBOS(t *testing.T) {
	for _, addBOS := range []bool{true, false} {
		for _, tmpl := range []Template{chatML{}, bosTemplate{}} {
			e := newFake(t, func(c *Config, _ *fakeModel) { c.Tokenizer, c.Template = fakeTokenizer{addBOS}, tmpl })
			for name, turns := range map[string][]backend.Turn{
				"chat": {user("x")}, "none": nil, "raw": {raw("x")}, "raw, chat": {raw("x"), user("y")}, "raw bos": {raw("<bos>x")}, "empty raw": {raw("")}, "empty raw, chat": {raw(""), user("x")},
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
				if addBOS || own && (name == "chat" || name == "none" || name == "empty raw, chat") || name == "empty raw" {
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

// ids of a prompt by a built-in chat template over the real chat package.
func chatText(t *testing.T, builtin string, turns []backend.Turn) string {
	t.Helper()
	tmpl, err := chat.Builtin(builtin)
	if err != nil {
		t.Fatal(err)
	}
	c := newCompiler(textTokenizer{}, ChatTemplate(tmpl), "f", 1<<20)
	p, err := c.compile(turns, true)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, id := range p.ids {
		b.WriteByte(byte(id))
	}
	return b.String()
}

// textTokenizer has bytes only, so that ids read as text.
type textTokenizer struct{ fakeTokenizer }

func (textTokenizer) EncodePieces(pieces []tokenizer.Piece) (ids []backend.Token) {
	for _, p := range pieces {
		for i := range len(p.Text) {
			ids = append(ids, backend.Token(p.Text[i]))
		}
	}
	return ids
}

func TestChatTemplates(t *testing.T) {
	system := backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: "Be brief."}}}
	reply := backend.Turn{Role: backend.Assistant, Parts: []backend.Part{{Text: "Yes."}}}
	for name, c := range map[string]struct {
		builtin string
		turns   []backend.Turn
		want    string
	}{
		"chatml": {chat.ChatML, []backend.Turn{system, user("A?"), reply, user("B?")},
			"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nB?<|im_end|>\n<|im_start|>assistant\n"},
		"gemma": {chat.Gemma, []backend.Turn{system, user("A?"), reply, user("B?")},
			"<bos><start_of_turn>user\nBe brief.\n\nA?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n"},
		"after raw text": {chat.Gemma, []backend.Turn{raw("Once."), user("A?")},
			"Once.<start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>model\n"},
		"two user turns": {chat.Gemma, []backend.Turn{user("A?"), user("B?")},
			"<bos><start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n"},
		"system, two user turns": {chat.Gemma, []backend.Turn{system, user("A?"), user("B?")},
			"<bos><start_of_turn>user\nBe brief.\n\nA?<end_of_turn>\n<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n"},
		"system alone": {chat.Gemma, []backend.Turn{system},
			"<bos><start_of_turn>user\nBe brief.<end_of_turn>\n<start_of_turn>model\n"},
		"a late system turn": {chat.Gemma, []backend.Turn{user("A?"), system, user("B?")},
			"<bos><start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>user\nBe brief.<end_of_turn>\n<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n"},
		"reply first": {chat.Gemma, []backend.Turn{reply, user("B?")},
			"<start_of_turn>model\nYes.<end_of_turn>\n<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n"},
		"llama3": {chat.Llama3, []backend.Turn{system, user("A?"), user("B?")},
			"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nB?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := chatText(t, c.builtin, c.turns); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// countingTokenizer counts the bytes that it is given.
type countingTokenizer struct {
	fakeTokenizer
	bytes *atomic.Int64
}

func (c countingTokenizer) EncodePieces(pieces []tokenizer.Piece) []backend.Token {
	for _, p := range pieces {
		c.bytes.Add(int64(len(p.Text)))
	}
	return c.fakeTokenizer.EncodePieces(pieces)
}

func TestTrunkIsTokenisedOnce(t *testing.T) {
	var n atomic.Int64
	c := newCompiler(countingTokenizer{bytes: &n}, chatML{}, "f", 1<<20)
	trunk := user(longText(20_000))
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if _, err := c.compile([]backend.Turn{trunk, user(fmt.Sprint("branch ", i))}, true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := n.Load(); got > 20_000+32*200 {
		t.Errorf("%d bytes tokenised for a trunk of 20,000 and 32 branches", got)
	}
	if len(c.busy) != 0 {
		t.Error("unfinished entries")
	}
}

// brokenTemplate fails for every turn but the first.
type brokenTemplate struct{ chatML }

func (b brokenTemplate) Turn(history []backend.Turn, role backend.Role) (Around, error) {
	if len(history) > 0 {
		return Around{}, errors.New("no more turns")
	}
	return b.chatML.Turn(history, role)
}

func TestTemplateErrors(t *testing.T) {
	c := newCompiler(fakeTokenizer{}, brokenTemplate{}, "f", 1<<20)
	for range 2 {
		if _, err := c.compile([]backend.Turn{user("x")}, true); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "turn 1 (assistant)") {
			t.Error(err)
		}
	}
	if _, err := c.compile([]backend.Turn{user("x")}, false); err != nil {
		t.Error(err)
	}
}

// TestPicturesAreRefused: the engine's models read text, and nothing of a picture is
// read as text.
func TestPicturesAreRefused(t *testing.T) {
	e := newFake(t, nil)
	if e.Info().Capabilities.Images {
		t.Error("it says that it takes pictures")
	}
	turns := []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "What is it?"}, {Image: "https://example.org/a.png"}}}}
	_, generated := e.Generate(t.Context(), &backend.Request{Turns: turns, MaxTokens: 1}, nil)
	_, scored := e.Score(t.Context(), &backend.ScoreRequest{Turns: turns, Options: []string{"a"}})
	_, counted := e.Tokenize(turns, true)
	for what, err := range map[string]error{"generated": generated, "scored": scored, "counted": counted} {
		if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "reads text only") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
