package main

import (
	"github.com/coppice-run/coppice/lang"
)

const solved = `Answer each question with one letter.

Which command shows the pods of a namespace?
A: kubectl get nodes
B: kubectl get pods
C: kubectl drain
D: kubectl top
Answer: B

Which exit code has a process that was killed by signal 9?
A: 0
B: 1
C: 137
D: 255
Answer: C

What keeps a pod off a node that it does not tolerate?
A: a taint
B: a label
C: a service
D: an image
Answer: A

`

// question has four answers, of which one is right.
type question struct {
	Text  string   `json:"text"`
	Ways  []string `json:"ways"`
	Right string   `json:"right"`
}

var questions = []question{
	{"What does a readiness probe decide?", []string{"whether a pod gets traffic", "which node it runs on", "how much memory it has", "who may read its logs"}, "A"},
	{"Which object gives pods a stable address?", []string{"a job", "a volume", "a service", "a node"}, "C"},
	{"What ends first when memory runs out?", []string{"the log", "a container over its limit", "the registry", "the clock"}, "B"},
	{"What does ImagePullBackOff say?", []string{"the disk is full", "the node is gone", "the name was not found", "the image cannot be fetched"}, "D"},
	{"What does cordoning a node do?", []string{"no new pods go there", "its pods end", "it is switched off", "it gets more memory"}, "A"},
	{"Where do the lines that a container prints go?", []string{"into its image", "into the log of the container", "into the service", "into a taint"}, "B"},
}

// fewshot asks questions behind the same solved examples, in raw text as a base
// model wants them. The examples are computed once; each question is a branch whose
// select scores four letters in one pass. The value is the share of right answers.
var fewshot = lang.Define("fewshot", func(p *lang.Program) lang.Var[float64] {
	p.Text(solved)
	right := lang.Fork(p, "questions", lang.Each(questions...), func(b *lang.Branch, q lang.Var[question]) lang.Var[bool] {
		b.Text(lang.Calc[string](q, ".text"), "\n",
			lang.Calc[string](`join(map(0..3, ["A", "B", "C", "D"][#] + ": " + `, q, `.ways[#]), "\n")`), "\nAnswer: ")
		letter := lang.Select(b, "letter", "A", "B", "C", "D")
		return lang.Calc[bool](letter, " == ", q, ".right")
	})
	return lang.Calc[float64]("count(", right, ", #) / len(", right, ")")
})

const toldBefore = `Each story goes on as it most likely would.

The disk of db-3 was full. The team deleted old logs, and after that the database accepted writes again.

The new release could not be pulled. Somebody had mistyped the tag, so the tag was put right and the release started.

`

type story struct {
	Text    string   `json:"text"`
	Endings []string `json:"endings"`
	Right   int      `json:"right"`
}

var stories = []story{
	{"The pod used more memory than its limit. ", []string{"It was killed and started again.", "It moved to another country.", "The registry was deleted.", "Everybody got a new keyboard."}, 0},
	{"The node did not answer for ten minutes. ", []string{"The tag of the image was changed.", "Its pods were started on other nodes.", "The certificate was printed.", "The logs were read aloud."}, 1},
	{"The certificate expired during the night. ", []string{"The memory limit was raised.", "A new node was bought.", "Clients refused the connection until it was renewed.", "The rollout became faster."}, 2},
}

// endings picks the likeliest of some endings for each story. The options are known
// only in the run, and their shared beginnings are computed once too.
var endings = lang.Define("endings", func(p *lang.Program) lang.Var[float64] {
	p.Text(toldBefore)
	right := lang.Fork(p, "stories", lang.Each(stories...), func(b *lang.Branch, s lang.Var[story]) lang.Var[bool] {
		b.Text(lang.Calc[string](s, ".text"))
		end := lang.SelectFrom(b, "ending", lang.Calc[[]string](s, ".endings"))
		return lang.Calc[bool](end, " == ", s, ".endings[", s, ".right]")
	})
	return lang.Calc[float64]("count(", right, ", #) / len(", right, ")")
})
