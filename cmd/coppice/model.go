package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// embedded are the models that this binary carries.
var embedded = map[string]func() []byte{"sapling": sapling.GGUF}

// modelFlags are --model and --backend, which every command that talks to a
// model has.
type modelFlags struct {
	model, backend string
	threads        int
	memory         string
	memoryBytes    int64
	kv             string
	drafts         int
	choices        int
}

func (m *modelFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&m.model, "model", "sapling", "model: a .gguf file, a name from 'coppice models'")
	c.Flags().StringVar(&m.backend, "backend", "", "engine by URL, e.g. openai+http://host:port/v1?model=NAME (default: our own engine)")
	c.Flags().IntVar(&m.threads, "threads", 0, "compute threads of our own engine (default: all cores)")
	c.Flags().StringVar(&m.memory, "memory", "", "all that our own engine may hold, weights, keys and values, e.g. 4GiB (default: 1 GiB of keys and values)")
	c.Flags().StringVar(&m.kv, "kv", "", "how our own engine holds keys and values: bf16, or q8 for half the memory at some loss (default bf16)")
	c.MarkFlagsMutuallyExclusive("kv", "backend")
	c.MarkFlagsMutuallyExclusive("model", "backend")
	c.MarkFlagsMutuallyExclusive("memory", "backend")
}

// defaultDrafts is few enough that wrong guesses cost little, see docs/engine.md.
const defaultDrafts = 8

// registerAhead adds what our own engine may compute before it is certain to be
// needed, for commands that generate.
func (m *modelFlags) registerAhead(c *cobra.Command) {
	c.Flags().IntVar(&m.drafts, "drafts", defaultDrafts, "tokens that our own engine guesses in a step at most, from what followed the same words before, 0 for none; the output is the same (docs/engine.md)")
	c.Flags().IntVar(&m.choices, "choices-ahead", 0, "tokens that our own engine computes in a step for what follows each option of a constraint; the output is the same")
	c.MarkFlagsMutuallyExclusive("drafts", "backend")
	c.MarkFlagsMutuallyExclusive("choices-ahead", "backend")
}

// url is the backend as package open reads it.
func (m *modelFlags) url() (string, error) {
	if m.backend != "" {
		return m.backend, nil
	}
	query := ""
	if m.kv != "" { // part of what the model is: a journal keeps it
		query = url.Values{"kv": {m.kv}}.Encode()
	}
	if _, ok := embedded[m.model]; ok {
		return (&url.URL{Scheme: "engine", Host: m.model, RawQuery: query}).String(), nil
	}
	path, err := modelPath(m.model)
	if err != nil || query == "" {
		return path, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "engine", Path: filepath.ToSlash(path), RawQuery: query}).String(), nil
}

// clash refuses a flag that says something else than the backend's URL.
func (m *modelFlags) clash() error {
	u, err := url.Parse(m.backend)
	if err != nil || u.Scheme != "engine" {
		return nil
	}
	q := u.Query()
	for _, f := range []struct{ name, value string }{{"threads", strconv.Itoa(m.threads)}, {"memory", m.memory}, {"kv", m.kv}} {
		if q.Has(f.name) && f.value != "" && f.value != "0" && q.Get(f.name) != f.value {
			return usagef("--%s is %s, and the URL of the backend has %s=%s: choose one", f.name, f.value, f.name, q.Get(f.name))
		}
	}
	return nil
}

