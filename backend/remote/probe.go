package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path"
	"strconv"
	"strings"
)

// modelEntry is a row of /models. What goes beyond id is the servers' own.
type modelEntry struct {
	ID          string          `json:"id"`
	OwnedBy     string          `json:"owned_by"`
	Parent      *string         `json:"parent"` // vLLM: the base of an adapter
	MaxModelLen int             `json:"max_model_len"`
	Meta        json.RawMessage `json:"meta"` // llama-server
}

// probe asks the server what it is and fills in what b's calls need to know.
func (b *Backend) probe(ctx context.Context) error {
	if b.srv.isOpenAI() {
		if b.info.Model == "" {
			return invalidf("name the model: openai+https://api.openai.com/v1?model=NAME")
		}
		if b.d.name == "openai" {
			b.d = openAIService(b.info.Model)
		}
		return nil
	}
	if b.d.name == "anthropic" {
		defer func() { b.d = anthropicModel(b.info.Model) }()
	}
	if b.srv.noProbe {
		return nil
	}
	return b.opts.Retry.do(ctx, func() error { return b.probeOnce(ctx) }, nil)
}

func (b *Backend) probeOnce(ctx context.Context) error {
	if b.srv.isAnthropic() {
		return b.probeAnthropic(ctx)
	}
	models, err := b.models(ctx)
	if err != nil {
		return err
	}
	if b.d.name == "openai" && len(models) > 0 {
		if d := b.recognise(ctx, models[0].OwnedBy); d != nil {
			b.d = d
		}
	}
	switch b.d.name {
	case "vllm":
		b.probeVLLM(ctx)
	case "sglang":
		if err := b.probeSGLang(ctx); err != nil {
			return err
		}
	case "llama":
		if err := b.probeLlama(ctx, models); err != nil {
			return err
		}
	}
	return b.choose(models)
}

// models lists the server's models; a server without the route has none.
func (b *Backend) models(ctx context.Context) ([]modelEntry, error) {
	var list struct {
		Data []modelEntry `json:"data"`
	}
	err := b.srv.get(ctx, b.srv.base, "models", &list)
	var e *Error
	if errors.As(err, &e) && (e.Status == 404 || e.Status == 405 || e.Status == 501) {
		if b.info.Model == "" && b.d.name != "llama" && b.d.name != "sglang" {
			e.Hint = "check the URL's path (most end in /v1), or name the model with ?model=NAME"
			return nil, e
		}
		return nil, nil
	}
	return list.Data, err
}

// recognise returns the dialect of a server that calls its models' owner by its
// own name. The native ones must answer on their native route, too: a gateway
// may pass on the OpenAI routes alone.
func (b *Backend) recognise(ctx context.Context, owner string) *dialect {
	var seen map[string]json.RawMessage
	switch strings.ToLower(owner) {
	case "vllm", "coppice":
		return dialects["vllm"]
	case "sglang":
		if b.srv.get(ctx, b.srv.root, "get_model_info", &seen) == nil {
			return dialects["sglang"]
		}
	case "llamacpp":
		if b.srv.get(ctx, b.srv.root, "props", &seen) == nil {
			return dialects["llama"]
		}
	case "library":
		if b.srv.get(ctx, b.srv.root, "api/version", &seen) == nil {
			return dialects["ollama"]
		}
	}
	return nil
}

// choose settles the model's name and its context.
func (b *Backend) choose(models []modelEntry) error {
	if b.info.Model == "" {
		var base []string
		for _, m := range models {
			if m.Parent == nil {
				base = append(base, m.ID)
			}
		}
		switch len(base) {
		case 0:
			return invalidf("the server at %s lists no model; name one with ?model=NAME", b.srv.base.Host)
		case 1:
			b.info.Model = base[0]
		default:
			return invalidf("the server at %s has several models, name one with ?model=NAME: %s", b.srv.base.Host, strings.Join(base[:min(len(base), 20)], ", "))
		}
	}
	for _, m := range models {
		if m.ID == b.info.Model && b.info.ContextLength == 0 {
			b.info.ContextLength = m.MaxModelLen
		}
	}
	return nil
}

// probeVLLM finds out under which names the server takes constraints: they
// were guided_* before 0.11. Without an answer it is taken for a new one.
func (b *Backend) probeVLLM(ctx context.Context) {
	var v struct {
		Version string `json:"version"`
	}
	if b.srv.get(ctx, b.srv.root, "version", &v) != nil {
		return
	}
	major, rest, _ := strings.Cut(v.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	maj, err1 := strconv.Atoi(major)
	min, err2 := strconv.Atoi(minor)
	b.guided = err1 == nil && err2 == nil && maj == 0 && min < 11
}

func (b *Backend) probeSGLang(ctx context.Context) error {
	var m struct {
		ModelPath     string `json:"model_path"`
		TokenizerPath string `json:"tokenizer_path"`
		WeightVersion string `json:"weight_version"`
	}
	if err := b.srv.get(ctx, b.srv.root, "get_model_info", &m); err != nil {
		return err
	}
	if b.info.Model == "" {
		b.info.Model = m.ModelPath
	}
	// The server counts up its weight version when weights are replaced.
	if m.WeightVersion != "" {
		b.info.Fingerprint = fingerprint("sglang", m.ModelPath, m.TokenizerPath, m.WeightVersion)
	}
	var s struct {
		ContextLength int  `json:"context_length"`
		Deterministic bool `json:"enable_deterministic_inference"`
	}
	for _, route := range []string{"server_info", "get_server_info"} {
		if b.srv.get(ctx, b.srv.root, route, &s) == nil {
			break
		}
	}
	if b.info.ContextLength == 0 {
		b.info.ContextLength = s.ContextLength
	}
	if s.Deterministic {
		d := *b.d
		d.seed = true // otherwise sampling_seed is taken and not kept
		b.d = &d
	}
	_, err := b.sglangTokenize(ctx, "a", false)
	b.canTokenize = err == nil
	return nil
}

func (b *Backend) probeLlama(ctx context.Context, models []modelEntry) error {
	var p struct {
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
		ModelPath  string `json:"model_path"`
		ModelAlias string `json:"model_alias"`
		EOS        string `json:"eos_token"`
	}
	if err := b.srv.get(ctx, b.srv.root, "props", &p); err != nil {
		return err
	}
	if b.info.ContextLength == 0 {
		b.info.ContextLength = p.Settings.Context
	}
	b.endToken = p.EOS
	if b.info.Model == "" && len(models) == 0 {
		b.info.Model = strings.TrimSuffix(path.Base(p.ModelPath), ".gguf")
	}
	if len(models) > 0 && len(models[0].Meta) > 0 && string(models[0].Meta) != "null" {
		var meta struct {
			Vocabulary int `json:"n_vocab"`
		}
		if json.Unmarshal(models[0].Meta, &meta) == nil {
			b.vocabulary = meta.Vocabulary
		}
		// Size, shape and vocabulary of the weights, and the file they are in.
		b.info.Fingerprint = fingerprint("llama", p.ModelPath, string(models[0].Meta))
	}
	return nil
}

// fingerprint condenses what a server says of its weights. It is as good as the
// server's word: a file replaced by another of the same name, shape and size
// goes unseen.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(strconv.Itoa(len(p)) + ":" + p))
	}
	return parts[0] + ":" + hex.EncodeToString(h.Sum(nil)[:12])
}
