package engine

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// Open starts an engine on the model file at path. What cfg leaves open comes
// from the file: Model, Tokenizer, Template, Name, Fingerprint.
func Open(path string, cfg Config, opts model.Options) (*Engine, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the model keeps its own copy of the weights
	e, err := Load(f, cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("engine: %s: %w", path, err)
	}
	return e, nil
}

// Load is Open for a file that is open already, e.g. an embedded one. f may be
// closed afterwards.
func Load(f *gguf.File, cfg Config, opts model.Options) (*Engine, error) {
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	if cfg.Tokenizer == nil {
		cfg.Tokenizer = tok
	}
	if cfg.Template == nil {
		if cfg.Template, cfg.which, err = templateOf(f, tok); err != nil {
			return nil, err
		}
	}
	if cfg.Name == "" {
		cfg.Name = f.Name()
	}
	if cfg.Fingerprint == "" {
		cfg.Fingerprint = f.Fingerprint()
	}
	if cfg.Model == nil && opts.Float32Attention {
		cfg.Fingerprint = "a32-" + cfg.Fingerprint
	}
	if cfg.Model == nil && opts.Float32Weights {
		cfg.Fingerprint = "f32-" + cfg.Fingerprint
	}
	if cfg.Model == nil && opts.Arithmetic == model.GGML {
		cfg.Fingerprint = "ggml-" + cfg.Fingerprint
	}
	if cfg.Model == nil {
		m, err := model.Load(f, opts)
		if err != nil {
			return nil, err
		}
		if cfg.Model, err = FromModel(m); err != nil {
			m.Close()
			return nil, err
		}
	}
	e, err := New(cfg)
	if err != nil {
		cfg.Model.Close()
		return nil, err
	}
	return e, nil
}

// FromModel makes a *model.Model usable by an engine.
func FromModel(m *model.Model) (Model, error) {
	kv, err := m.NewKV(1)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer kv.Close()
	return &cpuModel{m, kv.PageBytes()}, nil
}

type cpuModel struct {
	*model.Model
	pageBytes int
}

func (m *cpuModel) VocabSize() int     { return m.Config().Vocab }
func (m *cpuModel) ContextLength() int { return m.Config().ContextLength }
func (m *cpuModel) PageBytes() int     { return m.pageBytes }

func (m *cpuModel) NewKV(pages int) (KV, error) {
	kv, err := m.Model.NewKV(pages)
	if err != nil {
		return nil, err
	}
	return &cpuKV{kv, m.Model}, nil
}

type cpuKV struct {
	*model.KV
	m *model.Model
}

// NewTier implements [Tiered] with a second pool.
func (kv *cpuKV) NewTier(slots int) (Tier, error) {
	t, err := kv.m.NewKV(slots)
	if err != nil {
		return nil, err
	}
	return &cpuTier{t, kv.KV}, nil
}

type cpuTier struct {
	*model.KV
	pool *model.KV
}

func (t *cpuTier) Save(slot, page int32) error {
	t.CopyFrom(slot, t.pool, page)
	return nil
}

func (t *cpuTier) Load(page, slot int32) error {
	t.pool.CopyFrom(page, t.KV, slot)
	return nil
}

func (kv *cpuKV) Forward(b *model.Batch, logits [][]float32) error {
	return kv.m.Forward(kv.KV, b, logits)
}
