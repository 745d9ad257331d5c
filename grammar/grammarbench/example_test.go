package grammarbench_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/grammar/grammarbench"
)

// A tokenizer of a few tokens, and one schema with a text: all of it is forced.
func Example() {
	tok, err := grammarbench.ReadTokenizer(strings.NewReader(`{
		"added_tokens": [{"id": 7, "content": "<|endoftext|>", "special": true}],
		"model": {"type": "BPE", "vocab": {"{": 0, "}": 1, "\"": 2, "a": 3, ":": 4, "1": 5, "\":": 6}, "merges": [["\"", ":"]]}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := grammarbench.Run(context.Background(), strings.NewReader(
		`{"id":"x","schema":{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false},"tests":[{"valid":true,"data":{"a":1}}]}`), tok)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d schemas compiled, %d masks, %.0f%% of the tokens forced\n", report.Compiled, report.Schemas, report.MaskUS.N, 100*report.ForcedShare)
	// Output: 1 of 1 schemas compiled, 6 masks, 100% of the tokens forced
}
