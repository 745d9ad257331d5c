package lang

import (
	"context"
	"encoding/json"
	"maps"
)

// Context is context.Context, in the signatures of functions that programs call.
type Context = context.Context

// InputOption is an option of In.
type InputOption interface{ input(*Input) error }

// GenOption is an option of Gen.
type GenOption interface{ gen(*GenNode) }

// JSONOption is an option of JSON and JSONSchema.
type JSONOption interface{ json(*JSONNode) }

// ForkOption is an option of Fork and Arms.
type ForkOption interface{ fork(*ForkNode) }

// CallOption is an option of the calls of Go functions.
type CallOption interface{ call(*CallNode) }

// SelectOption is an option of SelectWith.
type SelectOption interface{ sel(*SelectNode) }

// AskOption is an option of everything that asks a model.
type AskOption interface {
	ModelOption
	SelectOption
}

// TaskOption is an option of everything that is carried out: what asks a model,
// and calls.
type TaskOption interface {
	AskOption
	CallOption
}

// ModelOption is an option of everything that a model generates.
type ModelOption interface {
	GenOption
	JSONOption
}

type inputOption func(*Input) error

func (o inputOption) input(in *Input) error { return o(in) }

// Default is the value of an input that a run does not give.
func Default(v any) InputOption {
	return inputOption(func(in *Input) error {
		x, err := Convert(v, in.Type)
		if err != nil {
			return err
		}
		in.Default = json.RawMessage(FormatJSON(x, in.Type))
		return nil
	})
}

// About says what an input is.
func About(text string) InputOption {
	return inputOption(func(in *Input) error { in.Doc = text; return nil })
}

type genOption func(*GenNode)

func (o genOption) gen(g *GenNode) { o(g) }

// MinTokens keeps a generation from ending before that many tokens.
func MinTokens(n int) GenOption { return genOption(func(g *GenNode) { g.MinTokens = n }) }

// Stop ends a generation before any of the strings.
func Stop(s ...string) GenOption {
	return genOption(func(g *GenNode) { g.Stop = append(g.Stop, s...) })
}

// StopRegex ends a generation with the token that completes a match of any of the
// regular expressions, which are those of package regexp. The token stays part of the
// text.
func StopRegex(patterns ...string) GenOption {
	return genOption(func(g *GenNode) { g.StopRegex = append(g.StopRegex, patterns...) })
}

// IgnoreEOS goes on where the model would end the text, up to MaxTokens.
func IgnoreEOS() GenOption { return genOption(func(g *GenNode) { g.IgnoreEOS = true }) }

// StopTokens ends a generation at any of the tokens, given by their ids in the
// model's vocabulary.
func StopTokens(ids ...int32) GenOption {
	return genOption(func(g *GenNode) { g.Tokens.Stop = append(g.Tokens.Stop, ids...) })
}

// AllowedTokens lets only these tokens be drawn.
func AllowedTokens(ids ...int32) GenOption {
	return genOption(func(g *GenNode) {
		if g.Tokens.Allowed == nil {
			g.Tokens.Allowed = []int32{} // none is not all
		}
		g.Tokens.Allowed = append(g.Tokens.Allowed, ids...)
	})
}

// BannedTokens never writes the tokens one after the other.
func BannedTokens(ids ...int32) GenOption {
	return genOption(func(g *GenNode) { g.Tokens.Banned = append(g.Tokens.Banned, ids) })
}

// Regex makes the whole generation match a regular expression.
func Regex(pattern string) GenOption { return genOption(func(g *GenNode) { g.Regex = pattern }) }

// EBNF makes the whole generation match a grammar with the start symbol root.
func EBNF(grammar string) GenOption { return genOption(func(g *GenNode) { g.EBNF = grammar }) }

type maxTokens int

func (o maxTokens) gen(g *GenNode)   { g.MaxTokens = int(o) }
func (o maxTokens) json(j *JSONNode) { j.MaxTokens = int(o) }

// MaxTokens bounds what is generated.
func MaxTokens(n int) ModelOption { return maxTokens(n) }

type sampling func(*Sampling)

func (o sampling) gen(g *GenNode)   { o(&g.Sampling) }
func (o sampling) json(j *JSONNode) { o(&j.Sampling) }

// Temperature flattens (above 1) or sharpens (below) what tokens are drawn
// from; 0 takes the likeliest.
func Temperature(t float64) ModelOption { return sampling(func(s *Sampling) { s.Temperature = t }) }

// TopP draws from the likeliest tokens that have together the probability p.
func TopP(p float64) ModelOption { return sampling(func(s *Sampling) { s.TopP = p }) }

// TopK draws from the k likeliest tokens.
func TopK(k int) ModelOption { return sampling(func(s *Sampling) { s.TopK = k }) }

// MinP draws from tokens at least p times as likely as the likeliest.
func MinP(p float64) ModelOption { return sampling(func(s *Sampling) { s.MinP = p }) }

// Seed fixes the random numbers of the node.
func Seed(n uint64) ModelOption { return sampling(func(s *Sampling) { s.Seed = &n }) }

// RepetitionPenalty divides the scores of tokens that were seen; 1 is off.
func RepetitionPenalty(x float64) ModelOption {
	return sampling(func(s *Sampling) { s.RepetitionPenalty = x })
}

// FrequencyPenalty lowers the scores of tokens by how often they were seen.
func FrequencyPenalty(x float64) ModelOption {
	return sampling(func(s *Sampling) { s.FrequencyPenalty = x })
}

// PresencePenalty lowers the scores of tokens that were seen.
func PresencePenalty(x float64) ModelOption {
	return sampling(func(s *Sampling) { s.PresencePenalty = x })
}

