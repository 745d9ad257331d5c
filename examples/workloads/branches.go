package main

import (
	"context"
	"strings"

	"github.com/coppice-run/coppice/lang"
)

const shopText = `You plan the work of a small team that keeps a web shop running. The shop has
a database, a search, a cart and a queue between them, on two clusters in two cities.
Releases go out on Tuesdays. Nobody works at night unless customers cannot pay.`

// node is a leaf of the tree: a plan, a solution by it, and a mark.
type leaf struct {
	Plan     string `json:"plan"`
	Solution string `json:"solution"`
	Mark     int    `json:"mark"`
}

// best is the leaf with the highest mark, the first of equal ones.
func best(_ context.Context, plans [][]leaf) (leaf, error) {
	var top leaf
	for _, p := range plans {
		for _, l := range p {
			if l.Mark > top.Mark {
				top = l
			}
		}
	}
	return top, nil
}

// tree forks plans, in each of them solutions, and has the model mark each solution in
// its own context. Every level shares all that is above it.
var tree = lang.Define("tree", func(p *lang.Program) lang.Var[leaf] {
	p.System(shopText)
	p.User("The search is slow since yesterday's release. What should be done?")
	plans := lang.Fork(p, "plans", lang.Each(1, 2), func(b *lang.Branch, _ lang.Var[int]) lang.Var[[]leaf] {
		b.User("Name a plan in one line.")
		plan := b.Gen("plan", lang.MaxTokens(20), lang.Stop("\n"), lang.Temperature(0.8))
		return lang.Fork(b, "solutions", lang.Each(1, 2), func(b *lang.Branch, _ lang.Var[int]) lang.Var[leaf] {
			b.User("Work it out in one line.")
			solution := b.Gen("solution", lang.MaxTokens(20), lang.Stop("\n"), lang.Temperature(0.8))
			b.User("Mark this from 1 to 5.")
			mark := lang.Select(b, "mark", 1, 2, 3, 4, 5)
			return lang.Calc[leaf]("{plan: ", plan, ", solution: ", solution, ", mark: ", mark, "}")
		})
	})
	return lang.Call1(p, "best", best, plans)
})

// skeleton asks for the points of an answer and then writes all of them at the same
// time: as many branches as there are points.
var skeleton = lang.Script("skeleton", func(s *lang.S, question string) (string, error) {
	s.System(shopText)
	s.User(question, "\nGive three short points.")
	points, err := lang.JSON[[3]string](s, "points", lang.MaxTokens(90)).Get()
	if err != nil {
		return "", err
	}
	parts, err := lang.Map(s, "parts", points[:], func(b *lang.S, point string) (string, error) {
		b.User("Write one sentence on: ", point)
		return b.Gen("part", lang.MaxTokens(24), lang.Stop("\n")).Get()
	})
	return strings.Join(parts, "\n"), err
})

const article = `On Tuesday the shop was down for forty minutes. The new version of the cart kept
each session in memory and reached its limit when the sale began. It was killed, came
back, and was killed again. The team raised the limit, which helped for an hour, and then
went back to the version before. Since then sessions are in the database again. We should
have looked at memory before the sale and not during it.`

// judge looks at a text from six sides at once and gives a mark with all six before it.
var judge = lang.Define("judge", func(p *lang.Program) lang.Var[int] {
	p.System("You judge reports of incidents. Be short and fair.")
	p.User("The report:\n", article)
	views := lang.Fork(p, "views", lang.Each("what happened", "cause", "what was done", "what was learnt", "style", "length"),
		func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
			b.User("Judge only this: ", side, ".")
			return lang.Calc[string](side, `+ ": " +`, b.Gen("view", lang.MaxTokens(24), lang.Stop("\n")))
		})
	p.User("You said:\n", lang.Join(views, "\n"), "\nGive a mark from 1 to 10.")
	return lang.Select(p, "mark", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
})

// most is the answer that most gave, the first of those that are as frequent.
func most(_ context.Context, answers []string) (string, error) {
	count := map[string]int{}
	top := ""
	for _, a := range answers {
		if count[a]++; count[a] > count[top] {
			top = a
		}
	}
	return top, nil
}

// vote draws five chains of thought and lets each choose; the most frequent choice
// wins.
var vote = lang.Define("vote", func(p *lang.Program) lang.Var[string] {
	p.System(shopText)
	p.User("Customers in one city cannot pay; in the other they can. What is broken?")
	answers := lang.Fork(p, "chains", lang.Each(1, 2, 3, 4, 5), func(b *lang.Branch, _ lang.Var[int]) lang.Var[string] {
		b.User("Think in one line.")
		b.Gen("thought", lang.MaxTokens(24), lang.Stop("\n"), lang.Temperature(0.9))
		b.User("So what is it?")
		return lang.Select(b, "choice", "the database", "one cluster", "the queue", "the release")
	})
	return lang.Call1(p, "most", most, answers)
})
