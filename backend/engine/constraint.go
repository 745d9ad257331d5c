package engine

import (
	"container/list"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// grammars compiles constraints, each once however many requests ask for it at
// the same time, and keeps the compiled ones that were used last. A failure is
// told to those who waited and not kept.
type grammars struct {
	vocab    func() (*grammar.Vocab, error)
	max      int // grammars kept
	maxBytes int // of their sources

	mu    sync.Mutex
	byKey map[string]*grammarEntry
	order *list.List // of *grammarEntry that are compiled, least recently used first
	bytes int
}

type grammarEntry struct {
	key     string
	done    chan struct{}
	g       *grammar.Grammar
	err     error
	waiters int
	cancel  context.CancelFunc
	el      *list.Element
}

func newGrammars(vocab func() (*grammar.Vocab, error)) *grammars {
	return &grammars{vocab: vocab, max: 64, maxBytes: 16 << 20, byKey: make(map[string]*grammarEntry), order: list.New()}
}

// get returns the grammar of a constraint. It compiles on a goroutine of its
// own, which is cancelled when nobody waits for it any more.
func (g *grammars) get(ctx context.Context, c backend.Constraint) (*grammar.Grammar, error) {
	key, spec, err := specOf(c)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	e := g.byKey[key]
	if e == nil {
		cctx, cancel := context.WithCancel(context.Background())
		e = &grammarEntry{key: key, done: make(chan struct{}), cancel: cancel}
		g.byKey[key] = e
		go g.compile(cctx, e, spec)
	} else if e.el != nil {
		g.order.MoveToBack(e.el)
	}
	e.waiters++
	g.mu.Unlock()

	select {
	case <-e.done:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e.waiters--
	if ctx.Err() != nil {
		if e.waiters == 0 {
			select {
			case <-e.done:
			default: // nobody wants it
				e.cancel()
				if g.byKey[key] == e {
					delete(g.byKey, key)
				}
			}
		}
		return nil, ctx.Err()
	}
	return e.g, e.err
}

func (g *grammars) compile(ctx context.Context, e *grammarEntry, spec grammar.Spec) {
	defer e.cancel()
	compiled, err := func() (c *grammar.Grammar, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("%w: compiling the constraint: %v", backend.ErrUnavailable, r)
			}
		}()
		vocab, err := g.vocab()
		if err != nil {
			return nil, err
		}
		return grammar.Compile(ctx, spec, vocab)
	}()
	if err != nil {
		err = constraintError(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e.g, e.err = compiled, err
	close(e.done)
	if g.byKey[e.key] != e {
		return // abandoned
	}
	if err != nil {
		delete(g.byKey, e.key)
		return
	}
	e.el = g.order.PushBack(e)
	g.bytes += len(e.key)
	for g.order.Len() > 1 && (g.order.Len() > g.max || g.bytes > g.maxBytes) {
		old := g.order.Remove(g.order.Front()).(*grammarEntry)
		delete(g.byKey, old.key)
		g.bytes -= len(old.key)
	}
}

// constraintError says whose fault a failed compilation is.
func constraintError(err error) error {
	var ge *grammar.Error
	switch {
	case !errors.As(err, &ge):
		return err
	case errors.Is(err, grammar.ErrUnsupported):
		return fmt.Errorf("%w: constraint: %w", backend.ErrUnsupported, err)
	default:
		return fmt.Errorf("%w: constraint: %w", backend.ErrInvalid, err)
	}
}

// specOf returns the spec of a constraint and a key that is equal only for
// equal ones.
func specOf(c backend.Constraint) (key string, spec grammar.Spec, err error) {
	n := 0
	if len(c.JSONSchema) > 0 {
		n++
		key, spec.JSONSchema = "json:"+string(c.JSONSchema), c.JSONSchema
	}
	if c.Regex != "" {
		n++
		key, spec.Regex = "regex:"+c.Regex, c.Regex
	}
	if c.EBNF != "" {
		n++
		key, spec.EBNF = "ebnf:"+c.EBNF, c.EBNF
	}
	if len(c.Choices) > 0 {
		n++
		b := []byte("choices:")
		for _, ch := range c.Choices {
			b = binary.AppendUvarint(b, uint64(len(ch)))
			b = append(b, ch...)
		}
		key, spec.Choices = string(b), c.Choices
	}
	if t := c.Tags; t != nil {
		n++
		b, err := json.Marshal(t)
		if err != nil {
			return "", spec, fmt.Errorf("%w: tags: %w", backend.ErrInvalid, err)
		}
		key, spec.Tags = "tags:"+string(b), grammarTags(t)
	}
	if n > 1 {
		return "", spec, fmt.Errorf("%w: a constraint has more than one of json_schema, regex, ebnf, choices and tags", backend.ErrInvalid)
	}
	spec.Limits.MaskBytes = 8 << 20 // for each of the grammars kept
	return key, spec, nil
}

// grammarTags are structural tags as the grammar package has them.
func grammarTags(t *backend.Tags) *grammar.Tags {
	out := &grammar.Tags{Triggers: t.Triggers, AtLeastOne: t.AtLeastOne, StopAfterFirst: t.StopAfterFirst}
	for _, x := range t.Tags {
		tag := grammar.Tag{Begin: x.Begin, End: x.End}
		if len(x.Schema) > 0 {
			tag.Content = &grammar.Spec{JSONSchema: x.Schema}
		}
		out.Tags = append(out.Tags, tag)
	}
	return out
}

// Vocab returns the tokens of the model as grammars see them.
func (e *Engine) Vocab() (*grammar.Vocab, error) { return e.grammars.vocab() }

// NewVocab prepares the vocabulary of a tokenizer for grammars; end are the tokens that
// end a generation.
func NewVocab(tok Tokenizer, end []backend.Token) (*grammar.Vocab, error) {
	tokens := make([][]byte, tok.Size())
	for i := range tokens {
		if id := backend.Token(i); !tok.IsControl(id) {
			tokens[i] = tok.Bytes(id)
		}
	}
	return grammar.NewVocab(tokens, grammar.VocabOptions{
		EndTokens: end,
		Encode: func(text []byte) []int32 {
			return encodeText(tok, string(text))
		},
	})
}
