// Package workflows runs programs on Temporal: for days, over crashes and
// deploys, with people in the loop.
//
// There is one workflow for all programs. It is a driver of [runtime.Machine],
// like the runner in package runtime, so a program behaves the same here and
// there: each generation, score and call of a function is an activity, sleeps
// are timers, waits for people are updates.
//
// Three types matter. A [Worker] carries out runs with a backend and functions.
// A [Run] is a run as its owner sees it: [Start] or [Open] it, wait for its
// [Run.Report], look at its [Run.Tree], [Run.Answer] what it asks. A [Store]
// holds what is too large for a history: prompts, long texts, reports.
//
//	c, err := workflows.Dial(ctx, workflows.DialOptions{Address: addr, Store: store})
//	w, err := workflows.NewWorker(c, workflows.Config{Backend: be, Funcs: def.Funcs(), Store: store})
//	err = w.Start()
//	run, err := workflows.Start(ctx, c, graph, lang.Args{"alert": text}, workflows.StartOptions{Name: "alert-4711"})
//	report, err := run.Report(ctx)
//
// # What happens how often
//
// A result that the server has accepted is never computed again. An attempt
// that dies with its worker is made again: a generation goes on behind the
// tokens of the last heartbeat, a function is called again with the same
// idempotency key. So effects happen at least once, and exactly once where the
// other side honours the key ([runtime.IdempotencyKey]). A function that is
// marked unsafe is not called again: its run stops at an unknown outcome until
// somebody settles it.
//
// # Retries
//
// Only the run repeats what failed; backends and functions try once. Which
// failures are worth it is said in one table in this package.
package workflows
