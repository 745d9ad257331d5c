package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// fakeModel computes logits that are a hash of all tokens before, read back
// from the pages: a wrong page, position or copy is either noticed at once or
// changes the output. script, if set, may choose the next token instead.
type fakeModel struct {
	context int
	vocab   int
	ends    []backend.Token // that are likelier than others; nil: imEnd
	// script returns the token that follows, or -1 for the hash, or notANumber.
	script func(tokens []backend.Token) backend.Token
	// before is called before each pass.
	before func(b *model.Batch) error

	mu     sync.Mutex
	passes int
	tokens int // computed
	rows   []int
}

type fakeKV struct {
	m     *fakeModel
	slots [][]slot
}

type slot struct {
	token   backend.Token
	pos     int
	written bool
}

func (m *fakeModel) VocabSize() int     { return m.vocab }
func (m *fakeModel) ContextLength() int { return m.context }
func (m *fakeModel) PageBytes() int     { return 1024 }
func (m *fakeModel) Close()             {}
func (m *fakeModel) NewKV(pages int) (KV, error) {
	kv := &fakeKV{m: m, slots: make([][]slot, pages)}
	for i := range kv.slots {
		kv.slots[i] = make([]slot, model.PageSize)
	}
	return kv, nil
}

func (kv *fakeKV) Close() {}

func (kv *fakeKV) CopyPage(dst, src int32, tokens int) {
	for i := range kv.slots[dst] {
		if i < tokens {
			kv.slots[dst][i] = kv.slots[src][i]
		} else {
			kv.slots[dst][i] = slot{}
		}
	}
}

func (kv *fakeKV) NewTier(slots int) (Tier, error) {
	return &fakeTier{kv, make([][]slot, slots)}, nil
}

// fakeTier forgets a page that was loaded: nobody may load it again.
type fakeTier struct {
	kv    *fakeKV
	slots [][]slot
}

func (t *fakeTier) Close() {}

func (t *fakeTier) Save(slot, page int32) error {
	t.slots[slot] = slices.Clone(t.kv.slots[page])
	return nil
}

func (t *fakeTier) Load(page, slot int32) error {
	clear(t.kv.slots[page])
	copy(t.kv.slots[page], t.slots[slot])
	t.slots[slot] = nil
	return nil
}

func (kv *fakeKV) Forward(b *model.Batch, logits [][]float32) error {
	if f := kv.m.before; f != nil {
		if err := f(b); err != nil {
			return err
		}
	}
	writer := make(map[int32]int)
	for r, row := range b.Rows {
		for i := range row.Tokens {
			writer[row.Pages[(row.Start+i)/model.PageSize]] = r
		}
	}
	out := 0
	n := 0
	for r, row := range b.Rows {
		if len(row.Tokens) == 0 {
			return fmt.Errorf("row %d is empty", r)
		}
		for i := range (row.Start + len(row.Tokens) + model.PageSize - 1) / model.PageSize {
			if w, ok := writer[row.Pages[i]]; ok && w != r {
				return fmt.Errorf("row %d has page %d, which row %d writes", r, row.Pages[i], w)
			}
		}
		var prefix []backend.Token
		for i := range row.Start {
			s := kv.slots[row.Pages[i/model.PageSize]][i%model.PageSize]
			if !s.written || s.pos != i {
				return fmt.Errorf("row %d reads position %d of page %d, which holds %+v", r, i, row.Pages[i/model.PageSize], s)
			}
			prefix = append(prefix, s.token)
		}
		wants := row.Outputs
		for i, t := range row.Tokens {
			pos := row.Start + i
			kv.slots[row.Pages[pos/model.PageSize]][pos%model.PageSize] = slot{t, pos, true}
			prefix = append(prefix, t)
			if len(wants) > 0 && wants[0] == i {
				kv.m.fill(prefix, logits[out])
				wants = wants[1:]
				out++
			}
		}
		n += len(row.Tokens)
	}
	if out != len(logits) {
		return fmt.Errorf("%d outputs, room for %d", out, len(logits))
	}
	kv.m.mu.Lock()
	kv.m.passes++
	kv.m.tokens += n
	kv.m.rows = append(kv.m.rows, len(b.Rows))
	kv.m.mu.Unlock()
	return nil
}

// fill writes the logits after prefix.
func (m *fakeModel) fill(prefix []backend.Token, logits []float32) {
	h := fnv.New64a()
	var b [4]byte
	for _, t := range prefix {
		binary.LittleEndian.PutUint32(b[:], uint32(t))
		h.Write(b[:])
	}
	x := h.Sum64()
	for i := range logits {
		logits[i] = float32(mix(x+uint64(i))>>40) / (1 << 20) // 0 to 16
	}
	// The text ends now and then.
	ends := m.ends
	if ends == nil {
		ends = []backend.Token{imEnd}
	}
	for _, end := range ends {
		logits[end] = float32(mix(x+uint64(end))>>40)/(1<<20) + 3
	}
	if m.script != nil {
		if t := m.script(prefix); t == notANumber {
			for i := range logits {
				logits[i] = float32(math.NaN())
			}
		} else if t >= 0 {
			for i := range logits {
				logits[i] -= 100
			}
			logits[t] = 50
		}
	}
}

