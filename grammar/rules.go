package grammar

// ruleItem is a place inside a rule of an EBNF grammar.
type ruleItem struct{}

func (w *writer) lexRule(f frame) []item { return nil }
