package backend

import (
	"context"
	"time"
)

// Token is an id in a model's vocabulary.
type Token = int32

// Role says who speaks in a turn.
type Role string

// The roles of a turn. A turn with role Raw is plain text outside any chat
// template: completion-style prompts are written with it.
const (
	Raw       Role = ""
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// Part is a piece of a turn's content: text that the program wrote, or text
// that a model generated together with the ids it generated it as.
type Part struct {
	Text string `json:"text"`
	// Tokens are the ids of Text as a model produced them; nil for text of the
	// program. They are valid only for the model named in Model.
	Tokens []Token `json:"tokens,omitempty"`
	// Model is the fingerprint of the model that generated Tokens.
	Model string `json:"model,omitempty"`
	// Image is a picture in place of text, in a user's turn: an http, https or data
	// URL. It is for backends whose capabilities say Images.
	Image string `json:"image,omitempty"`
}

// HasImages reports whether a prompt shows the model a picture.
func HasImages(turns []Turn) bool {
	for i := range turns {
		for j := range turns[i].Parts {
			if turns[i].Parts[j].Image != "" {
				return true
			}
		}
	}
	return false
}

// Turn is one message of a prompt.
type Turn struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
	// Open is set on a last turn that is not finished: a generation continues
	// it. Only the last turn of a prompt may be open.
	Open bool `json:"open,omitempty"`
}

// Text returns the turn's content as one string.
func (t Turn) Text() string {
	switch len(t.Parts) {
	case 0:
		return ""
	case 1:
		return t.Parts[0].Text
	}
	n := 0
	for _, p := range t.Parts {
		n += len(p.Text)
	}
	b := make([]byte, 0, n)
	for _, p := range t.Parts {
		b = append(b, p.Text...)
	}
	return string(b)
}

// Sampling says how the next token is drawn from the logits. The zero value is
// greedy decoding.
type Sampling struct {
	Temperature float64 `json:"temperature,omitempty"` // 0: greedy
	TopK        int     `json:"top_k,omitempty"`       // 0: off
	TopP        float64 `json:"top_p,omitempty"`       // 0 or 1: off
	MinP        float64 `json:"min_p,omitempty"`       // 0: off
	// Seed and the position of a token give its random number, so a request
	// replayed with the same seed draws the same tokens. Zero is a seed like
	// any other.
	Seed              uint64            `json:"seed,omitempty"`
	RepetitionPenalty float64           `json:"repetition_penalty,omitempty"` // 0 or 1: off
	FrequencyPenalty  float64           `json:"frequency_penalty,omitempty"`
	PresencePenalty   float64           `json:"presence_penalty,omitempty"`
	LogitBias         map[Token]float64 `json:"logit_bias,omitempty"`
}

// Constraint limits what may be generated. At most one field is set; the zero
// value allows everything.
type Constraint struct {
	JSONSchema []byte   `json:"json_schema,omitempty"` // a JSON Schema document, key order kept
	Regex      string   `json:"regex,omitempty"`       // the whole output matches
	EBNF       string   `json:"ebnf,omitempty"`        // GBNF dialect, start symbol "root"
	Choices    []string `json:"choices,omitempty"`     // the whole output is one of these
	Tags       *Tags    `json:"tags,omitempty"`        // free text with tagged parts
}

// IsZero reports whether c allows everything.
func (c Constraint) IsZero() bool {
	return len(c.JSONSchema) == 0 && c.Regex == "" && c.EBNF == "" && len(c.Choices) == 0 && c.Tags == nil
}

// Hints tell a backend what the program knows of its own future. They change
// cost, never results.
type Hints struct {
	// Run names the run that a request belongs to; its requests are kept
	// together and its prefixes are pinned while it lives.
	Run string `json:"run,omitempty"`
	// Branch names the branch of the run that will read the prompt again; each
	// branch goes on with what it read last. Empty is the trunk.
	Branch string `json:"branch,omitempty"`
	// Siblings is the number of requests, this one included, that start
	// together from the same prefix. A backend may hold the others back until
	// the first has filled the cache. 0 means unknown.
	Siblings int `json:"siblings,omitempty"`
	// Reused is set if a later request is known to begin with this prompt.
	Reused bool `json:"reused,omitempty"`
	// LastUse is set if no later request of the run reads past the prefix that
	// this prompt shares with its siblings' parent: what it adds may be evicted
	// first.
	LastUse bool `json:"last_use,omitempty"`
}

