package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/lang"
)

// incident is what extract finds in a report. Keys, quotes and enumerated values are
// forced by its schema and cost no pass.
type incident struct {
	Service  string   `json:"service" jsonschema:"maxLength=20"`
	Severity string   `json:"severity" jsonschema:"enum=low,enum=high,enum=critical"`
	Minutes  int      `json:"minutes" jsonschema:"minimum=0,maximum=9999"`
	Causes   []string `json:"causes" jsonschema:"maxItems=2"`
	Reverted bool     `json:"release_reverted"`
}

var extract = lang.Define("extract", func(p *lang.Program) lang.Var[incident] {
	p.System("You turn reports into records.")
	p.User(article, "\nGive the record as JSON.")
	return lang.JSON[incident](p, "record", lang.MaxTokens(160))
})

// chat answers one message after the other. What was said before is never computed
// again, the model's own words included.
var chat = lang.Define("chat", func(p *lang.Program) lang.Var[[]string] {
	messages := lang.In[[]string](p, "messages", lang.Default([]string{
		"Hello. Are you on call today?",
		"The cart is slow. Where should I look first?",
		"Memory looks fine. What else?",
		"Thank you. Please write that down in one line.",
	}))
	p.System("You are on call and answer in one line.")
	return lang.ForEach(p, "turns", messages, func(p *lang.Program, m lang.Var[string]) lang.Var[string] {
		p.User(m)
		return p.Gen("answer", lang.MaxTokens(24), lang.Stop("\n"))
	})
})

var handbook = []string{
	"A certificate that expired is renewed by hand; then find out why the robot did not.",
	"A full disk is cleaned by removing unused images and by keeping logs for fewer days.",
	"A node that does not answer is cordoned, its pods are moved, and it is started again.",
	"An image that cannot be pulled has a wrong tag more often than not.",
	"A pod that reaches its memory limit is killed; look at its use before the end.",
}

// find is a retriever: the two passages that share most words with a question.
func find(_ context.Context, question string) ([]string, error) {
	asked := strings.Fields(strings.ToLower(strings.Trim(question, "?")))
	score := func(passage string) (n int) {
		for _, w := range strings.Fields(strings.ToLower(passage)) {
			if w = strings.Trim(w, ".,;"); len(w) > 3 && slices.Contains(asked, w) {
				n++
			}
		}
		return n
	}
	found := slices.Clone(handbook)
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(score(b), score(a)) })
	return found[:2], nil
}

// sourced is an answer with the passage that it rests on.
type sourced struct {
	Answer string `json:"answer"`
	Source string `json:"source"`
}

var rag = lang.Define("rag", func(p *lang.Program) lang.Var[sourced] {
	question := lang.In[string](p, "question")
	found := lang.Call1(p, "found", find, question)
	p.System("You answer from the handbook and from nothing else.") // stable text first
	p.User("Passages:\n", lang.Join(found, "\n"), "\nQuestion: ", question)
	answer := p.Gen("answer", lang.MaxTokens(32), lang.Stop("\n"))
	p.User("Which passage says so?")
	source := lang.SelectFrom(p, "source", found)
	return lang.Calc[sourced]("{answer: ", answer, ", source: ", source, "}")
})
