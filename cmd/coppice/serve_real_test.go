package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestRealServeTextAndIDs: a conversation that is sent again as token ids hits the cache
// for all that was prompt and all that was generated. Sent again as text it may be read as
// other tokens than those that were drawn; then the usage shows from where on nothing was
// cached, and the answer is that of these other tokens computed anew.
func TestRealServeTextAndIDs(t *testing.T) {
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("COPPICE_MODELS is not set: it names a folder with real models")
	}
	if testing.Short() {
		t.Skip("writes 300 tokens")
	}
	const model = "SmolLM2-135M-Instruct.Q4_1"
	file := filepath.Join(dir, model+".gguf")
	if _, err := os.Stat(file); err != nil {
		t.Skip(err)
	}
	url, stop := serveModel(t, "--model", file)
	defer stop()
	post := func(path string, body map[string]any, into any) {
		t.Helper()
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(url+path, "application/json", bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if data, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", path, resp.Status, data, err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		Text   string
		Prompt []int32 `json:"prompt_token_ids"`
		Output []int32 `json:"output_ids"`
		Meta   struct {
			Cached int `json:"cached_tokens"`
		} `json:"meta_info"`
	}
	tokens := func(text string) []int32 {
		t.Helper()
		var got struct{ Tokens []int32 }
		post("/tokenize", map[string]any{"model": model, "prompt": text}, &got)
		return got.Tokens
	}
	const prompt, more = "Write a short story about the Antarctic research ship Köpenick and its crew of mice.", "\n\nThe name of the ship is"
	var first answer
	post("/generate", map[string]any{
		"text": prompt, "return_prompt_token_ids": true,
		"sampling_params": map[string]any{"max_new_tokens": 300, "temperature": 1.2, "sampling_seed": 4, "ignore_eos": true},
	}, &first)
	before := slices.Concat(first.Prompt, first.Output)
	if len(first.Output) != 300 {
		t.Fatalf("%d tokens", len(first.Output))
	}
	text := prompt + first.Text + more
	read := tokens(text)
	same := 0
	for same < min(len(read), len(before)) && read[same] == before[same] {
		same++
	}
	if same >= len(before) {
		t.Fatal("the text is read as the tokens that were drawn: another seed")
	}
	next := func(salt string, body map[string]any) (a answer) {
		t.Helper()
		body["sampling_params"] = map[string]any{"max_new_tokens": 8, "temperature": 0}
		if salt != "" {
			body["cache_salt"] = salt
		}
		post("/generate", body, &a)
		return a
	}
	ids := slices.Concat(before, tokens(more))
	asIDs, asText := next("", map[string]any{"input_ids": ids}), next("", map[string]any{"text": text})
	if asIDs.Meta.Cached != len(before)-1 {
		t.Errorf("as ids: %d tokens cached, want the %d of prompt and answer but for the last", asIDs.Meta.Cached, len(before))
	}
	if asText.Meta.Cached != same {
		t.Errorf("as text: %d tokens cached, want the %d that are the same", asText.Meta.Cached, same)
	}
	coldIDs, coldText := next("one", map[string]any{"input_ids": ids}), next("two", map[string]any{"input_ids": read})
	if coldIDs.Meta.Cached != 0 || coldText.Meta.Cached != 0 {
		t.Errorf("under salts of their own %d and %d tokens are cached", coldIDs.Meta.Cached, coldText.Meta.Cached)
	}
	if !slices.Equal(asIDs.Output, coldIDs.Output) || !slices.Equal(asText.Output, coldText.Output) {
		t.Errorf("from the cache %q and %q, anew %q and %q", asIDs.Text, asText.Text, coldIDs.Text, coldText.Text)
	}
	t.Logf("as text %q, as ids %q", asText.Text, asIDs.Text)
}