var fakeBytes = func() (b [256]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// The fake vocabulary: bytes, a few longer tokens, control tokens.
var fakeWords = []string{
	"the", " the", "in", "ing", "er", "\n\n", "{\"", "\":", "true", "false", "ST", "OP-", "Ox", "ab", "abc",
	"high", " high", "low", " low", "is", " is", "is ", "ies", "ass", "user\n",
}

const (
	imStart backend.Token = 300 + iota
	imEnd
	bosToken
	fakeVocab = 320

	notANumber backend.Token = 1 << 30
)

type fakeTokenizer struct{ addBOS bool }

func (fakeTokenizer) Size() int { return fakeVocab }

func (fakeTokenizer) control(text string) (backend.Token, int) {
	for i, c := range []string{"<|im_start|>", "<|im_end|>", "<bos>"} {
		if strings.HasPrefix(text, c) {
			return imStart + backend.Token(i), len(c)
		}
	}
	return -1, 0
}

// EncodePieces takes the longest token at each place, so what a text becomes
// depends on the text after it.
func (t fakeTokenizer) EncodePieces(pieces []tokenizer.Piece) (ids []backend.Token) {
	var text strings.Builder
	flush := func() {
		s := text.String()
		text.Reset()
		for len(s) > 0 {
			id, n := backend.Token(s[0]), 1
			for i, w := range fakeWords {
				if len(w) > n && strings.HasPrefix(s, w) {
					id, n = backend.Token(256+i), len(w)
				}
			}
			ids = append(ids, id)
			s = s[n:]
		}
	}
	for _, p := range pieces {
		s := p.Text
		for p.Special && len(s) > 0 {
			if id, n := t.control(s); n > 0 {
				flush()
				ids = append(ids, id)
				s = s[n:]
				continue
			}
			text.WriteByte(s[0])
			s = s[1:]
		}
		text.WriteString(s)
	}
	flush()
	return ids
}

func (fakeTokenizer) Bytes(id backend.Token) []byte {
	switch {
	case id < 256:
		return fakeBytes[id : id+1]
	case int(id)-256 < len(fakeWords):
		return []byte(fakeWords[id-256])
	}
	return nil
}

func (fakeTokenizer) IsControl(id backend.Token) bool { return id >= imStart && id <= bosToken }
func (fakeTokenizer) EndTokens() []backend.Token      { return []backend.Token{imEnd} }
func (fakeTokenizer) BOS() (backend.Token, bool)      { return bosToken, true }
func (fakeTokenizer) EOS() (backend.Token, bool)      { return imEnd, true }
func (t fakeTokenizer) AddBOS() bool                  { return t.addBOS }
func (fakeTokenizer) AddSpacePrefix() bool            { return false }

// chatML is the template of the fake model.
type chatML struct{}

func (chatML) Turn(_ []backend.Turn, role backend.Role) (Around, error) {
	return Around{
		Open:  []tokenizer.Piece{{Text: "<|im_start|>" + string(role) + "\n", Special: true}},
		Close: []tokenizer.Piece{{Text: "<|im_end|>\n", Special: true}},
	}, nil
}

func newFake(tb testing.TB, change func(*Config, *fakeModel)) *Engine {
	tb.Helper()
	m := &fakeModel{context: 2048, vocab: fakeVocab}
	cfg := Config{Model: m, Tokenizer: fakeTokenizer{}, Template: chatML{}, Name: "fake", Fingerprint: "fake-1", Pages: 256, Check: true}
	if change != nil {
		change(&cfg, m)
	}
	e, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
		if st := e.Stats(); st.Held != 0 || st.Running+st.Waiting != 0 {
			tb.Errorf("after Close: %+v", st)
		}
		if st := e.Stats(); st.Rebuilt != 0 && !tb.Failed() && !expectRebuild[tb.Name()] {
			tb.Errorf("the engine had to rebuild its cache %d times", st.Rebuilt)
		}
	})
	return e
}

var expectRebuild = map[string]bool{}

func (e *Engine) fake() *fakeModel { return e.cfg.Model.(*fakeModel) }

func user(text string) backend.Turn {
	return backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: text}}}
}

func raw(text string) backend.Turn {
	return backend.Turn{Role: backend.Raw, Parts: []backend.Part{{Text: text}}}
}

func mustGenerate(tb testing.TB, e *Engine, req *backend.Request) *backend.Result {
	tb.Helper()
	r, err := e.Generate(context.Background(), req, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// logText is a text of n bytes that repeats itself nowhere.
func longText(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d the thing is in %d. ", i, i*i)
	}
	return b.String()[:n]
}
