package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// successor is a model that writes the byte after the last one, up to 'z'. A
// real one comes from a file: see engine.Open.
type successor struct{}

func (successor) VocabSize() int                      { return 257 }
func (successor) ContextLength() int                  { return 256 }
func (successor) PageBytes() int                      { return 1 }
func (successor) NewKV(pages int) (engine.KV, error)  { return successor{}, nil }
func (successor) CopyPage(dst, src int32, tokens int) {}
func (successor) Close()                              {}

func (successor) Forward(b *model.Batch, logits [][]float32) error {
	out := 0
	for _, row := range b.Rows {
		for _, i := range row.Outputs {
			clear(logits[out])
			next := row.Tokens[i] + 1
			if row.Tokens[i] == 'z' {
				next = end
			}
			logits[out][next] = 1
			out++
		}
	}
	return nil
}

// byteTokens is a tokenizer of bytes and one end token.
type byteTokens struct{}

const end = 256

func (byteTokens) EncodePieces(pieces []tokenizer.Piece) (ids []backend.Token) {
	for _, p := range pieces {
		for i := range len(p.Text) {
			ids = append(ids, backend.Token(p.Text[i]))
		}
	}
	return ids
}

func (byteTokens) Bytes(id backend.Token) []byte {
	if id == end {
		return nil
	}
	return []byte{byte(id)}
}

func (byteTokens) Size() int                       { return 257 }
func (byteTokens) IsControl(id backend.Token) bool { return id == end }
func (byteTokens) EndTokens() []backend.Token      { return []backend.Token{end} }
func (byteTokens) BOS() (backend.Token, bool)      { return 0, false }
func (byteTokens) EOS() (backend.Token, bool)      { return end, true }
func (byteTokens) AddBOS() bool                    { return false }
func (byteTokens) AddSpacePrefix() bool            { return false }

func Example() {
	e, err := engine.New(engine.Config{Model: successor{}, Tokenizer: byteTokens{}, Fingerprint: "successor-1", Pages: 32})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()

	prompt := []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{{Text: "the alphabet ends with t"}}}}
	for _, constraint := range []string{"", "u-[a-z]{2}"} {
		r, err := e.Generate(context.Background(), &backend.Request{
			Turns:      prompt,
			Constraint: backend.Constraint{Regex: constraint},
		}, nil)
		if err != nil {
			log.Fatal(err)
		}
		u := r.Usage
		fmt.Printf("%q %s: %d of %d prompt tokens cached, %d computed, %d forced\n",
			r.Part.Text, r.Finish, u.CachedTokens, u.PromptTokens, u.ComputedTokens, u.ForcedTokens)
	}
	// Output:
	// "uvwxyz" stop: 0 of 24 prompt tokens cached, 30 computed, 0 forced
	// "u-ab" stop: 24 of 24 prompt tokens cached, 2 computed, 2 forced
}