// LogitBias adds to the scores of tokens, by their ids in the model's vocabulary:
// -100 keeps one out, 100 leaves nothing else.
func LogitBias(bias map[int32]float64) ModelOption {
	return sampling(func(s *Sampling) { s.LogitBias = maps.Clone(bias) })
}

// ScoreMethod says by what the options of a select are compared.
type ScoreMethod string

// The ways to compare options; without one it is the probability of the tokens that
// an option becomes, with the end of the turn where it ends one. The first three are
// those of SGLang, and look at the tokens of the option alone.
const (
	// TokenLengthNormalized takes the mean of the tokens' log-probabilities.
	TokenLengthNormalized ScoreMethod = "token_length_normalized"
	// GreedyTokenSelection takes the options with the likeliest first token, of these
	// those with the likeliest second one, and so on.
	GreedyTokenSelection ScoreMethod = "greedy_token_selection"
	// UnconditionalLikelihoodNormalized takes the mean of what the context adds to the
	// tokens' log-probabilities.
	UnconditionalLikelihoodNormalized ScoreMethod = "unconditional_likelihood_normalized"
	// Exact takes the probability of an option in all ways to write it in tokens.
	Exact ScoreMethod = "exact"
)

var scoreMethods = []ScoreMethod{TokenLengthNormalized, GreedyTokenSelection, UnconditionalLikelihoodNormalized, Exact}

type selectOption func(*SelectNode)

func (o selectOption) sel(s *SelectNode) { o(s) }

// ScoreBy says by what the options are compared.
func ScoreBy(m ScoreMethod) SelectOption { return selectOption(func(s *SelectNode) { s.Method = m }) }

// SharesTo makes *shares the list of the options' shares, in their order: how likely
// each is among them. Its variable is the select's name with _shares.
func SharesTo(shares *Var[[]float64]) SelectOption {
	return selectOption(func(s *SelectNode) { s.sharesTo = shares })
}

type logprobsOption struct{ to *Var[[]float64] }

func (o logprobsOption) gen(g *GenNode)   { g.logprobsTo = o.to }
func (o logprobsOption) json(j *JSONNode) { j.logprobsTo = o.to }

// LogprobsTo makes *lps the list of the log-probabilities of what is generated, a
// number in nats for each token. Its variable is the node's name with _logprobs.
func LogprobsTo(lps *Var[[]float64]) ModelOption { return logprobsOption{lps} }

// wantLogprobs names the variable for them.
func (n *Node) wantLogprobs() {
	if n.Gen != nil {
		n.Gen.Logprobs = n.Name + "_logprobs"
	} else {
		n.JSON.Logprobs = n.Name + "_logprobs"
	}
}

// Logprobs returns the name of the variable for the log-probabilities of what a gen or
// json generates, empty if they are not wanted.
func (n *Node) Logprobs() string {
	switch {
	case n.Gen != nil:
		return n.Gen.Logprobs
	case n.JSON != nil:
		return n.JSON.Logprobs
	}
	return ""
}

// Others returns the variables that a node sets beside the one of its name: the shares
// of a select, the log-probabilities of a gen or json, the errors of a fork.
func (n *Node) Others() []string {
	name := n.Logprobs()
	switch {
	case n.Select != nil:
		name = n.Select.Shares
	case n.Fork != nil:
		name = n.Fork.Errors
	}
	if name == "" {
		return nil
	}
	return []string{name}
}

// otherVar returns the handle of a list that node n of p, which was just added, sets
// beside the variable of its name.
func otherVar[T any](p *Program, n *Node, name string) Var[[]T] {
	v := listVar[T](p, name, n.Pos)
	if !p.live() || p.script.last == nil {
		return v
	}
	v.h.asked, v.h.uses = nil, nil
	if x := p.script.latest[name]; x != nil && x.node == n {
		v.h.asked, v.h.uses = x, []*asked{x}
	}
	return v
}

type forkOption func(*ForkNode)

func (o forkOption) fork(f *ForkNode) { o(f) }

// ItemName names the variable of a fork's item; it is NAME_item otherwise.
func ItemName(name string) ForkOption { return forkOption(func(f *ForkNode) { f.As = name }) }

// Collect lets branches fail: their places in the list are null.
func Collect() ForkOption {
	return forkOption(func(f *ForkNode) { f.Join = Policy{Kind: "collect"} })
}

// CollectErrors is Collect, and *errs becomes the list of the branches' errors, ""
// for those that did not fail. Its variable is the fork's name with _errors.
func CollectErrors(errs *Var[[]string]) ForkOption {
	return forkOption(func(f *ForkNode) { f.Join, f.errsTo = Policy{Kind: "collect"}, errs })
}

// ErrorsTo makes *errs the list of the branches' errors, "" for those that did not
// fail, where not all need to succeed: with Collect, First and Quorum.
func ErrorsTo(errs *Var[[]string]) ForkOption {
	return forkOption(func(f *ForkNode) { f.errsTo = errs })
}

// First takes the first branch that succeeds and cancels the others.
func First() ForkOption {
	return forkOption(func(f *ForkNode) { f.Join = Policy{Kind: "first"} })
}

// Quorum goes on as soon as n branches have succeeded.
func Quorum(n int) ForkOption {
	return forkOption(func(f *ForkNode) { f.Join = Policy{Kind: "quorum", N: n} })
}

type callOption func(*CallNode)

func (o callOption) call(c *CallNode) { o(c) }

// Unsafe marks a function that must not be called twice for one node: a resumed
// run that does not know whether it was called stops and says so.
func Unsafe() CallOption { return callOption(func(c *CallNode) { c.Unsafe = true }) }

// FuncName is the name under which the function is registered, if it is not the
// name of the node.
func FuncName(name string) CallOption { return callOption(func(c *CallNode) { c.Func = name }) }
