// Package engine is coppice's own inference engine: a backend that runs a model
// of package model, many sequences at a time, on pages of keys and values that
// they share.
//
// Three types matter. An [Engine] is the backend. Inside it a scheduler owns
// sequences, each a list of tokens and the pages they are computed on, and the
// cache of package cache knows which pages hold which prefix.
//
// # A step
//
// One goroutine computes. Each step it
//
//	takes in    requests that arrived; ends those whose context is done
//	plans       which tokens of which sequence: first one each for those that
//	            decode, then pieces of prompts, up to the token budget
//	computes    one forward pass over all of it
//	publishes   what is computed of a prompt, so that others start from there
//	draws       a token for each sequence whose last token was computed, under
//	            its constraint's mask; appends what the constraint forces
//	sends       text that is whole and cannot be part of a stop string
//
// Callers compile prompts and constraints on their own goroutines, and wait for
// text on them: the loop never waits for a caller.
//
// # Pages of a sequence
//
//	tokens   0                      owned*16        computed     len(tokens)
//	         |-------- prompt ----------|---- reply ----|-- pending --|
//	pages    [ 0 ][ 1 ][ 2 ] .........  [ 6 ][ 7 ]
//	         | in the tree, pinned by   | held by the
//	         | one handle               | sequence
//
//	finish   unpins the handle, releases its pages: prompt and reply stay in
//	         the tree until their pages are needed
//	abort    the same; what is not computed was never in the tree
//	preempt  the same; the tokens stay, and are found in the tree or computed
//	         again when there are pages
//	fork     is nothing of its own: a second sequence with the same beginning
//	         matches it in the tree, to the token, and copies the one page that
//	         it shares in part
//
// A sequence that begins like one whose prompt is still being computed waits
// for it and takes the prefix from the tree, so the trunk of 32 branches that
// arrive together is computed once.
//
// # Faults
//
// A pass that fails is computed again, each of its sequences alone, and only whose
// own pass fails ends with the error. A panic in what is done for one request ends
// that one. After any other the cache is thrown away and all begin again from
// their tokens.
//
// # Same tokens
//
// The logits of a position depend on the tokens before it and on nothing else;
// that is the model's promise. Draws depend on logits, seed and position. So the
// ids of a result do not depend on what else is in the batch, on the cache, on
// the size of steps or of the pool, nor on preemption; and jump-forward follows
// the same plan of tokens as the masks do, so it changes only the number of
// passes.
package engine
