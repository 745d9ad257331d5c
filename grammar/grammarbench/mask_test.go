package grammarbench

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-run/coppice/grammar"
)

// sharedLines calls visit for the lines of a file of the shared test data.
func sharedLines(t *testing.T, name string, visit func(l *line)) {
	t.Helper()
	root := os.Getenv("COPPICE_SHARED")
	if root == "" {
		t.Skip("COPPICE_SHARED is not set: it names the folder of the shared test data")
	}
	f, err := os.Open(filepath.Join(root, "data", "grammar", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		visit(&l)
	}
}

// tokenizers are those that COPPICE_TOKENIZERS lists, with -short the first of them.
func tokenizers(t *testing.T) map[string]*Tokenizer {
	t.Helper()
	list := os.Getenv("COPPICE_TOKENIZERS")
	if list == "" {
		t.Skip("COPPICE_TOKENIZERS (tokenizer.json files) is not set")
	}
	out := map[string]*Tokenizer{}
	for _, path := range filepath.SplitList(list) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := ReadTokenizer(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[path] = tok
		if testing.Short() {
			break
		}
	}
	return out
}

// TestMasksTokenByToken compares masks of real vocabularies with what happens
// to each token, at a place of every tenth schema of the development sample, with -short
// every thirtieth.
func TestMasksTokenByToken(t *testing.T) {
	for name, tok := range tokenizers(t) {
		vocab, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(5, 6))
		bits := make([]uint64, vocab.MaskWords())
		n, places := 0, 0
		sharedLines(t, "maskbench_dev.jsonl.gz", func(l *line) {
			if n++; n%10 != 0 || testing.Short() && n%30 != 0 || len(l.Tests) == 0 {
				return
			}
			g, err := grammar.Compile(context.Background(), grammar.Spec{JSONSchema: l.Schema, AnyOrder: n%20 == 0}, vocab)
			if err != nil {
				return
			}
			text, err := grammar.Canonical(l.Tests[0].Data)
			if err != nil {
				t.Fatal(err)
			}
			ids := tok.Encode(text)
			stop := r.IntN(len(ids))
			s := g.Start()
			for _, id := range ids[:stop] {
				s.Mask(bits) // what one mask leaves behind must not spoil another
				next, err := s.Accept(id)
				if err != nil {
					break
				}
				s = next
			}
			s.Mask(bits)
			places++
			for id, text := range tok.Tokens {
				if len(text) == 0 {
					continue
				}
				_, err := s.Accept(int32(id))
				if legal := bits[id>>6]&(1<<(id&63)) != 0; legal != (err == nil) {
					t.Errorf("%s, %s, place %d, token %d %q: the mask says %v, Accept %v", name, l.ID, stop, id, text, legal, err)
					return
				}
			}
		})
		t.Logf("%s: %d places", name, places)
	}
}
