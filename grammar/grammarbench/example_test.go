package grammarbench_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/grammar/grammarbench"
)

// A tokenizer of the letters that the texts below are made of, and a schema with
// one valid text.
func Example() {
	tok, err := grammarbench.ReadTokenizer(strings.NewReader(`{
		"model": {"type": "BPE", "vocab": {"o": 0, "k": 1, "ok": 2, "\"": 3, "x": 4}, "merges": ["o k"]},
		"added_tokens": [{"id": 5, "content": "<|im_end|>", "special": true}]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tok.Encode([]byte(`"ok"`)))

	schemas := `{"id": "1", "schema": {"enum": ["ok", "x"]}, "tests": [{"valid": true, "data": "ok"}]}`
	report, err := grammarbench.Run(context.Background(), strings.NewReader(schemas), tok)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Compiled, "of", report.Schemas, "schemas compiled,", report.Texts, "text walked")
	// Output:
	// [3 2 3]
	// 1 of 1 schemas compiled, 1 text walked
}
