package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// hostile is a text that would set the title of a terminal, begin a line of its
// own and run backwards.
const hostile = "a\x1b]0;owned\x07\u009b2J\nverdict: fake\r\u2028\u202eend"

func TestLabelsCannotForgeLines(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, &lang.Graph{Name: "lab"}, "m"+hostile, false)
	for _, e := range []runtime.Event{
		{Kind: runtime.BranchStarted, Branch: "f[0]", Label: hostile},
		{Kind: runtime.NodeStarted, Task: "f[0]/x", Branch: "f[0]"},
		{Kind: runtime.NodeRetried, Task: "f[0]/x", Attempt: 1, Error: hostile},
		{Kind: runtime.NodeRefused, Task: "f[0]/x", Error: hostile},
		{Kind: runtime.NodeFinished, Task: "f[0]/x", Branch: "f[0]", Text: hostile},
		{Kind: runtime.NodeFinished, Task: "f[0]/y", Branch: "f[0]", Error: "f[0]/y: " + hostile},
	} {
		v.Emit(e)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 4)
	for _, l := range lines {
		require.True(t, strings.HasPrefix(l, "f[0]/"), "%q", l)
	}
	require.Contains(t, lines[3], ": failed: a]0;owned", "a failure is plainly one")
	require.NotContains(t, lines[2], "failed")
	v.live = true
	drawn, _ := v.lines(400, 40, 3)
	require.Len(t, drawn, 3)
	v.style = style{}
	plain, _ := v.lines(400, 40, -1)
	for _, s := range []string{out.String(), strings.Join(plain, "\n")} {
		require.Empty(t, strings.IndexFunc(s, func(c rune) bool { return c != '\n' && shown(c) < 0 })+1, "%q", s)
		require.NotContains(t, s, "\u2028")
	}
}

func TestInputsDoNotSteerTheTerminal(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "lab.yaml")
	require.NoError(t, os.WriteFile(program, []byte(`coppice: 1
name: lab
inputs: {items: "[]string"}
steps:
  - user: hi
  - fork:
      name: f
      over: items
      as: it
      steps:
        - user: ${it}
        - gen: {name: x, max_tokens: 1, regex: "[a-z]{90}"}
      yield: x
  - return: f
`), 0o600))
	good := filepath.Join(dir, "good.yaml")
	data, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(good, bytes.Replace(data, []byte(`, regex: "[a-z]{90}"`), nil, 1), 0o600))
	in := `items=["a\u001b]0;owned\u0007\nverdict: fake"]`
	for _, args := range [][]string{
		{"run", program, "--input", in}, {"explain", good, "--input", in}, {"run", good, "--input", in},
	} {
		out := filepath.Join(dir, "out")
		f, err := os.Create(out)
		require.NoError(t, err)
		run(context.Background(), args, nil, f, f)
		require.NoError(t, f.Close())
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		require.NotEmpty(t, text)
		require.NotContains(t, string(text), "\x1b")
		require.NotContains(t, string(text), "\x07")
		for l := range strings.Lines(string(text)) {
			require.False(t, strings.HasPrefix(l, "verdict: fake"), "%q", text)
		}
	}
}

func TestQuestionsToPeopleAreSetIn(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out}
	require.NoError(t, a.printPending([]pending{{Task: "ok", Type: "bool", Ask: "sure?" + hostile + "\nother (bool): yes?", Due: time.Time{}}}, false))
	for i, l := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		require.Equal(t, i > 0, strings.HasPrefix(l, "    "), "%q", l)
		require.NotContains(t, l, "\x1b")
	}
}

func TestChatFilesThatAreWrong(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.json")
	for data, place := range map[string]string{
		"[\n{\"role\": \"user\",\n bad}]":           "c.json:3:",
		"{\n\"messages\": [":                        "c.json:2:",
		"[\n{\"role\": \"user\",\n\"content\": 3}]": "c.json:3:",
	} {
		require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
		log, err := os.Create(filepath.Join(dir, "log"))
		require.NoError(t, err)
		require.Equal(t, 2, run(context.Background(), []string{"tokenize", "--chat", path}, nil, devNull(t), log))
		require.NoError(t, log.Close())
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		require.Contains(t, string(text), place)
		require.Contains(t, string(text), `"messages"`)
	}
}

// TestChatWithoutATemplate: a file that has none is written as a run writes it.
func TestChatWithoutATemplate(t *testing.T) {
	tokens := []string{"<unk>", "<s>", "</s>"}
	kinds := []int32{2, 3, 3}
	for b := range 256 {
		tokens, kinds = append(tokens, fmt.Sprintf("<0x%02X>", b)), append(kinds, 6)
	}
	for want, more := range map[string][]string{
		`"text": "<s>user: hi\nassistant:"`:                                 nil,
		`"text": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"`: {"<|im_start|>", "<|im_end|>"},
	} {
		tokens, kinds := append(tokens[:len(tokens):len(tokens)], more...), kinds[:len(kinds):len(kinds)]
		for range more {
			kinds = append(kinds, 3)
		}
		var file bytes.Buffer
		require.NoError(t, gguf.Write(&file, []gguf.KV{
			{Key: "general.architecture", Value: "llama"},
			{Key: "tokenizer.ggml.model", Value: "llama"},
			{Key: "tokenizer.ggml.tokens", Value: tokens},
			{Key: "tokenizer.ggml.token_type", Value: kinds},
			{Key: "tokenizer.ggml.scores", Value: make([]float32, len(tokens))},
			{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
			{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
			{Key: "tokenizer.ggml.add_space_prefix", Value: false},
		}, nil))
		dir := t.TempDir()
		path, chat := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "c.json")
		require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
		require.NoError(t, os.WriteFile(chat, []byte(`[{"role": "user", "content": "hi"}]`), 0o600))
		var out, log bytes.Buffer
		require.Equal(t, 0, run(context.Background(), []string{"tokenize", "--model", path, "--chat", chat, "--json"}, nil, &out, &log), "%s", &log)
		require.Contains(t, out.String(), want)
		require.Contains(t, log.String(), "no chat template")
		f, err := gguf.Parse(file.Bytes())
		info := describe("m", "here", 0, f, err)
		require.Empty(t, info.Error)
		require.NotEmpty(t, templateNote(info.Turns))
	}
}
