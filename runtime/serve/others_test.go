package serve

import (
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/puppet"
)

// markVocab has a control token that ends nothing.
type markVocab struct{ byteVocab }

const mark backend.Token = 1

func (markVocab) IsControl(id backend.Token) bool { return id == mark || id == puppet.EOS }
func (v markVocab) Bytes(id backend.Token) []byte {
	if id == mark {
		return nil
	}
	return v.byteVocab.Bytes(id)
}
func (v markVocab) Text(id backend.Token) string {
	if id == mark {
		return "<|mark|>"
	}
	return v.byteVocab.Text(id)
}

// With skip_special_tokens false an answer shows the control tokens that the model
// drew, in all routes, whole and streamed, and log-probabilities stand beside them.
func TestControlTokensAreShown(t *testing.T) {
	model := &chain{next: func(b byte) backend.Token {
		switch b {
		case 'b':
			return mark
		case byte(mark):
			return 'c'
		case 'd':
			return puppet.EOS
		}
		return alphabet(b)
	}}
	e, err := engine.New(engine.Config{Model: model, Tokenizer: markVocab{}, Fingerprint: "mark-1", Name: "mark", Pages: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	c := serveFor(t, e, func(c *Config) { c.Vocabulary = markVocab{} })
	for _, show := range []bool{false, true} {
		want := "abcd"
		if show {
			want = "ab<|mark|>cd"
		}
		raw := tree{"prompt": ".", "temperature": 0, "skip_special_tokens": !show, "logprobs": 0, "max_tokens": 9}
		got := c.ok(rawPath, raw)
		offsets := at(got, "choices", 0, "logprobs", "text_offset").([]any)
		if at(got, "choices", 0, "text") != want || len(offsets) != 5 || offsets[4] != float64(len(want)-1) {
			t.Errorf("%v: %v", show, got)
		}
		chat := ask("x", "temperature", 0, "skip_special_tokens", !show, "logprobs", true)
		got = c.ok(chatPath, chat)
		var bytes []byte
		for _, x := range at(got, "choices", 0, "logprobs", "content").([]any) {
			for _, b := range at(x, "bytes").([]any) {
				bytes = append(bytes, byte(b.(float64)))
			}
		}
		if place(got, said) != want || string(bytes) != want {
			t.Errorf("%v: %q, %v", show, bytes, got)
		}
		chat["stream"] = true
		if text := chatText(c.stream(chatPath, chat), 0); text != want {
			t.Errorf("%v: streamed %q", show, text)
		}
		got = c.ok(responsePath, tree{"input": "x", "temperature": 0, "skip_special_tokens": !show, "include": []any{"message.output_text.logprobs"}})
		if text := place(got, "output.0.content.0.text"); text != want || len(place(got, "output.0.content.0.logprobs").([]any)) != 5 {
			t.Errorf("%v: %v", show, got)
		}
		got = c.ok(nativePath, tree{"text": ".", "sampling_params": tree{"temperature": 0, "skip_special_tokens": !show}})
		if got["text"] != want {
			t.Errorf("%v: %v", show, got)
		}
	}
	// A stop string may stand in the name of one.
	got := c.ok(rawPath, tree{"prompt": ".", "temperature": 0, "skip_special_tokens": false, "stop": "|mark", "max_tokens": 9})
	if text := place(got, cont).(string); text != "ab<" {
		t.Errorf("%q", text)
	}
	m := puppet.New()
	m.OnAny().Reply("x")
	bare := serveFor(t, m, func(c *Config) { c.Vocabulary = nil })
	bare.refused(chatPath, ask("x", "skip_special_tokens", false), 400, "skip_special_tokens")
	bare.ok(chatPath, ask("x", "skip_special_tokens", true))
}

// startsVocab begins prompts with a token of its own.
type startsVocab struct{ byteVocab }

func (startsVocab) WithBOS(ids []backend.Token) []backend.Token {
	return append([]backend.Token{2}, ids...)
}

// A prompt without what the model's prompts begin with cannot be had.
func TestPromptsBeginOnce(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), func(c *Config) { c.Vocabulary = startsVocab{} })
	c.refused(rawPath, rawOf("add_special_tokens", false), 400, "add_special_tokens")
	if n := len(c.ok("/tokenize", tree{"prompt": "ab", "add_special_tokens": false})["tokens"].([]any)); n != 2 {
		t.Error(n)
	}
}

// What no template can be told is refused where there is none.
func TestDocumentsNeedATemplate(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("x")
	c := serveFor(t, m, nil)
	c.refused(chatPath, ask("x", "documents", []any{tree{"text": "d"}}), 400, "documents")
	c.ok(chatPath, ask("x", "reasoning_effort", "low"))
	c.refused(chatPath, ask("x", "documents", "d"), 400, "documents")
	if status, out := c.post(chatPath, ask("x", "structured_outputs", tree{"regex": "x", "_backend": strings.Repeat("a", 3)})); status != 200 {
		t.Error(status, out)
	}
}
