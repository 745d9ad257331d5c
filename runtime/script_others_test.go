package runtime_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestScriptsHaveSharesLogprobsAndErrors: what a step sets beside its own variable
// can be read in a script, each time it is asked for.
func TestScriptsHaveSharesLogprobsAndErrors(t *testing.T) {
	script := lang.Script("others", func(s *lang.S, _ string) (string, error) {
		s.User("go")
		var out strings.Builder
		for i := range 2 {
			var lps, shares lang.Var[[]float64]
			lang.Gen[string](s, "g", lang.LogprobsTo(&lps))
			lang.SelectWith(s, "sel", []lang.SelectOption{lang.SharesTo(&shares)}, "yes", "no")
			s.User("sure: ", lang.Calc[bool](shares, "[0] > 0.5"))
			l, err := lps.Get()
			if err != nil {
				return "", err
			}
			p, err := shares.Get()
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, "%d %v %.2f ", i, l, p)
		}
		arm := func(b *lang.S, item string) (string, error) { return b.Gen(item).Get() }
		var errs lang.Var[[]string]
		got, err := lang.Map(s, "m", []string{"fine", "bad"}, arm, lang.CollectErrors(&errs))
		if err != nil {
			return "", err
		}
		said, err := errs.Get()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%q %d %v ", got, len(said), said[0] == "" && strings.Contains(said[1], "overloaded"))
		var why lang.Var[[]string]
		lang.Fork(s, "f", lang.Each("fine", "bad"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.User(item)
			return b.Gen("word")
		}, lang.Quorum(1), lang.ErrorsTo(&why))
		s.User("errors: ", lang.Join(why, "|"))
		n, err := lang.Len(why).Get()
		fmt.Fprint(&out, n)
		return out.String(), err
	})
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasSuffix(p.ID, "bad") }).Fail(backend.ErrOverloaded)
	m.OnFunc(func(p *puppet.Prompt) bool { return p.Score != nil }).Scores(map[string]float64{"yes": -1, "no": -2})
	m.OnAny().Reply("ok").Edit(func(p *puppet.Prompt, r *backend.Result) {
		if p.Request.Logprobs {
			r.Logprobs = []float64{-0.5, -0.25}
		}
	})
	out, err := runtime.RunScript(t.Context(), m, script, "")
	if err != nil {
		t.Fatal(err)
	}
	const want = `0 [-0.5 -0.25] [0.73 0.27] 1 [-0.5 -0.25] [0.73 0.27] ["fine" ""] 2 true 2`
	if got := strings.ReplaceAll(out.Value, `"ok"`, `"fine"`); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if turns := out.Turns; !strings.HasPrefix(turns[len(turns)-1].Text(), "errors: ") {
		t.Errorf("%+v", turns)
	}
	x, err := lang.ExplainScript(script, lang.ExplainOptions{Inputs: lang.Args{"input": ""}})
	if err != nil || len(x.Notes) == 0 {
		t.Errorf("%v %v", x, err)
	}
}

// TestErrorsOfAMapNeedAPolicy: where one failure fails all, there is no list.
func TestErrorsOfAMapNeedAPolicy(t *testing.T) {
	script := lang.Script("others", func(s *lang.S, _ string) (string, error) {
		s.User("go")
		var errs lang.Var[[]string]
		_, err := lang.Map(s, "m", []string{"a"}, func(b *lang.S, item string) (string, error) { return b.Gen(item).Get() }, lang.ErrorsTo(&errs))
		return "", err
	})
	m := puppet.New()
	m.OnAny().Reply("ok")
	if _, err := runtime.RunScript(t.Context(), m, script, ""); err == nil || !strings.Contains(err.Error(), "one failed branch fails the fork") {
		t.Error(err)
	}
}