// Request asks for one generation.
type Request struct {
	// ID names the request in errors and events; the node's instance id.
	ID string `json:"id"`
	// Turns is the prompt. If the last turn is open, the generation goes on
	// with it; otherwise the generation is a new assistant turn (or, after a
	// Raw turn, plain continuation).
	Turns []Turn `json:"turns"`
	// MaxTokens bounds the generated tokens, forced ones included. 0 means what
	// is left of the context.
	MaxTokens int `json:"max_tokens,omitempty"`
	// MinTokens suppresses the end of the text before that many tokens. A
	// constraint that allows only the end wins.
	MinTokens int `json:"min_tokens,omitempty"`
	// Stop strings end the generation; neither the string nor what follows it
	// is part of the result.
	Stop      []string `json:"stop,omitempty"`
	IgnoreEOS bool     `json:"ignore_eos,omitempty"`
	// Tokens are rules about single tokens, for backends whose capabilities say
	// TokenRules.
	Tokens     TokenRules `json:"tokens,omitzero"`
	Sampling   Sampling   `json:"sampling"`
	Constraint Constraint `json:"constraint"`
	// ShowControl writes the names of control tokens that the model draws into the
	// text, as <|im_start|>; without it they stand for nothing. For backends whose
	// capabilities say TokenRules.
	ShowControl bool `json:"show_control,omitempty"`
	// Resume are ids that an earlier attempt at this very request generated before
	// it was lost, forced ones included. The generation goes on behind them, and
	// its result is that of an attempt that was not lost; deltas begin with the
	// first of them. Backends that cannot do so begin anew.
	Resume []Token `json:"resume,omitempty"`
	// NoJump turns jump-forward off: forced tokens are then fed one forward
	// pass each. The output is the same.
	NoJump bool `json:"no_jump,omitempty"`
	// CloseAtLimit closes a text with a constraint when it comes to its limit of
	// tokens: of the tokens that the model chooses none is taken after which the text
	// could not come to an end within the limit, and one that leads to an end is
	// written in its place (Result.Closed counts these). The result still finishes
	// with FinishLength, and is a text of the constraint. Where no end is within reach
	// from the beginning, and on backends whose capabilities do not say CloseAtLimit,
	// the text is cut as others are.
	CloseAtLimit bool `json:"close_at_limit,omitempty"`
	// Progress asks for deltas that say how much of the prompt is computed, from
	// backends that know.
	Progress bool `json:"progress,omitempty"`
	// Logprobs asks for the log-probability of each generated token.
	Logprobs bool `json:"logprobs,omitempty"`
	// Top asks beside those for as many of the likeliest tokens, from backends that
	// are a [LogprobScorer]; others ignore it.
	Top int `json:"top,omitempty"`
	// Salt separates cache entries of tenants that must not see each other's
	// timing.
	Salt string `json:"salt,omitempty"`
	// Priority puts requests before those with a lower one that wait too. Backends
	// without a queue of their own ignore it.
	Priority int   `json:"priority,omitempty"`
	Hints    Hints `json:"hints"`
}

// TokenRules limit a generation by ids, besides its constraint. A token that a
// constraint needs and a rule forbids is an error.
type TokenRules struct {
	// Stop ends the generation when one of them is drawn; it is not part of the
	// result. An end token that is named here ends it under IgnoreEOS too.
	Stop []Token `json:"stop,omitempty"`
	// Allowed are the only tokens that are drawn, end tokens included; nil is
	// all.
	Allowed []Token `json:"allowed,omitempty"`
	// Banned are sequences that are never written: the last token of one is not
	// drawn after its others.
	Banned [][]Token `json:"banned,omitempty"`
	// StopRegex are regular expressions of package regexp. The generation ends with
	// the token that completes a match of one of them, which stays part of the
	// result. Matches of up to 256 bytes are found; see [CompileStops] for the
	// bounds.
	StopRegex []string `json:"stop_regex,omitempty"`
}

// IsZero reports whether there are no rules.
func (r *TokenRules) IsZero() bool {
	return len(r.Stop) == 0 && r.Allowed == nil && len(r.Banned) == 0 && len(r.StopRegex) == 0
}

// Origin says how a token of a result came to be.
type Origin uint8

const (
	Sampled Origin = iota // drawn from the logits of a forward pass
	Forced                // the only thing the constraint allowed; no pass of its own
)

