package lang_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// TestErrorsOfBranchesInPlans: a script that wants the errors of a fork, or of branches
// of its own, is explained, though a loop asks for the fork again.
func TestErrorsOfBranchesInPlans(t *testing.T) {
	say := func(s *lang.S, errs lang.Var[[]string], name string) {
		s.User("errors: ", lang.Join(errs, "|"))
		s.Gen(name, lang.MaxTokens(3))
	}
	script := lang.Script("plan", func(s *lang.S, _ string) (string, error) {
		s.User("go")
		for range 2 {
			var errs lang.Var[[]string]
			lang.Fork(s, "f", lang.Each("a", "b"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
				b.User(item)
				return b.Gen("word", lang.MaxTokens(3))
			}, lang.Quorum(1), lang.ErrorsTo(&errs))
			say(s, errs, "after")
		}
		var errs lang.Var[[]string]
		_, err := lang.Map(s, "m", []string{"a", "b"}, func(b *lang.S, item string) (string, error) {
			b.User(item)
			b.Gen("word", lang.MaxTokens(3))
			return "", nil
		}, lang.CollectErrors(&errs))
		say(s, errs, "last")
		return "", err
	})
	x, err := lang.ExplainScript(script, lang.ExplainOptions{Inputs: lang.Args{"input": ""}})
	require.NoError(t, err)
	var nodes []string
	for _, n := range x.Calls {
		nodes = append(nodes, n.Node)
	}
	require.Equal(t, []string{"f/word", "after", "f_2/word", "after_2", "m/a/word", "m/b/word", "last"}, nodes)
}
