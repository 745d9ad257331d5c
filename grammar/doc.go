// Package grammar constrains what a language model may write: it turns a JSON
// Schema, a regular expression, an EBNF or Lark grammar, a list of choices, a sequence
// of these or free text with tagged parts into an automaton over bytes, and
// answers after every token which tokens may come next.
//
// Three types matter. A [Vocab] is the token set of one tokenizer, prepared
// once and shared. A [Grammar] is one compiled [Spec]. A [State] is a place in
// a grammar: an immutable value, so copying it is a fork and keeping an old
// one is a rollback.
//
//	vocab, err := grammar.NewVocab(tokens, grammar.VocabOptions{EndTokens: []int32{eos}})
//	g, err := grammar.Compile(ctx, grammar.Spec{JSONSchema: schema}, vocab)
//	s := g.Start()
//	s.Mask(bits)              // bit i: token i may come next
//	s, err = s.Accept(token)  // the next place
//
// # What is promised
//
// A text whose every token was legal and whose end was legal is a text of the
// grammar. From every state that is reached the end can be reached; the
// exceptions are intersections of patterns too large to search (see below) and
// texts nested deeper than [Limits].Stack. A schema keyword is either enforced
// or the schema is refused with the keyword's JSON pointer; it is never
// dropped. A schema that no value satisfies is refused before the first token.
// All recursion and all work is bounded by [Limits].
//
// # Forced text
//
// Where only one text can follow, [State.Jump] gives the tokens of it, so that
// they can be fed in one forward pass. [State.Mask] follows the same plan (its
// only legal token is the next one of the plan), so a greedy run writes the
// same tokens with and without jumping. See [State.Jump] for the rule.
//
// # JSON Schema
//
// Drafts 2020-12 and 2019-09 are read, and the idioms of draft-04 to draft-07
// (definitions, boolean exclusive bounds, items lists, dependencies, $ref
// without siblings) where $schema names them.
//
//   - Exact, alone and together: type, enum, const, allOf, anyOf, oneOf, not,
//     if/then/else, properties, required, additionalProperties,
//     patternProperties, propertyNames, minProperties, maxProperties,
//     dependentRequired, dependentSchemas, dependencies, items, prefixItems,
//     additionalItems, minItems, maxItems, contains, minContains, maxContains,
//     minLength, maxLength, pattern, minimum, maximum, the exclusive bounds,
//     multipleOf, unevaluatedProperties, unevaluatedItems, $ref with $defs,
//     $id and $anchor within the document, recursion.
//   - uniqueItems where no item can be an array or object of any content.
//   - $dynamicRef where nothing in the document can move it.
//   - format: date-time, date, time, duration, email, idn-email, hostname,
//     ipv4, ipv6, uuid, uri, uri-reference, iri, iri-reference, uri-template,
//     json-pointer, relative-json-pointer; of regex a safe part. Names that
//     JSON Schema does not define say nothing and are in [Grammar.Notes].
//   - Refused: references to other documents, $recursiveRef, idn-hostname,
//     unknown meta-schemas, \b, back references, lookbehind, lookahead inside
//     a group, the negation of uniqueItems.
//
// What is written: the properties in the order in which the schema first
// names them, others behind them (or any order, see [Spec]); no white space
// (or as [Whitespace] says); names, enum and const in plain spelling; in free
// strings every escape that JSON has; numbers with at most 40 digits on each
// side of the point, without exponent where their value matters. Two names of
// one object that the schema does not name may be the same.
//
// Where conditions combine to more cases than fit, those with the fewest
// conditions are kept: some values are then out of reach, none is let in that
// should not be. [Grammar.Notes] tells.
//
// # How it works
//
// A schema becomes a formula over atoms, each of which speaks of one JSON type
// (formula.go, keywords.go). For every value that can occur the formula is
// restricted to each type, its negations moved to the atoms (normal.go). For
// strings and numbers the result is one regular expression, with intersection
// and complement, over the bytes of the JSON text (strings.go, number.go). For
// arrays and objects it is brought into disjunctive form (dnf.go); every
// conjunction is one node that says what members may come (array.go,
// object.go). A fixpoint finds the nodes without a finite text and removes them
// (values.go).
//
// Regular expressions are hash-consed and run by derivatives (rx.go,
// derive.go), so states are built when they are first met and counted
// repetition is a counter. Containers are a stack of frames (frames.go). A
// place of the machine is the set of all ways to read the text so far
// (machine.go), as lexeme under way, what follows it, and stack.
//
// A mask is put together from what each lexeme says about the tokens that stay
// in it, which does not depend on the surroundings and is shared by all
// grammars for plain strings, and from a walk over the rests of the tokens
// that run past its end (mask.go). Masks are remembered by place under a
// budget of bytes; places that one token cannot tell apart, such as two in the
// middle of a long array, share one.
package grammar