// Delta is a piece of a generation as it streams.
type Delta struct {
	Text   string  // valid UTF-8; empty if the tokens end inside a character or a possible stop string
	Tokens []Token // the new tokens; nil from backends that show none
	Origin Origin  // of all of Tokens
	// Logprobs and Top are those of Tokens, as in Result. With them the text of a
	// token never comes before the token. They are nil if they were not asked for,
	// and from backends that know them only at the end.
	Logprobs []float64
	Top      [][]TokenLogprob
	// PromptDone of PromptTokens are computed or were in the cache. Only in
	// deltas that Request.Progress asked for, which hold nothing else.
	PromptDone, PromptTokens int
}

// FinishReason says why a generation ended.
type FinishReason string

const (
	FinishStop   FinishReason = "stop"   // the model ended its turn, or a stop string, or the constraint was complete
	FinishLength FinishReason = "length" // MaxTokens or the context
)

// Span is a range of forward passes [From, To] of one engine instance. Passes
// are shared by the sequences of a batch, so a run counts the union of its
// requests' spans, not their sum.
type Span struct {
	Engine uint64 `json:"engine"`
	From   uint64 `json:"from"`
	To     uint64 `json:"to"`
}

// Usage says what a request cost.
//
// PromptTokens = CachedTokens + the computed part of the prompt, and
// ComputedTokens counts every token that went through a forward pass for this
// request, generated ones included.
type Usage struct {
	PromptTokens   int    `json:"prompt_tokens"`
	CachedTokens   int    `json:"cached_tokens"`   // of the prompt, read from the cache
	ComputedTokens int    `json:"computed_tokens"` // fed through the model for this request
	ForcedTokens   int    `json:"forced_tokens"`   // generated without a pass of their own
	SampledTokens  int    `json:"sampled_tokens"`  // generated from logits
	Passes         []Span `json:"passes,omitempty"`
	// Without is what the same request costs alone on an empty cache with no
	// jump-forward: every call computes its whole prompt, every token its pass.
	// A score is a call for each of its options there.
	Without Cost `json:"without"`
}

// Cost is an amount of work.
type Cost struct {
	ComputedTokens int `json:"computed_tokens"`
	ForwardPasses  int `json:"forward_passes"`
}

// Result is a finished generation.
type Result struct {
	// Part holds the text and, where the backend shows them, the ids.
	Part   Part         `json:"part"`
	Finish FinishReason `json:"finish"`
	// ContextFull is the tokens of the context, if the generation ended because
	// it was full before MaxTokens were there; else, or if that is unknown, 0.
	ContextFull int `json:"context_full,omitempty"`
	// Closed is the number of tokens that were written to close the text at its limit,
	// in the place of those that the model chose.
	Closed int `json:"closed,omitempty"`
	// Matched is the stop string that ended it, or the regular expression, if one
	// did.
	Matched string `json:"matched,omitempty"`
	// StopToken is the token of TokenRules.Stop that ended it, if one did.
	StopToken *Token `json:"stop_token,omitempty"`
	// Logprobs, in nats, parallel to Part.Tokens; only if asked for.
	Logprobs []float64 `json:"logprobs,omitempty"`
	// Top are the likeliest tokens at the same places, the likeliest first, whatever
	// a constraint allows; only if asked for.
	Top   [][]TokenLogprob `json:"top,omitempty"`
	Usage Usage            `json:"usage"`
	// Emulated names what the backend could not do itself and how it was done
	// instead, e.g. "json_schema: validated, 2 tries".
	Emulated []string `json:"emulated,omitempty"`
}

// ScoreRequest asks how likely each of some continuations of a prompt is.
type ScoreRequest struct {
	ID      string   `json:"id"`
	Turns   []Turn   `json:"turns"` // as in Request
	Options []string `json:"options"`
	// Closed scores each option together with the end of the turn, so that an
	// option which is the beginning of another is not favoured.
	Closed bool `json:"closed,omitempty"`
	// Method says what the options will be compared by: what the result has to
	// tell. It is the caller who compares them, with [ScoreMethod.Rank].
	Method   ScoreMethod `json:"method,omitempty"`
	Salt     string      `json:"salt,omitempty"`
	Priority int         `json:"priority,omitempty"` // as in Request
	Hints    Hints       `json:"hints"`
}

// OptionScore is the score of one option.
type OptionScore struct {
	// Part is the option with the ids that were scored.
	Part Part `json:"part"`
	// Logprobs of the ids in nats, the turn's end last if it was scored.
	Logprobs []float64 `json:"logprobs"`
	// Unconditional are the log-probabilities of the ids with nothing before the
	// first one, whose own is 0; only for UnconditionalLikelihoodNormalized.
	Unconditional []float64 `json:"unconditional,omitempty"`
	// Sum of Logprobs; for Exact the log-probability of the option in all ways to
	// write it, those of Part included.
	Sum float64 `json:"sum"`
}

