// Package lang says what an agent program is.
//
// A program is a [Graph]: steps that append text to a context, ask a model,
// call functions, branch and loop. It is data: the same graph is checked,
// explained, drawn, written to a file, run in process, from a journal or on
// other machines. A graph comes from Go code, by [Define], or from a file, by
// [Load] and [Decode]; both report everything that is wrong at once, each with
// its file and line and what to do.
//
// In Go, [Define] runs a build function once, when the program is compiled. It is
// given a [Program], whose methods append steps, and works with handles of type
// [Var] for values that exist only in a run:
//
//	var Greet = lang.Define("greet", func(p *lang.Program) lang.Var[string] {
//		name := lang.In[string](p, "name")
//		p.System("You greet people in one line.")
//		p.User("Greet ", name, ".")
//		return p.Gen("greeting", lang.MaxTokens(40), lang.Stop("\n"))
//	})
//
// Go's own if and for shape the graph; [Program.When], [Program.Repeat] and
// [ForEach] shape the run. [Fork] runs branches from one context at the same time
// and gives back the list of what they return.
//
// # Scripts
//
// A [Script] is for what cannot be laid out before the run: a Go function that
// is run with the run, looks at answers with [Var.Get] and decides with Go's own
// if and for what comes next. It takes the same calls and makes the same nodes
// with the same ids:
//
//	var Greet = lang.Script("greet", func(s *lang.S, name string) (string, error) {
//		s.System("You greet people in one line.")
//		s.User("Greet ", name, ".")
//		return s.Gen("greeting", lang.MaxTokens(40), lang.Stop("\n")).Get()
//	})
//
// # Variables
//
// The steps gen, select, json, fork, call, foreach and let set a variable each, by
// their names. A variable is set once; only let may set one again, with a value
// of the same type, and not across the border of a fork or foreach. What is set
// inside a branch of a fork or a round of a foreach stays there: the list of
// what they yield comes back. What is set inside when, repeat and role can be
// read after them, if it is surely set there.
//
// Values have the form that JSON has: nil, bool, int, float64, string, []any and
// map[string]any. Whole numbers are int.
//
// # Expressions and texts
//
// Conditions, lists and values are expressions in the language of
// github.com/expr-lang/expr over the variables, checked for their types. They
// have no clock, no random numbers and no effects, and bounds on what they cost.
// Texts are templates: ${expression} is replaced by its value in the form of
// [FormatValue], and $${ is a plain ${. The builder escapes strings; only Vars
// become expressions.
//
// # Files
//
// A program file is YAML or JSON, the same structure in both:
//
//	coppice: 1
//	name: triage
//	inputs:
//	  alert: string
//	steps:
//	  - system: {file: runbook.md}
//	  - user: "Alert: ${alert}"
//	  - fork:
//	      name: looks
//	      each: [memory, rollout]
//	      as: angle
//	      steps:
//	        - user: Look only at ${angle}.
//	        - gen: {name: finding, max_tokens: 80, stop: ["\n"]}
//	      yield: finding
//	  - user: |
//	      Findings:
//	      ${join(looks, "\n")}
//	  - select: {name: severity, options: [low, high, critical]}
//	  - return: severity
//
// A step is a map of its kind to what it says:
//
//	system, user, assistant, tool   a turn: a text, {file: name} or {template: name}
//	text      text in the open turn of a role, or raw text outside of one
//	role      role, steps: one turn that several steps write
//	gen       name, max_tokens, min_tokens, stop, regex, ebnf or tags, and sampling:
//	          temperature, top_k, top_p, min_p, repetition_penalty,
//	          frequency_penalty, presence_penalty, logit_bias, seed, ignore_eos,
//	          tokens; n for a list of several answers; think for a thought before
//	          the answer; logprobs for how likely its tokens are
//	select    name, options or from (an expression), values, method, shares
//	json      name, schema or type, max_tokens, and sampling; n, think, logprobs
//	fork      name, each (texts) or over (an expression), as, steps, yield, join, errors;
//	          or arms, each with name, steps, yield
//	call      name, func, args (expressions), result (a type), unsafe
//	when      if, then, else
//	repeat    name, max, until, index, steps
//	foreach   name, over, as, steps, yield
//	let       name, value, type
//	return    an expression
//
// What asks a model takes timeout, retry, fallback, priority and salt too, gen and
// json also check and tries, and a call timeout and retry: see [Terms] and
// [Validator].
//
// The join of a fork is all (one failure fails it), collect (failed branches are
// null in the list), first, or {quorum: 2}. Types are written string, int, float,
// bool, any, []T and {name: T, other?: T}. A file's text is taken as it is, a
// template's has expressions.
//
// # Before a run
//
// [Explain] predicts what a run computes, reuses and generates, and finds layouts
// that cost more than they need. [Graph.Link] checks that the functions that a
// program calls are there, [Graph.Bind] that its inputs are.
package lang
