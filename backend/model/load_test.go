package model

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// edit returns the file with its metadata and tensors changed.
func (s tinySpec) edit(t *testing.T, f func(meta []gguf.KV, tensors []gguf.Tensor) ([]gguf.KV, []gguf.Tensor)) *gguf.File {
	t.Helper()
	old := s.open(t, 1)
	var tensors []gguf.Tensor
	for _, info := range old.Tensors() {
		x, _ := old.Tensor(info.Name)
		tensors = append(tensors, x)
	}
	meta, tensors := f(gguf.MetaOf(old), tensors)
	var buf bytes.Buffer
	if err := gguf.Write(&buf, meta, tensors); err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Parse(buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	set := func(key string, v any) func([]gguf.KV, []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
		return func(meta []gguf.KV, tensors []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
			for i := range meta {
				if meta[i].Key == key {
					meta[i].Value = v
					return meta, tensors
				}
			}
			return append(meta, gguf.KV{Key: key, Value: v}), tensors
		}
	}
	tensor := func(name string, f func(*gguf.Tensor)) func([]gguf.KV, []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
		return func(meta []gguf.KV, tensors []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
			for i := range tensors {
				if tensors[i].Name == name {
					f(&tensors[i])
				}
			}
			return meta, tensors
		}
	}
	for _, c := range []struct {
		name string
		edit func([]gguf.KV, []gguf.Tensor) ([]gguf.KV, []gguf.Tensor)
		want string
	}{
		{"family", set("general.architecture", "mamba"), `unknown model family "mamba"; known are gemma2, gemma3, llama`},
		{"no layers", set("llama.block_count", uint32(0)), "llama.block_count is 0"},
		{"many layers", set("llama.block_count", uint32(4000)), "4000 layers"},
		{"more layers", set("llama.block_count", uint32(3)), "blk.2.attn_norm.weight is missing"},
		{"heads", set("llama.attention.head_count", uint32(3)), "not a multiple"},
		{"head width", set("llama.attention.key_length", uint32(32)), "differs from key width 32"},
		{"odd width", set("llama.attention.key_length", uint32(15)), "odd"},
		{"values", set("llama.attention.value_length", uint32(8)), "value width 8"},
		{"text", set("llama.embedding_length", "wide"), "embedding_length is not one integer"},
		{"huge", set("llama.feed_forward_length", uint32(1<<31)), "feed_forward_length"},
		{"eps", set("llama.attention.layer_norm_rms_epsilon", float32(-1)), "positive"},
		{"experts", set("llama.expert_count", uint32(8)), "expert_used_count is missing"},
		{"many experts", set("llama.expert_count", uint32(1<<30)), "expert_count is 1073741824"},
		{"rope", set("llama.rope.scaling.type", "dynamic"), `rope scaling "dynamic"`},
		{"renamed", tensor("blk.1.ffn_up.weight", func(x *gguf.Tensor) { x.Name = "other" }), "blk.1.ffn_up.weight is missing"},
		{"turned", tensor("blk.1.ffn_up.weight", func(x *gguf.Tensor) { x.Shape = []int{x.Shape[1], x.Shape[0]} }), "blk.1.ffn_up.weight has shape [96 64], want [64 96]"},
		{"type", tensor("blk.0.attn_q.weight", func(x *gguf.Tensor) { x.Type = 26 }), "attn_q.weight: unsupported GGUF file: values stored as I32 are not decoded, only F32, F16, Q4_0"},
		{"no rows", tensor("token_embd.weight", func(x *gguf.Tensor) { x.Shape[1], x.Data = 0, nil }), "token_embd.weight has shape"},
		{"biases", func(meta []gguf.KV, tensors []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
			return meta, append(tensors, gguf.Tensor{Name: "blk.0.attn_q.bias", Type: gguf.F32, Shape: []int{2}, Data: make([]byte, 8)})
		}, "blk.0.attn_q.bias is not one of family llama"},
		{"embedding", tensor("token_embd.weight", func(x *gguf.Tensor) { x.Shape = []int{x.Shape[0] * x.Shape[1]} }), "token_embd.weight has shape"},
	} {
		m, err := Load(tinySpecs()["llama"].edit(t, c.edit), Options{Threads: 1})
		if err == nil {
			m.Close()
			t.Errorf("%s: no error", c.name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q does not say %q", c.name, err, c.want)
		}
		if c.name == "family" != errors.Is(err, ErrUnknownFamily) {
			t.Errorf("%s: %q matches ErrUnknownFamily wrongly", c.name, err)
		}
	}
}

// TestUnreadableTypes: a matrix of each type that a file may hold is loaded, or its
// name, its type and the types that are loaded are told.
func TestUnreadableTypes(t *testing.T) {
	refused := 0
	for typ := gguf.Type(0); typ < 64; typ++ {
		_, ok := kindOf(typ)
		if ok != typ.Readable() {
			t.Errorf("%v has a kind: %v, is decoded: %v", typ, ok, typ.Readable())
		}
		size := typ.BlockSize()
		if ok || size == 0 {
			continue
		}
		refused++
		s := tinySpecs()["llama"]
		s.dim = 256 // whole blocks of every type
		f := s.edit(t, func(meta []gguf.KV, tensors []gguf.Tensor) ([]gguf.KV, []gguf.Tensor) {
			for i := range tensors {
				if x := &tensors[i]; x.Name == "blk.1.ffn_up.weight" {
					x.Type, x.Data = typ, make([]byte, typ.RowBytes(x.Shape[0]*x.Shape[1]))
				}
			}
			return meta, tensors
		})
		m, err := Load(f, Options{Threads: 1})
		if err == nil {
			m.Close()
			t.Errorf("%v: no error", typ)
			continue
		}
		for _, want := range []string{"blk.1.ffn_up.weight", "stored as " + typ.String(), "Q4_K"} {
			if !strings.Contains(err.Error(), want) || !errors.Is(err, gguf.ErrUnsupported) {
				t.Errorf("%v: %v, want it to say %q", typ, err, want)
			}
		}
	}
	if refused < 15 {
		t.Errorf("%d types refused", refused)
	}
}

func TestForwardRefusesBadBatches(t *testing.T) {
	s := tinySpecs()["llama"]
	m, other := s.load(t, 1, 1), s.load(t, 2, 1)
	kv, err := m.NewKV(4)
	if err != nil {
		t.Fatal(err)
	}
	logits := [][]float32{make([]float32, s.vocab)}
	good := Row{Tokens: []int32{1, 2}, Pages: []int32{3}, Outputs: []int{1}}
	with := func(f func(r *Row)) []Row {
		r := good
		f(&r)
		return []Row{r}
	}
	for want, rows := range map[string][]Row{
		"outside of the vocabulary": with(func(r *Row) { r.Tokens = []int32{1, 99} }),
		"token -1":                  with(func(r *Row) { r.Tokens = []int32{1, -1} }),
		"page 4 is outside":         with(func(r *Row) { r.Pages = []int32{4} }),
		"need 2":                    with(func(r *Row) { r.Start = 15 }),
		"negative":                  with(func(r *Row) { r.Start = -1 }),
		"beyond the context":        with(func(r *Row) { r.Start = 2047 }),
		"ascending":                 with(func(r *Row) { r.Outputs = []int{2} }),
		"asks for 2 outputs":        {good, good},
	} {
		if err := m.Forward(kv, &Batch{Rows: rows}, logits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	b := &Batch{Rows: []Row{good}}
	if err := other.Forward(kv, b, logits); err == nil {
		t.Error("a KV of another model was accepted")
	}
	if err := m.Forward(kv, b, [][]float32{nil}); err == nil {
		t.Error("logits without room were accepted")
	}
	if err := m.Forward(kv, b, logits); err != nil {
		t.Error(err)
	}
	kv.Close()
	kv.Close()
	if err := m.Forward(kv, b, logits); err == nil {
		t.Error("a closed KV was accepted")
	}
	other.Close()
	other.Close()
	if kv2, err := other.NewKV(1); err == nil {
		if err := other.Forward(kv2, &Batch{}, nil); err == nil {
			t.Error("a closed model was used")
		}
	}
	if _, err := m.NewKV(0); err == nil {
		t.Error("a KV without pages was made")
	}
	if _, err := m.NewKV(1 << 60); err == nil {
		t.Error("a KV of 2^60 pages was made")
	}
}

// FuzzLoad checks that no file makes Load or a first step panic.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"llama", "qwen2", "gemma3"} {
		s := tinySpecs()[name]
		s.layers, s.dim, s.ffn, s.vocab, s.heads, s.kvHeads, s.headDim = 1, 32, 32, 8, 2, 1, 16
		f.Add(s.quantised().file(f, 1))
		f.Add(s.file(f, 1))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		m, err := Load(file, Options{Threads: 1})
		if err != nil {
			return
		}
		defer m.Close()
		c := m.Config()
		kv, err := m.NewKV(2)
		if err != nil {
			return
		}
		defer kv.Close()
		b := &Batch{Rows: []Row{{Tokens: []int32{0, int32(c.Vocab - 1)}, Pages: []int32{1, 0}, Outputs: []int{1}}}}
		if err := m.Forward(kv, b, [][]float32{make([]float32, c.Vocab)}); err != nil && c.ContextLength >= 2 {
			t.Error(err)
		}
	})
}
