package lang

import "encoding/json"

// Graph is a program as data: what the builder makes, what files hold, what a
// runtime runs and a journal names. A Graph that came out of Compile or Decode
// is checked: every variable it reads is set before, every type agrees, every
// ID is unique. It is immutable from then on.
type Graph struct {
	Name   string
	Doc    string
	Inputs []Input
	Body   []*Node
	Budget Budget
	// Programs are those that nodes run as a step, in the order in which they are
	// named first.
	Programs []*Graph
	// Output is the type of the value that the program returns.
	Output Type

	compiled compiled // expressions and templates in the form that runs

	at     Pos      // where it begins, of a program inside of a document
	beside []string // the programs of its document
	depth  int      // of programs that run programs
	size   int      // nodes, with those of the programs that they run
	failed bool     // its check
	// Of what a node runs: the program, and the id of the node.
	origin *Graph
	within string
}

// Input is a value that a run is given.
type Input struct {
	Name    string
	Type    Type
	Doc     string
	Default json.RawMessage // nil: the run must give it
	Pos     Pos
}

// Pos is where the author wrote a node: the builder call or the line of a
// program file.
type Pos struct {
	File string
	Line int
}

// Kind says what a node does.
type Kind string

// The kinds of nodes. Text, Image, Let and Return happen at once; Gen, Select, JSON,
// Call, Sleep and Wait are tasks that somebody must carry out; the others hold
// bodies.
const (
	KindText    Kind = "text"    // append text to the context
	KindImage   Kind = "image"   // show a picture in a user's turn
	KindRole    Kind = "role"    // a turn built from several nodes
	KindGen     Kind = "gen"     // free or constrained text from the model
	KindSelect  Kind = "select"  // the likeliest of a few options
	KindJSON    Kind = "json"    // a value of a schema from the model
	KindFork    Kind = "fork"    // branches over the same context, joined at the end
	KindCall    Kind = "call"    // a Go function
	KindWhen    Kind = "when"    // one body or the other
	KindRepeat  Kind = "repeat"  // a body until a condition holds, bounded
	KindForEach Kind = "foreach" // a body for each item, one after the other
	KindRun     Kind = "run"     // another program
	KindSleep   Kind = "sleep"   // wait for a time
	KindWait    Kind = "wait"    // wait for an answer from outside
	KindLet     Kind = "let"     // a variable from an expression
	KindReturn  Kind = "return"  // the program's result; ends it
)

// Node is one step of a program. Exactly the field that belongs to Kind is
// set.
type Node struct {
	// ID is the node's path in the program, e.g. "looks/finding": the names of
	// the nodes around it and its own name, or its kind with its number among
	// the unnamed nodes of that kind in the same body ("user", "user#2"). It
	// does not depend on nodes elsewhere.
	ID   string
	Kind Kind
	// Name is the variable that the node sets, or of a body the name in its
	// path; empty for nodes that set none.
	Name string
	Pos  Pos
	// Reads and Writes are the variables of the enclosing scopes that the node
	// (with its bodies) reads and sets, sorted. Compile fills them.
	Reads  []string
	Writes []string

	Text    *TextNode
	Image   *ImageNode
	Role    *RoleNode
	Gen     *GenNode
	Select  *SelectNode
	JSON    *JSONNode
	Fork    *ForkNode
	Call    *CallNode
	When    *WhenNode
	Repeat  *RepeatNode
	ForEach *ForEachNode
	Run     *RunNode
	Sleep   *SleepNode
	Wait    *WaitNode
	Let     *LetNode
	Return  *ReturnNode
}

// TextNode appends a whole turn (Role is system, user, assistant or tool), or, with
// Role empty, text to the open turn of an enclosing role block; outside of one
// it is raw text with no chat template.
type TextNode struct {
	Role    string
	Content Template

	line int // of the first line of Content in its file; 0: not known
}

// ImageNode shows a picture in the open turn of a user's role block.
type ImageNode struct {
	URL Template // http, https, or data with the bytes of the picture in base64
}

// RoleNode is one turn whose content is made by several nodes: text, image, gen,
// select and json inside it append to the same turn.
type RoleNode struct {
	Role string
	Body []*Node
}

// Sampling options of gen and json; zero values mean the run's defaults
// (greedy).
type Sampling struct {
	Temperature       float64
	TopK              int
	TopP              float64
	MinP              float64
	RepetitionPenalty float64
	FrequencyPenalty  float64
	PresencePenalty   float64
	// LogitBias is added to the scores of tokens, by their ids in the model's
	// vocabulary.
	LogitBias map[int32]float64
	// Seed of the node; nil: derived from the run's seed and the node's
	// instance id, so that branches draw different numbers.
	Seed *uint64
}

// TokenRules limit a generated text by the ids of the model's vocabulary.
type TokenRules struct {
	Stop    []int32   // end the text when drawn
	Allowed []int32   // the only ones that are drawn; nil: all
	Banned  [][]int32 // sequences that are never written
}

