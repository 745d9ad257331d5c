// Package relay brings the events of a durable run from the workers that carry it
// out to the process that shows it, beside Temporal: tokens never enter a history.
//
// A [Sender] is at each worker. It hands over what its workers tell, in order and
// again until it was taken. A [Receiver] is at the process that keeps the events of
// runs: it follows a run, makes one stream of what all workers tell of it, numbers
// the events, and gives each once to a sink.
//
// The one invariant: what a Receiver gives to its sink is the stream of one
// undisturbed run. Workers die and others tell the same again, histories are
// replayed, messages come twice, late, or not at all; what was told already is
// dropped and what was missed is made up from the result of its node. [Merge] does
// that, and needs only what was told so far to go on in another process.
package relay
