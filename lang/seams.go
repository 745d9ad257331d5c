package lang

import "time"

// Seams are all that a script needs of the world that it runs in. The runtime
// implements them on this process, a workflow engine can implement them on its
// own clock, coroutines and history, and the same script runs in both.
//
// A world runs one coroutine of a script at a time and changes to another only
// inside of Await. So scripts need no locks, and the order in which they ask is
// the same in each run.
type Seams interface {
	// Now is the time of the run. A replay is given the times of the first run.
	Now() time.Time
	// Seed is the seed of the run, from which scripts draw random numbers.
	Seed() uint64
	// Spawn runs f in a coroutine of its own, which is given its own seams. It
	// need not have begun when Spawn returns.
	Spawn(f func(Seams))
	// Await returns nil when ready reports true, and an error when the run ends
	// before. It is called from the coroutine that the seams were given to.
	Await(ready func() bool) error
	// Ask hands a step to the run and returns at once.
	Ask(a Ask) Answer
}

// Answer is what becomes of an Ask.
type Answer interface {
	// Done reports whether the step is over, or will never be.
	Done() bool
	// Value is the value of the variable that the step set, or why there is
	// none. It is called after Done reported true.
	Value() (any, error)
	// Other is the same for a variable that the step set beside it, one of the
	// node's Others.
	Other(name string) (any, error)
}

// AskKind says what an Ask wants.
type AskKind uint8

// The kinds of asks.
const (
	AskNode  AskKind = iota // run Node
	AskOpen                 // begin the turn of the role block Node
	AskClose                // end that turn
	AskEnd                  // end the line with Value, or with Err at once
)

// Ask is a step of a script, for one of its lines: the trunk, or a branch of a
// Map. The steps of a line run one after the other.
type Ask struct {
	Kind AskKind
	// Line is the instance id of the branch; empty for the trunk.
	Line string
	Node *Node
	// Enclosing and Instance turn the ids of nodes into instance ids: an id that
	// begins with Enclosing begins with Instance instead.
	Enclosing, Instance string
	// Fork is set for the fork of a Map. Its branches run what is asked of their
	// lines, whose ids are the fork's instance id with [0], [1] and so on.
	Fork  bool
	Items []any
	// InRole is set inside of the turn of a role block.
	InRole bool
	// Funcs are the functions that Node calls.
	Funcs Funcs
	// Trace is a hash of all that was asked of the line up to here. A replay
	// that has another trace at the same node is of another script.
	Trace uint64
	Value any
	Err   error
}
