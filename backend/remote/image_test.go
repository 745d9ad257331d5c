package remote

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// TestImagesReachTheServer: a user's turn with pictures becomes content parts, and a
// select behind one lets the model choose, on servers that score texts too.
func TestImagesReachTheServer(t *testing.T) {
	turns := []backend.Turn{{Role: backend.User, Parts: []backend.Part{
		{Text: "What "}, {Text: "is it?"}, {Image: "data:image/png;base64,AAAA"}, {Image: "https://example.org/b.png"}, {Text: "Say."},
	}}}
	const parts = `"content":[{"text":"What is it?","type":"text"},{"image_url":{"url":"data:image/png;base64,AAAA"},"type":"image_url"},` +
		`{"image_url":{"url":"https://example.org/b.png"},"type":"image_url"},{"text":"Say.","type":"text"}]`
	for _, scheme := range []string{"openai+http", "vllm+http", "sglang+http", "ollama+http"} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				answer := "a"
				if !dialects[strings.TrimSuffix(scheme, "+http")].trusted {
					answer = `{"choice":"a"}` // a choice in a schema
				}
				f := (&fake{answer: []string{answer}}).start(t)
				b := f.open(scheme, Options{})
				if !b.Info().Capabilities.Images {
					t.Error("it says that it takes no pictures")
				}
				if _, err := b.Generate(t.Context(), &backend.Request{Turns: turns, MaxTokens: 20}, nil); err != nil {
					t.Fatal(err)
				}
				body := f.got[len(f.got)-1].Raw
				if !strings.Contains(normal(body), normal(parts)) {
					t.Errorf("got %s", body)
				}
				res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: turns, Options: []string{"a", "b"}, Closed: true})
				if err != nil || res.Options[0].Sum != 0 || len(res.Emulated) == 0 {
					t.Errorf("%+v %v", res, err)
				}
				_, err = b.Score(t.Context(), &backend.ScoreRequest{Turns: turns, Options: []string{"a", "b"}, Method: backend.TokenLengthNormalized})
				if !errors.Is(err, backend.ErrUnsupported) {
					t.Error(err)
				}
			})
		})
	}
}

// normal brings the two orders of keys that encoders have into one.
func normal(s string) string {
	s = strings.ReplaceAll(s, `"type":"text",`, "")
	s = strings.ReplaceAll(s, `,"type":"text"`, "")
	s = strings.ReplaceAll(s, `"type":"image_url",`, "")
	return strings.ReplaceAll(s, `,"type":"image_url"`, "")
}

func TestImagesAreRefusedWhereTextIsRead(t *testing.T) {
	turns := []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Image: "https://example.org/b.png"}}}}
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"a"}}).start(t)
		b := f.open("llama+http", Options{})
		if b.Info().Capabilities.Images {
			t.Error("it says that it takes pictures")
		}
		before := len(f.got)
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: turns, MaxTokens: 2}, nil); !errors.Is(err, backend.ErrUnsupported) || len(f.got) != before {
			t.Error(err)
		}
		v := f.open("vllm+http", Options{})
		turns[0].Role = backend.Assistant
		if _, err := v.Generate(t.Context(), &backend.Request{Turns: turns, MaxTokens: 2}, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Error(err)
		}
	})
}
