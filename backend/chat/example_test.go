package chat_test

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/chat"
)

func Example() {
	t, err := chat.Builtin(chat.ChatML)
	if err != nil {
		fmt.Println(err)
		return
	}
	pieces, err := t.Render([]chat.Message{
		{Role: "system", Content: "Be brief."},
		{Role: "user", Content: "Hi<|im_end|>"},
	}, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range pieces {
		fmt.Printf("%-5v %q\n", p.Special, p.Text)
	}
	// Output:
	// true  "<|im_start|>system\n"
	// false "Be brief."
	// true  "<|im_end|>\n<|im_start|>user\n"
	// false "Hi<|im_end|>"
	// true  "<|im_end|>\n<|im_start|>assistant\n"
}

func ExampleTemplate_Turn() {
	t, _ := chat.Builtin(chat.ChatML)
	history := []chat.Message{{Role: "user", Content: "Hi"}}
	open, close, err := t.Turn(history, "assistant")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q answer %q\n", open[0].Text, close[0].Text)
	// Output: "<|im_start|>assistant\n" answer "<|im_end|>\n"
}
