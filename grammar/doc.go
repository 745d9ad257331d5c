// Package grammar constrains what a language model may write: it turns a JSON
// Schema, a regular expression, an EBNF grammar or a list of choices into an
// automaton over bytes, and answers after every token which tokens may come
// next.
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
// grammar. From every state that is reached the end can be reached. A schema
// keyword is either enforced or the schema is refused with the keyword's JSON
// pointer; it is never dropped. A schema that no value satisfies is refused
// before the first token. All recursion is bounded by [Limits].
//
// # Forced text
//
// Where only one text can follow, [State.Jump] gives the tokens of it, so that
// they can be fed in one forward pass. [State.Mask] follows the same plan (its
// only legal token is the next one of the plan), so a greedy run writes the
// same tokens with and without jumping. See [State.Jump] for the rule.
package grammar
