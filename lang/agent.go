package lang

import "context"

// agentSteps is how often an agent asks the model if nothing else is said.
const agentSteps = 8

// AgentOption is an option of Agent: Steps, and all options of Gen, which are of each
// answer. Terms among them are of the requests to the model; what bounds the calls of
// a tool stands at the [Tool].
type AgentOption any

type stepsOption int

// Steps bounds how often an agent asks the model; 8 otherwise.
func Steps(n int) AgentOption { return stepsOption(n) }

// Agent lets the model call tools until it answers without a call, at most Steps
// times. The calls of an answer run at the same time; what they return is told in
// tool turns, in the order of the calls. The result is the last answer; a model
// that still calls after the last step is asked once more, for an answer without
// calls. The context should tell of the tools first, with [Toolbox.Text] in the
// system turn.
//
// It is no kind of node but a repeat of others, so that it is explained, drawn,
// stored and resumed as they are, and each call of a tool is a task of its own:
//
//	NAME: repeat
//	  NAME_reply: gen, constrained by the tools' structural tags
//	  NAME_calls: call of NAME.calls, which finds the calls in it
//	  NAME_results: fork over them, NAME_result: call of NAME.run
//	  foreach NAME_told: a tool turn with each result
//
// A program file that uses tools has the same steps, and is given the functions
// by name; see [Toolbox.Funcs].
func Agent(at Builder, name string, box *Toolbox, opts ...AgentOption) Var[string] {
	p := at.program()
	pos := caller()
	steps := agentSteps
	if box == nil {
		box = Tools(Hermes)
	}
	if err := box.Check(); err != nil {
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: err.Error()})
	}
	gen := []GenOption{StructuralTags(box.Tags())}
	for _, o := range opts {
		switch o := o.(type) {
		case stepsOption:
			steps = int(o)
		case GenOption:
			gen = append(gen, o)
		default:
			p.b.errorf(pos, name, "a %T is no option of an agent: give Steps and options of Gen", o)
		}
	}
	var reply Var[string]
	var calls Var[[]ToolCall]
	p.Repeat(name, steps, func(p *Program, _ Var[int]) Cond {
		reply = p.Gen(name+"_reply", gen...)
		calls = Call1(p, name+"_calls", box.calls, reply, FuncName(name+".calls"))
		run := []CallOption{FuncName(name + ".run")}
		if box.unsafe() {
			run = append(run, Unsafe())
		}
		results := Fork(p, name+"_results", Over(calls), func(b *Branch, c Var[ToolCall]) Var[string] {
			return Call1(b, name+"_result", box.Run, c, run...)
		}, ItemName(name+"_call"))
		ForEach(p, name+"_told", results, func(p *Program, text Var[string]) Var[any] {
			p.Tool(text)
			return Var[any]{}
		})
		return Calc[bool]("len(", calls, ") == 0")
	})
	last := name + "_answer"
	p.When(Calc[bool]("len(", calls, ") == 0"), func(p *Program) {
		Let[string](p, last, reply)
	}, func(p *Program) {
		p.User("Answer now, without another call.")
		p.Gen(last, genOptions(opts)...)
	})
	return Let[string](p, name, last)
}

// genOptions returns the options of Gen among those of an agent.
func genOptions(opts []AgentOption) []GenOption {
	var out []GenOption
	for _, o := range opts {
		if g, ok := o.(GenOption); ok {
			out = append(out, g)
		}
	}
	return out
}

func (b *Toolbox) calls(_ context.Context, answer string) ([]ToolCall, error) {
	return b.Calls(answer), nil
}

// Funcs returns the functions of an agent of that name, for graphs from files.
func (b *Toolbox) Funcs(name string) (Funcs, error) {
	calls, err := NewFunc(name+".calls", b.calls)
	if err != nil {
		return nil, err
	}
	run, err := NewFunc(name+".run", b.Run)
	if err != nil {
		return nil, err
	}
	run.Unsafe = b.unsafe()
	return Funcs{calls.Name: calls, run.Name: run}, nil
}
