package tokenizer_test

import (
	"bytes"
	"fmt"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

func Example() {
	// A model file with a vocabulary of seven tokens.
	var file bytes.Buffer
	gguf.Write(&file, []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "gpt-2"},
		{Key: "tokenizer.ggml.tokens", Value: []string{"<|end|>", "o", "k", "Ġ", "ok", "Ġok", "!"}},
		{Key: "tokenizer.ggml.token_type", Value: []int32{3, 1, 1, 1, 1, 1, 1}},
		{Key: "tokenizer.ggml.merges", Value: []string{"o k", "Ġ ok"}},
	}, nil)
	f, err := gguf.Parse(file.Bytes())
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := tokenizer.FromGGUF(f)
	if err != nil {
		fmt.Println(err)
		return
	}

	ids := t.EncodePieces([]tokenizer.Piece{
		{Text: "ok"},
		{Text: " ok!"}, // joined with the piece before
		{Text: "<|end|>", Special: true},
	})
	fmt.Println(ids, t.Decode(ids), t.EndTokens())

	s := tokenizer.NewStreamDecoder(t)
	for _, id := range ids {
		fmt.Printf("%q ", s.Push(id))
	}
	fmt.Printf("%q\n", s.Flush())
	// Output:
	// [4 5 6 0] ok ok! [0]
	// "ok" " ok" "!" "" ""
}
