// Package runtime runs program graphs.
//
// Three types matter. A [Machine] is a program in the middle of its run, as a
// pure state machine: it says which tasks are ready (generations, scores,
// function calls) and takes their results back, and it does nothing else; no
// clock, no goroutine, no input or output, no randomness. A [Report] is what a
// run gave: the value, the variables, the branches, and what it cost. An
// [Event] is one thing that happened during a run, for whoever watches.
//
// Between them stands the runner, which is no type but functions: [Run] and
// [RunGraph] drive a Machine on a backend in this process, and with a journal
// ([WithJournal]) every result is on disk before it has any effect, so that
// [Resume] goes on after a crash without doing finished work again.
//
//	out, err := runtime.Run(ctx, be, Triage, lang.Args{"alert": text})
//	fmt.Println(out.Value.Reason)
//
// [RunScript] does the same for a program whose steps are decided in the run.
//
// # Other drivers
//
// A Machine can be driven by anything that can carry out its tasks. The loop is
//
//	m, err := runtime.New(graph, inputs, runtime.Options{Run: id})
//	for !m.Done() {
//		for _, t := range m.Ready() {
//			// carry t out, now or later, here or elsewhere
//		}
//		err := m.Apply(result) // in whatever order results arrive
//	}
//
// [Machine.Snapshot] is the list of results so far, and [Restore] brings a
// Machine to the same state again. That is all the durability there is: the
// journal of this package stores that list in a file, a workflow engine stores
// it in its history.
//
// # Batches
//
// [Batch] runs a program once for each item of a file or channel: so many at once,
// results in order, failures collected, and with a journal it goes on where it was
// interrupted.
//
// # Failures
//
// Errors of a run are a tree: a [NodeError] names the task, the node and its
// place in the program; a [ForkError] holds the errors of a fork's branches.
// Both unwrap, so errors.Is and errors.As reach what a backend or a function
// returned.
package runtime
