package tokenizer

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

//go:embed testdata/golden_*.jsonl
var goldenFiles embed.FS

// models are the files that the golden tokens were recorded with.
var models = map[string]string{
	"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
	"gemma3":  "gemma-3-270m-q4_k_m.gguf",
	"qwen25":  "qwen2.5-0.5b-q4.gguf",
}

// loadModel returns the tokenizer of a real model, or skips the test.
func loadModel(t testing.TB, name string) *Tokenizer {
	t.Helper()
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("set COPPICE_MODELS to the folder with " + models[name])
	}
	f, err := gguf.Open(filepath.Join(dir, models[name]))
	if err != nil {
		t.Skipf("COPPICE_MODELS: %v", err)
	}
	defer f.Close()
	tok, err := FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type goldenLine struct {
	Text           string
	SHA256         string
	Special, Plain []Token
}

func readLines(t *testing.T, file string) (out []goldenLine) {
	t.Helper()
	data, err := goldenFiles.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var l goldenLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

func TestTokensEqualThoseOfLlamaCpp(t *testing.T) {
	for name := range models {
		t.Run(name, func(t *testing.T) {
			tok := loadModel(t, name)
			for _, l := range readLines(t, "golden_"+name+".jsonl") {
				for _, c := range []struct {
					special bool
					want    []Token
				}{{true, l.Special}, {false, l.Plain}} {
					got := tok.Encode(l.Text, c.special)
					if !slices.Equal(got, c.want) {
						t.Errorf("%q, special %v:\n got %v %q\nwant %v %q", l.Text, c.special, got, texts(tok, got), c.want, texts(tok, c.want))
					}
				}
			}
		})
	}
}

func texts(t *Tokenizer, ids []Token) (out []string) {
	for _, id := range ids {
		out = append(out, t.Text(id))
	}
	return out
}
