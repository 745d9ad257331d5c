package tokenizer

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

//go:embed testdata/*.jsonl testdata/*.json
var goldenFiles embed.FS

// models are the files that the golden tokens were recorded with.
var models = map[string]string{
	"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
	"gemma3":  "gemma-3-270m-q4_k_m.gguf",
	"qwen25":  "qwen2.5-0.5b-q4.gguf",
	"sapling": embedded,
}

// embedded is the model of package sapling, the only one that is always there.
const embedded = "../sapling/sapling.gguf"

// loadModel returns the tokenizer of a real model, or skips the test.
func loadModel(t testing.TB, name string) *Tokenizer {
	t.Helper()
	if name == "sapling" {
		return loadSapling(t)
	}
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

// loadSapling skips the test if the vocabulary is not the recorded one any more.
func loadSapling(t testing.TB) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(embedded)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	tok, err := FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := readVocab(t, "sapling").Pieces; hashOfBytes(tok) != want {
		t.Skipf("the vocabulary of %s is not the recorded one: record testdata/*_sapling.* again", embedded)
	}
	return tok
}

// vocabFacts is what llama.cpp says of a vocabulary.
type vocabFacts struct {
	Size, Control int
	BOS, EOS      Token
	AddBOS        bool `json:"add_bos"`
	Ends          []Token
	Pieces        string // hash over the bytes of all tokens
}

func readVocab(t testing.TB, name string) (v vocabFacts) {
	t.Helper()
	data, err := goldenFiles.ReadFile("testdata/vocab_" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func hashOfBytes(tok *Tokenizer) string {
	h := sha256.New()
	for id := range Token(tok.Size()) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(tok.Bytes(id)))))
		h.Write(tok.Bytes(id))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
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

// TestForeignLinesEqualLlamaCpp is case B03: lines of the shared cases, whose tokens
// are recorded under a hash of the line.
func TestForeignLinesEqualLlamaCpp(t *testing.T) {
	dir := os.Getenv("COPPICE_SHARED")
	if dir == "" {
		t.Skip("set COPPICE_SHARED to the folder that holds cases/")
	}
	data, err := os.ReadFile(filepath.Join(dir, "cases", "B03", "cases.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range models {
		if name == "sapling" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			tok := loadModel(t, name)
			want := map[string]goldenLine{}
			for _, l := range readLines(t, "hashed_"+name+".jsonl") {
				want[l.SHA256] = l
			}
			compared := 0
			for line := range strings.SplitSeq(strings.TrimSuffix(string(data), "\n"), "\n") {
				for _, text := range slices.Compact([]string{line, unescape(line)}) {
					l, ok := want[fmt.Sprintf("%x", sha256.Sum256([]byte(text)))]
					if !ok {
						t.Errorf("no tokens recorded for %q: record hashed_%s.jsonl again", text, name)
						continue
					}
					compared++
					if got := tok.Encode(text, true); !slices.Equal(got, l.Special) {
						t.Errorf("%q: got %v, want %v", text, got, l.Special)
					}
					if got := tok.Encode(text, false); !slices.Equal(got, l.Plain) {
						t.Errorf("%q, plain: got %v, want %v", text, got, l.Plain)
					}
				}
			}
			t.Logf("%d texts compared", compared)
		})
	}
}

// unescape reads \n, \t and \uXXXX as the characters that they stand for.
func unescape(s string) string {
	return regexp.MustCompile(`\\(n|t|r|u[0-9a-fA-F]{4})`).ReplaceAllStringFunc(s, func(m string) string {
		u, err := strconv.Unquote(`"` + m + `"`)
		if err != nil {
			return m
		}
		return u
	})
}

func TestVocabularyEqualsThatOfLlamaCpp(t *testing.T) {
	for name := range models {
		t.Run(name, func(t *testing.T) {
			tok := loadModel(t, name)
			want := readVocab(t, name)
			bos, _ := tok.BOS()
			eos, _ := tok.EOS()
			if tok.Size() != want.Size || bos != want.BOS || eos != want.EOS || tok.AddBOS() != want.AddBOS {
				t.Errorf("size %d, BOS %d, EOS %d, BOS added %v; want %+v", tok.Size(), bos, eos, tok.AddBOS(), want)
			}
			if !slices.Equal(tok.EndTokens(), want.Ends) {
				t.Errorf("end tokens %v, want %v", tok.EndTokens(), want.Ends)
			}
			if got := hashOfBytes(tok); got != want.Pieces {
				t.Errorf("the bytes of the tokens differ: hash %s, want %s", got, want.Pieces)
			}
		})
	}
}

func TestCutsDoNotChangeTokens(t *testing.T) {
	for name := range models {
		t.Run(name, func(t *testing.T) {
			tok := loadModel(t, name)
			for _, l := range readLines(t, "golden_"+name+".jsonl") {
				mid := len(l.Text) / 2
				if got := tok.EncodePieces([]Piece{{l.Text[:mid], false}, {l.Text[mid:], false}}); !slices.Equal(got, l.Plain) {
					t.Errorf("plain %q in two pieces: got %v, want %v", l.Text, got, l.Plain)
				}
				if got := tok.EncodePieces([]Piece{{l.Text[:mid], true}, {l.Text[mid:], true}}); !slices.Equal(got, l.Special) {
					t.Errorf("special %q in two pieces: got %v, want %v", l.Text, got, l.Special)
				}
				if got := tok.Decode(l.Plain); got != l.Text && name != "gemma3" { // ▁ and space are one there
					t.Errorf("%q came back as %q", l.Text, got)
				}
			}
		})
	}
}