// ScoreResult holds one score an option, in the order asked.
type ScoreResult struct {
	Options  []OptionScore `json:"options"`
	Usage    Usage         `json:"usage"`
	Emulated []string      `json:"emulated,omitempty"`
}

// Capabilities says what a backend can do. A program is checked against them
// before its first call.
type Capabilities struct {
	JSONSchema bool `json:"json_schema"`
	Regex      bool `json:"regex"`
	EBNF       bool `json:"ebnf"`
	Choices    bool `json:"choices"`
	Score      bool `json:"score"`
	TokenIDs   bool `json:"token_ids"`  // results carry ids, prompts may
	ForkHints  bool `json:"fork_hints"` // shares prefixes of siblings
	Logprobs   bool `json:"logprobs"`
	Seed       bool `json:"seed"`
	Raw        bool `json:"raw"` // takes turns without a chat template
	TokenRules bool `json:"token_rules"`
	Tags       bool `json:"tags"` // structural tags
	// CloseAtLimit: it closes constrained texts that come to their limit.
	CloseAtLimit bool `json:"close_at_limit"`
	// OpenTurns: it goes on with a turn that has text.
	OpenTurns bool `json:"open_turns"`
	// Beside Score, for the methods of the same names: ScoreTokens are those that
	// look at single tokens, which a backend that makes the model choose cannot.
	ScoreTokens bool `json:"score_tokens"`
	ScoreExact  bool `json:"score_exact"`
	Images      bool `json:"images"` // prompts may show pictures
}

// Template says what writes the turns of a chat.
type Template string

// What writes the turns of models in a file of ours.
const (
	OwnTemplate    Template = "own"    // the template in the model's file
	ChatMLTemplate Template = "chatml" // ChatML: the file has no template, but ChatML's control tokens
	PlainTemplate  Template = "plain"  // a line for each turn: the file has neither
)

// Info describes a backend's model.
type Info struct {
	Model string `json:"model"` // name for people
	// Fingerprint changes whenever the weights or the tokenizer do. Empty if
	// unknown (remote backends).
	Fingerprint   string `json:"fingerprint"`
	ContextLength int    `json:"context_length"` // tokens; 0 if unknown
	// Template says what writes the turns of a chat, if that is known.
	Template Template `json:"template,omitempty"`
	// ToolFormat names the form in which the model writes tool calls, as
	// chat.Template.ToolFormat does; empty if unknown.
	ToolFormat   string       `json:"tool_format,omitempty"`
	Capabilities Capabilities `json:"capabilities"`
}

// Backend runs generations. It is safe for concurrent use.
type Backend interface {
	Info() Info
	// Generate runs req to its end and returns its result. emit, which may be
	// nil, is called with each new piece in order, from one goroutine at a
	// time, before Generate returns; it must not block. Cancelling ctx ends the
	// work within one step and returns an error that wraps ctx.Err().
	Generate(ctx context.Context, req *Request, emit func(Delta)) (*Result, error)
	// Score returns the log-probabilities of continuations, or ErrUnsupported.
	Score(ctx context.Context, req *ScoreRequest) (*ScoreResult, error)
	Close() error
}

// Tokenizer is implemented by backends that can say what ids a prompt becomes.
type Tokenizer interface {
	// Tokenize returns the ids of a prompt as Generate would feed them,
	// including the opening of an assistant turn if open is set.
	Tokenize(turns []Turn, open bool) ([]Token, error)
}

// Foreseer is implemented by backends that keep what a run will read again until
// it does. Its methods change cost, never results; they return at once, and the
// backend need not know the run.
type Foreseer interface {
	// Foresee tells what a branch of a run does until its next request. The last
	// one counts.
	Foresee(run, branch string, a Absence)
	// EndRun tells that no request of a run will follow.
	EndRun(run string)
}

// Absence is what a branch does between two requests.
type Absence struct {
	// Doing names what it does. The backend learns how long that takes.
	Doing string
	// For is how long it takes, if that is known; 0 otherwise.
	For time.Duration
	// Gone says that there will be no next request.
	Gone bool
}

// ConstraintChecker is implemented by backends that can say, without a call,
// whether they take a constraint.
type ConstraintChecker interface {
	// CheckConstraint returns the error that Generate would return for a request
	// with that constraint because of it, or nil.
	CheckConstraint(ctx context.Context, c Constraint) error
}
