package puppet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// vocabulary is the 256 bytes and the end of a turn.
var vocabulary = func() *grammar.Vocab {
	tokens := make([][]byte, EOS+1)
	for i := range EOS {
		tokens[i] = []byte{byte(i)}
	}
	v, err := grammar.NewVocab(tokens, grammar.VocabOptions{EndTokens: []int32{EOS}})
	if err != nil {
		panic(err)
	}
	return v
}()

// grammar returns the grammar of a constraint; each is compiled once.
func (m *Model) grammar(ctx context.Context, c backend.Constraint) (*grammar.Grammar, error) {
	key := string(c.JSONSchema) + "\x00" + c.Regex + "\x00" + c.EBNF + "\x00" + strings.Join(c.Choices, "\x00")
	spec := grammar.Spec{JSONSchema: c.JSONSchema, Regex: c.Regex, EBNF: c.EBNF, Choices: c.Choices}
	if t := c.Tags; t != nil {
		spec.Tags = &grammar.Tags{Triggers: t.Triggers, AtLeastOne: t.AtLeastOne, StopAfterFirst: t.StopAfterFirst}
		key += fmt.Sprintf("\x00%q %v %v", t.Triggers, t.AtLeastOne, t.StopAfterFirst)
		for _, x := range t.Tags {
			tag := grammar.Tag{Begin: x.Begin, End: x.End}
			if len(x.Schema) > 0 {
				tag.Content = &grammar.Spec{JSONSchema: x.Schema}
			}
			spec.Tags.Tags = append(spec.Tags.Tags, tag)
			key += fmt.Sprintf("\x00%q %q %q", x.Begin, x.End, x.Schema)
		}
	}
	m.mu.Lock()
	g := m.grammars[key]
	m.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g, err := grammar.Compile(ctx, spec, vocabulary)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.grammars[key] = g
	m.mu.Unlock()
	return g, nil
}

// constrain leads a scripted reply through the constraint of its request, as an
// engine leads a model: text that the constraint leaves no choice about is
// forced, and white space that it does not allow is left out, so that scripts
// can be written readably. A reply that leaves the constraint is a mistake of
// the script and fails with backend.ErrInvalid; one that ends where only one
// text can follow is completed.
func (m *Model) constrain(ctx context.Context, req *backend.Request, reply string) (text string, forced []bool, err error) {
	g, err := m.grammar(ctx, req.Constraint)
	if err != nil {
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, grammar.ErrUnsupported):
			err = fmt.Errorf("%w: %w", backend.ErrUnsupported, err)
		default:
			err = fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		}
		return "", nil, fmt.Errorf("puppet: request %q: %w", req.ID, err)
	}
	leaves := func(at int) error {
		return fmt.Errorf("puppet: request %q: the scripted reply %q leaves its constraint at byte %d: %w", req.ID, reply, at, backend.ErrInvalid)
	}
	var out []byte
	s := g.Start()
	for i := 0; ; {
		if must := s.Forced(); len(must) > 0 {
			for _, b := range must {
				for i < len(reply) && reply[i] != b && isSpace(reply[i]) {
					i++
				}
				if i < len(reply) {
					if reply[i] != b {
						return "", nil, leaves(i)
					}
					i++
				}
				out, forced = append(out, b), append(forced, true)
			}
			if s, err = s.AcceptBytes(must); err != nil {
				return "", nil, err
			}
			continue
		}
		if i == len(reply) {
			if !s.CanEnd() {
				return "", nil, leaves(i)
			}
			return string(out), forced, nil
		}
		b := reply[i]
		next, err := s.AcceptBytes([]byte{b})
		switch {
		case err == nil:
			s = next
			out, forced = append(out, b), append(forced, false)
		case !isSpace(b):
			return "", nil, leaves(i)
		}
		i++
	}
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }
