package grammar

import "context"

// Grammar is a compiled [Spec]. It is safe for concurrent use.
type Grammar struct {
	vocab *Vocab
}

// Compile turns a spec into a grammar over vocab. The error is an [*Error], or
// ctx's when it ended first.
func Compile(ctx context.Context, spec Spec, vocab *Vocab) (*Grammar, error) {
	return nil, &Error{Kind: ErrUnsupported, Source: "spec", Msg: "not built yet"}
}

// Start is the state before the first byte.
func (g *Grammar) Start() State { return State{g: g} }

// Match reports whether text, as a whole, is a text of the grammar.
func (g *Grammar) Match(text []byte) bool {
	s, err := g.Start().AcceptBytes(text)
	return err == nil && s.CanEnd()
}

// State is a place in a grammar. It is an immutable small value: a copy is a
// fork, an old copy a rollback.
type State struct {
	g *Grammar
}

// Mask sets bit i of bits for every token i that may come next and clears the
// others; bits holds at least [Vocab.MaskWords] words.
func (s State) Mask(bits []uint64) {}

// Accept is the state after a token.
func (s State) Accept(token int32) (State, error) { return s, ErrRejected }

// AcceptBytes is the state after a text, however it is cut into tokens.
func (s State) AcceptBytes(text []byte) (State, error) { return s, ErrRejected }

// Forced is the longest text that every continuation begins with.
func (s State) Forced() []byte { return nil }

// Jump returns the tokens that come next without asking the model and the
// state after them.
func (s State) Jump() ([]int32, State) { return nil, s }

// CanEnd reports whether the text may end here.
func (s State) CanEnd() bool { return false }

// Done reports whether the text can only end here.
func (s State) Done() bool { return false }

// Encode writes the state as bytes for [Grammar.Decode].
func (s State) Encode() []byte { return nil }

// Decode reads a state that Encode wrote for the same spec and vocabulary.
func (g *Grammar) Decode(data []byte) (State, error) { return g.Start(), nil }
