package grammar

// Spec says what texts are wanted. Exactly one of JSONSchema, JSONObject,
// Regex, EBNF, Lark, Choices, Sequence and Tags is set.
type Spec struct {
	// JSONSchema is a schema of draft 2020-12 (the idioms of draft-04 to
	// draft-07 are understood too). The text is a JSON value that it accepts.
	JSONSchema []byte
	// JSONObject wants any JSON object.
	JSONObject bool
	// Regex is an ECMA-262 pattern that the whole text must match.
	Regex string
	// EBNF is a grammar in GBNF notation; the text is derived from "root". A
	// grammar with a rule named start and without "::=" is read as Lark.
	EBNF string
	// Lark is a grammar in the notation of Lark, as llguidance takes it; the text
	// is derived from "start".
	Lark string
	// Choices are the texts to choose from.
	Choices []string
	// Sequence is parts that follow one another, such as a fixed text (one
	// choice) and a JSON value. AnyOrder, Whitespace and Limits of the parts
	// are ignored: those of this Spec count.
	Sequence []Spec
	// Tags is free text with tagged parts in it.
	Tags *Tags

	// AnyOrder lets the properties of an object come in any order. Without it
	// they come in the order of the schema, extra ones last.
	AnyOrder bool
	// Whitespace says what stands between JSON tokens.
	Whitespace Whitespace
	// Limits bounds the work; zero fields take the default.
	Limits Limits
}

// Whitespace says what may stand between the tokens of a JSON text. The zero
// value is compact: nothing.
type Whitespace struct {
	// Max allows up to Max blanks, tabs or line ends between two tokens.
	Max int
	// Indent writes each member on its own line, Indent blanks deeper than its
	// container, and one blank after a colon (as JSON.stringify and
	// json.MarshalIndent do). It excludes Max.
	Indent int
}

// Limits bounds what compiling and running one grammar may cost. A zero field
// takes the default in the comment.
type Limits struct {
	SourceBytes int // size of the source: 4 MiB
	Depth       int // nesting of a schema, a pattern or a rule: 256
	Nodes       int // automaton nodes, made at compile time or on the way: 1,000,000
	Work        int // elementary steps of compiling: 10,000,000
	MaskBytes   int // memory for remembered masks: 32 MiB
	Stack       int // nesting of the written text: 10,000
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&l.SourceBytes, 4<<20)
	def(&l.Depth, 256)
	def(&l.Nodes, 1_000_000)
	def(&l.Work, 10_000_000)
	def(&l.MaskBytes, 32<<20)
	def(&l.Stack, 10_000)
	return l
}

// Tags is free text in which certain texts open a part with a form of its own,
// such as a tool call or a thinking block.
type Tags struct {
	// Triggers end the free text: once one of them is written, one of the tags
	// that begin with it must follow. Without triggers the Begin texts are the
	// triggers.
	Triggers []string
	Tags     []Tag
	// AtLeastOne wants one tag or more.
	AtLeastOne bool
	// StopAfterFirst ends the text with the first tag.
	StopAfterFirst bool
}

// Tag is one kind of tagged part: Begin, the content, End.
type Tag struct {
	Begin, End string
	// Content is the form of the content; nil is free text up to End.
	Content *Spec
}
