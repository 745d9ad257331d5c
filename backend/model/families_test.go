package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// familyFile is a tiny model and what PyTorch transformers computes for it, see
// testdata/families/record.py.
type familyFile struct {
	name    string
	Meta    [][3]any
	Tensors []familyTensor
	Prompt  []int32
	Greedy  []int32
	Logits  map[string][]float64 // by position
}

type familyTensor struct {
	Name      string
	Shape     []int
	Mean, Dev float64
	Data      []float32 // instead of Mean and Dev
}

// values makes the numbers of a tensor: uniform in Mean +- Dev, from 24 bits of
// splitmix64(fnv1a(name) + index).
func (t *familyTensor) values() []float32 {
	if t.Data != nil {
		return t.Data
	}
	h := uint64(0xcbf29ce484222325)
	for i := range len(t.Name) {
		h = (h ^ uint64(t.Name[i])) * 0x100000001b3
	}
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		x := h + uint64(i) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		u := float64(x>>40)/8388608 - 1
		v[i] = float32(t.Mean + float64(t.Dev*u))
	}
	return v
}

func (f *familyFile) open(t testing.TB) *gguf.File {
	t.Helper()
	var meta []gguf.KV
	for _, m := range f.Meta {
		kv := gguf.KV{Key: m[0].(string)}
		switch m[1] {
		case "u32":
			kv.Value = uint32(m[2].(float64))
		case "f32":
			kv.Value = float32(m[2].(float64))
		default:
			kv.Value = m[2].(string)
		}
		meta = append(meta, kv)
	}
	var tensors []gguf.Tensor
	for i := range f.Tensors {
		x := &f.Tensors[i]
		var data []byte
		for _, v := range x.values() {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		tensors = append(tensors, gguf.Tensor{Name: x.Name, Type: gguf.F32, Shape: x.Shape, Data: data})
	}
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

// tokens are the prompt and all of the text but its last token.
func (f *familyFile) tokens() []int32 {
	return slices.Concat(f.Prompt, f.Greedy[:len(f.Greedy)-1])
}

func readFamily(t testing.TB, name string) *familyFile {
	t.Helper()
	data, err := os.ReadFile("testdata/families/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	f := &familyFile{name: name}
	if err := json.Unmarshal(data, f); err != nil {
		t.Fatal(name, err)
	}
	return f
}

// familyFiles reads all models.
func familyFiles(t testing.TB) (files []*familyFile) {
	t.Helper()
	paths, err := filepath.Glob("testdata/families/*.json")
	if err != nil || len(paths) < 16 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		files = append(files, readFamily(t, strings.TrimSuffix(filepath.Base(path), ".json")))
	}
	return files
}

// TestFamiliesAgainstPyTorch compares each family with PyTorch transformers: with
// attention in float32 the logits are within 1e-5, and the greedy continuation is
// the same. With attention in bfloat16, as in use, and as ggml rounds they stay close,
// and another token is chosen only where two are nearly as good.
func TestFamiliesAgainstPyTorch(t *testing.T) {
	for _, f := range familyFiles(t) {
		name := f.name
		for _, v := range []struct {
			name  string
			opts  Options
			bound float64
		}{{"float32", Options{Threads: 1, Float32Attention: true}, 1e-5}, {"bfloat16", Options{Threads: 1}, 3e-2}, {"ggml", Options{Threads: 1, Arithmetic: GGML}, 3e-3}} {
			if v.opts.Arithmetic == GGML && refusedPlain[name] != "" {
				m, err := Load(f.open(t), v.opts)
				if err == nil {
					m.Close()
				}
				if err == nil || !strings.Contains(err.Error(), refusedPlain[name]) {
					t.Errorf("%s: error %v, want one about %s", name, err, refusedPlain[name])
				}
				continue
			}
			t.Run(name+"/"+v.name, func(t *testing.T) { f.compare(t, v.opts, v.bound) })
		}
	}
}

// refusedPlain are the files that the arithmetic of ggml does not cover, and what
// the error says of it.
var refusedPlain = map[string]string{
	"mixtral": "mixtures of experts", "qwen3moe": "mixtures of experts",
	"phi3_longrope": "longrope", "phi3_partial": "longrope", "llama_yarn": "yarn",
}

func (f *familyFile) compare(t *testing.T, o Options, bound float64) {
	m, err := Load(f.open(t), o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	logits := allLogits(t, m, f.tokens())
	var off []float64
	for p, want := range f.Logits {
		pos, err := strconv.Atoi(p)
		if err != nil {
			t.Fatal(err)
		}
		diff, norm := 0.0, 0.0
		for i, w := range want {
			d := float64(logits[pos][i]) - w
			diff += d * d
			norm += w * w
		}
		off = append(off, math.Sqrt(diff/norm))
	}
	slices.Sort(off)
	worst := off[len(off)-1]
	if m.cfg.Experts > 0 && !o.Float32Attention {
		// Where two experts score nearly alike, rounding chooses the other one, and
		// that token has other logits.
		worst = off[len(off)/2]
	}
	t.Logf("relative RMS %.2g", worst)
	if !(worst < bound) {
		t.Errorf("logits differ by %.2g relative RMS, want below %.2g", worst, bound)
	}
	if m.cfg.Experts > 0 && !o.Float32Attention {
		return
	}
	for i, want := range f.Greedy {
		l := logits[len(f.Prompt)-1+i]
		behind := -lead(l, want)
		if o.Float32Attention && behind > 0 || behind > 6*bound {
			t.Errorf("token %d of the continuation is %d, want %d, which is %.2g of the logits' RMS behind", i, argmax(l), want, behind)
		}
	}
}

// TestFamiliesAreTheSameInAnyBatch: what a mixture or a soft cap computes for a
// token does not depend on the batch.
func TestFamiliesAreTheSameInAnyBatch(t *testing.T) {
	for _, name := range []string{"mixtral", "qwen3moe", "gemma2", "phi3", "smollm3"} {
		f := readFamily(t, name)
		m, err := Load(f.open(t), Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		want := allLogits(t, m, f.Prompt)
		s := newSeqs(t, m, 3, 64)
		for pos := range f.Prompt {
			for i := range s.tokens {
				s.tokens[i] = []int32{(f.Prompt[pos] + int32(7*i)) % int32(m.cfg.Vocab)}
			}
			got := s.step(t)
			for i, v := range want[pos] {
				if math.Float32bits(v) != math.Float32bits(got[0][i]) {
					t.Fatalf("%s: position %d, logit %d: %v in a batch, %v alone", name, pos, i, got[0][i], v)
				}
			}
		}
	}
}
