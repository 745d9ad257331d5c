// Package future shows what it is worth that an engine knows the programs it
// serves. It runs many agents, which pause for their tools, on an engine whose cache
// holds a part of what they read, and counts the prompt tokens that need not be
// computed again. Beside it stands what the best possible choice of what to evict
// would have saved on the same trace, and what the least recently used would have.
//
// Programs, runner, engine, scheduler and prefix tree are those of the product, on
// a simulated device with a virtual clock: see [Run]. [Replay] is the comparison.
package future