// publicURL is a backend's URL as it may be written to a file: without a key,
// and a model file by its full path.
func publicURL(s string) string {
	if !strings.Contains(s, "://") {
		if abs, err := filepath.Abs(s); err == nil {
			return abs
		}
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

// compute are the options of our own engine's model.
func (m *modelFlags) compute() (model.Options, error) {
	if m.threads < 0 {
		return model.Options{}, usagef("--threads is %d: give a number from 1, or 0 for all cores", m.threads)
	}
	kv, err := model.ParseKVType(m.kv)
	if err != nil {
		return model.Options{}, usagef("--kv is %q: it is %s or %s", m.kv, model.BFloat16, model.Int8)
	}
	if m.kv == "" {
		kv = "" // leaves the choice to a URL
	}
	return model.Options{Threads: m.threads, KV: kv}, nil
}

func (m *modelFlags) open(ctx context.Context) (backend.Backend, error) {
	if _, err := m.compute(); err != nil {
		return nil, err
	}
	if err := m.clash(); err != nil {
		return nil, err
	}
	switch {
	case m.drafts < 0:
		return nil, usagef("--drafts is %d: give a number of tokens, or 0 for none", m.drafts)
	case m.choices < 0:
		return nil, usagef("--choices-ahead is %d: give a number of tokens, or 0 for none", m.choices)
	}
	u, err := m.url()
	if err != nil {
		return nil, err
	}
	if m.memory != "" {
		var ok bool
		if m.memoryBytes, ok = open.ParseBytes(m.memory); !ok {
			return nil, usagef("--memory is %q; it is a number of bytes, and may end in KiB, MiB or GiB", m.memory)
		}
	}
	return open.Backend(ctx, u, m.options())
}

func (m *modelFlags) options() open.Options {
	return open.Options{Embedded: embedded, Model: model.Options{Threads: m.threads, KV: model.KVType(m.kv)}, Engine: engine.Config{TotalBytes: m.memoryBytes, Drafts: m.drafts, Choices: m.choices}}
}

// openGGUF opens the model's file itself, for commands that look inside.
func (m *modelFlags) openGGUF() (*gguf.File, error) {
	if m.backend != "" {
		return nil, usagef("this command looks inside a model file: use --model, not --backend")
	}
	if f, ok := embedded[m.model]; ok {
		return gguf.Parse(f())
	}
	path, err := modelPath(m.model)
	if err != nil {
		return nil, err
	}
	return gguf.Open(path)
}

// modelPath finds a model file: a path as it is, or a name in the model
// folder.
func modelPath(name string) (string, error) {
	if strings.HasSuffix(name, ".gguf") {
		if _, err := os.Stat(name); err == nil {
			return name, nil
		}
	}
	for _, f := range modelFiles() {
		base := filepath.Base(f)
		if base == name || strings.TrimSuffix(base, ".gguf") == name {
			return f, nil
		}
	}
	return "", usagef("no model %q: give the path of a .gguf file or a name that 'coppice models' lists", name)
}

// modelFolder is where model files are looked for by name.
func modelFolder() string {
	if d := os.Getenv("COPPICE_MODELS"); d != "" {
		return d
	}
	return ".models"
}

func modelFiles() []string {
	files, _ := filepath.Glob(filepath.Join(modelFolder(), "*.gguf"))
	sort.Strings(files)
	// Of a split model the first part stands for all.
	return slices.DeleteFunc(files, func(f string) bool {
		_, part, _, ok := gguf.SplitName(f)
		return ok && part > 1
	})
}

// modelInfo is a line of 'coppice models'.
type modelInfo struct {
	Name     string `json:"name"`
	Family   string `json:"family"`
	Bytes    int64  `json:"bytes"`
	Context  uint64 `json:"context_length"`
	Template bool   `json:"chat_template"` // the file has one
	// Turns says what a run writes chats with.
	Turns backend.Template `json:"turns_by,omitempty"`
	Where string           `json:"where"`
	Error string           `json:"error,omitempty"`
}

func describe(name, where string, size int64, f *gguf.File, err error) modelInfo {
	i := modelInfo{Name: name, Where: where, Bytes: size}
	if err != nil {
		i.Error = err.Error()
		return i
	}
	i.Family = f.Architecture()
	if !slices.Contains(model.Families(), i.Family) {
		i.Error = fmt.Sprintf("%v %q; known are %s", model.ErrUnknownFamily, i.Family, strings.Join(model.Families(), ", "))
	}
	i.Context, _ = f.Uint(i.Family + ".context_length")
	_, i.Template = f.String("tokenizer.chat_template")
	if i.Error != "" {
		return i
	}
	tok, err := tokenizer.FromGGUF(f)
	if err == nil {
		_, i.Turns, err = engine.FileTemplate(f, tok)
	}
	if err != nil {
		i.Error = err.Error()
	}
	return i
}

// templateNames are the ways to write chats, for people.
var templateNames = map[backend.Template]string{
	backend.OwnTemplate:    "own template",
	backend.ChatMLTemplate: "ChatML",
	backend.PlainTemplate:  "plain lines",
}

// templateNote tells of a model that has no chat template of its own; empty for
// those that have, or where that is not known.
func templateNote(t backend.Template) string {
	switch t {
	case backend.ChatMLTemplate:
		return "the model has no chat template, but the control tokens of ChatML: that writes the turns"
	case backend.PlainTemplate:
		return "the model has no chat template: each turn is a line that begins with its role, as in \"user: ...\""
	}
	return ""
}

func (a *app) modelsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "models",
		Short: "List the models that can be named with --model",
		Long: `List the models that can be named with --model: those in the binary, and the
.gguf files in the folder that COPPICE_MODELS names (default .models).`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			var list []modelInfo
			for name, bytes := range embedded {
				f, err := gguf.Parse(bytes())
				list = append(list, describe(name, "in this binary", int64(len(bytes())), f, err))
			}
			sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
			for _, path := range modelFiles() {
				var size int64
				f, err := gguf.Open(path)
				if err == nil {
					size = int64(f.Size())
				} else if st, err := os.Stat(path); err == nil {
					size = st.Size()
				}
				list = append(list, describe(strings.TrimSuffix(filepath.Base(path), ".gguf"), path, size, f, err))
				if err == nil {
					f.Close()
				}
			}
			if asJSON {
				return a.printJSON(list)
			}
			for _, m := range list {
				if m.Error != "" {
					fmt.Fprintf(a.out, "%-34s  cannot be used: %s\n", oneLine(m.Name), oneLine(m.Error))
					continue
				}
				fmt.Fprintf(a.out, "%-34s  %-8s %8.1f MB  context %6d  chats by %-12s  %s\n", oneLine(m.Name), oneLine(m.Family), float64(m.Bytes)/1e6, m.Context, templateNames[m.Turns], oneLine(m.Where))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
