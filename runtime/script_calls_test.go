package runtime_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// Checks, retries, typed answers and several answers are the same in scripts.
func TestScriptsHaveTheSameTermsAsPrograms(t *testing.T) {
	checked := 0
	script := lang.Script("calls", func(s *lang.S, q string) (string, error) {
		s.User(q)
		n, err := lang.Gen[int](s, "n", lang.Retries(2), lang.RetryWait(1, 1), lang.Check(func(n int) error {
			checked++
			if n < 3 {
				return errors.New("too few")
			}
			return nil
		}), lang.Check("n < 10")).Get()
		if err != nil {
			return "", err
		}
		s.User("And?")
		day, err := lang.Select(s, "day", 1, 2).Get()
		if err != nil {
			return "", err
		}
		s.User("More.")
		drafts, err := lang.GenN[string](s, "drafts", 2, lang.Temperature(1)).Get()
		return fmt.Sprint(n, day, drafts), err
	})
	m := puppet.New()
	m.OnID("n").Reply("1").FailCall(1, errBusy)
	m.OnID("n~2").Reply("7")
	m.OnID("day").Scores(map[string]float64{"2": -1})
	m.OnID("drafts[0]/drafts").Reply("a")
	m.OnID("drafts[1]/drafts").Reply("b")
	journal := filepath.Join(t.TempDir(), "j")
	out, err := runtime.RunScript(t.Context(), m, script, "hi", runtime.WithJournal(journal))
	if err != nil || out.Value != "7 2 [a b]" || out.Retries != 1 || checked != 2 {
		t.Fatal(out, err, checked)
	}
	again, err := runtime.RunScript(t.Context(), m, script, "hi", runtime.WithJournal(journal))
	if err != nil || again.Value != out.Value || checked != 2 || len(m.Log()) != 6 {
		t.Error(again, err, checked, len(m.Log()))
	}
}
