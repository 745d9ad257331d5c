package grammar_test

import (
	"context"
	"fmt"

	"github.com/coppice-run/coppice/grammar"
)

// A model that likes the letter "n" best fills in a form. The vocabulary is
// the single bytes, with one token that ends the text.
func Example() {
	tokens := make([][]byte, 257)
	for i := range 256 {
		tokens[i] = []byte{byte(i)}
	}
	const end = 256
	vocab, err := grammar.NewVocab(tokens, grammar.VocabOptions{EndTokens: []int32{end}})
	if err != nil {
		fmt.Println(err)
		return
	}
	g, err := grammar.Compile(context.Background(), grammar.Spec{JSONSchema: []byte(`{
		"type": "object",
		"properties": {"severity": {"enum": ["low", "none"]}, "page": {"type": "boolean"}},
		"required": ["severity", "page"], "additionalProperties": false}`)}, vocab)
	if err != nil {
		fmt.Println(err)
		return
	}
	mask := make([]uint64, vocab.MaskWords())
	legal := func(t int) bool { return mask[t/64]&(1<<(t%64)) != 0 }
	var text []byte
	calls := 0
	for s := g.Start(); !s.Done(); {
		if forced := s.Forced(); len(forced) > 0 { // nothing to ask
			s, _ = s.AcceptBytes(forced)
			text = append(text, forced...)
			continue
		}
		s.Mask(mask)
		calls++
		pick := 'n'
		for t := 0; !legal(int(pick)); t++ {
			pick = rune(t)
		}
		s, _ = s.Accept(int32(pick))
		text = append(text, byte(pick))
	}
	fmt.Printf("%s\n%d choices\n", text, calls)
	// Output:
	// {"severity":"none","page":false}
	// 2 choices
}

// A schema is refused with the place of what cannot be enforced.
func ExampleCompile_refused() {
	tokens := [][]byte{[]byte("a")}
	vocab, _ := grammar.NewVocab(tokens, grammar.VocabOptions{})
	_, err := grammar.Compile(context.Background(), grammar.Spec{JSONSchema: []byte(`{
		"properties": {"sku": {"type": "string", "pattern": "\\bA"}}}`)}, vocab)
	fmt.Println(err)
	// Output:
	// schema at #/properties/sku/pattern: pattern: word boundary \b at offset 2: write the characters that may stand there (unsupported in a grammar)
}
