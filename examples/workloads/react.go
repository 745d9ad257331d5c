package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/lang"
)

const reactHow = `Answer questions. Think in one line, then act. The acts are lookup[word] and finish[answer].

Question: Which node does the shop run on?
Thought 1: I look up the shop.
Act 1: lookup[shop]
Observation 1: the shop runs on node a-7
Thought 2: That is the answer.
Act 2: finish[a-7]

`

// facts are what a lookup finds.
var facts = map[string]string{
	"db-3":    "db-3 runs the billing service",
	"billing": "the team of billing is blue",
	"blue":    "on call for blue is Ada",
	"ada":     "Ada is on call for team blue",
}

func lookup(_ context.Context, word string) (string, error) {
	if f, ok := facts[strings.ToLower(word)]; ok {
		return f, nil
	}
	return "nothing is known of " + word, nil
}

// react alternates between a thought of the model, an act that a pattern holds to its
// form, and what a Go function finds. Everything is appended to one text, so each
// round computes only what is new.
var react = lang.Script("react", func(s *lang.S, question string) (string, error) {
	s.Text(reactHow, "Question: ", question, "\n")
	for i := range s.Turns("rounds", 3) {
		s.Text(fmt.Sprintf("Thought %d: ", i+1))
		s.Gen("thought", lang.MaxTokens(24), lang.Stop("\n"))
		s.Text(fmt.Sprintf("\nAct %d: ", i+1))
		act, err := s.Gen("act", lang.MaxTokens(24), lang.Regex(`(lookup|finish)\[[A-Za-z0-9-]{1,12}\]`)).Get()
		if err != nil {
			return "", err
		}
		what, word, ok := strings.Cut(strings.TrimSuffix(act, "]"), "[")
		switch {
		case !ok:
			return "", errors.New("an act without its form: " + act)
		case what == "finish":
			return word, nil
		}
		seen := lang.Call1(s, "lookup", lookup, lang.Const(word))
		s.Text("\n", fmt.Sprintf("Observation %d: ", i+1), seen, "\n")
	}
	return "no answer", nil
})