// GenNode asks the model for text: in a new assistant turn, or in the open one of
// an enclosing role block.
type GenNode struct {
	MaxTokens int // 0: what is left of the context
	MinTokens int
	Stop      []string
	StopRegex []string // end the text with the token that completes a match
	Regex     string   // at most one of Regex, EBNF, Tags
	EBNF      string
	Tags      *Tags
	Sampling  Sampling
	IgnoreEOS bool // the model's end of the text does not end it
	Tokens    TokenRules
	Terms     Terms
	Checks    []Validator
	Tries     int // generations in all until one passes; 0: DefaultTries if there are checks
	// Logprobs is a variable that is set to the log-probabilities of the text's tokens,
	// in nats; empty: none.
	Logprobs string

	asks // from the builder
}

// asks is what options of a gen or json say that becomes other nodes or variables.
type asks struct {
	think      *thinking
	logprobsTo *Var[[]float64]
}

// SelectNode sets its variable to one of some options, the one with the highest
// probability as a continuation of the context. Exactly one of Options and From
// is set.
type SelectNode struct {
	Options []string
	From    Expr // a list of strings
	// Values are what the variable is set to, one for each of Options; nil: the
	// options themselves.
	Values []json.RawMessage
	// Method says by what the options are compared; empty: by their probability.
	Method ScoreMethod
	// Shares is a variable that is set to the list of the options' shares, which add
	// up to 1; empty: none.
	Shares string
	Type   Type // of the variable. Compile fills it
	Terms  Terms

	sharesTo *Var[[]float64] // from the builder
}

// JSONNode asks the model for a value of a schema.
type JSONNode struct {
	Schema    json.RawMessage // JSON Schema, key order kept
	GoType    string          // the Go type it was made from; for people
	Type      Type            // of the variable, from Schema
	MaxTokens int
	Sampling  Sampling
	Terms     Terms
	Checks    []Validator
	Tries     int    // as in GenNode
	Logprobs  string // as in GenNode

	written *tree // Schema as it stands in the node's file; nil: elsewhere
	asks          // from the builder
}

// Policy says what a fork does about failed branches.
type Policy struct {
	// Kind is "all" (default: one failure fails the fork and cancels the
	// others), "collect" (the list has null for failed branches), "first" (the
	// first success is the result, the others are cancelled) or "quorum" (so
	// many successes are enough).
	Kind string
	N    int // quorum
}

// ForkNode runs branches from the same context at the same time. Its variable is
// the list of what the branches yield, in the order of the items or arms. The
// context after the fork is the context before it: only the list comes back.
// Exactly one of Items, Over and Arms is set.
type ForkNode struct {
	Items []string // static items
	Over  Expr     // items at run time: a list
	As    string   // variable of the item inside Body (Items, Over)
	Body  []*Node  // (Items, Over)
	Yield Expr     // what a branch gives to the list (Items, Over); may be empty
	Arms  []Arm
	Join  Policy
	// Errors is a variable that is set to a list with the error of each branch, ""
	// for those that did not fail; empty: none. Not with the policy "all".
	Errors string
	// Elem is the type of the list's elements. Compile fills it.
	Elem Type

	errsTo *Var[[]string] // from the builder
}

// Arm is a branch of a fork that has its own body.
type Arm struct {
	Name  string
	Body  []*Node
	Yield Expr
}

// CallNode calls a Go function that is registered under Func.
type CallNode struct {
	Func   string
	Args   []Expr
	Result Type
	// Unsafe marks a function that must not be called twice for one node. A
	// run that does not know whether it happened stops and says so.
	Unsafe bool
	Terms  Terms

	argTypes []Type // of Args, as checked
}

// WhenNode runs Then if the condition holds, else Else. A variable set in both with
// one type is known afterwards.
type WhenNode struct {
	If   Expr
	Then []*Node
	Else []*Node
}

// RepeatNode runs Body until Until holds after it, at most Max times.
type RepeatNode struct {
	Max   int
	Until Expr   // may be empty: exactly Max times
	Index string // variable of the round, from 0; may be empty
	Body  []*Node
}

// ForEachNode runs Body once for each item of a list, in one context, one after the
// other. Its variable is the list of what the rounds yield.
type ForEachNode struct {
	Over  Expr
	As    string
	Body  []*Node
	Yield Expr // may be empty
	Elem  Type // Compile fills it
}

// LetNode sets its variable to the value of an expression.
type LetNode struct {
	Value Expr
	Type  Type // Compile fills it

	inferred Type // of Value
}

// ReturnNode ends the program with a value.
type ReturnNode struct {
	Value Expr
}

// Expr is an expr-lang expression over the variables in scope, in source form,
// e.g. `severity == "critical" && len(looks) > 2`. Empty means none.
type Expr string

// Template is text with expressions in it, in source form: "Alert: ${alert}".
// "$${" stands for a plain "${".
type Template string
