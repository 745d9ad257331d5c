package open

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
)

func openFile(path string, cfg engine.Config, mod model.Options) (backend.Backend, error) {
	e, err := engine.Open(path, cfg, mod)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return e, nil
}

func openEmbedded(name string, data func() []byte, cfg engine.Config, mod model.Options) (backend.Backend, error) {
	f, err := gguf.Parse(data())
	if err != nil {
		return nil, fmt.Errorf("open: embedded model %s: %w", name, err)
	}
	defer f.Close() // the model keeps its own copy of the weights
	e, err := engine.Load(f, cfg, mod)
	if err != nil {
		return nil, fmt.Errorf("open: embedded model %s: %w", name, err)
	}
	return e, nil
}

// engineQuery reads the parameters of an engine URL, which go before the options.
func engineQuery(query string, opts Options) (engine.Config, model.Options, error) {
	cfg, mod := opts.Engine, opts.Model
	q, err := url.ParseQuery(query)
	if err != nil {
		return cfg, mod, invalid(opts, "the query of the backend URL cannot be parsed")
	}
	for k, v := range q {
		last := v[len(v)-1]
		ok := false
		switch k {
		case "threads":
			mod.Threads, err = strconv.Atoi(last)
			ok = err == nil && mod.Threads > 0
		case "memory":
			if cfg.TotalBytes > 0 {
				return cfg, mod, invalid(opts, fmt.Sprintf("parameter memory of the engine URL bounds keys and values to %s, and %d bytes are set for all of the engine: choose one", last, cfg.TotalBytes))
			}
			cfg.MemoryBytes, ok = ParseBytes(last)
		case "tier":
			cfg.TierBytes, ok = ParseBytes(last)
		case "kv":
			mod.KV, err = model.ParseKVType(last)
			ok = err == nil
		case "weights":
			mod.Float32Weights, ok = last == "f32", last == "f32" || last == "file"
		case "attention":
			mod.Float32Attention, ok = last == "f32", last == "f32" || last == "kv"
		case "arithmetic":
			mod.Arithmetic, err = model.ParseArithmetic(last)
			ok = err == nil
		default:
			return cfg, mod, invalid(opts, fmt.Sprintf("an engine URL has no parameter %q, only threads, memory, tier, kv, weights, attention and arithmetic", k))
		}
		if !ok {
			return cfg, mod, invalid(opts, fmt.Sprintf("parameter %s of the engine URL is %q; threads is a count from 1, memory and tier bytes or a number of KiB, MiB or GiB, kv %s or %s, weights file or f32, attention kv or f32, arithmetic %s or %s", k, last, model.BFloat16, model.Int8, model.Fast, model.GGML))
		}
	}
	if err := mod.Check(); err != nil {
		return cfg, mod, invalid(opts, err.Error())
	}
	return cfg, mod, nil
}

// ParseBytes reads a size such as 512MiB. It must be positive.
func ParseBytes(s string) (int64, bool) {
	unit := int64(1)
	for suffix, u := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = n, u
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0, false
	}
	return n * unit, true
}
