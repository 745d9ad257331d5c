package grammar

// This file bounds what one mask may cost where a pattern has a state of its
// own for almost every text.

// effort counts the states that a walk comes to, by their weight. It does not
// depend on what was computed before: a mask is the same whoever asked first.
type effort struct {
	walk   int32 // stamps nodes
	left   int
	depth  uint16 // bytes of the tokens that are looked at
	failed bool
}

// maxEffort is the weight of the states of one walk. Few patterns come to a
// tenth of it.
const maxEffort = 16_000

// shallower is the depths that are tried when a walk comes to too many states:
// tokens that stay in a lexeme for more bytes are then left out of the mask.
// Single bytes are always looked at.
var shallower = []uint16{1 << 15, 8, 4, 2, 1}

// begin starts a walk of tokens of so many bytes.
func (e *effort) begin(depth uint16) {
	e.walk++
	e.left, e.depth, e.failed = maxEffort, depth, false
}

// meet counts a state and reports whether the walk may go on.
func (e *effort) meet(nd *node) bool {
	if nd.met != e.walk {
		nd.met = e.walk
		if e.left -= int(nd.weight); e.left < 0 && e.depth > 1 {
			e.failed = true
			return false
		}
	}
	return true
}
