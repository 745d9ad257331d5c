package model_test

import (
	"fmt"
	"log"
	"os"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
)

// Two continuations of one prompt: the prompt is computed once, and its page is
// read by both.
func Example() {
	f, err := gguf.Open(os.Getenv("MODEL"))
	if err != nil {
		log.Fatal(err)
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	kv, err := m.NewKV(64)
	if err != nil {
		log.Fatal(err)
	}
	defer kv.Close()

	prompt := []int32{1, 351, 22, 908, 4, 77, 1200, 31, 5, 5, 61, 7, 12, 901, 33, 2} // 16 tokens
	err = m.Forward(kv, &model.Batch{Rows: []model.Row{
		{Tokens: prompt, Pages: []int32{0}},
	}}, nil)
	if err != nil {
		log.Fatal(err)
	}

	logits := [][]float32{make([]float32, m.Config().Vocab), make([]float32, m.Config().Vocab)}
	err = m.Forward(kv, &model.Batch{Rows: []model.Row{
		{Tokens: []int32{10}, Start: 16, Pages: []int32{0, 1}, Outputs: []int{0}},
		{Tokens: []int32{11}, Start: 16, Pages: []int32{0, 2}, Outputs: []int{0}},
	}}, logits)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(logits[0][0], logits[1][0])
}

func ExampleFamilies() {
	fmt.Println(model.Families())
	// Output: [gemma2 gemma3 llama phi3 qwen2 qwen3 qwen3moe smollm3]
}
